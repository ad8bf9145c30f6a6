"""Faults while one looks at jobs: hosts that are dead or talk garbage, lost connections, lines of 10 MB, ten attempts.

`inv top` has its own in test_top_on_hosts.py, terminals that are resized are in test_live_curves.py and there.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.files import write_json
from cluster.inventory import ROOT, Cluster
from cluster.jobs.process import ProcessId
from cluster.jobs.record import JobPaths, JobStatus
from cluster.jobs.record_lease import take_lease
from cluster.jobs.state import JobState
from cluster.ssh import connections
from cluster.ssh.fanout import Executor
from lab import lab as labs
from lab.record import Lab
from tests.cluster.garbage import garbage_for_python
from tests.cluster.made_job import made_job, write_metrics
from tests.cluster.pages import fetched, tensorboard
from tests.conftest import PATIENCE_S, Inv, wait_for

STEPS, ATTEMPTS = 1000, 10
LONG = "x" * 10_000_000


def looks(job: str) -> dict[str, list[str]]:
    """Every task that looks at a job."""
    return {
        "list": ["jobs.list", "--all", "--json"],
        "logs": ["jobs.logs", job, "--grep", "step|bytes more"],
        "report": ["jobs.report", job, "--json"],
        "watch": ["jobs.watch", job, "--once"],
        "tensorboard": ["tensorboard", job, "--no-browser"],
    }


@pytest.fixture
def long_night(lab: Lab) -> Iterator[JobPaths]:
    """A job of ten attempts, with lines of 10 MB in each one's console and in its metrics."""
    paths = made_job(lab.shared, name="20260101-000000-night-ab12", steps=STEPS, attempts=ATTEMPTS)
    write_metrics(paths, STEPS)
    with paths.metrics.open("a") as file:
        file.write(f"{LONG}\n" + json.dumps({"kind": "train", "step": STEPS - 1, "time": 1.77e9, "loss": 0.125}) + "\n")
    for attempt in range(1, ATTEMPTS + 1):
        paths.logs(attempt).mkdir(exist_ok=True)
        paths.console(attempt).write_text(f"[1,1]<stdout>:{LONG}\n[1,0]<stdout>:step of attempt {attempt}\n")
    yield paths
    subprocess.run(["rm", "-r", str(paths.folder)], check=True)


def test_whoever_looks_sees_past_hosts_that_are_dead_or_talk_garbage(
    lab: Lab, cluster: Cluster, reach: Executor, inv: Inv, long_night: JobPaths
) -> None:
    """Workers' troubles, lines of 10 MB and ten attempts keep nothing from being shown, in its whole length."""
    name = long_night.folder.name
    labs.crash(lab, lab.hosts[3])
    with garbage_for_python(reach, cluster.hosts[2]):
        said = {what: inv(*words) for what, words in looks(name).items() if what != "tensorboard"}
        with tensorboard(lab, name) as (_, page):
            values = f"{page['url']}data/plugin/scalars/scalars?tag=train%2Floss&run={name}"
            wait_for(lambda: [STEPS - 1, 0.125] == json.loads(fetched(values)[1])[-1][1:], 60, "its last step is shown")
        since = inv("jobs.logs", name, "--since", "1d", "--rank", "1")

    assert dict.fromkeys(said, (0, "")) == {what: (d.returncode, d.stderr) for what, d in said.items()}
    (listed,) = (one for one in json.loads(said["list"].stdout) if one["id"] == name)
    assert (ATTEMPTS, STEPS, "succeeded") == (listed["attempt"], listed["progress"]["step"], listed["state"])
    assert ["step of attempt 10"] == said["logs"].stdout.splitlines()[1:]
    assert "bytes more" in said["logs"].stdout.splitlines()[0]
    report = json.loads(said["report"].stdout)
    assert (ATTEMPTS, 1) == (len(report["view"]["attempts"]), report["measured"]["damaged"])
    assert "train loss: " in said["watch"].stdout
    assert ATTEMPTS == since.stdout.count("bytes more\n")


def test_a_master_that_answers_with_garbage_is_named(
    cluster: Cluster, reach: Executor, long_night: JobPaths, tmp_path: Path
) -> None:
    """In a sentence, by every task that looks."""
    script = "#!/bin/sh\necho 'garbage { [ 7'\n"
    where = "mkdir -p /opt/garbage/.venv/bin && cd /opt/garbage/.venv/bin && cat >python && chmod 755 python"
    reach.run([cluster.master], where, stdin=script.encode()).check()
    shutil.copytree(
        cluster.folder, tmp_path / "lab", ignore=lambda folder, names: set(names) - {"hosts", "cluster.toml"}
    )
    settings = tmp_path / "lab/cluster.toml"
    lines = [line for line in settings.read_text().splitlines() if not line.startswith("project")]
    settings.write_text("\n".join(['project = "/opt/garbage"', *lines]) + "\n")
    try:
        for what, words in looks(long_night.folder.name).items():
            one = subprocess.run(
                [sys.executable, "-m", "invoke", *words],
                cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, env={**os.environ, "CLUSTER": str(tmp_path / "lab")},
            )  # fmt: skip
            if what != "logs":  # which prints what comes
                assert 1 == one.returncode, (what, one)
                assert f"the master ({cluster.master.address})" in one.stderr, (what, one)
            assert "Traceback" not in one.stderr, (what, one)
    finally:
        reach.run([cluster.master], "rm -r /opt/garbage").check()


@contextlib.contextmanager
def going(paths: JobPaths, cluster: Cluster, reach: Executor) -> Iterator[None]:
    """The job goes on, as far as its lease tells, which a process elsewhere keeps renewed."""
    holder, over = ProcessId(host="elsewhere", pid=1, started=1, boot="another"), threading.Event()
    before = json.loads(paths.status.read_text())
    now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    status = JobStatus(state=JobState.RUNNING, attempt=ATTEMPTS, supervisor=holder, started=now)

    def renew() -> None:
        while not over.wait(1):
            take_lease(paths, ATTEMPTS, holder)

    take_lease(paths, ATTEMPTS, holder)
    write_json(paths.status, dataclasses.asdict(status))
    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        yield
    finally:
        over.set()
        renewing.join()
        write_json(paths.status, before)


@contextlib.contextmanager
def looking(lab: Lab, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A task that goes on, with its output in pipes."""
    task = subprocess.Popen(
        [sys.executable, "-m", "invoke", *words],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "CLUSTER": f"lab:{lab.name}"},
    )  # fmt: skip
    try:
        yield task
    finally:
        task.kill()
        task.wait()


FOLLOWS = "pgrep -f '[c]luster.jobs .* logs '"


class Said:
    """What a task says, read as it comes."""

    def __init__(self, task: "subprocess.Popen[bytes]") -> None:
        self.text = ""
        self._task = task
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._task.stdout
        while data := os.read(self._task.stdout.fileno(), 1 << 16):
            self.text += data.decode(errors="replace")

    def wait_for(self, what: str, times: int = 1) -> None:
        wait_for(lambda: self.text.count(what) >= times, 120, f"{what!r} in {self.text[-500:]!r}")


def test_a_connection_that_is_lost_while_one_follows(
    lab: Lab, cluster: Cluster, reach: Executor, long_night: JobPaths
) -> None:
    """`jobs.watch` and `jobs.logs -f` go on over a new one, and nothing is printed twice."""
    name = long_night.folder.name
    with going(long_night, cluster, reach):
        with looking(lab, "jobs.logs", name, "--follow") as logs:
            said = Said(logs)
            said.wait_for("step of attempt 10")
            connections.disconnect()
            said.wait_for("the connection to the master broke")
            wait_for(lambda: reach.run([cluster.master], FOLLOWS)[cluster.master].ok, 120, "it is followed again")
            assert 1 == said.text.count("step of attempt 10")
            assert "dlami-log-starts" not in said.text
            logs.send_signal(signal.SIGINT)
            assert 0 == logs.wait(PATIENCE_S)
        look = "ps -eo pid,stat,wchan:30,args | grep '[c]luster.jobs .* logs '; true"
        deadline = time.monotonic() + PATIENCE_S
        while (seen := reach.run([cluster.master], look)[cluster.master]).stdout or not seen.ok:
            assert time.monotonic() < deadline, f"nobody follows there: {seen}"
        with looking(lab, "jobs.watch", name, "--watch", "1") as watch:
            said = Said(watch)
            said.wait_for("train loss: ")
            connections.disconnect()
            said.wait_for("train loss: ", said.text.count("train loss: ") + 2)
