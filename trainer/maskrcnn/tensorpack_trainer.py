"""Adapters of Mask R-CNN to tensorpack: the model description, the fed input, and the trainer over Horovod."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import test_util

from trainer.common.ranks.gradients import larc_factor
from trainer.common.ranks.horovod_rank import Ranks, mean_over_ranks
from trainer.maskrcnn.batch import Batch
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.config_training import TrainConfig
from trainer.maskrcnn.detector import assign, session_config
from trainer.maskrcnn.layers import tf1
from trainer.maskrcnn.loss_scale import LossScale, make_loss_scale
from trainer.maskrcnn.model import losses, make_layers

logging.getLogger("tensorpack").setLevel(logging.ERROR)
# tensorpack installs handlers of signals in the place of Open MPI's, and TensorFlow warns of each.
test_util.InstallStackTraceHandler = lambda: None

from tensorpack.callbacks import Callback  # noqa: E402  its logger speaks when imported
from tensorpack.input_source import InputSource  # noqa: E402
from tensorpack.tfutils.sesscreate import NewSessionCreator  # noqa: E402
from tensorpack.tfutils.sessinit import JustCurrentSession  # noqa: E402
from tensorpack.tfutils.tower import TrainTowerContext  # noqa: E402
from tensorpack.train import ModelDesc, SingleCostTrainer  # noqa: E402
from tensorpack.utils import logger  # noqa: E402

for _handler in logger._logger.handlers:
    _handler.setLevel(logging.ERROR)
# tensorpack's report of a failed training ends in a traceback. The trainer reports the failure itself.
logger.addFilter(lambda record: not str(record.msg).startswith("Training failed"))

Fed = tuple[np.ndarray, ...]


class MaskRcnn(ModelDesc):
    """Model description for tensorpack: inputs, cost and optimizer. Once built, `losses` holds each loss by name."""

    def __init__(self, config: Config, ranks: int, device: str = "GPU") -> None:
        self.config, self.ranks, self.device = config, ranks, device
        self.losses: dict[str, tf.Tensor] = {}
        self.loss_scale: LossScale | None = None

    def inputs(self) -> list[tf.TensorSpec]:
        """Return the fields of `Batch`, then the learning rate and this rank's requests (`Report.REQUESTS`)."""
        return [
            *Batch.specs(self.config.train.batch_size_per_gpu),
            tf.TensorSpec((), tf.float32, "learning_rate"),
            tf.TensorSpec((len(StepMeans.REQUESTS),), tf.float32, "requests"),
        ]

    def build_graph(self, *inputs: tf.Tensor) -> tf.Tensor:
        """Build the cost of a batch: the sum of all losses, times the loss scale."""
        self.began = tf.timestamp()
        with tf.control_dependencies([self.began]):
            images = tf.identity(inputs[0])
        batch = Batch(images, *inputs[1 : len(Batch.SIGNATURE)])
        self.learning_rate, self.requests = inputs[len(Batch.SIGNATURE) :]
        layers = make_layers(self.config, training=True, ranks=self.ranks, device=self.device)
        parts = losses(batch, self.config, layers)
        self.fg_rois = parts.pop("fg_rois")
        self.losses = parts
        cost = tf.add_n(list(parts.values()))
        self.loss_scale = make_loss_scale(self.config)
        return cost * self.loss_scale.value if self.loss_scale else cost

    def optimizer(self) -> tf1.train.Optimizer:
        """Return SGD with momentum at the fed learning rate."""
        return tf1.train.MomentumOptimizer(self.learning_rate, self.config.train.momentum)


class StepMeans:
    """Result of a step: the mean over all ranks of each loss and request. The same on all ranks.

    Only the times are this rank's own: forward and backward, then until the last gradient is reduced. With SyncBN the
    first contains waiting for other ranks, too.
    """

    REQUESTS = ("asked", "terminated", "evaluated", "due")

    def __init__(
        self,
        names: list[str],
        values: np.ndarray,
        compute_s: float = 0.0,
        reduce_s: float = 0.0,
        loss_scale: float = 0.0,
    ) -> None:
        """Store the step's values.

        Args:
            loss_scale: factor of the loss; 0 without loss scaling.
        """
        self.values = dict(zip(names, values.tolist(), strict=True))
        self.compute_s, self.reduce_s, self.loss_scale = compute_s, reduce_s, loss_scale

    @property
    def loss(self) -> float:
        """Return the sum of the losses."""
        return sum(v for k, v in self.values.items() if k not in (*self.REQUESTS, "fg_rois"))

    def count(self, request: str, ranks: int) -> int:
        """Return how many ranks made the request."""
        return round(self.values[request] * ranks)


class FedInput(InputSource):
    """Placeholders that are fed from an iterator of arrays, in the model's order."""

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
    """tensorpack trainer with gradients averaged over the ranks, weight decay, clipping, and a report per step."""

    AGGREGATION_METHOD = tf.AggregationMethod.EXPERIMENTAL_TREE
    """Adds in pairs. A sum of three would begin with whichever tensor may be overwritten first. The same step would
    then differ in the last bit, and later draws would differ."""

    def __init__(
        self, model: MaskRcnn, ranks: Ranks, start: Callable[["HorovodSteps"], None], root: int = 0, *, parts: int = 1
    ) -> None:
        """Store what is needed to build the training's graph.

        Args:
            start: called once with the session open, before the variables of rank `root` go to all ranks.
            parts: micro-steps in a step: batches of this rank whose gradients are added up for one update.
        """
        super().__init__()
        self.model, self.ranks, self._start, self._root, self.parts = model, ranks, start, root, parts
        self.is_chief = True  # callbacks run on every rank and decide themselves; only rank 0 writes files
        self.report = StepMeans([], np.zeros(0))

    def _setup_graph(
        self, source: InputSource, get_cost: Callable[..., tf.Tensor], get_optimizer: Callable[[], tf1.train.Optimizer]
    ) -> list[Callback]:
        with TrainTowerContext(""):
            grads = self._make_get_grad_fn(source, get_cost, get_optimizer)()
            with tf.control_dependencies([g for g, _ in grads]):
                computed = tf.timestamp()
            train = self.model.config.train
            if self.parts > 1:
                grads = self._with_sums(grads)
            self.gradients = {v.op.name: self._averaged(g, v) for g, v in grads}  # Horovod: mean over the ranks
            scale = self.model.loss_scale
            if scale:
                self.gradients = {name: g / scale.value for name, g in self.gradients.items()}
            averaged = [(self.gradients[v.op.name], v) for _, v in grads]
            updates = for_update(averaged, train, self.model.learning_rate)
            optimizer = get_optimizer()
            with tf.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
                if scale:
                    self.train_op = scale.guarded(
                        list(self.gradients.values()), lambda: optimizer.apply_gradients(updates, name="train_op")
                    )
                else:
                    self.train_op = optimizer.apply_gradients(updates, name="train_op")
        self._names = [*self.model.losses, "fg_rois", *StepMeans.REQUESTS]
        self._scores = tf.stack([*self.model.losses.values(), self.model.fg_rois])
        scores = self._scores
        if self.parts > 1:
            self._earlier_scores = tf1.placeholder(tf.float32, scores.shape)
            scores = (scores + self._earlier_scores) / self.parts
        self._report_tensor = self._mean(tf.concat([scores, self.model.requests], 0), "report")
        with tf.control_dependencies([*self.gradients.values(), self._report_tensor]):
            reduced = tf.timestamp()
        self._compute_s = computed - self.model.began
        told = tf.cast(scale.value, tf.float64) if scale else tf.zeros([], tf.float64)
        self._times = tf.stack([self._compute_s, reduced - computed, told])
        return []

    def initialize(self, session_creator: NewSessionCreator, session_init: Any) -> None:
        """Open the session, let `start` set variables, and broadcast those of one rank to all."""
        import horovod.tensorflow as hvd

        broadcast = hvd.broadcast_global_variables(self._root) if self.ranks.size > 1 else tf.no_op()  # Horovod
        self.variables = {v.op.name: v for v in tf1.global_variables()}
        super().initialize(session_creator, session_init)
        self._start(self)
        self.sess.run(broadcast)

    def run_step(self) -> None:
        """Update the weights once and store the step's result in `report`."""
        earlier, seconds = np.zeros(len(self._names) - len(StepMeans.REQUESTS), np.float32), 0.0
        for part in range(self.parts - 1):
            keep = self.keep_more if part else self.keep_first
            _, scores, computed_s = self.hooked_sess.run([keep, self._scores, self._compute_s])
            earlier, seconds = earlier + scores, seconds + computed_s
        feed = {self._earlier_scores: earlier} if self.parts > 1 else None
        _, values, times = self.hooked_sess.run([self.train_op, self._report_tensor, self._times], feed)
        compute_s, reduce_s, scale = times.tolist()
        self.report = StepMeans(self._names, values, seconds + compute_s, reduce_s, scale)

    def values(self) -> dict[str, np.ndarray]:
        """Return every variable, including the optimizer's and the step counter."""
        return dict(self.sess.run(self.variables))

    def assign(self, values: dict[str, np.ndarray]) -> None:
        """Set variables by name."""
        assign(self.sess, self.variables, values)

    def go(self, callbacks: list[Callback], steps: int) -> None:
        """Run at most this many steps. A callback ends them earlier by raising `tensorpack.train.StopTraining`."""
        creator = NewSessionCreator()
        creator.config = session_config(self.ranks.threads, self.ranks.gpu)
        # The optimizer takes a fifth to a third of the start, and on CPUs its graph is no faster.
        creator.config.graph_options.rewrite_options.disable_meta_optimizer = self.ranks.gpu is None
        self.train(callbacks, [], creator, JustCurrentSession(), steps_per_epoch=steps, starting_epoch=1, max_epoch=1)

    def _with_sums(self, grads: list[tuple[tf.Tensor, tf.Variable]]) -> list[tuple[tf.Tensor, tf.Variable]]:
        """Return the mean gradients of a step's parts, once the earlier parts' gradients have been added up.

        The sums are not part of a checkpoint, and every step starts them again.
        """
        own = [(tf.convert_to_tensor(g), v) for g, v in grads]
        sums = [
            tf1.get_variable(
                f"sum/{v.op.name}",
                v.shape,
                initializer=tf1.zeros_initializer(),
                trainable=False,
                collections=[tf1.GraphKeys.LOCAL_VARIABLES],
            )
            for _, v in own
        ]
        pairs = list(zip(sums, own, strict=True))
        self.keep_first = tf.group(*(tf1.assign(kept, g) for kept, (g, _) in pairs))
        self.keep_more = tf.group(*(tf1.assign_add(kept, g) for kept, (g, _) in pairs))
        return [((kept + g) / self.parts, v) for kept, (g, v) in pairs]

    def _averaged(self, gradient: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
        return self._mean(tf.convert_to_tensor(gradient), "gradient_" + variable.op.name.replace("/", "_"))

    def _mean(self, value: tf.Tensor, name: str) -> tf.Tensor:
        half = self.model.config.train.fp16_allreduce and name != "report"
        return mean_over_ranks(value, name, ranks=self.ranks.size, half=half)  # Horovod


def for_update(
    gradients: list[tuple[tf.Tensor, tf.Variable]], train: TrainConfig, lr: tf.Tensor
) -> list[tuple[tf.Tensor, tf.Variable]]:
    """Prepare the gradients for the optimizer: add weight decay, clip by the global norm, limit kernels' by LARC."""
    found = [(g + decay(v, train.weight_decay), v) for g, v in gradients]
    if train.gradient_clip:
        clipped, _ = tf.clip_by_global_norm([g for g, _ in found], train.gradient_clip)
        found = [(g, v) for g, (_, v) in zip(clipped, found, strict=True)]
    if train.larc:
        found = [(g * larc_factor(v, g, lr, train.larc_eta) if is_kernel(v) else g, v) for g, v in found]
    return found


def is_kernel(variable: tf.Variable) -> bool:
    """Return True for a kernel of a convolution or a dense layer. Only kernels have weight decay."""
    return bool(variable.op.name.endswith("/W"))


def decay(variable: tf.Variable, rate: float) -> tf.Tensor | float:
    """Return the term that weight decay adds to the variable's gradient."""
    return rate * variable if is_kernel(variable) else 0.0
