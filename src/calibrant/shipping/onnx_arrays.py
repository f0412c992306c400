"""Arrays that write down what is done to them: a method's map over the array API becomes an ONNX graph.

A map is run once, by numpy, on a probe of two rows. Every operation on an array that depends on the input is recorded
as a node; operations on constants are only carried out. Shapes and dtypes are those of the probe, so no operator needs
a rule for them. The graph keeps to opset 17 and uses ONNX's own Softmax; a general tracer spells it in five nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from array_api_compat import numpy as plain
from numpy.lib.mixins import NDArrayOperatorsMixin
from onnx import NodeProto, TensorProto, helper, numpy_helper

from calibrant.calibrators.maps import Space
from calibrant.core.arrays import Array, Json
from calibrant.core.errors import InputError

OLDEST_OPSET = 17
AXES_AS_INPUT = 18
"""From this opset on, the axes of ReduceMax, ReduceMin and ReduceMean are an input; those of ReduceSum always are."""

OPERATORS = {
    "exp": "Exp", "log": "Log", "abs": "Abs", "tanh": "Tanh", "sqrt": "Sqrt", "negative": "Neg", "floor": "Floor",
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "pow": "Pow", "matmul": "MatMul",
    "maximum": "Max", "minimum": "Min", "greater": "Greater", "greater_equal": "GreaterOrEqual", "less": "Less",
    "less_equal": "LessOrEqual", "equal": "Equal", "logical_and": "And", "logical_or": "Or", "logical_not": "Not",
    "isinf": "IsInf",
}  # fmt: skip
"""Functions of the array API that are one ONNX operator of the same arguments."""
ALONG_AXIS = {
    "max": "ReduceMax", "min": "ReduceMin", "sum": "ReduceSum", "mean": "ReduceMean", "argmax": "ArgMax",
    "expand_dims": "Unsqueeze", "squeeze": "Squeeze", "take": "Gather", "take_along_axis": "GatherElements",
}  # fmt: skip
"""Those that work along one axis."""
OF_ROWS = {"softmax_of_rows": "Softmax", "log_softmax_of_rows": "LogSoftmax"}
"""Functions of rows that ONNX has itself."""
RENAMED = {"power": "pow", "invert": "logical_not", "bitwise_and": "logical_and", "bitwise_or": "logical_or"}
"""Operators that the array API, or ONNX for truth values, calls otherwise than numpy."""


class OnnxArray(NDArrayOperatorsMixin):
    """A tensor of the graph with its value in the probe, or a constant that may not be in the graph yet."""

    def __init__(self, space: OnnxSpace, value: Any, tensor: str = "") -> None:
        self.space, self.value, self.fixed = space, np.asarray(value), not tensor
        self.dtype, self.ndim = self.value.dtype, self.value.ndim
        # None stands for the number of rows, which a graph does not know
        self.shape = self.value.shape if self.fixed else (None, *self.value.shape[1:])
        self._tensor = tensor

    @property
    def tensor(self) -> str:
        """Name of the tensor; a constant enters the graph here."""
        return self._tensor or self.space.constant(self.value)

    def info(self, shape: list[Any] | None) -> Any:
        """The tensor as an input or output of a graph."""
        return helper.make_tensor_value_info(self.tensor, helper.np_dtype_to_tensor_dtype(self.dtype), shape)

    @property
    def T(self) -> OnnxArray:  # noqa: N802 (the array API's name)
        """The transposed matrix; of constants only."""
        return self.space.matrix_transpose(self)

    def __getitem__(self, index: Any) -> OnnxArray:
        return self.space.pick(self, index)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> OnnxArray:
        """The operators of the mixin, as functions of the namespace."""
        name = ufunc.__name__
        if name == "not_equal":
            return self.space.logical_not(self.space.equal(*inputs))
        return getattr(self.space, RENAMED.get(name, name))(*inputs)


class OnnxSpace(Space):
    """The namespace `xp` that a map sees, with the graph under construction: nodes and constants.

    It has the functions of the array API that ONNX can express. Every tensor is named after a prefix, so that none can
    clash. All numbers have the graph's precision, so that `float64` and `float32` both mean it.
    """

    inf = float("inf")
    int64, bool = np.dtype(np.int64), np.dtype(np.bool_)

    def __init__(self, *, opset: int, precision: str, prefix: str = "calibrant") -> None:
        if opset < OLDEST_OPSET:
            raise InputError(
                f"the model has opset {opset}, but at least {OLDEST_OPSET} is needed: "
                "raise it with onnx.version_converter.convert_version"
            )
        if precision not in ("float32", "float64"):
            raise InputError(f"precision must be float32 or float64, got {precision!r}")
        self.opset, self.prefix, self.precision = opset, prefix, precision
        self.float64 = self.float32 = np.dtype(precision)
        self.keeps_order = precision == "float64"
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._known: dict[Any, str] = {}
        self._numbers = itertools.count(1)

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its (first) result; runtimes join equal nodes."""
        name = self.name(operator)
        results = [name, f"{name}/places"] if operator == "TopK" else [name]
        self.nodes.append(helper.make_node(operator, list(inputs), results, name=name, **attributes))
        return name

    def constant(self, array: Array) -> str:
        """The name of a constant; equal ones are stored once."""
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._known:
            self._known[key] = name = self.name("constant")
            self.constants.append(numpy_helper.from_array(np.array(array, order="C"), name))
        return self._known[key]

    def name(self, operator: str) -> str:
        """A name that no other tensor has."""
        return f"{self.prefix}/{operator}_{next(self._numbers)}"

    def body(self) -> OnnxSpace:
        """A space for the body of a loop or a branch, which sees the tensors of this one."""
        return OnnxSpace(opset=self.opset, precision=self.precision, prefix=self.name("body"))

    def __getattr__(self, name: str) -> Callable[..., OnnxArray]:
        if name in OPERATORS:
            return lambda *arrays: self.write(getattr(plain, name), OPERATORS[name], *self._alike(*arrays))
        if name in ALONG_AXIS:
            return partial(self._along_axis, name)
        if name in OF_ROWS:
            return partial(self.write, np.exp, OF_ROWS[name], axis=-1)
        return partial(self._carry_out, name)

    def _carry_out(self, name: str, *arguments: Any, **options: Any) -> OnnxArray:
        """Any function of the array API, of constants only."""
        given = [one if isinstance(one, OnnxArray) else OnnxArray(self, one) for one in arguments]
        if not all(one.fixed for one in given):
            raise InputError(
                f"a method's map uses xp.{name}, which has no ONNX form here: "
                "write it with arithmetic, exp, log, where, max, sum, argmax, matmul, take and comparisons"
            )
        return self.asarray(getattr(plain, name)(*(one.value for one in given), **options))

    def write(self, function: Any, operator: str, *arrays: OnnxArray, more: Any = (), **attributes: Any) -> OnnxArray:
        """function(*values), and the operator that computes it; `more` holds its further inputs, all constant."""
        with np.errstate(all="ignore"):
            value = function(*(one.value for one in arrays))
        if all(one.fixed for one in arrays):
            return OnnxArray(self, value)
        given = [*(one.tensor for one in arrays), *map(self.constant, more)]
        return OnnxArray(self, value, self.node(operator, *given, **attributes))

    def _along_axis(self, name: str, *arrays: Any, axis: int | None = None, **options: Any) -> OnnxArray:
        """One of ALONG_AXIS; the axis is an attribute or an input of the operator, which its opset decides."""
        given, operator = [self.asarray(one) for one in arrays], ALONG_AXIS[name]
        reduces = operator.startswith("Reduce")
        if reduces and axis is None and not given[0].fixed:
            raise InputError(f"a method's map takes xp.{name} over all axes, but rows are calibrated one by one")
        if reduces or name == "argmax":
            options.setdefault("keepdims", False)
        work = partial(getattr(plain, name), axis=axis, **options)
        attributes: Json = {key: int(value) for key, value in options.items()}
        if name in ("sum", "expand_dims", "squeeze") or (reduces and self.opset >= AXES_AS_INPUT):
            return self.write(work, operator, *given, more=[np.array([axis or 0])], **attributes)
        attributes |= {"axes": [axis]} if reduces else {"axis": axis or 0}
        return self.write(work, operator, *given, **attributes)

    def _alike(self, *arrays: Any) -> list[OnnxArray]:
        """Arrays of one dtype: constants take that of the tensors."""
        found = [self.asarray(one) for one in arrays]
        dtype = next((one.dtype for one in found if not one.fixed), None)
        return [self.astype(one, dtype) if one.fixed and dtype is not None else one for one in found]

    def asarray(self, value: Any) -> OnnxArray:
        """A constant; real numbers take the graph's precision."""
        if isinstance(value, OnnxArray):
            return value
        found = np.asarray(value)
        return OnnxArray(self, found.astype({"f": self.float64, "b": self.bool}.get(found.dtype.kind, self.int64)))

    def finfo(self, dtype: Any) -> Any:
        """Limits of the graph's precision."""
        return np.finfo(self.float64)

    def astype(self, x: OnnxArray, dtype: Any, copy: Any = True) -> OnnxArray:
        """Another dtype."""
        if x.dtype == np.dtype(dtype):
            return x
        to = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.write(lambda value: value.astype(dtype), "Cast", x, to=to)

    def single_precision(self, x: OnnxArray) -> OnnxArray:
        """Runtimes multiply matrices of float64 at half the speed."""
        return self.astype(x, np.float32)

    def where(self, condition: Any, x: Any, y: Any) -> OnnxArray:
        """x where the condition holds, else y."""
        x, y = self._alike(x, y)
        return self.write(np.where, "Where", self.asarray(condition), x, self.astype(y, x.dtype))

    def log1p(self, x: Any) -> OnnxArray:
        """log(1 + x); ONNX has no operator of its own."""
        return self.log(1.0 + x)

    def full_like(self, x: OnnxArray, value: float) -> OnnxArray:
        """A number that broadcasts to the shape of x."""
        return self.asarray(value)

    def zeros_like(self, x: OnnxArray) -> OnnxArray:
        """Zeros in the shape of x: needed as they are where nothing broadcasts them."""
        return x * 0

    def ones_like(self, x: OnnxArray) -> OnnxArray:
        """Ones that broadcast to the shape of x."""
        return self.asarray(1.0)

    def stack(self, arrays: list[Any], *, axis: int = 0) -> OnnxArray:
        """Arrays side by side along a new axis."""
        return self.concat([self.expand_dims(self.asarray(one), axis=axis) for one in arrays], axis=axis)

    def concat(self, arrays: list[Any], *, axis: int = 0) -> OnnxArray:
        """Arrays side by side along an axis."""
        return self.write(lambda *values: np.concatenate(values, axis), "Concat", *self._alike(*arrays), axis=axis)

    def with_entry(self, x: OnnxArray, column: OnnxArray, value: Any) -> OnnxArray:
        """One copy, where a mask and a choice would pass over x twice."""
        value = self._alike(x, value)[1]
        if not value.ndim:
            rows = self.write(lambda places: np.array(places.shape), "Shape", column)
            value = self.write(np.broadcast_to, "Expand", value, rows)
        return self.write(lambda old, *_: old, "ScatterElements", x, column, value, axis=1)

    def largest(self, x: OnnxArray, count: int) -> OnnxArray:
        """The largest values of each row, in descending order."""
        return self.write(lambda value: value[:, :count], "TopK", x, more=[np.array([count])], axis=1)

    def clip(self, x: OnnxArray, low: Any, high: Any) -> OnnxArray:
        """x moved into [low, high]."""
        return self.minimum(self.maximum(x, low), high)

    def searchsorted(self, x1: Any, x2: OnnxArray, *, side: str = "left") -> OnnxArray:
        """How many of the sorted constants x1 (M,) lie below each value of x2 (n,), or at it for side "right"."""
        values, edges = x2[:, None], self.asarray(x1)[None, :]
        below = values >= edges if side == "right" else values > edges
        return self.astype(self.sum(self.astype(below, self.float64), axis=1), self.int64)

    def water_level(self, shares: OnnxArray, cap: OnnxArray, total: OnnxArray) -> OnnxArray:
        """By rounds of capping, until no row has a new one.

        λ rises from 1: what lies above the cap is capped, and the rest is scaled to what is left. Few rounds suffice,
        where a running sum of sorted logarithms would take log₂K passes; a batch without a crowded row takes none.
        """
        body, start = self.body(), cap * 0.0
        crowded = self.max(self.max(shares, axis=1, keepdims=True) - cap, axis=0)
        again = self.squeeze(crowded, axis=0) > 0.0
        level = OnnxArray(body, start.value, f"{body.prefix}/level")
        q, limit, whole = (OnnxArray(body, one.value, one.tensor) for one in (shares, cap, total))
        capped = q + level > limit + 1e-12
        count = body.sum(body.astype(capped, self.float64), axis=1, keepdims=True)
        rest = body.where(capped, -np.inf, q)
        peak = body.maximum(body.max(rest, axis=1, keepdims=True), float(np.finfo(self.float64).min) / 4)
        tail = body.sum(body.exp(rest - peak), axis=1, keepdims=True)
        left = body.maximum(body.exp(whole) - count * body.exp(limit), 0.0)
        # rows whose classes are all at the cap have nothing left to scale: 0/0, and the level stays
        scaled = body.log(left / body.where(tail > 0.0, tail, 1.0)) - peak
        raised = body.maximum(level, body.where(tail > 0.0, scaled, level))
        # another round would change nothing where the largest of the rest fits below the cap
        go_on = body.squeeze(body.max(peak + raised - limit, axis=0), axis=0) > 1e-12
        most = self.asarray(shares.shape[1])
        given = [OnnxArray(body, one.value, body.name("given")).info([]) for one in (most, again)]
        results = [go_on.info([]), raised.info([None, 1])]
        given.append(level.info([None, 1]))
        loop = helper.make_graph(body.nodes, body.prefix, given, results, body.constants)
        return self.write(lambda *values: values[2], "Loop", most, again, start, body=loop)

    def pick(self, x: OnnxArray, index: Any) -> OnnxArray:
        """x[index] for slices and whole numbers, None, and arrays of whole numbers into the first axis.

        A row cannot be picked: how many there are is not known.
        """
        if isinstance(index, OnnxArray):
            return self.take(x, index, axis=0)
        if x.fixed:
            return OnnxArray(self, x.value[index])
        result, axis = x, 0
        for one in index if isinstance(index, tuple) else (index,):
            if one is None:
                result, axis = self.expand_dims(result, axis=axis), axis + 1
            elif one == slice(None):
                axis += 1
            else:
                result = self.take(result, np.arange(result.shape[axis])[one], axis=axis)
                axis += isinstance(one, slice)
        return result
