"""Tasks of jobs: list, show, follow, stop, resume and remove them."""

import dataclasses
import sys
from dataclasses import dataclass
from typing import Any

from invoke import Context, Exit

from cluster.errors import ConfigError
from cluster.inventory import load_cluster
from cluster.jobs.terms import duration_s, number_of_ranks
from cluster.terminal import agreed, counted, print_json
from dlami.tasks.command import REQUIRED, command, option
from dlami.tasks.start_options import StartOptions
from dlami.tasks.starting import looked_at, opened_jobs, start

_DAMAGED = 10  # records that are named: one user may have made thousands
_JOB_HELP = {"job": "its id, a part of it, or last: the one that you submitted or resumed last"}
_JOB_OR_LAST = {"job": f"{_JOB_HELP['job']}; --job may be left out"}


@command(name="list", help={"all": "ended ones too", "json": "as JSON"})
def jobs_list(c: Context, all: bool = False, json: bool = False) -> None:
    """Show the jobs: id, state, when it began, duration, step, speed, time left, score, cost so far, owner, hosts."""
    from cluster.jobs.client import job_table
    from cluster.recovery.host_failures import how_left_out

    with opened_jobs() as jobs:
        listing = jobs.list(going=not all)
        found = jobs.priced([j for j in listing.jobs if all or j.state.holds_hosts])
    if json:
        print_json([j.to_json() for j in found])
    else:
        print(job_table.table(found, all, job_table.columns_of_output()))
    more = (
        [f"... and {counted(n, 'more record')} that cannot be read"]
        if (n := len(listing.damaged) - _DAMAGED) > 0
        else []
    )
    for sentence in (*listing.damaged[:_DAMAGED], *more, *how_left_out(listing.left_out)):
        print(sentence, file=sys.stderr)


@command(name="show", help={**_JOB_OR_LAST, "json": "as JSON"})
def jobs_show(c: Context, job: str = "last", json: bool = False) -> None:
    """Show one job: what was asked for, how it goes or how it ended."""
    from cluster.jobs.client import show

    with opened_jobs() as jobs:
        (found,) = jobs.priced([jobs.show(job)])
    if json:
        print_json(found.to_json())
    else:
        print(show.one(found))


@command(
    name="logs",
    help={
        **_JOB_OR_LAST,
        "follow": "go on until it ends, over its attempts",
        "rank": "one rank's own output",
        "since": "what was said in the last 90s, 10m, 2h or 1d, by earlier attempts too",
        "grep": "lines in which this regular expression is found",
        "errors": "lines that tell of errors, with their tracebacks",
        "attempt": "of this attempt; by default the newest",
        "lines": "the last so many lines of its console, among which --rank, --grep and --errors choose",
        "raw": "to a terminal, too, byte for byte: control characters of the output can steer it",
    },
)
def jobs_logs(
    c: Context,
    job: str = "last",
    follow: bool = False,
    rank: int = -1,
    since: str = "",
    grep: str = "",
    errors: bool = False,
    raw: bool = False,
    attempt: int = 0,
    lines: int = -1,
) -> None:
    """Print a job's output; Ctrl-C ends the printing, not the job."""
    from cluster.jobs.log_filter import LineFilter
    from cluster.terminal import pass_on, pass_on_raw

    choice, since_s = LineFilter(grep=grep, errors=errors), duration_s(since, "--since")
    choice.check()
    with opened_jobs() as jobs:
        code = jobs.logs(
            job,
            follow=follow,
            rank=rank if rank >= 0 else None,
            since_s=since_s,
            attempt=attempt or None,
            last=lines if lines >= 0 else None,
            choice=choice,
            on_output=pass_on_raw if raw else pass_on,
        )
        raise Exit(code=code)


@command(
    name="watch",
    help={
        **_JOB_OR_LAST,
        "once": "draw once",
        "watch": "seconds from one picture to the next",
    },
)
def jobs_watch(c: Context, job: str = "last", once: bool = False, watch: float = 5.0) -> None:
    """Draw a job's curves in the terminal until it ends; Ctrl-C ends the drawing, not the job."""
    from cluster.jobs.client import live_curves

    with opened_jobs() as jobs:
        raise Exit(code=live_curves.watch(jobs, job, once=once, every_s=watch))


@command(
    name="stop",
    help={
        **_JOB_HELP,
        "yes": "as root, though it is another user's",
        "dry_run": "say which job it would be, end nothing",
        "json": "as JSON",
    },
    positional=["job"],
)
def jobs_stop(c: Context, job: str, yes: bool = False, dry_run: bool = False, json: bool = False) -> None:
    """End a job on every host: ranks save and leave, the rest is ended, and hosts are searched for what is left."""
    from cluster.jobs.client import show

    with opened_jobs() as jobs:
        if dry_run:
            found = jobs.show(job)
            print(show.one(found)) if not json else print_json(found.to_json())
            return
        if yes:  # else at once: it is stopped even where its record does not answer
            jobs, found = jobs.to_change(job, "stop", yes=yes)
            job = found.id
        stopped = jobs.stop(job)
    if json:
        print_json(stopped.to_json())
    else:
        print(show.how_it_was_left(stopped))
    raise Exit(code=1 if stopped.status.left else 0)


@dataclass(frozen=True, kw_only=True)
class ResumeOptions(StartOptions):
    """The options of `inv jobs.resume`."""

    job: str = option(REQUIRED, _JOB_HELP["job"])
    yes: bool = option(False, "do not ask, though it has succeeded; as root, though it is another user's")
    python: str = option("", "of a PyTorch training: another interpreter, on every host; by default as before")
    heal: bool = option(False, "it goes on by itself from now on, though it was started with --no-heal")
    from_scratch: bool = option(False, "no checkpoint can be read: this attempt begins at step 0 and keeps them aside")

    @property
    def terms(self) -> dict[str, Any]:
        """Return the terms that were typed, as fields of the job's specification. Raises ConfigError."""
        if self.heal and self.no_heal:
            raise ConfigError("--heal and --no-heal say the opposite of each other: leave one out")
        return {**super().terms, **({"heal": True} if self.heal else {})}


@command(name="resume", positional=["job"])
def jobs_resume(c: Context, given: ResumeOptions) -> None:
    """Start a job's next attempt from its newest checkpoint, on today's hosts; what is not typed is as before."""
    from cluster.jobs.client.resume import from_scratch, next_attempt, with_python
    from cluster.jobs.state import JobState

    ranks, typed = number_of_ranks(given.np), {**given.terms, "unchecked": given.unchecked}
    cluster = load_cluster()
    with opened_jobs(cluster) as jobs:
        # First of all: a plan runs words of the record.
        jobs, before = jobs.to_change(given.job, "resume", yes=given.yes)
        spec = next_attempt(before, cluster, given.hosts or None, ranks, typed)
        spec = with_python(spec, given.python) if given.python else spec
        spec = from_scratch(spec, before.status.attempt + 1) if given.from_scratch else spec
        if (
            before.state is JobState.SUCCEEDED
            and not (given.yes or given.dry_run)
            and not agreed(f"{before.id} has succeeded; go on with it all the same")
        ):
            return
        spec = looked_at(cluster, spec, given, may_shrink=not ranks)
        start(cluster, jobs, spec, before, given)


@command(
    name="remove",
    help={
        "job": "its id or a part of it",
        "yes": "really remove its logs and checkpoints",
        "dry_run": "say what would be removed, remove nothing",
    },
    positional=["job"],
)
def jobs_remove(c: Context, job: str, yes: bool = False, dry_run: bool = False) -> None:
    """Remove a job's folder: record, logs, checkpoints, and the copies of these on its hosts' disks."""
    with opened_jobs() as jobs:
        listing = jobs.list(going=True)
        if job not in listing.damaged_ids:  # one that cannot be read can be removed, by its whole id
            jobs, found = jobs.to_change(job, "remove", yes=yes or dry_run)
            whose = "" if found.is_own else f"{found.owner}'s "
            job, what = found.id, f"{whose}{found.folder} with its checkpoints, and their copies on its hosts"
        else:
            what = f"{job}, whose record is damaged, with its checkpoints"
        if dry_run:
            print(f"this would remove {what}")
            return
        if not yes:
            raise ConfigError(f"this removes {what}: add --yes if you mean it")
        removed, left = jobs.remove(job)
    print(f"removed {removed}")
    for line in left:
        print(f"copies of its checkpoints may be left on {line}; the next training there removes them", file=sys.stderr)


@command(name="heal", help={"dry_run": "say which would go on, start nothing", "json": "as JSON"})
def jobs_heal(c: Context, dry_run: bool = False, json: bool = False) -> None:
    """Go on with your jobs that were lost while the master was away, as it does itself at each boot."""
    with opened_jobs() as jobs:
        found = jobs.heal(dry_run=dry_run)
    if json:
        print_json([dataclasses.asdict(one) for one in found])
    for one in found if not json else ():
        goes_on = "would go on" if dry_run else "goes on: inv jobs.logs -f " + one.id
        print(f"{one.id} {goes_on if one.goes_on else 'stays lost: ' + one.why}")
    if not found and not json:
        print("no job of yours is lost")
    raise Exit(code=0 if all(one.goes_on for one in found) else 1)


@command(name="test", help={"dry_run": "say who would be told, tell nobody"})
def notify_test(c: Context, dry_run: bool = False) -> None:
    """Tell a test message to whom the cluster file names as notify, from the master, as jobs would."""
    from cluster import notify

    cluster = load_cluster()
    notify.require(cluster)
    if dry_run:
        print(f"this would tell, from the master: {notify.shown(cluster.notify)}")
        return
    print(f"taken by {notify.try_on_master(cluster)}")
