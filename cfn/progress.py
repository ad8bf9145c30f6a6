"""Following a stack while AWS works on it: each resource as it comes, each failed launch at once, the first
cause at the end.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from botocore.exceptions import ClientError

from cfn.aws import Aws, asking, pages
from cfn.stack import Event, Stack, StackError, events, find, first_cause
from cfn.template.design import TAG

Show = Callable[[str], None]
NODE_GROUPS = ("MasterNodes", "WorkerNodes")


class Pace:
    """Waits between questions: short at first, longer while nothing new is heard, never more than `longest_s`."""

    def __init__(self, longest_s: float = 5.0) -> None:
        self.longest_s, self.pause_s = longest_s, 0.1

    def rest(self, heard: bool) -> None:
        self.pause_s = 0.1 if heard else min(self.longest_s, self.pause_s * 1.4)
        time.sleep(self.pause_s)


@dataclass
class Watch:
    """What has been told so far of one operation on one stack."""

    aws: Aws
    stack: Stack
    show: Show
    groups: tuple[str, ...] = ()
    last_event: str = ""
    story: list[Event] = field(default_factory=list)
    activities: set[str] = field(default_factory=set)
    launches: list[str] = field(default_factory=list)  # failed launches, in Auto Scaling's words
    boots: dict[str, str] = field(default_factory=dict)  # instance -> why its first boot failed

    def look(self) -> bool:
        """Shows what is new; whether anything was."""
        fresh = events(self.aws, self.stack, self.last_event)
        for event in fresh:
            self.show(_line(event))
        self.story += fresh
        if fresh:
            self.last_event = fresh[-1].id
        return bool(self._look_at_launches() + self._look_at_boots() + len(fresh))

    def _look_at_launches(self) -> int:
        before = len(self.launches)
        for group in self.groups:
            for text in failed_launches(self.aws, group, self.activities):
                self.launches.append(text)
                self.show(f"  {group}: no instance yet: {text}")
        return len(self.launches) - before

    def _look_at_boots(self) -> int:
        before = len(self.boots)
        for instance, boot in failed_boots(self.aws, self.stack.name):
            if instance not in self.boots:
                self.boots[instance] = boot
                self.show(f"  {instance}: first boot {boot}")
        return len(self.boots) - before


def _line(event: Event) -> str:
    reason = f"  {event.reason}" if event.reason and event.reason != "User Initiated" else ""
    return f"{event.time:%H:%M:%S} {event.resource:<24} {event.status.lower().replace('_', ' ')}{reason}"


def failed_launches(aws: Aws, group: str, seen: set[str]) -> list[str]:
    """Messages of launches that failed since the last look, oldest first."""
    try:
        found = pages(
            aws.client("autoscaling"), "describe_scaling_activities", "Activities", AutoScalingGroupName=group
        )
    except ClientError:
        return []  # the group is not there yet, or not any more
    fresh = [a for a in found if a["StatusCode"] == "Failed" and a["ActivityId"] not in seen]
    seen.update(a["ActivityId"] for a in fresh)
    return [a.get("StatusMessage", a["Description"]) for a in reversed(fresh)]


def failed_boots(aws: Aws, cluster: str) -> list[tuple[str, str]]:
    """(instance, 'failed <step>: <last line>') of nodes whose first boot failed, ended ones included."""
    try:
        found = pages(
            aws.client("ec2"),
            "describe_instances",
            "Reservations",
            Filters=[
                {"Name": f"tag:{TAG}cluster", "Values": [cluster]},
                {"Name": f"tag:{TAG}boot", "Values": ["failed*"]},
            ],
        )
    except ClientError:
        return []
    said = [(i, {t["Key"]: t["Value"] for t in i.get("Tags", [])}) for r in found for i in r["Instances"]]
    return [(f"{i['InstanceId']} ({tags.get(f'{TAG}role', '?')})", tags[f"{TAG}boot"]) for i, tags in said]


def follow(watch: Watch) -> Stack:
    """The stack when AWS is done with it. Ctrl-C leaves AWS working and says so."""
    pace = Pace()
    try:
        while True:
            with asking(f"following stack {watch.stack.name}"):
                now = find(watch.aws, watch.stack.id)
            heard = watch.look()
            if now is None or not now.is_busy:
                return now or watch.stack
            pace.rest(heard)
    except KeyboardInterrupt:
        raise StackError(
            f"stopped watching; AWS goes on with {watch.stack.name}: `inv stack.status` tells how far it is"
        ) from None


def failure(watch: Watch, what: str, now: Stack, remedy: str) -> StackError:
    """One error with the first cause in AWS's words, what lies behind it, and what to do."""
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
    """Whether the condition came true in time; `look` is called between."""
    end, pace = time.monotonic() + seconds, Pace()
    while not condition():
        heard = bool(look())
        if time.monotonic() >= end:
            return False
        pace.rest(heard)
    return True


def retained(story: Iterable[Event]) -> list[str]:
    """Logical ids that a deletion left in the account."""
    return sorted({e.resource for e in story if e.status == "DELETE_SKIPPED"})
