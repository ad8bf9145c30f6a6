"""Flat form of a job's record: printed by `--json`, and the form of `job.json` before it had `spec` and `plan`."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.hosts import Host
from cluster.jobs.job import Job
from cluster.jobs.program import UNKNOWN, Program
from cluster.typed import from_json

_LEFT_OUT = ("np", "hosts", "profile", "idle")  # the flat form has these as planned, idle hosts among the spares


def as_flat(job: Job) -> dict[str, Any]:
    """Return the job as one flat JSON object."""
    spec, plan = dataclasses.asdict(job.spec), dataclasses.asdict(job.plan)
    program = spec.pop("program")
    wanted = spec["hosts"] if spec.pop("queue") else ()
    return {
        "id": job.id,
        "created": job.created,
        "sequence": job.sequence,
        "ticket": job.ticket,
        **{name: value for name, value in spec.items() if name not in _LEFT_OUT},
        **plan,
        "asked_profile": spec["profile"],
        "wanted": wanted,
        "exclusive": job.spec.shares_no_host,
        "program": not program["trainer"],
        "per": program["per"],
    }


@dataclass(frozen=True, kw_only=True)
class _Flat:
    """Fields of a flat record that have another place, or another form, in a record of today."""

    command: tuple[str, ...]
    program: bool = False
    per: str = "gpu"
    python: str = ""
    np: int
    hosts: tuple[Host, ...]
    whole_hosts: tuple[Host, ...] = ()
    wanted: tuple[Host, ...] = ()
    whole_np: int = 0
    exclusive: bool = True  # missing in records of jobs that shared no host
    heal: bool = False  # missing in the oldest records, whose jobs were not retried


def from_flat(raw: Any) -> Any:
    """Return the record of an earlier version in today's form. A record in today's form is returned as it is.

    Raises ValueError that names the field.
    """
    if not isinstance(raw, Mapping) or "spec" in raw:
        return raw
    flat = from_json(_Flat, raw)
    spec = {
        **raw,
        "program": dataclasses.asdict(_program(flat)),
        "hosts": [dataclasses.asdict(h) for h in flat.wanted or flat.whole_hosts or flat.hosts],
        "np": flat.whole_np or flat.np,
        "profile": raw.get("asked_profile"),
        "queue": bool(flat.wanted),
        "heal": flat.heal,
        "exclusive": flat.exclusive,
    }
    return {**raw, "spec": spec, "plan": raw}


def _program(flat: _Flat) -> Program:
    """Return the program by its command line."""
    words = flat.command
    if flat.program:
        return Program(words=words, per=flat.per)
    try:
        module_at, folder_at = words.index("-m") + 1, words.index("--job-dir")
        own = words[0] if flat.python and words[0] != flat.python else ""
        return Program(trainer=words[module_at], words=words[folder_at + 2 :], python=own)
    except (ValueError, IndexError):
        return Program(trainer=UNKNOWN, words=words)
