"""The networks have the shapes of their papers."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from trainer.resnet50.config import MODELS
from trainer.resnet50.model import ResNet
from trainer.resnet50.network import Variant
from trainer.resnet50.plan import parameters

PUBLISHED = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
}


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_the_published_number(name: Any) -> None:
    """With 1000 classes; the plan knows the same without building the network."""
    count = sum(int(np.prod(v.shape)) for v in ResNet(name, 1000).trainable())

    assert count == PUBLISHED[name] == parameters(name, 1000)


def test_parameters_follow_the_classes() -> None:
    """Only the last layer changes."""
    count = sum(int(np.prod(v.shape)) for v in ResNet("resnet18", 10).trainable())

    assert count == parameters("resnet18", 10)


@pytest.mark.parametrize(("name", "size"), [("resnet18", 64), ("resnet50", 96), ("resnet50", 33)])
def test_any_image_size_gives_logits(name: Any, size: Any) -> None:
    """In float32, whatever the type computed in; statistics arrive in the order of the averages."""
    model = ResNet(name, 7)
    statistics = []
    logits = model(tf.zeros([2, size, size, 3], tf.bfloat16), statistics)

    assert logits.shape == (2, 7) and logits.dtype == tf.float32
    assert [s.shape for s in statistics] == [a.shape for a in model.averages()]
    assert all(s.dtype == tf.float32 for s in statistics)


def test_the_stride_is_in_the_3x3_and_blocks_begin_as_the_identity() -> None:
    """As the reference's; asked for it is in the first 1x1, as in the paper. Networks of two 3x3 know one place only."""
    model = ResNet("resnet50", 10)
    first_of_second_stage = model.blocks[3]

    assert [conv.stride for conv in first_of_second_stage.convs] == [1, 2, 1]
    assert [conv.stride for conv in ResNet("resnet50", 10, variant=Variant(strides_first=True)).blocks[3].convs] == [
        2,
        1,
        1,
    ]
    assert [conv.stride for conv in ResNet("resnet18", 10).blocks[2].convs] == [2, 1]
    assert [conv.kernel.shape[0] for conv in first_of_second_stage.convs] == [1, 3, 1]
    assert all(float(tf.reduce_max(tf.abs(block.norms[-1].gamma))) == 0 for block in model.blocks)
    assert all(float(tf.reduce_min(norm.gamma)) == 1 for block in model.blocks for norm in block.norms[:-1])


def test_weights_follow_the_seed() -> None:
    """Equal seeds, equal weights."""
    one, same, other = (ResNet("resnet18", 10, seed).stem.kernel.numpy() for seed in (1, 1, 2))

    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 0.01


@pytest.mark.parametrize(("chosen", "found"), [(None, "1"), ("0", "0"), ("1", "1")])
def test_onednn_is_on_unless_its_operator_chose(chosen: Any, found: Any) -> None:
    """In any process that imports a trainer, before TensorFlow is."""
    environment = {k: v for k, v in os.environ.items() if k != "TF_ENABLE_ONEDNN_OPTS"}
    said = subprocess.run(
        [sys.executable, "-c", "import os, trainer; print(os.environ['TF_ENABLE_ONEDNN_OPTS'])"],
        env=environment if chosen is None else {**environment, "TF_ENABLE_ONEDNN_OPTS": chosen},
        capture_output=True,
        check=True,
        text=True,
    ).stdout

    assert found == said.strip()
