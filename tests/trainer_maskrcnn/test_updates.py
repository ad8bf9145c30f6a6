"""What becomes of a detector's gradients before its optimizer has them, against NumPy."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from trainer.common.ranks.horovod_rank import Ranks
from trainer.maskrcnn.config_training import TrainConfig
from trainer.maskrcnn.layers import tf1
from trainer.maskrcnn.tensorpack_trainer import HorovodSteps, for_update

KERNEL, BIAS = np.array([3.0, 4.0], np.float32), np.array([0.5, 2.0], np.float32)
GRADIENTS = np.array([[6.0, 8.0], [0.0, 24.0]], np.float32)
LR, DECAY, ETA = 0.1, 0.01, 0.002


@pytest.mark.parametrize("larc", [False, True])
@pytest.mark.parametrize("clip", [0.0, 2.6, 1000.0])
def test_decay_then_the_norm_of_all_then_larc(clip: float, larc: bool) -> None:
    """Weight decay and LARC are for kernels alone; a clip above the norm changes nothing."""
    kernel, bias = GRADIENTS[0] + DECAY * KERNEL, GRADIENTS[1]
    norm = np.sqrt((kernel**2).sum() + (bias**2).sum())
    if clip and norm > clip:
        kernel, bias = kernel * clip / norm, bias * clip / norm
    if larc:
        kernel = kernel * min(ETA * 5 / np.sqrt((kernel**2).sum()) / LR, 1.0)

    train = TrainConfig(weight_decay=DECAY, gradient_clip=clip, larc=larc, larc_eta=ETA)
    with tf.Graph().as_default(), tf1.Session() as session:
        variables = [
            tf1.get_variable(name, initializer=value) for name, value in (("conv/W", KERNEL), ("conv/b", BIAS))
        ]
        given: list[Any] = [(tf.constant(g), v) for g, v in zip(GRADIENTS, variables, strict=True)]
        updates = for_update(given, train, tf.constant(LR))
        session.run(tf1.global_variables_initializer())
        found = session.run([g for g, _ in updates])

    assert variables == [v for _, v in updates]
    np.testing.assert_allclose(found, [kernel, bias], rtol=1e-5)


@pytest.mark.parametrize(("gpu", "rewrites"), [(None, False), (0, True)])
def test_tensorflow_rewrites_the_graph_where_a_gpu_gains_by_it(gpu: int | None, rewrites: bool) -> None:
    """On CPUs it took a third of the start, and no step was quicker; on GPUs it chooses the layout of images."""
    given: list[Any] = []
    ranks = Ranks(rank=0, size=1, local_rank=0, local_size=1, threads=1, gpu=gpu)
    steps: Any = SimpleNamespace(
        ranks=ranks, train=lambda callbacks, monitors, creator, *rest, **more: given.append(creator)
    )
    HorovodSteps.go(steps, [], 1)

    (creator,) = given
    assert rewrites != creator.config.graph_options.rewrite_options.disable_meta_optimizer
