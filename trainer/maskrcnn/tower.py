"""Mask R-CNN as tensorpack sees it: the model description, the fed input, and the trainer over Horovod."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.maskrcnn.config import Config
from trainer.maskrcnn.detector import assign, session_config
from trainer.maskrcnn.layers import tf1
from trainer.maskrcnn.model import Batch, losses, make_layers
from trainer.ranks import Ranks, mean_over_ranks

logging.getLogger("tensorpack").setLevel(logging.ERROR)

from tensorpack.callbacks import Callback  # noqa: E402  its logger speaks when imported
from tensorpack.input_source import InputSource  # noqa: E402
from tensorpack.tfutils.sesscreate import NewSessionCreator  # noqa: E402
from tensorpack.tfutils.sessinit import JustCurrentSession  # noqa: E402
from tensorpack.tfutils.tower import TrainTowerContext  # noqa: E402
from tensorpack.train import ModelDesc, SingleCostTrainer  # noqa: E402
from tensorpack.utils import logger  # noqa: E402

for _handler in logger._logger.handlers:
    _handler.setLevel(logging.ERROR)

Fed = tuple[np.ndarray, ...]


class MaskRcnn(ModelDesc):
    """Inputs, cost and optimizer. After the graph is built, `losses` holds each loss by name."""

    def __init__(self, config: Config, ranks: int) -> None:
        self.config, self.ranks = config, ranks
        self.losses: dict[str, tf.Tensor] = {}

    def inputs(self) -> list[tf.TensorSpec]:
        """The fields of `Batch`, then the learning rate and this rank's requests (`Report.REQUESTS`)."""
        return [
            *Batch.specs(self.config.train.batch_size_per_gpu),
            tf.TensorSpec((), tf.float32, "learning_rate"),
            tf.TensorSpec((len(Report.REQUESTS),), tf.float32, "requests"),
        ]

    def build_graph(self, *inputs: tf.Tensor) -> tf.Tensor:
        """The cost of a batch: the sum of all losses."""
        self.began = tf.timestamp()
        with tf.control_dependencies([self.began]):
            images = tf.identity(inputs[0])
        batch = Batch(images, *inputs[1 : len(Batch.SIGNATURE)])
        self.learning_rate, self.requests = inputs[len(Batch.SIGNATURE) :]
        parts = losses(batch, self.config, make_layers(self.config, training=True, ranks=self.ranks))
        self.fg_rois = parts.pop("fg_rois")
        self.losses = parts
        return tf.add_n(list(parts.values()))

    def optimizer(self) -> tf1.train.Optimizer:
        """SGD with momentum at the fed learning rate."""
        return tf1.train.MomentumOptimizer(self.learning_rate, self.config.train.momentum)


class Report:
    """What a step tells: means over all ranks of each loss, and how many ranks ask for something. Same on all ranks.

    Only the times are this rank's own: forward and backward, then until the last gradient is reduced. With SyncBN the
    first contains waiting for other ranks, too.
    """

    REQUESTS = ("asked", "terminated", "evaluated")

    def __init__(self, names: list[str], values: np.ndarray, compute_s: float = 0.0, reduce_s: float = 0.0) -> None:
        self.values = dict(zip(names, values.tolist(), strict=True))
        self.compute_s, self.reduce_s = compute_s, reduce_s

    @property
    def loss(self) -> float:
        """The sum of the losses."""
        return sum(v for k, v in self.values.items() if k not in (*self.REQUESTS, "fg_rois"))

    def count(self, request: str, ranks: int) -> int:
        """How many ranks made the request."""
        return round(self.values[request] * ranks)


class FedInput(InputSource):
    """Placeholders, fed from an iterator of arrays in the model's order."""

    def __init__(self, feeds: Iterator[Fed]) -> None:
        self._feeds = feeds

    def _setup(self, signature: list[tf.TensorSpec]) -> None:
        self._tensors = [tf1.placeholder(s.dtype, s.shape, s.name) for s in signature]

    def _get_input_tensors(self) -> list[tf.Tensor]:
        return list(self._tensors)

    def _get_callbacks(self) -> list[Callback]:
        return [_Feed(self._tensors, self._feeds)]


class _Feed(Callback):
    _chief_only = False

    def __init__(self, tensors: list[tf.Tensor], feeds: Iterator[Fed]) -> None:
        self._tensors, self._feeds = tensors, feeds

    def _before_run(self, _: Any) -> tf1.train.SessionRunArgs:
        return tf1.train.SessionRunArgs(fetches=[], feed_dict=dict(zip(self._tensors, next(self._feeds), strict=True)))


class HorovodSteps(SingleCostTrainer):
    """tensorpack's trainer with gradients averaged over the ranks, weight decay, clipping, and a report per step."""

    def __init__(self, model: MaskRcnn, ranks: Ranks, start: Callable[["HorovodSteps"], None]) -> None:
        """`start` is called once with the session open, before rank 0's variables go to all ranks."""
        super().__init__()
        self.model, self.ranks, self._start = model, ranks, start
        self.is_chief = True  # callbacks run on every rank and decide themselves; only rank 0 writes files
        self.report = Report([], np.zeros(0))

    def _setup_graph(
        self, source: InputSource, get_cost: Callable[..., tf.Tensor], get_optimizer: Callable[[], tf1.train.Optimizer]
    ) -> list[Callback]:
        with TrainTowerContext(""):
            grads = self._make_get_grad_fn(source, get_cost, get_optimizer)()
            with tf.control_dependencies([g for g, _ in grads]):
                computed = tf.timestamp()
            train = self.model.config.train
            self.gradients = {v.op.name: self._averaged(g, v) for g, v in grads}  # Horovod: mean over the ranks
            decayed = [(self.gradients[v.op.name] + self._decay(v), v) for _, v in grads]
            if train.gradient_clip:
                clipped, _ = tf.clip_by_global_norm([g for g, _ in decayed], train.gradient_clip)
                decayed = [(g, v) for g, (_, v) in zip(clipped, decayed, strict=True)]
            with tf.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
                self.train_op = get_optimizer().apply_gradients(decayed, name="train_op")
        self._names = [*self.model.losses, "fg_rois", *Report.REQUESTS]
        told = tf.stack([*self.model.losses.values(), self.model.fg_rois, *tf.unstack(self.model.requests)])
        self._report_tensor = self._mean(told, "report")
        with tf.control_dependencies([*self.gradients.values(), self._report_tensor]):
            reduced = tf.timestamp()
        self._times = tf.stack([computed - self.model.began, reduced - computed])
        return []

    def initialize(self, session_creator: NewSessionCreator, session_init: Any) -> None:
        """Opens the session, lets `start` set variables, and gives rank 0's to all ranks."""
        import horovod.tensorflow as hvd

        broadcast = hvd.broadcast_global_variables(0) if self.ranks.size > 1 else tf.no_op()  # Horovod
        self.variables = {v.op.name: v for v in tf1.global_variables()}
        super().initialize(session_creator, session_init)
        self._start(self)
        self.sess.run(broadcast)

    def run_step(self) -> None:
        """One update of the weights; `report` then tells of it."""
        _, values, times = self.hooked_sess.run([self.train_op, self._report_tensor, self._times])
        self.report = Report(self._names, values, *times.tolist())

    def values(self) -> dict[str, np.ndarray]:
        """Every variable, the optimizer's and the step counter among them."""
        return dict(self.sess.run(self.variables))

    def assign(self, values: dict[str, np.ndarray]) -> None:
        """Sets variables by name."""
        assign(self.sess, self.variables, values)

    def go(self, callbacks: list[Callback], steps: int) -> None:
        """At most this many steps. A callback ends them earlier by raising `tensorpack.train.StopTraining`."""
        creator = NewSessionCreator()
        creator.config = session_config(self.ranks.threads, self.ranks.gpu)
        self.train(callbacks, [], creator, JustCurrentSession(), steps_per_epoch=steps, starting_epoch=1, max_epoch=1)

    def _averaged(self, gradient: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
        return self._mean(tf.convert_to_tensor(gradient), "gradient_" + variable.op.name.replace("/", "_"))

    def _mean(self, value: tf.Tensor, name: str) -> tf.Tensor:
        half = self.model.config.train.fp16_allreduce and name != "report"
        return mean_over_ranks(value, name, ranks=self.ranks.size, half=half)  # Horovod

    def _decay(self, variable: tf.Variable) -> tf.Tensor | float:
        """Weight decay on the kernels of convolutions and dense layers."""
        return self.model.config.train.weight_decay * variable if variable.op.name.endswith("/W") else 0.0
