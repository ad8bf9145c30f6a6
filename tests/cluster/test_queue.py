"""Jobs that wait for their hosts: real supervisors and mpirun on this machine, with shell scripts as ranks, no lab."""

import dataclasses
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.jobs.claim import claim_hosts, give_back
from cluster.jobs.client import job_table, show
from cluster.jobs.master.lost_jobs import LostJob, heal_lost
from cluster.jobs.master.stop import stop
from cluster.jobs.master.submit import submit
from cluster.jobs.record import JobPaths, JobView, read_job
from cluster.jobs.records import read_all, view, view_all
from cluster.jobs.state import JobState
from cluster.jobs.status import read_status
from cluster.typed import from_json
from tests.cluster.jobs_here import HERE, a_job, ended, is_there, wait_until

pytestmark = [
    pytest.mark.slow,  # real supervisors and mpirun, some seconds each
    pytest.mark.skipif(not shutil.which("mpirun"), reason="needs Open MPI"),
]


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """What the job that has the host waits for."""
    return tmp_path / "go"


def queued(script: str, job_id: str, **changes: Any) -> Any:
    """A job that waits for this machine; its one rank is a shell script."""
    fields = {
        "command": ("sh", "-c", script),
        "mpirun": (),
        "hosts": (),
        "wanted": (HERE,),
        "whole_np": 1,
        "heal": True,
    }
    return a_job("", job_id, **{**fields, **changes})


def holding(folder: Path, job_id: str, go: Path) -> JobPaths:
    """A job that has this machine until `go` is there."""
    return submit(folder, a_job(f"until [ -e {go} ]; do sleep 0.1; done", job_id, whole_np=1, whole_hosts=(HERE,)))


def state(paths: JobPaths) -> JobState:
    return read_status(paths).state


def place(paths: JobPaths) -> int | None:
    found = view(paths).queue
    return found.number if found else None


def said(paths: JobPaths) -> str:
    return paths.console(1).read_text() if paths.console(1).exists() else ""


def test_first_in_first_out(folder: Path, job_id: str, go: Path, tmp_path: Path) -> None:
    """Each waits and says for what, nobody goes past, and they run one after the other in their order."""
    first = holding(folder, f"{job_id}-x", go)
    order = tmp_path / "order"
    line = [submit(folder, queued(f"echo {name} >>{order}", f"{job_id}-{name}")) for name in "bac"]
    wait_until(lambda: all("in the queue" in said(p) for p in line), "each has looked")

    assert [1, 2, 3] == [place(p) for p in line]
    assert f"dlami: place 1 in the queue, waits for localhost, taken by {job_id}-x\n" in said(line[0])
    with pytest.raises(
        ConfigError, match=rf"hosts taken by {job_id}-x \(running\): localhost; wait for them with --queue"
    ):
        submit(folder, a_job("exit 0", f"{job_id}-d"))
    listed = job_table.table(view_all(folder, read_all(folder))[0], everything=False)
    assert f"{job_id}-a  queued" in listed
    assert f"place 2 in the queue, waits for localhost, taken by {job_id}-x" in listed
    shown = view(line[1])
    assert "queue        place 2 in the queue" in show.one(shown)
    assert shown == from_json(JobView, json.loads(json.dumps(dataclasses.asdict(shown))))

    status = stop(line[2])
    assert (JobState.STOPPED, "stopped while it waited in the queue") == (status.state, status.cause)
    go.touch()
    for paths in (first, *line[:2]):
        ended(paths)
        assert JobState.SUCCEEDED is state(paths), said(paths)
    assert ["b", "a"] == order.read_text().split()
    assert "out of the queue: 1 rank on localhost" in said(line[0])
    assert (HERE.address,) == tuple(h.address for h in read_job(line[0]).hosts)


def test_who_waits_is_not_passed_by_who_does_not_queue(folder: Path, job_id: str, go: Path, tmp_path: Path) -> None:
    """Its supervisor stopped, it has not seen yet that its host is free: it is kept for it all the same."""
    first = holding(folder, f"{job_id}-x", go)
    waiting = submit(folder, queued("exit 0", f"{job_id}-a"))
    wait_until(lambda: "in the queue" in said(waiting), "it has looked")
    supervisor = read_status(waiting).supervisor
    assert supervisor
    os.kill(supervisor.pid, signal.SIGSTOP)
    go.touch()
    ended(first)
    try:
        with pytest.raises(ConfigError, match=f"{job_id}-a waits in the queue for localhost: wait behind it with --qu"):
            submit(folder, a_job("exit 0", f"{job_id}-d"))
    finally:
        os.kill(supervisor.pid, signal.SIGCONT)
    ended(waiting)
    assert JobState.SUCCEEDED is state(waiting)


def test_the_place_of_one_whose_supervisor_went_is_kept(
    folder: Path, job_id: str, go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed, or ended with the master's shutdown: taken up each waits where it waited, with --no-heal too."""
    systemctl = tmp_path / "bin/systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text("#!/bin/sh\necho stopping\n")
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{systemctl.parent}:{os.environ['PATH']}")
    holding(folder, f"{job_id}-x", go)
    order = tmp_path / "order"
    line = [submit(folder, queued(f"echo {name} >>{order}", f"{job_id}-{name}", heal=False)) for name in "bca"]
    wait_until(lambda: all("in the queue" in said(p) for p in line), "all have looked")
    for paths, how in zip(line[:2], (signal.SIGKILL, signal.SIGTERM), strict=True):
        supervisor = read_status(paths).supervisor
        assert supervisor
        os.kill(supervisor.pid, how)
        wait_until(lambda one=supervisor: not is_there(one), "it is gone")
        assert JobState.LOST is state(paths)
    assert [None, None, 1] == [place(p) for p in line]
    assert [LostJob(id=f"{job_id}-{name}", goes_on=True) for name in "bc"] == heal_lost(folder)
    assert [1, 2, 3] == [place(p) for p in line]
    go.touch()
    for paths in line:
        ended(paths)

    assert ["b", "c", "a"] == order.read_text().split()


def test_a_host_that_a_job_of_elsewhere_has_is_waited_for(folder: Path, job_id: str, tmp_path: Path) -> None:
    """Its turn has come by the records, and the host says that it is taken: it waits, and goes on when it is free."""
    other = a_job("", f"{job_id}-other")
    claim_hosts(other, tmp_path / "elsewhere")
    try:
        paths = submit(folder, queued("exit 0", f"{job_id}-a"))
        wait_until(lambda: f"waits: hosts taken by {job_id}-other" in said(paths), "it has heard", 90)
        assert JobState.QUEUED is state(paths)
    finally:
        give_back(other)
    ended(paths)
    assert JobState.SUCCEEDED is state(paths)


def test_what_never_begins_says_so_and_can_be_stopped(folder: Path, job_id: str) -> None:
    """Its turn has come, and its hosts cannot be had: why is in its record, its host is held, it is taken up, and a stop is heard."""
    away = Host(rank=0, address="nowhere.invalid", slots=1)
    paths = submit(folder, queued("exit 0", job_id, wanted=(away,)))
    wait_until(lambda: "nowhere.invalid does not answer" in read_status(paths).cause, "it has looked", 90)

    assert JobState.QUEUED is state(paths)
    with pytest.raises(ConfigError, match=rf"hosts taken by {job_id} \(queued\): nowhere.invalid"):
        submit(folder, a_job("exit 0", f"{job_id}-b", hosts=(away,)))
    supervisor = read_status(paths).supervisor
    assert supervisor
    os.kill(supervisor.pid, signal.SIGKILL)
    wait_until(lambda: not is_there(supervisor), "it is gone")
    assert [LostJob(id=job_id, goes_on=True)] == heal_lost(folder)
    wait_until(lambda: 2 == said(paths).count("its turn has come"), "it has given its host back and taken it again", 90)
    assert JobState.STOPPED is stop(paths).state


def test_another_host_that_it_may_have_takes_the_place_of_one_that_is_unfit(
    folder: Path, job_id: str, tmp_path: Path
) -> None:
    """Found when its turn has come, and told when it starts; what it did not need is no spare of its own."""
    away = Host(rank=0, address="nowhere.invalid", slots=1)
    wanted = (away, dataclasses.replace(HERE, rank=1))
    paths = submit(folder, queued("exit 0", job_id, wanted=wanted, notify=f"sh -c 'cat >>{tmp_path}/told'"))
    ended(paths)

    assert JobState.SUCCEEDED is state(paths), said(paths)
    assert [HERE.address] == [h.address for h in read_job(paths).hosts]
    assert () == read_job(paths).plan.spares
    assert "spare localhost takes the place of nowhere.invalid" in said(paths)
    wait_until(lambda: "ended" in (tmp_path / "told").read_text(), "all is told")
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert [("started", 1), ("ended", 1)] == [(one["event"], one["attempt"]) for one in told]


def test_the_next_attempt_of_a_job_queues_at_the_end(folder: Path, job_id: str, go: Path, tmp_path: Path) -> None:
    """Its first attempts, its number among the cluster's jobs and its folder stay; its place is a new one."""
    first = submit(folder, queued("exit 3", f"{job_id}-a", heal=False))
    ended(first)
    assert JobState.FAILED is state(first)
    holding(folder, f"{job_id}-x", go)
    second = submit(folder, queued("exit 0", f"{job_id}-b"))
    again = queued("exit 0", f"{job_id}-a", attempt=2)
    assert first == submit(folder, again)
    assert [2, 1] == [place(p) for p in (first, second)]
    go.touch()
    for paths in (first, second):
        ended(paths)
        assert JobState.SUCCEEDED is state(paths), said(paths)

    seen = view(first)
    assert [1, 2] == [a.number for a in seen.attempts]
    assert 1 == seen.job.sequence


def test_jobs_of_one_gpu_share_a_host(folder: Path, job_id: str, go: Path, tmp_path: Path) -> None:
    """As many as it has, each with a GPU and a port of its own; one more waits, and whoever needs all of it is refused."""
    host, said_gpus = dataclasses.replace(HERE, slots=3), tmp_path / "gpus"
    script = f'echo "$CUDA_VISIBLE_DEVICES $MASTER_PORT" >>{said_gpus}; until [ -e {go} ]; do sleep 0.1; done'
    share: Any = {"wanted": (host,), "slots": {HERE.address: 3}, "exclusive": False, "python": sys.executable}
    line = [submit(folder, queued(script, f"{job_id}-{n}", **share)) for n in range(4)]
    wait_until(lambda: said_gpus.exists() and 3 == said_gpus.read_text().count("\n"), "three run")

    gpus, ports = zip(*(one.split() for one in said_gpus.read_text().splitlines()), strict=True)
    assert ["0", "1", "2"] == sorted(gpus)
    assert 3 == len({*ports})
    running = [paths for paths in line if state(paths) is JobState.RUNNING]
    assert [(0,), (1,), (2,)] == sorted(read_job(p).plan.claimed[HERE.address] for p in running)
    (waiting,) = [p for p in line if p not in running]
    assert 1 == place(waiting)
    with pytest.raises(ConfigError, match=r"hosts taken by \S+ \(running\): localhost"):
        submit(folder, a_job("exit 0", f"{job_id}-all", hosts=(host,), np=3, slots={HERE.address: 3}, exclusive=False))
    go.touch()
    for paths in line:
        ended(paths)
        assert JobState.SUCCEEDED is state(paths), said(paths)
