"""Hosts of a job: the ranks they held, what health checks found on them, and their failures on record."""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from cluster.health.history import QuickCheckRecord, read_look
from cluster.hosts import Host
from cluster.jobs.record import JobPaths, JobView
from cluster.recovery.host_failures import FORGIVEN, read_memory
from cluster.ssh.onhost import trusted_files

_LOOKS = 50  # newest health checks that are read; the last one of each host counts
_MOST_FINDINGS = 6


@dataclass(frozen=True, kw_only=True)
class JobHost:
    """Host of a job."""

    address: str
    ranks: tuple[str, ...] = ()  # "attempt 1: 0-7", in the order of the attempts, equal ones once
    looked: str = ""  # time of the last health check, UTC; "": never
    findings: tuple[str, ...] = ()  # its findings
    is_unfit: bool = False
    failures: tuple[str, ...] = ()  # its failures on record


def hosts_seen(paths: JobPaths, job: JobView) -> tuple[JobHost, ...]:
    """Return every host that an attempt has used; before the first attempt, the job's current hosts."""
    shared = paths.folder.parent.parent
    looks = _looks(shared / "health" / "looks")
    memory: dict[str, list[str]] = {}
    for entry in read_memory(shared).entries:
        if entry.what != FORGIVEN:
            memory.setdefault(entry.host, []).append(str(entry))
    held = _ranks(job)
    found = []
    for address, ranks in held.items():
        look = next((one for one in looks if address in one.hosts), None)
        problems = look.hosts[address]["problems"] if look else []
        found.append(
            JobHost(
                address=address,
                ranks=ranks,
                looked=look.time if look else "",
                findings=tuple(f"{p['check']}: {p['what']}" for p in problems[:_MOST_FINDINGS]),
                is_unfit=bool(look and address in look.unfit),
                failures=tuple(memory.get(address, ())[-3:]),
            )
        )
    return tuple(found)


def rank_hosts(job: JobView, attempt: int) -> dict[int, str]:
    """Return the host of each rank in an attempt: ranks fill the hosts' slots in order."""
    record = next((a for a in job.attempts if a.number == attempt), None)
    known = {h.address: h for h in (*job.job.plan.whole_hosts, *job.job.hosts, *job.job.plan.spares)}
    if record is None:
        hosts, np = job.job.hosts, job.job.np
    else:
        hosts = tuple(
            known.get(address, Host(rank=place, address=address, slots=_usual_slots(job)))
            for place, address in enumerate(record.hosts)
        )
        np = record.np
    found: dict[int, str] = {}
    left = np
    for host in hosts:  # in the record's order, in which a spare has its predecessor's place
        for _ in range(min(host.slots, left)):
            found[len(found)] = host.address
        left = np - len(found)
    return found


def _usual_slots(job: JobView) -> int:
    return max((h.slots for h in (*job.job.hosts, *job.job.plan.whole_hosts)), default=1)


def _ranks(job: JobView) -> dict[str, tuple[str, ...]]:
    """Return every host with the ranks it held."""
    found: dict[str, dict[str, list[int]]] = {}
    numbers = [a.number for a in job.attempts] or [job.status.attempt]
    for number in numbers:
        own: dict[str, list[int]] = {}
        for rank, address in rank_hosts(job, number).items():
            own.setdefault(address, []).append(rank)
        for address, ranks in own.items():
            held = f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else str(ranks[0])
            found.setdefault(address, {}).setdefault(held, []).append(number)
    only_one = len(numbers) == 1
    return {
        address: tuple(held if only_one else f"{held} (attempt {_listed(of)})" for held, of in each.items())
        for address, each in found.items()
    }


def _listed(numbers: list[int]) -> str:
    """Format numbers as ranges: 1, 2, 3 and 5 as `1-3, 5`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ", ".join("-".join(map(str, span)) for span in spans)


def _looks(folder: Path) -> list[QuickCheckRecord]:
    """Return the recorded health checks of trusted users, the newest first."""
    found: list[QuickCheckRecord] = []
    owners = trusted_files.trusted_users(__file__)
    with contextlib.suppress(OSError):
        for path in sorted(folder.glob("[!.]*.json"), reverse=True):
            with contextlib.suppress(OSError, ValueError, RecursionError):
                if len(found) < _LOOKS and path.lstat().st_uid in owners:
                    look = read_look(json.loads(trusted_files.read_file(path, owners=owners)))
                    found += [look] if look else []
    return found
