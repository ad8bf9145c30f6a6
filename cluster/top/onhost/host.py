"""Reporter of this host's state, which answers queries until they stop.

Each line on stdin is a query, a JSON list: its number, and whether the jobs on the shared folder are wanted, too.
Counters are sent as they stand; the receiver computes rates from two answers.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

from cluster.hang_detection.onhost.ranks import all_beats
from cluster.ssh.onhost.frame import say
from cluster.top.onhost.counters import counters
from cluster.top.onhost.gpus import Gpus
from cluster.top.onhost.jobs import ActiveJobs
from cluster.top.onhost.ping import Ping

_LONELY_S = 60  # without a query; then the client is gone, even if the connection does not show it


def main(shared: str, others: list[str]) -> None:
    """Answer queries until stdin ends.

    others: addresses of a few other hosts.
    """
    gpus, jobs, ping = Gpus(), ActiveJobs(shared), Ping(others)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    try:
        while True:
            signal.alarm(_LONELY_S)
            line = sys.stdin.buffer.readline()
            if not line:
                break
            number, wants_jobs = json.loads(line)
            answer: dict[str, Any] = {"question": number, "now": time.monotonic(), **counters()}
            answer["gpus"] = gpus.newest()
            answer["ranks"] = _ranks()
            answer["ping_s"] = ping.shortest()
            answer["jobs"] = jobs.newest() if wants_jobs else None
            say(answer)
    except OSError:  # the client is gone
        pass
    gpus.close()
    os._exit(0)  # exit even if a thread hangs on a file server


def _ranks() -> list[dict[str, Any]]:
    """Return the ranks with heartbeats here whose process is alive."""
    now = time.monotonic()
    return [
        {
            "job": job,
            "attempt": attempt,
            "rank": rank,
            "step": beat["step"],
            "phase": beat["phase"],
            "silent_s": max(0.0, now - beat["at"]),
        }
        for (job, attempt, rank), beat in sorted(all_beats().items())
        if os.path.exists(f"/proc/{beat['pid']}")
    ]
