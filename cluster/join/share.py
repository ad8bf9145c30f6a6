"""Shared folder of a joined cluster: an existing one, one that the leader serves, or none."""

from collections.abc import Sequence

from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.program import HostProgram, ask, program
from cluster.stage.stage import is_shared
from cluster.terminal import counted

SERVED = "/srv/dlami-cluster"  # default folder that the leader serves
_NFS = "cluster.join.onhost.nfs"
_LIMITS = Limits(total_s=420)  # a package may have to be installed


def check_shared(reach: Executor, hosts: Sequence[Host], folder: str) -> None:
    """Raise ConfigError if the folder is not one and the same on all hosts."""
    if len(hosts) > 1 and not is_shared(reach, hosts, folder):
        raise ConfigError(
            f"{folder} is not one folder that all {counted(len(hosts), 'host')} write: mount it on each of "
            "them, have the leader "
            "serve one with --nfs, or leave --shared out and do without"
        )


def make_folders(reach: Executor, leader: Host, folder: str, owner: str) -> str:
    """Make the folders that all users write to, as root on the leader; return what is wrong with them.

    owner: the cluster's user, whose folders of an earlier time root takes over.
    """
    results, answers = ask(reach, [leader], program(_NFS, "folders", folder, owner), limits=_LIMITS, sudo=True)
    if leader not in answers:
        why = results[leader].problem
        return f"{folder}/jobs and its like are not root's ({why}): who makes them can replace what is in them"
    return str(answers[leader]["failed"] or answers[leader]["done"])


def serve(reach: Executor, name: str, hosts: Sequence[Host], addresses: Sequence[str], folder: str, owner: str) -> None:
    """Mount the leader's folder on all others, over NFS. Raises ClusterError that names each host that failed.

    Nothing is changed on the leader before each of the others has confirmed that it can mount the folder.

    hosts: as they are reached from here, the leader first; addresses: by which they reach each other.
    """
    leader, others = hosts[0], hosts[1:]
    if not others:
        raise ConfigError("--nfs: there is no host besides the leader that would mount it")
    _do(reach, others, program(_NFS, "look", folder, addresses[0]))
    _do(reach, [leader], program(_NFS, "serve", name, folder, owner, list(addresses[1:])))
    _do(reach, others, program(_NFS, "mount", folder, addresses[0]))
    if not is_shared(reach, hosts, folder):
        raise ClusterError(
            f"{folder} is mounted, and what one host writes there another does not see: see 'mount', and whether "
            f"{owner} may write in it"
        )


def _do(reach: Executor, hosts: Sequence[Host], sent: HostProgram) -> None:
    results, answers = ask(reach, hosts, sent, limits=_LIMITS, sudo=True)
    why: dict[str, list[str]] = {}
    for host, result in results.items():
        failed = str(answers[host]["failed"]) if host in answers else result.problem
        if failed:
            why.setdefault(failed, []).append(host.address)
    if why:
        raise ClusterError("\n".join(f"{fold(addresses)}: {reason}" for reason, addresses in why.items()))
