"""Updates of a running cluster: change set of an update, and replacement of one host."""

from dataclasses import replace as with_

from cfn import drift, guard_deadline, preflight, suspension
from cfn.aws import Aws, asking
from cfn.changes import ChangeSet, propose
from cfn.groups import group_names
from cfn.hosts import GroupMember, hosts, keep_ranks, pick, read
from cfn.plan import ClusterPlan, with_design
from cfn.progress import Show, StackWatch, failure, follow, wait_for
from cfn.ready import trouble, wait_for_nodes
from cfn.rollback import after_update, check_usable
from cfn.stack import StackError, get
from cluster.clusterfile.model import ClusterFile
from cluster.errors import ConfigError
from cluster.terminal import counted

WORKERS = "WorkerNodes"  # the workers' group in the template


def prepare(aws: Aws, file: ClusterFile, ami: str = "", source: str = "") -> ChangeSet:
    """Return the change set of an update. Image and source stay as they were at creation unless given.

    Args:
        ami: an id, an SSM parameter, or 'latest' for the current image of the cluster file's parameter.
        source: 'latest' for the current version of nodes.source.
    """
    if source not in ("", "latest"):
        raise ConfigError(f"--source {source!r} is not known: give latest, or change nodes.source in the cluster file")
    stack = check_usable(get(aws, file.name))
    drift.check_complete(aws, stack)
    pinned = dict(stack.outputs)
    if ami:
        pinned.pop("Ami")
        file = file if ami == "latest" else with_(file, nodes=with_(file.nodes, ami=ami))
    if source:
        pinned.pop("SourceVersion", None)
    design = preflight.design_for(aws, file, pinned)
    return propose(
        aws, with_design(aws, design, ClusterPlan(design=design, body="", stack=stack, usd_per_hour=None)), stack
    )


def ended_by(aws: Aws, change_set: ChangeSet, file: ClusterFile) -> list[GroupMember]:
    """Return the workers that the update would end: the newest, as the group chooses them.

    Among workers launched in the same second it may choose any.
    """
    if not any(c.resource == WORKERS and "DesiredCapacity" in c.properties for c in change_set.changes):
        return []
    workers = [m for m in read(aws, change_set.stack.outputs) if m.role == "worker"]
    newest = sorted(workers, key=lambda m: (m.launched, m.instance_id), reverse=True)
    return newest[: max(0, len(workers) - file.nodes.pool)]


def refuse_at_zero(change_set: ChangeSet, file: ClusterFile) -> None:
    """Raise ConfigError if an update would start nodes of a stopped cluster, which the operator did not request."""
    sizes = {"MinSize", "MaxSize", "DesiredCapacity"}
    if any(sizes & set(c.properties) for c in change_set.changes):
        raise ConfigError(
            f"{file.name} is at zero, and another number of nodes would start some of them: `inv stack.start` first, "
            "or leave nodes.workers and nodes.spares as they are"
        )


def execute(
    aws: Aws, change_set: ChangeSet, file: ClusterFile, show: Show, *, is_at_zero: bool = False
) -> list[GroupMember]:
    """Execute the change set and return the ready hosts, as many as the file requires; [] for a stopped cluster.

    Raises StackError with the first cause otherwise.
    """
    stack = change_set.stack
    if any("DesiredCapacity" in c.properties for c in change_set.changes):
        process = "Terminate" if ended_by(aws, change_set, file) else "Launch"
        suspension.check(aws, group_names(file)[1:], process, "an update of the number of nodes")
    watch = StackWatch(aws, stack, lambda _: None, group_names(file))
    watch.look()  # skip events of earlier operations
    watch.show, watch.story, watch.launches = show, [], []
    with asking(f"updating stack {stack.name}"):
        aws.client("cloudformation").execute_change_set(ChangeSetName=change_set.id, StackName=stack.id)
    now = follow(watch, what="UPDATE")
    if now.status != "UPDATE_COMPLETE":
        raise failure(watch, "update", now, after_update(now, "stack", "stack.update"))
    guard_deadline.drop_if_off(aws, file)
    if is_at_zero:
        return []
    return wait_for_nodes(watch, now.outputs, file)


def replace(aws: Aws, file: ClusterFile, name: str, show: Show) -> list[GroupMember]:
    """End one host, dead or alive, wait for its successor and return the hosts. The successor gets its rank.

    Args:
        name: rank, private address or instance id.
    Raises StackError if no successor is ready within `nodes.boot_minutes`.
    """
    stack = check_usable(get(aws, file.name))
    outputs = stack.outputs
    members = read(aws, outputs)
    keep_ranks(aws, members)  # so that the other hosts keep their ranks
    old = pick(members, name)
    drift.check_complete(aws, stack)
    suspension.check(aws, [group_names(file)[old.role == "worker"]], "Launch", "a replacement")
    watch = StackWatch(aws, stack, lambda _: None, group_names(file))
    watch.look()
    watch.show = show
    show(f"ending {old.instance_id} ({old.address}), rank {old.rank}; its group starts a successor")
    with asking(f"replacing host {name}"):
        aws.client("autoscaling").terminate_instance_in_auto_scaling_group(
            InstanceId=old.instance_id, ShouldDecrementDesiredCapacity=False
        )
    others = {m.instance_id for m in members}

    def successor() -> GroupMember | None:
        return next(
            (m for m in read(aws, outputs) if m.instance_id not in others and m.role == old.role and m.is_usable),
            None,
        )

    if not wait_for(lambda: successor() is not None, file.nodes.boot_minutes * 60, watch.look):
        raise StackError(
            f"no successor of {old.instance_id} is ready after "
            f"{counted(file.nodes.boot_minutes, 'minute')}{trouble(watch)}\n"
            "Its group goes on trying; `inv stack.status` tells how far it is."
        )
    new = successor()
    if new is not None:
        keep_ranks(aws, [with_(new, rank=old.rank)])
        show(f"{new.instance_id} ({new.address}) has rank {old.rank} now")
    return hosts(aws, outputs)
