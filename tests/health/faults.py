"""Faults made for real on lab hosts: each breaks one thing on one host, as it breaks in the field."""

import shlex
from collections.abc import Callable

from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.ssh.fanout import RUN_TAG, Executor
from lab import lab as labs
from lab.record import Lab
from tests import dead_server
from tests.conftest import wait_for


def hung_mount(reach: Executor, lab: Lab, cluster: Cluster, host: Host) -> None:
    """The shared folder's server stops answering."""
    _do(reach, host, f"exec /usr/bin/env -u {RUN_TAG} /usr/bin/python3 -c {shlex.quote(dead_server.PROGRAM)}")


def full_disk(reach: Executor, lab: Lab, cluster: Cluster, host: Host) -> None:
    """/tmp has no room left."""
    _do(reach, host, "mount -t tmpfs -o size=4m tmpfs /tmp; head -c 5000000 /dev/zero >/tmp/fill; [ -s /tmp/fill ]")


def skewed_clock(reach: Executor, lab: Lab, cluster: Cluster, host: Host) -> None:
    """`date` is three seconds ahead: the kernel has no clock per host, so the source of the offset is changed."""
    _tool(reach, host, "date", "exec /usr/bin/date -d '+3 seconds' \"$@\"")


def other_version(reach: Executor, lab: Lab, cluster: Cluster, host: Host) -> None:
    """Horovod is another one, by its own metadata, on this host only."""
    _do(
        reach,
        host,
        f"info=$(echo {cluster.project}/.venv/lib/python3*/site-packages/horovod-*.dist-info) && "
        "cp -r $info /run/other && sed -i 's/^Version: .*/Version: 0.27.0/' /run/other/METADATA && "
        "mount --bind /run/other $info",
    )


def no_environment(reach: Executor, lab: Lab, cluster: Cluster, host: Host) -> None:
    """Its .venv is gone."""
    _do(reach, host, f"mount -t tmpfs tmpfs {cluster.project}/.venv")


def stray_process(reach: Executor, lab: Lab, cluster: Cluster, host: Host) -> None:
    """Something of no job keeps a core busy."""
    _do(reach, host, f"env -u {RUN_TAG} setsid nice -n 19 sh -c 'while :; do :; done' </dev/null >/dev/null 2>&1 &")


def no_ssh_from_master(reach: Executor, lab: Lab, cluster: Cluster, host: Host) -> None:
    """Packets between it and the master go nowhere; everybody else reaches it."""
    _do(reach, host, f"ip route add blackhole {cluster.master.address}")


def no_ssh_to_one(reach: Executor, lab: Lab, cluster: Cluster, host: Host) -> None:
    """It does not know the host key of the last host, which was replaced, say."""
    _do(reach, host, f"sed -i '/^{cluster.hosts[-1].address},/d' ~/.ssh/known_hosts")


def no_way_to_one(reach: Executor, lab: Lab, cluster: Cluster, host: Host) -> None:
    """What it would send to the last host goes nowhere; both answer everybody else."""
    _do(reach, host, f"ip route add blackhole {cluster.hosts[-1].address}")


def no_key(reach: Executor, lab: Lab, cluster: Cluster, host: Host) -> None:
    """It has no private key: others get in, it gets nowhere."""
    _do(reach, host, "rm ~/.ssh/id_ed25519")


def hung_driver(reach: Executor, lab: Lab, cluster: Cluster, host: Host) -> None:
    """nvidia-smi never returns."""
    _tool(reach, host, "nvidia-smi", "exec sleep 100000")


def lost_gpu(reach: Executor, lab: Lab, cluster: Cluster, host: Host) -> None:
    """The kernel log has an Xid 79."""
    line = "[  812.500000] NVRM: Xid (PCI:0000:10:1c): 79, GPU has fallen off the bus."
    _tool(reach, host, "dmesg", f"echo '[    0.000000] Linux version'; echo {shlex.quote(line)}")


def not_mounted(reach: Executor, lab: Lab, cluster: Cluster, host: Host) -> None:
    """The shared folder is not mounted: what is written there stays on the host."""
    _do(reach, host, "umount -l /shared && [ -d /shared ]")


def other_frames(reach: Executor, lab: Lab, cluster: Cluster, host: Host) -> None:
    """Its card has another largest frame."""
    _do(reach, host, "ip link set eth0 mtu 1400")


def crashed(reach: Executor, lab: Lab, cluster: Cluster, host: Host) -> None:
    """Its power is gone."""
    labs.crash(lab, lab.hosts[host.rank])


def shell_that_talks(reach: Executor, host: Host) -> None:
    """No fault: a start-up file of its shell prints, with and without the end of a line."""
    _do(
        reach,
        host,
        "printf '%s\n' 'echo Welcome to this host' 'printf {' | cat - ~/.bashrc >/run/new; cp /run/new ~/.bashrc",
    )


Fault = Callable[[Executor, Lab, Cluster, Host], None]
EVERY: dict[Fault, str] = {  # the fault, and words that the report must have for it
    hung_mount: "/shared hangs",
    full_disk: "/tmp is full",
    skewed_clock: "its clock is +",
    other_version: "horovod is 0.27.0",
    no_environment: "/.venv/bin/python",
    stray_process: "of no job keeps a core busy",
    no_ssh_from_master: "the master cannot ssh to it",
    no_way_to_one: "no TCP between it and",
    no_key: "it cannot ssh to",
    no_ssh_to_one: "does not know the SSH host key of",
    hung_driver: "nvidia-smi did not answer",
    lost_gpu: "Xid 79",
    not_mounted: "what is mounted on /shared is overlay",
    other_frames: "the largest frame (MTU) is 1400",
    crashed: "it does not answer",
}


def make(faults: dict[Fault, Host], lab: Lab, cluster: Cluster) -> None:
    """All of them, each on its host."""
    with Executor(cluster) as reach:
        for fault, host in faults.items():
            fault(reach, lab, cluster, host)
    if stray_process in faults:
        with Executor(cluster) as reach:
            wait_for(lambda: _is_old(reach, faults[stray_process]), 30, "the stray process is no newcomer any more")


def _is_old(reach: Executor, host: Host) -> bool:
    ages = reach.run([host], "ps -eo etimes=,args= | grep '[w]hile :; do'")[host].text.split()
    return bool(ages) and int(ages[0]) > 6


def _do(reach: Executor, host: Host, script: str) -> None:
    reach.run([host], script).check()


def _tool(reach: Executor, host: Host, name: str, body: str) -> None:
    """A program of this name, found before the real one."""
    path = f"/usr/local/bin/{name}"
    _do(reach, host, f"printf '%s\\n' '#!/bin/sh' {shlex.quote(body)} >{path} && chmod 755 {path}")
