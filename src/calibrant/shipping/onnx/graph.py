"""A small writer of ONNX nodes: names results, keeps constants, and spells operators as the opset wants them."""

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
    """Nodes and constants under construction; every tensor is named after a prefix, so that none can clash.

    Matrices are n×K; all arithmetic has one precision.
    """

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
        self._count = 0

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one result and return the result's name."""
        name = self._name(operator)
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def nodes_with(self, operator: str, inputs: tuple[str, ...], n_results: int, **attributes: Any) -> list[str]:
        """Add a node with several results."""
        name = self._name(operator)
        results = [f"{name}_{i}" for i in range(n_results)]
        self.nodes.append(helper.make_node(operator, list(inputs), results, name=name, **attributes))
        return results

    def number(self, value: Any) -> str:
        """A constant in the graph's precision."""
        return self._constant(np.asarray(value, dtype=self.dtype))

    def typed(self, value: Any, kind: Any) -> str:
        """A constant of a given numpy type."""
        return self._constant(np.asarray(value, dtype=kind))

    def integers(self, value: Any) -> str:
        """A constant of whole numbers."""
        return self._constant(np.asarray(value, dtype=np.int64))

    def reduce(self, operator: str, tensor: str, axis: int = 1) -> str:
        """Reduce over one axis, which stays as an axis of length one."""
        if self.opset >= AXES_AS_INPUT[operator]:
            return self.node(operator, tensor, self.integers([axis]), keepdims=1)
        return self.node(operator, tensor, axes=[axis], keepdims=1)

    def unsqueeze(self, tensor: str, axis: int) -> str:
        """Add an axis of length one."""
        if self.opset >= AXES_AS_INPUT["Unsqueeze"]:
            return self.node("Unsqueeze", tensor, self.integers([axis]))
        return self.node("Unsqueeze", tensor, axes=[axis])

    def squeeze(self, tensor: str, axis: int) -> str:
        """Remove an axis of length one."""
        if self.opset >= AXES_AS_INPUT["Squeeze"]:
            return self.node("Squeeze", tensor, self.integers([axis]))
        return self.node("Squeeze", tensor, axes=[axis])

    def cast(self, tensor: str, to: int | None = None) -> str:
        """Change the type; to the graph's precision by default."""
        return self.node("Cast", tensor, to=self.onnx_dtype if to is None else to)

    def add(self, left: str, right: str) -> str:
        """Left + right."""
        return self.node("Add", left, right)

    def subtract(self, left: str, right: str) -> str:
        """Left − right."""
        return self.node("Sub", left, right)

    def multiply(self, left: str, right: str) -> str:
        """Left × right."""
        return self.node("Mul", left, right)

    def divide(self, left: str, right: str) -> str:
        """Left ÷ right."""
        return self.node("Div", left, right)

    def softmax(self, logits: str) -> str:
        """Probabilities of each row."""
        return self.node("Softmax", logits, axis=1)

    def log_softmax(self, logits: str) -> str:
        """Log-probabilities of each row."""
        return self.node("LogSoftmax", logits, axis=1)

    def log(self, probabilities: str) -> str:
        """Logarithm with zero raised to the smallest normal number, as `core.softmax.log_probabilities`."""
        return self.node("Log", self.node("Max", probabilities, self.number(np.finfo(self.dtype).tiny)))

    def argmax(self, matrix: str) -> str:
        """Column (n×1) of each row's largest value; the first of equals."""
        return self.node("ArgMax", matrix, axis=1, keepdims=1)

    def is_column(self, column: str, n_columns: int) -> str:
        """Mask (n×K) that is true at the given column (n×1) of each row."""
        return self.node("Equal", self.integers(np.arange(n_columns)[None, :]), column)

    def place(self, values: str, edges: np.ndarray) -> str:
        """Bin (n×1) of values (n×1) between edges, (lo, hi], the outer bins open-ended, as `core.bins.place`."""
        inner = np.asarray(edges)[1:-1]
        if not len(inner):
            return self.index(self.multiply(values, self.number(0.0)))
        above = self.cast(self.node("Greater", values, self.number(inner[None, :])))
        return self.index(self.reduce("ReduceSum", above))

    def index(self, numbers: str) -> str:
        """Whole numbers as an index."""
        return self.cast(numbers, TensorProto.INT64)

    def look_up(self, table: np.ndarray, index: str) -> str:
        """table[index] for an index (n×1): (n×1)."""
        return self.node("Gather", self.number(table), index, axis=0)

    def _constant(self, array: np.ndarray) -> str:
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._known:
            name = self._name("constant")
            self.constants.append(numpy_helper.from_array(array, name))
            self._known[key] = name
        return self._known[key]

    def _name(self, operator: str) -> str:
        self._count += 1
        return f"{self.prefix}/{operator}_{self._count}"
