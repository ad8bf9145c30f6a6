"""Writer of a trained ResNet as an ONNX file: pixels in, logits and probabilities out, images of any size."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from trainer.common.checkpoints import onnx_file
from trainer.common.checkpoints.onnx_file import Graph
from trainer.resnet50.network import STEM, Convolution, Variant, blocks

Padding = dict[str, Any]


def write(path: Path, arrays: dict[str, NDArray[Any]], model: str, variant: Variant) -> None:
    """Write the ONNX file, from `images` [N, height, width, 3] uint8, red green blue, to `logits` and `probabilities`.

    Both outputs are [N, classes].

    Args:
        arrays: as `trainer.resnet50.pretrained.expected` names them.

    Raises:
        OSError: it cannot be written.
    """
    graph = Graph()
    x = graph.add("Relu", [_normed(graph, _pixels(graph, variant), STEM, arrays, variant)], "stem/relu")
    x = graph.add("MaxPool", [x], "pool", kernel_shape=(3, 3), strides=(2, 2), **_padding(3, 2, variant))
    for plan in blocks(model, strides_first=variant.strides_first):
        y = x
        for i, one in enumerate(plan.convolutions):
            y = _normed(graph, graph.add("Relu", [y], f"{one.name}/input") if i else y, one, arrays, variant)
        if plan.shortcut:
            x = _normed(graph, x, plan.shortcut, arrays, variant)
        x = graph.add("Relu", [graph.add("Add", [x, y], f"{one.name}/sum")], f"{one.name}/block")
    x = graph.add("Flatten", [graph.add("GlobalAveragePool", [x], "mean")], "features", axis=1)
    dense, bias = (graph.constant(name, arrays[name]) for name in ("dense/kernel", "dense/bias"))
    graph.add("Softmax", [graph.add("Gemm", [x, dense, bias], "logits")], "probabilities", axis=1)
    scores: list[str | int | None] = ["N", len(arrays["dense/bias"])]
    onnx_file.write(
        path,
        graph,
        model,
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", "height", "width", 3])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, scores) for n in ("logits", "probabilities")],
    )


def _pixels(graph: Graph, variant: Variant) -> str:
    """Add the normalisation of the pixels and move their channels first."""
    mean = graph.constant("pixels/mean", np.array(variant.pixels.mean))
    inverse = graph.constant("pixels/inverse", 1 / np.array(variant.pixels.deviation))
    x = graph.add("Sub", [graph.add("Cast", ["images"], "pixels/float", to=TensorProto.FLOAT), mean], "pixels/centred")
    return graph.add("Transpose", [graph.add("Mul", [x, inverse], "pixels/scaled")], "pixels", perm=(0, 3, 1, 2))


def _normed(graph: Graph, x: str, plan: Convolution, arrays: dict[str, NDArray[Any]], variant: Variant) -> str:
    kernel = graph.constant(f"{plan.name}/kernel", arrays[f"{plan.name}/kernel"].transpose(3, 2, 0, 1))
    around = _padding(plan.size, plan.stride, variant)
    sides, strides = (plan.size,) * 2, (plan.stride,) * 2
    x = graph.add("Conv", [x, kernel], plan.name, kernel_shape=sides, strides=strides, **around)
    names = (f"{plan.norm}/{part}" for part in ("gamma", "beta", "moving_mean", "moving_variance"))
    norm = [graph.constant(name, arrays[name]) for name in names]
    return graph.add("BatchNormalization", [x, *norm], plan.norm, epsilon=variant.epsilon)


def _padding(size: int, stride: int, variant: Variant) -> Padding:
    if variant.pads_alike or stride == 1:
        return {"pads": (size // 2,) * 4}
    return {"auto_pad": "SAME_UPPER"}
