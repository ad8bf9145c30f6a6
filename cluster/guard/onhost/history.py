"""Instance history of an Auto Scaling group: which instances it had and how long each was paid for. Pure functions.

The guard on the master computes costs with it (Python 3.9), and so does `inv stack.cost` on the operator's machine.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

LEAST_S = 60.0  # least seconds that are billed per instance
_INSTANCE = re.compile(r"(Launching a new|Terminating) EC2 instance: (i-[0-9a-f]+)")
_TO_ZERO = re.compile(r"shrinking the capacity from \d+ to 0\b")  # cause of an activity, in Auto Scaling's own words


@dataclass(frozen=True)
class Past:
    """Running time of a cluster before the guard's first check. Auto Scaling keeps six weeks of it."""

    began: float  # first launch of a master since the last shrink to zero; seconds since 1970
    hours: float  # instance hours of all its runs
    master_hours: float  # the masters' part of them


@dataclass(frozen=True)
class Span:
    """Time span in which one instance is paid for."""

    instance_id: str
    begins: datetime.datetime
    ends: datetime.datetime | None = None  # None: still running

    def seconds(self, until: datetime.datetime) -> float:
        """Return the seconds that are paid for up to `until`, at least LEAST_S; 0 if the span begins later."""
        end = min(self.ends or until, until)
        return max((end - self.begins).total_seconds(), LEAST_S) if end >= self.begins else 0.0

    def within(self, since: datetime.datetime, until: datetime.datetime) -> float:
        """Return how many seconds of the span lie between `since` and `until`."""
        begin, end = max(self.begins, since), min(self.ends or until, until)
        return max(0.0, (end - begin).total_seconds())


def spans(activities: Iterable[Mapping[str, Any]], alive: Mapping[str, datetime.datetime]) -> list[Span]:
    """Return one span per instance, the oldest first.

    Args:
        activities: as DescribeScalingActivities returns them, in any order.
        alive: launch time of each instance that the group has now. The activity of an old one may be gone.

    An instance may leave its group without an end, for example when somebody detaches it. Its span ends at the last
    activity that names it.
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
    """Compute a cluster's past from the scaling activities of its two groups and the instances that each has now.

    The current run begins after the last shrink of the master's group to zero. The cause of an activity tells such a
    shrink from a replacement.
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
