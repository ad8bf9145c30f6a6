"""Query of the job that holds this host, for a caller that may choose another host. It changes nothing."""

from __future__ import annotations

from cluster.jobs.onhost.claim import taken_by
from cluster.ssh.onhost.frame import say


def main(job: str, name: str) -> None:
    """Print who holds this host, if that is another job with a valid claim."""
    say({"taken_by": taken_by(name, besides=job)})
