"""Creating and deleting stacks. Both wait until AWS has finished."""

import json
from collections.abc import Callable
from typing import Any

from cfn import drift, guard_deadline
from cfn.aws import Aws, AwsError, asking
from cfn.capacity import NoCapacity, Room, Tried
from cfn.checkout import Checkout
from cfn.groups import group_names
from cfn.hosts import GroupMember, hosts
from cfn.live_view import shown
from cfn.plan import ClusterPlan
from cfn.progress import Show, StackWatch, failure, follow, part_of, retained
from cfn.ready import wait_for_nodes
from cfn.rollback import way_out
from cfn.stack import Stack, StackError, find, get, resources
from cluster.clusterfile.model import ClusterFile
from cluster.errors import NothingToDo


def create(
    aws: Aws,
    plan: ClusterPlan,
    show: Show,
    keep_failed: bool = False,
    checkout: Checkout | None = None,
    *,
    gives_up: bool = False,
) -> list[GroupMember]:
    """Create the cluster and return its hosts, all of them ready. A create that is already under way is waited for.

    Args:
        keep_failed: leave the nodes and the rest of a failed create for inspection, instead of rolling back.
        checkout: the checkout that the nodes wait for, if `nodes.source` is "checkout".
        gives_up: raise NoCapacity as soon as AWS has refused the instances, instead of waiting for capacity.
    Raises StackError with the first cause if the stack could not be created.
    """
    file = plan.design.file
    stack = begin(aws, plan, keep_failed)
    planned = json.loads(plan.body)["Resources"]
    parts = {name: part_of(resource["Type"]) for name, resource in planned.items()}
    guard = guard_deadline.OfNewGroups(aws, file, show)
    watch = StackWatch(aws, stack, show, group_names(file), parts, on_story=guard.look)
    room = Room(watch, plan.design)
    with shown(watch, parts) as tree:
        now = _followed(watch, checkout, room.look if gives_up else lambda: None)
    if room.refusal and now.status != "CREATE_COMPLETE":
        delete(aws, file, lambda _: None)
        raise NoCapacity((Tried(design=plan.design, said=room.refusal, role=room.role),))
    guard.look(watch.story)  # again, in case an earlier attempt was refused
    if now.status != "CREATE_COMPLETE":
        place = f"{file.shared}/.dlami-cluster/{file.name}/boot"
        kept = f"The nodes are kept; their logs are in {place} and /run/dlami-cluster. Then `inv stack.delete`."
        rolled = (  # RetainExceptOnCreate: the new file system was deleted with the stack
            "Nothing was left running"
            + (f"; node logs are in {place} of {file.storage.efs}" if file.storage.efs else "")
            + ". For about an hour AWS has the end of a failed node's log: `aws ec2 "
            f"get-console-output --latest --output text --region {file.region} --instance-id ID`. Correct the cause, "
            "`inv stack.delete`, then `inv stack.create`; `--keep-failed` keeps the nodes for a look."
        )
        raise failure(watch, "create", now, kept if keep_failed else rolled)
    tree.keep()
    return wait_for_nodes(watch, now.outputs, file) if file.nodes.min_nodes else hosts(aws, now.outputs)


def _followed(watch: StackWatch, checkout: Checkout | None, each: Callable[[], None]) -> Stack:
    """Wait for the create and return the stack, and send the checkout when the master waits for it.

    Raises StackError if AWS cannot create the stack.
    """
    if checkout is None:
        return follow(watch, each)
    watch.bring = checkout.bring
    checkout.is_there = False  # a new attempt has a new master, which does not have it
    try:
        return follow(watch, each)
    except StackError as e:
        if checkout.is_there:
            raise
        raise StackError(f"{e}\nthe nodes wait for this checkout: `inv stack.create` brings it") from e


def begin(aws: Aws, plan: ClusterPlan, keep_failed: bool, tasks: str = "stack") -> Stack:
    """Request the new stack and return it; return the existing one if its create is already under way.

    Args:
        tasks: the task group whose `create` and `delete` the errors name.
    Raises StackError if an unusable stack is in the way, NothingToDo if the stack is complete.
    """
    file = plan.design.file
    if plan.stack:
        if plan.stack.status == "CREATE_IN_PROGRESS":
            return plan.stack
        if not plan.stack.is_usable:
            raise StackError(way_out(plan.stack, tasks))
        raise NothingToDo(f"stack {file.name} is there already ({plan.stack.status}); `inv stack.update` changes it")
    with asking(f"creating stack {file.name}"):
        made = aws.client("cloudformation").create_stack(
            StackName=file.name,
            TemplateBody=plan.body,
            Capabilities=["CAPABILITY_IAM"],
            OnFailure="DO_NOTHING" if keep_failed else "ROLLBACK",
            EnableTerminationProtection=file.access.protect,
            Parameters=parameters(plan),
            Tags=[{"Key": "dlami-cluster:cluster", "Value": file.name}],
        )
    return get(aws, made["StackId"])


def parameters(plan: ClusterPlan) -> list[dict[str, str]]:
    """Return the template's defaults as explicit parameters, so that CloudFormation resolves nothing again later."""
    pinned = json.loads(plan.body)["Parameters"]
    return [{"ParameterKey": name, "ParameterValue": pinned[name]["Default"]} for name in sorted(pinned)]


def delete(
    aws: Aws, file: ClusterFile, show: Show, retain: list[str] | None = None, tasks: str = "stack"
) -> dict[str, Any]:
    """Delete the stack and return the physical ids of what stays in the account, by logical id.

    Raises StackError if a resource cannot be deleted.
    """
    stack = find(aws, file.name)
    if stack is None:
        raise NothingToDo(f"there is no stack {file.name} in {file.region}")
    made = {r.logical: r for r in resources(aws, stack)}
    watch = StackWatch(aws, stack, show if stack.status.startswith("DELETE_IN") else lambda _: None)
    watch.look()
    watch.show = show
    if not stack.status.startswith("DELETE_IN"):
        watch.story.clear()  # skip events of earlier operations
    cloudformation = aws.client("cloudformation")
    with asking(f"deleting stack {file.name}"):
        if stack.protected:
            cloudformation.update_termination_protection(StackName=stack.id, EnableTerminationProtection=False)
        if not stack.status.startswith("DELETE_IN"):
            cloudformation.delete_stack(StackName=stack.id, **({"RetainResources": retain} if retain else {}))
    now = _follow_delete(watch, tasks)
    if now.status == "DELETE_FAILED" and not retain:
        show("some resources would not go; trying once more")
        with asking(f"deleting stack {file.name}"):
            cloudformation.delete_stack(StackName=stack.id)
        watch.story.clear()
        now = _follow_delete(watch, tasks)
    if now.status == "DELETE_FAILED":
        names = sorted({e.resource for e in watch.story if e.is_failure})
        raise failure(
            watch,
            "delete",
            now,
            f"Remove by hand what holds it and run this again, or leave it: `inv {tasks}.delete "
            f"--retain {','.join(names)}`",
        )
    if now.status != "DELETE_COMPLETE":
        raise failure(watch, "delete", now, f"It is there, and costs on: run `inv {tasks}.delete` again.")
    left = [made[name] for name in retained(watch.story) if name in made]
    return {r.logical: r.id for r in left if drift.is_there(aws, r)}


def _follow_delete(watch: StackWatch, tasks: str) -> Stack:
    """Wait for the deletion by stack id, because a deleted stack can no longer be found by name."""
    try:
        return follow(watch, tasks=tasks, what="DELETE")
    except AwsError as e:
        if "does not exist" in str(e):
            return Stack(id=watch.stack.id, name=watch.stack.name, status="DELETE_COMPLETE")
        raise
