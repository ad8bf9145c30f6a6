"""Query of the jobs that hold this host or slots of it, for a caller that may choose another. It changes nothing."""

from __future__ import annotations

from cluster.jobs.onhost.claim import held
from cluster.ssh.onhost.frame import say


def main(job: str, name: str) -> None:
    """Print each valid claim of another job."""
    say({"held": held(name, besides=job)})
