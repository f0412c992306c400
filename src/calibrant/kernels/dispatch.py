"""When a compiled loop is worth its compile time.

Every kernel is a serial function over a block of rows, with a numpy twin of the same signature. Small inputs
never import numba: the twin is faster than loading the compiler.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

COMPILED_FROM = 2_000_000
"""Elements of the whole input from which the compiled twin is used."""


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


def pick(twin: Callable[..., Any], n_elements: int) -> Callable[..., Any]:
    """The function of the same name in `kernels/compiled/<module>.py`, or the numpy twin itself."""
    if not use_compiled(n_elements):
        return twin
    module = _compiled_module(twin.__module__.replace("kernels.", "kernels.compiled."))
    return twin if module is None else getattr(module, twin.__name__)


@cache
def _compiled_module(name: str) -> ModuleType | None:
    """The module of compiled kernels, or None where numba cannot be loaded: then numpy does the work."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        logging.getLogger("calibrant").warning(
            "compiled kernels cannot be loaded (%s: %s): numpy is used instead", type(error).__name__, error
        )
        return None
