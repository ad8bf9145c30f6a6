"""Creating a stack, and deleting it: each is followed to its end."""

import json
from typing import Any

from cfn.aws import Aws, AwsError, asking
from cfn.clusterfile.fields import ClusterFile
from cfn.hosts import Member, hosts
from cfn.plan import Plan
from cfn.progress import Show, Watch, failure, follow, part_of, retained
from cfn.stack import Stack, StackError, find, get, resource_ids
from cluster.errors import NothingToDo

STUCK = {
    "ROLLBACK_COMPLETE": "an earlier create failed and was rolled back",
    "ROLLBACK_FAILED": "an earlier create failed, so did its roll-back",
    "CREATE_FAILED": "an earlier create failed and was kept",
    "DELETE_FAILED": "an earlier delete failed",
}


def group_names(file: ClusterFile) -> tuple[str, str]:
    """Names of the two Auto Scaling groups, which the template gives."""
    return f"{file.name}-master", f"{file.name}-workers"


def create(aws: Aws, plan: Plan, show: Show, keep_failed: bool = False) -> list[Member]:
    """The hosts of the new cluster, all of them ready. Raises StackError with the first cause if it could not be made.

    Args:
        keep_failed: leave what was made, the nodes above all, for a look; otherwise a failed create is rolled back.
    A create that is under way already is followed to its end.
    """
    file = plan.design.file
    stack = _begin(aws, plan, keep_failed)
    resources = json.loads(plan.body)["Resources"]
    parts = {name: part_of(resource["Type"]) for name, resource in resources.items()}
    watch = Watch(aws, stack, show, group_names(file), parts)
    now = follow(watch)
    if now.status != "CREATE_COMPLETE":
        place = f"{file.shared}/.dlami-cluster/{file.name}/boot"
        kept = f"The nodes are kept; their logs are in {place} and /run/dlami-cluster. Then `inv stack.delete`."
        rolled = (
            f"Nothing was left running; node logs are in {place} of a kept EFS. Correct the cause, "
            "`inv stack.delete`, then `inv stack.create`; "
            "`--keep-failed` keeps the nodes for a look."
        )
        raise failure(watch, "create", now, kept if keep_failed else rolled)
    return hosts(aws, now.outputs)


def _begin(aws: Aws, plan: Plan, keep_failed: bool) -> Stack:
    file = plan.design.file
    if plan.stack:
        if plan.stack.status == "CREATE_IN_PROGRESS":
            return plan.stack
        if plan.stack.status in STUCK:
            raise StackError(
                f"stack {file.name} is {plan.stack.status}: {STUCK[plan.stack.status]}; run `inv stack.delete` first"
            )
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


def parameters(plan: Plan) -> list[dict[str, str]]:
    """The pinned choices, given explicitly: nothing is resolved again later."""
    return [
        {"ParameterKey": "Ami", "ParameterValue": plan.design.ami},
        {"ParameterKey": "Zone", "ParameterValue": plan.design.zone},
    ]


def delete(aws: Aws, file: ClusterFile, show: Show, retain: list[str] | None = None) -> dict[str, Any]:
    """Ends the stack; what stays in the account, by logical id. Raises StackError if a resource will not go."""
    stack = find(aws, file.name)
    if stack is None:
        raise NothingToDo(f"there is no stack {file.name} in {file.region}")
    ids = resource_ids(aws, stack)
    watch = Watch(aws, stack, show)
    watch.look()
    if not stack.status.startswith("DELETE_IN"):
        watch.story.clear()  # what was before is not this deletion's story
    cloudformation = aws.client("cloudformation")
    with asking(f"deleting stack {file.name}"):
        if stack.protected:
            cloudformation.update_termination_protection(StackName=stack.id, EnableTerminationProtection=False)
        if not stack.status.startswith("DELETE_IN"):
            cloudformation.delete_stack(StackName=stack.id, **({"RetainResources": retain} if retain else {}))
    now = _follow_delete(watch)
    if now.status == "DELETE_FAILED" and not retain:
        show("some resources would not go; trying once more")
        with asking(f"deleting stack {file.name}"):
            cloudformation.delete_stack(StackName=stack.id)
        watch.story.clear()
        now = _follow_delete(watch)
    if now.status == "DELETE_FAILED":
        names = sorted({e.resource for e in watch.story if e.is_failure})
        raise failure(
            watch,
            "delete",
            now,
            "Remove by hand what holds it and run this again, or leave it: `inv stack.delete "
            f"--retain {','.join(names)}`",
        )
    return {name: ids[name] for name in retained(watch.story) if name in ids}


def _follow_delete(watch: Watch) -> Stack:
    """By id: a deleted stack has no name any more."""
    try:
        return follow(watch)
    except AwsError as e:
        if "does not exist" in str(e):
            return Stack(id=watch.stack.id, name=watch.stack.name, status="DELETE_COMPLETE")
        raise
