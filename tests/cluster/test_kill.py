"""A clean slate: what is found, what is touched, and the proof."""

import json
import threading

import pytest

from cluster.kill import reboot
from cluster.kill.kill import proof, remains, shown
from cluster.lab import lab as labs
from tests.conftest import wait_for


def started(script, last):
    """Shell text that starts the script in the background and waits for the last of its sleepers."""
    return f"setsid sh -c '{script}' >/dev/null 2>&1 </dev/null & until pgrep -f '^sleep {last}' >/dev/null; do sleep 0.05; done"


def commands(found, host, **wanted):
    return [p["command"] for p in found.found[host]["processes"] if all(p[k] == v for k, v in wanted.items())]


def running(reach, hosts, what):
    return sum(int(r.text) for r in reach.run(hosts, f"ps -eo args | grep -c '^[s]leep {what}' || true").values())


def test_a_crashed_job_s_processes_go_and_a_running_job_s_stay(cluster, reach):
    """By the tag in their environment, not by name: an equal command without a tag is left alone."""
    reach.run(
        cluster.hosts,
        "DLAMI_JOB=dead-1 " + started("sleep 4001; true", 4001) + "; "
        "DLAMI_JOB=alive-1 " + started("sleep 4002; true", 4002) + "; " + started("sleep 4003; true", 4003),
    ).check()
    before = remains(reach, cluster, cluster.hosts, ["alive-1"])
    after = remains(reach, cluster, cluster.hosts, ["alive-1"], end=True, grace_s=2)

    assert 8 == before.num_to_end
    assert "job alive-1, orphan: runs, not touched" in shown(before).replace("root S ", "")
    assert f"({len(cluster.hosts)}): zero processes left" in proof(after)
    assert (0, 4, 4) == tuple(running(reach, cluster.hosts, n) for n in (4001, 4002, 4003))
    remains(reach, cluster, cluster.hosts, [], end=True)
    reach.run(cluster.hosts, "pkill -f '^sleep 4003'").check()


def test_children_without_the_tag_go_with_their_session(cluster, reach):
    """A child that cleaned its environment, and one that ignores TERM."""
    host = cluster.hosts[1]
    reach.run(
        [host], "DLAMI_JOB=dead-2 " + started('env -i sleep 4004 & trap "" TERM; sleep 4005; sleep 4005', 4005)
    ).check()
    after = remains(reach, cluster, [host], [], end=True, grace_s=1)

    assert 0 == after.num_left
    assert 0 == running(reach, [host], 400)


def test_another_user_s_process_is_listed_and_not_touched(cluster, reach):
    """Seen by root, and still not ended by it."""
    host = cluster.hosts[1]
    reach.run([host], started("setpriv --reuid=65534 --clear-groups env DLAMI_JOB=theirs sleep 4006", 4006)).check()
    found = remains(reach, cluster, [host], [], all_mine=True, end=True, grace_s=1)

    assert ["sleep 4006"] == commands(found, host, mine=False)
    assert "another user's, not touched" in shown(found)
    assert 1 == running(reach, [host], 4006)
    reach.run([host], "pkill -f '^sleep 4006'").check()


def test_a_launcher_of_no_job_needs_all_mine(cluster, reach):
    """mpirun started by hand: listed, ended only when asked for."""
    host = cluster.hosts[1]
    reach.run([host], started("OMPI_COMM_WORLD_RANK=0 exec sleep 4007", 4007)).check()
    listed = remains(reach, cluster, [host], [], end=True, grace_s=1)

    assert "of no job of ours, not touched: --all-mine ends it" in shown(listed)
    assert 1 == running(reach, [host], 4007)
    assert 0 == remains(reach, cluster, [host], [], all_mine=True, end=True, grace_s=1).num_left
    assert 0 == running(reach, [host], 4007)


def test_a_defunct_child_is_named_with_why_it_stays(cluster, reach):
    """Its parent is of nobody we may end; no signal helps."""
    host = cluster.hosts[2]
    reach.run(
        [host], started('sh -c "DLAMI_JOB=dead-3 exec setsid sleep 0" & exec env -i DLAMI_JOB=alive sleep 4008', 4008)
    ).check()
    found = remains(reach, cluster, [host], ["alive"], end=True, grace_s=1)

    zombies = [p for p in found.found[host]["processes"] if p["state"] == "Z"]
    assert all(p["runs"] for p in zombies), "it counts to the job of its parent"
    assert 0 == found.num_left
    remains(reach, cluster, [host], [], end=True, grace_s=1)


def test_shared_memory_that_nobody_maps_is_removed(cluster, reach):
    """One in use stays, one of another program stays."""
    host = cluster.hosts[1]
    hold = (
        'import mmap,time; f=open("/dev/shm/vader_segment.used","w+b"); f.truncate(4096); m=mmap.mmap(f.fileno(),4096); '
        "time.sleep(4009)"
    )
    reach.run(
        [host],
        "head -c 9999 /dev/zero >/dev/shm/vader_segment.left; echo x >/dev/shm/others; "
        f"setsid python3 -c '{hold}' >/dev/null 2>&1 </dev/null & until grep -qs vader_segment.used /proc/[0-9]*/maps; do sleep 0.05; done",
    ).check()
    after = remains(reach, cluster, [host], [], end=True, grace_s=1)

    assert ["/dev/shm/vader_segment.left"] == after.found[host]["removed"]
    assert "others\nvader_segment.used\n" == reach.run([host], "ls /dev/shm")[host].text
    reach.run([host], "pkill -f '^python3 -c import mmap'; rm /dev/shm/others /dev/shm/vader_segment.used").check()


def test_inv_kill_asks_first(inv, cluster, reach):
    """Without a terminal and without --yes nothing is ended; --json records what was found."""
    reach.run(cluster.hosts, "DLAMI_JOB=dead-4 " + started("sleep 4010; true", 4010)).check()
    asked = inv("kill")

    assert "end 8 processes, remove 0 segments? There is no terminal to ask on" in asked.stderr
    assert 2 == asked.returncode
    assert 4 == running(reach, cluster.hosts, 4010)
    told = inv("kill", "--json")
    assert 4 == len(json.loads(told.stdout))
    done = inv("kill", "--yes")
    assert 0 == done.returncode
    assert "zero processes left" in done.stdout
    assert 0 == running(reach, cluster.hosts, 4010)
    assert "nothing of a training on" in inv("kill").stdout


def test_a_host_that_cannot_be_asked_is_no_proof(lab, cluster, reach):
    """Unknown is said, and the exit code is not 0."""
    labs.crash(lab, lab.hosts[3])
    after = remains(reach, cluster, cluster.hosts, [], end=True, grace_s=1)

    assert f"{cluster.hosts[3].address}  unknown: " in proof(after)
    assert [cluster.hosts[3]] == list(after.unanswered)


def test_reboot_waits_until_they_answer(lab, cluster, reach):
    """The host goes down by its own command and another boot answers."""
    victims, back = cluster.hosts[1:3], []

    def power() -> None:
        for host in (lab.hosts[1], lab.hosts[2]):
            wait_for(lambda host=host: dict(labs.statuses(lab))[host] == "down", 120, "it went down")
        labs.heal(lab, lab.hosts[1:3])

    thread = threading.Thread(target=power)
    thread.start()
    missing = reboot.reboot(reach, victims, 200, lambda host, _s: back.append(host))
    thread.join(200)

    assert {} == missing
    assert set(victims) == set(back)


def test_a_host_that_stays_away_is_named(lab, cluster, reach):
    """After the time that was given."""
    missing = reboot.reboot(reach, [cluster.hosts[3]], 6)

    assert "not back within 6 s" in missing[cluster.hosts[3]]


@pytest.mark.parametrize("words", [("reboot", "--hosts", "1")])
def test_inv_reboot_asks_first(inv, words):
    """Nobody to ask: refused."""
    done = inv(*words)

    assert "There is no terminal to ask on" in done.stderr
    assert 2 == done.returncode
