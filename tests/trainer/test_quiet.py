"""TensorFlow's and tensorpack's own notices are no part of what a training prints."""

import subprocess
import sys

import pytest

from cluster.inventory import ROOT
from tests.conftest import PATIENCE_S

PROGRAM = """if True:
    from trainer.common.ranks.horovod_rank import start
    start(1)
    import tensorflow as tf
    import trainer.maskrcnn.tensorpack_trainer
    from tensorpack.utils import logger
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        session.run(tf.constant(1.0) + tf.constant(2.0))
    logger.error("Training failed at global_step=", 3)
    logger.error("another error")
"""


@pytest.mark.seconds
def test_a_training_prints_no_notices_of_its_libraries() -> None:
    """Neither Abseil's, MLIR's nor of signal handlers; an error of tensorpack is printed, unless it cannot be."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, timeout=PATIENCE_S, capture_output=True, text=True, check=True
    )
    assert "" == done.stderr
    assert "another error" in done.stdout and "Training failed" not in done.stdout
