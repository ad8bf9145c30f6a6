"""Labs: what is made, what can happen to a host, and that nothing stays behind."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ClusterError
from cluster.inventory import ROOT, Cluster, load_cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from lab import lab as labs
from lab import network, nodes
from lab.network import free_network
from lab.record import Lab
from tests.conftest import PATIENCE_S, wait_for
from tests.processes import begun


def test_a_lab_host_is_its_own_machine(cluster: Cluster, reach: Executor) -> None:
    """Own name, processes, network and files; one shared folder."""
    master = cluster.master
    number = f"1000.{os.getpid()}"
    make = f"echo mine >/root/only-here; echo ours >/shared/everywhere; sleep {number} >/dev/null 2>&1 &"
    reach.run([master], make, run_id=None).check()
    count = f"ps -eo args | grep -c '^[s]leep {number}'"
    with begun(["sleep", number]):
        seen = reach.run(
            cluster.hosts,
            f"hostname; {count}; ls /root/only-here 2>/dev/null; cat /shared/everywhere; ls /sys/class/net",
        ).check()
    reach.run([master], f"pkill -f '^sleep {number}'").check()

    lines = {h.rank: seen[h].text.split() for h in cluster.hosts}
    assert 4 == len({words[0] for words in lines.values()})
    assert ["1", "0", "0", "0"] == [words[1] for words in lines.values()], "its own process alone"
    assert ["/root/only-here"] == [w for words in lines.values() for w in words if w.startswith("/root")]
    assert all("ours" in words for words in lines.values())
    assert all(words[-2:] == ["eth0", "lo"] for words in lines.values())


def test_a_crashed_host_comes_back_with_its_files_and_key(lab: Lab, cluster: Cluster, reach: Executor) -> None:
    """As after a power cut: the address answers again, under the host key that is known."""
    victim, host = lab.hosts[2], cluster.hosts[2]
    reach.run([host], "echo kept >/root/file; sync").check()
    labs.crash(lab, victim)

    assert ["down"] == [state for h, state in labs.statuses(lab) if h == victim]
    labs.heal(lab, [victim])
    with Executor(cluster) as again:
        assert "kept\n" == again.run([host], "cat /root/file").check()[host].text


def test_a_cut_host_is_silent_and_a_slow_one_slow(lab: Lab, cluster: Cluster, reach: Executor) -> None:
    """Packets vanish: the connection runs into its own limit, and the other hosts' answers are there."""
    labs.cut(lab, lab.hosts[1])
    with Executor(cluster) as fresh:
        results = fresh.run(cluster.hosts, "hostname", limits=Limits(connect_s=20))

    assert [cluster.hosts[1]] == list(results.failed)
    assert re.search("no ssh within 20 s|no connection: ", results[cluster.hosts[1]].problem)
    labs.heal(lab, [lab.hosts[1]])
    labs.slow(lab, lab.hosts[1], mbit=4, delay_ms=None)
    result = reach.run([cluster.hosts[1]], "head -c 1000000 /dev/zero").check()[cluster.hosts[1]]

    assert result.seconds > 1.5, "a megabyte takes 2 s at 4 Mbit/s, less what the shaper lets through at first"


def test_two_labs_live_side_by_side(lab: Lab) -> None:
    """Own networks, own names; the end of one leaves the other alone."""
    other = labs.up(f"{lab.name[:6]}x", 1, 1)
    try:
        assert not IPv4Network(other.network).overlaps(IPv4Network(lab.network))
        assert ["up"] == [state for _, state in labs.statuses(other)]
    finally:
        labs.down(other.name)

    assert ["up"] * 4 == [state for _, state in labs.statuses(lab)]
    assert not labs.is_anything_left(other.name)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_lab_interrupted_in_its_making(lab: Lab, how: Any) -> None:
    """Ctrl-C cleans up by itself; after kill -9, `lab.down` finds everything by name."""
    name = f"{lab.name[:6]}i"
    making = subprocess.Popen(
        [sys.executable, "-m", "invoke", "lab.up", "-n", "24", "--name", name],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: len(nodes.running(name)) > 0 or making.poll() is not None, 60, "a host of it runs")
    making.send_signal(how)
    making.wait(PATIENCE_S)
    if how == signal.SIGKILL:
        labs.down(name)

    assert not labs.is_anything_left(name)
    assert (
        f"lab/{name}" not in subprocess.run(["cat", "/proc/mounts"], capture_output=True, text=True, check=True).stdout
    )


def test_a_free_network_overlaps_nothing_in_use() -> None:
    """Not even by a wider route; when all are taken it says so."""
    first = free_network([])

    assert not free_network([IPv4Network(first.supernet(new_prefix=16))]).overlaps(first)
    with pytest.raises(ClusterError, match="no free network"):
        free_network([IPv4Network("10.0.0.0/8")])


@pytest.fixture
def plain(lab_allowed: Any) -> Iterator[Any]:
    """A lab as `inv lab.up` makes it: root on its hosts may do less than in the tests' other labs."""
    name = f"s{os.getpid() % 10_000_000}"
    yield labs.up(name, 2, 1)
    if labs.is_anything_left(name):
        labs.down(name)


HARM = (
    "echo 11 >/proc/sys/vm/dirty_background_ratio",
    "mount -o remount,rw,bind /proc/sys",
    "umount /proc/sys",
    "echo h >/proc/sysrq-trigger",
    "echo 0 >/sys/kernel/mm/ksm/run",
    "mount -t tmpfs tmpfs /mnt",
    "mknod /root/disk b 254 0",
    f"touch '{ROOT}/written-by-a-lab-host'",
    "nsenter -t 1 --mount true",
    "hostname other",
    "[ -e /dev/mem ] || [ -e /dev/kmsg ] || ls /dev/[sv]d*",
    "date -s @0",
    "python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).reboot(0x01234567) != 0)'",
)


def test_root_on_a_lab_host_cannot_change_this_machine(plain: Any) -> None:
    """Neither by the kernel's settings nor by its disks, and this project is not its to write."""
    settings = Path("/proc/sys/vm/dirty_background_ratio").read_text()
    cluster = load_cluster(f"lab:{plain.name}")
    host = cluster.hosts[1]
    with Executor(cluster) as reach:
        done = {harm: reach.run([host], harm)[host] for harm in HARM}
        mode = reach.run([host], "chmod 600 /dev/null; stat -c %a /dev/null").check()[host].text

    assert [] == [harm for harm, result in done.items() if result.ok]
    assert settings == Path("/proc/sys/vm/dirty_background_ratio").read_text()
    assert not (ROOT / "written-by-a-lab-host").exists()
    assert "600\n" == mode and 0o666 == stat.S_IMODE(Path("/dev/null").stat().st_mode)


def test_a_lab_host_that_reboots_comes_back_by_itself(lab: Lab, cluster: Cluster, reach: Executor) -> Any:
    """With its files, and nothing of what ran on it."""
    host = cluster.hosts[2]
    first = "cut -d' ' -f22 /proc/1/stat"
    before = (
        reach.run([host], f"echo kept >/root/rebooted; setsid sleep 4321 >/dev/null 2>&1 & {first}").check()[host].text
    )
    reach.run([host], "reboot -f")

    def is_back() -> Any:
        with Executor(cluster) as again:
            result = again.run([host], first)[host]
        return result.ok and result.text != before

    wait_for(is_back, 60, "the host is back")
    with Executor(cluster) as again:
        assert "kept\n" == again.run([host], "cat /root/rebooted; ! pgrep -f 'sleep 432[1]'").check()[host].text


def test_a_lab_comes_back_after_a_reboot_of_this_machine(plain: Any) -> None:
    """Of which only the files are left: no process, bridge or cable. What is in /shared is still there."""
    (plain.shared / "checkpoint").write_text("step 1000")
    nodes.end(plain.name)
    network.unplug(plain.name, all_of_it=True)
    healed = lab_task("lab.heal", "all", "--name", plain.name)

    assert 0 == healed.returncode, healed.stderr
    cluster = load_cluster(f"lab:{plain.name}")
    with Executor(cluster) as reach:
        said = reach.run(cluster.hosts, "cat /shared/checkpoint; hostname")
        assert [f"step 1000{h.name}\n" for h in plain.hosts] == [r.text for r in said.check().values()]


def test_down_ends_nothing_outside_of_the_labs_namespaces(plain: Any) -> None:
    """A program of this machine may carry the lab's name in its environment, as one does that a script of ours started."""
    with begun(["sleep", "600"], env={**os.environ, "DLAMI_LAB": plain.name}) as bystander:
        labs.down(plain.name)
        assert bystander.poll() is None


def lab_task(*words: Any, **env: str) -> Any:
    """A task as a person types it, who is asked nothing."""
    return subprocess.run(
        [sys.executable, "-m", "invoke", *words],
        cwd=ROOT,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def test_the_tasks_of_a_lab_do_what_they_say(plain: Any) -> Any:
    """Each as a person types it: status, ssh, cut, slow, crash, heal, down."""
    name = ("--name", plain.name)

    def states() -> Any:
        return [h["state"] for h in json.loads(lab_task("lab.status", "--json", *name).stdout)]

    assert ["up", "up"] == states()
    assert f"{plain.name}-1" in lab_task("lab.status", *name).stdout
    there = lab_task("lab.ssh", "1", *name, "--", "hostname; exit 7")
    assert (7, f"{plain.name}-1\n") == (there.returncode, there.stdout)
    assert 0 == lab_task("lab.cut", "1", *name).returncode
    assert ["up", "silent"] == states()
    assert 0 == lab_task("lab.crash", f"{plain.name}-0", *name).returncode
    assert ["down", "silent"] == states()
    again = lab_task("lab.crash", "0", *name)
    assert 2 == again.returncode and "is down already: 'inv lab.heal 0 --name" in again.stderr
    assert 0 == lab_task("lab.heal", "all", *name).returncode
    assert ["up", "up"] == states()
    unsaid = lab_task("lab.slow", "1", *name)
    assert 2 == unsaid.returncode and "say how slow" in unsaid.stderr
    assert 0 == lab_task("lab.slow", "1", "--mbit", "100", *name).returncode
    assert "rate 100Mbit" in subprocess.run(["tc", "qdisc"], capture_output=True, text=True, check=True).stdout
    chosen = {"CLUSTER": f"lab:{plain.name}"}
    assert f"{plain.name}-1" in lab_task("lab.status", **chosen).stdout
    unasked = lab_task("lab.down", **chosen)
    assert 2 == unasked.returncode and f"this removes lab {plain.name} " in unasked.stderr
    assert f"lab {plain.name} " in lab_task("lab.down", "--dry-run", **chosen).stdout
    assert ["up", "up"] == states()
    gone = lab_task("lab.down", "--yes", **chosen)
    assert (0, f"lab {plain.name} is gone\n") == (gone.returncode, gone.stdout)
    assert 2 == lab_task("lab.status", *name).returncode


ON_AN_OVERLAY = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
for part in proc dev sys; do mount --rbind "/$part" "$1/root/$part"; done
mkdir -p "$1/root$2"
mount --bind "$2" "$1/root$2"
exec chroot "$1/root" "$3" -c "$4" "$2" "$5"
"""
UP_AND_DOWN = """
import os, sys
os.chdir(sys.argv[1])
sys.path.insert(0, sys.argv[1])
from lab import lab
made = lab.up(sys.argv[2], 2, 1)
try:
    print(made.nodes.is_mount(), [state for _, state in lab.statuses(made)])
    lab.crash(made, made.hosts[1])
    lab.heal(made, made.hosts)
    print([state for _, state in lab.statuses(made)])
finally:
    lab.down(sys.argv[2])
print(lab.is_anything_left(sys.argv[2]))
"""


def test_a_machine_whose_root_is_an_overlay_can_have_a_lab(lab_allowed: Any, tmp_path: Path) -> None:
    """As in a container. Its hosts' files are in memory then, and nothing stays behind either."""
    name = f"o{os.getpid() % 10_000_000}"
    words = ["bash", "-c", ON_AN_OVERLAY, "bash", str(tmp_path), str(ROOT), sys.executable, UP_AND_DOWN, name]
    done = subprocess.run(["unshare", "--mount", *words], capture_output=True, text=True, timeout=PATIENCE_S)

    assert "True ['up', 'up']\n['up', 'up']\nFalse\n" == done.stdout, done.stderr
