"""The array API as ONNX nodes: what a method's map does to arrays is written down as a graph.

Operations on constants are carried out at once, so that only what depends on the logits becomes a node. The writer
covers opsets 11 and up and uses ONNX's own Softmax; a general tracer such as ndonnx writes opset 17 or newer and
spells a softmax in five nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import numpy as constants
from onnx import TensorProto, helper

from calibrant.core.errors import InputError
from calibrant.shipping.onnx.arrays import OnnxArray, Shape
from calibrant.shipping.onnx.graph import Graph

UNARY = {"exp": "Exp", "log": "Log", "abs": "Abs", "tanh": "Tanh", "sqrt": "Sqrt", "negative": "Neg", "floor": "Floor"}
BINARY = {
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "maximum": "Max",
    "minimum": "Min",
    "pow": "Pow",
    "greater": "Greater",
    "less": "Less",
    "equal": "Equal",
    "logical_and": "And",
    "logical_or": "Or",
}
TRUTH = {"greater", "less", "equal", "logical_and", "logical_or"}
REDUCTIONS = {"max": "ReduceMax", "min": "ReduceMin", "sum": "ReduceSum", "mean": "ReduceMean"}


class MissingFormError(InputError, AttributeError):
    """A map uses a function that the writer does not have."""


class OnnxSpace:
    """The namespace `xp` that a map sees: the functions of the array API that ONNX can express.

    All numbers have the graph's precision, so that `float64` and `float32` both mean it.
    """

    __name__ = "calibrant.onnx"
    inf, pi, newaxis = float("inf"), float(np.pi), None
    int64, bool = np.dtype(np.int64), np.dtype(np.bool_)

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.float64 = self.float32 = graph.dtype
        self.keeps_order = graph.dtype == np.float64

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in UNARY:
            return lambda x: self._unary(name, x)
        if name in BINARY:
            return lambda a, b: self._binary(name, a, b)
        if name in REDUCTIONS:
            return lambda x, *, axis=None, keepdims=False: self._reduce(name, x, axis, keepdims)
        raise MissingFormError(
            f"a method's map uses xp.{name}, which has no ONNX form here: "
            "write it with arithmetic, exp, log, where, max, sum, argmax, matmul, take and comparisons"
        )

    def array(self, tensor: str, shape: Shape, dtype: Any) -> OnnxArray:
        """An array that is a tensor of the graph."""
        return OnnxArray(self, shape, dtype, tensor=tensor)

    def asarray(self, value: Any) -> OnnxArray:
        """A constant; real numbers take the graph's precision."""
        if isinstance(value, OnnxArray):
            return value
        found = np.asarray(value)
        kind = {"f": self.graph.dtype, "b": self.bool}.get(found.dtype.kind, self.int64)
        return OnnxArray(self, found.shape, kind, value=found.astype(kind))

    def finfo(self, dtype: Any) -> Any:
        """Limits of the graph's precision."""
        return np.finfo(self.graph.dtype)

    def astype(self, x: OnnxArray, dtype: Any, copy: Any = True) -> OnnxArray:
        """Another dtype."""
        if x.dtype == np.dtype(dtype):
            return x
        if x.value is not None:
            return OnnxArray(self, x.shape, dtype, value=x.value.astype(dtype))
        to = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.array(self.graph.node("Cast", x.tensor, to=to), x.shape, dtype)

    def single_precision(self, x: OnnxArray) -> OnnxArray:
        """See `calibrators.maps.single_precision`."""
        return self.astype(x, np.float32)

    def where(self, condition: Any, x: Any, y: Any) -> OnnxArray:
        """x where the condition holds, else y."""
        condition = self.asarray(condition)
        x, y = self._alike(x, y)
        if all(one.value is not None for one in (condition, x, y)):
            return self.asarray(np.where(condition.value, x.value, y.value))
        shape = _broadcast(condition.shape, x.shape, y.shape)
        return self.array(self.graph.node("Where", condition.tensor, x.tensor, y.tensor), shape, x.dtype)

    def log1p(self, x: Any) -> OnnxArray:
        """log(1 + x); ONNX has no operator of its own."""
        return self.log(1.0 + self.asarray(x)) if self.asarray(x).value is None else self._folded("log1p", x)

    def logical_not(self, x: OnnxArray) -> OnnxArray:
        """The opposite."""
        if x.value is not None:
            return self.asarray(~x.value)
        return self.array(self.graph.node("Not", x.tensor), x.shape, self.bool)

    def argmax(self, x: OnnxArray, *, axis: int, keepdims: Any = False) -> OnnxArray:
        """Place of the first largest value."""
        tensor = self.graph.node("ArgMax", x.tensor, axis=axis, keepdims=int(keepdims))
        return self.array(tensor, _reduced(x.shape, axis, keepdims), self.int64)

    def any(self, x: OnnxArray, *, axis: int, keepdims: Any = False) -> OnnxArray:
        """Whether any value of an axis is true."""
        return self.max(self.astype(x, self.graph.dtype), axis=axis, keepdims=keepdims) > 0.0

    def matmul(self, x: Any, y: Any) -> OnnxArray:
        """The product of two matrices."""
        x, y = self._alike(x, y)
        return self.array(self.graph.node("MatMul", x.tensor, y.tensor), (*x.shape[:-1], y.shape[-1]), x.dtype)

    def matrix_transpose(self, x: OnnxArray) -> OnnxArray:
        """The transposed matrix."""
        if x.value is not None:
            return self.asarray(np.swapaxes(x.value, -1, -2))
        return self.array(self.graph.node("Transpose", x.tensor, perm=[1, 0]), x.shape[::-1], x.dtype)

    def arange(self, *limits: Any, dtype: Any = None) -> OnnxArray:
        """A constant 0, 1, 2 …"""
        return self.asarray(np.arange(*limits, dtype=dtype))

    def reshape(self, x: OnnxArray, shape: tuple[int, ...]) -> OnnxArray:
        """A constant in another shape."""
        return self.asarray(np.reshape(self._constant(x, "reshape"), shape))

    def full_like(self, x: OnnxArray, value: float) -> OnnxArray:
        """A number that broadcasts to the shape of x."""
        return self.asarray(np.asarray(value, dtype=x.dtype))

    def zeros_like(self, x: OnnxArray) -> OnnxArray:
        """Zeros in the shape of x: needed as they are where nothing broadcasts them."""
        return self.asarray(np.zeros_like(x.value)) if x.value is not None else x * np.zeros((), x.dtype)

    def ones_like(self, x: OnnxArray) -> OnnxArray:
        """Ones that broadcast to the shape of x."""
        return self.asarray(np.ones_like(x.value)) if x.value is not None else self.full_like(x, 1)

    def expand_dims(self, x: OnnxArray, *, axis: int) -> OnnxArray:
        """A new axis of length one."""
        axis = axis % (x.ndim + 1)
        if x.value is not None:
            return self.asarray(np.expand_dims(x.value, axis))
        return self.array(
            self.graph.with_axis("Unsqueeze", x.tensor, axis), (*x.shape[:axis], 1, *x.shape[axis:]), x.dtype
        )

    def squeeze(self, x: OnnxArray, *, axis: int) -> OnnxArray:
        """Without an axis of length one."""
        axis = axis % x.ndim
        if x.value is not None:
            return self.asarray(np.squeeze(x.value, axis))
        return self.array(
            self.graph.with_axis("Squeeze", x.tensor, axis), (*x.shape[:axis], *x.shape[axis + 1 :]), x.dtype
        )

    def stack(self, arrays: list[Any], *, axis: int = 0) -> OnnxArray:
        """Arrays side by side along a new axis."""
        return self.concat([self.expand_dims(self.asarray(one), axis=axis) for one in arrays], axis=axis)

    def concat(self, arrays: list[Any], *, axis: int = 0) -> OnnxArray:
        """Arrays side by side along an axis."""
        parts = [self.asarray(one) for one in arrays]
        first = parts[0]
        length = sum(part.shape[axis] or 0 for part in parts)
        shape = tuple(length if place == axis % first.ndim else size for place, size in enumerate(first.shape))
        return self.array(self.graph.node("Concat", *(part.tensor for part in parts), axis=axis), shape, first.dtype)

    def take(self, x: Any, index: OnnxArray, *, axis: int = 0) -> OnnxArray:
        """Entries of an axis by number."""
        x = self.asarray(x)
        shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
        return self.array(self.graph.node("Gather", x.tensor, index.tensor, axis=axis), shape, x.dtype)

    def take_along_axis(self, x: OnnxArray, index: OnnxArray, *, axis: int) -> OnnxArray:
        """One entry of each row by number."""
        return self.array(self.graph.node("GatherElements", x.tensor, index.tensor, axis=axis), index.shape, x.dtype)

    def with_entry(self, x: OnnxArray, column: OnnxArray, value: Any) -> OnnxArray:
        """See `calibrators.maps.with_entry`: one copy, where a mask and a choice would pass over x twice."""
        value = self._alike(x, value)[1]
        if not value.shape:
            value = self.array(
                self.graph.node("Expand", value.tensor, self.graph.node("Shape", column.tensor)), column.shape, x.dtype
            )
        tensor = self.graph.node("ScatterElements", x.tensor, column.tensor, value.tensor, axis=1)
        return self.array(tensor, x.shape, x.dtype)

    def sort(self, x: OnnxArray, *, axis: int = -1, descending: Any = False) -> OnnxArray:
        """Each row in order."""
        return self.largest(x, int(x.shape[axis] or 0), ascending=not descending)

    def largest(self, x: OnnxArray, count: int, *, ascending: Any = False) -> OnnxArray:
        """The largest values of each row, in descending order (the smallest, if ascending)."""
        result, places = self.graph.name("TopK"), self.graph.name("TopK")
        given = [x.tensor, self.graph.constant(np.array([count]))]
        self.graph.nodes.append(helper.make_node("TopK", given, [result, places], axis=1, largest=int(not ascending)))
        return self.array(result, (x.shape[0], count), x.dtype)

    def clip(self, x: OnnxArray, low: Any = None, high: Any = None) -> OnnxArray:
        """x moved into [low, high]."""
        raised = x if low is None else self.maximum(x, low)
        return raised if high is None else self.minimum(raised, high)

    def searchsorted(self, x1: Any, x2: OnnxArray, *, side: str = "left") -> OnnxArray:
        """How many of the sorted constants x1 (M,) lie below each value of x2 (n,), or at it for side "right"."""
        values, edges = x2[:, None], self.asarray(x1)[None, :]
        below = values >= edges if side == "right" else values > edges
        return self.astype(self.sum(self.astype(below, self.graph.dtype), axis=1), self.int64)

    def isinf(self, x: OnnxArray) -> OnnxArray:
        """Whether a value is infinite."""
        return self.abs(x) > float(np.finfo(self.graph.dtype).max)

    def isfinite(self, x: OnnxArray) -> OnnxArray:
        """Whether a value is finite."""
        return self.abs(x) <= float(np.finfo(self.graph.dtype).max)

    def softmax_of_rows(self, x: OnnxArray) -> OnnxArray:
        """ONNX's own softmax."""
        return self.array(self.graph.node("Softmax", x.tensor, axis=1), x.shape, x.dtype)

    def log_softmax_of_rows(self, x: OnnxArray) -> OnnxArray:
        """ONNX's own log-softmax."""
        return self.array(self.graph.node("LogSoftmax", x.tensor, axis=1), x.shape, x.dtype)

    def water_level(self, shares: OnnxArray, cap: OnnxArray, total: OnnxArray) -> OnnxArray:
        """See `calibrators.maps.water_level`: here by rounds of capping, until no row has a new one.

        λ rises from 1: what lies above the cap is capped, and the rest is scaled to what is left. Few rounds suffice,
        where a running sum of sorted logarithms would take log₂K passes; a batch without a crowded row takes none.
        """
        graph, inner = self.graph, self.graph.body()
        crowded = self.max(self.max(shares, axis=1, keepdims=True) - cap, axis=0, keepdims=False)
        start = cap * 0.0
        again = self.squeeze(crowded, axis=0) > 0.0
        body = OnnxSpace(inner)
        level = body.array(f"{inner.prefix}/level", start.shape, start.dtype)
        q, limit, whole = (body.array(one.tensor, one.shape, one.dtype) for one in (shares, cap, total))
        capped = q + level > limit + 1e-12
        count = body.sum(body.astype(capped, graph.dtype), axis=1, keepdims=True)
        rest = body.where(capped, -np.inf, q)
        peak = body.max(rest, axis=1, keepdims=True)
        peak = body.maximum(peak, float(np.finfo(graph.dtype).min) / 4)
        tail = body.sum(body.exp(rest - peak), axis=1, keepdims=True)
        left = body.maximum(body.exp(whole) - count * body.exp(limit), 0.0)
        # rows whose classes are all at the cap have nothing left to scale: 0/0, and the level stays
        scaled = body.log(left / body.where(tail > 0.0, tail, 1.0)) - peak
        raised = body.maximum(level, body.where(tail > 0.0, scaled, level))
        # another round would change nothing where the largest of the rest fits below the cap
        excess = body.max(peak + raised - limit, axis=0, keepdims=False)
        go_on = body.squeeze(excess, axis=0) > 1e-12
        names = f"{inner.prefix}/round", f"{inner.prefix}/go_on"
        loop = helper.make_graph(
            inner.nodes,
            inner.prefix,
            [
                helper.make_tensor_value_info(names[0], TensorProto.INT64, []),
                helper.make_tensor_value_info(names[1], TensorProto.BOOL, []),
                helper.make_tensor_value_info(level.tensor, graph.onnx_dtype, [None, 1]),
            ],
            [
                helper.make_tensor_value_info(go_on.tensor, TensorProto.BOOL, []),
                helper.make_tensor_value_info(raised.tensor, graph.onnx_dtype, [None, 1]),
            ],
            inner.constants,
        )
        most = graph.constant(np.array(int(shares.shape[1] or 0), dtype=np.int64))
        result = graph.name("level")
        graph.nodes.append(helper.make_node("Loop", [most, again.tensor, start.tensor], [result], body=loop))
        return self.array(result, start.shape, start.dtype)

    def pick(self, x: OnnxArray, index: Any) -> OnnxArray:
        """x[index] for slices, whole numbers, None and arrays of whole numbers into the first axis."""
        if x.value is not None and not isinstance(index, OnnxArray):
            return self.asarray(x.value[index])
        if isinstance(index, OnnxArray):
            return self.take(x, index, axis=0)
        result, axis = x, 0
        for one in index if isinstance(index, tuple) else (index,):
            if one is None:
                result, axis = self.expand_dims(result, axis=axis), axis + 1
            elif isinstance(one, slice):
                result, axis = self._slice(result, one, axis), axis + 1
            elif isinstance(one, int):
                size = result.shape[axis]
                place = one if one >= 0 or size is None else one + size
                gathered = self.graph.node("Gather", result.tensor, self.graph.constant(np.array(place)), axis=axis)
                result = self.array(gathered, (*result.shape[:axis], *result.shape[axis + 1 :]), result.dtype)
            else:
                raise InputError(f"a method's map indexes an array with {one!r}, which has no ONNX form here")
        return result

    def _slice(self, x: OnnxArray, part: slice, axis: int) -> OnnxArray:
        if part == slice(None):
            return x
        size = int(x.shape[axis] or 0)
        start, stop, stride = part.indices(size)
        given = [self.graph.constant(np.array([value])) for value in (start, stop, axis, stride)]
        shape = (*x.shape[:axis], len(range(start, stop, stride)), *x.shape[axis + 1 :])
        return self.array(self.graph.node("Slice", x.tensor, *given), shape, x.dtype)

    def _unary(self, name: str, x: Any) -> OnnxArray:
        x = self.asarray(x)
        if x.value is not None:
            return self._folded(name, x)
        return self.array(self.graph.node(UNARY[name], x.tensor), x.shape, x.dtype)

    def _folded(self, name: str, *arrays: Any) -> OnnxArray:
        with np.errstate(all="ignore"):
            return self.asarray(getattr(constants, name)(*(self.asarray(one).value for one in arrays)))

    def _binary(self, name: str, a: Any, b: Any) -> OnnxArray:
        a, b = self._alike(a, b)
        if a.value is not None and b.value is not None:
            return self._folded(name, a, b)
        tensor = self.graph.node(BINARY[name], a.tensor, b.tensor)
        return self.array(tensor, _broadcast(a.shape, b.shape), self.bool if name in TRUTH else a.dtype)

    def _reduce(self, name: str, x: OnnxArray, axis: int | None, keepdims: Any) -> OnnxArray:
        x = self.asarray(x)
        if x.value is not None:
            return self.asarray(getattr(np, name)(x.value, axis=axis, keepdims=keepdims))
        if axis is None:
            raise InputError(f"a method's map takes xp.{name} over all axes, but rows are calibrated one by one")
        tensor = self.graph.with_axis(REDUCTIONS[name], x.tensor, axis, keepdims=int(keepdims))
        return self.array(tensor, _reduced(x.shape, axis, keepdims), x.dtype)

    def _alike(self, a: Any, b: Any) -> tuple[OnnxArray, OnnxArray]:
        """Two arrays of one dtype: a Python number takes that of the other."""
        if not isinstance(a, OnnxArray) and isinstance(b, OnnxArray) and b.dtype != self.bool:
            a = self.astype(self.asarray(a), b.dtype)
        if not isinstance(b, OnnxArray) and isinstance(a, OnnxArray) and a.dtype != self.bool:
            b = self.astype(self.asarray(b), a.dtype)
        return self.asarray(a), self.asarray(b)

    def _constant(self, x: OnnxArray, name: str) -> np.ndarray:
        if x.value is None:
            raise InputError(f"a method's map uses xp.{name} on the logits, which has no ONNX form here")
        return x.value


def _broadcast(*shapes: Shape) -> Shape:
    length = max(map(len, shapes))
    result: list[int | None] = []
    for place in range(-length, 0):
        sizes = [shape[place] for shape in shapes if len(shape) >= -place]
        result.append(None if None in sizes else max(size for size in sizes if size is not None))
    return tuple(result)


def _reduced(shape: Shape, axis: int, keepdims: Any) -> Shape:
    axis %= len(shape)
    return (*shape[:axis], 1, *shape[axis + 1 :]) if keepdims else (*shape[:axis], *shape[axis + 1 :])
