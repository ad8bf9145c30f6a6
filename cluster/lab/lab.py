"""What one does with a lab: up, down, and everything that can happen to its hosts."""

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
from cluster.healing.onhost.notice import FILE as NOTICE
from cluster.hosts import Host, hostfile
from cluster.lab import machine, neighbours, network, nodes
from cluster.lab.record import SHARED, Lab, LabHost, check_name, load_lab
from cluster.locate import LABS, lab_names, no_lab
from cluster.project_files import assemble_with_environment
from cluster.ssh.fanout import wait_until
from cluster.ssh.onhost import shared_tree
from cluster.terminal import counted

MAX_HOSTS = 512
_STARTS_S = 180.0  # for sshd of each host, on a machine that does much else
_GREETS_S = 5.0  # for sshd's first word, of a host that runs
NOTICES = {
    "spot": "a spot instance is taken back",
    "block": "a capacity block's instances are ended",
    "shutdown": "the host is shut down for maintenance",
    "rebalance": "a spot instance may be taken back",
    "maintenance": "there is maintenance that the host outlives",
}


def up(name: str, num_hosts: int, slots: int, *, spares: int = 0, may_mount: bool = False) -> Lab:
    """A running lab of so many hosts, and spares besides; the one that is there already if it is the same.

    Raises ConfigError (a machine that allows none, bad numbers, another size there) before anything is made. If it
    fails or is interrupted half-way, nothing of it is left.
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
    """No process, cable, bridge or folder of the lab left, whatever state it was in. Raises NothingToDo."""
    with locked():
        require_something_left(name)
        _tear_down(name)


def require_something_left(name: str) -> None:
    """Raise NothingToDo if nothing of a lab of this name is there, ConfigError where this machine allows no lab."""
    machine.require("a lab")
    check_name(name)
    if not is_anything_left(name):
        raise NothingToDo(no_lab(name))


def is_anything_left(name: str) -> bool:
    """Whether any process, network device or folder of the lab is there."""
    devices = any(n == f"lab-{name}" or n.startswith(f"lab{name}.") for n in network.links())
    return devices or name in lab_names() or bool(nodes.running(name))


def is_whole(lab: Lab) -> bool:
    """Whether its making came to its end: the hostfile is the last thing written."""
    return (lab.folder / "hosts").exists()


def named(name: str) -> Lab:
    """The lab on record. Raises ConfigError if there is none."""
    lab = load_lab(name)
    if lab is None:
        raise ConfigError(no_lab(name))
    return lab


def crash(lab: Lab, host: LabHost) -> None:
    """The host's power fails: its first process is killed, and with it everything in it. Its files stay."""
    pid = _pid(lab, host)
    network.unplug(lab.name, [lab.cable(host)])
    nodes.end(lab.name, [pid])


def cut(lab: Lab, host: LabHost) -> None:
    """The host's network goes silent; its processes run on."""
    _pid(lab, host)
    network.cut(lab.cable(host))


def slow(lab: Lab, host: LabHost, *, mbit: float | None, delay_ms: float | None) -> None:
    """The host's network gets slow, both ways."""
    network.slow(lab.cable(host), _pid(lab, host), mbit=mbit, delay_ms=delay_ms)


def notice(lab: Lab, host: LabHost, kind: str, in_s: float) -> None:
    """The host is told that it will go, as a node of a stack by its metadata service; kind "none" takes that back.

    Raises ConfigError for a kind that there is not.
    """
    if kind not in (*NOTICES, "none"):
        raise ConfigError(f"--kind {kind} is not known: give one of {', '.join(NOTICES)}, or none")
    at = round(time.time() + in_s, 1)
    text = json.dumps({"kind": kind, "at": at, "text": f"the lab was told so: {NOTICES.get(kind)} in {in_s:g} s"})
    script = f"rm -f {NOTICE}" if kind == "none" else f"cat >{NOTICE}.new && mv {NOTICE}.new {NOTICE}"
    enter = ["nsenter", "--target", str(_pid(lab, host)), "--all", "sh", "-c", script]
    subprocess.run(enter, input=text.encode(), check=True, timeout=60)


def heal(lab: Lab, hosts: Sequence[LabHost]) -> None:
    """Hosts as they were made: booted again if they are down, connected, at full speed; also after this machine's own
    reboot, which leaves nothing but files."""
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
    """The lab with more hosts, running and known to the others."""
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
    """Make a lab from its record. What fails or is interrupted half-way is taken down again."""
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
    """The lab's hostfile and cluster.toml, so that tasks find it like any other cluster."""
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
    """One lab is made or taken down at a time: two that look for a free network at once would take the same one."""
    LABS.mkdir(parents=True, exist_ok=True)
    with Path(LABS.parent / "lab.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def statuses(lab: Lab) -> Iterable[tuple[LabHost, str]]:
    """Each host with `up`, `silent` (runs, does not answer) or `down`."""
    live = nodes.running(lab.name)
    for host in lab.hosts:
        state = "down" if host.name not in live else "up" if _answers(host.address, _GREETS_S) else "silent"
        yield host, state
