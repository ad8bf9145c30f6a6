"""Whose this host is, for who would take it and may choose another one: nothing is taken or ended."""

from __future__ import annotations

from cluster.jobs.onhost.claim import taken_by
from cluster.ssh.onhost.frame import say


def main(job: str, name: str) -> None:
    """Say who has this host, if that is another job than this and one whose claim counts."""
    say({"taken_by": taken_by(name, besides=job)})
