"""Tasks of jobs: what runs, how it goes, its end, its next attempt."""

from invoke import Context, Exit

from cluster.commandline.command import HOSTS_HELP, as_json, command
from cluster.commandline.starting import LOOK_HELP, opened_jobs, start
from cluster.errors import ConfigError
from cluster.inventory import load_cluster


@command(name="list", help={"all": "ended ones too", "json": "as JSON"})
def jobs_list(c: Context, all: bool = False, json: bool = False) -> None:
    """Show the jobs: id, state, ranks, hosts."""
    from cluster.jobs import show

    with opened_jobs() as jobs:
        found = [j for j in jobs.call("list") if all or j["state"] in show.UNFINISHED]
    if json:
        as_json(found)
    else:
        print(show.table(found, all))


@command(name="show", help={"job": "its id, a part of it, or last", "json": "as JSON"}, positional=["job"])
def jobs_show(c: Context, job: str, json: bool = False) -> None:
    """Show one job: what was asked for, how it goes or how it ended."""
    from cluster.jobs import show

    with opened_jobs() as jobs:
        found = jobs.call("show", job)
    if json:
        as_json(found)
    else:
        print(show.one(found))


@command(
    name="logs",
    help={"job": "its id, a part of it, or last", "follow": "go on until it ends", "rank": "one rank's own output"},
    positional=["job"],
)
def jobs_logs(c: Context, job: str, follow: bool = False, rank: int = -1) -> None:
    """Print a job's output; Ctrl-C ends the printing, not the job."""
    with opened_jobs() as jobs:
        raise Exit(code=jobs.logs(job, follow=follow, rank=rank if rank >= 0 else None))


@command(name="stop", help={"job": "its id, a part of it, or last"}, positional=["job"])
def jobs_stop(c: Context, job: str) -> None:
    """End a job on every host: ranks save and leave, the rest is ended, and hosts are searched for remains."""
    from cluster.jobs import show

    with opened_jobs() as jobs:
        stopped = jobs.call("stop", job, total_s=150)
    print(show.one_line(stopped))
    raise Exit(code=1 if stopped["left"] else 0)


@command(
    name="resume",
    help={
        "job": "its id, a part of it, or last",
        "hosts": HOSTS_HELP,
        "np": "ranks, as before by default",
        "dry_run": "print the mpirun command, start nothing",
        "detach": "start it and return",
        **LOOK_HELP,
    },
    positional=["job"],
)
def jobs_resume(
    c: Context,
    job: str,
    hosts: str = "",
    np: int = 0,
    dry_run: bool = False,
    detach: bool = False,
    unchecked: bool = False,
    skip_unfit: bool = False,
) -> None:
    """Start a job's next attempt from its newest checkpoint, on today's hosts."""
    from cluster.jobs import client

    cluster = load_cluster()
    with opened_jobs(cluster) as jobs:
        training, resumed = client.next_attempt(jobs, cluster, job, hosts or None, np or None)
        if skip_unfit or not (unchecked or dry_run):
            training = client.on_fit_hosts(cluster, training, skip_unfit=skip_unfit, may_shrink=not np)
        start(jobs, training, resumed, dry_run, detach)


@command(
    name="remove",
    help={"job": "its id or a part of it", "yes": "really remove its logs and checkpoints"},
    positional=["job"],
)
def jobs_remove(c: Context, job: str, yes: bool = False) -> None:
    """Remove a job's folder: record, logs, checkpoints."""
    with opened_jobs() as jobs:
        found = jobs.call("show", job)
        if not yes:
            raise ConfigError(f"this removes {found['folder']} with its checkpoints: add --yes if you mean it")
        print(f"removed {jobs.call('remove', found['id'])['removed']}")
