"""Bytes from every rank to every rank through Horovod: no folder that all of them see is needed."""

import numpy as np
import tensorflow as tf

from trainer.maskrcnn.layers import tf1


class Gather:
    """A small graph of its own, since a training's graph is closed when it is needed."""

    def __init__(self) -> None:
        import horovod.tensorflow as hvd

        self._ranks = hvd.size()
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._data = tf1.placeholder(tf.uint8, [None])
            self._all = hvd.allgather(self._data, name="gather_data")
            self._sizes = hvd.allgather(tf.reshape(tf.size(self._data), [1]), name="gather_sizes")
            self._session = tf1.Session(graph=self._graph, config=tf1.ConfigProto(device_count={"GPU": 0}))

    def __call__(self, data: bytes) -> list[bytes]:
        """Every rank's bytes in the order of the ranks. All ranks must call it, each with at least one byte."""
        feed = {self._data: np.frombuffer(data, np.uint8)}
        sizes = self._session.run(self._sizes, feed)
        everything = self._session.run(self._all, feed).tobytes()
        ends = np.cumsum(sizes)
        return [everything[end - size : end] for end, size in zip(ends, sizes, strict=True)]
