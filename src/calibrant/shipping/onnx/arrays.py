"""A tensor of an ONNX graph that behaves as an array of the array API."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

Shape = tuple[int | None, ...]
"""None stands for the number of rows, which a graph does not know."""

RENAMED = {"power": "pow", "invert": "logical_not", "bitwise_and": "logical_and", "bitwise_or": "logical_or"}
"""Operators that the array API, or ONNX for truth values, calls otherwise than numpy."""
NEGATED = {"greater_equal": "less", "less_equal": "greater", "not_equal": "equal"}
"""Comparisons that the oldest opset has not: their opposites are negated."""


class OnnxArray(NDArrayOperatorsMixin):
    """A tensor of the graph, or a constant that is not in the graph yet."""

    def __init__(self, space: Any, shape: Shape, dtype: Any, *, tensor: str = "", value: Any = None) -> None:
        self.space, self.shape, self.dtype, self.value = space, shape, np.dtype(dtype), value
        self._tensor = tensor

    @property
    def tensor(self) -> str:
        """Name of the tensor; a constant enters the graph here."""
        if not self._tensor:
            self._tensor = self.space.graph.constant(np.asarray(self.value, dtype=self.dtype))
        return self._tensor

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def T(self) -> OnnxArray:  # noqa: N802 (the array API's name)
        """The transposed matrix."""
        return self.space.matrix_transpose(self)

    def __getitem__(self, index: Any) -> OnnxArray:
        return self.space.pick(self, index)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> OnnxArray:
        """The operators of the mixin, as functions of the namespace."""
        name = ufunc.__name__
        if name in NEGATED:
            return self.space.logical_not(getattr(self.space, NEGATED[name])(*inputs))
        return getattr(self.space, RENAMED.get(name, name))(*inputs)
