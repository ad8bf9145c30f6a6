"""What lets a detector's training leave before its last step, and what it leaves behind."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.trainer_maskrcnn.helpers import REDUCED
from trainer.maskrcnn import attempt as attempts
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
    try:
        attempt._trigger_step()
    except StopTraining:
        return True
    return False


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
