"""A small writer of ONNX nodes: names results, keeps constants, and writes operators as the opset requires them."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from calibrant.core.errors import InputError

OLDEST_OPSET = 11
AXES_AS_INPUT = {"ReduceSum": 13, "ReduceMax": 18, "ReduceMin": 18, "ReduceMean": 18, "Unsqueeze": 13, "Squeeze": 13}
"""From these opsets on, `axes` is an input and no longer an attribute."""

PRECISIONS = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}


class Graph:
    """Nodes and constants under construction; every tensor is named after a prefix, so that none can clash."""

    def __init__(self, *, opset: int, precision: str, prefix: str = "calibrant") -> None:
        if opset < OLDEST_OPSET:
            raise InputError(
                f"the model has opset {opset}, but at least {OLDEST_OPSET} is needed: "
                "raise it with onnx.version_converter.convert_version"
            )
        if precision not in PRECISIONS:
            raise InputError(f"precision must be float32 or float64, got {precision!r}")
        self.opset = opset
        self.dtype = np.dtype(precision)
        self.onnx_dtype = PRECISIONS[precision]
        self.prefix = prefix
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._known: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._made: dict[tuple[Any, ...], str] = {}
        self._count = 0

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one result and return the result's name; the same node is added once."""
        key = (operator, inputs, tuple(sorted(attributes.items(), key=str)).__repr__())
        if key not in self._made:
            name = self.name(operator)
            self.nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
            self._made[key] = name
        return self._made[key]

    def with_axis(self, operator: str, tensor: str, axis: int, **attributes: Any) -> str:
        """A node over one axis: given as an input or as an attribute, as the opset requires it."""
        if self.opset >= AXES_AS_INPUT[operator]:
            return self.node(operator, tensor, self.constant(np.array([axis])), **attributes)
        return self.node(operator, tensor, axes=[axis], **attributes)

    def constant(self, array: np.ndarray) -> str:
        """The name of a constant; equal ones are stored once."""
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._known:
            name = self.name("constant")
            self.constants.append(numpy_helper.from_array(np.array(array, order="C"), name))
            self._known[key] = name
        return self._known[key]

    def body(self) -> Graph:
        """A graph for the body of a loop, which sees the tensors of this one."""
        inner = Graph(opset=self.opset, precision=str(self.dtype), prefix=self.name("body"))
        return inner

    def name(self, operator: str) -> str:
        """A name that no other tensor has."""
        self._count += 1
        return f"{self.prefix}/{operator}_{self._count}"
