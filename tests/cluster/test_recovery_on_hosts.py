"""A real training over two hosts that loses one and gets it back: with half of its ranks, then whole, as if nothing was."""

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from cluster.inventory import ROOT, Cluster
from cluster.jobs.program import Program
from cluster.jobs.spec import JobSpec
from lab import lab as labs
from lab.record import Lab
from tests.conftest import PATIENCE_S, Inv, wait_for

TRAINING = (
    "--synthetic", "--model", "resnet18", "--image-size", "32", "--batch-size", "2", "--num-batches", "1000000",
    "--threads", "1", "--display-every", "1", "--checkpoint-every", "10",
)  # fmt: skip
START_S = 240  # for two ranks to import TensorFlow on two busy cores


def rows(folder: Path, name: str) -> list[Any]:
    """Whole lines of a file of JSON records."""
    path = folder / name
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def attempts(folder: Path) -> list[Any]:
    path = folder / "attempts.json"
    return list(json.loads(path.read_text())["attempts"]) if path.exists() else []


def trains(folder: Path, attempt: int) -> bool:
    """This attempt has made some steps more than what was saved before it."""
    lines = re.findall(r"\[1,0\]<stdout>: +\d+ +\d+\.\d", console(folder, attempt))
    state = json.loads((folder / "state.json").read_text())
    assert state["state"] in ("starting", "running", "healing"), state
    return state["attempt"] == attempt and len(lines) > 15


def console(folder: Path, attempt: int) -> str:
    path = folder / f"logs/attempt-{attempt}/console.log"
    return path.read_text() if path.exists() else ""


def test_a_host_that_is_lost_and_comes_back_costs_some_steps_done_again_and_no_person(
    lab: Lab, cluster: Cluster, jobs: Any, inv: Inv
) -> None:
    """Half of the ranks keep the global batch; once the host is back, ranks save and leave for all of them. Each step
    is done, from the newest checkpoint each time; who follows sees it all. One rank on each of the two hosts."""
    hosts, lost = tuple(dataclasses.replace(h, slots=1) for h in cluster.hosts[:2]), cluster.hosts[1].address
    program = Program(trainer="trainer.resnet50", words=TRAINING)
    job = jobs.plan(JobSpec(name="heals", program=program, hosts=hosts, min_np=1)).planned(grow_after=5.0)
    folder = lab.shared / "jobs" / job.id
    jobs.submit(job)
    following = subprocess.Popen(
        [sys.executable, "-m", "invoke", "jobs.logs", "-f", job.id],
        cwd=ROOT, env={**os.environ, "CLUSTER": f"lab:{lab.name}"},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        wait_for(lambda: trains(folder, 1), START_S, "the first attempt trains")
        labs.crash(lab, lab.hosts[1])
        wait_for(lambda: trains(folder, 2), START_S, "the second attempt trains, on the host that is left")
        labs.heal(lab, lab.hosts)
        wait_for(lambda: trains(folder, 3), START_S, "the third attempt trains, on both")
        jobs.stop(job.id)
        said, _ = following.communicate(timeout=PATIENCE_S)
    finally:
        following.kill()
        following.wait()

    assert 0 == following.returncode, said[-3000:]
    first, second, third = attempts(folder)
    assert [("host", 2), ("whole", 1), ("stopped", 2)] == [(a["what"], a["np"]) for a in (first, second, third)]
    assert (lost, [cluster.hosts[0].address]) == (first["host"], second["hosts"])
    assert f"goes on without: {lost} does not answer" in said
    assert "1 rank instead of 2: 2 micro-steps each keep the global batch of 4" in said
    assert "2 ranks again, as at the beginning: 4 images per step" in said
    resumed = [int(n) for n in re.findall(r"^Resuming after step (\d+)$", said, re.MULTILINE)]
    assert 2 == len(resumed)
    assert all(at >= 9 for at in resumed), "from a checkpoint, not from the beginning"
    steps = [r["step"] for r in rows(folder, "metrics.jsonl") if r["kind"] == "train"]
    assert [*range(len(steps))] == steps
    assert all(a["cleared"] <= b["started"] for a, b in itertools.pairwise((first, second, third)))

    shown = json.loads(inv("jobs.show", job.id, "--json").stdout)
    assert ("stopped", "stopped", 2, 2) == (shown["state"], shown["ended_by"], shown["np"], shown["whole_np"])
    spent = shown["account"]["attempts"]
    assert 0 < shown["account"]["ettr"] < 1
    assert spent[0]["detecting_s"] > 1, "a host that is gone is not noticed at once"
    assert [n + 2 for n in resumed] == [second["first_step"], third["first_step"]], "steps are counted from 1"
    redone = [a["step"] - b["first_step"] + 1 for a, b in itertools.pairwise((first, second, third))]
    assert redone[1] <= 0, "who left for more hosts had saved"
    assert any(n > 0 for n in redone) == ("work done again" in inv("jobs.show", job.id).stdout)
