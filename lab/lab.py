"""Operations on a lab: start, removal, and the simulated failures of its hosts."""

import contextlib
import fcntl
import functools
import json
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from cluster.errors import ClusterError, ConfigError, NothingToDo
from cluster.files import IS_CHECKOUT, write_atomically
from cluster.hosts import Host, hostfile
from cluster.locate import LABS, lab_names, no_lab
from cluster.project_files import assemble_with_environment
from cluster.recovery.onhost.notice import FILE as NOTICE
from cluster.ssh.fanout import wait_until
from cluster.ssh.onhost import shared_tree
from cluster.terminal import counted
from lab import machine, neighbours, network, nodes
from lab.record import SHARED, Lab, LabHost, check_name, load_lab

MAX_HOSTS = 512
_STARTS_S = 180.0  # for sshd of each host, on a busy machine
_GREETS_S = 5.0  # for sshd's greeting, on a running host
NOTICES = {
    "spot": "a spot instance is taken back",
    "block": "a capacity block's instances are ended",
    "shutdown": "the host is shut down for maintenance",
    "rebalance": "a spot instance may be taken back",
    "maintenance": "there is maintenance that the host outlives",
}


def up(name: str, num_hosts: int, slots: int, *, spares: int = 0, may_mount: bool = False) -> Lab:
    """Start a lab of this many hosts and spares, or return the existing one if it is the same.

    Raises ConfigError before anything is created: this machine allows no lab, a number is invalid, or the existing lab
    has another size. If the start fails or is interrupted, everything is removed again.
    """
    machine.require("a lab")
    check_name(name)
    if num_hosts < 1 or spares < 0 or num_hosts + spares > MAX_HOSTS or slots < 1:
        more = f" and {counted(spares, 'spare')}" if spares else ""
        raise ConfigError(f"a lab has 1 to {MAX_HOSTS} hosts of at least 1 slot, not {num_hosts} of {slots}{more}")
    with locked():
        lab = load_lab(name)
        if lab is None or not is_whole(lab):
            _tear_down(name)
            return _build(name, num_hosts, slots, spares, may_mount)
    there = sum(h.is_spare for h in lab.hosts)
    if (len(lab.hosts) - there, there, lab.hosts[0].slots) != (num_hosts, spares, slots):
        more = f" and {counted(there, 'spare')}" if there else ""
        raise ConfigError(
            f"lab {name} is up with {counted(len(lab.hosts) - there, 'host')} of "
            f"{counted(lab.hosts[0].slots, 'slot')}{more}: take that, or 'inv lab.down --name {name}' first"
        )
    heal(lab, [h for h in lab.hosts if h.name not in nodes.running(name)])
    return lab


def down(name: str) -> None:
    """Remove every process, cable, bridge and folder of the lab, whatever its state. Raises NothingToDo."""
    with locked():
        require_something_left(name)
        _tear_down(name)


def require_something_left(name: str) -> None:
    """Raise NothingToDo if nothing of a lab with this name exists, ConfigError if this machine allows no lab."""
    machine.require("a lab")
    check_name(name)
    if not is_anything_left(name):
        raise NothingToDo(no_lab(name))


def is_anything_left(name: str) -> bool:
    """Return True if any process, network device or folder of the lab exists."""
    devices = any(n == f"lab-{name}" or n.startswith(f"lab{name}.") for n in network.links())
    return devices or name in lab_names() or bool(nodes.running(name))


def is_whole(lab: Lab) -> bool:
    """Return True if the lab was built completely. The hostfile is the last thing written."""
    return (lab.folder / "hosts").exists()


def named(name: str) -> Lab:
    """Return the lab on record. Raises ConfigError without one."""
    lab = load_lab(name)
    if lab is None:
        raise ConfigError(no_lab(name))
    return lab


def crash(lab: Lab, host: LabHost) -> None:
    """Cut the host's power: kill its first process, and with it all others. Its files stay."""
    pid = _pid(lab, host)
    network.unplug(lab.name, [lab.cable(host)])
    nodes.end(lab.name, [pid])


def cut(lab: Lab, host: LabHost) -> None:
    """Silence the host's network. Its processes continue."""
    _pid(lab, host)
    network.cut(lab.cable(host))


def slow(lab: Lab, host: LabHost, *, mbit: float | None, delay_ms: float | None) -> None:
    """Slow down the host's network in both directions."""
    network.slow(lab.cable(host), _pid(lab, host), mbit=mbit, delay_ms=delay_ms)


def notice(lab: Lab, host: LabHost, kind: str, in_s: float) -> None:
    """Give the host a preemption notice, like one from EC2's metadata service. The kind "none" removes it.

    Raises ConfigError for an unknown kind.
    """
    if kind not in (*NOTICES, "none"):
        raise ConfigError(f"--kind {kind} is not known: give one of {', '.join(NOTICES)}, or none")
    at = round(time.time() + in_s, 1)
    text = json.dumps({"kind": kind, "at": at, "text": f"the lab was told so: {NOTICES.get(kind)} in {in_s:g} s"})
    script = f"rm -f {NOTICE}" if kind == "none" else f"cat >{NOTICE}.new && mv {NOTICE}.new {NOTICE}"
    enter = ["nsenter", "--target", str(_pid(lab, host)), "--all", "sh", "-c", script]
    subprocess.run(enter, input=text.encode(), check=True, timeout=60)


def heal(lab: Lab, hosts: Sequence[LabHost]) -> None:
    """Repair hosts: boot them if they are down, connect them, and remove limits on their network.

    This also works after a reboot of this machine, which leaves only files.
    """
    live = nodes.running(lab.name)
    for host in hosts:
        if host.name in live:
            network.mend(lab.cable(host), live[host.name])
    down = [h for h in hosts if h.name not in live]
    if down and lab.bridge not in network.links():
        neighbours.make_room(neighbours.sizes())
        network.make_bridge(lab)
        if not nodes.is_prepared(lab):  # their files were in memory
            nodes.make_room(lab)
            for host in lab.hosts:
                nodes.prepare(lab, host)
            nodes.make_master(lab, lab.hosts[0])
            nodes.introduce(lab)
    start(lab, down)


def add(lab: Lab, hosts: Sequence[LabHost]) -> Lab:
    """Add hosts to the lab, start them, and make them known to the others. Return the larger lab."""
    grown = replace(lab, hosts=(*lab.hosts, *hosts))
    grown.write()
    neighbours.make_room(neighbours.sizes())
    for host in hosts:
        nodes.prepare(grown, host)
    nodes.introduce(grown)
    start(grown, hosts)
    return grown


def start(lab: Lab, hosts: Sequence[LabHost]) -> None:
    """Boot hosts whose files are prepared, and wait until their sshd answers. Raises ClusterError if one does not."""
    if not hosts:
        return
    network.unplug(lab.name, [lab.cable(h) for h in hosts])
    starting = [nodes.Starting(lab, host) for host in hosts]
    network.plug_in(lab, {s.host: s.pid() for s in starting})
    for s in starting:
        s.go()
    silent = [s for s in starting if not wait_until(functools.partial(_answers_or_ended, s), _STARTS_S, pause_s=0.01)]
    if failed := [s for s in starting if s in silent or s.has_ended()]:
        raise ClusterError(
            f"no sshd on lab hosts {', '.join(s.host.name for s in failed)}: the first one's last words are "
            f"{failed[0].last_words()!r}"
        )


def _answers_or_ended(starting: nodes.Starting) -> bool:
    return starting.has_ended() or _answers(starting.host.address)


def _build(name: str, num_hosts: int, slots: int, spares: int, may_mount: bool) -> Lab:
    base = network.free_network()
    lab = Lab(
        name=name,
        network=str(base),
        hosts=tuple(
            LabHost(rank=r, name=f"{name}-{r}", address=str(base[1 + r]), slots=slots, is_spare=r >= num_hosts)
            for r in range(num_hosts + spares)
        ),
        may_mount=may_mount,
    )
    return build(lab)


def build(lab: Lab) -> Lab:
    """Build a lab from its record. If that fails or is interrupted, everything is removed again."""
    try:
        lab.write()
        neighbours.make_room(neighbours.sizes())
        lab.shared.mkdir()
        shared_tree.make(str(lab.shared))
        nodes.make_key(lab.key, f"lab {lab.name}")
        nodes.make_room(lab)
        if not IS_CHECKOUT:
            assemble_with_environment(lab.project)
        for host in lab.hosts:
            nodes.prepare(lab, host)
        for master in lab.hosts[:1]:
            nodes.make_master(lab, master)
        nodes.introduce(lab)
        network.make_bridge(lab)
        start(lab, lab.hosts)
        write_inventory(lab)
    except BaseException:
        _tear_down(lab.name)
        raise
    return lab


def write_inventory(lab: Lab) -> None:
    """Write the lab's hostfile and cluster.toml, so that tasks find it like any other cluster."""
    write_atomically(
        lab.folder / "hosts",
        hostfile(Host(rank=h.rank, address=h.address, slots=h.slots, is_spare=h.is_spare) for h in lab.hosts),
    )
    write_atomically(
        lab.folder / "cluster.toml",
        f"""\
name = "{lab.name}"
shared = "{SHARED}"
project = "{lab.project}"

[ssh]
user = "root"
key = "{lab.key}"
known_hosts = "{lab.folder}/known_hosts"
""",
    )


def _tear_down(name: str) -> None:
    network.unplug(name, all_of_it=True)
    nodes.end(name)
    Lab(name=name, network="", hosts=()).remove()
    neighbours.restore()


def _pid(lab: Lab, host: LabHost) -> int:
    pid = nodes.running(lab.name).get(host.name)
    if pid is None:
        raise ConfigError(
            f"lab host {host.name} is down already: 'inv lab.heal {host.rank} --name {lab.name}' boots it"
        )
    return pid


def _answers(address: str, within_s: float = 1.0) -> bool:
    try:
        with socket.create_connection((address, 22), timeout=within_s) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Hold the lock on building and removing labs. Two labs at once could choose the same free network."""
    LABS.mkdir(parents=True, exist_ok=True)
    with Path(LABS.parent / "lab.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def statuses(lab: Lab) -> Iterable[tuple[LabHost, str]]:
    """Yield each host with `up`, `silent` (runs but does not answer) or `down`."""
    live = nodes.running(lab.name)
    for host in lab.hosts:
        state = "down" if host.name not in live else "up" if _answers(host.address, _GREETS_S) else "silent"
        yield host, state
