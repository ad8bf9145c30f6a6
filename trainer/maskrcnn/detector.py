"""Detector for single images: the model in its own session, with given weights."""

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

from trainer.coco.annotations import AnnotatedImage
from trainer.common.ranks.tf_notices import quiet
from trainer.maskrcnn.batch import Batch
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.detections import Detections
from trainer.maskrcnn.examples import Image, pad_to_shape, read_image, resize
from trainer.maskrcnn.layers import tf1
from trainer.maskrcnn.model import detections, make_layers

READ_AHEAD = 2


class Detector:
    """Model for prediction. It shares nothing with a training session, so it may run beside one in a thread."""

    def __init__(self, config: Config, *, threads: int = 0, gpu: int | None = None) -> None:
        """Build the graph with random weights. `threads` 0 uses all cores; without `gpu` all GPUs are visible."""
        quiet(threads)
        self.config = config
        self.graph = tf.Graph()
        with self.graph.as_default():
            specs = {s.name: s for s in Batch.specs(1)}
            self._images, self._sizes = (
                tf1.placeholder(specs[n].dtype, specs[n].shape, n) for n in ("images", "sizes")
            )
            has_gpu = gpu is not None or bool(tf.config.list_physical_devices("GPU"))
            self.layers = make_layers(config, training=False, device="GPU" if has_gpu else "CPU")
            self._outputs = detections(self._images, self._sizes, config, self.layers)
            self._variables = {v.op.name: v for v in tf1.global_variables()}
            self.session = tf1.Session(graph=self.graph, config=session_config(threads, gpu))
            self.session.run(tf1.global_variables_initializer())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape of every variable."""
        return {name: tuple(v.shape.as_list()) for name, v in self._variables.items()}

    def assign(self, weights: Mapping[str, NDArray[np.generic]]) -> None:
        """Set the weights from a model of the same configuration. Names that this model does not have are ignored."""
        assign(self.session, self._variables, {n: weights[n] for n in self._variables})

    def weights(self) -> dict[str, NDArray[np.generic]]:
        """Return every variable by name."""
        return dict(self.session.run(self._variables))

    def detect(self, image: Image) -> Detections:
        """Detect the objects on an image [h, w, 3] uint8, blue green red, of any size."""
        height, width = image.shape[:2]
        preproc = self.config.preproc
        resized = resize(image, preproc.test_short_edge_size, preproc.longest_side)
        batch, sizes = pad_to_shape(resized, self.config)
        found = self.session.run(self._outputs, {self._images: batch, self._sizes: sizes})
        scale = np.array([width / resized.shape[1], height / resized.shape[0]] * 2, np.float32)
        if self.config.reference == "tensorpack":  # one scale for both sides
            scale[:] = np.sqrt(scale[0] * scale[1])
        boxes = np.minimum(found["boxes"] * scale, np.array([width, height] * 2, np.float32))
        return Detections(boxes=boxes, scores=found["scores"], labels=found["labels"], masks=found.get("masks"))

    def detect_all(self, pictures: Iterable[AnnotatedImage]) -> Iterator[tuple[AnnotatedImage, Detections]]:
        """Call `detect` for each picture in order, while the next ones are being read."""
        waiting = []
        with ThreadPoolExecutor(1, thread_name_prefix="reader") as pool:
            for picture in pictures:
                waiting.append((picture, pool.submit(read_image, picture)))
                if len(waiting) > READ_AHEAD:
                    ready, job = waiting.pop(0)
                    yield ready, self.detect(job.result())
            for ready, job in waiting:
                yield ready, self.detect(job.result())


def session_config(threads: int, gpu: int | None = None) -> tf1.ConfigProto:
    """Return the session's settings: threads, operations at once, and this rank's GPU with its memory taken as needed.

    On several cores two operations run at once: many of this model's are too small for more than one core.

    Args:
        threads: of one operation; 0: all cores.
    """
    at_once = 2 if gpu is None and (threads or len(os.sched_getaffinity(0))) > 1 else 1
    config = tf1.ConfigProto(
        intra_op_parallelism_threads=threads, inter_op_parallelism_threads=at_once, allow_soft_placement=True
    )
    # The memory optimizer's cost model cannot handle crops of unknown size and prints long warnings about each.
    config.graph_options.rewrite_options.memory_optimization = RewriterConfig.NO_MEM_OPT
    config.gpu_options.visible_device_list = "" if gpu is None else str(gpu)
    config.gpu_options.allow_growth = True
    return config


def assign(
    session: tf1.Session, variables: Mapping[str, tf.Variable], values: Mapping[str, NDArray[np.generic]]
) -> None:
    """Set variables through their initializers' inputs, which works in a finalized graph, too."""
    feed = {variables[n].initializer.inputs[1]: value for n, value in values.items()}
    session.run([variables[n].initializer for n in values], feed)
