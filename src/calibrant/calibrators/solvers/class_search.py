"""The greedy search behind class temperature scaling, exact and without recomputing what did not change.

One arithmetic defines every answer: scaled logits s = z/T by float64 division, prediction the first maximum,
confidence 1/Σ exp(s − max s) in float64. The search keeps, per row, the peak of the scaled logits, its class and
the mass Σ exp(s − peak); a class's grid then costs one exponential per row and temperature. Where a confidence
comes so close to a bin edge that the shortcut's rounding could matter, the row is computed in full.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from calibrant.core.bins import total_gap, width_index
from calibrant.core.rows import Rows
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.class_search import ClassRows, class_hits, class_sums, temperature_sums

TIE = 1e-12
"""ECE and accuracy values closer than this are equal: float64 sums over rows cannot tell them apart."""

BLOCK_ROWS = 1 << 12
"""Rows of one task: small enough to share among cores, large enough for numpy."""

COLUMNS_AT_ONCE = 16
"""Columns copied together: one cache line of a float32 row holds them."""

ASK_EVERY = 64
"""Classes between two reads of the flags on the device; the launches in between do not wait."""


class Top(NamedTuple):
    """The leading class of each row: its scaled logit, its index and Σ exp(s − peak) over the row."""

    peak: np.ndarray
    winner: np.ndarray
    mass: np.ndarray


class Outcome(NamedTuple):
    """ECE and accuracy of the fit data at the present temperatures."""

    ece: float
    accuracy: float


class ClassSearch:
    """Rows under class temperatures that change one at a time."""

    def __init__(self, rows: Rows, grid: np.ndarray, n_bins: int) -> None:
        self.rows, self.grid, self.n_bins = rows, grid, n_bins
        self.weights = np.ones(rows.n) if rows.weights is None else rows.weights
        self.total = float(self.weights.sum())
        self.temperatures = np.ones(rows.n_classes)
        self._columns = np.empty((0, rows.n))

    def start(self) -> float:
        """Set all temperatures to the one grid value of lowest ECE, the smallest of equals, and return it."""
        gaps, doubtful = self._start_sums()
        for row, position in by_position(doubtful):
            self._add_exactly(gaps, row, position, self._with(None, self.grid[position]))
        best = self._first_lowest(total_gap(gaps, self.total, axis=0), None)
        self.temperatures = np.full(self.rows.n_classes, self.grid[best])
        return float(self.grid[best])

    def _start_sums(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """Bin gaps (bins × grid) of one temperature for all classes, and the doubtful (row, grid) pairs left out."""

        def part(block: slice) -> tuple[np.ndarray, np.ndarray]:
            rows = self.rows.logits[block], self.rows.labels[block], self.weights[block]
            gaps, doubtful = temperature_sums(*rows, self.grid, self.n_bins)
            return gaps, doubtful + np.array([block.start, 0])

        parts = map_blocks(part, row_blocks(self.rows.n, self.rows.n_classes, 1 << 18))
        return np.sum([gaps for gaps, _ in parts], axis=0), [doubtful for _, doubtful in parts]

    def refresh(self) -> Outcome:
        """Recompute every row from its logits; the present ECE and accuracy."""
        self.top = self._in_full(self.temperatures)
        return self._outcome(self.top)

    def sweep(self, preserve_accuracy: bool, fewest_hits: float, tell: Callable[[int], None]) -> bool:
        """Visit every class once; whether any moved. `tell` is called with the number of classes done."""
        changed = False
        for j in range(self.rows.n_classes):
            changed |= self.improve_class(j, preserve_accuracy, fewest_hits)
            tell(j + 1)
        return changed

    def improve_class(self, j: int, preserve_accuracy: bool, fewest_hits: float = np.inf) -> bool:
        """Move class j to its best grid temperature; whether that changed it.

        With `preserve_accuracy` a value may leave no fewer rows right than there are now, or than `fewest_hits` where
        that is less.
        """
        ece = self.try_class(j, preserve_accuracy, fewest_hits)
        present = np.searchsorted(self.grid, self.temperatures[j])
        if not ece.min() < ece[present] - TIE:
            return False
        self.set_class(j, float(self.grid[self._first_lowest(ece, j)]))
        return True

    def try_class(self, j: int, preserve_accuracy: bool, fewest_hits: float = np.inf) -> np.ndarray:
        """ECE of every grid temperature of class j, all others frozen; infinite where accuracy would fall."""
        self._values = self._column(j)
        self._others = self._without(j)
        peak, winner, mass = self._others
        right_others, right_self = winner == self.rows.labels, self.rows.labels == j
        rows = ClassRows(self._values, peak, mass, winner > j, right_others, right_self, self.weights)
        positions = np.arange(len(self.grid))
        if preserve_accuracy:
            hits = class_hits(rows, self.grid)
            present = np.searchsorted(self.grid, self.temperatures[j])
            spare = 0.0
            if fewest_hits < np.inf:
                spare = max(0.0, float(self.weights @ (self.top[1] == self.rows.labels)) - fewest_hits)
            positions = np.flatnonzero(hits >= hits[present] - spare - TIE * self.total)
        ece = np.full(len(self.grid), np.inf)
        if len(positions) > 1:
            ece[positions] = self._class_ece(j, rows, self.grid[positions])
        return ece

    def _class_ece(self, j: int, rows: ClassRows, tried: np.ndarray) -> np.ndarray:
        def part(block: slice) -> tuple[np.ndarray, np.ndarray]:
            gaps, doubtful = class_sums(rows.take(block), tried, self.temperatures[j], self.n_bins)
            return gaps, doubtful + np.array([block.start, 0])

        parts = map_blocks(part, row_blocks(self.rows.n, 1, BLOCK_ROWS))
        gaps = np.sum([gaps for gaps, _ in parts], axis=0)
        for chosen, position in by_position([doubtful for _, doubtful in parts]):
            self._add_exactly(gaps, chosen, position, self._with(j, tried[position]))
        return total_gap(gaps, self.total, axis=0)

    def set_class(self, j: int, temperature: float) -> None:
        """Give the class just tried a new temperature."""
        self.temperatures[j] = temperature
        peak, winner, mass = self._others
        scores = self._values / temperature
        wins = (scores > peak) | ((scores == peak) & (winner > j))
        exponential = np.exp(-np.abs(scores - peak))
        self.top = Top(
            np.where(wins, scores, peak),
            np.where(wins, j, winner),
            np.where(wins, 1.0 + mass * exponential, mass + exponential),
        )

    def _first_lowest(self, ece: np.ndarray, j: int | None) -> int:
        """Position of the lowest ECE, the first of equals; near-ties are settled by computing all rows in full."""
        near = np.flatnonzero(ece <= ece.min() + TIE)
        if len(near) == 1:
            return int(near[0])
        exact = [self._outcome(self._in_full(self._with(j, self.grid[i]))).ece for i in near]
        return int(near[np.argmin(exact)])

    def _with(self, j: int | None, temperature: float) -> np.ndarray:
        """The present temperatures, but for class j (None: all classes)."""
        temperatures = self.temperatures.copy()
        temperatures[slice(None) if j is None else j] = temperature
        return temperatures

    def _outcome(self, top: Top) -> Outcome:
        gaps = np.zeros((self.n_bins, 1))
        hits = self._add_rows(gaps, 0, top, slice(None))
        return Outcome(float(total_gap(gaps[:, 0], self.total)), hits / self.total)

    def _without(self, j: int) -> Top:
        """The leading class of each row when class j is left out."""
        scores = self._values / self.temperatures[j]
        leads = self.top.winner == j
        # where class j does not lead, the mass of the others is at least 1: nothing cancels
        mass = self.top.mass - np.exp(np.minimum(scores - self.top.peak, 0.0))
        others = Top(self.top.peak.copy(), self.top.winner.copy(), np.maximum(mass, 1.0))
        chosen = np.flatnonzero(leads)
        for whole, part in zip(others, self._in_full(self.temperatures, chosen, without=j), strict=True):
            whole[chosen] = part
        return others

    def _in_full(self, temperatures: np.ndarray, rows: np.ndarray | None = None, without: int | None = None) -> Top:
        return scaled_top(self.rows.logits, temperatures, rows, without)

    def _column(self, j: int) -> np.ndarray:
        inside = j % COLUMNS_AT_ONCE
        if inside == 0 or not len(self._columns):
            first = j - inside
            block = self.rows.logits[:, first : first + COLUMNS_AT_ONCE]
            self._columns = np.ascontiguousarray(block.T, dtype=np.float64)
        return self._columns[inside]

    def _add_exactly(self, gaps: np.ndarray, rows: np.ndarray, position: int, temperatures: np.ndarray) -> None:
        self._add_rows(gaps, position, self._in_full(temperatures, rows), rows)

    def _add_rows(self, gaps: np.ndarray, position: int, top: Top, rows: np.ndarray | slice) -> float:
        weights, correct = self.weights[rows], top.winner == self.rows.labels[rows]
        confidence = 1.0 / top.mass
        index = width_index(confidence, self.n_bins)
        gaps[:, position] += np.bincount(index, weights=weights * (correct - confidence), minlength=self.n_bins)
        return float(weights[correct].sum())


def class_search(rows: Any, grid: np.ndarray, n_bins: int) -> ClassSearch:
    """The search over rows in memory, or over rows on a GPU where that has a form there."""
    if rows.in_memory:
        return ClassSearch(rows, grid, n_bins)
    if fits(rows.blocks, grid, n_bins):
        return DeviceClassSearch(rows.blocks, grid, n_bins)
    return ClassSearch(rows.whole(), grid, n_bins)


def scaled_top(
    logits: np.ndarray, temperatures: np.ndarray, rows: np.ndarray | None = None, without: int | None = None
) -> Top:
    """The leading class of each (chosen) row of z/T, computed in full; one class may be left out."""
    n_rows = len(logits) if rows is None else len(rows)

    def part(block: slice) -> Top:
        scores = logits[block if rows is None else rows[block]] / temperatures
        if without is not None:
            scores[:, without] = -np.inf
        winner = scores.argmax(axis=1)
        peak = scores[np.arange(len(scores)), winner]
        scores -= peak[:, None]
        return Top(peak, winner, np.exp(scores, out=scores).sum(axis=1))

    if n_rows == 0:
        return Top(np.empty(0), np.empty(0, dtype=np.int64), np.empty(0))
    parts = map_blocks(part, row_blocks(n_rows, logits.shape[1], 1 << 18))
    return Top(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def by_position(doubtful: list[np.ndarray]) -> list[tuple[np.ndarray, int]]:
    """(row, position) pairs grouped by position."""
    pairs = np.concatenate(doubtful)
    return [(pairs[pairs[:, 1] == position, 0], int(position)) for position in np.unique(pairs[:, 1])]


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
