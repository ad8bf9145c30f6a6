"""Cost of jobs so far, for clusters that are stacks. Prices come from the master, or from AWS as queried here."""

import contextlib
import dataclasses
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError
from cluster.files import write_json
from cluster.jobs.record import JobView
from cluster.provider import Paid, provider, within
from cluster.typed import from_json
from cluster.user_folders import cache_folder

REMEMBERED_S = 600.0  # how long a list uses a cached bill: instances come and go, prices hardly change
_STACKS = 4  # most stacks that a list queries, those of own jobs first: each may take LIST_S
_STACK = re.compile(r"[a-z]{2}(-[a-z]+)+-\d/[A-Za-z][A-Za-z0-9-]{0,127}")  # region and name
LIST_S = 8.0  # limit on a list's query of AWS
PAGE_S = 30.0  # limit on a page's query


@dataclass(frozen=True)
class Bill:
    """Instances that a cluster pays for. Storage and network are not included."""

    instances: tuple[Paid, ...]

    def dollars(self, since: float, until: float) -> float | None:
        """Return the USD for all instances in a period, or None if a price is unknown. Times in seconds since 1970."""
        total = 0.0
        for one in self.instances:
            end = until if one.ends is None else min(one.ends, until)
            seconds = end - max(one.begins, since)
            if seconds > 0 and one.usd_per_hour is None:
                return None
            total += max(0.0, seconds) / 3600 * (one.usd_per_hour or 0.0)
        return total


def priced(jobs: Sequence[JobView], of_master: Callable[[str], Bill | None]) -> tuple[JobView, ...]:
    """Return the jobs with their cost so far, by the master's bill or, where that lacks prices, by a query from here.

    of_master: returns the master's bill for a stack.
    """
    bills: dict[str, list[Bill]] = {}
    stacks = {job.job.plan.stack for job in jobs if _can_have_cost(job)}
    for stack in sorted(stacks, key=lambda one: (one not in {job.job.plan.stack for job in jobs if job.is_own}, one))[
        :_STACKS
    ]:
        asked = of_master(stack)
        known = asked is not None and all(one.usd_per_hour is not None for one in asked.instances)
        bills[stack] = [b for b in (asked, None if known else remembered(stack)) if b is not None]
    return tuple(with_dollars(job, *bills.get(job.job.plan.stack, [])) for job in jobs)


def with_cost_anew(job: JobView) -> JobView:
    """Return the job with its current cost by AWS, if its cost is unknown and can be queried from here."""
    if job.usd is not None or not _can_have_cost(job):
        return job
    found = _kept(job.job.plan.stack, _asked(job.job.plan.stack, PAGE_S))
    return with_dollars(job, *([found] if found else []))


def with_dollars(job: JobView, *bills: Bill) -> JobView:
    """Return the job with its cost by the first bill that has one. Returns it unchanged if none has."""
    if job.began is None:
        return job
    told = (bill.dollars(job.began, job.began + job.age_s) for bill in bills)
    return dataclasses.replace(job, usd=next((usd for usd in told if usd is not None), job.usd))


def remembered(stack: str) -> Bill | None:
    """Return the bill for this stack's instances, at most ten minutes old, or None if AWS cannot be queried here.

    stack: its region and name, as in `Job.stack`.
    """
    file = _file(stack)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        said = json.loads(file.read_text())
        if 0 <= time.time() - float(said["at"]) < REMEMBERED_S:
            return from_json(Bill, said["bill"]) if said["bill"] else None
    return _kept(stack, _asked(stack, LIST_S))


def _can_have_cost(job: JobView) -> bool:
    """Return True if the job can have a cost: it has begun, and its stack's name is well-formed.

    Other users' records may contain anything, and the name is passed to AWS.
    """
    return bool(_STACK.fullmatch(job.job.plan.stack)) and job.began is not None


def _asked(stack: str, limit_s: float) -> Bill | None:
    """Return the bill by AWS, or None if it cannot be queried from here."""
    with contextlib.suppress(ClusterError):
        return Bill(within(limit_s, lambda: provider().paid(stack)))
    return None


def _kept(stack: str, bill: Bill | None) -> Bill | None:
    """Cache the bill for the next list and return it. A failed query, None, is cached as well."""
    with contextlib.suppress(OSError):
        _file(stack).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = {"at": time.time(), "bill": bill and dataclasses.asdict(bill)}
        write_json(_file(stack), kept, mode=0o600)
    return bill


def _file(stack: str) -> Path:
    return cache_folder() / "bills" / f"{stack.replace('/', '-')}.json"
