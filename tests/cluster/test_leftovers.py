"""What one test leaves on the lab's hosts is not there for the next."""

import time
from typing import Any

import pytest

from cluster.inventory import Cluster
from cluster.recovery.host_failures import FailureRecord, note, read_memory
from cluster.ssh.fanout import Executor
from lab.record import Lab
from tests import leftovers
from tests.host_files import put_back, system_files
from tests.leftovers import TICKS, end_left, first_processes, renew

ORPHAN = "setsid sh -c 'sleep {0}; true' >/dev/null 2>&1 </dev/null & until pgrep -f '^sleep {0}' >/dev/null; do sleep 0.05; done"


def now() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS)


def sleepers(reach: Executor, cluster: Cluster) -> Any:
    found = reach.run(cluster.hosts[1:2], "ps -eo args | grep '^sleep 41' || true").check()
    return sorted(found[cluster.hosts[1]].text.splitlines())


def test_what_a_test_left_is_named_and_ended_and_what_an_older_fixture_made_stays(
    lab: Lab, cluster: Cluster, reach: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By when it began and for which job, with its job, its shared memory and the failures that it put on record."""
    monkeypatch.setattr(leftovers, "GRACE_S", 0.0)
    host = cluster.hosts[1]
    older = lab.shared / "jobs/older-1/job.json"
    older.parent.mkdir(parents=True)
    older.write_text("{}")
    first = now()
    reach.run([host], ORPHAN.format(4101)).check()
    while (ticks := now()) < first + 2:
        time.sleep(0.01)
    while now() < ticks + 2:  # what begins from here on began after that
        time.sleep(0.01)
    since = time.time()

    (lab.shared / "jobs/mine-1").mkdir()
    for job, seconds in (("mine-1", 4102), ("older-1", 4103)):
        reach.run([host], f"DLAMI_JOB={job} " + ORPHAN.format(seconds)).check()
    note(lab.shared, FailureRecord(time=since, host=host.address, what="host", text="it was lost"))
    left = end_left(lab, ticks, since)
    assert ["sh -c sleep 4102; true", "sleep 4102"] == sorted(one.command for one in left)
    assert {host.address} == {h.address for h in lab.hosts if h.name in {one.host for one in left}}
    assert "(of job mine-1)" in str(left[0])
    assert ["sleep 4101", "sleep 4103"] == sleepers(reach, cluster)
    assert [True, False] == [(lab.shared / "jobs" / name).exists() for name in ("older-1", "mine-1")]
    assert () == read_memory(lab.shared).entries

    reach.run([host], "echo x >/dev/shm/nccl-a1B2c3").check()
    assert {"sh -c sleep 4101; true", "sleep 4101", "sh -c sleep 4103; true", "sleep 4103"} == {
        one.command for one in end_left(lab, first - 1, 0.0)
    }
    assert [] == sleepers(reach, cluster)
    assert "" == reach.run([host], "ls /dev/shm").check()[host].text
    assert [] == end_left(lab, first - 1, 0.0)


def test_system_files_that_a_test_left_changed_are_named_and_put_back(
    lab: Lab, cluster: Cluster, reach: Executor
) -> None:
    """What was replaced, removed, made and linked; a test after it that runs a program there gets the usual one."""
    before = system_files(lab)
    changes = {
        "/usr/bin/python3": "rm {0}; printf '#!/bin/sh\\nexit 0\\n' >{0}; chmod 755 {0}",
        "/usr/sbin/reboot": "rm {0}",
        "/etc/hosts": "echo 10.9.9.9 stranger >>{0}",
        "/usr/local/bin/nvidia-smi": "ln -s /bin/true {0}",
        "/usr/bin/env": "chmod 700 {0}",
    }
    host, other = cluster.hosts[1:3]
    reach.run([host], "; ".join(how.format(path) for path, how in changes.items())).check()
    reach.run([other], "touch /root/.ssh/config /root/mine").check()
    firsts = first_processes(lab.name)

    found = put_back(lab, before, firsts)

    names = {one.address: one.name for one in lab.hosts}
    expected = [
        *(f"{names[host.address]}: {path}" for path in sorted(changes)),
        f"{names[other.address]}: /root/.ssh/config",
    ]
    assert expected == found
    look = "python3 -c 'print(1)'; cat /usr/sbin/reboot /etc/hosts; ls -l /usr/bin/env; ls /usr/local/bin/nvidia-smi"
    first, second = (r.text for r in reach.run([host, cluster.hosts[3]], look).values())
    assert first.startswith("1\n#!/bin/sh\nkill -HUP 1\n127.0.0.1 localhost\n")
    assert "stranger" not in first
    assert "-rwxr-xr-x" in first
    assert len(first.splitlines()) == len(second.splitlines())
    kept = reach.run([other], "ls /root/mine /root/.ssh/config 2>/dev/null; true").check()
    assert "/root/mine\n" == kept[other].text, "no system's file"
    assert [] == put_back(lab, before, firsts)


def test_after_a_failed_test_the_hosts_are_as_they_were_made(lab: Lab, cluster: Cluster) -> None:
    """Whatever it had done to them, also if it stopped before it took that back."""
    with Executor(cluster) as reach:
        reach.run(
            cluster.hosts[:2], "touch /root/mine; mv /usr/sbin/reboot /root; rm /etc/rc.local /root/.ssh/known_hosts"
        )
    renew(lab)
    with Executor(cluster) as reach:
        found = reach.run(
            cluster.hosts, "ls /root/mine /usr/sbin/reboot /etc/rc.local /root/.ssh/known_hosts 2>/dev/null"
        )
    there = ["/root/.ssh/known_hosts", "/usr/sbin/reboot"]
    assert [["/etc/rc.local", *there], there, there, there] == [r.text.splitlines() for r in found.values()]
