"""What lets a detector's training leave before its last step, and what it leaves behind."""

import gc
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.trainer_maskrcnn.helpers import REDUCED
from trainer import heap
from trainer.maskrcnn import attempt as attempts
from trainer.maskrcnn import gallery
from trainer.maskrcnn.attempt import Attempt
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.keys import apply_settings
from trainer.maskrcnn.plan import make_plan
from trainer.maskrcnn.tower import Report
from trainer.ranks import Ranks

WORDS = [
    *REDUCED,
    "TRAIN.STEPS_PER_EPOCH=10",
    "TRAIN.LR_EPOCH_SCHEDULE=[(4,None)]",
    "TRAIN.WARMUP=2",
    "TEST.BOX_TARGET=0.5",
]


def after_a_step(shapes: Path, job: Path, scores: dict[str, float], **asked: float) -> bool:
    """Whether the only rank leaves after its first step, at such scores and with such requests."""
    from tensorpack.train import StopTraining

    plan = make_plan(apply_settings(Config(), [*WORDS, f"DATA.BASEDIR={shapes}"]), ranks=1, job_dir=job, load=None)
    attempt = Attempt(plan, Ranks(rank=0, size=1, local_rank=0, local_size=1, threads=1))
    attempt._read_checkpoint()
    requests = {**dict.fromkeys(Report.REQUESTS, 0.0), **asked}
    report = Report(["loss", *requests], np.array([1.0, *requests.values()]))
    steps: Any = SimpleNamespace(report=report, values=lambda: {"conv/W": np.ones(3, np.float32)})
    attempt.steps, attempt.scores = steps, scores
    heap.spare_start()
    try:
        attempt._trigger_step()
    except StopTraining:
        return True
    finally:
        assert heap.USUAL == gc.get_threshold(), "the start is over"
        gc.unfreeze()
    return False


@pytest.mark.parametrize(("rank", "is_job", "writes"), [(0, True, True), (1, True, False), (0, False, False)])
def test_the_first_rank_of_a_job_keeps_what_an_evaluation_found(
    shapes: Path, tmp_path: Path, monkeypatch: Any, rank: int, is_job: bool, writes: bool
) -> None:
    """Its entries and some pictures; without a folder, or by another rank, nothing is written."""
    monkeypatch.setattr(attempts, "Gather", lambda threads: lambda data: [data])
    config, job = apply_settings(Config(), [*WORDS, f"DATA.BASEDIR={shapes}"]), tmp_path if is_job else None
    plan = make_plan(config, ranks=2, job_dir=job, load=None)
    attempt = Attempt(plan, Ranks(rank=rank, size=2, local_rank=rank, local_size=2, threads=1))
    found: Any = SimpleNamespace(finish=lambda: ({"box_ap": 0.25, "box_ap50": 0.5}, []), step=7)
    attempt._evaluation = found
    attempt._finish_evaluation()

    assert {"step": 7, "box_ap": 0.25, "box_ap50": 0.5} == attempt.scores
    assert writes == any(tmp_path.glob(f"{gallery.FOLDER}/*.jpg"))
    assert ([[]] if writes else []) == [json.loads(p.read_text()) for p in tmp_path.glob(attempts.RESULTS_FILE)]


@pytest.mark.parametrize(
    ("scores", "asked", "leaves"),
    [
        ({}, {}, False),
        ({"box_ap": 0.4}, {}, False),
        ({}, {"asked": 1.0}, True),
        ({}, {"terminated": 1.0}, True),
        ({"box_ap": 0.6}, {}, True),
        ({"box_ap": 0.6}, {"asked": 1.0}, True),
    ],
)
def test_who_asks_and_who_has_learned_enough_leaves_with_a_checkpoint(
    shapes: Path, tmp_path: Path, monkeypatch: Any, scores: dict[str, float], asked: dict[str, float], leaves: bool
) -> None:
    """A request alone is enough, and so are scores that reach what was wanted; otherwise it goes on, and nothing is saved."""
    monkeypatch.setattr(attempts, "Gather", lambda threads: lambda data: [data])  # one rank, without Horovod

    assert leaves == after_a_step(shapes, tmp_path, scores, **asked)
    assert leaves == len([*tmp_path.glob("checkpoints/step-*.json")])
