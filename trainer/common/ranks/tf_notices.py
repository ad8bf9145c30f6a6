"""Filter for the notices that TensorFlow prints at a process's first session."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

NOTICES = (
    "WARNING: All log messages before absl::InitializeLog() is called",
    "MLIR V1 optimization pass is not enabled",
)
"""Parts of lines that TensorFlow prints once per process, whatever TF_CPP_MIN_LOG_LEVEL is."""
_done: list[int] = []


def quiet(threads: int) -> None:
    """Make TensorFlow print its notices now, once, and drop them. Its other lines are passed on.

    Args:
        threads: of the process's operations.
    """
    if _done:
        return
    _done.append(threads)
    import tensorflow as tf

    with _without_notices(), tf.Graph().as_default() as graph:
        one = tf.constant(1.0)
        with tf.compat.v1.Session(graph=graph, config=aside(threads)) as session:
            session.run(one)


def aside(threads: int) -> Any:
    """Return a ConfigProto for a session beside the training's, to which it leaves all its threads.

    TensorFlow has one pool of threads that execute operations, shared by all sessions of a process. The first session
    configures its size. The pool that starts operations is a second one, and this session brings its own.
    """
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(device_count={"GPU": 0}, intra_op_parallelism_threads=threads)
    config.session_inter_op_thread_pool.add(num_threads=1)
    return config


@contextlib.contextmanager
def _without_notices() -> Iterator[None]:
    """Capture what libraries write to stderr inside the context, and write it afterwards without the notices."""
    sys.stderr.flush()
    own = os.dup(2)
    try:
        with tempfile.TemporaryFile() as kept:
            os.dup2(kept.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(own, 2)
                kept.seek(0)
                lines = kept.read().decode(errors="replace").splitlines(keepends=True)
                sys.stderr.write("".join(line for line in lines if not any(notice in line for notice in NOTICES)))
                sys.stderr.flush()
    finally:
        os.close(own)
