"""Overlays: named experiments of the AWS fork of tensorpack's example, as settings over the fork's own defaults.

Source: aws-samples/mask-rcnn-tensorflow, infra/eks/maskrcnn/overlays and values.yaml, its rates per image times 8.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from trainer.common.files.errors import ConfigError
from trainer.maskrcnn.rules import need

STARTED_FROM: Mapping[str, Any] = {
    "TRAIN.BASE_LR": 0.01,
    "TRAIN.WARMUP_INIT_LR": 0.00333333,
    "TRAIN.LR_EPOCH_SCHEDULE": ((8, 0.1), (10, 0.01), (12, None)),
    "TRAIN.EVAL_PERIOD": 0,  # every 24 passes there, which a run of 12 never reaches
    "BACKBONE.NORM": "FreezeBN",
    "PREPROC.PREDEFINED_PADDING": True,
}
"""Settings under every overlay."""
FOUR = {"TRAIN.BATCH_SIZE_PER_GPU": 4}
OVERLAYS: Mapping[str, Mapping[str, Any]] = {
    "8x4": FOUR,
    "16x4": FOUR,
    "32x4": {**FOUR, "TRAIN.GRADIENT_CLIP": 1.5},
    "64x4": {**FOUR, "TRAIN.GRADIENT_CLIP": 1.5},
    "24epoch": {"TRAIN.LR_EPOCH_SCHEDULE": ((16, 0.1), (20, 0.01), (24, None))},
    "bbrw": {"FRCNN.BBOX_REG_WEIGHTS": (20.0, 20.0, 10.0, 10.0)},
    "larc": {"TRAIN.LARC": True},
    "predefined_padding": {"PREPROC.PREDEFINED_PADDING": True},
    "syncbn": {"BACKBONE.NORM": "SyncBN"},
    **{f"run{n}": {"TRAIN.SEED": 1234 + n} for n in range(1, 11)},
}
NOT_HERE = {
    "determinism": "what is drawn depends on TRAIN.SEED alone, so nothing is to be set",
    "13rings": "NCCL counts its channels itself since 2.4",
}


def laid_over(names: Iterable[str]) -> dict[str, Any]:
    """Return the settings of the overlays. Later overlays override earlier ones. Without names there are none.

    Raises:
        ConfigError: an unknown name.
    """
    settings: dict[str, Any] = {}
    for name in names:
        need(name not in NOT_HERE, f"OVERLAY={name} is not needed: {NOT_HERE.get(name)}")
        need(name in OVERLAYS, f"no overlay is called {name}: there are {', '.join(OVERLAYS)}")
        settings = {**(settings or STARTED_FROM), **OVERLAYS[name]}
    return settings


def check_ranks(names: Iterable[str], ranks: int) -> None:
    """Check that the overlays were made for this number of ranks.

    Raises:
        ConfigError: one was made for another number.
    """
    for name in names:
        wanted, by, _ = name.partition("x")
        if by and wanted.isdigit() and int(wanted) != ranks:
            raise ConfigError(
                f"OVERLAY={name} is for {wanted} ranks, here are {ranks}: its batch, rates and clipping belong "
                f"together; give TRAIN.BATCH_SIZE_PER_GPU=4 instead to have them follow"
            )
