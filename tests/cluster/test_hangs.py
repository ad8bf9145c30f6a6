"""Hangs on real hosts: the rank that the others wait for is named with its line, and the job goes on after it."""

import json
import signal
import subprocess
import sys
from typing import Any

from cluster.inventory import ROOT, Cluster
from cluster.jobs.state import JobState
from cluster.recovery.failure_kinds import FailureKind
from cluster.ssh.fanout import Executor
from lab.record import Lab
from tests.cluster.flat_jobs import changed
from tests.cluster.lab_jobs import a_job
from tests.conftest import wait_for

HANG_AFTER_S = 8.0  # instead of 30, so that a test takes no longer than it must
PYTHON = str(ROOT / ".venv/bin/python")
# Steps that all ranks take together; one of them can be sent into a loop, in the first attempt.
PROGRAM = """\
from pathlib import Path
import os
import time
from dlami.heartbeat import Phase, beat, beat_file
beat.begin(beat_file())
import horovod.tensorflow as hvd
import tensorflow as tf

def spin():
    while True:
        sum(range(10000))

hvd.init()
beat.enter(Phase.COMPILE)
for step in range(1, 10**6):
    if Path("../loop").exists() and hvd.rank() == 2 and os.environ["DLAMI_ATTEMPT"] == "1":
        spin()
    hvd.allreduce(tf.constant([1.0]), name="one")
    beat.stepped(step)
    if step % 10 == 0:
        print("steps on", flush=True)
    time.sleep(0.02)
"""


class Running:
    """A job whose ranks step, and what becomes of it."""

    def __init__(self, lab: Lab, jobs: Any, reach: Executor, job: Any) -> None:
        terms = {"heal": True, "whole_np": job.np, "whole_hosts": job.hosts, "min_np": 2, "hang_after": HANG_AFTER_S}
        self.jobs, self.reach, self.job = jobs, reach, changed(job, **terms)
        self.folder = lab.shared / "jobs" / job.id
        jobs.submit(self.job)

    def steps(self, attempt: int) -> None:
        """Until all ranks have taken a few, or some more."""
        before = self.console(attempt).count("steps on")
        wait_for(
            lambda: self.console(attempt).count("steps on") > before + 8, 200, f"it steps\n{self.console(1)[-2000:]}"
        )

    def console(self, attempt: int) -> str:
        path = self.folder / f"logs/attempt-{attempt}/console.log"
        return path.read_text() if path.exists() else ""

    def signal(self, number: int, host: Any, pattern: str) -> None:
        """To processes of this name or command on a host that are of the job."""
        script = (
            f"for p in $({pattern}); do grep -qz DLAMI_JOB={self.job.id} /proc/$p/environ && kill -{number} $p; done"
        )
        self.reach.run([host], script).check()

    def ended(self, attempt: int) -> Any:
        """What became of an attempt."""
        wait_for(lambda: (self.attempts()[attempt - 1 :] or [{}])[0].get("what") is not None, 150, "it has ended")
        return self.attempts()[attempt - 1]

    def attempts(self) -> Any:
        path = self.folder / "attempts.json"
        return json.loads(path.read_text())["attempts"] if path.exists() else []

    def warnings(self) -> list[str]:
        return [w.partition(" (")[0] for w in self.jobs.show(self.job.id).status.warnings]


def test_hangs_are_named_and_healed_and_what_only_looks_like_one_is_borne(
    lab: Lab, jobs: Any, reach: Executor, cluster: Cluster
) -> None:
    """A stopped orted and a busy machine are no hang, with a word about the former while it is so. Three ranks that wait
    in a reduction for one in an endless loop are; so are those that wait for one that was stopped. Each time the next
    attempt goes on, the second time without the host by which ranks have hung twice."""
    (lab.shared / "steps.py").write_text(PROGRAM)
    host = cluster.hosts[1]
    running = Running(
        lab, jobs, reach, with_path(a_job(reach, cluster, cluster.hosts[:2], (PYTHON, "/shared/steps.py")))
    )
    running.steps(1)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        running.signal(signal.SIGSTOP, host, "pgrep -x orted")
        wait_for(lambda: "dlami: warning: mpirun's orted on " in running.console(1), 60, "the daemon is seen")
        wait_for(lambda: [f"mpirun's orted on {host.address} is stopped"] == running.warnings(), 60, "it is on record")
        running.signal(signal.SIGCONT, host, "pgrep -x orted")
        running.steps(1)
        wait_for(lambda: [] == running.warnings(), 60, "it is taken back")
    finally:
        for one in busy:
            one.kill()
            one.wait()
    assert JobState.RUNNING is jobs.show(running.job.id).state
    (running.folder / "loop").touch()
    looped = running.ended(1)
    running.steps(2)
    running.signal(signal.SIGSTOP, host, "pgrep -f '^[^ ]*python /shared/steps.py' | tail -1")
    stopped = running.ended(2)
    running.steps(3)
    status = jobs.stop(running.job.id).status

    stacks = (running.folder / "logs/attempt-1/stacks.txt").read_text()
    assert (FailureKind.HANG, 2, host.address) == (looped["what"], looped["rank"], looped["host"]), looped
    assert f"rank 2 on {host.address} hangs: it is stepping in spin (shared/steps.py:11)" in looped["text"]
    assert "no progress for" in looped["text"]
    assert "ranks 0-1,3 on " in stacks
    assert (FailureKind.HANG, 3, host.address) == (stopped["what"], stopped["rank"], stopped["host"]), stopped
    assert f"rank 3 on {host.address} hangs: it was stopped (SIGSTOP or a debugger) in " in stopped["text"]
    assert [cluster.hosts[0].address] == running.attempts()[2]["hosts"]
    assert (JobState.STOPPED, 3, ()) == (status.state, status.attempt, status.left)
    left = reach.run(cluster.hosts[:2], "ls /dev/shm | grep dlami-beat; true").check()
    assert {""} == {r.text for r in left.values()}


def with_path(job: Any) -> Any:
    """The job with the trainers' code where a program outside of it finds it, in each of its attempts."""
    at = job.plan.mpirun.index("-x")
    mpirun = (*job.plan.mpirun[:at], "-x", "PYTHONPATH=.", *job.plan.mpirun[at:])
    return changed(job, mpirun=mpirun, environment={"PYTHONPATH": "."})
