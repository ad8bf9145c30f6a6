"""Earlier looks at a cluster, a file each on its shared folder: what changed, and who was unfit before."""

import datetime
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cluster.errors import ConfigError
from cluster.health.check import Answer
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.inventory import Cluster
from cluster.ssh.fanout import Reach
from cluster.ssh.limits import Limits

if TYPE_CHECKING:
    from cluster.health.report import Report

_AGE = re.compile(r"(\d+)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, kw_only=True)
class Look:
    """One earlier look."""

    time: str  # UTC, ISO 8601
    rung: str
    hosts: Mapping[str, Mapping[str, Any]]  # address -> {"boot", "uptime", "problems": [{"check", "what", "unfit"}]}

    @property
    def unfit(self) -> frozenset[str]:
        """Addresses of the hosts that were unfit."""
        return frozenset(a for a, h in self.hosts.items() if any(p["unfit"] for p in h["problems"]))

    def until_s(self, address: str, boot: str) -> float | None:
        """How far into this very boot of the host the look was."""
        host = self.hosts.get(address)
        return float(host["uptime"]) if host and boot and host["boot"] == boot else None


def read(answer: Answer | None) -> tuple[Look, ...]:
    """The looks that the master found, oldest first; none if it could not say."""
    if answer is None or answer.status != "ok":
        return ()
    looks = (_read_look(fields) for fields in json.loads(answer.out))
    return tuple(look for look in looks if look is not None)


def _read_look(fields: Any) -> Look | None:
    """A look as its file has it, None if it is none; what a newer version has added to it is passed over."""
    try:
        look = Look(time=str(fields["time"]), rung=str(fields["rung"]), hosts=dict(fields["hosts"]))
        datetime.datetime.fromisoformat(look.time)
        for host in look.hosts.values():
            float(host["uptime"]), str(host["boot"])
            [(p["check"], p["what"], p["unfit"]) for p in host["problems"]]
        return look
    except (ValueError, TypeError, KeyError):
        return None


def kept(reach: Reach, cluster: Cluster, report: "Report", boots: Mapping[Host, tuple[str, float]]) -> "Report":
    """The report, written to the history; with a note if that was not possible."""
    now = datetime.datetime.now(datetime.UTC)
    look = Look(
        time=now.isoformat(timespec="seconds"),
        rung=report.rung,
        hosts={
            h.address: {
                "boot": boots.get(h, ("", 0.0))[0],
                "uptime": boots.get(h, ("", 0.0))[1],
                "problems": [{"check": p.check, "what": p.what, "unfit": p.unfit} for p in problems],
            }
            for h, problems in report.problems.items()
        },
    )
    name = f"{now:%Y%m%dT%H%M%S.%fZ}-{report.rung}.json"
    write = write_command(cluster.shared, "health/looks", name)
    result = reach.run(
        [cluster.master], write, stdin=json.dumps(vars(look)).encode(), limits=Limits(connect_s=5, total_s=15)
    )[cluster.master]
    return (
        report
        if result.ok
        else replace(
            report,
            notes=(
                *report.notes,
                "this look is not in the history: the master "
                f"could not write {cluster.shared}/health ({result.problem})",
            ),
        )
    )


def write_command(shared: str, folder: str, name: str) -> str:
    """Shell text that makes stdin the file, whole or not at all. The shared folder itself is never made."""
    new, path = shlex.quote(f"{folder}/.{name}"), shlex.quote(f"{folder}/{name}")
    return f"cd {shlex.quote(shared)} && mkdir -p {shlex.quote(folder)} && cat > {new} && mv {new} {path}"


def since(report: "Report", when: str) -> tuple[Look | None, list[str]]:
    """The look that `when` means (`last`, or an age like 2h) and what has changed from it to this report."""
    look = _look_at(report.before, when)
    if look is None:
        return None, []
    now = {(h.address, p.check, p.unfit): p.what for h, problems in report.problems.items() for p in problems}
    then = {
        (a, p["check"], p["unfit"]): p["what"]
        for a, h in look.hosts.items()
        for p in h["problems"]
        if a in {h.address for h in report.problems}
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


def _look_at(looks: Sequence[Look], when: str) -> Look | None:
    if when == "last":
        return looks[-1] if looks else None
    age = _AGE.fullmatch(when)
    if not age:
        raise ConfigError(f"--since {when!r}: expected 'last' or an age like 30m, 2h or 1d")
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=int(age[1]) * _SECONDS[age[2]])
    before = [look for look in looks if datetime.datetime.fromisoformat(look.time) <= then]
    return before[-1] if before else looks[0] if looks else None
