"""What hosts say of their own end, judged: which leave an attempt now, and what is only told. No clock, no hosts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEAVING = ("spot", "block", "shutdown")  # kinds of notices after which the host goes; others are only told
LEAD_S = 180.0  # before a host goes, its ranks are asked to save and leave
_AGAIN_S = 3600.0  # a time that has changed by more than this is another notice


@dataclass(frozen=True, kw_only=True, order=True)
class Departure:
    """One host's notice."""

    at: float  # seconds since 1970
    host: str
    kind: str
    text: str

    @property
    def is_leaving(self) -> bool:
        """Whether the host goes then."""
        return self.kind in LEAVING

    def is_due(self, now: float) -> bool:
        """Whether its ranks had better save and leave now."""
        return self.is_leaving and now >= self.at - LEAD_S

    @property
    def key(self) -> tuple[str, str, int]:
        """What makes it another notice than an earlier one of the host."""
        return self.host, self.kind, int(self.at / _AGAIN_S)


def departures(notices: Mapping[str, Any]) -> tuple[Departure, ...]:
    """What hosts said, by address as it was heard, the first to go first; what is no notice is passed over."""
    found = []
    for host, said in notices.items():
        if not isinstance(said, Mapping):
            continue
        kind, at, text = said.get("kind"), said.get("at"), said.get("text", "")
        if isinstance(kind, str) and isinstance(at, int | float) and abs(at) < 1e12:
            found.append(Departure(at=float(at), host=host, kind=kind, text=" ".join(str(text).split())[:200]))
    return tuple(sorted(found))


def due(notices: Mapping[str, Any], now: float) -> tuple[Departure, ...]:
    """Those that leave now."""
    return tuple(d for d in departures(notices) if d.is_due(now))


def is_the_end(leaving: Sequence[Departure], hosts: Sequence[str]) -> bool:
    """Whether no host stays, so that there is nothing to go on with."""
    return bool(leaving) and set(hosts) <= {d.host for d in leaving}


def why(leaving: Sequence[Departure], hosts: Sequence[str], saved: str) -> str:
    """What ended an attempt for these, in a line that says what was saved, and what to do where there is something."""
    if is_the_end(leaving, hosts):
        return f"all hosts will go: {leaving[0].text}; {saved}"
    others = f" (and {len(leaving) - 1} more)" if len(leaving) > 1 else ""
    return f"host {leaving[0].host}{others} will go: {leaving[0].text}; {saved}"
