"""Own programs on lab hosts."""

import json
import re
import subprocess
from collections.abc import Callable
from typing import Any

from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.tagged_processes import list_script
from lab.record import Lab
from tests.conftest import wait_for

Own = Callable[..., "subprocess.CompletedProcess[str]"]


# Steps with a checkpoint after each, as anybody would write them; what is asked of it beside is in files.
STEPS = """\
import os, pathlib, sys, time
from dlami import job

rank, folder = int(os.environ["RANK"]), pathlib.Path(os.environ["DLAMI_JOB_DIR"])
done = int(job.resume().name.partition("-")[2]) if job.resume() else 0
print("goes on after", done, flush=True)
while not (folder / "enough").exists():
    time.sleep(0.05)
    done += 1
    job.beat(done)
    if rank == 0:
        (folder / "checkpoints" / f"step-{done}").touch()
    if job.stopping():
        print("saved and left", flush=True)
        sys.exit(0)
"""


def begun(own: Own, *words: object) -> str:
    """A job's id, started and left alone."""
    done = own("train.run", "--detach", "--unchecked", *words)
    found = re.search(r"^job (\S+): ", done.stderr, re.MULTILINE)
    assert found, done.stdout + done.stderr
    return found[1]


def state(lab: Lab, job: str) -> Any:
    return json.loads((lab.shared / "jobs" / job / "state.json").read_text())


def console(lab: Lab, job: str, attempt: int) -> str:
    path = lab.shared / "jobs" / job / f"logs/attempt-{attempt}/console.log"
    return path.read_text() if path.exists() else ""


def over(lab: Lab, job: str, within_s: float = 180) -> Any:
    """How it ended."""
    wait_for(lambda: state(lab, job)["state"] in ("succeeded", "failed", "stopped"), within_s, f"{job} ends")
    return state(lab, job)


def processes(reach: Executor, cluster: Cluster, job: str) -> list[str]:
    results = reach.run(cluster.hosts, list_script("DLAMI_JOB", job)).check()
    return [line for r in results.values() for line in r.text.splitlines()]
