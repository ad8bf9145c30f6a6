"""Delivery of this project to hosts that lack it, by the command that starts a training."""

import shlex
import sys
from collections.abc import Sequence

from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.inventory import Cluster
from cluster.setup import project
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.noise_filter import marked, output_between_marks, trouble

_LOOK, _MAKING = Limits(connect_s=5, total_s=30), Limits(total_s=120)
_CODE, _PYTHON, _BARE = "code", "python", "bare"
BARE = ".venv/.bare"  # in the project's folder: marks an environment without packages; the installer removes it
# Supervisors and ranks' wrappers need no package, so the operator's program runs with any Python that is new enough.
_MAKE = f"""cd {{project}} || exit 1
for python in python3.12 python3.11 python3 /opt/pytorch/bin/python; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
    "$python" -m venv --without-pip .venv && touch {BARE} && exit 0
done
echo "there is no Python 3.11 or newer" >&2; exit 1"""


def bring_project(cluster: Cluster, hosts: Sequence[Host], *, needs_packages: bool, dry_run: bool = False) -> None:
    """Bring the project, and an interpreter for it, to those of these hosts and the master that lack it.

    Raises ConfigError, also if something is missing and `dry_run` forbids to bring it. Unreachable hosts are ignored
    here: the health check finds them.

    Args:
        needs_packages: the training is a trainer of this project, whose packages take minutes to install.
    """
    asked = tuple(dict.fromkeys((cluster.master, *hosts)))
    with Executor(cluster) as reach:
        found = _what_is_there(reach, cluster, asked)
        if lacking := [h for h, has in found.items() if _CODE not in has]:
            _refuse(dry_run, lacking, "this project is not on")
            print(f"bringing this project to {_shown(lacking)}", file=sys.stderr)
            _sync(cluster, lacking)
        if without := [h for h, has in found.items() if _PYTHON not in has]:
            _refuse(dry_run, without, "the project's environment is not on")
            _make_environment(reach, cluster, without)
    bare = [h for h, has in found.items() if _BARE in has or h in without]
    if bare and needs_packages:
        raise ConfigError(
            f"the packages of this trainer are not on {_shown(bare)}: 'inv setup' installs them, which takes minutes; "
            "then start it again"
        )


def _what_is_there(reach: Executor, cluster: Cluster, hosts: Sequence[Host]) -> dict[Host, list[str]]:
    look = (
        f"cd {shlex.quote(cluster.project)} 2>/dev/null || exit 0; [ ! -f tasks.py ] || echo {_CODE}; "
        f"[ ! -x .venv/bin/python ] || echo {_PYTHON}; [ ! -e {BARE} ] || echo {_BARE}; :"
    )
    results = reach.run(hosts, marked(look), limits=_LOOK)
    return {h: (output_between_marks(r) or "").split() for h, r in results.items() if not trouble(r)}


def _sync(cluster: Cluster, hosts: Sequence[Host]) -> None:
    # Forced: no job runs where the project is missing, and its jobs cannot be listed.
    done = project.sync(cluster, ",".join(h.address for h in hosts), dry_run=False, force=True)
    if failed := [one for one in done if one.error]:
        raise ClusterError(f"this project could not be brought:\n{project.lines(failed)}")


def _make_environment(reach: Executor, cluster: Cluster, hosts: Sequence[Host]) -> None:
    script = marked(_MAKE.format(project=shlex.quote(cluster.project)))
    results = reach.run(hosts, script, limits=_MAKING)
    if why := {h: text for h, r in results.items() if (text := trouble(r))}:
        first = next(iter(why))
        raise ConfigError(
            f"no environment could be made on {_shown(list(why))}: {why[first]}; 'inv setup' installs one, in minutes"
        )


def _refuse(dry_run: bool, hosts: Sequence[Host], what: str) -> None:
    if dry_run:
        raise ConfigError(f"{what} {_shown(hosts)}, so nothing can be planned: a start without --dry-run brings it")


def _shown(hosts: Sequence[Host]) -> str:
    return fold(h.address for h in hosts)
