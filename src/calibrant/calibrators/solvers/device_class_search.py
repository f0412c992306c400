"""The class temperature search over rows on a GPU; the host computes the cases that rounding could decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from calibrant.calibrators.solvers.class_search import TIE, ClassSearch, Outcome, Top

ASK_EVERY = 64
"""Classes between two reads of the flags on the device; the launches in between do not wait."""


def fits(rows: Any, grid: np.ndarray, n_bins: int) -> bool:
    """Has the search a form on the device of these rows?"""
    if not rows.use_fused():
        return False
    from calibrant.kernels.torch.triton_classes import MAX_BINS, MAX_GRID

    return len(grid) <= MAX_GRID and n_bins <= MAX_BINS and rows.n < 1 << 31


class DeviceClassSearch(ClassSearch):
    """`ClassSearch` with the rows' state on the device; the answer is the same."""

    def __init__(self, rows: Any, grid: np.ndarray, n_bins: int) -> None:
        from calibrant.kernels.torch import triton_classes
        from calibrant.kernels.torch.rows import on_device_of
        from calibrant.kernels.torch.tensors import host

        rows.settle()
        self.device_rows = rows
        super().__init__(HostColumns(rows, host(rows.target), rows.weights), grid, n_bins)  # type: ignore[arg-type]
        self._put = on_device_of(rows)
        self.launches = triton_classes.ClassLaunches(
            rows.tensor, rows.target, self._put(self.weights), self._put(grid), n_bins
        )

    def refresh(self) -> Outcome:
        """Recompute every row from its logits; the present ECE and accuracy."""
        outcome = super().refresh()
        self._load(np.inf)
        return outcome

    def sweep(self, preserve_accuracy: bool, fewest_hits: float, tell: Callable[[int], None]) -> bool:
        """Visit every class once; whether any moved."""
        changed, j, previous = False, 0, -1
        self._load(fewest_hits)
        while j < self.rows.n_classes:
            stop = min(j + ASK_EVERY, self.rows.n_classes)
            for place in range(j, stop):
                self.launches.improve(place, previous, preserve_accuracy)
                previous = place
            trouble, moved, _ = self.launches.flags.tolist()
            changed |= bool(moved)
            j = stop
            if trouble:
                j, previous = trouble, -1
                changed |= self._settle(trouble - 1, preserve_accuracy, fewest_hits)
            tell(j)
        self.temperatures = self._host(self.launches.temperatures)
        return changed

    def _settle(self, j: int, preserve_accuracy: bool, fewest_hits: float) -> bool:
        """Move class j by the arithmetic of the host."""
        held = self.launches
        self.temperatures = self._host(held.temperatures)
        self.top = Top(self._host(held.peak), self._host(held.winner), self._host(held.mass))
        changed = self.improve_class(j, preserve_accuracy, fewest_hits)
        self._load(fewest_hits)
        return changed

    def _load(self, fewest_hits: float) -> None:
        positions = np.searchsorted(self.grid, self.temperatures).astype(np.int32)
        top = tuple(map(self._put, self.top))
        limits = (self.total, TIE, float(fewest_hits))
        self.launches.flags.zero_()
        self.launches.load(self._put(self.temperatures), self._put(positions), top, limits)

    def _host(self, values: Any) -> np.ndarray:
        return np.array(values.cpu())

    def _start_sums(self) -> tuple[np.ndarray, list[np.ndarray]]:
        from calibrant.kernels.torch.classes import start_sums

        rows = self.device_rows
        gaps, doubtful = start_sums(rows.tensor, rows.target, self.launches.weights, self.grid, self.n_bins)
        return gaps, [doubtful]

    def _in_full(self, temperatures: np.ndarray, rows: np.ndarray | None = None, without: int | None = None) -> Top:
        from calibrant.kernels.torch.classes import scaled_top

        chosen = None if rows is None else self._put(rows)
        return Top(*map(self._host, scaled_top(self.device_rows.tensor, self._put(temperatures), chosen, without)))

    def _column(self, j: int) -> np.ndarray:
        return self._host(self.device_rows.tensor[:, j].double())


class HostColumns:
    """What of the rows is on the host: everything but the logits."""

    def __init__(self, rows: Any, labels: np.ndarray, weights: np.ndarray | None) -> None:
        self.n, self.n_classes, self.labels, self.weights = rows.n, rows.n_classes, labels, weights
