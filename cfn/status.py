"""The state of a cluster at one look: stack, groups, nodes and their first boot."""

from dataclasses import dataclass
from typing import Any

from cfn.aws import asking, client, pages
from cfn.clusterfile import in_stack
from cfn.clusterfile.fields import ClusterFile
from cfn.create import group_names
from cfn.hosts import Member, read
from cfn.progress import failed_boots, failed_launches
from cfn.stack import Event, Stack, StackError, events, first_cause, get


@dataclass(frozen=True, kw_only=True)
class Group:
    """One Auto Scaling group."""

    name: str
    desired: int
    in_service: int
    healthy: int
    suspended: tuple[str, ...]
    failed_launch: str  # newest, in Auto Scaling's words


@dataclass(frozen=True, kw_only=True)
class Status:
    """All there is to say."""

    stack: Stack
    groups: tuple[Group, ...]
    members: tuple[Member, ...]
    cause: Event | None
    boots: tuple[tuple[str, str], ...]
    differs: tuple[str, ...] = ()
    """Fields in which the cluster file is not what the stack was last made from: another seat changed one of them."""

    @property
    def is_healthy(self) -> bool:
        """Whether the stack is usable and every node it wants is."""
        return (
            self.stack.is_usable
            and all(g.desired == g.healthy for g in self.groups)
            and all(m.is_usable for m in self.members)
        )

    def __str__(self) -> str:
        lines = [
            f"stack    {self.stack.name}  {self.stack.status}" + (f"  {self.stack.reason}" if self.stack.reason else "")
        ]
        if self.stack.outputs:
            lines.append(
                f"master   {self.stack.outputs['MasterAddress']}  file system {self.stack.outputs['FileSystem']}"
            )
        if self.cause and not self.stack.is_usable:
            lines.append(f"cause    {self.cause.resource}: {self.cause.reason}")
        lines += [
            f"group    {g.name}  {g.healthy} healthy, {g.in_service} in service of {g.desired}"
            + (f"  suspended: {', '.join(g.suspended)}" if g.suspended else "")
            + (f"  {g.failed_launch}" if g.failed_launch and g.in_service < g.desired else "")
            for g in self.groups
        ]
        lines += [
            f"host {m.rank:<3} {m.address:<15} {m.instance_id}  {m.role:<6}  {m.lifecycle}  "
            f"{m.health}  boot {m.boot or 'running'}"
            for m in self.members
        ]
        shown = {m.instance_id for m in self.members}
        lines += [f"node     {i}  first boot {b}" for i, b in self.boots if i.split()[0] not in shown]
        lines += [f"file     {text}; `inv stack.update` would change the stack" for text in self.differs]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        return {
            "stack": {
                "name": self.stack.name,
                "id": self.stack.id,
                "status": self.stack.status,
                "reason": self.stack.reason,
            },
            "healthy": self.is_healthy,
            "outputs": self.stack.outputs,
            "cause": {"resource": self.cause.resource, "reason": self.cause.reason}
            if self.cause and not self.stack.is_usable
            else None,
            "groups": [
                {
                    "name": g.name,
                    "desired": g.desired,
                    "in_service": g.in_service,
                    "healthy": g.healthy,
                    "suspended": list(g.suspended),
                    "failed_launch": g.failed_launch,
                }
                for g in self.groups
            ],
            "hosts": [m.as_json() for m in self.members],
            "failed_boots": dict(self.boots),
            "file_differs": list(self.differs),
        }


def look(file: ClusterFile) -> Status:
    """The status of the file's cluster. Raises StackError if there is none."""
    stack = get(file.name, file.region)
    names = group_names(file)
    with asking("looking at the groups"):
        found = pages(
            client("autoscaling", file.region),
            "describe_auto_scaling_groups",
            "AutoScalingGroups",
            AutoScalingGroupNames=list(names),
        )
    members = read({"MasterGroup": names[0], "WorkerGroup": names[1]}, file.region)
    return Status(
        stack=stack,
        groups=tuple(_group(g, file.region) for g in found),
        members=tuple(members),
        cause=None if stack.is_usable else first_cause(events(stack)),
        boots=tuple(failed_boots(file.name, file.region)),
        differs=_differs(file),
    )


def _differs(file: ClusterFile) -> tuple[str, ...]:
    try:
        return tuple(in_stack.differences(file, in_stack.of(file.name, file.region)))
    except StackError:
        return ()  # made before stacks carried their file


def _group(described: dict[str, Any], region: str) -> Group:
    serving = [i for i in described["Instances"] if i["LifecycleState"] == "InService"]
    failed = failed_launches(described["AutoScalingGroupName"], region, set())
    return Group(
        name=described["AutoScalingGroupName"],
        desired=described["DesiredCapacity"],
        in_service=len(serving),
        healthy=sum(i["HealthStatus"] == "Healthy" for i in serving),
        suspended=tuple(sorted(p["ProcessName"] for p in described.get("SuspendedProcesses", []))),
        failed_launch=failed[-1] if failed else "",
    )
