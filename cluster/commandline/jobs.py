"""Tasks of jobs: what runs, how it goes, its end, its next attempt."""

import sys

from invoke import Context, Exit

from cluster.commandline.command import HOSTS_HELP, command
from cluster.commandline.starting import LOOK_HELP, number_of_ranks, on_fit_hosts, opened_jobs, start
from cluster.errors import ConfigError
from cluster.inventory import load_cluster
from cluster.terminal import agreed, print_json

_JOB_HELP = {"job": "its id, a part of it, or last: yours that was submitted last"}


@command(name="list", help={"all": "ended ones too", "json": "as JSON"})
def jobs_list(c: Context, all: bool = False, json: bool = False) -> None:
    """Show the jobs: id, state, age, step, speed, time left, hosts."""
    from cluster.jobs import show

    with opened_jobs() as jobs:
        listing = jobs.list()
    found = [j for j in listing.jobs if all or j.state.holds_hosts]
    if json:
        print_json([j.to_json() for j in found])
    else:
        print(show.table(found, all))
    for sentence in listing.damaged:
        print(sentence, file=sys.stderr)


@command(name="show", help={**_JOB_HELP, "json": "as JSON"}, positional=["job"])
def jobs_show(c: Context, job: str, json: bool = False) -> None:
    """Show one job: what was asked for, how it goes or how it ended."""
    from cluster.jobs import show

    with opened_jobs() as jobs:
        found = jobs.show(job)
    if json:
        print_json(found.to_json())
    else:
        print(show.one(found))


@command(
    name="logs",
    help={**_JOB_HELP, "follow": "go on until it ends", "rank": "one rank's own output"},
    positional=["job"],
)
def jobs_logs(c: Context, job: str, follow: bool = False, rank: int = -1) -> None:
    """Print a job's output; Ctrl-C ends the printing, not the job."""
    with opened_jobs() as jobs:
        raise Exit(code=jobs.logs(job, follow=follow, rank=rank if rank >= 0 else None))


@command(
    name="stop",
    help={**_JOB_HELP, "dry_run": "say which job it would be, end nothing", "json": "as JSON"},
    positional=["job"],
)
def jobs_stop(c: Context, job: str, dry_run: bool = False, json: bool = False) -> None:
    """End a job on every host: ranks save and leave, the rest is ended, and hosts are searched for what is left."""
    from cluster.jobs import show

    with opened_jobs() as jobs:
        if dry_run:
            found = jobs.show(job)
            print(show.one(found)) if not json else print_json(found.to_json())
            return
        stopped = jobs.stop(job)
    if json:
        print_json(stopped.to_json())
    else:
        print(show.how_it_was_left(stopped))
    raise Exit(code=1 if stopped.status.left else 0)


@command(
    name="resume",
    help={
        **_JOB_HELP,
        "hosts": HOSTS_HELP,
        "np": "ranks, as before by default",
        "dry_run": "print the mpirun command, start nothing",
        "detach": "start it and return",
        "yes": "do not ask, though it has succeeded",
        **LOOK_HELP,
    },
    positional=["job"],
)
def jobs_resume(
    c: Context,
    job: str,
    hosts: str = "",
    np: str = "",
    dry_run: bool = False,
    detach: bool = False,
    unchecked: bool = False,
    skip_unfit: bool = False,
    yes: bool = False,
) -> None:
    """Start a job's next attempt from its newest checkpoint, on today's hosts."""
    from cluster.jobs.client import next_attempt
    from cluster.jobs.state import JobState

    ranks = number_of_ranks(np)
    cluster = load_cluster()
    with opened_jobs(cluster) as jobs:
        before = jobs.show(job)
        training = next_attempt(before, cluster, hosts or None, ranks)
        done = before.state is JobState.SUCCEEDED
        if done and not (yes or dry_run) and not agreed(f"{before.id} has succeeded; go on with it all the same"):
            return
        if skip_unfit or not (unchecked or dry_run):
            training = on_fit_hosts(cluster, training, skip_unfit=skip_unfit, may_shrink=not ranks)
        start(cluster, jobs, training, before, dry_run=dry_run, detach=detach)


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
    """Remove a job's folder: record, logs, checkpoints."""
    with opened_jobs() as jobs:
        listing = jobs.list()
        if job not in listing.damaged_ids:  # one that cannot be read can be removed, by its whole id
            found = jobs.show(job)
            job, what = found.id, f"{found.folder} with its checkpoints"
        else:
            what = f"{job}, whose record is damaged, with its checkpoints"
        if dry_run:
            print(f"this would remove {what}")
            return
        if not yes:
            raise ConfigError(f"this removes {what}: add --yes if you mean it")
        print(f"removed {jobs.remove(job)}")
