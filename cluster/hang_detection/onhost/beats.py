"""Reporter of a job's ranks on this host: sends a report every few seconds, for a limited time.

It ends early once the reader is gone. Arguments: the job's id, its attempt, the seconds between two reports, and for
how many seconds to report.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from cluster.hang_detection.onhost.ranks import beats, main_processes, of_program, processes, stopped_daemon
from cluster.ssh.onhost.frame import say

_SILENT_S = 20.0  # of a rank, after which its host reports more often: it may soon be overdue
_SOON = 1 / 3  # of the usual pause

OVER = -1  # in place of a phase: the process with heartbeats has ended, its program still runs
NOTICE = "/run/dlami-notice.json"  # written by the host's own unit when it will go


def rank_states(job: str, attempt: str) -> dict[str, Any]:
    """Return the report: clock, ranks with their processes' states, a stopped mpirun daemon, a preemption notice."""
    found = processes(job, attempt)
    by_pid, mains, said = {p.pid: p for p in found}, main_processes(found), beats(job, attempt)
    ranks = []
    for rank in sorted({*mains, *said}):
        beat = said.get(rank)
        process = by_pid.get(beat["pid"]) if beat else mains.get(rank)
        if beat and process is None and of_program(mains.get(rank), found):
            beat, process = {**beat, "phase": OVER}, mains[rank]
        own = [p for p in found if p.rank == rank]
        ranks.append(
            {
                "rank": rank,
                "beat": beat,
                "state": process.state if process else "",
                "cpu_s": round(sum(p.cpu_s for p in own), 2),
            }
        )
    return {"now": time.monotonic(), "ranks": ranks, "stopped": stopped_daemon(found), "notice": _notice()}


def _notice() -> Any:
    try:
        with open(NOTICE, "rb") as file:
            return json.loads(file.read(4096))
    except (OSError, ValueError):
        return None


def main(job: str, attempt: int, every_s: float, for_s: float) -> None:
    """Send a report every `every_s` seconds, for `for_s` seconds or until the reader is gone."""
    until = time.monotonic() + for_s
    while True:
        seen = rank_states(job, str(attempt))
        try:
            say(seen)
        except OSError:  # the reader is gone
            os._exit(0)
        pause_s = pause(seen, every_s)
        if time.monotonic() + pause_s > until:
            return
        time.sleep(pause_s)


def pause(seen: dict[str, Any], every_s: float) -> float:
    """Return the seconds until the next report."""
    silences = (seen["now"] - r["beat"]["at"] for r in seen["ranks"] if r["beat"] and r["beat"].get("phase") != OVER)
    return every_s * _SOON if any(s > _SILENT_S for s in silences) else every_s
