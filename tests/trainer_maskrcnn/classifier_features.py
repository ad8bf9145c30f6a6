"""Writes a classifier's variables and what it sees before its pooling, for a random image: `... FOLDER`."""

import os
import sys
from pathlib import Path

import numpy as np

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
import tensorflow as tf

from trainer.resnet50.images import normalise
from trainer.resnet50.model import BatchNorm, ResNet

out, rng = Path(sys.argv[1]), np.random.default_rng(0)
net = ResNet("resnet50", 10)
norms: list[BatchNorm] = [net.stem_norm, *(n for b in net.blocks for n in b.norms_in_order())]
for norm in norms:
    norm.gamma.assign(rng.uniform(0.3, 0.9, norm.gamma.shape))
    norm.beta.assign(rng.normal(0, 0.2, norm.beta.shape))
    norm.mean.assign(rng.normal(0, 0.2, norm.mean.shape))
    norm.variance.assign(rng.uniform(0.5, 2, norm.variance.shape))
kernels = [net.stem.kernel, *(c.kernel for b in net.blocks for c in [*b.convs, *(b.shortcut or ())[:1]])]
image = rng.integers(0, 256, (1, 64, 96, 3), np.uint8)
x = tf.nn.relu(net.stem_norm(net.stem(normalise(tf.constant(image), tf.float32)), None))
x = tf.nn.max_pool2d(x, 3, 2, "SAME")
for block in net.blocks:
    x = block(x, None)
np.savez(out / "features.npz", image=image, features=x.numpy())
variables = [*kernels, *(v for n in norms for v in (n.gamma, n.beta, n.mean, n.variance))]
np.savez(out / "classifier.npz", **{v.name.split(":")[0]: v.numpy() for v in variables})
