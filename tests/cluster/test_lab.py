"""Labs: what is made, what can happen to a host, and that nothing stays behind."""

import re
import signal
import subprocess
import sys
from ipaddress import IPv4Network

import pytest

from cluster.errors import ClusterError, ConfigError, NothingToDo
from cluster.inventory import ROOT, load_cluster
from cluster.lab import lab as labs
from cluster.lab import neighbours, nodes
from cluster.lab.network import free_network
from cluster.ssh.fanout import Reach
from cluster.ssh.limits import Limits
from tests.conftest import wait_for


def test_a_lab_host_is_its_own_machine(cluster, reach):
    """Own name, processes, network and files; one shared folder."""
    master = cluster.master
    reach.run([master], "echo mine >/root/only-here; echo ours >/shared/everywhere").check()
    seen = reach.run(
        cluster.hosts,
        "hostname; ps -e | wc -l; ls /root/only-here 2>/dev/null; cat /shared/everywhere; ls /sys/class/net",
    ).check()

    lines = {h.rank: seen[h].text.split() for h in cluster.hosts}
    assert 4 == len({words[0] for words in lines.values()})
    assert all(int(words[1]) < 20 for words in lines.values())
    assert ["/root/only-here"] == [w for words in lines.values() for w in words if w.startswith("/root")]
    assert all("ours" in words for words in lines.values())
    assert all(words[-2:] == ["eth0", "lo"] for words in lines.values())


def test_hosts_reach_each_other_by_key_without_a_question(cluster, reach):
    """As mpirun needs it: every host's key is known to every other."""
    last = cluster.hosts[-1]
    answered = reach.run(cluster.hosts, f"ssh -o BatchMode=yes -o StrictHostKeyChecking=yes {last.address} hostname")

    assert {f"{cluster.name}-3"} == {r.text.strip() for r in answered.check().values()}


def test_up_twice_is_one_lab(lab):
    """The second `lab.up` finds the first one's hosts, running as they were."""
    before = nodes.running(lab.name)

    assert lab == labs.up(lab.name, 4, 2)
    assert before == nodes.running(lab.name)


def test_another_size_is_refused(lab):
    """Nothing is changed by it."""
    with pytest.raises(ConfigError, match="is up with 4 hosts of 2 slots"):
        labs.up(lab.name, 5, 2)

    assert 4 == len(nodes.running(lab.name))


def test_a_crashed_host_comes_back_with_its_files_and_key(lab, cluster, reach):
    """As after a power cut: the address answers again, under the host key that is known."""
    victim, host = lab.hosts[2], cluster.hosts[2]
    reach.run([host], "echo kept >/root/file; sync").check()
    labs.crash(lab, victim)

    assert ["down"] == [state for h, state in labs.statuses(lab) if h == victim]
    labs.heal(lab, [victim])
    with Reach(cluster) as again:
        assert "kept\n" == again.run([host], "cat /root/file").check()[host].text


def test_a_cut_host_is_silent_and_a_slow_one_slow(lab, cluster, reach):
    """Packets vanish: the connection runs into its own limit, and the other hosts' answers are there."""
    labs.cut(lab, lab.hosts[1])
    with Reach(cluster) as fresh:
        results = fresh.run(cluster.hosts, "hostname", limits=Limits(connect_s=20))

    assert [cluster.hosts[1]] == list(results.failed)
    assert re.search("no ssh within 20 s|no connection: ", results[cluster.hosts[1]].problem)
    labs.heal(lab, [lab.hosts[1]])
    labs.slow(lab, lab.hosts[1], mbit=4, delay_ms=None)
    result = reach.run([cluster.hosts[1]], "head -c 1000000 /dev/zero").check()[cluster.hosts[1]]

    assert result.seconds > 1.5, "a megabyte takes 2 s at 4 Mbit/s, less what the shaper lets through at first"


def test_two_labs_live_side_by_side(lab):
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
def test_nothing_is_left_of_a_lab_interrupted_in_its_making(lab, how):
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
    making.wait(60)
    if how == signal.SIGKILL:
        labs.down(name)

    assert not labs.is_anything_left(name)
    assert (
        f"lab/{name}" not in subprocess.run(["cat", "/proc/mounts"], capture_output=True, text=True, check=True).stdout
    )


def test_down_of_what_is_not_there_says_so():
    """And is no failure."""
    with pytest.raises(NothingToDo, match="there is no lab nowhere"):
        labs.down("nowhere")


def test_a_free_network_overlaps_nothing_in_use():
    """Not even by a wider route; when all are taken it says so."""
    first = free_network([])

    assert not free_network([IPv4Network(first.supernet(new_prefix=16))]).overlaps(first)
    with pytest.raises(ClusterError, match="no free network"):
        free_network([IPv4Network("10.0.0.0/8")])


def test_the_lab_is_a_cluster_like_any_other(lab):
    """Its hostfile and settings are read by the code that reads an operator's."""
    cluster = load_cluster(f"lab:{lab.name}")

    assert [(h.address, h.slots) for h in lab.hosts] == [(h.address, h.slots) for h in cluster.hosts]
    assert "/shared" == cluster.shared


def test_a_large_lab_makes_room_in_the_table_of_neighbours_and_the_last_one_takes_it_back(tmp_path, monkeypatch):
    """Limits are raised to the pairs of all labs, never lowered, and set back when no lab is left."""
    before = dict(zip(neighbours.NAMES, (128, 512, 1024), strict=True))
    for name, value in before.items():
        (tmp_path / name).write_text(f"{value}\n")
    left = ["big"]
    monkeypatch.setattr(neighbours, "LIMITS", tmp_path)
    monkeypatch.setattr(neighbours, "BEFORE", tmp_path / "before.json")
    monkeypatch.setattr(neighbours, "lab_names", lambda: left)

    def limits():
        return [int((tmp_path / name).read_text()) for name in neighbours.NAMES]

    neighbours.make_room([4, 8])
    assert list(before.values()) == limits()
    neighbours.make_room([64])
    neighbours.make_room([64, 4])
    assert [64 * 64 + 16, 2 * (64 * 64 + 16), 4 * (64 * 64 + 16)] == limits()
    neighbours.restore()
    assert limits()[0] > 4096
    left.clear()
    neighbours.restore()
    assert list(before.values()) == limits()
