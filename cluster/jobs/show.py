"""Jobs as a person reads them."""

import shlex
import time
from collections.abc import Sequence

from cluster.hostset import fold
from cluster.jobs.record import JobView

_QUIET_S = 120.0  # without a line of its metrics, after which a running training is said to be quiet


def table(jobs: Sequence[JobView], everything: bool, now: float | None = None) -> str:
    """A line per job, oldest first: how long it has gone on, how far it is, how fast, how long it will take."""
    if not jobs:
        return "no jobs" if everything else "no job is running; ended ones: inv jobs.list --all"
    rows = [_row(job, time.time() if now is None else now) for job in jobs]
    titles = ("job", "state", "attempt", "ranks", "age", "step", "images/s", "left", "hosts")
    widths = [max(len(row[i]) for row in (titles, *rows)) for i in range(len(titles) - 1)]
    right = (2, 3, 4, 5, 6, 7)

    def line(cells: Sequence[str]) -> str:
        padded = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=False))]
        return "  ".join([*padded, *cells[len(widths) :]]).rstrip()

    return "\n".join([line(titles), *(line(row) for row in rows)])


def one(job: JobView) -> str:
    """Everything worth knowing about a job."""
    asked, status = job.job, job.status
    until = f" to {status.ended}" if status.ended else ""
    rows = {
        "state": str(status.state) + (f": {status.cause}" if status.cause else ""),
        "attempt": f"{status.attempt}, from {status.started or 'now on'}{until}",
        "owner": job.owner,
        "progress": _progress(job),
        "ranks": f"{asked.np} on {_hosts(job)}",
        "command": shlex.join(asked.command),
        "code": asked.revision,
        "versions": ", ".join(f"{k} {v}" for k, v in asked.versions.items()),
        "log": status.log or f"{job.folder}/logs/attempt-{status.attempt}/console.log",
        "folder": job.folder,
        "left behind": "; ".join(status.left),
    }
    return "\n".join([job.id, *(f"  {name:<11}  {value}" for name, value in rows.items() if value)])


def how_it_was_left(job: JobView) -> str:
    """One line for a job that was stopped."""
    left = job.status.left
    return f"{job.id}: {job.state}" + (
        f"; left behind: {'; '.join(left)}" if left else "; no process of it is left on any host"
    )


def duration(seconds: float) -> str:
    """Seconds as a person says them: 45s, 12m, 3h20m, 2d5h."""
    minutes, hours, days = (int(seconds // n) for n in (60, 3600, 86400))
    if days:
        return f"{days}d{hours % 24}h"
    if hours:
        return f"{hours}h{minutes % 60:02}m"
    return f"{minutes}m" if minutes else f"{int(seconds)}s"


def _row(job: JobView, now: float) -> tuple[str, ...]:
    step, speed, left = "", "", ""
    if p := job.progress:
        step = f"{p.step}/{job.job.steps}" if job.job.steps else str(p.step)
        if job.state.is_going:
            speed = f"{p.images_per_s:.1f}" if p.images_per_s is not None else ""
            left = duration(p.left_s) if p.left_s is not None else ""
    quiet = now - p.time if p and job.state.is_going else 0.0
    notes = [
        _hosts(job),
        *([job.status.cause] if job.status.cause else []),
        *([f"no step for {duration(quiet)}"] if quiet > _QUIET_S else []),
    ]
    age = duration(job.age_s) if job.status.started else ""
    return (
        job.id, str(job.state), str(job.status.attempt), str(job.job.np), age, step, speed, left, "   ".join(notes)
    )  # fmt: skip


def _progress(job: JobView) -> str:
    p = job.progress
    if p is None:
        return ""
    parts = [f"step {p.step}" + (f" of {job.job.steps}" if job.job.steps else "")]
    if p.images_per_s is not None:
        parts.append(f"{p.images_per_s:.1f} images/s")
    if p.left_s is not None and job.state.is_going:
        parts.append(f"{duration(p.left_s)} left")
    return ", ".join(parts)


def _hosts(job: JobView) -> str:
    return fold(h.address for h in job.job.hosts)
