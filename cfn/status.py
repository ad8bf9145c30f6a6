"""State of a cluster in one report: stack, groups, nodes and their first boot."""

import datetime
from dataclasses import dataclass
from typing import Any

from cfn import drift, guard_deadline, in_stack, suspension
from cfn.aws import Aws, asking, pages
from cfn.fixed_costs import DailyCost, standing, text, total
from cfn.groups import group_names
from cfn.hosts import GroupMember, read
from cfn.progress import boots, failed_launches
from cfn.rollback import way_out
from cfn.stack import Stack, StackError, StackEvent, StackResource, events, first_cause, get
from cluster.clusterfile.model import ClusterFile
from cluster.terminal import counted

GROUP = "AWS::AutoScaling::AutoScalingGroup"


@dataclass(frozen=True, kw_only=True)
class GroupStatus:
    """State of one Auto Scaling group."""

    name: str
    wanted: int  # size in the stack's template
    desired: int  # current desired size, which somebody may have changed by hand
    most: int  # maximum size
    in_service: int
    healthy: int
    suspended: tuple[str, ...]
    failed_launch: str  # Auto Scaling's message on the newest


@dataclass(frozen=True, kw_only=True)
class ClusterStatus:
    """State of a cluster: stack, groups, hosts, guard and problems."""

    stack: Stack
    groups: tuple[GroupStatus, ...]
    members: tuple[GroupMember, ...]
    cause: StackEvent | None
    boots: tuple[tuple[str, str], ...]
    missing_groups: tuple[str, ...] = ()
    lost: tuple[StackResource, ...] = ()
    """Other resources of the stack that were deleted outside it."""
    ends: datetime.datetime | None = None
    """Time at which its guard ends all nodes. The master postpones it while there is useful work."""
    is_bare: bool = False
    """True if the nodes start without this project by the cluster file. Then nothing postpones the end yet."""
    differs: tuple[str, ...] = ()
    """Fields in which the cluster file differs from the file that the stack was last made from."""
    guard_trouble: str = ""
    """Problem with the end that the guard has set or failed to set; empty for none."""
    billed: tuple[DailyCost, ...] = ()
    """Fixed costs of a stopped cluster."""

    @property
    def is_stopped(self) -> bool:
        """Return True if no group may have a node, as after `inv stack.stop`."""
        return bool(self.groups) and not self.missing_groups and not any(g.most for g in self.groups)

    @property
    def is_healthy(self) -> bool:
        """Return True if the stack is usable and every node is there and usable."""
        return not self.problems

    @property
    def problems(self) -> list[str]:
        """Return what is wrong with the cluster, with the remedy for each problem."""
        if not self.stack.is_usable:
            return [way_out(self.stack)]
        if self.is_stopped and not self.lost:
            ending = f"; still ending: {counted(len(self.members), 'instance')}" if self.members else ""
            return [f"it is stopped: `inv stack.start` brings it back{ending}"]
        found = [f"group {n} is gone: `inv stack.delete`, then create it anew" for n in self.missing_groups]
        found += [drift.problem(self.lost)] if self.lost else []
        for g in self.groups:
            if g.desired != g.wanted:
                found.append(
                    f"{g.name} was told to have {g.desired}, the stack says {g.wanted}: aws autoscaling "
                    f"set-desired-capacity --auto-scaling-group-name {g.name} --desired-capacity {g.wanted}"
                )
            elif g.healthy != g.desired:
                found.append(f"{g.name} has {g.healthy} healthy of {g.desired}; it goes on trying")
        for g in self.groups:
            found += suspension.problems(g.name, g.suspended)
        found += [
            f"{m.instance_id} ({m.address}), rank {m.rank}, cannot be used: {m.lifecycle}, {m.health}, boot "
            f"{m.boot or 'running'}; if that stays, `inv stack.replace {m.instance_id}`"
            for m in self.members
            if not m.is_usable
        ]
        return found + ([self.guard_trouble] if self.guard_trouble else [])

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
        if self.ends:
            left = (self.ends - datetime.datetime.now(datetime.UTC)).total_seconds() / 60
            held = [g.name for g in self.groups if suspension.OF_THE_GUARD & set(g.suspended)]
            cannot = f"; not {', '.join(held)}, as long as that is suspended (below)" if held else ""
            lines.append(
                f"guard    all nodes end at {self.ends:%Y-%m-%d %H:%M} UTC, in "
                f"{counted(round(left), 'minute')}, unless it is put off{cannot}"
                + ("; nodes without this project do not, until `inv sync` brings it" if self.is_bare else "")
            )
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
        lines += [f"wrong    {problem}" for problem in self.problems]
        lines += [text(self.billed)] if self.billed else []
        lines += [f"file     {field}; `inv stack.update` would change the stack" for field in self.differs]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        return {
            "stack": {
                "name": self.stack.name,
                "id": self.stack.id,
                "status": self.stack.status,
                "reason": self.stack.reason,
            },
            "ends": self.ends.isoformat() if self.ends else None,
            "healthy": self.is_healthy,
            "stopped": self.is_stopped,
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
            "lost": [{"resource": r.logical, "type": r.kind, "id": r.id} for r in self.lost],
            "billed": [i.as_json() for i in self.billed],
            "usd_per_day": round(total(self.billed), 4) if self.is_stopped else None,
        }


def read_status(aws: Aws, file: ClusterFile) -> ClusterStatus:
    """Return the status of the file's cluster. Raises StackError if its stack does not exist."""
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
    ends = guard_deadline.ends(aws, file) if any(g["MaxSize"] for g in found) else {}
    wanted = {names[0]: 1, names[1]: (values or file).nodes.pool}
    is_stopped = bool(found) and not any(g["MaxSize"] for g in found)
    return ClusterStatus(
        billed=standing(aws, values or file, stack) if is_stopped else (),
        stack=stack,
        ends=min(ends.values(), default=None),
        guard_trouble=guard_deadline.trouble(values, ends) if values else "",
        is_bare=not (values or file).nodes.source,
        groups=tuple(_group(aws, g, wanted[g["AutoScalingGroupName"]]) for g in found),
        members=tuple(members),
        lost=tuple(r for r in drift.gone(aws, stack) if r.kind != GROUP) if stack.is_usable else (),
        missing_groups=tuple(n for n in names if n not in {g["AutoScalingGroupName"] for g in found}),
        cause=None if stack.is_usable else first_cause(events(aws, stack)),
        boots=tuple(found for found in boots(aws, file.name) if found[1].startswith("failed")),
        differs=() if values is None else tuple(in_stack.differences(file, in_stack.values(values))),
    )


def _values(aws: Aws, file: ClusterFile) -> ClusterFile | None:
    """Return the file that the stack was last made from, or None for a stack that does not hold its file."""
    try:
        return in_stack.file_of(aws, file.name)
    except StackError:
        return None


def _group(aws: Aws, described: dict[str, Any], wanted: int) -> GroupStatus:
    serving = [i for i in described["Instances"] if i["LifecycleState"] == "InService"]
    failed = failed_launches(aws, described["AutoScalingGroupName"], set())
    return GroupStatus(
        name=described["AutoScalingGroupName"],
        wanted=wanted,
        desired=described["DesiredCapacity"],
        most=described["MaxSize"],
        in_service=len(serving),
        healthy=sum(i["HealthStatus"] == "Healthy" for i in serving),
        suspended=suspension.suspended(described),
        failed_launch=failed[-1] if failed else "",
    )
