"""A clean slate: what crashed trainings left on all hosts, shown, ended, and proven gone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.errors import ClusterError
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.inventory import Cluster
from cluster.jobs.client import Jobs
from cluster.ssh.fanout import Reach
from cluster.ssh.limits import Limits
from cluster.ssh.program import ask, program

_LEFTOVERS = "cluster.kill.onhost.leftovers"
_ANSWER_S = 30
GOING = ("starting", "running", "stopping")


@dataclass(frozen=True)
class Remains:
    """What there is on each host that answered, and who did not."""

    found: Mapping[Host, Mapping[str, Any]]
    unanswered: Mapping[Host, str]  # why

    @property
    def num_to_end(self) -> int:
        """Processes that may be ended."""
        return sum(p["end"] for f in self.found.values() for p in f["processes"])

    @property
    def num_segments(self) -> int:
        """Shared-memory segments that nobody uses."""
        return sum(len(f["segments"]) for f in self.found.values())

    @property
    def num_left(self) -> int:
        """Processes that were to be ended and are still there."""
        return sum(len(f["left"]) for f in self.found.values())

    def record(self) -> list[dict[str, Any]]:
        """As JSON takes it, a record per host."""
        return [
            *({"host": h.address, "rank": h.rank, "error": None, **f} for h, f in self.found.items()),
            *({"host": h.address, "rank": h.rank, "error": why} for h, why in self.unanswered.items()),
        ]


def running_jobs(reach: Reach, cluster: Cluster) -> list[dict[str, Any]]:
    """The jobs that run now, as the master knows them. Raises ClusterError if it cannot be asked."""
    try:
        return [j for j in Jobs(reach, cluster).call("list") if j["state"] in GOING]
    except ClusterError as e:
        raise ClusterError(f"cannot tell which jobs are running, so nothing was touched: {e}") from e


def remains(
    reach: Reach,
    cluster: Cluster,
    hosts: Sequence[Host],
    jobs: Iterable[str],
    *,
    all_mine: bool = False,
    end: bool = False,
    grace_s: float = 5.0,
) -> Remains:
    """What trainings left on these hosts; with `end`, ended, and what is still there.

    jobs: ids whose processes are listed and not touched. all_mine: everything training-like of this user goes.
    """
    asked = {"end": end, "jobs": [] if all_mine else sorted(jobs), "all_mine": all_mine, "grace_s": grace_s}
    sent = program(_LEFTOVERS, asked, python=cluster.python)
    results, found = ask(reach, hosts, sent, limits=Limits(total_s=_ANSWER_S + grace_s))
    return Remains(found, {h: r.problem for h, r in results.items() if not r.ok})


def shown(remains: Remains) -> str:
    """What was found, a line per process, and per host what was not asked."""
    lines = []
    for host, found in remains.found.items():
        lines += [f"{host.address}  {_process(p)}" for p in found["processes"]]
        lines += [
            f"{host.address}  {s['path']}, {s['bytes']:,} bytes of shared memory nobody uses: to be removed"
            for s in found["segments"]
        ]
    lines += [f"{host.address}  not looked at: {why}" for host, why in remains.unanswered.items()]
    return "\n".join(lines) or f"nothing of a training on {_hosts(remains.found)}"


def proof(after: Remains) -> str:
    """What is left after all was ended: zero, or which and why."""
    lines = []
    for host, found in after.found.items():
        lines += [f"{host.address}  still there: {_process(p)}{_why(p)}" for p in found["left"]]
    clean = [h for h, f in after.found.items() if not f["left"]]
    removed = sum(len(f["removed"]) for f in after.found.values())
    if clean:
        segments = f", {removed} shared-memory segments removed" if removed else ""
        lines.append(f"{_hosts(clean)}: zero processes left{segments}")
    return "\n".join([*lines, *(f"{h.address}  unknown: {why}" for h, why in after.unanswered.items())])


def _process(p: Mapping[str, Any]) -> str:
    what = f"job {p['job']}" if p["job"] else "training"
    fate = (
        "to be ended"
        if p["end"]
        else "runs, not touched"
        if p["runs"]
        else "another user's, not touched"
        if not p["mine"]
        else "of no job of ours, not touched: --all-mine ends it"
    )
    marks = "".join(
        [
            ", orphan" if p["orphan"] else "",
            f", {p['gpu_mb']} MB of GPU" if p["gpu_mb"] is not None else "",
            ", defunct" if p["state"] == "Z" else "",
        ]
    )
    return f"{p['pid']:>7} {p['user']} {p['state']} {what}{marks}: {fate}   {p['command'][:80]}"


def _why(p: Mapping[str, Any]) -> str:
    if p["state"] == "D":
        return "  (in the kernel, state D: it ends when its disk or network answers; reboot the host if it does not)"
    return "  (a zombie: its parent does not take its end)" if p["state"] == "Z" else ""


def _hosts(hosts: Iterable[Host]) -> str:
    names = [h.address for h in hosts]
    return f"{fold(names)} ({len(names)})"
