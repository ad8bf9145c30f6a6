"""Step time over slower links, from measurements on a machine whose links had no limit.

This is for ranks that share processors, as on a lab. Their computing time is measured with the same number of ranks,
and not taken from a data sheet. Gradients, their order, their fusion and the ring are those of the other estimates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cfn.estimate.layers import Layer, parameters
from cfn.estimate.reduction import Gradient, in_turn
from cfn.estimate.step import FORWARD

GRADIENT_BYTES = 4.0  # per parameter, in float32
HALVINGS = 40


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Measured times without link limits, in seconds."""

    ranks: int
    step_s: float
    """A whole step."""
    small_s: float
    """An all-reduce of a few bytes, from ready to sent, including the agreement of all ranks."""
    large_s: float
    """An all-reduce of all gradients, while nothing is computed."""


def step_s(parts: Parts, layers: Sequence[Layer], link: float) -> float:
    """Return the seconds of a step whose ranks have links of `link` bytes/s each way.

    A ring on processors first sends a part and then adds one up, so the time on the link adds to the processors' time.
    """
    if parts.ranks == 1:
        return parts.step_s
    sent = 2.0 * (parts.ranks - 1) / parts.ranks * GRADIENT_BYTES * parameters(tuple(layers))
    free = sent / max(parts.large_s - parts.small_s, 1e-9)
    computing_s = _computing_s(parts, layers, free)
    return computing_s + _waited_s(parts, layers, computing_s, 1.0 / (1.0 / free + 1.0 / link))


def _computing_s(parts: Parts, layers: Sequence[Layer], free: float) -> float:
    """Return the part of the unlimited step that does not wait for gradients, so that the model gives that step."""
    least, most = 0.0, parts.step_s
    for _ in range(HALVINGS):
        middle = (least + most) / 2.0
        if middle + _waited_s(parts, layers, middle, free) > parts.step_s:
            most = middle
        else:
            least = middle
    return least


def _waited_s(parts: Parts, layers: Sequence[Layer], computing_s: float, rate: float) -> float:
    """Return the time that ranks wait for gradients after the backward pass.

    On a processor a layer's share of the time is its share of the operations.
    """
    backward_s = (1.0 - FORWARD) * computing_s
    whole = sum(layer.flop for layer in layers)
    gradients, at_s = [], 0.0
    for layer in reversed(layers):
        at_s += backward_s * layer.flop / whole
        if layer.weights:
            gradients.append(Gradient(GRADIENT_BYTES * layer.weights, at_s))
    ring = 2.0 * (parts.ranks - 1) / parts.ranks
    return in_turn(gradients, backward_s, lambda size: ring * size / rate, parts.small_s).waited_s
