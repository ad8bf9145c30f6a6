"""Jobs of an operator's own program."""

from pathlib import Path
from typing import Any

from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.jobs.program import seats
from cluster.jobs.record import Job
from tests.cluster.flat_jobs import changed, job_of

HOSTS = tuple(Host(rank=r, address=f"10.0.1.{10 + r}", slots=8) for r in range(2))


CLUSTER = Cluster(name="c", hosts=HOSTS, folder=Path("/c"), shared="/efs", project="/opt/dlami-cluster")


def a_program(per: str, **changes: Any) -> Job:
    """A job of one, not planned yet."""
    job = job_of(
        id="x", name="x", command=("python", "t.py"), np=2, hosts=seats(HOSTS, per), program=True, per=per,
        python="/opt/dlami-cluster/.venv/bin/python", slots={h.address: 8 for h in HOSTS}, workdir="/home/me/x",
    )  # fmt: skip
    return changed(job, **changes)
