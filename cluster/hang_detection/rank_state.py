"""State of a rank as last reported: its heartbeat and its process."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MISSING = "?"  # in the place of a process's state


class RankPhase(enum.IntEnum):
    """Phase of a rank, numbered as in its heartbeat (`dlami/heartbeat.py`)."""

    START = 0
    COMPILE = 1
    STEP = 2
    EVALUATE = 3
    SAVE = 4

    @property
    def doing(self) -> str:
        """Return the phase as a participle, as in 'it is stepping'."""
        return ("starting", "compiling", "stepping", "evaluating", "saving")[self]


@dataclass(frozen=True, kw_only=True)
class RankSeen:
    """State of one rank at its host's last report, carried forward to now if nothing has arrived since."""

    rank: int
    host: str
    phase: RankPhase | None = None  # None: it sends no heartbeats
    step: int = 0  # done
    first: int = 0  # steps done after its first one in this attempt; 0 before it
    count: int = 0  # of its heartbeats
    beat_at: float = 0.0  # by its host's clock
    since: float = 0.0  # when its phase began, by its host's clock
    silent_s: float = 0.0  # since its last heartbeat
    longest: tuple[float, ...] = ()  # silence in each phase so far
    state: str = ""  # of its process, as /proc has it; "" if it has none any more
    cpu_s: float = 0.0
    heard_at: float = 0.0  # when its host reported it, by our own clock
    is_heard: bool = True  # its host reported lately
    is_mute: bool = False  # a process of an operator's program that has not beaten, while other ranks' do

    @property
    def is_stopped(self) -> bool:
        """Return True if its process was stopped, by SIGSTOP or a debugger."""
        return self.is_heard and self.state in ("T", "t")

    @property
    def is_stuck(self) -> bool:
        """Return True if the kernel holds its process, which waits for a disk or a file server."""
        return self.is_heard and self.state == "D"

    @property
    def is_missing(self) -> bool:
        """Return True if its host has not reported it yet."""
        return self.state == MISSING

    @property
    def has_ended(self) -> bool:
        """Return True if its process is gone."""
        return self.is_heard and not self.state


def rank_seen(host: str, told: Mapping[str, Any], now: float, heard_at: float) -> RankSeen:
    """Return the state of a rank from its host's report, sent at the host's time `now`, received at our `heard_at`."""
    beat = told["beat"]
    plain = {
        "rank": int(told["rank"]),
        "host": host,
        "state": told["state"],
        "cpu_s": float(told["cpu_s"]),
        "heard_at": heard_at,
    }
    if beat is None:
        return RankSeen(**plain)
    plain |= {"step": beat["step"], "first": beat["first"]}
    if beat["phase"] not in list(RankPhase):  # OVER: the process with heartbeats has ended, its program still runs
        return RankSeen(**plain)
    return RankSeen(
        **plain,
        phase=RankPhase(beat["phase"]),
        count=beat["count"],
        beat_at=beat["at"],
        since=beat["since"],
        silent_s=max(0.0, now - beat["at"]),
        longest=tuple(beat["longest"]),
    )
