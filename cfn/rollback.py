"""Unusable stacks: the remedy for each state, and another try at a failed roll-back."""

from collections.abc import Sequence

from cfn.aws import Aws, asking
from cfn.progress import Show, StackWatch, failure, follow
from cfn.stack import Stack, StackError, get, resources
from cluster.clusterfile.model import ClusterFile
from cluster.errors import ConfigError, NothingToDo

FAILED = "UPDATE_ROLLBACK_FAILED"
STUCK = {
    "ROLLBACK_COMPLETE": "an earlier create failed and was rolled back",
    "ROLLBACK_FAILED": "an earlier create failed, so did its roll-back",
    "CREATE_FAILED": "an earlier create failed and was kept",
    "DELETE_FAILED": "an earlier delete failed",
    "REVIEW_IN_PROGRESS": "somebody's change set was never executed",
}


def way_out(stack: Stack, tasks: str = "stack") -> str:
    """Return why a stack cannot be used, and the remedy.

    Args:
        tasks: the task group to name, stack or eks.
    """
    said = f"stack {stack.name} is {stack.status}"
    if stack.status in STUCK:
        return f"{said}: {STUCK[stack.status]}; run `inv {tasks}.delete` first"
    if stack.status == FAILED:
        stops = "; `inv stack.stop` ends its nodes meanwhile" if tasks == "stack" else ""
        return f"{said}: an update failed, and so did its roll-back; try that again with {again(stack, tasks)}{stops}"
    if stack.is_busy:
        return f"{said}; wait until it is complete, see `inv {tasks}.status`"
    return f"{said} and cannot be used; see `inv {tasks}.status`"


def again(stack: Stack, tasks: str = "stack") -> str:
    """Return the command that continues a failed roll-back."""
    return (
        "`inv stack.update --roll-back`"
        if tasks == "stack"
        else f"'aws cloudformation continue-update-rollback --stack-name {stack.name}'"
    )


def after_update(now: Stack, tasks: str, command: str) -> str:
    """Return the state of the stack after a failed update, and the remedy.

    Args:
        command: the task that was run.
    """
    if now.status == FAILED:
        return f"The stack is neither as it was nor as the cluster file says: {way_out(now, tasks)}."
    return f"The stack is as it was before. Correct the cause and run `inv {command}` again."


def skipped(aws: Aws, stack: Stack, text: str) -> list[str]:
    """Return the resources named by `--skip`. Raises ConfigError for one that the stack does not have."""
    names = [n.strip() for n in text.split(",") if n.strip()]
    known = {r.logical for r in resources(aws, stack)} if names else set()
    if unknown := sorted(set(names) - known):
        raise ConfigError(f"--skip {', '.join(unknown)}: stack {stack.name} has only {', '.join(sorted(known))}")
    return names


def roll_back(aws: Aws, file: ClusterFile, show: Show, skip: Sequence[str] = ()) -> Stack:
    """Continue the failed roll-back. Return the stack, which is then as it was before its update.

    Args:
        skip: logical ids to leave as they are, such as resources that were deleted by hand.
    Raises NothingToDo if no roll-back has failed, StackError with the first cause if it fails again.
    """
    stack = get(aws, file.name)
    if stack.status != FAILED:
        raise NothingToDo(f"no roll-back of {stack.name} has failed: it is {stack.status}")
    watch = StackWatch(aws, stack, lambda _: None)
    watch.look()  # skip events of earlier operations
    watch.show, watch.story = show, []
    with asking(f"rolling back stack {stack.name}"):
        aws.client("cloudformation").continue_update_rollback(
            StackName=stack.id, **({"ResourcesToSkip": list(skip)} if skip else {})
        )
    now = follow(watch, what="UPDATE_ROLLBACK")
    if now.status != "UPDATE_ROLLBACK_COMPLETE":
        names = sorted({e.resource for e in watch.story if e.is_failure})
        leave = (
            f", or leave these as they are: `inv stack.update --roll-back --skip {','.join(names)}`" if names else ""
        )
        raise failure(watch, "roll-back", now, f"Correct the cause and run `inv stack.update --roll-back` again{leave}")
    return now


def check_usable(stack: Stack) -> Stack:
    """Return the stack. Raises StackError with the way out for one that is not complete."""
    if not stack.is_usable:
        raise StackError(way_out(stack))
    return stack
