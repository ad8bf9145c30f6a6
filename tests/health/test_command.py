"""`inv health` and the look before a training, as an operator uses them."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.health.quick_check import look_at_hosts
from cluster.inventory import ROOT, Cluster, load_cluster
from cluster.ssh.fanout import Executor
from lab.record import Lab
from tests.conftest import PATIENCE_S, Inv, wait_for
from tests.health.conftest import OWN_DISK_IS_FULL, make_as_before, make_calm

FULL = "mount -t tmpfs -o size=1m tmpfs /dev/shm; head -c 2000000 /dev/zero >/dev/shm/fill; [ -s /dev/shm/fill ]"

WELL = 1 if OWN_DISK_IS_FULL else 0  # the exit code of a look at hosts that are well


@pytest.fixture(scope="module", autouse=True)
def calm(session_lab: Lab) -> Iterator[Any]:
    """This machine's own kernel log and memory are not judged here."""
    cluster = load_cluster(f"lab:{session_lab.name}")
    with Executor(cluster) as reach:
        make_calm(reach, cluster.hosts)
    yield
    with Executor(cluster) as reach:
        make_as_before(reach, cluster.hosts)


@pytest.fixture
def full(cluster: Cluster, reach: Executor) -> Iterator[Any]:
    """Rank 2's /dev/shm is full, until the test is over."""
    host = cluster.hosts[2]
    reach.run([host], FULL).check()
    yield host
    reach.run([host], "umount /dev/shm").check()


@pytest.mark.promise("health")
def test_exit_codes_and_json(inv: Inv, cluster: Cluster, full: Any) -> None:
    """2 with an unfit host, which JSON names with its verdicts; 0 for the others."""
    done = inv("health", "--json")
    said = json.loads(done.stdout)

    assert (2, 2) == (done.returncode, said["exit_code"])
    assert [full.address] == [h["host"] for h in said["hosts"] if not h["fit"]]
    problem = next(p for h in said["hosts"] for p in h["problems"] if p["unfit"])
    assert ("space", "restart-job") == (problem["check"], problem["verdict"])
    assert f"inv run --hosts {full.rank} " in problem["command"]
    assert "Deep Learning AMI" in said["hosts"][0]["why_not"]["gpu-ecc"]
    assert "unknown" not in {v for h in said["hosts"] for v in h["checks"].values()}
    well = inv("health", "--hosts", f"!{full.rank}")
    assert WELL == well.returncode, well.stdout
    assert OWN_DISK_IS_FULL or re.fullmatch(r"all 3 hosts are well \(quick, [\d.]+ s\)\n", well.stdout)


def test_history_says_what_changed_and_who_was_unfit_before(inv: Inv, cluster: Cluster, reach: Executor) -> None:
    """A fault comes, stays, goes: --since says so, and the second look in a row says that it is the second."""
    assert WELL == inv("health").returncode
    reach.run([cluster.hosts[1]], FULL).check()
    came = inv("health", "--since")
    stayed = inv("health")
    same = inv("health", "--since", "last")
    reach.run([cluster.hosts[1]], "umount /dev/shm").check()
    went = inv("health", "--since", "1s")
    bad = inv("health", "--since", "yesterday")

    assert f"new   {cluster.hosts[1].address}  /dev/shm is full" in came.stdout
    assert 2 == came.returncode
    assert f"{cluster.hosts[1].address}: unfit in the look before too" in stayed.stdout
    assert same.stdout.startswith("nothing changed\nsince 20")
    assert f"gone  {cluster.hosts[1].address}  /dev/shm is full" in went.stdout
    assert (2, True) == (bad.returncode, "expected 'last' or an age like 30m" in bad.stderr)


def test_watch_prints_only_changes(lab: Lab, cluster: Cluster, reach: Executor) -> None:
    """The first look whole, then nothing until something happens."""
    running = subprocess.Popen(
        [sys.executable, "-m", "invoke", "health", "--watch", "--interval", "0.5"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "CLUSTER": f"lab:{lab.name}"},
    )
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(iter(running.stdout.readline, "")), daemon=True)
    reader.start()
    try:
        wait_for(lambda: len(lines) > 0, 60, "the first look")
        reach.run([cluster.hosts[3]], FULL).check()
        wait_for(lambda: any("  new   " in line for line in lines), 60, "the fault")
        reach.run([cluster.hosts[3]], "umount /dev/shm").check()
        wait_for(lambda: any("  gone  " in line for line in lines), 60, "its end")
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(PATIENCE_S)

    assert OWN_DISK_IS_FULL or "all 4 hosts are well" in lines[0]
    assert f"new   {cluster.hosts[3].address}  space  unfit: /dev/shm is full" in lines[1]
    assert [f"gone  {cluster.hosts[3].address}  space  unfit"] == [line.split("  ", 1)[1].strip() for line in lines[2:]]


def test_a_training_refuses_unfit_hosts(inv: Inv, cluster: Cluster, full: Any) -> None:
    """Nothing is started, and both ways out are named."""
    done = inv("train.resnet50", "--detach", "--", "--synthetic", "--num-batches", "1")

    assert 2 == done.returncode, done.stderr
    assert f"unfit  {full.address} (rank 2): /dev/shm is full" in done.stderr
    assert (
        "nothing was started: mend them, train on the others with --skip-unfit, or look away with --unchecked"
        in done.stderr
    )
    assert "[]" == inv("jobs.list", "--json").stdout.strip()


def test_a_training_can_leave_unfit_hosts_out(inv: Inv, cluster: Cluster, full: Any) -> None:
    """It says which ranks are left, and mpirun gets them; --unchecked takes all."""
    others = inv("train.resnet50", "--skip-unfit", "--dry-run", "--", "--synthetic", "--num-batches", "1")
    every = inv("train.resnet50", "--unchecked", "--dry-run", "--", "--synthetic", "--num-batches", "1")

    a, b, c = (cluster.hosts[i].address for i in (0, 1, 3))
    assert (
        f"left out: {full.address} (rank 2 of the hostfile, 2 slots)\n6 ranks train: {a} 0-1, {b} 2-3, {c} 4-5"
        in others.stderr
    )
    assert "-np 6 " in others.stdout
    assert "-np 8 " in every.stdout


def test_this_machine_alone_can_be_looked_at(tmp_path: Path) -> None:
    """`localhost` in the hostfile: no SSH, and nothing to compare with."""
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    (tmp_path / "cluster.toml").write_text(f'shared = "{tmp_path}"\n')
    cluster = load_cluster(str(tmp_path))
    with Executor(cluster) as reach:
        report = look_at_hosts(reach, cluster, cluster.hosts)

    assert "ok" == report.findings[cluster.master][f"place:{tmp_path}"].verdict.value
    assert not {"answers", "ssh", "versions"} & {p.check for p in report.problems[cluster.master]}
    assert 1 == len(list((tmp_path / "health/looks").glob("*.json")))


def test_rungs_that_measure_refuse_hosts_with_a_job(inv: Inv, lab: Lab, cluster: Cluster) -> None:
    """Or with what may be one, by a record that is damaged. Exit code 2, before anything is measured."""
    folder = lab.shared / "jobs/20261120-000000-resnet50-aa"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps({"state": "running"}))
    (folder / "hosts").write_text(f"{cluster.hosts[1].address} slots=2\n")
    try:
        done = inv("health", "--net")
    finally:
        for path in (*folder.iterdir(), folder):
            path.rmdir() if path.is_dir() else path.unlink()

    assert 2 == done.returncode
    where = cluster.hosts[1].address
    assert f"the record of {folder.name} is damaged, and it may run on {where}: the net rung needs" in done.stderr
