"""Collection of the stacks of a job's ranks on all of its hosts, and of trouble with the shared folder there."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from cluster.hang_detection.stacks import RankStack, folded, stack_of
from cluster.hang_detection.standstill import RankLook, RanksObservation
from cluster.inventory import Cluster
from cluster.jobs.record import Job, JobPaths
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.program import ask, program

_ALL_S = 45.0  # for all stacks


@dataclass(frozen=True, kw_only=True)
class StackAnswers:
    """Answers of a job's hosts to one request for stacks."""

    stacks: tuple[RankStack, ...]
    folder_trouble: dict[str, str]  # address -> what is wrong there with the shared folder
    unanswered: str  # a line for each host that did not answer
    look: RanksObservation  # the same ranks with what they have done until now

    def __str__(self) -> str:
        return f"{folded(sorted(self.stacks, key=lambda s: s.rank))}\n{self.unanswered}"


def take_stacks(job: Job, paths: JobPaths, *, is_bare: bool = False, is_native: bool = False) -> StackAnswers:
    """Take the stacks of all ranks of a job.

    Args:
        is_bare: the program sends no heartbeats. Each worker of torchrun is one rank then.
        is_native: include frames of C and C++. Costs a second of a processor for each rank.
    """
    cluster = Cluster(name=job.id, hosts=job.hosts, folder=Path(), shared="", project="")
    beside = [str(Path(sys.executable).parent)]
    asked = program(
        "cluster.hang_detection.onhost.stacks", job.id, job.attempt, str(paths.folder), beside, is_bare, is_native
    )
    with Executor(cluster) as reach:
        results, answers = ask(reach, job.hosts, asked, limits=Limits(connect_s=5, total_s=_ALL_S))
    told = [(int(rank), h.address, t) for h, a in answers.items() for rank, t in a["stacks"].items()]
    stacks = {rank: stack_of(rank, address, t) for rank, address, t in told}
    return StackAnswers(
        stacks=tuple(stacks.values()),
        folder_trouble={h.address: a["folder"] for h, a in answers.items() if a["folder"]},
        unanswered="".join(f"{h.address}: {r.problem}\n" for h, r in results.items() if not r.ok),
        look=RanksObservation(
            at=time.monotonic(),
            ranks={
                rank: RankLook(stack=stacks[rank], cpu_s=t["cpu_s"], io_bytes=t["io_bytes"], switches=t["switches"])
                for rank, _, t in told
            },
            network_bytes={h.address: a["network_bytes"] for h, a in answers.items()},
        ),
    )
