"""The state of a cluster at one look: stack, groups, nodes and their first boot."""

from dataclasses import dataclass
from typing import Any

from cfn.aws import Aws, asking, pages
from cfn.clusterfile import in_stack
from cfn.clusterfile.fields import ClusterFile
from cfn.create import group_names
from cfn.hosts import Member, read
from cfn.progress import boots, failed_launches
from cfn.stack import Event, Stack, StackError, events, first_cause, get


@dataclass(frozen=True, kw_only=True)
class Group:
    """One Auto Scaling group."""

    name: str
    wanted: int  # what the stack was made for
    desired: int  # what the group aims at; somebody may have changed it by hand
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
    missing_groups: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    """Fields in which the cluster file is not what the stack was last made from: one of them was changed elsewhere."""

    @property
    def is_healthy(self) -> bool:
        """Whether the stack is usable and is what it was made to be: every node there, and usable."""
        return not self.problems

    @property
    def problems(self) -> list[str]:
        """In what the cluster is not as it should be, each with what to do."""
        if not self.stack.is_usable:
            return [f"the stack is {self.stack.status}"]
        found = [f"group {n} is gone: `inv stack.delete`, then create it anew" for n in self.missing_groups]
        for g in self.groups:
            if g.desired != g.wanted:
                found.append(
                    f"{g.name} was told to have {g.desired}, the stack says {g.wanted}: aws autoscaling "
                    f"set-desired-capacity --auto-scaling-group-name {g.name} --desired-capacity {g.wanted}"
                )
            elif g.healthy != g.desired:
                found.append(f"{g.name} has {g.healthy} healthy of {g.desired}; it goes on trying")
        found += [
            f"{m.instance_id} ({m.address}), rank {m.rank}, cannot be used: {m.lifecycle}, {m.health}, boot "
            f"{m.boot or 'running'}; if that stays, `inv stack.replace {m.instance_id}`"
            for m in self.members
            if not m.is_usable
        ]
        return found

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
        if self.stack.is_usable:
            lines += [f"wrong    {text}" for text in self.problems]
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
            "problems": self.problems,
            "outputs": self.stack.outputs,
            "cause": {"resource": self.cause.resource, "reason": self.cause.reason}
            if self.cause and not self.stack.is_usable
            else None,
            "groups": [
                {
                    "name": g.name,
                    "wanted": g.wanted,
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


def look(aws: Aws, file: ClusterFile) -> Status:
    """The status of the file's cluster. Raises StackError if there is none."""
    stack = get(aws, file.name)
    names = group_names(file)
    with asking("looking at the groups"):
        found = pages(
            aws.client("autoscaling"),
            "describe_auto_scaling_groups",
            "AutoScalingGroups",
            AutoScalingGroupNames=list(names),
        )
    members = read(aws, {"MasterGroup": names[0], "WorkerGroup": names[1]})
    values = _values(aws, file)
    wanted = {names[0]: 1, names[1]: file.nodes.workers if values is None else values.nodes.workers}
    return Status(
        stack=stack,
        groups=tuple(_group(aws, g, wanted[g["AutoScalingGroupName"]]) for g in found),
        members=tuple(members),
        missing_groups=tuple(n for n in names if n not in {g["AutoScalingGroupName"] for g in found}),
        cause=None if stack.is_usable else first_cause(events(aws, stack)),
        boots=tuple(found for found in boots(aws, file.name) if found[1].startswith("failed")),
        differs=() if values is None else tuple(in_stack.differences(file, in_stack.values(values))),
    )


def _values(aws: Aws, file: ClusterFile) -> ClusterFile | None:
    """What the stack was last made from; None where it was made before stacks held their file."""
    try:
        return in_stack.file_of(aws, file.name)
    except StackError:
        return None


def _group(aws: Aws, described: dict[str, Any], wanted: int) -> Group:
    serving = [i for i in described["Instances"] if i["LifecycleState"] == "InService"]
    failed = failed_launches(aws, described["AutoScalingGroupName"], set())
    return Group(
        name=described["AutoScalingGroupName"],
        wanted=wanted,
        desired=described["DesiredCapacity"],
        in_service=len(serving),
        healthy=sum(i["HealthStatus"] == "Healthy" for i in serving),
        suspended=tuple(sorted(p["ProcessName"] for p in described.get("SuspendedProcesses", []))),
        failed_launch=failed[-1] if failed else "",
    )
