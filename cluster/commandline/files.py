"""Tasks that bring files to every host: from the master, from S3."""

from typing import Any

from invoke import Context, Exit

from cluster.commandline.command import HOSTS_HELP, agreed, command
from cluster.inventory import load_cluster


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
    from cluster.copying import task as copying

    raise Exit(
        code=copying.run(
            load_cluster(),
            copying.Asked(
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
    name="stage",
    positional=["source", "target"],
    help={
        "source": "s3://BUCKET/PREFIX; with --upload a folder on the hosts",
        "target": "a folder on the hosts, or S3",
        "hosts": HOSTS_HELP,
        "untar": "each tar becomes a folder of its name",
        "upload": "the other way",
        "endpoint": "URL of an S3 that is not AWS's",
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
    json: bool = False,
) -> None:
    """Bring data from S3 to every host, each by itself; on a shared folder every host a part."""
    from cluster import hostset
    from cluster.staging import stage as staging

    cluster = load_cluster()
    asked = staging.asked_for(source, target, upload=upload, untar=untar, endpoint=endpoint or None)
    raise Exit(code=staging.run(cluster, hostset.select(cluster.hosts, hosts or None), asked, as_json=json))
