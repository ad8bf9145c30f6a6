"""An hour in which something breaks every five minutes: a real training goes on by itself, and ends as if nothing had been.

DLAMI_HOUR_SECONDS and DLAMI_HOUR_INTERVAL make it shorter, DLAMI_HOUR_SEED draws other faults:
`DLAMI_HOUR_SECONDS=600 .venv/bin/python -m pytest -s -m long tests/faults/test_hour.py`.
"""

import json
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab import lab as labs
from lab.record import Lab, LabHost
from tests.conftest import Inv, operator_of, wait_for
from tests.faults.breaking import FAULTS, LOOPS, Fault, Undo, inside

SECONDS = float(os.environ.get("DLAMI_HOUR_SECONDS", "3600"))
INTERVAL_S = float(os.environ.get("DLAMI_HOUR_INTERVAL", "300"))
SEED = int(os.environ.get("DLAMI_HOUR_SEED", "1"))
LOST_S = 75.0  # at a fault, at most: 45 s to heal and 30 s of work
START_S = 300.0  # for the first step, on a busy machine
EVERY = 10  # steps from one checkpoint that both trainings have to the next
TRAINING = (
    "--synthetic", "--deterministic", "--model", "resnet18", "--image-size", "32", "--batch-size", "4", "--classes", "10",
    "--num-batches", "1000000", "--threads", "1", "--display-every", "10", "--checkpoint-every", str(EVERY),
    "--checkpoint-seconds", "30", "--keep", "6",
)  # fmt: skip
RANK = "pgrep -f '^[^ ]*python.* -m trainer.resnet50' | tail -1"


def _rank(number: str) -> Fault:
    def strike(lab: Lab, host: LabHost) -> Undo:
        inside(lab, host, f"kill -{number} $({RANK})", check=True)
        return lambda: None

    return Fault(strike)


def _noticed(lab: Lab, host: LabHost) -> Undo:
    labs.notice(lab, host, "spot", 120)
    return lambda: labs.notice(lab, host, "none", 0)


# What is broken, and after how many seconds it is mended; 0: nobody mends it.
OF_A_WORKER: dict[str, tuple[Fault, float]] = {
    "rank killed": (_rank("KILL"), 0),
    "rank stopped": (_rank("STOP"), 0),
    "rank in an endless loop": (_rank("USR2"), 0),
    "rank told to end": (_rank("TERM"), 0),
    "host will go": (Fault(_noticed), 20),
    "power cut": (FAULTS["power cut"], 20),
    "network cut": (FAULTS["network cut"], 20),
    "network gone for 3 s": (FAULTS["network gone for 3 s"], 0),
    "our processes killed": (FAULTS["our processes killed"], 0),
    "our processes frozen": (FAULTS["our processes frozen"], 60),
    "/shared gone": (FAULTS["/shared gone"], 20),
}
OF_THE_MASTER: dict[str, tuple[Fault, float]] = {
    "mpirun killed": (FAULTS["mpirun killed"], 0),
    "mpirun frozen": (FAULTS["mpirun frozen"], 0),
    "supervisor frozen": (FAULTS["supervisor frozen"], 20),
    "power cut and back": (FAULTS["power cut and back"], 0),
    "/shared full": (FAULTS["/shared full"], 20),
    "/shared hangs": (FAULTS["/shared hangs"], 60),
}


def faults() -> list[str]:
    """All kinds in a random order, again and again."""
    kinds = [*OF_A_WORKER, *OF_THE_MASTER]
    random.Random(SEED).shuffle(kinds)
    count = int(SECONDS / INTERVAL_S)
    return (kinds * (1 + count // len(kinds)))[:count]


@pytest.fixture
def hour_lab(lab_allowed: None) -> Iterator[Lab]:
    """Four hosts of one slot and a spare; the shared folder is in memory, so that it has an end that can be reached."""
    name = f"h{os.getpid() % 10_000_000}"
    try:
        lab = labs.up(name, 4, 1, spares=1, may_mount=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2g", "tmpfs", str(lab.shared)], check=True, timeout=60)
        _crash_all(lab)
        labs.heal(lab, lab.hosts)
        (lab.shared / "loops").mkdir()
        (lab.shared / "loops/sitecustomize.py").write_text(LOOPS)
        yield lab
    finally:
        if labs.is_anything_left(name):
            _crash_all(labs.named(name))
            subprocess.run(["umount", "-l", str(labs.named(name).shared)], check=False, timeout=60)
            labs.down(name)


def _crash_all(lab: Lab) -> None:
    for host, running in labs.statuses(lab):
        if running != "down":
            labs.crash(lab, host)


class Job:
    """A training on this lab."""

    def __init__(self, lab: Lab, inv: Inv, name: str) -> None:
        options = ("--hosts", "0-3", "--detach", "--attempts-per-hour", "0", "--env", "PYTHONPATH=/shared/loops")
        begun = inv("train.resnet50", *options, "--name", name, "--", *TRAINING)
        assert 0 == begun.returncode, begun.stderr
        self.folder = next((lab.shared / "jobs").glob(f"*-{name}-*"))
        self.id = self.folder.name

    def attempts(self) -> list[dict[str, Any]]:
        """What is on record of them."""
        try:
            return list(json.loads((self.folder / "attempts.json").read_text())["attempts"])
        except (OSError, ValueError):
            return []

    def trains(self) -> bool:
        """Its newest attempt has made a step, and goes on; fails if nothing follows any more."""
        state = json.loads((self.folder / "state.json").read_text())["state"]
        assert state in ("starting", "running", "healing", "stopping"), f"{state}\n{self.story()}"
        last = (self.attempts() or [{}])[-1]
        return state == "running" and last.get("first_step_at") is not None and last.get("what") is None

    def story(self) -> str:
        """How its attempts ended, a line for each."""
        return "\n".join(f"{a['number']}: {a['what']} {a['text']} | {a['then']}" for a in self.attempts())

    def saved(self) -> set[int]:
        """The steps of its whole checkpoints that any training with these flags makes."""
        steps = {int(p.stem.split("-")[1]) for p in (self.folder / "checkpoints").glob("step-*.json")}
        return {s for s in steps if s % EVERY == 0}

    def weights(self, step: int) -> dict[str, bytes]:
        """All that it kept of that step."""
        with np.load(self.folder / f"checkpoints/step-{step:08}.npz") as arrays:
            return {name: arrays[name].tobytes() for name in arrays.files}


@pytest.mark.long
@pytest.mark.timeout(4 * SECONDS + 3600)
def test_an_hour_of_faults_costs_a_quarter_of_it_at_most_and_not_a_bit_of_the_weights(
    hour_lab: Lab, tmp_path: Path
) -> None:
    """All ranks are kept each time (a spare, or the host itself that comes back), so the weights are those of a training
    that nobody disturbed."""
    inv = operator_of(hour_lab, tmp_path)
    job = Job(hour_lab, inv, "disturbed")
    wait_for(job.trains, START_S, "it trains")
    began = time.monotonic()
    for n, name in enumerate(faults()):
        _sleep_until(began + n * INTERVAL_S + 15)
        wait_for(job.trains, 5 * START_S, f"it trains again\n{job.story()}")
        _break(hour_lab, job, name, random.Random(SEED + n))
    _sleep_until(began + SECONDS)
    wait_for(job.trains, 5 * START_S, f"it trains again\n{job.story()}")
    stopped = inv("jobs.stop", job.id)
    account = json.loads(inv("jobs.show", job.id, "--json").stdout)["account"]
    ettr = account["total"]["useful_s"] / (account["wall_s"] - account["attempts"][0]["start_s"])
    print(f"{job.story()}\nETTR since the first step {ettr:.3f}, in all {account['ettr']}: {account['total']}")
    assert 0 == stopped.returncode, stopped.stdout + stopped.stderr
    assert {4} == {a["np"] for a in job.attempts()}

    last = max(job.saved())
    undisturbed = Job(hour_lab, inv, "undisturbed")
    wait_for(lambda: last in undisturbed.saved(), 2 * SECONDS + START_S, f"it has saved step {last}")
    assert job.weights(last) == undisturbed.weights(last), f"after step {last}"
    inv("jobs.stop", undisturbed.id)
    assert ettr >= 1 - LOST_S / INTERVAL_S


def _break(lab: Lab, job: Job, name: str, chance: random.Random) -> None:
    """One fault on a host of the job, mended after its time."""
    used = [h["address"] for h in json.loads((job.folder / "public.json").read_text())["plan"]["hosts"]]
    address = used[0] if name in OF_THE_MASTER else chance.choice(used[1:])
    fault, mended_after_s = (OF_A_WORKER | OF_THE_MASTER)[name]
    print(f"{time.strftime('%H:%M:%S')}  {name} on {address}", flush=True)
    mend = fault.strike(lab, next(h for h in lab.hosts if h.address == address))
    if mended_after_s:
        time.sleep(mended_after_s)
        mend()


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))
