"""Changing a running cluster: an update by change set, and the replacement of one host."""

from dataclasses import replace as with_

from cfn import preflight
from cfn.aws import Aws, asking
from cfn.changes import ChangeSet, propose
from cfn.clusterfile.fields import ClusterFile
from cfn.create import group_names
from cfn.hosts import Member, hosts, keep_ranks, pick, read
from cfn.plan import Plan, instance_usd_per_hour
from cfn.progress import Show, Watch, failure, follow, wait_for
from cfn.stack import StackError, get
from cfn.template import template
from cluster.errors import ConfigError

WORKERS = "WorkerNodes"  # the workers' group in the template


def prepare(aws: Aws, file: ClusterFile, ami: str = "", source: str = "") -> ChangeSet:
    """What would change. Image and source stay what they were when the cluster was made, unless told otherwise.

    Args:
        ami: an id, an SSM parameter, or 'latest' for what the cluster file's names today.
        source: 'latest' for what nodes.source names today.
    """
    if source not in ("", "latest"):
        raise ConfigError(f"--source {source!r} is not known: give latest, or change nodes.source in the cluster file")
    stack = get(aws, file.name)
    if not stack.is_usable:
        raise StackError(f"stack {file.name} is {stack.status} and cannot be updated; see `inv stack.status`")
    pinned = dict(stack.outputs)
    if ami:
        pinned.pop("Ami")
        file = file if ami == "latest" else with_(file, nodes=with_(file.nodes, ami=ami))
    if source:
        pinned.pop("SourceVersion", None)
    design = preflight.design_for(aws, file, pinned)
    plan = Plan(design=design, body=template.body(design), stack=stack, usd_per_hour=instance_usd_per_hour(design))
    return propose(aws, plan, stack)


def ended_by(aws: Aws, change_set: ChangeSet, file: ClusterFile) -> list[Member]:
    """The workers that the update ends, as its group chooses them: the newest. Of those that were launched in the
    same second it may take any.
    """
    if not any(c.resource == WORKERS and "DesiredCapacity" in c.properties for c in change_set.changes):
        return []
    workers = [m for m in read(aws, change_set.stack.outputs) if m.role == "worker"]
    newest = sorted(workers, key=lambda m: (m.launched, m.instance_id), reverse=True)
    return newest[: max(0, len(workers) - file.nodes.workers)]


def execute(aws: Aws, change_set: ChangeSet, file: ClusterFile, show: Show) -> list[Member]:
    """The hosts after the update, all as many as the file says and ready. Raises StackError with the first
    cause otherwise.
    """
    stack = change_set.stack
    watch = Watch(aws, stack, lambda _: None, group_names(file))
    watch.look()  # what was before is not this update's story
    watch.show, watch.story, watch.launches = show, [], []
    with asking(f"updating stack {stack.name}"):
        aws.client("cloudformation").execute_change_set(ChangeSetName=change_set.id, StackName=stack.id)
    now = follow(watch)
    if now.status != "UPDATE_COMPLETE":
        raise failure(
            watch, "update", now, "The stack is as it was before. Correct the cause and run `inv stack.update` again."
        )
    return _wait_for_nodes(watch, now.outputs, file, file.nodes.workers + 1)


def _wait_for_nodes(watch: Watch, outputs: dict[str, str], file: ClusterFile, wanted: int) -> list[Member]:
    watch.stack = get(watch.aws, file.name)

    def full() -> bool:
        members = read(watch.aws, outputs)
        return len(members) == wanted and all(m.is_usable for m in members)

    if not wait_for(full, file.nodes.boot_minutes * 60, watch.look):
        members = read(watch.aws, outputs)
        raise StackError(
            f"{sum(m.is_usable for m in members)} of {wanted} hosts of {file.name} are ready after "
            f"{file.nodes.boot_minutes} minutes"
            + _trouble(watch)
            + "\nThe stack goes on trying; `inv stack.status` tells how far it is."
        )
    return hosts(watch.aws, outputs)


def _trouble(watch: Watch) -> str:
    said = [f"no instance: {text}" for text in dict.fromkeys(watch.launches)] + [
        f"{i}: first boot {b}" for i, b in watch.boots.items()
    ]
    return "".join(f"\n  {line}" for line in said)


def replace(aws: Aws, file: ClusterFile, name: str, show: Show) -> list[Member]:
    """The hosts after one of them, dead or alive, was ended and its successor is ready, in its place.

    Args:
        name: rank, private address or instance id.
    """
    stack = get(aws, file.name)
    if not stack.is_usable:
        raise StackError(f"stack {file.name} is {stack.status}; wait until it is complete, see `inv stack.status`")
    outputs = stack.outputs
    members = read(aws, outputs)
    keep_ranks(aws, members)  # so that everyone else stays where they are
    old = pick(members, name)
    watch = Watch(aws, stack, lambda _: None, group_names(file))
    watch.look()
    watch.show = show
    show(f"ending {old.instance_id} ({old.address}), rank {old.rank}; its group starts a successor")
    with asking(f"replacing host {name}"):
        aws.client("autoscaling").terminate_instance_in_auto_scaling_group(
            InstanceId=old.instance_id, ShouldDecrementDesiredCapacity=False
        )
    others = {m.instance_id for m in members}

    def successor() -> Member | None:
        return next(
            (m for m in read(aws, outputs) if m.instance_id not in others and m.role == old.role and m.is_usable),
            None,
        )

    if not wait_for(lambda: successor() is not None, file.nodes.boot_minutes * 60, watch.look):
        raise StackError(
            f"no successor of {old.instance_id} is ready after {file.nodes.boot_minutes} minutes{_trouble(watch)}\n"
            "Its group goes on trying; `inv stack.status` tells how far it is."
        )
    new = successor()
    if new is not None:
        keep_ranks(aws, [with_(new, rank=old.rank)])
        show(f"{new.instance_id} ({new.address}) has rank {old.rank} now")
    return hosts(aws, outputs)
