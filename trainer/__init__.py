"""Trainers that run as MPI ranks: the code that ResNet and Mask R-CNN share.

It handles ranks, flags and files, no hosts.
"""

import os

# Read when TensorFlow is imported, which leaves oneDNN off on processors without AVX-512 VNNI: a small ResNet trains at
# least twice as fast with it (docs/resnet50.md). An explicit setting wins.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
