"""Training step and evaluation step, as compiled functions."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from dlami.heartbeat import beat
from trainer.common.ranks.gradients import are_finite, larc_factor
from trainer.common.ranks.horovod_rank import mean_over_ranks
from trainer.common.ranks.precision import DYNAMIC
from trainer.resnet50 import augment
from trainer.resnet50.config import ResNetConfig
from trainer.resnet50.engine import Requests, StepResult, moving_average_decay
from trainer.resnet50.images import Batch
from trainer.resnet50.model import ResNet
from trainer.resnet50.network import BN_DECAY, VARIANTS, Variant, prefix
from trainer.resnet50.optimizer import LossScale, apply_momentum

Gradients = tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]  # by weight; batch statistics, one vector; [2] loss and top-1


class TensorFlowLearner:
    """Model with its optimizer state, and the functions that change them.

    All ranks hold the same values at all times: gradients, batch statistics and the scalars are averaged over the
    ranks, every image counting once.
    """

    def __init__(self, config: ResNetConfig, classes: int, variant: Variant | None = None) -> None:
        self.config, self.classes = config, classes
        self.variant = variant or VARIANTS[config.variant]
        self.dtype = tf.as_dtype(config.precision)
        self.model = ResNet(
            config.model,
            classes,
            config.seed,
            zero_gamma=config.adv_bn_init,
            he_init=config.adv_conv_init,
            variant=self.variant,
        )
        self.weights = self.model.trainable()
        self.averages = self.model.averages()
        self.momenta = [
            tf.Variable(tf.zeros_like(w), trainable=False, name=f"{_name(w)}/momentum") for w in self.weights
        ]
        self.loss_scale: LossScale | None = None
        if config.scales_loss:
            self.loss_scale = LossScale(None if config.loss_scale == DYNAMIC else float(config.loss_scale))
        self._evaluated = self.weights + self.averages
        self.smooth = (
            [tf.Variable(v, trainable=False, name=f"{_name(v)}/ema") for v in self._evaluated]
            if config.ema_decay
            else []
        )
        self._decayed = {id(kernel) for kernel in self.model.kernels()}
        # Horovod's operations cannot be inside an XLA cluster, so only the parts' gradients are.
        self._part: Callable[..., Gradients] = self._part_graph
        if config.xla:
            self._part = tf.function(self._part_graph, autograph=False, jit_compile=True)
        self._train = tf.function(self._train_graph, autograph=False)
        self._eval = tf.function(self._eval_graph, autograph=False, reduce_retracing=True)

    def state(self) -> dict[str, tf.Variable]:
        """Return every variable that a checkpoint must hold, by name. Names of another variant begin with its own."""
        scale = self.loss_scale.variables() if self.loss_scale else []
        held = self.weights + self.averages + self.momenta + self.smooth + scale
        return {f"{prefix(self.config.variant)}{_name(v)}": v for v in held}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the values of the state, by name."""
        return {name: variable.numpy() for name, variable in self.state().items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the state, by name."""
        return {name: tuple(variable.shape) for name, variable in self.state().items()}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set every variable."""
        for name, variable in self.state().items():
            variable.assign(arrays[name])

    def begin_with(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set weights and statistics by their names without a prefix. The moving average starts from them."""
        for variable in self._evaluated:
            if _name(variable) in arrays:
                variable.assign(arrays[_name(variable)])
        for smooth, variable in zip(self.smooth, self._evaluated, strict=False):
            smooth.assign(variable)

    @property
    def scale(self) -> float | None:
        """Return the factor of the loss; None without loss scaling."""
        return float(self.loss_scale.value.numpy()) if self.loss_scale else None

    def broadcast(self, rank: int = 0) -> None:
        """Copy the state of `rank` to all ranks."""
        # Horovod: the one broadcast, at start and resume. `inplace` is one operation and builds no graph.
        hvd.broadcast_variables(list(self.state().values()), root_rank=rank, inplace=True)

    def train(self, batch: Batch, lr: float, requests: Requests = (0.0, 0.0, 0.0), step: int = 0) -> tf.Tensor:
        """Take one step. Its result, which `result` reads, may still be computed on the device.

        Args:
            requests: this rank's `StopRequest.numbers`, and whether it requests a checkpoint.
            step: its number; the moving average follows fast at first.
        """
        ema = moving_average_decay(self.config.ema_decay, step)
        return self._train(*batch, *(tf.constant(x, tf.float32) for x in (float(lr), requests, ema)))

    @staticmethod
    def result(scalars: tf.Tensor) -> StepResult:
        """Wait for a step and return its result."""
        return StepResult(*(float(x) for x in scalars.numpy()))

    def evaluate(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return [4] float64 sums over these images on this rank: images, top-1 hits, top-5 hits, cross-entropy."""
        return self._eval(images, labels)

    def scores(self, batches: Iterable[tuple[tf.Tensor, tf.Tensor]]) -> np.ndarray:
        """Return the sums of `evaluate` over these batches, with the smoothed weights."""
        sums = tf.zeros([4], tf.float64)
        with self.smoothed():
            for images, labels in batches:
                sums += self.evaluate(images, labels)
                beat.alive()
        return np.asarray(sums)

    @contextmanager
    def smoothed(self) -> Iterator[None]:
        """Context in which the model computes with the moving averages of its weights, if there are any."""
        own = [tf.identity(v) for v in self._evaluated] if self.smooth else []
        for variable, value in zip(self._evaluated, self.smooth, strict=False):
            variable.assign(value)
        try:
            yield
        finally:
            for variable, value in zip(self._evaluated, own, strict=False):
                variable.assign(value)

    def penalty(self) -> float:
        """Return the L2 term of the loss, weight decay x half the squared kernels."""
        return self.config.weight_decay * float(sum(tf.nn.l2_loss(kernel) for kernel in self.model.kernels()))

    def gradients(self, images: tf.Tensor, labels: tf.Tensor, seeds: tf.Tensor) -> Gradients:
        """Return this rank's gradients, batch statistics in one vector, and [2] loss and accuracy.

        All are means over its parts. With a loss scale the gradients are those of the scaled loss.
        """
        parts = self.config.accumulate
        if parts == 1:
            return self._one_part(images, labels, seeds)
        split = [tf.reshape(t, [parts, -1, *t.shape[1:]]) for t in (images, labels, seeds)]
        # One after the other. All parts but the last share one loop, so the last's gradients can be reduced at once.
        sums = tf.while_loop(
            lambda i, *_: i < parts - 1,
            lambda i, *sums: (i + 1, *_added(sums, self._one_part(*(t[i] for t in split)))),
            (tf.constant(0), *(tf.zeros(shape) for shape in self._part_shapes())),
            parallel_iterations=1,
        )[1:]
        with tf.control_dependencies(sums):
            last = [tf.identity(t[-1]) for t in split]
        *gradients, statistics, scores = (value / parts for value in _added(sums, self._one_part(*last)))
        return gradients, statistics, scores

    def _one_part(self, images: tf.Tensor, labels: tf.Tensor, seeds: tf.Tensor) -> Gradients:
        alpha = self.config.mixup_alpha
        mixup_share = augment.mixup_share(seeds, alpha) if alpha else tf.constant(1.0)
        scale = self.loss_scale.value.read_value() if self.loss_scale else tf.constant(1.0)
        return self._part(images, labels, seeds, mixup_share, scale)

    def _part_shapes(self) -> list[tf.TensorShape]:
        """Return the shapes of the tensors in a part's `Gradients`, in one list."""
        return [
            *(w.shape for w in self.weights),
            tf.TensorShape(sum(v.shape[0] for v in self.averages)),
            tf.TensorShape(2),
        ]

    def _part_graph(
        self, images: tf.Tensor, labels: tf.Tensor, seeds: tf.Tensor, mixup_share: tf.Tensor, scale: tf.Tensor
    ) -> Gradients:
        config = self.config
        if not config.synthetic:
            images = augment.flip_half(images, seeds)
        if config.increased_aug:
            images = augment.vary_colours(
                images, seeds, augment.Colours(config.brightness, config.hue, config.saturation, config.contrast)
            )
        x = augment.normalise(images, self.dtype, self.variant.pixels)
        wanted = augment.targets(labels, self.classes, config.label_smoothing)
        if config.mixup_alpha:
            x, wanted = augment.mixup(x, wanted, mixup_share)
        statistics: list[tf.Tensor] = []
        with tf.GradientTape() as tape:
            logits = self.model(x, statistics)
            loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(wanted, logits))
            scaled = loss * scale if config.scales_loss else loss
        hits = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1, tf.int32), labels), tf.float32))
        return tape.gradient(scaled, self.weights), tf.concat(statistics, 0), tf.stack([loss, hits])

    def _clock(self) -> tf.Tensor:
        """Return seconds, for the time split of a step; 0 in a deterministic run, where TensorFlow allows no clock."""
        return tf.constant(0.0, tf.float64) if self.config.deterministic else tf.timestamp()

    def _train_graph(
        self, images: tf.Tensor, labels: tf.Tensor, seeds: tf.Tensor, lr: tf.Tensor, requests: tf.Tensor, ema: tf.Tensor
    ) -> tf.Tensor:
        began = self._clock()
        with tf.control_dependencies([began]):
            images = tf.identity(images)
        own, statistics, scores = self.gradients(images, labels, seeds)
        with tf.control_dependencies(own):
            computed = self._clock()
        # Horovod: each gradient is reduced as soon as backward has it, while the earlier layers still compute.
        gradients = [
            mean_over_ranks(g, f"gradient/{_name(w)}", ranks=hvd.size(), half=self.config.fp16_compression)
            for g, w in zip(own, self.weights, strict=True)
        ]
        # Horovod: everything else travels as one vector, known at the end of forward.
        shared = mean_over_ranks(tf.concat([scores, requests, statistics], 0), "shared", ranks=hvd.size())
        with tf.control_dependencies([*gradients, shared]):
            reduced = self._clock()
        skipped = self._update(gradients, shared[5:], lr, ema)
        times = tf.cast(tf.stack([computed - began, reduced - computed]), tf.float32)
        return tf.concat([shared[:5], [skipped], scores[:1], times], 0)

    def _update(self, gradients: list[tf.Tensor], statistics: tf.Tensor, lr: tf.Tensor, ema: tf.Tensor) -> tf.Tensor:
        """Update the state. Returns 1.0 if it was skipped, which a loss scale does after an overflow on any rank."""
        if self.loss_scale is None:
            self._apply(gradients, statistics, lr, ema)
            return tf.constant(0.0)
        factor = 1 / self.loss_scale.value
        gradients = [g * factor for g in gradients]
        is_finite = are_finite(gradients)

        def apply() -> tf.Tensor:
            self._apply(gradients, statistics, lr, ema)
            return tf.constant(0.0)

        skipped = tf.cond(is_finite, apply, lambda: tf.constant(1.0))
        self.loss_scale.update(is_finite)
        return skipped

    def _apply(self, gradients: list[tf.Tensor], statistics: tf.Tensor, lr: tf.Tensor, ema: tf.Tensor) -> None:
        config = self.config
        for w, g, m in zip(self.weights, gradients, self.momenta, strict=True):
            total = g + config.weight_decay * w if id(w) in self._decayed else g
            if config.larc:
                total *= larc_factor(w, total, lr, config.larc_eta)
            apply_momentum(w, m, total, lr, config.momentum)
        sizes = [v.shape[0] for v in self.averages]
        for average, value in zip(self.averages, tf.split(statistics, sizes), strict=True):
            average.assign_add((value - average) * (1 - BN_DECAY))
        for smooth, value in zip(self.smooth, self._evaluated, strict=False):
            smooth.assign_add((value - smooth) * (1 - ema))

    def _eval_graph(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        logits = self.model(augment.normalise(images, self.dtype, self.variant.pixels))
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        place = _places(logits, labels)
        sums = (tf.ones_like(losses), place < 1, place < 5, losses)
        return tf.stack([tf.reduce_sum(tf.cast(s, tf.float64)) for s in sums])


def _added(sums: Sequence[tf.Tensor], found: Gradients) -> list[tf.Tensor]:
    """Return the sums of gradients, statistics and scores so far, plus those of one more part."""
    gradients, statistics, scores = found
    return [a + b for a, b in zip(sums, (*gradients, statistics, scores), strict=True)]


def _places(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return how many classes are ranked above each label, [N] int32. Of equal logits the lower class comes first.

    `in_top_k` counts all classes that tie, so a network with equal outputs for all classes would be right in all its
    top-5. If a logit is not finite, the label gets the last place.
    """
    own, classes = tf.gather(logits, labels, batch_dims=1)[:, None], tf.range(tf.shape(logits)[1])
    before = (logits > own) | ((logits == own) & (classes < labels[:, None]))
    is_sound = tf.reduce_all(tf.math.is_finite(logits), 1)
    return tf.where(is_sound, tf.reduce_sum(tf.cast(before, tf.int32), 1), tf.int32.max)


def _name(variable: tf.Variable) -> str:
    return variable.name.split(":")[0]
