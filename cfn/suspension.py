"""Suspended Auto Scaling processes: their effects, and the command that resumes them."""

from collections.abc import Iterable, Mapping
from typing import Any

from cfn.aws import Aws, asking, pages
from cfn.stack import StackError

# Suspended processes that matter here, and their effects.
# Source: EC2 Auto Scaling User Guide, "Suspend and resume Amazon EC2 Auto Scaling processes".
EFFECTS = {
    "Launch": "no instance is started: what ends is not replaced",
    "Terminate": "no instance is ended: neither its guard nor a smaller size takes effect",
    "ScheduledActions": "its guard ends nothing",
    "ReplaceUnhealthy": "a dead host is not replaced",
    "HealthCheck": "a dead host is not noticed",
}
OF_THE_GUARD = frozenset({"Terminate", "ScheduledActions"})


def suspended(described: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the suspended processes of a group, as DescribeAutoScalingGroups reports them."""
    return tuple(sorted(p["ProcessName"] for p in described.get("SuspendedProcesses", [])))


def problems(group: str, processes: Iterable[str]) -> list[str]:
    """Return a sentence on the suspended processes that matter here, with the remedy; none otherwise."""
    known = [p for p in EFFECTS if p in processes]
    if not known:
        return []
    effects = "; ".join(dict.fromkeys(EFFECTS[p] for p in known))
    return [f"{group} has {', '.join(known)} suspended: {effects}: '{resume(group, known)}'"]


def resume(group: str, processes: Iterable[str]) -> str:
    """Return the AWS CLI command that resumes processes of a group."""
    return (
        f"aws autoscaling resume-processes --auto-scaling-group-name {group} --scaling-processes {' '.join(processes)}"
    )


def check(aws: Aws, groups: Iterable[str], process: str, what: str) -> None:
    """Raise StackError if one of the groups has a needed process suspended. Nothing is changed.

    Args:
        what: the task that needs it, as in "a start".
    """
    with asking("looking for suspended processes"):
        found = pages(
            aws.client("autoscaling"),
            "describe_auto_scaling_groups",
            "AutoScalingGroups",
            AutoScalingGroupNames=list(groups),
        )
    held = [g["AutoScalingGroupName"] for g in found if process in suspended(g)]
    if held:
        commands = " && ".join(resume(name, [process]) for name in held)
        raise StackError(
            f"{', '.join(held)} has {process} suspended, so that {what} would not come to its end; "
            f"nothing was changed: '{commands}'"
        )
