"""Leftovers of crashed trainings on all hosts: finds them, ends them if the operator agrees, and checks again."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.errors import ClusterError
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.inventory import Cluster
from cluster.jobs.client.client import JobListing, JobsClient
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.program import ask, program

_LEFTOVERS = "cluster.kill.onhost.leftovers"
_ANSWER_S = 30.0
_END, _RUNS, _LOST, _NOT_KNOWN = "end", "its job runs", "its job is lost", "its job is not known"  # fates of a process


@dataclass(frozen=True, kw_only=True)
class TrainingProcess:
    """Process of a training on a host."""

    pid: int
    started: int  # clock ticks since boot; with the PID it identifies the process
    user: str
    state: str  # state as in ps: R, S, D, Z …
    command: str
    job: str  # "" if it belongs to no job
    gpu_mb: int | None
    orphan: bool
    fate: str  # "end", or why it is not to be ended
    page: str = ""  # the id of the TensorBoard or notebook that it serves

    @property
    def is_to_end(self) -> bool:
        """Return True if it may be ended: it is this user's, and of no active job."""
        return self.fate == _END

    @property
    def holds_host(self) -> bool:
        """Return True if it is of a job that is or may be active, or of one that this cluster does not know."""
        return bool(self.job) and self.fate in (_RUNS, _LOST, _NOT_KNOWN)


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Unused shared-memory segment."""

    path: str
    inode: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """Processes and segments of trainings on each host that answered, and the hosts that did not."""

    processes: Mapping[Host, tuple[TrainingProcess, ...]]
    segments: Mapping[Host, tuple[Segment, ...]]
    unanswered: Mapping[Host, str]  # why

    @property
    def num_to_end(self) -> int:
        """Return how many processes may be ended."""
        return sum(p.is_to_end for found in self.processes.values() for p in found)

    @property
    def num_segments(self) -> int:
        """Return the number of unused shared-memory segments."""
        return sum(len(found) for found in self.segments.values())

    def record(self) -> list[dict[str, Any]]:
        """Return one record per host as JSON data."""
        return [
            *(
                {
                    "host": h.address,
                    "rank": h.rank,
                    "error": None,
                    "processes": [{**vars(p), "end": p.is_to_end} for p in found],
                    "segments": [vars(s) for s in self.segments[h]],
                }
                for h, found in self.processes.items()
            ),
            *({"host": h.address, "rank": h.rank, "error": why} for h, why in self.unanswered.items()),
        ]


@dataclass(frozen=True, kw_only=True)
class KillResult:
    """Result of ending: per host that answered, the processes still there, each with its current fate."""

    left: Mapping[Host, tuple[TrainingProcess, ...]]
    removed: Mapping[Host, int]  # number of removed segments
    unanswered: Mapping[Host, str]  # why

    @property
    def num_left(self) -> int:
        """Return how many processes were to be ended and are still there."""
        return sum(len(found) for found in self.left.values())

    def record(self, shown: Leftovers) -> list[dict[str, Any]]:
        """Return one record per host as JSON data: what was shown, and what came of it."""
        came = {
            h.address: {"left": [vars(p) for p in found], "removed": self.removed[h]} for h, found in self.left.items()
        }
        why = {h.address: {"error": why} for h, why in self.unanswered.items()}
        return [{**one, **came.get(one["host"], {}), **why.get(one["host"], {})} for one in shown.record()]


@dataclass(frozen=True, kw_only=True)
class KnownJobs:
    """Jobs of this cluster, as its master knows them now."""

    going: tuple[str, ...]  # jobs with a supervisor, and those with a damaged record
    over: tuple[str, ...]  # jobs that have ended, or whose supervisor is certainly gone
    lost: tuple[str, ...] = ()  # jobs whose supervisor, on another machine, does not report

    @classmethod
    def of(cls, listing: JobListing) -> "KnownJobs":
        """Build it from the master's list."""
        jobs, lost = listing.jobs, listing.unsure_ids
        return cls(
            going=(*(j.id for j in jobs if j.state.is_going), *listing.damaged_ids),
            over=(*(j.id for j in jobs if not j.state.is_going and j.id not in lost), *listing.over_ids),
            lost=lost,
        )


def known_jobs(reach: Executor, cluster: Cluster) -> KnownJobs:
    """Query the master for the jobs of this cluster. Raises ClusterError if it does not answer."""
    try:
        listing = JobsClient(reach, cluster).list(going=True)
    except ClusterError as e:
        raise ClusterError(f"cannot tell which jobs are running, so nothing was touched: {e}") from e
    return KnownJobs.of(listing)


def find_leftovers(
    reach: Executor, cluster: Cluster, hosts: Sequence[Host], jobs: KnownJobs, *, all_mine: bool = False
) -> Leftovers:
    """Return what trainings left on these hosts.

    jobs: what the master knows; any other job's own record decides. all_mine: processes of this user that look like a
    training and belong to no job may be ended, too. Those of a live job or of another `inv` may never be.
    """
    asked = {**vars(jobs), "all_mine": all_mine}
    sent = program(_LEFTOVERS, asked, python=cluster.python)
    results, found = ask(reach, hosts, sent, lambda h: [h.address], limits=Limits(total_s=_ANSWER_S))
    return Leftovers(
        processes={h: _processes(f["processes"]) for h, f in found.items()},
        segments={h: tuple(Segment(**s) for s in f["segments"]) for h, f in found.items()},
        unanswered={h: r.problem for h, r in results.items() if not r.ok},
    )


def end_leftovers(
    reach: Executor,
    cluster: Cluster,
    shown: Leftovers,
    jobs: KnownJobs,
    *,
    all_mine: bool = False,
    grace_s: float = 5.0,
) -> KillResult:
    """End the processes that were shown and those that they start meanwhile, and nothing else.

    jobs: queried again after the operator agreed; a process whose job is active by now is left alone.
    """
    to_go = {
        h.address: {
            "end": [(p.pid, p.started) for p in found if p.is_to_end],
            "segments": [(s.path, s.inode) for s in shown.segments[h]],
        }
        for h, found in shown.processes.items()
    }
    asked = {**vars(jobs), "all_mine": all_mine, "grace_s": grace_s, "to_go": to_go}
    sent = program(_LEFTOVERS, asked, python=cluster.python)
    limits = Limits(total_s=_ANSWER_S + grace_s)
    results, said = ask(reach, list(shown.processes), sent, lambda h: [h.address], limits=limits)
    return KillResult(
        left={h: _processes(f["left"]) for h, f in said.items()},
        removed={h: len(f["removed"]) for h, f in said.items()},
        unanswered={**shown.unanswered, **{h: r.problem for h, r in results.items() if not r.ok}},
    )


def describe(found: Leftovers) -> str:
    """Format what was found, a line per process, and a line per host that did not answer."""
    lines = []
    for host, processes in found.processes.items():
        lines += [f"{host.address}  {_process(p)}" for p in processes]
        lines += [
            f"{host.address}  {s.path}, {s.bytes:,} bytes of shared memory nobody uses: to be removed"
            for s in found.segments[host]
        ]
    lines += [f"{host.address}  not looked at: {why}" for host, why in found.unanswered.items()]
    return "\n".join(lines) or f"nothing of a training on {_hosts(found.processes)}"


def describe_end(shown: Leftovers, ended: KillResult) -> str:
    """Format what is left after the end: zero, or which processes and why; and how many were not touched."""
    lines = []
    for host, left in ended.left.items():
        lines += [f"{host.address}  {_how_it_stays(p)}" for p in left]
    clean = [h for h, left in ended.left.items() if not left]
    removed = sum(ended.removed.values())
    untouched = sum(not p.is_to_end for h in clean for p in shown.processes[h])
    if clean:
        segments = f", {removed} shared-memory segments removed" if removed else ""
        rest = f"; {untouched} that were listed not touched" if untouched else ""
        what = "zero processes left" if not untouched else "zero left of those to be ended"
        lines.append(f"{_hosts(clean)}: {what}{segments}{rest}")
    return "\n".join([*lines, *(f"{h.address}  unknown: {why}" for h, why in ended.unanswered.items())])


_FATES = {
    _END: "to be ended",
    _RUNS: "runs, not touched",
    _LOST: "of a lost job whose supervisor, on another machine, may live, not touched: 'inv jobs.stop' ends it",
    _NOT_KNOWN: "of a job whose record is not found, not touched: --all-mine ends it",
    "another user's": "another user's, not touched",
    "another inv's": "of another inv, not touched",
    "no job's": "of no job of ours, not touched: --all-mine ends it",
}


def _processes(raw: Iterable[Mapping[str, Any]]) -> tuple[TrainingProcess, ...]:
    return tuple(TrainingProcess(**p) for p in raw)


def _process(p: TrainingProcess) -> str:
    what = f"job {p.job}" if p.job else p.page or "training"
    marks = "".join(
        [
            ", orphan" if p.orphan else "",
            f", {p.gpu_mb} MB of GPU" if p.gpu_mb is not None else "",
            ", defunct" if p.state == "Z" else "",
        ]
    )
    return f"{p.pid:>7} {p.user} {p.state} {what}{marks}: {_FATES[p.fate]}   {p.command[:80]}"


def _how_it_stays(p: TrainingProcess) -> str:
    if not p.is_to_end:
        why = p.fate if p.fate.startswith("its job") else f"it is {p.fate}"
        return f"not ended, {why} by now: {_process(p)}"
    return f"still there: {_process(p)}{_why_it_stays(p)}"


def _why_it_stays(p: TrainingProcess) -> str:
    if p.state == "D":
        return "  (in the kernel, state D: it ends when its disk or network answers; reboot the host if it does not)"
    return "  (a zombie: its parent does not take its end)" if p.state == "Z" else ""


def _hosts(hosts: Iterable[Host]) -> str:
    names = [h.address for h in hosts]
    return f"{fold(names)} ({len(names)})"
