"""Preemption notices of hosts, judged: which hosts leave an attempt now, and which notices are only reported.

Pure functions: no clock, no access to hosts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEAVING = ("spot", "block", "shutdown")  # kinds of notices after which the host goes; others are only reported
LEAD_S = 180.0  # so long before a host goes, its ranks save and leave
_AGAIN_S = 3600.0  # a time that has changed by more than this is another notice


@dataclass(frozen=True, kw_only=True, order=True)
class PreemptionNotice:
    """Preemption or maintenance notice of one host."""

    at: float  # seconds since 1970
    host: str
    kind: str
    text: str

    @property
    def is_leaving(self) -> bool:
        """Return True if the host goes at that time. Other notices are only reported."""
        return self.kind in LEAVING

    def is_due(self, now: float) -> bool:
        """Return True if the host's ranks should save and leave now."""
        return self.is_leaving and now >= self.at - LEAD_S

    @property
    def key(self) -> tuple[str, str, int]:
        """Return a key that is equal for the same notice of a host: its kind, and its time to the hour."""
        return self.host, self.kind, int(self.at / _AGAIN_S)


def departures(notices: Mapping[str, Any]) -> tuple[PreemptionNotice, ...]:
    """Return the notices, the first host to go first. Anything that is not a notice is skipped.

    notices: the hosts' answers by the address at which they were queried.
    """
    found = []
    for host, said in notices.items():
        if not isinstance(said, Mapping):
            continue
        kind, at, text = said.get("kind"), said.get("at"), said.get("text", "")
        if isinstance(kind, str) and isinstance(at, int | float) and abs(at) < 1e12:
            found.append(PreemptionNotice(at=float(at), host=host, kind=kind, text=" ".join(str(text).split())[:200]))
    return tuple(sorted(found))


def due(notices: Mapping[str, Any], now: float) -> tuple[PreemptionNotice, ...]:
    """Return the notices of the hosts that leave now."""
    return tuple(d for d in departures(notices) if d.is_due(now))


def is_the_end(leaving: Sequence[PreemptionNotice], hosts: Sequence[str]) -> bool:
    """Return True if no host stays, so that the job cannot continue."""
    return bool(leaving) and set(hosts) <= {d.host for d in leaving}


def why(leaving: Sequence[PreemptionNotice], hosts: Sequence[str], saved: str) -> str:
    """Return in a line why an attempt ended: its hosts will go.

    saved: what was saved, for the end of the line.
    """
    if is_the_end(leaving, hosts):
        return f"all hosts will go: {leaving[0].text}; {saved}"
    others = f" (and {len(leaving) - 1} more)" if len(leaving) > 1 else ""
    return f"host {leaving[0].host}{others} will go: {leaving[0].text}; {saved}"
