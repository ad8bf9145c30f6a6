"""Runs a few TensorFlow operations in a graph of their own, and the small model the tests train."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.maskrcnn.detector import session_config

ROOT = Path(__file__).parents[2]

REDUCED = (
    "BACKBONE.NORM=GN",
    "FPN.NORM=GN",
    "BACKBONE.FREEZE_AT=0",
    "BACKBONE.RESNET_NUM_BLOCKS=1,1,1,1",
    "BACKBONE.CHANNELS=32",
    "FPN.NUM_CHANNEL=64",
    "FPN.FRCNN_FC_HEAD_DIM=256",
    "MRCNN.HEAD_DIM=64",
    "FRCNN.BATCH_PER_IM=64",
    "PREPROC.TRAIN_SHORT_EDGE_SIZE=128",
    "PREPROC.TEST_SHORT_EDGE_SIZE=128",
    "PREPROC.MAX_SIZE=192",
    "RPN.ANCHOR_SIZES=16,32,64,96,128",
    "RPN.TRAIN_PER_LEVEL_NMS_TOPK=200",
    "RPN.TRAIN_PER_LEVEL_PRE_NMS_TOPK=400",
    "RPN.TRAIN_IMAGE_TOPK=300",
    "RPN.TEST_PER_LEVEL_PRE_NMS_TOPK=200",
    "RPN.TEST_IMAGE_TOPK=200",
    "TRAIN.WARMUP=20",
    "DATA.NUM_WORKERS=1",
)
"""A shallow model on small images."""

NOTHING_DRAWN = (
    *REDUCED,
    "BACKBONE.NORM=None",
    "FPN.NORM=None",
    "PREPROC.TRAIN_SHORT_EDGE_SIZE=64",
    "PREPROC.TEST_SHORT_EDGE_SIZE=64",
    "PREPROC.MAX_SIZE=64",
    "PREPROC.PADDING_SHAPES=[(64,64)]",
    "RPN.PROPOSAL_NMS_THRESH=1.0",
    "RPN.TRAIN_PER_LEVEL_PRE_NMS_TOPK=1100",
    "RPN.TRAIN_PER_LEVEL_NMS_TOPK=1100",
    "RPN.TRAIN_IMAGE_TOPK=1100",
    "FRCNN.BATCH_PER_IM=1100",
    "FRCNN.FG_RATIO=1.0",
)
"""For gradients that are compared: all 1023 anchors become regions and all of them are learned from.

Otherwise scores that differ in the last bit, as they do with another batch size or number of threads, change which
regions are kept, and with them the gradient. No group norm either: its statistics would see the padding.
"""


def evaluate(build: Callable[..., Any], *arrays: np.ndarray) -> Any:
    """What `build` makes of the arrays, each fed through a placeholder of unknown size, random weights included."""
    with tf.Graph().as_default(), tf.compat.v1.Session(config=session_config(threads=1)) as session:
        holders = [tf.compat.v1.placeholder(a.dtype, [None] * a.ndim) for a in map(np.asarray, arrays)]
        outputs = build(*holders)
        session.run(tf.compat.v1.global_variables_initializer())
        return session.run(outputs, dict(zip(holders, arrays, strict=True)))


def fixed_weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Kernels by name, the same for equal names and shapes. Every proposal is its anchor moved by the head's bias.

    On the anchors' own grid, mask samples would fall half-way between two pixels, where the last bit decides.
    """
    kernels = {
        n: np.zeros(s, np.float32)
        if n == "rpn/box/W"
        else np.random.default_rng(i).normal(0, np.sqrt(1 / np.prod(s[:-1])), s).astype(np.float32)
        for i, (n, s) in enumerate(sorted(shapes.items()))
        if n.endswith("/W")
    }
    return {**kernels, "rpn/box/b": np.random.default_rng(0).normal(0, 0.1, shapes["rpn/box/b"]).astype(np.float32)}


def assert_same_gradient(found: np.ndarray, expected: np.ndarray, name: str) -> None:
    """Equal up to what sums in another order do: now and then an activation lies on the other side of a ReLU's zero.

    That moves a gradient by some thousandths of its norm. Images that mix, or are weighted wrongly, move it by tenths.
    """
    assert np.linalg.norm(found - expected) <= 0.02 * np.linalg.norm(expected) + 1e-6, name


def random_boxes(rng: np.random.Generator, count: int, height: float = 100, width: float = 120) -> np.ndarray:
    """[count, 4] boxes inside a picture, some without width or height."""
    x, y = np.sort(rng.uniform(0, width, (count, 2)), 1), np.sort(rng.uniform(0, height, (count, 2)), 1)
    boxes = np.stack([x[:, 0], y[:, 0], x[:, 1], y[:, 1]], 1)
    boxes[::7, 2] = boxes[::7, 0]
    return boxes.astype(np.float32)


def mpirun(
    ranks: int, arguments: list[str], *, timeout_s: float = 1500, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` on this machine as so many ranks, one thread each."""
    command = [
        "mpirun",
        "--allow-run-as-root",
        "--oversubscribe",
        "-np",
        str(ranks),
        "--bind-to",
        "none",
        "--mca",
        "btl_vader_single_copy_mechanism",
        "none",
        "--mca",
        "mpi_yield_when_idle",
        "1",
        sys.executable,
        *arguments,
    ]
    return subprocess.run(
        command, cwd=ROOT, env=environment(env), text=True, capture_output=True, timeout=timeout_s, check=False
    )


def plain(arguments: list[str], *, timeout_s: float = 1500) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` without mpirun, on one core: one thread per operation, so it computes the same every time."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment(None),
        text=True,
        capture_output=True,
        timeout=timeout_s,
        check=False,
        preexec_fn=on_one_core,
    )


def on_one_core() -> None:
    """Binds the calling process to the first core it may use."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def environment(more: dict[str, str] | None) -> dict[str, str]:
    """This process's environment without the traces of an mpirun around it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "PMI_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", **(more or {})}
