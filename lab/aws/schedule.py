"""Scheduled actions of Auto Scaling groups: accepted and listed by the API, executed by the fake's own clock.

Source: EC2 Auto Scaling API reference, PutScheduledUpdateGroupAction. It creates or updates by name; an update keeps
what it omits; a time in the past is refused. An action without a recurrence is deleted once it is executed.
"""

import datetime
import zoneinfo
from dataclasses import dataclass, replace
from typing import Any

from lab.aws import groups
from lab.aws.groups import Group
from lab.aws.protocol import AwsFault, page
from lab.aws.state import FakeState

MOST = 125  # of one group
SIZES = {"MinSize": "min", "MaxSize": "max", "DesiredCapacity": "desired"}
_CRON = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))  # minute, hour, day, month, weekday (0 and 7: Sunday)
_DAYS = 366 * 5  # 29 February comes within these


@dataclass(frozen=True)
class ScheduledAction:
    """Scheduled change of a group's sizes."""

    name: str
    sizes: dict[str, int]  # by the API's names; omitted sizes do not change
    at: datetime.datetime  # the next time
    end: datetime.datetime | None = None  # after it nothing recurs
    recurrence: str = ""
    zone: str = "Etc/UTC"


class Schedules:
    """The API's operations on scheduled actions."""

    world: FakeState

    def put_scheduled_update_group_action(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        group = groups.get(self.world, region, p["AutoScalingGroupName"])
        group.schedule[p["ScheduledActionName"]] = _asked(group, p, self.world.now())
        self.world.touch()
        return {}

    def describe_scheduled_actions(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        of, names = p.get("AutoScalingGroupName"), p.get("ScheduledActionNames") or []
        if of:
            groups.get(self.world, region, of)
        found = [
            _described(group, one)
            for group in self.world.groups.values()
            if group.region == region and of in (None, group.name)
            for one in sorted(group.schedule.values(), key=lambda a: (a.at, a.name))
            if not names or one.name in names
        ]
        start, end = _utc(p.get("StartTime")), _utc(p.get("EndTime"))
        if not names:  # with names the times are passed over
            found = [f for f in found if (not start or f["StartTime"] >= start) and (not end or f["StartTime"] <= end)]
        items, token = page(found, p, self.world.page_size, "MaxRecords")
        return {"ScheduledUpdateGroupActions": items, **token}

    def delete_scheduled_action(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        group = groups.get(self.world, region, p["AutoScalingGroupName"])
        if group.schedule.pop(p["ScheduledActionName"], None) is None:
            raise AwsFault("ValidationError", "Scheduled action name not found")
        self.world.touch()
        return {}


def _asked(group: Group, p: dict[str, Any], now: datetime.datetime) -> ScheduledAction:
    """Return the action that a request creates or updates. Raises AwsFault for a request that AWS refuses."""
    before = group.schedule.get(p["ScheduledActionName"])
    sizes = {**(before.sizes if before else {}), **{name: int(p[name]) for name in SIZES if name in p}}
    if not sizes:
        raise AwsFault("ValidationError", "At least one of MinSize, MaxSize or DesiredCapacity must be specified")
    least, most = sizes.get("MinSize", 0), sizes.get("MaxSize")
    if most is not None and least > most:
        raise AwsFault("ValidationError", f"Max bound, {most}, must be greater than or equal to min bound, {least}")
    recurrence = p.get("Recurrence", before.recurrence if before else "")
    zone = p.get("TimeZone", before.zone if before else "Etc/UTC")
    end = _utc(p.get("EndTime")) or (before.end if before else None)
    given = _utc(p.get("StartTime") or p.get("Time"))
    start = given or (before.at if before and "Recurrence" not in p else None)
    if start and start <= now:
        raise AwsFault("ValidationError", "Given start time is in the past")
    if end and end <= (start or now):
        raise AwsFault("ValidationError", "EndTime must be after the start time and in the future")
    if start is None and not recurrence:
        raise AwsFault("ValidationError", "Either the start time or the recurrence must be specified")
    then = next_time(recurrence, zone, now) if recurrence else None
    at = start or then or now
    others = [a for a in group.schedule.values() if a.name != p["ScheduledActionName"]]
    if any(a.at == at for a in others):
        raise AwsFault("AlreadyExists", "A scheduled action with this start time exists already for the group")
    if len(others) >= MOST:
        raise AwsFault("LimitExceeded", f"Scheduled actions of a group are limited to {MOST}")
    return ScheduledAction(p["ScheduledActionName"], sizes, at, end, recurrence, zone)


def _utc(at: datetime.datetime | None) -> datetime.datetime | None:
    """Return a request's time, which is parsed without a zone, in UTC."""
    return at.replace(tzinfo=datetime.UTC) if at and at.tzinfo is None else at


def execute_due(world: FakeState, group: Group) -> None:
    """Execute the actions that are due by the world's clock.

    Actions that are due while the group suspends them are skipped.
    """
    now = world.now()
    for one in sorted((a for a in group.schedule.values() if a.at <= now), key=lambda a: a.at):
        del group.schedule[one.name]
        again = next_time(one.recurrence, one.zone, now) if one.recurrence else None
        if again and (one.end is None or again <= one.end):
            group.schedule[one.name] = replace(one, at=again)
        if "ScheduledActions" not in group.suspended and not group.removing:
            _apply(group, one)
        world.touch()


def _apply(group: Group, action: ScheduledAction) -> None:
    """Set the new sizes. A desired capacity that is not given is kept within them."""
    sizes = {**group.settings, **{SIZES[name]: value for name, value in action.sizes.items()}}
    if "DesiredCapacity" not in action.sizes:
        sizes["desired"] = min(max(sizes["desired"], sizes["min"]), sizes["max"])
    group.settings = sizes


def due_in_s(world: FakeState) -> float | None:
    """Return the seconds until the next action of any group is due, or None."""
    times = [a.at for g in world.groups.values() for a in g.schedule.values()]
    return max(0.0, (min(times) - world.now()).total_seconds()) if times else None


def next_time(recurrence: str, zone: str, after: datetime.datetime) -> datetime.datetime:
    """Return the first time after `after` that a cron expression of five fields matches in that time zone.

    Raises AwsFault for an invalid expression.
    """
    try:
        here = zoneinfo.ZoneInfo(zone)
        minutes, hours, days, months, weekdays = (
            _field(text, *limits) for text, limits in zip(recurrence.split(), _CRON, strict=True)
        )
    except (ValueError, KeyError, zoneinfo.ZoneInfoNotFoundError):
        raise AwsFault("ValidationError", f"Given recurrence string: {recurrence} is invalid") from None
    either = not recurrence.split()[2].startswith("*") and not recurrence.split()[4].startswith("*")
    first = after.astimezone(here)
    for ahead in range(_DAYS):
        day = first.date() + datetime.timedelta(days=ahead)
        by_day, by_weekday = day.day in days, day.isoweekday() % 7 in {w % 7 for w in weekdays}
        if day.month not in months or not (by_day or by_weekday if either else by_day and by_weekday):
            continue
        for hour in sorted(hours):
            for minute in sorted(minutes):
                at = datetime.datetime.combine(day, datetime.time(hour, minute), here)
                if at > after:
                    return at.astimezone(datetime.UTC)
    raise AwsFault("ValidationError", f"Given recurrence string: {recurrence} is invalid")


def _field(text: str, least: int, most: int) -> set[int]:
    """Return the values of one field of a cron expression. Raises ValueError."""
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = (f"{least}-{most}" if span == "*" else span).partition("-")
        low, high = int(first), int(last or (most if step else first))
        if not least <= low <= high <= most:
            raise ValueError(part)
        found |= set(range(low, high + 1, int(step or 1)))
    return found


def _described(group: Group, one: ScheduledAction) -> dict[str, Any]:
    return {
        "AutoScalingGroupName": group.name,
        "ScheduledActionName": one.name,
        "ScheduledActionARN": f"arn:aws:autoscaling:{group.region}:123456789012:scheduledUpdateGroupAction:fake:"
        f"autoScalingGroupName/{group.name}:scheduledActionName/{one.name}",
        "Time": one.at,
        "StartTime": one.at,
        **({"EndTime": one.end} if one.end else {}),
        **({"Recurrence": one.recurrence, "TimeZone": one.zone} if one.recurrence else {}),
        **one.sizes,
    }
