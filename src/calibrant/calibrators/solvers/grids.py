"""The grid of temperatures that searches walk over."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.core.errors import InputError


def temperature_grid(grid: Any = None) -> np.ndarray:
    """Ascending temperatures > 0; None is 0.1, 0.2, …, 10. A leading 0, where no temperature exists, is dropped."""
    if grid is None:
        return np.arange(1, 101) / 10
    try:
        values = np.unique(np.asarray(grid, dtype=np.float64).ravel())
    except (TypeError, ValueError):
        raise InputError(f"grid must hold temperatures, got {grid!r}") from None
    if not np.isfinite(values).all() or (values < 0).any():
        raise InputError(f"grid must hold finite temperatures above 0, got {values[0]:g} … {values[-1]:g}")
    values = values[values > 0]
    if not len(values):
        raise InputError("grid must hold at least one temperature above 0, got none")
    return values
