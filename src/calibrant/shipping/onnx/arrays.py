"""A tensor of an ONNX graph that behaves as an array of the array API."""

from __future__ import annotations

from typing import Any

import numpy as np

Shape = tuple[int | None, ...]
"""None stands for the number of rows, which a graph does not know."""


class OnnxArray:
    """A tensor of the graph, or a constant that is not in the graph yet."""

    __array_priority__ = 1000

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

    def __add__(self, other: Any) -> OnnxArray:
        return self.space.add(self, other)

    def __radd__(self, other: Any) -> OnnxArray:
        return self.space.add(other, self)

    def __sub__(self, other: Any) -> OnnxArray:
        return self.space.subtract(self, other)

    def __rsub__(self, other: Any) -> OnnxArray:
        return self.space.subtract(other, self)

    def __mul__(self, other: Any) -> OnnxArray:
        return self.space.multiply(self, other)

    def __rmul__(self, other: Any) -> OnnxArray:
        return self.space.multiply(other, self)

    def __truediv__(self, other: Any) -> OnnxArray:
        return self.space.divide(self, other)

    def __rtruediv__(self, other: Any) -> OnnxArray:
        return self.space.divide(other, self)

    def __pow__(self, other: Any) -> OnnxArray:
        return self.space.pow(self, other)

    def __neg__(self) -> OnnxArray:
        return self.space.negative(self)

    def __matmul__(self, other: Any) -> OnnxArray:
        return self.space.matmul(self, other)

    def __gt__(self, other: Any) -> OnnxArray:
        return self.space.greater(self, other)

    def __lt__(self, other: Any) -> OnnxArray:
        return self.space.less(self, other)

    def __ge__(self, other: Any) -> OnnxArray:
        return self.space.logical_not(self.space.less(self, other))

    def __le__(self, other: Any) -> OnnxArray:
        return self.space.logical_not(self.space.greater(self, other))

    def __eq__(self, other: Any) -> OnnxArray:  # type: ignore[override]
        return self.space.equal(self, other)

    def __ne__(self, other: Any) -> OnnxArray:  # type: ignore[override]
        return self.space.logical_not(self.space.equal(self, other))

    def __invert__(self) -> OnnxArray:
        return self.space.logical_not(self)

    def __and__(self, other: Any) -> OnnxArray:
        return self.space.logical_and(self, other)

    def __or__(self, other: Any) -> OnnxArray:
        return self.space.logical_or(self, other)

    __hash__ = None  # type: ignore[assignment]
