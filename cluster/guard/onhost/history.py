"""Which instances a group has had and for how long each was paid, read from the group's own activities: pure.

Python 3.9: on the master the guard counts by it, on the operator's machine `inv stack.cost` does.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

LEAST_S = 60.0  # that are billed of an instance, however short it ran
_INSTANCE = re.compile(r"(Launching a new|Terminating) EC2 instance: (i-[0-9a-f]+)")
_TO_ZERO = re.compile(r"shrinking the capacity from \d+ to 0\b")  # a cause, in Auto Scaling's own words


@dataclass(frozen=True)
class Past:
    """What a cluster was before somebody looked. Auto Scaling tells six weeks of it."""

    began: float  # this run of it: its master was launched first since it was at zero; seconds since 1970
    hours: float  # of all instances in all of its runs
    master_hours: float  # of them the masters'


@dataclass(frozen=True)
class Span:
    """The time that one instance is paid for."""

    instance_id: str
    begins: datetime.datetime
    ends: datetime.datetime | None = None  # None: it goes on

    def seconds(self, until: datetime.datetime) -> float:
        """How long it was paid for by then."""
        end = min(self.ends or until, until)
        return max((end - self.begins).total_seconds(), LEAST_S) if end >= self.begins else 0.0

    def within(self, since: datetime.datetime, until: datetime.datetime) -> float:
        """How many of its seconds lie in between."""
        begin, end = max(self.begins, since), min(self.ends or until, until)
        return max(0.0, (end - begin).total_seconds())


def spans(activities: Iterable[Mapping[str, Any]], alive: Mapping[str, datetime.datetime]) -> list[Span]:
    """A span for each instance, the oldest first.

    Args:
        activities: as DescribeScalingActivities tells them, in any order.
        alive: when each instance that the group has now was launched: the history of an old one may be gone.

    An instance that left its group without an end, as when somebody detached it, counts until it was last heard of.
    """
    begins: dict[str, datetime.datetime] = dict(alive)
    ends: dict[str, datetime.datetime] = {}
    heard: dict[str, datetime.datetime] = {}
    for one in activities:
        found = _INSTANCE.match(one["Description"])
        if not found or (one["StatusCode"] == "Failed" and found[1] != "Terminating"):
            continue
        name, start = found[2], one["StartTime"]
        heard[name] = max(heard.get(name, start), one.get("EndTime") or start)
        if found[1] == "Terminating":
            if one["StatusCode"] != "Failed":
                ends[name] = min(ends.get(name, heard[name]), one.get("EndTime") or start)
        else:
            begins[name] = min(begins.get(name, start), start)
    made = [
        Span(instance_id=name, begins=begin, ends=None if name in alive else ends.get(name, heard.get(name)))
        for name, begin in begins.items()
    ]
    return sorted(made, key=lambda s: (s.begins, s.instance_id))


def past(
    masters: Iterable[Mapping[str, Any]],
    workers: Iterable[Mapping[str, Any]],
    alive: tuple[Iterable[str], Iterable[str]],
    now: datetime.datetime,
) -> Past:
    """The past of a cluster by the activities of its two groups, and by the instances that each of them has now.

    Of an instance that it ends because it was set to nothing a group says so; of one that it replaces it does not.
    """
    told = list(masters)
    of_masters = spans(told, dict.fromkeys(alive[0], now))
    of_workers = spans(workers, dict.fromkeys(alive[1], now))
    at_zero = max((one["StartTime"] for one in told if _is_to_zero(one)), default=None)
    begins = [s.begins for s in of_masters if at_zero is None or s.begins >= at_zero]
    master_s = sum(s.seconds(now) for s in of_masters)
    return Past(
        began=min(begins, default=now).timestamp(),
        hours=(master_s + sum(s.seconds(now) for s in of_workers)) / 3600,
        master_hours=master_s / 3600,
    )


def _is_to_zero(activity: Mapping[str, Any]) -> bool:
    is_an_end = activity["Description"].startswith("Terminating") and activity["StatusCode"] != "Failed"
    return is_an_end and bool(_TO_ZERO.search(activity.get("Cause", "")))
