"""Jobs as a person reads them."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.hostset import fold

UNFINISHED = frozenset({"starting", "running", "stopping", "lost"})


def table(jobs: Sequence[Mapping[str, Any]], everything: bool) -> str:
    """A line per job, oldest first."""
    if not jobs:
        return "no jobs" if everything else "no job is running; ended ones: inv jobs.list --all"
    width = max(len(j["id"]) for j in jobs)
    return "\n".join(
        [
            f"{'job':<{width}}  state      attempt  ranks  hosts",
            *(
                f"{j['id']:<{width}}  {j['state']:<9}  {j['attempt']:>7}  {j['np']:>5}  {_hosts(j)}"
                + (f"   {j['cause']}" if j["cause"] else "")
                for j in jobs
            ),
        ]
    )


def one(job: Mapping[str, Any]) -> str:
    """Everything worth knowing about a job."""
    until = f" to {job['ended']}" if job["ended"] else ""
    rows = {
        "state": job["state"] + (f": {job['cause']}" if job["cause"] else ""),
        "attempt": f"{job['attempt']}, from {job['started'] or 'now on'}{until}",
        "ranks": f"{job['np']} on {_hosts(job)}",
        "command": shlex.join(job["command"]),
        "code": job["revision"],
        "versions": ", ".join(f"{k} {v}" for k, v in job["versions"].items()),
        "log": job["log"] or f"{job['folder']}/logs/attempt-{job['attempt']}/console.log",
        "folder": job["folder"],
    }
    if job["left"]:
        rows["left behind"] = "; ".join(job["left"])
    return "\n".join([job["id"], *(f"  {name:<11}  {value}" for name, value in rows.items())])


def one_line(job: Mapping[str, Any]) -> str:
    """How a stopped job was left."""
    left = f"; left behind: {'; '.join(job['left'])}" if job["left"] else "; no process of it is left on any host"
    return f"{job['id']}: {job['state']}{left}"


def _hosts(job: Mapping[str, Any]) -> str:
    return fold(h["address"] for h in job["hosts"])
