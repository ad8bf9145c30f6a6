"""Stopping and starting all nodes of a cluster. The stack, its network, storage and the master's addresses stay."""

from collections.abc import Sequence
from dataclasses import dataclass

from cfn import drift, guard_deadline, in_stack, named_resources, suspension
from cfn.aws import Aws, asking
from cfn.groups import group_names
from cfn.hosts import GroupMember, read
from cfn.progress import Show, StackWatch, wait_for
from cfn.ready import wait_for_nodes
from cfn.rollback import check_usable, way_out
from cfn.stack import Stack, StackError, get
from cluster.clusterfile.model import ClusterFile
from cluster.errors import NothingToDo
from cluster.terminal import counted

_ENDS_S = 1800.0  # limit for instances to end: the largest need minutes


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Minimum, maximum and desired size of an Auto Scaling group."""

    least: int
    most: int
    desired: int


NOTHING = Sizes(least=0, most=0, desired=0)


def sizes(file: ClusterFile) -> dict[str, Sizes]:
    """Return the sizes of each group of a running cluster by group name, as in the template."""
    master, workers = group_names(file)
    pool = file.nodes.pool
    return {master: Sizes(least=1, most=1, desired=1), workers: Sizes(least=0, most=pool, desired=pool)}


def members(aws: Aws, file: ClusterFile) -> list[GroupMember]:
    """Return the instances as they are now. Raises StackError if the stack is missing or busy."""
    settled(aws, file)
    return _members(aws, file)


def _members(aws: Aws, file: ClusterFile) -> list[GroupMember]:
    """Return the instances of the groups, looked up by group name because a broken stack may have no outputs."""
    master, workers = group_names(file)
    return read(aws, {"MasterGroup": master, "WorkerGroup": workers})


def settled(aws: Aws, file: ClusterFile) -> Stack:
    """Return the file's stack, even a broken one, because its nodes are billed too.

    Raises StackError if there is none, or if AWS is working on it.
    """
    stack = get(aws, file.name)
    if stack.is_busy:
        raise StackError(way_out(stack))
    return stack


def stop(aws: Aws, file: ClusterFile, show: Show) -> None:
    """End every node and set the groups' sizes to 0. Raises StackError if nodes do not end."""
    settled(aws, file)
    there = _described(aws, file)
    suspension.check(aws, there, "Terminate", "a stop")
    _resize(aws, dict.fromkeys((name for name in group_names(file) if name in there), NOTHING))
    left: Sequence[GroupMember] = ()

    def ended() -> bool:
        nonlocal left
        before, left = len(left), _members(aws, file)
        if left and len(left) != before:
            show(f"{counted(len(left), 'instance')} still to end")
        return not left

    try:
        gone = wait_for(ended, _ENDS_S, lambda: None)
    except KeyboardInterrupt:
        raise StackError(
            f"stopped watching; the nodes of {file.name} end all the same: `inv stack.status` tells how far it is"
        ) from None
    if not gone:
        stay = ", ".join(m.instance_id for m in left)
        raise StackError(f"{stay} of {file.name} has not ended in {_ENDS_S / 60:.0f} minutes; see `inv stack.status`")


def start(aws: Aws, file: ClusterFile, show: Show) -> list[GroupMember]:
    """Start all nodes of a stopped cluster, wait until they are ready and return them.

    Raises NothingToDo if the cluster is running, StackError if it cannot start.
    """
    stack = check_usable(get(aws, file.name))
    drift.check_complete(aws, stack)
    as_made = in_stack.file_of(aws, file.name)
    wanted = sizes(as_made)
    if _described(aws, file) == wanted:
        raise NothingToDo(f"{file.name} is not stopped; `inv stack.status` tells how it is")
    with asking(f"looking at the reservation of {file.name}"):
        reserved = named_resources.reservation(aws, as_made)  # raises if the reservation has ended or is full
        named_resources.check_begun(named_resources.begins(reserved), as_made.nodes.reservation)
    watch = StackWatch(aws, stack, lambda _: None, group_names(file))
    watch.look()  # skip events of earlier operations
    watch.show = show
    suspension.check(aws, group_names(file), "Launch", "a start")
    guard_deadline.drop_if_off(aws, as_made)  # an end that an earlier guard scheduled must not apply to these nodes
    if as_made.is_guarded:  # before any node starts
        with asking(f"setting the guard of {file.name}"):
            guard_deadline.begin(aws, as_made, guard_deadline.names(as_made))
    _resize(aws, wanted)
    show(f"{file.name}: starting {counted(sum(s.desired for s in wanted.values()), 'instance')}")
    try:
        return wait_for_nodes(watch, stack.outputs, as_made)
    except KeyboardInterrupt:
        raise StackError(
            f"stopped watching; the nodes of {file.name} start all the same: `inv stack.status` tells how far it is"
        ) from None


def _described(aws: Aws, file: ClusterFile) -> dict[str, Sizes]:
    with asking(f"looking at the groups of {file.name}"):
        groups = aws.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=list(group_names(file)))
    return {
        g["AutoScalingGroupName"]: Sizes(least=g["MinSize"], most=g["MaxSize"], desired=g["DesiredCapacity"])
        for g in groups["AutoScalingGroups"]
    }


def _resize(aws: Aws, wanted: dict[str, Sizes]) -> None:
    """Resize the groups in the given order: the master's first, so that a refusal comes before any change."""
    for name, size in wanted.items():
        with asking(f"resizing {name}"):
            aws.client("autoscaling").update_auto_scaling_group(
                AutoScalingGroupName=name, MinSize=size.least, MaxSize=size.most, DesiredCapacity=size.desired
            )
