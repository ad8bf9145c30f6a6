"""History of quick checks, each a file on the cluster's shared folder, for changes and hosts that were unfit before."""

import datetime
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.errors import ConfigError
from cluster.health.check import Answer
from cluster.health.verdict import Problem
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits

Problems = Mapping[Host, Sequence[Problem]]
_AGE = re.compile(r"(\d+)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, kw_only=True)
class QuickCheckRecord:
    """Record of one earlier quick check."""

    time: str  # UTC, ISO 8601
    rung: str
    hosts: Mapping[str, Mapping[str, Any]]  # address -> {"boot", "uptime", "problems": [{"check", "what", "unfit"}]}

    @property
    def unfit(self) -> frozenset[str]:
        """Return the addresses of the hosts that were unfit."""
        return frozenset(a for a, h in self.hosts.items() if any(p["unfit"] for p in h["problems"]))

    def until_s(self, address: str, boot: str) -> float | None:
        """Return the seconds from the host's boot to this check, None if it has been booted since."""
        host = self.hosts.get(address)
        return float(host["uptime"]) if host and boot and host["boot"] == boot else None


def read(answer: Answer | None) -> tuple[QuickCheckRecord, ...]:
    """Return the checks that the master found, oldest first. Empty if the master gave no answer."""
    if answer is None or answer.status != "ok":
        return ()
    looks = (read_look(fields) for fields in json.loads(answer.out))
    return tuple(look for look in looks if look is not None)


def read_look(fields: Any) -> QuickCheckRecord | None:
    """Return a check from its file's JSON, None if the JSON is not valid. Unknown fields are ignored."""
    try:
        look = QuickCheckRecord(time=str(fields["time"]), rung=str(fields["rung"]), hosts=dict(fields["hosts"]))
        datetime.datetime.fromisoformat(look.time)
        for host in look.hosts.values():
            float(host["uptime"]), str(host["boot"])
            [(p["check"], p["what"], p["unfit"]) for p in host["problems"]]
        return look
    except (ValueError, TypeError, KeyError):
        return None


def write(
    reach: Executor,
    cluster: Cluster,
    rung: str,
    problems: Problems,
    boots: Mapping[Host, tuple[str, float]],
) -> str | None:
    """Write a check to the shared folder. Return None, or the reason if it failed.

    Args:
        boots: each host's boot id, and the seconds since that boot.
    """
    now = datetime.datetime.now(datetime.UTC)
    look = QuickCheckRecord(
        time=now.isoformat(timespec="seconds"),
        rung=rung,
        hosts={
            h.address: {
                "boot": boots.get(h, ("", 0.0))[0],
                "uptime": boots.get(h, ("", 0.0))[1],
                "problems": [{"check": p.check, "what": p.what, "unfit": p.unfit} for p in found],
            }
            for h, found in problems.items()
        },
    )
    result = reach.run(
        [cluster.master],
        write_command(cluster.shared, "health/looks", f"{now:%Y%m%dT%H%M%S.%fZ}-{rung}.json"),
        stdin=json.dumps(vars(look)).encode(),
        limits=Limits(connect_s=5, total_s=15),
    )[cluster.master]
    return None if result.ok else result.problem


def write_command(shared: str, folder: str, name: str) -> str:
    """Return the shell command that writes stdin to the file atomically. It never creates the shared folder.

    Other users may write there, so mktemp chooses a temporary name that no other user can have taken.
    """
    quoted, path = shlex.quote(folder), shlex.quote(f"{folder}/{name}")
    return (
        f"cd {shlex.quote(shared)} && mkdir -p {quoted} && new=$(mktemp {quoted}/.new.XXXXXXXXXX) && "
        f'{{ cat >"$new" && chmod 644 "$new" && mv -f "$new" {path} || {{ rm -f "$new"; false; }}; }}'
    )


def changes_since(
    looks: Sequence[QuickCheckRecord], problems: Problems, when: str
) -> tuple[QuickCheckRecord | None, list[str]]:
    """Return the check that `when` means (`last`, or an age like 2h), and the changes from it to these problems."""
    look = _look_at(looks, when)
    if look is None:
        return None, []
    now = {(h.address, p.check, p.unfit): p.what for h, found in problems.items() for p in found}
    then = {
        (a, p["check"], p["unfit"]): p["what"]
        for a, h in look.hosts.items()
        for p in h["problems"]
        if a in {h.address for h in problems}
    }
    return look, [*_changes("new ", now, then), *_changes("gone", then, now)]


def _changes(
    word: str, these: Mapping[tuple[str, str, bool], str], those: Mapping[tuple[str, str, bool], str]
) -> list[str]:
    groups: dict[tuple[str, str], list[str]] = {}
    for (address, check, unfit), what in these.items():
        if (address, check, unfit) not in those:
            groups.setdefault((check, what), []).append(address)
    return [f"{word}  {fold(addresses)}  {what}" for (_, what), addresses in groups.items()]


def _look_at(looks: Sequence[QuickCheckRecord], when: str) -> QuickCheckRecord | None:
    if when == "last":
        return looks[-1] if looks else None
    age = _AGE.fullmatch(when)
    if not age:
        raise ConfigError(f"--since {when!r}: expected 'last' or an age like 30m, 2h or 1d")
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=int(age[1]) * _SECONDS[age[2]])
    before = [look for look in looks if datetime.datetime.fromisoformat(look.time) <= then]
    return before[-1] if before else looks[0] if looks else None
