"""Data and graph helpers of the Mask R-CNN tests."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def coco_mini(data: Path) -> Path:
    """48 training and 24 validation images in COCO's layout."""
    return data / "coco-mini"


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drawn set of 20 and 10 images."""
    from trainer.coco.sample import write_sample

    out = tmp_path_factory.mktemp("drawn") / "shapes"
    write_sample(out, train=20, val=10, size=128, seed=3)
    return out
