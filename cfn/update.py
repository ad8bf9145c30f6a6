"""Changing a running cluster: an update by change set, and the replacement of one host."""

from dataclasses import replace as with_

from cfn import preflight
from cfn.aws import asking, client
from cfn.changes import ChangeSet, propose
from cfn.clusterfile.fields import ClusterFile
from cfn.create import group_names
from cfn.hosts import Member, hosts, keep_ranks, pick, read
from cfn.plan import Plan, instance_usd_per_hour
from cfn.progress import Show, Watch, failure, follow, wait_for
from cfn.stack import StackError, get
from cfn.template import template


def prepare(file: ClusterFile, ami: str = "") -> ChangeSet:
    """What would change. The AMI stays the one the cluster was made with unless another is named: an id, an SSM
    parameter,
    or 'latest' for the cluster file's."""
    stack = get(file.name, file.region)
    if not stack.is_usable:
        raise StackError(f"stack {file.name} is {stack.status} and cannot be updated; see `inv stack.status`")
    pinned = dict(stack.outputs)
    if ami:
        pinned.pop("Ami")
        file = file if ami == "latest" else with_(file, nodes=with_(file.nodes, ami=ami))
    design = preflight.design_for(file, pinned)
    plan = Plan(design=design, body=template.body(design), existing=stack, usd_per_hour=instance_usd_per_hour(design))
    return propose(plan, stack)


def execute(change_set: ChangeSet, file: ClusterFile, show: Show) -> list[Member]:
    """The hosts after the update, all as many as the file says and ready. Raises StackError with the first
    cause otherwise.
    """
    stack = change_set.stack
    watch = Watch(stack, lambda _: None, group_names(file))
    watch.look()  # what was before is not this update's story
    watch.show, watch.story, watch.launches = show, [], []
    with asking(f"updating stack {stack.name}"):
        client("cloudformation", stack.region).execute_change_set(ChangeSetName=change_set.id, StackName=stack.id)
    now = follow(watch)
    if now.status != "UPDATE_COMPLETE":
        raise failure(
            watch, "update", now, "The stack is as it was before. Correct the cause and run `inv stack.update` again."
        )
    return _wait_for_nodes(watch, now.outputs, file, file.nodes.workers + 1)


def _wait_for_nodes(watch: Watch, outputs: dict[str, str], file: ClusterFile, wanted: int) -> list[Member]:
    watch.stack = get(file.name, file.region)

    def full() -> bool:
        members = read(outputs, file.region)
        return len(members) == wanted and all(m.is_usable for m in members)

    if not wait_for(full, file.nodes.boot_minutes * 60, watch.look):
        members = read(outputs, file.region)
        raise StackError(
            f"{sum(m.is_usable for m in members)} of {wanted} hosts of {file.name} are ready after "
            f"{file.nodes.boot_minutes} minutes"
            + _trouble(watch)
            + "\nThe stack goes on trying; `inv stack.status` tells how far it is."
        )
    return hosts(outputs, file.region)


def _trouble(watch: Watch) -> str:
    said = [f"no instance: {text}" for text in dict.fromkeys(watch.launches)] + [
        f"{i}: first boot {b}" for i, b in watch.boots.items()
    ]
    return "".join(f"\n  {line}" for line in said)


def replace(file: ClusterFile, name: str, show: Show) -> list[Member]:
    """The hosts after one of them, dead or alive, was ended and its successor is ready, in its place.

    Args:
        name: rank, private address or instance id.
    """
    stack = get(file.name, file.region)
    if not stack.is_usable:
        raise StackError(f"stack {file.name} is {stack.status}; wait until it is complete, see `inv stack.status`")
    outputs = stack.outputs
    members = read(outputs, file.region)
    keep_ranks(members, file.region)  # so that everyone else stays where they are
    old = pick(members, name)
    watch = Watch(stack, lambda _: None, group_names(file))
    watch.look()
    watch.show = show
    show(f"ending {old.instance_id} ({old.address}), rank {old.rank}; its group starts a successor")
    with asking(f"replacing host {name}"):
        client("autoscaling", file.region).terminate_instance_in_auto_scaling_group(
            InstanceId=old.instance_id, ShouldDecrementDesiredCapacity=False
        )
    others = {m.instance_id for m in members}

    def successor() -> Member | None:
        return next(
            (
                m
                for m in read(outputs, file.region)
                if m.instance_id not in others and m.role == old.role and m.is_usable
            ),
            None,
        )

    if not wait_for(lambda: successor() is not None, file.nodes.boot_minutes * 60, watch.look):
        raise StackError(
            f"no successor of {old.instance_id} is ready after {file.nodes.boot_minutes} minutes{_trouble(watch)}\n"
            "Its group goes on trying; `inv stack.status` tells how far it is."
        )
    new = successor()
    if new is not None:
        keep_ranks([with_(new, rank=old.rank)], file.region)
        show(f"{new.instance_id} ({new.address}) has rank {old.rank} now")
    return hosts(outputs, file.region)
