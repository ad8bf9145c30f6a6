"""`inv hosts.join`: inspects hosts, trusts their keys, gives them a cluster key, and makes the cluster's files."""

import contextlib
import dataclasses
import shlex
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import scratch
from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.inventory import Cluster, SshSettings
from cluster.join import keys
from cluster.join.discovery import Gathered, JoinRequest
from cluster.join.members import JoiningHost, hosts_of, seen
from cluster.join.onhost.member import FOLDER
from cluster.join.share import SERVED, check_shared, make_folders, serve
from cluster.ssh import connections
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.noise_filter import marked, output_between_marks, trouble
from cluster.ssh.options import way_to
from cluster.ssh.program import ask, program
from cluster.terminal import counted

JOBS = "dlami-cluster-jobs"  # in the leader's home, if no folder is shared
LOOK_S, CHANGE_S, WAYS_S = 40.0, 60.0, 60.0
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Joined:
    """Result of joining: the cluster, and what its hosts reported."""

    cluster: Cluster
    seen: Mapping[Host, JoiningHost]
    known_hosts: str  # text of the known_hosts file for this machine

    @property
    def without_project(self) -> tuple[str, ...]:
        """Return the addresses of the hosts that lack the project."""
        return tuple(h.address for h, told in self.seen.items() if not told.has_project)

    @property
    def without_runtime(self) -> tuple[str, ...]:
        """Return the addresses of the hosts that lack the project's environment."""
        return tuple(h.address for h, told in self.seen.items() if not told.has_runtime)

    def record(self) -> dict[str, Any]:
        """Return the cluster as JSON data."""
        cluster = self.cluster
        return {
            "name": cluster.name,
            "shared": cluster.shared,
            "is_shared": cluster.is_shared,
            "project": cluster.project,
            "gateway": cluster.access.gateway or "",
            "hosts": [{**vars(h), **vars(told)} for h, told in self.seen.items()],
        }

    def advice(self) -> list[str]:
        """Return the next steps, one line each."""
        cluster, lines = self.cluster, []
        if not cluster.is_shared:
            lines.append(
                f"no folder is shared: jobs, records and checkpoints are in {cluster.shared} on the leader alone"
            )
        if self.without_project:
            lines.append(f"the project is not yet on {fold(self.without_project)}: inv sync")
        if self.without_runtime:
            lines.append(f"its environment is not yet on {fold(self.without_runtime)}: inv setup")
        return [*lines, "next: inv health"]


def join(request: JoinRequest, gathered: Gathered, folder: Path, say: Say) -> Joined:
    """Make the hosts a cluster whose files belong in `folder`, and return it.

    Raises ClusterError that names each host that failed. A second call repeats the steps without harm on the others.
    """
    members = gathered.members
    with _reached(request, gathered) as (reach, hosts):
        told = _looked_at(reach, hosts, request)
        final = hosts_of(members, told)
        by_address = {told[m.address].address: m for m in members}
        ordered = [next(h for h in hosts if h.address == by_address[f.address].address) for f in final]
        master = told[members[0].address]
        port = request.access.port or 22
        known = keys.known_hosts({told[a].address: s.keys for a, s in gathered.shown.items()}, port)
        say(f"{counted(len(final), 'host')} can be logged in to as {master.user}; the cluster's key is handed to them")
        _hand_out(reach, ordered, request, final, master.user, known)
        _check_ways(reach, ordered[0], final)
        shared, is_shared = _share(reach, request, ordered, final, master, say)
    access = access_from_here(request, gathered, final, master, folder)
    gateway = access.gateway
    if gateway:
        known += keys.known_hosts({gateway: gathered.shown[gateway].keys}, port)
    cluster = Cluster(
        name=request.name,
        hosts=final,
        folder=folder,
        shared=shared,
        project=request.project.replace("~", master.home, 1) if request.project.startswith("~/") else request.project,
        access=access,
        is_shared=is_shared,
    )
    # The hosts may have a different key now
    connections.disconnect([way_to(h, access) for h in final if not h.is_local])
    return Joined(cluster=cluster, seen={h: told[by_address[h.address].address] for h in final}, known_hosts=known)


@contextlib.contextmanager
def _reached(request: JoinRequest, gathered: Gathered) -> Iterator[tuple[Executor, list[Host]]]:
    """Yield the members as reachable from here, with only their trusted keys known."""
    port = request.access.port or 22
    hosts = [Host(rank=n, address=m.address, slots=1) for n, m in enumerate(gathered.members)]
    with tempfile.NamedTemporaryFile("w", prefix="known-", dir=scratch.folder()) as known:
        known.write(keys.known_hosts({s.address: s.keys for s in gathered.shown.values()}, port))
        known.flush()
        access = dataclasses.replace(request.access, known_hosts=Path(known.name))
        cluster = Cluster(name=request.name, hosts=tuple(hosts), folder=Path(), shared="", project="", access=access)
        with Executor(cluster, label="join") as reach:
            yield reach, hosts


def _looked_at(reach: Executor, hosts: Sequence[Host], request: JoinRequest) -> dict[str, JoiningHost]:
    """Return each host's report on itself, by the address it was reached at. Raises FanOutError, ConfigError."""
    results, answers = ask(
        reach, hosts, program("cluster.join.onhost.look", request.project), limits=Limits(total_s=LOOK_S)
    )
    results.check()
    others = [h.address for h in hosts if not h.is_local]
    own = _own_address(others[0]) if others else "localhost"
    told = {h.address: seen(answers[h], own if h.is_local else h.address) for h in hosts}
    if len(users := {t.user for t in told.values()}) > 1:
        raise ConfigError(f"logged in as {', '.join(sorted(users))}: log in as one user everywhere, with --user")
    if request.nfs and (may_not := [a for a, t in told.items() if not t.may_be_root]):
        raise ConfigError(f"--nfs needs root without a password (sudo -n) on {', '.join(may_not)}")
    return told


def _hand_out(
    reach: Executor, hosts: Sequence[Host], request: JoinRequest, final: Sequence[Host], user: str, known: str
) -> None:
    """Install the leader's key, made there if it has none, and the SSH settings on every host.

    The key goes over stdin.
    """
    member = "cluster.join.onhost.member"
    results, made = ask(reach, hosts[:1], program(member, "key", request.name), limits=Limits(total_s=CHANGE_S))
    results.check()
    private, public = made[hosts[0]]
    sent = program(
        member,
        "join",
        request.name,
        private,
        public,
        known,
        ssh_config(request.name, final, user, request.access.port or 22),
    )
    ask(reach, hosts, sent, limits=Limits(total_s=CHANGE_S))[0].check()


def ssh_config(name: str, hosts: Sequence[Host], user: str, port: int) -> str:
    """Return the SSH settings by which each host reaches the others."""
    addresses = " ".join(h.address for h in hosts)
    return (
        f"# how the hosts of {name} reach each other, written by inv hosts.join\n"
        f"Host {addresses}\n    User {user}\n    Port {port}\n    IdentityFile ~/.ssh/{FOLDER}/{name}\n"
        f"    UserKnownHostsFile ~/.ssh/{FOLDER}/{name}.known_hosts ~/.ssh/known_hosts\n"
    )


def _check_ways(reach: Executor, leader: Host, final: Sequence[Host]) -> None:
    """Raise ClusterError that names the hosts which the leader cannot log in to with the new key, as mpirun will."""
    addresses = [h.address for h in final if not h.is_local]
    options = "-o BatchMode=yes -o ConnectTimeout=10 -o StrictHostKeyChecking=yes"
    one = f'why=$(ssh {options} "$a" true 2>&1 </dev/null) || printf "%s: %s\\n" "$a" "$(echo "$why" | tail -n 1)"'
    script = f"for a in {shlex.join(addresses)}; do ( {one} ) & done; wait"
    result = reach.run([leader], marked(script), limits=Limits(total_s=WAYS_S))[leader]
    if why := trouble(result):
        raise ClusterError(f"{leader}: its ways to the others could not be tried: {why}")
    if failed := (output_between_marks(result) or "").strip():
        raise ClusterError(
            f"the leader cannot log in to all others by their own addresses; mpirun starts ranks so:\n{failed}\n"
            "does the security group let the hosts reach each other?"
        )


def _share(
    reach: Executor, request: JoinRequest, hosts: Sequence[Host], final: Sequence[Host], master: JoiningHost, say: Say
) -> tuple[str, bool]:
    """Return the folder of jobs, and whether all hosts share it."""
    if request.nfs:
        folder = request.shared or SERVED
        say(f"the leader serves {folder} to the others over NFS")
        serve(reach, request.name, hosts, [h.address for h in final], folder, master.user)
        return folder, True
    if request.shared:
        check_shared(reach, hosts, request.shared)
        if master.may_be_root and (wrong := make_folders(reach, hosts[0], request.shared, master.user)):
            say(wrong)
        return request.shared, True
    folder = f"{master.home}/{JOBS}"
    reach.run(hosts[:1], f"mkdir -p {shlex.quote(folder)}", limits=Limits(total_s=CHANGE_S)).check()
    return folder, len(hosts) == 1


def access_from_here(
    request: JoinRequest, gathered: Gathered, final: Sequence[Host], master: JoiningHost, folder: Path
) -> SshSettings:
    """Return how tasks reach the hosts from this machine: on the leader with the cluster's key, elsewhere as before.

    If a host's own address is not the one it is reached at from here, the leader is the gateway to the others.
    """
    access = dataclasses.replace(request.access, user=master.user, known_hosts=folder / "known_hosts")
    leader = gathered.members[0]
    if leader.is_here:
        return dataclasses.replace(access, key=Path(f"{master.home}/.ssh/{FOLDER}/{request.name}"), gateway=None)
    own = {h.address for h in final}
    is_direct = all(m.address in own or _resolved(m.address) in own for m in gathered.members)
    return dataclasses.replace(access, gateway=None if is_direct else leader.address)


def _own_address(towards: str) -> str:
    """Return this machine's address as that host sees it. Raises ClusterError."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(towards, 22, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError as e:
        raise ClusterError(f"this machine has no way to {towards}: {e.strerror or e}") from e


def _resolved(address: str) -> str:
    with contextlib.suppress(OSError):
        return socket.gethostbyname(address)
    return address
