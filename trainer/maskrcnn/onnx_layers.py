"""Layers of a trained Mask R-CNN as operations of ONNX, on [N, C, H, W] tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from trainer.common.checkpoints.onnx_file import Graph
from trainer.maskrcnn import resizing
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.config_network import NORM_EPSILON
from trainer.maskrcnn.shapes import Shape
from trainer.maskrcnn.weights import BOX_CELLS, to_nchw

GROUPS = 32
MASK_CELLS = 14
"""Side of the mask head's input, in cells. Its masks have twice as many."""


@dataclass(frozen=True, kw_only=True)
class Net:
    """Graph under construction, with the configuration and weights it is built from. Its tensors are known by name."""

    config: Config
    arrays: Mapping[str, NDArray[Any]]
    graph: Graph = field(default_factory=Graph)

    def weight(self, name: str, axes: tuple[int, ...] = ()) -> str:
        """Add a variable, with its axes reordered. Returns its name."""
        array = to_nchw(name, self.arrays[name])
        return self.graph.constant(name, array.transpose(axes) if axes else array)

    def conv(self, name: str, x: str, *, stride: int = 1, pads: tuple[int, ...] | None = None) -> str:
        """Add a convolution, with the bias if there is one.

        Args:
            pads: top, left, bottom, right; by default those that keep the size, as with TensorFlow's SAME.
        """
        size = self.arrays[f"{name}/W"].shape[0]
        around: dict[str, Any] = {"pads": pads} if pads else {"pads": (size // 2,) * 4}
        if stride > 1 and size > 1 and pads is None:
            around = {"auto_pad": "SAME_UPPER"}
        bias = [self.weight(f"{name}/b")] if f"{name}/b" in self.arrays else []
        kernel = self.weight(f"{name}/W", (3, 2, 0, 1))
        sides: dict[str, Any] = {"kernel_shape": (size, size), "strides": (stride, stride)}
        return str(self.graph.op("Conv", x, kernel, *bias, **sides, **around))

    def relu(self, x: str) -> str:
        return str(self.graph.op("Relu", x))

    def dense(self, name: str, x: str) -> str:
        """Add a dense layer, [N, C] to [N, units]."""
        return str(self.graph.op("Gemm", x, self.weight(f"{name}/W"), self.weight(f"{name}/b")))

    def conv_norm(self, name: str, x: str, *, stride: int = 1, pads: tuple[int, ...] | None = None) -> str:
        """Add a convolution of the backbone with its normalisation, if any."""
        y = self.conv(name, x, stride=stride, pads=pads)
        if f"{name}/gn/gamma" in self.arrays:
            return self.group_norm(f"{name}/gn", y)
        if f"{name}/bn/gamma" in self.arrays:
            parts = (self.weight(f"{name}/bn/{part}") for part in ("gamma", "beta", "mean/EMA", "variance/EMA"))
            return str(self.graph.op("BatchNormalization", y, *parts, epsilon=NORM_EPSILON))
        return y

    def group_norm(self, name: str, x: str, cells: int = 0) -> str:
        """Build a group norm as an instance norm of which each channel is one group of channels.

        Args:
            cells: a side of the maps. Needed where there may be no maps, whose size cannot be inferred then.
        """
        channels = len(self.arrays[f"{name}/gamma"])
        groups = min(GROUPS, channels)
        g = self.graph
        one, zero = (g.constant(f"{groups} of {v}", np.full(groups, v)) for v in (1, 0))
        inside = channels // groups * cells * cells or -1
        flat = g.op("Reshape", x, g.integers(0, groups, inside))
        normal = g.op("InstanceNormalization", flat, one, zero, epsilon=NORM_EPSILON)
        y = g.op("Reshape", normal, g.op("Shape", x))
        gamma, beta = (
            g.constant(f"{name}/{part} of maps", self.arrays[f"{name}/{part}"].reshape(1, channels, 1, 1))
            for part in ("gamma", "beta")
        )
        return str(g.op("Add", g.op("Mul", y, gamma), beta))


def resized(net: Net, image: str, size: Shape, wanted: Shape) -> str:
    """Build the resize of [height, width, 3] uint8 to the wanted size, int32, with the bytes of `resizing.resized`."""
    g = net.graph

    def whole(array: Any) -> str:
        return g.constant(f"whole {len(g.tensors)}", np.array(array), np.int32)

    def shares(pixels: str, axis: int) -> list[str]:
        """Build both neighbours of every wanted pixel along an axis, each times its weight."""
        at, weights = resizing.taps(size[axis], wanted[axis], is_across=axis == 1)
        near = (g.op("Cast", g.op("Gather", pixels, whole(v), axis=axis), to=TensorProto.INT32) for v in at)
        return [g.op("Mul", v, whole(w.reshape((-1, 1, 1)[: 3 - axis]))) for v, w in zip(near, weights, strict=True)]

    if size == wanted:
        return str(g.op("Cast", image, to=TensorProto.INT32))
    across = g.op("Div", g.op("Add", *shares(image, 1)), whole(resizing.CUT_ACROSS))
    down = g.op("Add", *(g.op("Div", part, whole(resizing.CUT_DOWN)) for part in shares(across, 0)))
    return str(g.op("Div", g.op("Add", down, whole(resizing.LEFT // 2)), whole(resizing.LEFT)))


def features(net: Net, x: str) -> list[str]:
    """Build P2 .. P6 of normalised images."""
    backbone, g = net.config.backbone, net.graph
    pads = None if backbone.tf_pad_mode else (3, 3, 2, 2)
    x = net.relu(net.conv_norm("conv0", x, stride=2, pads=pads))
    around: dict[str, Any] = {"auto_pad": "SAME_UPPER"} if backbone.tf_pad_mode else {"pads": (1, 1, 0, 0)}
    x = g.op("MaxPool", x, kernel_shape=(3, 3), strides=(2, 2), **around)
    found = []
    for group, blocks in enumerate(backbone.resnet_num_blocks):
        for block in range(blocks):
            x = _bottleneck(net, f"group{group}/block{block}", x, 2 if block == 0 and group > 0 else 1)
        found.append(x)
    return _pyramid(net, found)


def _bottleneck(net: Net, name: str, x: str, stride: int) -> str:
    backbone = net.config.backbone
    in_1x1, in_3x3 = (stride, 1) if backbone.stride_1x1 else (1, stride)
    shortcut = x
    if f"{name}/convshortcut/W" in net.arrays:
        shortcut = net.conv_norm(f"{name}/convshortcut", x, stride=stride)
    y = net.relu(net.conv_norm(f"{name}/conv1", x, stride=in_1x1))
    pads = (1, 1, 0, 0) if in_3x3 > 1 and not backbone.tf_pad_mode else None
    y = net.relu(net.conv_norm(f"{name}/conv2", y, stride=in_3x3, pads=pads))
    return net.relu(net.graph.op("Add", net.conv_norm(f"{name}/conv3", y), shortcut))


def _pyramid(net: Net, found: list[str]) -> list[str]:
    g = net.graph

    def normed(layer: str, norm: str, x: str) -> str:
        y = net.conv(f"fpn/{layer}", x)
        return net.group_norm(f"fpn/{norm}", y) if net.config.fpn.norm == "GN" else y

    sides = [normed(f"lateral_1x1_c{i}", f"gn_c{i}", c) for i, c in enumerate(found, 2)]
    merged = [sides[-1]]
    for side in sides[-2::-1]:
        how: dict[str, Any] = {
            "mode": "nearest",
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        }
        merged.insert(0, g.op("Add", side, g.op("Resize", merged[0], "", g.floats(1, 1, 2, 2), **how)))
    outputs = [normed(f"posthoc_3x3_p{i}", f"gn_p{i}", m) for i, m in enumerate(merged, 2)]
    return [*outputs, g.op("MaxPool", outputs[-1], kernel_shape=(1, 1), strides=(2, 2))]


def convs(net: Net, scope: str, name: str, x: str, head: str, cells: int) -> str:
    """Build four convolutions of a head on maps of this side, in its order of norm and ReLU."""
    order = net.config.fpn.gn_head_order if head.endswith("_gn_head") else "relu"
    for k in range(4):
        x = net.conv(f"{scope}/{name}{k}", x)
        x = net.relu(x) if order.startswith("relu") else x
        x = net.group_norm(f"{scope}/gn{k}", x, cells) if "norm" in order else x
        x = net.relu(x) if order == "norm-relu" else x
    return x


def box_head(net: Net, scope: str, x: str) -> str:
    """Build the box head, [N, C, 7, 7] to [N, FRCNN_FC_HEAD_DIM]."""
    head = net.config.fpn.frcnn_head_func
    if head == "fastrcnn_2fc_head":
        hidden = net.relu(net.dense(f"{scope}/fc6", net.graph.op("Flatten", x)))
        return net.relu(net.dense(f"{scope}/fc7", hidden))
    x = convs(net, scope, "conv", x, head, BOX_CELLS)
    return net.relu(net.dense(f"{scope}/fc", net.graph.op("Flatten", x)))


def mask_head(net: Net, x: str, index: str) -> str:
    """Build the mask head, [N, C, 14, 14] to the probabilities [N, 28, 28] of each region's category, from 0."""
    g, name = net.graph, net.config.fpn.mrcnn_head_func
    x = convs(net, "maskrcnn", "fcn", x, name, MASK_CELLS)
    kernel, bias = net.weight("maskrcnn/deconv/W", (3, 2, 0, 1)), net.weight("maskrcnn/deconv/b")
    x = net.relu(g.op("ConvTranspose", x, kernel, bias, kernel_shape=(2, 2), strides=(2, 2)))
    filters, shifts = net.arrays["maskrcnn/conv/W"][0, 0].T[:, None], net.arrays["maskrcnn/conv/b"].reshape(-1, 1, 1)
    own, shift = (
        g.op("Gather", g.constant(f"maskrcnn/conv/{part} by category", array), index, axis=0)
        for part, array in (("W", filters), ("b", shifts))
    )
    flat = g.op("Reshape", x, g.integers(0, net.config.mrcnn.head_dim, 4 * MASK_CELLS**2))
    logits = g.op("Add", g.op("MatMul", own, flat), shift)
    return str(g.op("Reshape", g.op("Sigmoid", logits), g.integers(0, 2 * MASK_CELLS, 2 * MASK_CELLS)))
