"""Folders of jobs as trainers and supervisors leave them, made here: any number of attempts, steps and ranks."""

import dataclasses
import json
import math
import random
from pathlib import Path
from typing import Any

from cluster.files import write_json
from cluster.hosts import Host
from cluster.jobs.record import JobPaths, JobStatus, write_job
from cluster.jobs.state import JobState
from cluster.recovery.failure_kinds import FailureKind
from cluster.recovery.history import AttemptRecord, History
from tests.cluster.flat_jobs import job_of

BEGAN = 1_760_000_000.0
STEP_S = 0.5
SLOW_RANK = 2
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)


def made_job(
    shared: Path, *, name: str = "20251009-085320-resnet50-ab12", steps: int = 1000, attempts: int = 2, **changes: Any
) -> JobPaths:
    """A job that succeeded, four ranks on two hosts, with rank 2 slow in its second half."""
    paths = JobPaths(shared / "jobs" / name)
    paths.console(attempts).parent.mkdir(parents=True)
    paths.checkpoints.mkdir()
    hosts = (Host(rank=0, address="10.0.1.10", slots=2), Host(rank=1, address="10.0.1.11", slots=2))
    job = job_of(
        **{
            "id": name,
            "name": "resnet50",
            "command": ("python", "-m", "trainer.resnet50", "--lr", "0.1", "--job-dir", str(paths.folder)),
            "mpirun": ("mpirun", "-np", "4", "-x", "TOKEN=hunter2", "python"),
            "np": 4,
            "hosts": hosts,
            "whole_hosts": hosts,
            "whole_np": 4,
            "profile": "tcp",
            "environment": {"TOKEN": "hunter2"},
            "notify": "/tell hunter2",
            "versions": {"python": "3.11.2", "open mpi": "4.1.4"},
            "revision": "0123456789ab+changes",
            "created": "2025-10-09T08:53:20+00:00",
            "steps": steps,
            "attempt": attempts,
            "heal": True,
            **changes,
        }
    )
    write_job(paths, job)
    write_json(paths.attempts, dataclasses.asdict(History(attempts=history(hosts, steps, attempts))))
    ended = JobStatus(
        state=JobState.SUCCEEDED, attempt=attempts, started=job.created, ended="2025-10-09T12:00:00+00:00"
    )
    write_json(paths.status, dataclasses.asdict(ended))
    paths.console(attempts).write_text("[1,0]<stdout>: Finished in 3600 s\n")
    return paths


def history(hosts: tuple[Host, ...], steps: int, attempts: int) -> tuple[AttemptRecord, ...]:
    """As many attempts as that, each from ten steps before the end of the one before."""
    found, each, at = [], steps // attempts, BEGAN
    for number in range(1, attempts + 1):
        first, last = max(0, (number - 1) * each - 10), number * each
        trained = (last - first) * STEP_S
        is_last = number == attempts
        found.append(
            AttemptRecord(
                number=number,
                np=4,
                hosts=tuple(h.address for h in hosts),
                began=at,
                gate_s=1.0,
                started=at + 2,
                first_step=first,
                first_step_at=at + 20,
                step=last,
                step_at=at + 20 + trained,
                noticed=at + 32 + trained,
                ended=at + 33 + trained,
                cleared=at + 35 + trained,
                what=FailureKind.DONE if is_last else FailureKind.HOST,
                text="" if is_last else "host 10.0.1.11 was lost in mid-run",
                host="" if is_last else "10.0.1.11",
            )
        )
        at += 35 + trained
    return tuple(found)


def write_metrics(paths: JobPaths, steps: int, *, ranks: int = 4, every: int = 1, seed: int = 1) -> None:
    """What a trainer writes of so many steps, with an evaluation after each tenth of them."""
    drawn = random.Random(seed)
    with paths.metrics.open("w") as file:
        for step in range(0, steps, every):
            at = round(BEGAN + 20 + step * STEP_S, 3)
            computing = [0.1 + 0.01 * drawn.random() for _ in range(ranks)]
            if ranks > SLOW_RANK and step > steps / 2:
                computing[SLOW_RANK] *= 2
            loss = 6.9 * math.exp(-3 * step / steps) + 0.2 * drawn.random()
            record = {
                "kind": "train",
                "step": step,
                "time": at,
                "loss": loss,
                "top1": 100 - 14 * loss,
                "lr": 0.1 * (1 - step / steps),
                "images_per_s": 1200 + 50 * drawn.random(),
                "input_s": 0.01,
                "compute_s": sum(computing) / ranks,
                "reduce_s": 0.02,
                "rank_input_s": [0.01] * ranks,
                "rank_compute_s": [round(c, 5) for c in computing],
            }
            file.write(json.dumps(record) + "\n")
            if step and step % max(1, steps // 10) == 0:
                scores = {"top1": 60 * step / steps, "top5": 85 * step / steps, "loss": loss + 0.3}
                file.write(json.dumps({"kind": "eval", "step": step, "time": at, **scores}) + "\n")
