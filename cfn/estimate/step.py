"""Time of one training step on a number of hosts: computing, all-reduce, input, and waiting for the slowest rank."""

import math
from dataclasses import dataclass

from cfn.estimate.layers import Layer, parameters
from cfn.estimate.machines import Machine
from cfn.estimate.reduction import Gradient, summing

# Shares of the data sheet's peak, fixed by the figures marked so in `published.py`, before comparing the others.
MATH = {"float32": 1.05, "tf32": 0.28, "float16": 0.6, "bfloat16": 0.6}
MEMORY = 0.85
UNFUSED = 1.8  # times the memory traffic if XLA does not fuse what follows a convolution
KERNELS_S = 6e-6  # per layer and pass, to start its kernels
UPDATE_BYTES = 20.0  # per parameter: read gradient, momentum and weight, write the last two
CONTENTION = 0.25  # share of an all-reduce's time that slows computing on the GPU
JITTER = 0.018  # relative standard deviation of a rank's step; all ranks wait for the slowest
# Images/s of one vCPU, from a shard to a random crop: benchmarks/input_pipeline.py, photographs of 171 and of 60 kB.
DECODED = {"original": 455.0, "shrunk": 833.0}
FORWARD = 1.0 / 3.0


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Settings of a training, as its flags give them."""

    layers: tuple[Layer, ...]
    batch: int
    """Images per rank and step."""
    precision: str = "float16"
    xla: bool = True
    compressed: bool = False
    """True if gradients are sent in float16."""
    photographs: str | None = "shrunk"
    """Size of the images in the shards: `shrunk`, as `inv data.imagenet` makes them, or `original`; None:
    nothing is read."""


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Times of one step, in seconds. Reading the input overlaps with computing."""

    images: int
    """Images of all ranks."""
    compute_s: float
    waited_s: float
    """Waiting for all-reduces: their time after the backward pass, and how much they slow the backward pass down."""
    uneven_s: float
    """Waiting for the slowest rank."""
    read_s: float

    @property
    def seconds(self) -> float:
        """Return the seconds of the whole step."""
        return max(self.compute_s + self.waited_s + self.uneven_s, self.read_s)

    @property
    def images_per_s(self) -> float:
        """Return the images/s of all ranks together."""
        return self.images / self.seconds

    @property
    def bound(self) -> str:
        """Return the bottleneck: "input", "network" or "GPU"."""
        if self.read_s > self.compute_s + self.waited_s + self.uneven_s:
            return "input"
        return "network" if self.waited_s > 0.1 * self.compute_s else "GPU"


def step(training: TrainingSettings, machine: Machine, hosts: int) -> StepTimes:
    """Return the times of one step on all GPUs of this many hosts."""
    ranks = hosts * machine.gpus
    times = [_layer_s(layer, training, machine) for layer in training.layers]
    update_s = UPDATE_BYTES * parameters(training.layers) / (MEMORY * machine.card.memory * 1e9)
    backward_s = (1.0 - FORWARD) * sum(times)
    gradients, at_s = [], 0.0
    for layer, seconds in zip(reversed(training.layers), reversed(times), strict=True):
        at_s += (1.0 - FORWARD) * seconds
        if layer.weights:
            gradients.append(Gradient(layer.weights * (2.0 if training.compressed else 4.0), at_s))
    reduced = summing(gradients, backward_s, machine, hosts)
    compute_s = sum(times) + update_s
    rate = machine.vcpus * DECODED[training.photographs] if training.photographs else math.inf
    return StepTimes(
        images=training.batch * ranks,
        compute_s=compute_s,
        waited_s=reduced.waited_s + CONTENTION * reduced.busy_s,
        uneven_s=compute_s * JITTER * math.sqrt(2.0 * math.log(ranks)),
        read_s=training.batch * machine.gpus / rate,
    )


def _layer_s(layer: Layer, training: TrainingSettings, machine: Machine) -> float:
    """Return the seconds of both passes of a layer: its arithmetic plus its memory traffic.

    On a GPU the two overlap only in part.
    """
    bytes_of_one = 4.0 if training.precision in ("float32", "tf32") else 2.0
    moved = layer.moved * bytes_of_one * (1.0 if training.xla else UNFUSED)
    arithmetic = layer.flop_of_step / _flop_per_s(training.precision, machine)
    return training.batch * (arithmetic + moved / (MEMORY * machine.card.memory * 1e9)) + 3 * KERNELS_S


def _flop_per_s(precision: str, machine: Machine) -> float:
    """Return the FLOP/s that a GPU reaches. For float32, TensorFlow uses TF32 if the GPU has it."""
    precisions = ("float32", "tf32") if precision == "float32" else (precision,)
    return max(MATH[p] * machine.card.peak(p) for p in precisions)
