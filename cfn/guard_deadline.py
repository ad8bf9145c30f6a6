"""Scheduled end of the cluster's groups, which the guard postpones while there is useful work: the operator's side.

It is a scheduled action of both Auto Scaling groups, so AWS carries it out without our code. See docs/money.md.
"""

import datetime
import email.utils
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from dataclasses import replace as with_
from typing import Any

from botocore.exceptions import ClientError

from cfn.aws import Aws, asking, message_of, pages
from cfn.groups import group_names
from cfn.progress import NODE_GROUPS
from cfn.stack import StackEvent
from cfn.template.design import Design, first_minutes
from cluster.clusterfile.checks import FieldError
from cluster.clusterfile.model import ClusterFile
from cluster.guard.onhost.api import ACTION
from cluster.terminal import counted

_NONE = {"MinSize": 0, "MaxSize": 0, "DesiredCapacity": 0}


def priced(design: Design, usd_per_hour: float | None, master_usd_per_hour: float | None) -> Design:
    """Return the design with the prices that its guard counts by. Raises FieldError for a budget without a price."""
    file = design.file
    if not file.guard.budget_usd:
        return design
    if not usd_per_hour or not master_usd_per_hour:
        role, table = ("master", "master") if usd_per_hour else ("worker", "nodes")
        raise FieldError(
            "guard.budget_usd",
            f"needs a price, and the price list has none for {design.instance_of(role).name} as {file.market(role)}",
            f"set {table}.usd_per_hour",
        )
    own = master_usd_per_hour if master_usd_per_hour != usd_per_hour else 0.0
    return with_(design, usd_per_hour=usd_per_hour, master_usd_per_hour=own)


def terms(file: ClusterFile) -> str:
    """Return a sentence on what ends the cluster."""
    guard = file.guard
    said = [f"after {counted(file.idle_minutes, 'minute')} without useful work"] if file.idle_minutes else []
    said += [f"{guard.max_hours:g} h after its start"] if guard.max_hours else []
    said += [f"once its instances have cost {guard.budget_usd:g} USD"] if guard.budget_usd else []
    if said:
        return f"all nodes end {', or '.join(said)}; storage and addresses stay{_without_project(file)}"
    if file.nodes.capacity == "capacity-block":
        return "off: the block is paid anyway; jobs are warned and saved before its end"
    return "off: nothing but you ends it"


def _without_project(file: ClusterFile) -> str:
    """Return how the guard differs for nodes that start without this project; "" if it does not."""
    if file.nodes.source or not (file.idle_minutes or file.guard.budget_usd):
        return ""
    hours = first_minutes(file) / 60
    return f"; nodes without this project end {hours:g} h after their start, until `inv sync` brings it"


def first_end(file: ClusterFile, now: datetime.datetime) -> datetime.datetime:
    """Return the end time of a group that was just created. The master postpones it once it runs."""
    return now + datetime.timedelta(minutes=first_minutes(file))


def begin(aws: Aws, file: ClusterFile, groups: Iterable[str]) -> datetime.datetime:
    """Schedule the first end of these groups, or postpone it to then. Return its time. Raises ClientError."""
    scaling = aws.client("autoscaling")
    at = first_end(file, _now(scaling))
    for name in groups:
        scaling.put_scheduled_update_group_action(
            AutoScalingGroupName=name, ScheduledActionName=ACTION, StartTime=at, **_NONE
        )
    return at


def names(file: ClusterFile) -> tuple[str, ...]:
    """Return both group names, the workers' first."""
    return group_names(file)[::-1]


def drop_if_off(aws: Aws, file: ClusterFile) -> bool:
    """Delete the scheduled ends of both groups if the file has no guard. Return True if there were any.

    Called after an update. If the update turned a guard on, the master's own guard sets the end. A master of an older
    project has none, and would never postpone an end set here.
    """
    left = ends(aws, file) if not file.is_guarded else {}
    for name in left:
        with asking(f"turning the guard of {file.name} off"):
            aws.client("autoscaling").delete_scheduled_action(AutoScalingGroupName=name, ScheduledActionName=ACTION)
    return bool(left)


def ends(aws: Aws, file: ClusterFile) -> dict[str, datetime.datetime]:
    """Return when each group is to end, by its name. Groups without a scheduled end are left out."""
    with asking(f"looking for the guard of {file.name}"):
        found = pages(
            aws.client("autoscaling"),
            "describe_scheduled_actions",
            "ScheduledUpdateGroupActions",
            ScheduledActionNames=[ACTION],
        )
    own = set(names(file))
    return {a["AutoScalingGroupName"]: a["StartTime"] for a in found if a["AutoScalingGroupName"] in own}


def trouble(file: ClusterFile, ends: Collection[str]) -> str:
    """Return what is wrong with the scheduled ends, compared with the file that the stack was made from; "" if nothing.

    Args:
        ends: names of the groups that have an end.
    """
    if not file.is_guarded and ends:
        return "its guard is off, but an end is set all the same: `inv stack.update` takes it away"
    unset = [name for name in names(file) if name not in ends]
    if file.is_guarded and unset:
        return (
            f"it has a guard, but no end is set on {', '.join(unset)}, so nothing ends what is forgotten there: "
            "`inv hosts.write` and `inv sync` bring its master the guard that sets one"
        )
    return ""


def is_at_zero(aws: Aws, file: ClusterFile) -> bool:
    """Return True if no group may have a node, because the guard or a person has ended them all."""
    with asking(f"looking at the groups of {file.name}"):
        groups = pages(
            aws.client("autoscaling"),
            "describe_auto_scaling_groups",
            "AutoScalingGroups",
            AutoScalingGroupNames=list(names(file)),
        )
    return bool(groups) and not any(g["MaxSize"] for g in groups)


def _now(scaling: Any) -> datetime.datetime:
    """Return the time by AWS's clock, because this machine's may be wrong."""
    said = scaling.describe_scheduled_actions(MaxRecords=1)["ResponseMetadata"]["HTTPHeaders"].get("date", "")
    try:
        return email.utils.parsedate_to_datetime(said)
    except ValueError:
        return datetime.datetime.now(datetime.UTC)


@dataclass
class OfNewGroups:
    """Observer that schedules the first end of each group of a new stack, as soon as the group exists.

    The operator may stop watching at any moment, and without an end the group could then run forever.
    """

    aws: Aws
    file: ClusterFile
    show: Callable[[str], None]
    _done: set[str] = field(default_factory=set)
    _said: str = ""

    def look(self, story: list[StackEvent]) -> None:
        """Schedule the end of groups that have just been created.

        Args:
            story: all events of the stack so far.
        """
        there = {e.resource for e in story if e.resource in NODE_GROUPS and e.reason == "Resource creation Initiated"}
        for resource in sorted(there - self._done) if self.file.is_guarded else ():
            name = group_names(self.file)[NODE_GROUPS.index(resource)]
            try:
                at = begin(self.aws, self.file, [name])
            except ClientError as e:
                self._tell(f"  {name}: the guard could not be set: {message_of(e)}; it is tried again")
                continue
            self._done.add(resource)
            if len(self._done) == 1:
                until = "useful work is seen" if self.file.nodes.source else "`inv sync` brings this project to them"
                self._tell(f"  guard: all nodes end at {at:%Y-%m-%d %H:%M} UTC unless {until}")

    def _tell(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self.show(text)
