"""Creating, changing and deleting EKS clusters. Each waits until AWS has finished."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cfn import changes, create
from cfn.aws import FAILED, Aws, asking, pages
from cfn.capacity import NoCapacity, Room, Tried
from cfn.failover import PAUSE_S, when_begun, where_there_is_room
from cfn.live_view import shown
from cfn.progress import Show, StackWatch, failure, follow, part_of
from cfn.rollback import after_update
from cfn.stack import Stack, StackError, StackEvent, find, resource_ids
from cluster.clusterfile.model import ClusterFile
from eks.stack.design import EksDesign
from eks.stack.groups import scaling_groups
from eks.stack.load_balancers import Balancer, balancers, held_by
from eks.stack.plan import EksPlan, with_design

TASKS = "eks"
NODE_GROUP = "AWS::EKS::Nodegroup"
KEPT = "What was made is kept for a look. Then `inv eks.delete`."
ROLLED_BACK = "Nothing was left running. Correct the cause, `inv eks.delete`, then `inv eks.create`."
ADVICE = "try again with --wait 6h, or name more types in nodes.instance_type"


@dataclass
class EksGroupWatch:
    """Observer that adds EKS's Auto Scaling groups to a watch, because they report failed launches first."""

    watch: StackWatch
    cluster: str
    known: set[str] = field(default_factory=set)

    def look(self, story: list[StackEvent]) -> None:
        """Add the groups to the watch as soon as EKS has created them.

        Args:
            story: all events of the stack so far.
        """
        if self.known or not any(e.kind == NODE_GROUP for e in story):
            return
        try:
            self.known |= scaling_groups(self.watch.aws, self.cluster)
        except FAILED:
            return  # not created yet: the stack's own events show other failures
        self.watch.groups = tuple(sorted(self.known))


class NodesRoom(Room):
    """Capacity check for EKS's node group, which it deletes if AWS refuses its instances.

    Node groups take no failure signal from us. Deleting one makes CloudFormation roll the create back.
    """

    def _groups(self) -> Iterable[tuple[str, str]]:
        return [(group, "Nodes") for group in self.watch.groups]

    def _least(self, group: str) -> int:
        return self.design.file.nodes.workers + 1

    def _fail(self, resource: str) -> bool:
        eks, cluster = self.watch.aws.client("eks"), self.design.file.name
        try:
            for name in pages(eks, "list_nodegroups", "nodegroups", clusterName=cluster):
                eks.delete_nodegroup(clusterName=cluster, nodegroupName=name)
        except FAILED:
            return False
        return True


def make_where_there_is_room(
    aws: Aws, plan: EksPlan, show: Show, keep_failed: bool = False, wait_s: float = 0.0, pause_s: float = PAUSE_S
) -> Stack:
    """Create the cluster as `make` does, in the first of the plan's zones and types with capacity for the nodes.

    Each attempt creates its own control plane, because its subnets cannot change. Raises NoCapacity with all attempts
    of the last round.
    """
    if not plan.stack:
        wait_s = when_begun(plan.design, show, wait_s)
    if plan.stack or (len(plan.choices) == 1 and not wait_s):
        return make(aws, plan, show, keep_failed)

    def attempt(design: EksDesign) -> Stack:
        return make(aws, with_design(aws, design, plan), show, keep_failed, gives_up=True)

    return where_there_is_room(plan.designs, attempt, show, wait_s=wait_s, pause_s=pause_s)


def make(aws: Aws, plan: EksPlan, show: Show, keep_failed: bool = False, *, gives_up: bool = False) -> Stack:
    """Create the cluster and return its stack, with its nodes joined and its add-ons running.

    A create that is already under way is waited for.

    Args:
        gives_up: raise NoCapacity as soon as AWS has refused the instances, instead of waiting for capacity.
    Raises StackError with the first cause if it could not be created, NothingToDo if it exists already.
    """
    name = plan.design.file.name
    stack = create.begin(aws, plan, keep_failed, TASKS)
    resources = json.loads(plan.body)["Resources"]
    parts = {logical: part_of(resource["Type"]) for logical, resource in resources.items()}
    watch = StackWatch(aws, stack, show, parts=parts)
    watch.on_story = EksGroupWatch(watch, name).look
    room = NodesRoom(watch, plan.design)
    with shown(watch, parts) as tree:
        now = follow(watch, room.look if gives_up else lambda: None, tasks=TASKS)
    if room.refusal and now.status != "CREATE_COMPLETE":
        create.delete(aws, plan.design.file, lambda _: None, tasks=TASKS)
        raise NoCapacity((Tried(design=plan.design, said=room.refusal, role=room.role),), ADVICE)
    if now.status != "CREATE_COMPLETE":
        raise _failed(watch, "create", now, KEPT if keep_failed else ROLLED_BACK)
    tree.keep()
    return now


def change(aws: Aws, proposed: changes.ChangeSet, show: Show) -> Stack:
    """Execute a change set and return the stack. Raises StackError with the first cause if it was rolled back."""
    watch = StackWatch(aws, proposed.stack, lambda _: None)
    watch.look()  # skip events of earlier operations
    watch.show, watch.story = show, []
    watch.on_story = EksGroupWatch(watch, proposed.stack.name).look
    with asking(f"changing stack {proposed.stack.name}"):
        aws.client("cloudformation").execute_change_set(ChangeSetName=proposed.id, StackName=proposed.stack.id)
    now = follow(watch, tasks=TASKS, what="UPDATE")
    if now.status != "UPDATE_COMPLETE":
        raise _failed(watch, "update", now, after_update(now, TASKS, "eks.create"))
    return now


def _failed(watch: StackWatch, what: str, now: Stack, remedy: str) -> StackError:
    """Return an error with the first cause, and with the failed launches of a node group."""
    why = [f"  no instance: {text}" for text in dict.fromkeys(watch.launches)]
    error = failure(watch, what, now, "\n".join([*why, remedy]))
    return StackError(str(error))


def remove(aws: Aws, file: ClusterFile, show: Show, retain: list[str]) -> dict[str, Any]:
    """Delete the stack. Return the physical ids of what stays in the account, by logical id.

    Raises StackError if a resource cannot be deleted, or if Kubernetes has load balancers. CloudFormation does not know
    them: they would block the deletion of the stack's own network, and remain billed in another one.
    """
    stack = find(aws, file.name)
    if stack:
        own_vpc = "" if file.network.vpc else stack.outputs.get("Vpc", "")
        try:
            held = held_by(balancers(aws), file.name, own_vpc)
        except FAILED as e:
            held = []
            show(f"load balancers   not looked for ({e}): one that a service has made stays, and is billed")
        if held:
            raise StackError(_held_text(held, file))
    return create.delete(aws, file, show, retain, TASKS)


def stays(aws: Aws, stack: Stack) -> dict[str, str]:
    """Return the physical ids of what a deletion would keep, by logical id, according to the stack's own template."""
    with asking(f"reading the template of stack {stack.name}"):
        body = aws.client("cloudformation").get_template(StackName=stack.id)["TemplateBody"]
    made = resource_ids(aws, stack)
    said: dict[str, dict[str, Any]] = body.get("Resources", {}) if isinstance(body, dict) else {}
    return {n: made[n] for n, r in said.items() if n in made and r.get("DeletionPolicy", "").startswith("Retain")}


def _held_text(held: list[Balancer], file: ClusterFile) -> str:
    """Return the message on load balancers in the way, with the commands to delete them in Kubernetes.

    The last command is for a Kubernetes that is already gone.
    """
    would = "be billed on without anybody's knowing of it" if file.network.vpc else f"hold the network of {file.name}"
    services = [b.service.split("/", 1) for b in held if b.service]
    ends = [f"kubectl delete service --namespace {space} {name}" for space, name in services]
    if len(services) < len(held):
        ends.append(f"kubectl delete namespace {file.eks.namespace}")
    by_hand = " && ".join(b.end.command(file.region) for b in held)
    return (
        f"{', '.join(b.name for b in held)} was made by a Kubernetes service and would {would}: "
        f"`{' && '.join(dict.fromkeys(ends))}` ends what is opened there; then run this again. "
        f"Where the Kubernetes is gone: {by_hand}"
    )
