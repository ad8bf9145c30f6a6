"""Conversion between other libraries' ResNet weights and this trainer's: exact, or refused.

The same numbers give the same results only with the library's padding, batch norm and pixels, which `--variant`
selects.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.common.checkpoints import weight_files
from trainer.common.files.errors import ConfigError
from trainer.resnet50.network import KERAS, OWN, STEM, TORCHVISION, VARIANTS, Convolution, blocks, prefix

Arrays = dict[str, NDArray[Any]]
PARTS = ("gamma", "beta", "moving_mean", "moving_variance")
IN_TORCH = ("weight", "bias", "running_mean", "running_var")  # the same of its norms
DENSE, BIAS = "dense/kernel", "dense/bias"


def read(path: Path, model: str, variant: str) -> Arrays:
    """Read weights and statistics of a whole network by this trainer's names, without a prefix.

    Reads torchvision's and Keras' names, and those of a checkpoint or an export of this trainer.

    Raises:
        ConfigError: the file cannot be read, or is of another model or variant, or contains more than that.
    """
    arrays = weight_files.read(path)
    found = variant_of(arrays)
    if found is None:
        raise ConfigError(f"{path} holds no ResNet that is known here ({', '.join(sorted(arrays)[:3])} …)")
    if found != variant:
        raise ConfigError(f"{path} holds weights of the variant {found}, not {variant}: give --variant {found}")
    return as_ours(arrays, model, variant, str(path))


def as_ours(arrays: Arrays, model: str, variant: str, source: str) -> Arrays:
    """Return the arrays by this trainer's names, without a prefix and without what only a training needs.

    Raises:
        ConfigError: they are of another model, or more than one network.
    """
    if f"{prefix(variant)}{STEM.name}/kernel" in arrays:
        names = [name for name in arrays if name.endswith((*PARTS, "kernel", "bias"))]
        ours = {name.removeprefix(prefix(variant)): arrays.get(f"{name}/ema", arrays[name]) for name in names}
        left: set[str] = set()
    else:
        ours, left = (_of_torchvision if variant == TORCHVISION else _of_keras)(arrays, model)
    shapes = expected(model, variant, len(ours.get(BIAS, ())))
    wrong = [n for n, shape in shapes.items() if n not in ours or ours[n].shape != shape]
    if more := wrong + sorted(left | (set(ours) - set(shapes))):
        raise ConfigError(
            f"{source} is not a {model}: {more[0]}{f' and {len(more) - 1} more' if more[1:] else ''} differ"
        )
    return {name: np.asarray(ours[name], np.float32) for name in shapes}


def expected(model: str, variant: str, classes: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes, by name, of the arrays that an evaluation needs."""
    shapes: dict[str, tuple[int, ...]] = {}
    for one in _convolutions(model, variant):
        shapes[f"{one.name}/kernel"] = one.shape
        shapes |= {f"{one.norm}/{part}": (one.channels,) for part in PARTS}
    return shapes | {DENSE: (one.channels, classes), BIAS: (classes,)}


def as_theirs(arrays: Arrays, model: str, variant: str) -> Arrays:
    """Return the arrays under torchvision's or Keras' names, as in their own files. The own variant is unchanged."""
    if variant == OWN:
        return arrays
    result: Arrays = {}
    for one, (conv, norm) in _pairs(model, variant):
        kernel = arrays[f"{one.name}/kernel"]
        if variant == TORCHVISION:
            result[f"{conv}.weight"] = kernel.transpose(3, 2, 0, 1)
            result |= {f"{norm}.{t}": arrays[f"{one.norm}/{p}"] for t, p in zip(IN_TORCH, PARTS, strict=True)}
        else:
            result[f"{conv}/kernel"] = kernel[:, :, ::-1] if one == STEM else kernel
            result[f"{conv}/bias"] = np.zeros(one.channels, np.float32)
            result |= {f"{norm}/{part}": arrays[f"{one.norm}/{part}"] for part in PARTS}
    if variant == TORCHVISION:
        return {**result, "fc.weight": arrays[DENSE].T, "fc.bias": arrays[BIAS]}
    return {**result, "predictions/kernel": arrays[DENSE], "predictions/bias": arrays[BIAS]}


def variant_of(arrays: Arrays) -> str | None:
    """Return the variant of ResNet that the arrays' names belong to, or None."""
    for variant in VARIANTS:
        if f"{prefix(variant)}{STEM.name}/kernel" in arrays:
            return variant
    if "conv1.weight" in arrays:
        return TORCHVISION
    return KERAS if any(name.startswith("conv1_conv/") for name in arrays) else None


def _convolutions(model: str, variant: str) -> Iterator[Convolution]:
    yield STEM
    for plan in blocks(model, strides_first=VARIANTS[variant].strides_first):
        yield from plan.all


def _pairs(model: str, variant: str) -> Iterator[tuple[Convolution, tuple[str, str]]]:
    """Yield this trainer's convolutions with the variant's names of them and of their norms."""
    is_torch = variant == TORCHVISION
    yield STEM, ("conv1", "bn1") if is_torch else ("conv1_conv", "conv1_bn")
    for plan in blocks(model, strides_first=VARIANTS[variant].strides_first):
        stage, block = (int(part.lstrip("stageblock")) for part in plan.convolutions[0].name.split("/")[:2])
        theirs = f"layer{stage + 1}.{block}" if is_torch else f"conv{stage + 2}_block{block + 1}"
        if plan.shortcut:
            names = (f"{theirs}.downsample.0", f"{theirs}.downsample.1")
            yield plan.shortcut, names if is_torch else (f"{theirs}_0_conv", f"{theirs}_0_bn")
        for i, one in enumerate(plan.convolutions, 1):
            names = (f"{theirs}.conv{i}", f"{theirs}.bn{i}")
            yield one, names if is_torch else (f"{theirs}_{i}_conv", f"{theirs}_{i}_bn")


def _of_torchvision(arrays: Arrays, model: str) -> tuple[Arrays, set[str]]:
    """Return this trainer's arrays, and the names of arrays that have no counterpart."""
    left = {name for name in arrays if not name.endswith("num_batches_tracked")}
    ours: Arrays = {}
    names = {f"{conv}.weight": f"{one.name}/kernel" for one, (conv, _) in _pairs(model, TORCHVISION)}
    for one, (_, norm) in _pairs(model, TORCHVISION):
        names |= {f"{norm}.{theirs}": f"{one.norm}/{part}" for theirs, part in zip(IN_TORCH, PARTS, strict=True)}
    for theirs, own in {**names, "fc.weight": DENSE, "fc.bias": BIAS}.items():
        if theirs in arrays:
            array = arrays[theirs]
            ours[own] = array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T
            left.discard(theirs)
    return ours, left


def _of_keras(arrays: Arrays, model: str) -> tuple[Arrays, set[str]]:
    """Return the same as `_of_torchvision`.

    Keras' convolution biases move into the norm, and its pixels are blue green red.
    """
    short = {"/".join(name.split("/")[-2:]): array for name, array in arrays.items()}
    left = set(short)
    ours: Arrays = {}
    for one, (conv, norm) in _pairs(model, KERAS):
        kernel = short.get(f"{conv}/kernel")
        if kernel is not None and kernel.ndim == 4:
            ours[f"{one.name}/kernel"] = kernel[:, :, ::-1] if one == STEM else kernel
        ours |= {f"{one.norm}/{part}": short[f"{norm}/{part}"] for part in PARTS if f"{norm}/{part}" in short}
        mean, bias = f"{one.norm}/moving_mean", short.get(f"{conv}/bias")
        if bias is not None and mean in ours and bias.shape == ours[mean].shape:
            ours[mean] = ours[mean] - bias
        left -= {f"{conv}/{part}" for part in ("kernel", "bias")} | {f"{norm}/{part}" for part in PARTS}
    for part, own in (("kernel", DENSE), ("bias", BIAS)):
        if f"predictions/{part}" in short:
            ours[own] = short[f"predictions/{part}"]
            left.discard(f"predictions/{part}")
    return ours, left
