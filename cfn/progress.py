"""Progress of a stack operation: completed parts, nodes' first boots and failures as they come, and the first cause."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

from cfn.aws import Aws, asking, pages
from cfn.stack import Stack, StackError, StackEvent, events, find, first_cause
from cfn.template.design import TAG

Show = Callable[[str], None]
NODE_GROUPS = ("MasterNodes", "WorkerNodes")
PARTS = {
    "AWS::EFS": "storage",
    "AWS::FSx": "storage",
    "AWS::IAM": "roles",
    "AWS::AutoScaling": "nodes",
    "AWS::EC2::LaunchTemplate": "nodes",
    "AWS::EC2::PlacementGroup": "nodes",
    "AWS::EKS::Nodegroup": "nodes",
    "AWS::EKS": "Kubernetes",
    "AWS::KMS": "Kubernetes",
    "AWS::Logs": "Kubernetes",
}


STACK = "AWS::CloudFormation::Stack"
_BEGINS_S = 60.0  # limit on waiting for the event; then the status alone decides


class PollInterval:
    """Polling interval: short at first and after new events, growing to `longest_s` without any."""

    def __init__(self, longest_s: float = 5.0) -> None:
        self.longest_s, self.pause_s = longest_s, 0.1

    def rest(self, heard: bool) -> None:
        self.pause_s = 0.1 if heard else min(self.longest_s, self.pause_s * 1.4)
        time.sleep(self.pause_s)


@dataclass
class StackWatch:
    """Observer of one operation on one stack: prints new events and keeps those that it has read."""

    aws: Aws
    stack: Stack
    show: Show
    groups: tuple[str, ...] = ()
    parts: dict[str, str] = field(default_factory=dict)
    """Part of the stack by logical id, for known resources: one line is printed per part, not per resource."""
    last_event: str = ""
    story: list[StackEvent] = field(default_factory=list)
    activities: set[str] = field(default_factory=set)
    launches: list[str] = field(default_factory=list)  # Auto Scaling's messages on failed launches
    refused: dict[str, str] = field(default_factory=dict)  # the newest of these messages by group
    boots: dict[str, str] = field(default_factory=dict)  # instance -> why its first boot failed
    on_story: Callable[[list[StackEvent]], None] = lambda _: None  # called after each poll with all events so far
    booting: str = ""  # how many nodes are at which step of their first boot
    nodes: dict[str, str] = field(default_factory=dict)  # instance -> current step of its first boot
    on_nodes: Callable[[], None] = field(default=lambda: None)  # called after each poll of the nodes
    bring: Callable[[], bool] = field(default=lambda: False)
    """Sends what the nodes wait for from this machine, if possible now. Returns True if it was sent."""

    def look(self) -> bool:
        """Print what is new. Return True if anything was."""
        fresh = events(self.aws, self.stack, self.last_event)
        for event in fresh:
            self._tell(event)
        self.story += fresh
        if fresh:
            self.last_event = fresh[-1].id
        self.on_story(self.story)
        return bool(self._look_at_launches() + self._look_at_boots() + len(fresh) + self.bring())

    def _tell(self, event: StackEvent) -> None:
        """Print the event if it is the stack's own, a failure or a completion.

        Of resources in known parts, only the completion of each part is printed.
        """
        of_stack = event.kind == STACK
        if of_stack or event.is_failure:
            self.show(_line(event))
        elif event.resource not in self.parts:
            if not event.status.endswith("_IN_PROGRESS"):
                self.show(_line(event))
        elif event.status == "CREATE_COMPLETE":
            part = self.parts.pop(event.resource)
            if part not in self.parts.values():
                self.show(f"{event.time:%H:%M:%S} {part:<24} ready")

    def _look_at_launches(self) -> int:
        before = len(self.launches)
        for group in self.groups:
            for text in failed_launches(self.aws, group, self.activities):
                self.launches.append(text)
                self.refused[group] = text
                self.show(f"  {group}: no instance yet: {text}")
        return len(self.launches) - before

    def _look_at_boots(self) -> int:
        before = (len(self.boots), self.booting)
        found = boots(self.aws, self.stack.name)
        for instance, boot in found:
            if boot.startswith("failed") and instance not in self.boots:
                self.boots[instance] = boot
                self.show(f"  {instance}: first boot {boot}")
        under_way = Counter(boot.removeprefix("running ") for _, boot in found if boot.startswith("running"))
        self.nodes = {i: boot.removeprefix("running ") for i, boot in found if boot.startswith("running")}
        self.on_nodes()
        self.booting = ", ".join(f"{number} at {step}" for step, number in sorted(under_way.items()))
        if self.booting and self.booting != before[1]:
            self.show(f"  first boot: {self.booting}")
        return int((len(self.boots), self.booting) != before)


def _line(event: StackEvent) -> str:
    reason = f"  {event.reason}" if event.reason and event.reason != "User Initiated" else ""
    return f"{event.time:%H:%M:%S} {event.resource:<24} {event.status.lower().replace('_', ' ')}{reason}"


# EC2's messages for launches that somebody ended on purpose; these are no failures.
_ASKED_FOR = ("Client.UserInitiatedShutdown", "Client.UserInitiatedHibernate")


def is_failed_launch(activity: Mapping[str, Any]) -> bool:
    """Return True for an instance that EC2 refused, and for one that it ended before it was in service.

    Auto Scaling calls the first Failed and the second Cancelled, as after Client.InternalError for a disk whose key it
    may not use, or Client.VolumeLimitExceeded.
    """
    if activity["StatusCode"] == "Failed":
        return True
    said = activity.get("StatusMessage", "")
    is_launch = activity["StatusCode"] == "Cancelled" and activity.get("Description", "").startswith("Launching")
    return is_launch and bool(said) and not any(one in said for one in _ASKED_FOR)


def failed_launches(aws: Aws, group: str, seen: set[str]) -> list[str]:
    """Return the messages of launches that failed since the last call, oldest first."""
    try:
        found = pages(
            aws.client("autoscaling"), "describe_scaling_activities", "Activities", AutoScalingGroupName=group
        )
    except ClientError:
        return []  # the group does not exist yet, or no longer
    fresh = [a for a in found if is_failed_launch(a) and a["ActivityId"] not in seen]
    seen.update(a["ActivityId"] for a in fresh)
    return [a.get("StatusMessage", a["Description"]) for a in reversed(fresh)]


def part_of(kind: str) -> str:
    """Return the part of a stack that a resource type belongs to, as an operator would call it."""
    return next((part for prefix, part in PARTS.items() if kind.startswith(prefix)), "network")


def boots(aws: Aws, cluster: str) -> list[tuple[str, str]]:
    """Return (instance, boot state) of the cluster's nodes that are not ready, terminated ones included.

    The state is 'running <step>' or 'failed <step>: <last line>'.
    """
    try:
        found = pages(
            aws.client("ec2"),
            "describe_instances",
            "Reservations",
            Filters=[
                {"Name": f"tag:{TAG}cluster", "Values": [cluster]},
                {"Name": f"tag:{TAG}boot", "Values": ["running*", "failed*"]},
            ],
        )
    except ClientError:
        return []
    said = [(i, {t["Key"]: t["Value"] for t in i.get("Tags", [])}) for r in found for i in r["Instances"]]
    return [(f"{i['InstanceId']} ({tags.get(f'{TAG}role', '?')})", tags[f"{TAG}boot"]) for i, tags in said]


def follow(
    watch: StackWatch, each: Callable[[], object] = lambda: None, tasks: str = "stack", what: str = "CREATE"
) -> Stack:
    """Wait until AWS has finished the operation and return the stack. Ctrl-C stops only the waiting.

    Args:
        each: is called after every poll.
        tasks: the task group whose `status` the message after Ctrl-C names.
        what: CREATE, UPDATE or DELETE.
    A stack may show its old status for a moment after AWS took the request, and an earlier operation may end in that
    moment. So the stack's own first event of this kind shows that the operation has begun.
    """
    pace = PollInterval()
    try:
        begun = f"{what}_IN_PROGRESS"
        wait_for(lambda: any((e.kind, e.status) == (STACK, begun) for e in watch.story), _BEGINS_S, watch.look)
        while True:
            with asking(f"following stack {watch.stack.name}"):
                now = find(watch.aws, watch.stack.id)
            heard = watch.look()
            if now is None or not now.is_busy:
                return now or watch.stack
            each()
            pace.rest(heard)
    except KeyboardInterrupt:
        raise StackError(
            f"stopped watching; AWS goes on with {watch.stack.name}: `inv {tasks}.status` tells how far it is"
        ) from None


def failure(watch: StackWatch, what: str, now: Stack, remedy: str) -> StackError:
    """Return an error with the first cause in AWS's words, the failed launches and boots behind it, and the remedy."""
    cause = first_cause(watch.story)
    lines = [f"{what} of stack {now.name} failed ({now.status})"]
    lines[0] += (
        f": {cause.resource} ({cause.kind}): {cause.reason}" if cause else f": {now.reason or 'AWS gives no reason'}"
    )
    if cause is None or cause.resource in NODE_GROUPS:
        lines += [f"  no instance: {text}" for text in dict.fromkeys(watch.launches)]
        lines += [f"  {instance}: first boot {boot}" for instance, boot in watch.boots.items()]
    return StackError("\n".join([*lines, remedy]))


def wait_for(condition: Callable[[], bool], seconds: float, look: Callable[[], object]) -> bool:
    """Return True once the condition holds, or False after so many seconds. `look` is called between checks."""
    end, pace = time.monotonic() + seconds, PollInterval()
    while not condition():
        heard = bool(look())
        if time.monotonic() >= end:
            return False
        pace.rest(heard)
    return True


def retained(story: Iterable[StackEvent]) -> list[str]:
    """Return the logical ids that a deletion left in the account."""
    return sorted({e.resource for e in story if e.status == "DELETE_SKIPPED"})
