"""Tasks that copy files to every host: from the master, from S3, from this checkout; or from hosts to here."""

from typing import Any

from invoke import Context, Exit

from cluster.hosts import Host
from cluster.inventory import load_cluster
from cluster.terminal import agreed, print_json
from dlami.tasks.command import HOSTS_HELP, command


@command(
    name="copy",
    positional=["src", "dst"],
    iterable=["exclude"],
    help={
        "src": "a file or folder on the master, or on this machine if it is not the master",
        "dst": "its absolute path on every host; with a slash at the end, the folder it goes into",
        "hosts": HOSTS_HELP,
        "exclude": "a name or path with wildcards, may be repeated",
        "everything": "a code folder's .git and caches too",
        "encrypt": "TLS between the hosts",
        "delete": "remove what the source does not have, after asking",
        "yes": "do not ask",
        "dry_run": "only say what each host would get",
        "json": "one JSON record per host",
    },
)
def copy_files(
    c: Context,
    src: str,
    dst: str,
    hosts: str = "",
    exclude: Any = None,
    everything: bool = False,
    encrypt: bool = False,
    delete: bool = False,
    yes: bool = False,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Copy a file or folder from the master to every host, each passing it on while it receives."""
    from cluster.broadcast import task as copying

    raise Exit(
        code=copying.run_copy(
            load_cluster(),
            copying.CopyRequest(
                src=src,
                dst=dst,
                hosts=hosts or None,
                excludes=tuple(exclude or ()),
                everything=everything,
                encrypt=encrypt,
                delete=delete,
                dry_run=dry_run,
                as_json=json,
            ),
            lambda what: yes or agreed(what),
        )
    )


@command(
    name="fetch",
    positional=["src", "dst"],
    help={
        "src": "its path on the host, absolute or ~/...",
        "dst": "what it is called here; with a slash at the end, or --hosts, the folder it goes into",
        "hosts": f"from these, each into DST/ADDRESS, instead of from the master; {HOSTS_HELP}",
        "dry_run": "only say how much each host would bring",
        "json": "one JSON record per host",
    },
)
def fetch(c: Context, src: str, dst: str, hosts: str = "", dry_run: bool = False, json: bool = False) -> None:
    """Bring a file or folder from the master here, or from each host: inv fetch /shared/jobs/JOB/checkpoints ./run1."""
    from cluster import hostset
    from cluster.broadcast import fetch as fetching
    from cluster.last_run import last_failed, remember
    from cluster.ssh.progress import StatusLine

    cluster, line = load_cluster(), StatusLine()
    chosen: tuple[Host, ...] = (cluster.master,)
    if hosts:
        chosen = hostset.select(cluster.hosts, hosts, failed=last_failed(cluster), for_ranks=True)
    try:
        shown = fetching.progress_shown(line) if line.is_shown and not json else None
        done = fetching.fetch(cluster, src, dst, chosen, folder_each=bool(hosts), dry_run=dry_run, on_progress=shown)
    finally:
        line.clear()
    if json:
        for one in done:
            print_json(one.record(), one_line=True)
    else:
        print(fetching.lines(done, dry_run=dry_run))
    remember(cluster, "", [one.host for one in done if one.error])
    raise Exit(code=1 if any(one.error for one in done) else 0)


@command(
    name="stage",
    positional=["source", "target"],
    iterable=["env"],
    help={
        "source": "s3://BUCKET/PREFIX, a folder, or with * at its end the beginning of names; "
        "with --upload a folder on the hosts",
        "target": "a folder on the hosts, or S3",
        "hosts": HOSTS_HELP,
        "untar": "each tar becomes a folder of its name",
        "upload": "the other way",
        "endpoint": "URL of an S3 that is not AWS's; AWS_ENDPOINT_URL of this environment without it",
        "env": "NAME=VALUE for boto3 on the hosts, or NAME for its value here; may be repeated",
        "dry_run": "only say what each host would move",
        "json": "one JSON record per host",
    },
)
def stage(
    c: Context,
    source: str,
    target: str,
    hosts: str = "",
    untar: bool = False,
    upload: bool = False,
    endpoint: str = "",
    env: Any = None,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Bring data from S3 to every host, each by itself; on a shared folder every host a part."""
    import os

    from cluster import hostset
    from cluster.stage import stage as staging

    cluster = load_cluster()
    endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    request = staging.request_of(
        source,
        target,
        upload=upload,
        untar=untar,
        endpoint=endpoint or None,
        environment=staging.environment_of(env or ()),
        plan=dry_run,
    )
    chosen = hostset.select(cluster.hosts, hosts or None, for_ranks=True)
    raise Exit(code=staging.run_stage(cluster, chosen, request, as_json=json))


@command(
    help={
        "hosts": HOSTS_HELP,
        "force": "also under jobs that go on, whose supervisors run the code that is there",
        "dry_run": "only say what would be changed on each host",
        "json": "one JSON record per host",
    },
)
def sync(c: Context, hosts: str = "", force: bool = False, dry_run: bool = False, json: bool = False) -> None:
    """Bring this project to the nodes as it is here: what git tracks, with local changes."""
    import sys

    from cluster.setup import project

    cluster = load_cluster()
    done = project.sync(cluster, hosts or None, dry_run=dry_run, force=force)
    if json:
        for one in done:
            print_json(one.record(), one_line=True)
    else:
        print(project.lines(done))
        if (rest := project.what_next(cluster, done)) and not dry_run:
            print(rest, file=sys.stderr)
    raise Exit(code=1 if any(one.error for one in done) else 0)
