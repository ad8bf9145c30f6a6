"""Writes a classifier's checkpoint and what it sees before its pooling, for a random image: `... FOLDER`."""

import os
import sys
from pathlib import Path

import numpy as np

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
import tensorflow as tf

from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.resnet50.augment import normalise
from trainer.resnet50.config import ResNetConfig
from trainer.resnet50.step import TensorFlowLearner

out, rng = Path(sys.argv[1]), np.random.default_rng(0)
learner = TensorFlowLearner(
    ResNetConfig(model="resnet50", synthetic=True, batch_size=1, num_batches=1, ema_decay=0.9), classes=10
)
net = learner.model
for norm in net.norms():
    norm.gamma.assign(rng.uniform(0.3, 0.9, norm.gamma.shape))
    norm.beta.assign(rng.normal(0, 0.2, norm.beta.shape))
    norm.mean.assign(rng.normal(0, 0.2, norm.mean.shape))
    norm.variance.assign(rng.uniform(0.5, 2, norm.variance.shape))
image = rng.integers(0, 256, (1, 64, 96, 3), np.uint8)
x = tf.nn.relu(net.stem_norm(net.stem(normalise(tf.constant(image), tf.float32)), None))
x = tf.nn.max_pool2d(x, 3, 2, "SAME")
for block in net.blocks:
    x = block(x, None)
np.savez(out / "features.npz", image=image, features=x.numpy())
CheckpointFolder(out).save(1, {name: variable.numpy() for name, variable in learner.state().items()})
