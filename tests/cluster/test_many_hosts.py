"""Sixty-four hosts, eight of them in trouble: each is told from the others, and none of them is waited for."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.broadcast.copy import copy, transfer
from cluster.inventory import ROOT, load_cluster
from cluster.ssh import connections
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.options import way_to
from lab import lab as labs
from lab import nodes
from lab.record import Lab
from tests.conftest import PATIENCE_S, silenced, wait_for

DEAD, SILENT, SLOW, BUSY, CROWDED, FULL = (1, 20, 63), 2, 30, 40, 41, 50
FOLDERS = "ls -A /tmp /var/tmp /dev/shm"
PATIENT = Limits(connect_s=90)  # for a connection to each of 64 hosts that share a busy machine


class Many:
    """The lab and what is wrong with it."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.cluster = lab, load_cluster(f"lab:{lab.name}")
        self.hosts = self.cluster.hosts

    def ranks(self, *out: Any) -> Any:
        """All hosts but these ranks and the dead."""
        return [h for h in self.hosts if h.rank not in (*DEAD, *out)]

    def way(self, rank: Any) -> Any:
        return way_to(self.hosts[rank], self.cluster.access)

    @contextlib.contextmanager
    def trouble(self, silence: Any) -> Iterator[Any]:
        """One host is silent, and at another somebody who says nothing has the one place for newcomers at its sshd."""
        connections.disconnect([self.way(r) for r in (SILENT, BUSY)])
        host = self.lab.hosts[SILENT]
        with silence(self.lab, [host]), socket.create_connection((self.hosts[BUSY].address, 22), timeout=60):
            yield

    def inv(self, tmp_path: Path, *words: Any) -> Any:
        return subprocess.Popen(
            [sys.executable, "-m", "invoke", *words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            stderr=subprocess.PIPE,
            env={
                **os.environ,
                "CLUSTER": f"lab:{self.lab.name}",
                "XDG_CACHE_HOME": str(tmp_path),
                "TMPDIR": str(tmp_path),
            },
        )


@pytest.fixture(scope="module")
def many(lab_allowed: Any) -> Iterator[Any]:
    """Three dead, one silent, one slow, one that lets one in at a time, one that holds one session, one without room."""
    name = f"m{os.getpid() % 10_000_000}"
    made = Many(labs.up(name, num_hosts=64, slots=1, may_mount=True))
    try:
        with Executor(made.cluster) as reach:
            config = "sed -i 's/{0}.*/{0} {1}/' /etc/ssh/lab_sshd_config && echo LoginGraceTime 600 >>/etc/ssh/lab_sshd_config"
            restart = "pkill -HUP -o sshd"
            odd = {
                BUSY: f"{config.format('MaxStartups', '1')} && {restart}",
                CROWDED: f"{config.format('MaxSessions', '1')} && {restart}",
                FULL: "mkdir /srv/many && mount -t tmpfs -o size=1m tmpfs /srv/many && { head -c 2m /dev/zero >/srv/many/fill; [ -s /srv/many/fill ]; }",
            }
            reach.run([made.hosts[r] for r in odd], lambda h: odd[h.rank], limits=PATIENT).check()
            connections.disconnect([made.way(r) for r in odd])
        for rank in DEAD:
            labs.crash(made.lab, made.lab.hosts[rank])
        yield made
    finally:
        labs.down(name)


def test_no_answer_waits_for_the_hosts_in_trouble(many: Any) -> None:
    """They are let go when all others have answered, and only then can they: whoever waited for them would not end."""
    connections.disconnect()
    heard, trouble = set(), contextlib.ExitStack()
    labs.slow(many.lab, many.lab.hosts[SLOW], mbit=1, delay_ms=None)

    def on_result(result: Any) -> None:
        heard.add(result.host.rank)
        if heard >= {h.rank for h in many.ranks(SILENT, SLOW, BUSY)}:
            trouble.close()
            labs.slow(many.lab, many.lab.hosts[SLOW], mbit=50, delay_ms=None)

    with Executor(many.cluster) as reach, trouble:
        trouble.enter_context(many.trouble(frozen))
        results = reach.run(many.hosts, "hostname; head -c 1000000 /dev/zero", limits=PATIENT, on_result=on_result)

    assert {many.hosts[r] for r in DEAD} == set(results.failed), [results[h].problem for h in results.failed]
    for host in many.ranks():
        assert f"{many.lab.name}-{host.rank}\n".encode() + bytes(1_000_000) == results[host].stdout


def test_each_host_is_reported_rightly(many: Any, tmp_path: Path) -> None:
    """In a record of its own, with what is the matter and the others' answers beside it."""
    with Executor(many.cluster) as reach:
        assert not reach.connect(many.ranks(), PATIENT).failed
        with many.trouble(silenced):
            running = many.inv(tmp_path, "run", "--json", "--connect-timeout", "20", "--", "echo $((6 * 7))")
            out, _ = running.communicate(timeout=PATIENCE_S)
    records = {r["rank"]: r for r in map(json.loads, out.splitlines())}
    lost = {rank: r["error"] for rank, r in records.items() if r["error"]}

    assert list(range(64)) == sorted(records)
    assert {*DEAD, SILENT, BUSY} == set(lost), lost
    assert {(0, "42\n")} == {(r["exit_code"], r["stdout"]) for rank, r in records.items() if rank not in lost}
    assert all("no connection: " in lost[r] or "no ssh within 20 s" in lost[r] for r in DEAD), lost
    assert "no ssh within 20 s: is it up, and is its port 22 open to this machine?" == lost[SILENT]
    assert "it turned our sessions away for 20 s: see MaxStartups and MaxSessions of its sshd" == lost[BUSY]
    assert 1 == running.returncode


def test_ctrl_c_in_the_middle_leaves_nothing(many: Any, tmp_path: Path) -> None:
    """No process on any host, no temporary file there or here."""
    (tmp_path / "script").write_text(f"#!/bin/sh\nsleep 1000.{os.getpid()} & sleep 1000.{os.getpid()}; :\n")
    with Executor(many.cluster) as reach:
        assert not reach.connect(many.ranks(), PATIENT).failed
        before = reach.run(many.ranks(), FOLDERS).check()
        running = many.inv(tmp_path, "run", "--script", str(tmp_path / "script"), "--connect-timeout", "60")
        wait_for(lambda: sleepers() == 2 * 61, 120, "it runs everywhere")
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=PATIENCE_S)
        after = reach.run(many.ranks(), FOLDERS).check()

    assert "interrupted; its processes were ended on 61 of 61 hosts" in said, said
    assert 130 == running.returncode
    assert 0 == sleepers()
    assert [r.text for r in before.values()] == [r.text for r in after.values()]
    assert ["script"] == [p.name for p in tmp_path.iterdir() if p.name != "dlami-cluster"]


def test_a_copy_reaches_all_that_can_have_it(many: Any, tmp_path: Path) -> None:
    """The dead and the one without room are named with their reasons; nothing half-written stays there."""
    with Executor(many.cluster, fanout=80) as reach:
        reach.run([many.cluster.master], "mkdir /srv/many && head -c 4000000 /dev/urandom >'/srv/many/it is'").check()
        done = copy(
            reach,
            many.cluster,
            many.hosts[1:],
            transfer("/srv/many/it is", "/srv/many/it is", patience_s=100, silence_s=60),
        )
        sums = reach.run(many.ranks(FULL), "md5sum <'/srv/many/it is'; ls -A /srv/many").check()
        rest = reach.run([many.hosts[FULL]], "ls -A /srv/many")[many.hosts[FULL]].text
    lost = {o.host.rank: str(o.error) for o in done.failed}

    assert {*DEAD, FULL} == set(lost), lost
    assert lost[FULL].startswith("no room in /srv/many: 4,000,000 bytes to come, "), lost
    assert 1 == len(sums.groups())
    assert "fill\n" == rest


@contextlib.contextmanager
def frozen(lab: Lab, hosts: Any) -> Iterator[Any]:
    """Their sshd does nothing, while the kernel still takes connections for it; afterwards it goes on at once."""
    pids = nodes.running(lab.name)

    def signal_sshd(name: Any) -> None:
        for host in hosts:
            subprocess.run(
                [
                    "nsenter",
                    "--pid",
                    "--mount",
                    "--target",
                    str(pids[host.name]),
                    "pkill",
                    f"-{name}",
                    "-o",
                    "-x",
                    "sshd",
                ],
                check=True,
                timeout=PATIENCE_S,
            )

    signal_sshd("STOP")
    try:
        yield
    finally:
        signal_sshd("CONT")


def sleepers() -> Any:
    """Processes of the interrupted script, on whatever host: this machine sees all of them."""
    found = subprocess.run(
        ["pgrep", "-fxc", rf"sleep 1000\.{os.getpid()}"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    return int(found.stdout)
