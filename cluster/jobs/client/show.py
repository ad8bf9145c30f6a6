"""Text about a job for a person: the details of `jobs.show`, and values formatted for tables."""

import dataclasses
import shlex

from cluster.hostset import fold, numbers
from cluster.jobs.record import JobView, TrainingProgress
from cluster.jobs.state import JobState
from cluster.recovery.goodput import Account, TimeSplit
from cluster.terminal import Colour, counted

_WORDS = {
    "again_s": "work done again",
    "detecting_s": "detecting",
    "clearing_s": "clearing",
    "waiting_s": "waiting",
    "gate_s": "gate",
    "start_s": "start",
    "unknown_s": "not known (no step was reported)",
}


def colour_of(job: JobView) -> Colour | None:
    """Return red for a job that failed or is lost, yellow if it recovers or warns, green if it runs or succeeded."""
    if job.state.is_bad:
        return "red"
    if job.state is JobState.HEALING or job.status.warnings:
        return "yellow"
    return "green" if job.state in (JobState.RUNNING, JobState.SUCCEEDED) else None


def one(job: JobView) -> str:
    """Return a job's details, one per line."""
    asked, status = job.job, job.status
    until = f" to {status.ended}" if status.ended else ""
    rows = {
        "state": str(status.state) + (f": {status.cause}" if status.cause else ""),
        "attempt": f"{status.attempt}, {_since(job)}{until}",
        "owner": job.owner,
        "queue": str(job.queue or ""),
        "progress": progress_of(job),
        "cost": cost_in_words(job),
        "ranks": f"{asked.np} on {hosts_of(job) or 'any of ' + fold(h.address for h in asked.wanted)}",
        "command": shlex.join(asked.plan.command),
        "packages": asked.spec.packages.option if asked.spec.packages else "",
        "code": code_in_words(job),
        "launched by": launched_by(job),
        "versions": ", ".join(f"{k} {v}" for k, v in asked.plan.versions.items()),
        "log": status.log or f"{job.folder}/logs/attempt-{status.attempt}/console.log",
        "folder": job.folder,
        "results": str(job.results or ""),
        "left behind": "; ".join(status.left),
        "warning": "; ".join(status.warnings),
        "time": _time(job.account) if job.account else "",
    }
    return "\n".join([job.id, *(f"  {name:<11}  {value}" for name, value in rows.items() if value), *_attempts(job)])


def _since(job: JobView) -> str:
    return f"{'waits' if job.state is JobState.QUEUED else 'from'} {job.status.started or 'now on'}"


def _time(account: Account) -> str:
    """Return how the job's time was spent: the useful share first, then the other parts, the longest first."""
    if account.ettr is None:
        return ""
    least = "at least " if account.total.unknown_s else ""  # a program that reports no steps may have saved some
    useful = f"{least}{100 * account.ettr:.1f} % of {duration(account.total.wall_s)} useful"
    return "; ".join([useful, *_parts(account.total)])


def _parts(spent: TimeSplit) -> list[str]:
    """Return the parts of the time that were not useful, the longest first, without those under a second."""
    seconds = {_WORDS[name]: value for name, value in dataclasses.asdict(spent).items() if name in _WORDS}
    return [f"{word} {duration(s)}" for word, s in sorted(seconds.items(), key=lambda pair: -pair[1]) if s >= 1]


def _attempts(job: JobView) -> list[str]:
    """Return two lines per attempt, if there were several: its steps and how it ended, and how its time was spent."""
    if len(job.attempts) < 2 or job.account is None:
        return []
    lines = ["  attempts"]
    for attempt, spent in zip(job.attempts, job.account.attempts, strict=True):
        steps = f"steps {attempt.first_step} to {attempt.step}" if attempt.step is not None else "no step"
        ranks = f"{counted(attempt.np, 'rank')} on {fold(attempt.hosts)}"
        how = attempt.text or (str(attempt.what) if attempt.what else "goes on" if job.state.is_going else "not known")
        lines.append(f"  {attempt.number:>4}  {ranks}, {steps}: {how}")
        lines.append(f"        {'; '.join([f'useful {duration(spent.useful_s)}', *_parts(spent)])}")
    return lines


def how_it_was_left(job: JobView) -> str:
    """Return one line about a job that was stopped."""
    left = job.status.left
    return f"{job.id}: {job.state}" + (
        f"; left behind: {'; '.join(left)}" if left else "; no process of it is left on any host"
    )


def duration(seconds: float) -> str:
    """Format seconds for a person: 45s, 12m, 3h20m, 2d5h."""
    minutes, hours, days = (int(seconds // n) for n in (60, 3600, 86400))
    if days:
        return f"{days}d{hours % 24}h"
    if hours:
        return f"{hours}h{minutes % 60:02}m"
    return f"{minutes}m" if minutes else f"{int(seconds)}s"


def progress_of(job: JobView) -> str:
    """Return the job's step, speed, time left and score; "" if it has no metrics."""
    p = job.progress
    if p is None:
        return ""
    parts = [f"step {p.step}" + (f" of {job.job.plan.steps}" if job.job.plan.steps else "")]
    if p.epoch is not None:
        parts.append(f"epoch {epoch_of(p)}")
    if p.images_per_s is not None:
        parts.append(f"{p.images_per_s:.1f} images/s")
    if p.left_s is not None and trains(job):
        parts.append(f"{duration(p.left_s)} left")
    if p.score is not None:
        parts.append(score_of(p))
    return ", ".join(parts)


def cost_in_words(job: JobView) -> str:
    """Return what the job has cost so far; "" if that is unknown."""
    return "" if job.usd is None else f"{job.usd:,.2f} USD for the hours of its cluster's instances"


def code_in_words(job: JobView) -> str:
    """Return which code the ranks run: the trainers' revision, or what was delivered for a program."""
    asked = job.job
    if not asked.spec.brings_code:
        return asked.plan.revision
    if not asked.spec.code:
        return f"none taken along: that of {asked.spec.workdir} on its hosts"
    return str(job.own_code or f"delivered as {asked.spec.code[:12]}")


def launched_by(job: JobView) -> str:
    """Return the revision of the project that runs a program; "" for a trainer's job, whose code shows it."""
    return f"dlami-cluster {job.job.plan.revision}" if job.job.spec.brings_code else ""


def epoch_of(p: TrainingProgress) -> str:
    return f"{p.epoch:.1f}" if p.epoch is not None else ""


def score_of(p: TrainingProgress) -> str:
    """Format the score: a top-1 accuracy in percent, an average precision between 0 and 1."""
    if p.score is None:
        return ""
    return f"{p.score_name} {p.score:.1f}%" if p.score_name == "top1" else f"{p.score_name} {p.score:.3f}"


def trains(job: JobView) -> bool:
    """Return True if the job is active and not queued."""
    return job.state.is_going and job.state is not JobState.QUEUED


def hosts_of(job: JobView) -> str:
    """Return the hosts of the job's ranks, with its slots where it shares a host."""
    asked = job.job
    shared = [slots for h in asked.hosts if not asked.takes_whole(h) and (slots := asked.plan.claimed.get(h.address))]
    return fold(h.address for h in asked.hosts) + (f" slot {numbers(shared[0])}" if shared else "")
