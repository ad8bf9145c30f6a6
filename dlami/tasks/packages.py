"""Tasks of programs' environments on the hosts: list them, remove old ones."""

from typing import TYPE_CHECKING

from invoke import Context

from cluster.errors import ClusterError, ConfigError
from cluster.inventory import load_cluster
from cluster.terminal import counted, print_json
from dlami.tasks.command import command

if TYPE_CHECKING:
    from cluster.packages.env_list import Stock


@command(name="list", help={"json": "as JSON"})
def packages_list(c: Context, json: bool = False) -> None:
    """Show the environments that train.run has built: what of, on which hosts, how large, last used, by which jobs."""
    import dataclasses

    from cluster.packages import show
    from cluster.packages.client import Packages
    from cluster.ssh.fanout import Executor

    cluster = load_cluster()
    with Executor(cluster) as reach:
        have = Packages(reach, cluster).stock()
    print_json(dataclasses.asdict(have)) if json else print(show.table(have))
    _say_silent(have)


@command(
    name="remove",
    help={
        "which": "an environment's id or its beginning; unused: all that no job has and nobody used for ten minutes",
        "days": "of the unused ones those that were not used for so many days",
        "yes": "really remove",
        "dry_run": "say what would be removed, remove nothing",
    },
    positional=["which"],
)
def packages_remove(c: Context, which: str, days: float = 0.0, yes: bool = False, dry_run: bool = False) -> None:
    """Remove environments from all hosts; a job that is resumed with one builds it again."""
    from cluster.packages import show
    from cluster.packages.client import Packages
    from cluster.packages.env_list import chosen
    from cluster.ssh.fanout import Executor

    if days < 0:
        raise ConfigError(f"--days is {days:g}, expected 0 or more")
    cluster = load_cluster()
    with Executor(cluster) as reach:
        packages = Packages(reach, cluster)
        have = packages.stock()
        _say_silent(have)
        doomed = chosen(have, which, days)
        if not doomed:
            print("nothing to remove")
            return
        print("\n".join(f"{'would remove' if dry_run else 'remove'} {show.line(e)}" for e in doomed))
        if dry_run:
            return
        if not yes:
            raise ConfigError(f"this removes {counted(len(doomed), 'environment')}: add --yes if you mean it")
        left = packages.remove([e.id for e in doomed])
    if left:
        raise ClusterError("\n".join(f"{address}: {why}" for address, why in left.items()))
    print(f"removed {counted(len(doomed), 'environment')}")


def _say_silent(have: "Stock") -> None:
    import sys

    for address, why in have.silent.items():
        print(f"{address}: {why}", file=sys.stderr)
