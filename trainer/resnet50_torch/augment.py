"""Augmentation of images on the device: colours, normalisation, mixup. Each image's seeds decide its draws."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from trainer.resnet50.config import RunFlags
from trainer.resnet50.network import DEVIATION, MEAN, TO_YIQ
from trainer.resnet50_torch import rng


def normalised(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Return pixels of 0 to 255 at about zero mean and unit deviation, [N, 3, H, W], with channels last in memory.

    Args:
        images: [N, H, W, 3] of any type.
    """
    mean, inverse = (torch.tensor(values, dtype=dtype, device=images.device) for values in (MEAN, _INVERSE))
    return ((images.to(dtype) - mean) * inverse).permute(0, 3, 1, 2)


_INVERSE = tuple(1 / d for d in DEVIATION)


def vary_colours(images: Tensor, seeds: NDArray[np.int64], config: RunFlags) -> Tensor:
    """Change brightness, then hue and saturation in YIQ, then contrast, each at random.

    The result is [N, H, W, 3] float32 in 0 to 255.
    """

    def drawn(stream: int, middle: float, reach: float) -> Tensor:
        numbers = middle + reach * (2 * rng.uniform(seeds, stream) - 1)
        return torch.from_numpy(numbers.astype(np.float32)).to(images.device)

    x = images.float() + 255 * drawn(rng.BRIGHTNESS, 0, config.brightness)[:, None, None, None]
    turn = _colour_matrix(drawn(rng.HUE, 0, config.hue * math.pi), drawn(rng.SATURATION, 1, config.saturation))
    x = torch.einsum("nhwc,ndc->nhwd", x, turn)
    mean = x.mean((1, 2), keepdim=True)
    x = mean + (x - mean) * drawn(rng.CONTRAST, 1, config.contrast)[:, None, None, None]
    return x.clamp(0, 255)


def _colour_matrix(angle: Tensor, saturation: Tensor) -> Tensor:
    """Return [N, 3, 3], which rotates RGB's colour by the angle (radians) in the plane of I and Q and scales it."""
    to_yiq = torch.tensor(TO_YIQ, device=angle.device)
    zero, one = torch.zeros_like(angle), torch.ones_like(angle)
    cos, sin = saturation * torch.cos(angle), saturation * torch.sin(angle)
    inside = torch.stack([torch.stack(row, 1) for row in ((one, zero, zero), (zero, cos, -sin), (zero, sin, cos))], 1)
    return torch.linalg.inv(to_yiq) @ inside @ to_yiq


def mixup_share(seeds: NDArray[np.int64], alpha: float) -> float:
    """Draw a number in 0 to 1 from Beta(alpha, alpha), by the first image's seeds. Returns 1 without mixup."""
    return float(np.random.default_rng(seeds[0]).beta(alpha, alpha)) if alpha else 1.0


def loss(logits: Tensor, labels: Tensor, share: float, smoothing: float) -> Tensor:
    """Return the mean cross-entropy. With a share below 1 the images have been mixed with those of their mirror places.

    Source: Zhang et al., arXiv:1710.09412; smoothing of Szegedy et al., arXiv:1512.00567, section 7.
    """
    own = functional.cross_entropy(logits, labels, label_smoothing=smoothing)
    if share == 1:
        return own
    return share * own + (1 - share) * functional.cross_entropy(logits, labels.flip(0), label_smoothing=smoothing)
