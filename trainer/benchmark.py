"""Training-speed benchmark that reports as tf_cnn_benchmarks does.

Run it with `python -m trainer.benchmark --model vgg16 --num-batches 100 --fp16`.

The ResNets are this project's and have tf_cnn_benchmarks' names. resnet50 has its strides in the first 1x1 convolution,
as the paper has. resnet50_v1.5, which the trainer trains, has them in the 3x3. The other networks are those of
`trainer.tf_cnn_networks`. All are trained with momentum SGD.
"""
# ruff: noqa: RUF009  # `flag` is `dataclasses.field` with its metadata spelled out

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dlami.heartbeat import Phase, beat, beat_file
from trainer.common.files.commandline import TrainerParser, add_flags, check_fields, flag
from trainer.common.files.errors import CommonError, ConfigError, entry
from trainer.common.files.plural import counted
from trainer.common.ranks.gc_freeze import settle
from trainer.resnet50 import config as resnet
from trainer.tf_cnn_flags import translated
from trainer.tf_cnn_networks import NETWORKS, build

DEEPER = "_v1.5"  # suffix of the networks with the stride in the 3x3, newer than the paper's
RESNETS = (*resnet.MODELS, *(name + DEEPER for name in ("resnet50", "resnet101", "resnet152")))
RESNET_SIZE = 224  # side of the ResNets' square input, in pixels
BATCHES = {101: 32, 152: 32}  # images per rank and step for ResNets of so many layers, as tf_cnn_benchmarks has it
BATCH = 64  # for all others
HEADER = "Step\tImg/sec\ttotal_loss"
FIXED_SCALE = 128.0  # of the loss in float16


@dataclass(frozen=True, kw_only=True)
class BenchmarkConfig:
    """Flags of the benchmark. Those that tf_cnn_benchmarks has, too, have its names."""

    model: str = flag("resnet50", "network", choices=(*RESNETS, *NETWORKS))
    batch_size: int | None = flag(
        None, "images per rank and step; default: tf_cnn_benchmarks' for the network", type=int, least=1
    )
    num_batches: int = flag(100, "measured steps", least=2)
    num_warmup_batches: int = flag(10, "steps before them", least=1)
    display_every: int = flag(10, "steps between two lines", least=1)
    data_dir: Path | None = flag(None, "folder of TFRecord shards; default: synthetic images", type=Path)
    image_size: int | None = flag(
        None, "pixels of the square; default: what the network is made for", type=int, least=32
    )
    fp16: bool = flag(False, "compute in float16")
    bf16: bool = flag(False, "compute in bfloat16")
    lr: float = flag(0.005, "learning rate")
    momentum: float = flag(0.9, "momentum")
    weight_decay: float = flag(4e-5, "L2 on the kernels")
    threads: int | None = flag(None, "threads per rank; default: the cores this rank owns", type=int, least=1)
    job_dir: Path | None = flag(None, "ignored: what runs this as a job gives it", type=Path)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.fp16 and self.bf16:
            raise ConfigError("give --fp16 or --bf16, not both")

    @property
    def precision(self) -> str:
        """Return the type to compute in."""
        return "float16" if self.fp16 else "bfloat16" if self.bf16 else "float32"

    @property
    def size(self) -> int:
        """Return the side of the square input, in pixels."""
        return self.image_size or (NETWORKS[self.model].size if self.model in NETWORKS else RESNET_SIZE)

    @property
    def batch(self) -> int:
        """Return the images per rank and step."""
        if self.batch_size:
            return self.batch_size
        if self.model in NETWORKS:
            return NETWORKS[self.model].batch
        return BATCHES.get(int(self.model.removeprefix("resnet").removesuffix(DEEPER)), BATCH)

    @property
    def strides_first(self) -> bool:
        """Return True if blocks have their stride in the first 1x1 convolution."""
        return not self.model.endswith(DEEPER)

    def training(self) -> resnet.ResNetConfig:
        """Return the matching configuration of the ResNet trainer, whose input this program uses."""
        return resnet.ResNetConfig(
            model=self.model.removesuffix(DEEPER) if self.model in RESNETS else "resnet50",
            batch_size=self.batch,
            num_batches=self.num_warmup_batches + self.num_batches,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            precision=self.precision,
            data_dir=self.data_dir,
            synthetic=self.data_dir is None,
            image_size=self.size,
            job_dir=Path(),
            loss_scale=str(FIXED_SCALE),
        )


@dataclass(frozen=True)
class Speed:
    """Speed of one rank over its steps, in images per second."""

    mean: float
    uncertainty: float  # standard error of the mean
    jitter: float  # deviation of a step, from the median absolute one

    @classmethod
    def of(cls, seconds: Sequence[float], batch: int) -> "Speed":
        """Compute the speed from the steps' times, with tf_cnn_benchmarks' formulas."""
        speeds = [batch / s for s in seconds]
        middle = statistics.median(speeds)
        spread = statistics.pstdev(speeds) / len(speeds) ** 0.5
        jitter = 1.4826 * statistics.median(abs(s - middle) for s in speeds)
        return cls(batch / statistics.fmean(seconds), spread, jitter)

    def __str__(self) -> str:
        return f"images/sec: {self.mean:.1f} +/- {self.uncertainty:.1f} (jitter = {self.jitter:.1f})"


def overall(speeds: Sequence[Speed]) -> str:
    """Format the last lines: mean over ranks and total, with their uncertainties."""
    total = sum(s.mean for s in speeds)
    error = sum(s.uncertainty**2 for s in speeds) ** 0.5
    count = len(speeds)
    return (
        f"mean images/sec per rank: {total / count:.2f} +/- {error / count:.2f} over {counted(count, 'rank')}\n"
        f"total images/sec: {total:.2f} +/- {error:.2f}"
    )


def parse(argv: Sequence[str]) -> tuple[BenchmarkConfig, Any]:
    """Parse and check the flags."""
    parser = TrainerParser(
        prog="python -m trainer.benchmark", description="Measures training speed.", allow_abbrev=False
    )
    add_flags(parser, BenchmarkConfig)
    parser.add_argument("--check", action="store_true", help="only look whether it could be done")
    parser.add_argument("--ranks", type=int, default=1, help="with --check: ranks the run will have")
    a = parser.parse_args(translated(argv))
    return BenchmarkConfig(**{f.name: getattr(a, f.name) for f in fields(BenchmarkConfig)}), a


@entry
def main(argv: Sequence[str]) -> None:
    """Check the run with `--check`, or measure as one of the ranks."""
    config, arguments = parse(argv)
    from trainer.resnet50.plan import Data, look_up

    beat.begin(beat_file())
    data: Data = look_up(config.training())
    if arguments.check:
        print(
            f"{config.model}, {config.precision}, {counted(arguments.ranks, 'rank')} x {counted(config.batch, 'image')}"
        )
        return
    measure(config, data)


def measure(config: BenchmarkConfig, data: Any) -> None:
    """Train and print a line every few steps, then the mean over ranks and the total."""
    from trainer.common.ranks.horovod_rank import start

    ranks = start(config.threads)
    import horovod.tensorflow as hvd
    import tensorflow as tf

    from trainer.resnet50 import images

    step = make_step(config, data.classes)
    batches = _batches(config, data, ranks)
    say: Callable[[str], None] = (lambda text: print(text, flush=True)) if ranks.is_first else (lambda text: None)
    say(
        f"TensorFlow:  {tf.__version__}\nModel:       {config.model}\nMode:        training\nBatch size:  "
        f"{ranks.size * config.batch} global, {config.batch} per rank\nPrecision:   {config.precision}\n"
        f"Data:        {config.data_dir or 'synthetic'}\nHorovod size: {ranks.size}\nRunning warm up"
    )
    seconds: list[float] = []
    beat.enter(Phase.COMPILE)
    for number in range(1 - config.num_warmup_batches, config.num_batches + 1):
        if number == 1:
            say(f"Done warm up\n{HEADER}")
        began = time.perf_counter()
        with images.unwrapped():
            batch = next(batches)
        loss = step(batch)
        beat.stepped(number + config.num_warmup_batches)
        settle()
        if number < 1:
            continue
        seconds.append(time.perf_counter() - began)
        if loss != loss:  # NaN. Horovod: the loss is the mean over ranks, so all ranks stop here.
            raise CommonError(f"the loss is {loss} at step {number}: lower --lr")
        if number == 1 or number % config.display_every == 0:
            say(f"{number}\t{Speed.of(seconds, config.batch)}\t{loss:.3f}")
    own = Speed.of(seconds, config.batch)
    # Horovod: every rank's own speed.
    table = hvd.allgather(tf.constant([[own.mean, own.uncertainty, own.jitter]]), name="speeds").numpy()
    rule = "-" * 64
    say(f"{rule}\n{overall([Speed(*map(float, row)) for row in table])}\n{rule}")


def _batches(config: BenchmarkConfig, data: Any, ranks: Any) -> Iterator[Any]:
    from trainer.resnet50 import images
    from trainer.resnet50.reader import RecordReader

    if data.train is None:
        return images.synthetic(batch=config.batch, size=config.size, classes=data.classes, seed=1, rank=ranks.rank)
    share = images.InputShare(
        rank=ranks.rank, ranks=ranks.size, batch=config.batch, size=config.size, threads=ranks.threads
    )
    return iter(
        images.training(
            RecordReader(data.train),
            share,
            steps=range(config.num_warmup_batches + config.num_batches),
            first_image=0,
            crop_area=0.08,
            seed=1,
            classes=data.classes,
        )
    )


def make_step(config: BenchmarkConfig, classes: int) -> Callable[[Any], float]:
    """Return a function that trains on a batch and returns the loss."""
    if config.model in NETWORKS:
        return _keras_step(config, classes)
    from trainer.resnet50.network import Variant
    from trainer.resnet50.step import TensorFlowLearner

    learner = TensorFlowLearner(config.training(), classes, Variant(strides_first=config.strides_first))
    learner.broadcast()
    return lambda batch: learner.result(learner.train(batch, config.lr)).loss


def _keras_step(config: BenchmarkConfig, classes: int) -> Callable[[Any], float]:
    import horovod.tensorflow as hvd
    import tensorflow as tf
    import tf_keras as keras

    from trainer.resnet50.augment import normalise
    from trainer.resnet50.optimizer import apply_momentum

    keras.mixed_precision.set_global_policy(
        config.precision if config.precision == "float32" else f"mixed_{config.precision}"
    )
    model = build(config.model, classes, config.size)
    weights = model.trainable_variables
    velocities = [tf.Variable(tf.zeros_like(w), trainable=False) for w in weights]
    # Horovod: rank 0's weights on all ranks.
    hvd.broadcast_variables([*model.variables, *velocities], root_rank=0)
    scale = FIXED_SCALE if config.fp16 else 1.0

    @tf.function(autograph=False)
    def step(pixels: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = tf.cast(model(normalise(pixels, tf.float32), training=True), tf.float32)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            scaled = loss * scale
        gradients = tape.gradient(scaled, weights)
        for i, (w, v, g) in enumerate(zip(weights, velocities, gradients, strict=True)):
            # Horovod: reduced while the gradients of earlier layers are still being computed.
            g = hvd.allreduce(g, op=hvd.Average, name=f"gradient/{i}") / scale
            decayed = g + config.weight_decay * w if "kernel" in w.name else g
            apply_momentum(w, v, decayed, tf.constant(config.lr), config.momentum)
        return hvd.allreduce(loss, op=hvd.Average, name="loss")

    return lambda batch: float(step(batch[0], batch[1]))


if __name__ == "__main__":
    sys.exit(main())
