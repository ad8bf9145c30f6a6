"""Mask R-CNN with a feature pyramid, trained with tensorpack and Horovod."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read when TensorFlow is first imported, here or anywhere below
