"""What a ResNet's flags cannot be together: refused in a sentence before anything is built; what is at the edge is not."""

from typing import Any

import pytest

from trainer.common.files.errors import ConfigError
from trainer.resnet50.config import ResNetConfig

STEPS = {"lr_decay_mode": "steps"}
SHARDS = {"synthetic": False, "data_dir": "/d", "job_dir": "/j"}


def made(**flags: Any) -> ResNetConfig:
    """Of drawn images, for one step, but for what is given."""
    return ResNetConfig(**{"synthetic": True, "num_batches": 1, **flags})


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"synthetic": False}, "either --data-dir FOLDER or --synthetic"),
        ({"data_dir": "/d"}, "either --data-dir FOLDER or --synthetic"),
        ({"eval": True}, "--synthetic has no validation images"),
        ({"eval_only": True}, "--synthetic has no validation images"),
        ({"eval_every": 1.0}, "--synthetic has no validation images"),
        ({"cache": True}, "--synthetic reads no shards"),
        ({"eval_best": True}, "--eval-best goes with --eval-only"),
        ({"synthetic": False, "data_dir": "/d"}, "--job-dir is missing"),
        ({**SHARDS, "eval_every": 0.0}, "must be above 0"),
        ({"num_batches": None}, "how long?"),
        ({"num_epochs": 0.0}, "must be above 0"),
        ({"lr": 0.0}, "must be above 0"),
        ({"crop_area": 0.0}, "--crop-area is 0, but must be above 0 and at most 1"),
        ({"crop_area": 1.01}, r"--crop-area is 1\.01"),
        ({"batch_size": 8, "accumulate": 3}, "cannot be split into --accumulate 3 equal parts"),
        ({**STEPS, "lr_decay_steps": ()}, "--lr-decay-steps must be epochs that rise"),
        ({**STEPS, "lr_decay_steps": (60.0, 30.0)}, "--lr-decay-steps must be epochs that rise"),
        ({**STEPS, "lr_decay_steps": (30.0, 30.0)}, "--lr-decay-steps must be epochs that rise"),
        (
            {**STEPS, "lr_decay_steps": (30.0, 60.0), "lr_decay_lrs": (0.1,)},
            "has 1 rates for 2 --lr-decay-steps: give one rate per epoch",
        ),
        ({"loss_scale": "0"}, "--loss-scale is '0'"),
        ({"cdr_first_decay_ratio": 0.0}, "--cdr-first-decay-ratio must be above 0"),
        ({"cdr_first_decay_ratio": 1.1}, "--cdr-first-decay-ratio must be above 0"),
        ({"cdr_t_mul": 0.9}, "--cdr-t-mul at least 1"),
    ],
)
def test_what_cannot_be_is_refused(flags: dict[str, Any], says: str) -> None:
    """With the flag by its name and what it may be."""
    with pytest.raises(ConfigError, match=says):
        made(**flags)


@pytest.mark.parametrize(
    "flags",
    [
        {"crop_area": 1.0},
        {"batch_size": 8, "accumulate": 4},
        {**STEPS, "lr_decay_steps": (30.0,)},
        {**STEPS, "lr_decay_steps": (30.0, 60.0), "lr_decay_lrs": (0.1, 0.01)},
        {"lr_decay_steps": (60.0, 30.0)},
        {"loss_scale": "dynamic"},
        {"cdr_first_decay_ratio": 1.0, "cdr_t_mul": 1.0},
        {**SHARDS, "cache": "memory"},
        {**SHARDS, "eval": True},
        {**SHARDS, "eval_only": True, "eval_best": True},
        {"num_epochs": 0.1},
        {"num_batches": None, "num_epochs": 0.1, "lr": 1e-9},
    ],
)
def test_what_is_at_the_edge_is_taken(flags: dict[str, Any]) -> None:
    """And flags of a mode that is not asked for are not looked at."""
    assert flags.items() <= vars(made(**flags)).items()
