"""The stacks of a job's ranks, taken on all of its hosts, and where the shared folder is in trouble."""

import sys
from dataclasses import dataclass
from pathlib import Path

from cluster.inventory import Cluster
from cluster.jobs.record import Job, JobPaths
from cluster.ssh.fanout import Reach
from cluster.ssh.limits import Limits
from cluster.ssh.program import ask, program
from cluster.watching.stacks import Stack, folded, stack_of

_ALL_S = 45.0  # for all stacks


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What hosts told."""

    stacks: tuple[Stack, ...]
    folder_trouble: dict[str, str]  # address -> what is wrong there with the shared folder
    unanswered: str  # a line for each host that did not tell

    def __str__(self) -> str:
        return f"{folded(sorted(self.stacks, key=lambda s: s.rank))}\n{self.unanswered}"


def take_stacks(job: Job, paths: JobPaths) -> Taken:
    """All ranks' stacks."""
    cluster = Cluster(name=job.id, hosts=job.hosts, folder=Path(), shared="", project="")
    beside = [str(Path(sys.executable).parent)]
    asked = program("cluster.watching.onhost.stacks", job.id, job.attempt, str(paths.folder), beside)
    with Reach(cluster) as reach:
        results, answers = ask(reach, job.hosts, asked, limits=Limits(connect_s=5, total_s=_ALL_S))
    return Taken(
        stacks=tuple(stack_of(int(r), h.address, told) for h, a in answers.items() for r, told in a["stacks"].items()),
        folder_trouble={h.address: a["folder"] for h, a in answers.items() if a["folder"]},
        unanswered="".join(f"{h.address}: {r.problem}\n" for h, r in results.items() if not r.ok),
    )
