"""Functions of a block of rows, each with its faster forms registered on the object itself.

A `Kernel` is a serial numpy function with, where it pays, a compiled form of the same signature. A `Statistic` is a
kernel whose results add up over blocks, so that `Rows.total` can take it over arrays, files and devices. Which form
runs is asked of the object; nothing is looked up by a function's name.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
from collections.abc import Callable
from functools import cache, reduce
from typing import Any, TypeVar

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.threads import row_blocks

COMPILED_FROM = 2_000_000
"""Elements of the whole input from which the compiled form is used: below, loading the compiler costs more."""

PRECISE_ELEMENTS = 1 << 17
"""Elements turned into float64 at a time: the copy stays in the second-level cache."""

Function = TypeVar("Function", bound=Callable[..., Any])


@cache
def numba_available() -> bool:
    """Is numba installed? Asked without importing it."""
    return importlib.util.find_spec("numba") is not None


def use_compiled(n_elements: int) -> bool:
    """Compiled or numpy? CALIBRANT_KERNELS = numpy | numba overrides the size rule."""
    choice = os.environ.get("CALIBRANT_KERNELS", "auto")
    if choice == "numpy" or not numba_available():
        return False
    return choice == "numba" or n_elements >= COMPILED_FROM


class Kernel:
    """A numpy function over a block of rows; called, it runs as it is written.

    Parameters
    ----------
    function : the numpy form, defined at the top of its module
    compiled_in : module that registers the compiled form with `@kernel.compiled` when it is imported
    """

    def __init__(self, function: Callable[..., Any], compiled_in: str = "") -> None:
        functools.update_wrapper(self, function)
        self._plain, self._compiled_in = function, compiled_in
        self._compiled: Callable[..., Any] | None = None
        self.device_form: Callable[..., Any] | None = None
        """`device_form(rows, *parameters)` → the same of rows on a torch device; None where there is none."""

    def __call__(self, *arguments: Any) -> Any:
        """Run the numpy form."""
        return self._plain(*arguments)

    def compiled(self, function: Function) -> Function:
        """Register the compiled form."""
        self._compiled = function
        return function

    def on_device(self, function: Function) -> Function:
        """Register the form for rows on a torch device."""
        self.device_form = function
        return function

    def form(self, n_elements: int) -> Callable[..., Any]:
        """The function for an input of so many elements in all: compiled, or this one."""
        if not self._compiled_in or not use_compiled(n_elements) or not _loaded(self._compiled_in):
            return self
        return self._compiled or self

    def __reduce__(self) -> str | tuple[Any, ...]:
        # by reference: a worker on another machine gets its own forms
        return self.__qualname__  # type: ignore[attr-defined]


class Statistic(Kernel):
    """`statistic(logits, labels, weights, *parameters)` → a tuple of numbers or arrays that add up over rows.

    Parameters
    ----------
    shows_bad_values : int
        So many of its first sums are never finite where a logit is not: they save a pass that looks at every value.
    array_elements : int
        Where above 0 the function is written over the array API, for logits in float64: it is given arrays in blocks of
        so many elements, and tensors on a device in larger ones.
    """

    def __init__(
        self, function: Callable[..., Any], compiled_in: str = "", shows_bad_values: int = 0, array_elements: int = 0
    ) -> None:
        super().__init__(function, compiled_in)
        self.shows_bad_values, self.array_elements = shows_bad_values, array_elements
        self.array_form: Any = function if array_elements else None
        """The function of a block of arrays or tensors."""

    def __call__(self, *arguments: Any) -> Any:
        """Run the numpy form."""
        if self.array_elements:
            return _in_float64(self._plain, self.array_elements, *arguments)
        return self._plain(*arguments)

    def in_float64(self) -> Statistic:
        """The same statistic of the logits in float64."""
        return _Precise(self)


class _Precise(Statistic):
    def __init__(self, base: Statistic) -> None:
        super().__init__(base, shows_bad_values=base.shows_bad_values, array_elements=PRECISE_ELEMENTS)
        self._base, self.array_form = base, base.array_form
        if base.device_form is not None:
            device_form = base.device_form
            self.device_form = lambda rows, *parameters: device_form(rows.precise(), *parameters)

    def form(self, n_elements: int) -> Callable[..., Any]:
        return functools.partial(_in_float64, self._base.form(n_elements), PRECISE_ELEMENTS)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Precise, (self._base,)


def kernel(compiled_in: str = "") -> Callable[[Callable[..., Any]], Kernel]:
    """Make a function a `Kernel`."""
    return lambda function: Kernel(function, compiled_in)


def statistic(function: Callable[..., Any]) -> Statistic:
    """Make a function a `Statistic`.

    Examples
    --------
    >>> @statistic
    ... def hits(logits, labels, weights):
    ...     return (float((logits.argmax(axis=1) == labels).sum()),)
    >>> add(hits(np.eye(2), np.array([0, 1]), None), hits(np.eye(2), np.array([1, 1]), None))
    (3.0,)
    """
    return Statistic(function)


def statistic_with(**options: Any) -> Callable[[Callable[..., Any]], Statistic]:
    """Make a function a `Statistic` with these options of the class."""
    return lambda function: Statistic(function, **options)


def add(left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
    """Elementwise sum of two results of a statistic."""
    return tuple(a + b for a, b in zip(left, right, strict=True))


def _in_float64(
    form: Callable[..., tuple[Any, ...]],
    elements: int,
    logits: Array,
    labels: Array,
    weights: Array | None,
    *parameters: Any,
) -> tuple[Any, ...]:
    def part(block: slice) -> tuple[Any, ...]:
        weight = None if weights is None else weights[block]
        return form(logits[block].astype(np.float64, copy=False), labels[block], weight, *parameters)

    return reduce(add, map(part, row_blocks(len(logits), logits.shape[1], elements) or [slice(0)]))


@cache
def _loaded(module: str) -> bool:
    """Import a module of compiled forms; where numba cannot be loaded, numpy does the work."""
    try:
        importlib.import_module(module)
    except Exception as error:
        logging.getLogger("calibrant").warning(
            "compiled kernels cannot be loaded (%s: %s): numpy is used instead", type(error).__name__, error
        )
        return False
    return True
