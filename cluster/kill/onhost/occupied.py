"""Report on jobs that are active on this host: the holder of its claim, and the processes of jobs that are not over."""

from __future__ import annotations

from typing import Any

from cluster.jobs.onhost.claim import taken_by
from cluster.kill.onhost.leftovers import Request, look
from cluster.ssh.onhost.frame import say


def main(asked: dict[str, Any], name: str) -> None:
    """Send the report.

    asked: fields of `Request`. name: of the socket by which jobs take this host.
    """
    found = [p for p in look(Request(**asked)) if p["job"] and p["fate"] != "end"]
    say({"taken_by": taken_by(name), "processes": [{"job": p["job"], "user": p["user"]} for p in found]})
