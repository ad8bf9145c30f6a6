"""Builder of ONNX files: operations in the order in which they compute, numbers by name, written atomically."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from trainer.common.files.atomic_write import written_whole

IR_OF_OPSET = {13: 7, 16: 8}
"""File format version for each operation set version. They are old, so that many programs can read the file."""


@dataclass
class Graph:
    """ONNX operations in the order in which they compute."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[TensorProto] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def add(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add an operation by its ONNX name. Returns the name of its output."""
        self.nodes.append(helper.make_node(kind, inputs, [output], f"{output}:{kind}", **attributes))
        return output

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add an operation whose outputs are named by its number. Returns the name, or the names of several outputs."""
        names = [f"{kind}_{len(self.nodes)}" + (f"_{i}" if outputs > 1 else "") for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, f"{len(self.nodes)}:{kind}", **attributes))
        return names if outputs > 1 else names[0]

    def constant(self, name: str, array: NDArray[Any], kind: Any = np.float32) -> str:
        """Add constant numbers under a name, unless they exist. Returns the name."""
        if name not in self.names:
            self.names.add(name)
            self.tensors.append(numpy_helper.from_array(np.ascontiguousarray(array, kind), name))
        return name

    def floats(self, *values: float) -> str:
        """Add a constant of [n] float32."""
        return self.constant(f"floats {values}", np.array(values))

    def integers(self, *values: int) -> str:
        """Add a constant of [n] int64, the type of shapes, axes and counts."""
        return self.constant(f"integers {values}", np.array(values), np.int64)


def write(
    path: Path,
    graph: Graph,
    name: str,
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    opset: int = 13,
) -> None:
    """Check the graph and write it atomically.

    Raises:
        OSError: it cannot be written.
    """
    made = helper.make_model(
        helper.make_graph(graph.nodes, name, inputs, outputs, graph.tensors),
        producer_name="dlami-cluster",
        ir_version=IR_OF_OPSET[opset],
        opset_imports=[helper.make_opsetid("", opset)],
    )
    onnx.checker.check_model(made)
    with written_whole(path) as partial:
        partial.write_bytes(made.SerializeToString())
