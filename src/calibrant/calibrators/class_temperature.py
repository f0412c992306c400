"""Class temperatures: by the lowest ECE, by likelihood, and shrunk towards one temperature.

The greedy search for the lowest ECE is exact, without recomputing what did not change. One arithmetic defines every
answer: scaled logits s = z/T by float64 division, prediction the first maximum, confidence 1/Σ exp(s − max s) in
float64. The search keeps, per row, the peak of the scaled logits, its class and the mass Σ exp(s − peak); a class's
grid then costs one exponential per row and temperature. Where a confidence comes so close to a bin edge that the
shortcut's rounding could matter, the row is computed in full.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.learned import RECORD, TEMPERATURES, Learned
from calibrant.calibrators.maps import like
from calibrant.calibrators.solvers.folds import content_folds
from calibrant.calibrators.solvers.likelihood import check_penalty, fit_vector
from calibrant.calibrators.solvers.temperature import temperature_grid, warn_of_edge
from calibrant.calibrators.temperature import TemperatureScaling
from calibrant.core.arrays import Array, check_whole
from calibrant.core.bins import check_n_bins, total_gap, width_index
from calibrant.core.errors import InputError
from calibrant.core.progress import step
from calibrant.core.rows import Rows
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.class_search import ClassRows, class_hits, class_sums, start_sums
from calibrant.kernels.scaling import block_confidences, temperature_confidences, vector_sums

SMALLEST_SCALE = 1e-6
"""Temperatures stay positive: no scale 1/T falls below this share of its unit."""

SHARES = tuple(round(0.1 * place, 1) for place in range(11))
"""Candidate shares of the class temperatures; 0 is one temperature, 1 is CTS by likelihood."""

TIE = 1e-12
"""ECE and accuracy values closer than this are equal: float64 sums over rows cannot tell them apart."""

BLOCK_ROWS = 1 << 12
"""Rows of one task: small enough to share among cores, large enough for numpy."""

BLOCK_ELEMENTS = 1 << 18

COLUMNS_AT_ONCE = 16
"""Columns copied together: one cache line of a float32 row holds them."""

ASK_EVERY = 64
"""Classes between two reads of the flags on the device; the launches in between do not wait."""


class ClassTemperatureScaling(
    Calibrator,
    requires_logits=True,
    fits_on_device=True,
    # the search for the lowest ECE moves single rows
    additive=lambda own: own.objective == "nll",
    searches_in_order=lambda own: own.objective != "nll",
):
    """Divide the logits of each class by a temperature of its own, z_j / T_j (CTS; Frenkel & Goldberger 2021, eq. 6).

    Parameters
    ----------
    objective : {"ece", "nll"}
        "ece": the greedy grid search of algorithm 1. All temperatures start at the one grid value of lowest ECE.
        Classes are visited in index order; each takes the grid value of lowest ECE with all others frozen, if that
        lowers the ECE by more than 1e-12 (ties: the smallest value). Sweeps go on until nothing changes.
        "nll": the minimiser of the mean negative log-likelihood over all class temperatures.
    preserve_accuracy : bool
        Allow only grid values whose fit accuracy is not below the accuracy before the class was visited.
        False is the unconstrained U-CTS.
    accuracy_tolerance : float
        Fit accuracy that the whole search may give away, as a share of the rows: 0 is CTS, 1 is U-CTS, 0.002 lies
        between them. Only with `preserve_accuracy`.
    max_sweeps : int
        Most rounds over all classes.
    n_bins : int
        Equal-width bins of the ECE.
    grid : sequence of temperatures, or None for 0.1, 0.2, …, 10

    Attributes
    ----------
    temperatures_ : array (K,)
    ece_trace_, accuracy_trace_ : array (n_iter_ + 1,)
        Fit-set ECE and accuracy at the start and after each sweep; the ECE never rises. Empty for "nll".
    n_iter_ : number of sweeps, or of Newton steps.

    Notes
    -----
    The answer equals a search that recomputes all confidences for every trial, in float64;
    `ClassSearch` shows how it avoids doing so. By "ece", `fit` searches a map of
    the file, or of a scratch copy on disk (n·K numbers), and keeps about 250 bytes per row in memory; by "nll" it goes
    chunk by chunk.

    Examples
    --------
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> cal.ClassTemperatureScaling().fit(val.logits, val.labels).ece_trace_.round(4)
    array([0.0081, 0.0055, 0.0037, 0.0037])
    """

    learns = {"temperatures_": TEMPERATURES, "ece_trace_": RECORD, "accuracy_trace_": RECORD}

    def __init__(
        self,
        objective: str = "ece",
        *,
        preserve_accuracy: bool = True,
        accuracy_tolerance: float = 0.0,
        max_sweeps: int = 5,
        n_bins: int = 15,
        grid: Sequence[float] | Array | None = None,
    ) -> None:
        self.objective = objective
        self.preserve_accuracy = preserve_accuracy
        self.accuracy_tolerance = accuracy_tolerance
        self.max_sweeps = max_sweeps
        self.n_bins = n_bins
        self.grid = grid

    def _narrows(self, rows: Rows) -> bool:
        # ECE and accuracy are those of all columns; the search leaves classes without fit rows as they are
        return self.objective != "ece" and super()._narrows(rows)

    def _fit(self, rows: Rows) -> None:
        if self.objective == "ece":
            self._fit_ece(rows)
        elif self.objective == "nll":
            solution = fit_vector(rows, with_bias=False, lower=SMALLEST_SCALE)
            self.temperatures_ = 1.0 / solution.point[0]
            self.ece_trace_ = self.accuracy_trace_ = np.empty(0)
            solution.report(self)
        else:
            raise InputError(f"objective must be 'ece' or 'nll', got {self.objective!r}")

    def _fit_ece(self, rows: Rows) -> None:
        max_sweeps = check_whole(self.max_sweeps, "max_sweeps", 0)
        tolerance = check_penalty(self.accuracy_tolerance, "accuracy_tolerance", by_cv=False, highest=1.0)
        search = class_search(rows, temperature_grid(self.grid), check_n_bins(self.n_bins))
        search.start()
        warn_of_edge(search.temperatures[0], search.grid)
        outcomes = [search.refresh()]
        fewest_hits = (outcomes[0][1] - tolerance) * rows.total_weight if tolerance > 0 else np.inf
        for sweep in range(max_sweeps):

            def tell(visited: int, sweep: int = sweep) -> None:
                done, every = sweep * rows.n_classes + visited, rows.n_classes * max_sweeps
                step("class temperatures", done, every, f"sweep {sweep + 1}")

            changed = search.sweep(self.preserve_accuracy, fewest_hits, tell)
            outcomes.append(search.refresh())
            if not changed:
                break
        self.temperatures_ = search.temperatures
        self.ece_trace_, self.accuracy_trace_ = np.array(outcomes).T
        self.objective_trace_, self.n_iter_ = self.ece_trace_, len(outcomes) - 1

    def _map(self, xp, logits, learned):
        # division, not a product with 1/T: logits that tie in the search tie here
        return logits / like(xp, learned.temperatures_, logits)


class ShrunkenClassTemperature(Calibrator, requires_logits=True, cross_fits=True):
    """Class temperatures between one temperature and CTS, T_j = T·(C_j/C)^s (this project's).

    C_j are the class temperatures of lowest log loss and C is their geometric mean; the share s is the candidate of
    lowest held-out log loss in cross-validation; T is the single temperature of lowest ECE once the classes are scaled.
    Class temperatures of few rows are noisy: s is small then, and 0 leaves one temperature.

    Parameters
    ----------
    share : float in [0, 1] or "cv"
        s, or "cv" to choose it from 0, 0.1 … 1.
    folds : int
        Parts of the cross-validation.
    seed : int
        Of the folds.

    Attributes
    ----------
    temperatures_ : array (K,)
    share_ : float
    share_losses_ : array (11,)
        Held-out log loss of each candidate; empty where the share was given.

    Examples
    --------
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> cal.ShrunkenClassTemperature(share=0.5).fit(val.logits, val.labels).temperatures_.round(1)
    array([1.5, 1.5, 1.6, 1.8, 1.5, 1.7, 1.5, 1.4, 1.5, 1.6])
    """

    learns = {
        "temperatures_": TEMPERATURES,
        "share_": Learned((), 0.0, 1.0, free=False),
        "share_losses_": RECORD,
    }

    def __init__(self, share: float | str = "cv", *, folds: int = 5, seed: int = 0) -> None:
        self.share = share
        self.folds = folds
        self.seed = seed

    def _fit(self, rows: Rows) -> None:
        check_whole(self.folds, "folds", 2)
        if not rows.in_memory:
            raise InputError("cts-shrunk searches the lowest ECE of scaled rows, so it cannot be fitted chunk by chunk")
        self.share_losses_, self.share_ = np.empty(0), check_penalty(self.share, "share", highest=1.0)
        if self.share_ == "cv":
            self.share_ = self._choose(rows)
        logs = np.log(class_temperatures(rows))
        # (C_j/C)^s with the geometric mean C
        ratio = np.exp(self.share_ * (logs - logs.mean()))
        scaled = Rows(rows.logits / ratio, rows.labels, rows.weights)
        self.temperatures_ = TemperatureScaling(objective="ece", refine=True).fit_rows(scaled).temperature_ * ratio

    def _choose(self, rows: Rows) -> float:
        """The share of lowest held-out log loss; the smallest of equals."""
        fold, unbiased = content_folds(rows, self.folds, self.seed), np.zeros(rows.n_classes)
        losses = np.zeros(len(SHARES))
        for part in range(self.folds):
            held, kept = rows.take(np.flatnonzero(fold == part)), rows.take(np.flatnonzero(fold != part))
            if held.n and kept.total_weight > 0 and len(np.unique(kept.labels)) > 1:
                single, classes = TemperatureScaling().fit_rows(kept).temperature_, class_temperatures(kept)
                for place, share in enumerate(SHARES):
                    scale = 1.0 / (single ** (1 - share) * classes**share)
                    losses[place] += held.total(vector_sums.in_float64(), scale, unbiased)[0]
            step("shares of class temperatures", part + 1, self.folds)
        self.share_losses_ = losses / rows.total_weight
        return SHARES[int(np.argmin(self.share_losses_.round(12)))]

    def _map(self, xp, logits, learned):
        return logits / like(xp, learned.temperatures_, logits)


def class_temperatures(rows: Rows) -> Array:
    """The class temperatures (K,) of lowest log loss."""
    return ClassTemperatureScaling(objective="nll").fit_rows(rows).temperatures_


class Top(NamedTuple):
    """The leading class of each row: its scaled logit, its index and Σ exp(s − peak) over the row."""

    peak: Array
    winner: Array
    mass: Array


EVERY = slice(None)


class ClassSearch:
    """Rows under class temperatures that change one at a time."""

    start_elements = BLOCK_ELEMENTS

    def __init__(self, rows: Any, grid: Array, n_bins: int) -> None:
        self.rows, self.grid, self.n_bins = rows, grid, n_bins
        self.weights = np.ones(rows.n) if rows.weights is None else rows.weights
        self.total = float(self.weights.sum())
        self.temperatures = np.ones(rows.n_classes)
        self.classes = searched_classes(rows)
        self._columns = np.empty((0, rows.n))

    def start(self) -> None:
        """Set all temperatures to the one grid value of lowest ECE, the smallest of equals."""

        def part(block):
            return start_sums(*self._scaled(block), self.weights[block], self.n_bins)

        blocks = row_blocks(self.rows.n, max(self.rows.n_classes, len(self.grid)), self.start_elements)
        ece = self._completed(*summed(part, blocks), self.grid, EVERY)
        self.temperatures[:] = self.grid[self._first_lowest(ece, EVERY)]

    def _scaled(self, block: slice) -> tuple[Array, Array]:
        """The confidence of each row at each temperature of the grid (n × grid), and whether it is right (n,)."""
        logits = self.rows.logits[block]
        return temperature_confidences(logits, 1.0 / self.grid), logits.argmax(axis=1) == self.rows.labels[block]

    def refresh(self) -> tuple[float, float]:
        """Recompute every row from its logits; the present ECE and accuracy."""
        self.top = self._in_full(self.temperatures)
        return self._ece(self.top), float(self.weights[self.top.winner == self.rows.labels].sum()) / self.total

    def sweep(self, preserve_accuracy: bool, fewest_hits: float, tell: Callable[[int], None]) -> bool:
        """Visit each class with fit rows once; whether any moved. `tell` is called with the number of classes done."""
        changed = False
        for j in self.classes:
            changed |= self.improve_class(j, preserve_accuracy, fewest_hits)
            tell(j + 1)
        return changed

    def improve_class(self, j: int, preserve_accuracy: bool, fewest_hits: float) -> bool:
        """Move class j to its best grid temperature, all others frozen; whether that changed it.

        With `preserve_accuracy` a value may leave no fewer rows right than there are now, or than `fewest_hits` where
        that is less.
        """
        values, labels = self._column(j), self.rows.labels
        peak, winner, mass = self._without(j, values)
        rows = ClassRows(values, peak, mass, winner > j, winner == labels, labels == j, self.weights)
        present = int(np.searchsorted(self.grid, self.temperatures[j]))
        positions = np.arange(len(self.grid))
        if preserve_accuracy:
            hits, now = class_hits(rows, self.grid), float(self.weights @ (self.top.winner == labels))
            spare = max(0.0, now - fewest_hits)
            positions = np.flatnonzero(hits >= hits[present] - spare - TIE * self.total)
        if len(positions) < 2:
            return False
        tried = self.grid[positions]

        def part(block):
            return class_sums(rows.take(block), tried, self.temperatures[j], self.n_bins)

        ece = np.full(len(self.grid), np.inf)
        ece[positions] = self._completed(*summed(part, row_blocks(self.rows.n, 1, BLOCK_ROWS)), tried, j)
        if not ece.min() < ece[present] - TIE:
            return False
        self.temperatures[j] = self.grid[self._first_lowest(ece, j)]
        # the leading class of each row with class j beside the others
        scores = values / self.temperatures[j]
        wins = (scores > peak) | ((scores == peak) & (winner > j))
        exponential = np.exp(-np.abs(scores - peak))
        mass = np.where(wins, 1.0 + mass * exponential, mass + exponential)
        self.top = Top(np.where(wins, scores, peak), np.where(wins, j, winner), mass)
        return True

    def _completed(self, gaps: Array, doubtful: Array, tried: Array, j: Any) -> Array:
        """ECE of each tried temperature of class j, the doubtful (row, position) pairs computed in full."""
        for position in np.unique(doubtful[:, 1]):
            chosen = doubtful[doubtful[:, 1] == position, 0]
            gaps[:, position] += self._gaps(self._in_full(self._with(j, tried[position]), chosen), chosen)
        return total_gap(gaps, self.total, axis=0)

    def _first_lowest(self, ece: Array, j: Any) -> int:
        """Position of the lowest ECE, the first of equals; near-ties are settled by computing all rows in full."""
        near = np.flatnonzero(ece <= ece.min() + TIE)
        if len(near) == 1:
            return int(near[0])
        return int(near[np.argmin([self._ece(self._in_full(self._with(j, self.grid[i]))) for i in near])])

    def _with(self, j: Any, temperature: float) -> Array:
        """The present temperatures, but for class j (`EVERY`: all classes)."""
        temperatures = self.temperatures.copy()
        temperatures[j] = temperature
        return temperatures

    def _ece(self, top: Top) -> float:
        return float(total_gap(self._gaps(top, EVERY), self.total))

    def _gaps(self, top: Top, rows: Any) -> Array:
        """Σ w·(correct − confidence) of each bin over some rows."""
        confidence = 1.0 / top.mass
        gaps = self.weights[rows] * ((top.winner == self.rows.labels[rows]) - confidence)
        return np.bincount(width_index(confidence, self.n_bins), gaps, self.n_bins)

    def _without(self, j: int, values: Array) -> Top:
        """The leading class of each row when class j is left out."""
        scores = values / self.temperatures[j]
        # where class j does not lead, the mass of the others is at least 1: nothing cancels
        mass = self.top.mass - np.exp(np.minimum(scores - self.top.peak, 0.0))
        others = Top(self.top.peak.copy(), self.top.winner.copy(), np.maximum(mass, 1.0))
        leads = np.flatnonzero(self.top.winner == j)
        for whole, part in zip(others, self._in_full(self.temperatures, leads, without=j), strict=True):
            whole[leads] = part
        return others

    def _in_full(self, temperatures: Array, chosen: Any = EVERY, without: int | None = None) -> Top:
        """The leading class of each (chosen) row of z/T, computed in full; one class may be left out."""
        rows = np.arange(self.rows.n)[chosen]

        def part(block):
            scores = self.rows.logits[rows[block]] / temperatures
            if without is not None:
                scores[:, without] = -np.inf
            winner = scores.argmax(axis=1)
            peak = scores[np.arange(len(scores)), winner]
            scores -= peak[:, None]
            return Top(peak, winner, np.exp(scores, out=scores).sum(axis=1))

        parts = map_blocks(part, row_blocks(len(rows), self.rows.n_classes, BLOCK_ELEMENTS) or [slice(0)])
        return Top(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _column(self, j: int) -> Array:
        inside = j % COLUMNS_AT_ONCE
        if inside == 0 or not len(self._columns):
            first = j - inside
            block = self.rows.logits[:, first : first + COLUMNS_AT_ONCE]
            self._columns = np.ascontiguousarray(block.T, dtype=np.float64)
        return self._columns[inside]


def summed(part: Callable[[slice], Any], blocks: list[slice]) -> tuple[Array, Array]:
    """Sums of the gaps over blocks, and all doubtful (row, position) pairs."""
    gaps, doubtful = zip(*map_blocks(part, blocks), strict=True)
    pairs = [found + np.array([block.start, 0]) for block, found in zip(blocks, doubtful, strict=True)]
    return np.sum(gaps, axis=0), np.concatenate(pairs)


def searched_classes(rows: Any) -> list[int]:
    """Return the classes whose temperatures are searched; others keep the first one, because no row shows theirs."""
    present = rows.present().tolist()
    return list(range(rows.n_classes)) if rows.every_class or len(present) < 2 else present


def class_search(rows: Any, grid: Array, n_bins: int) -> ClassSearch:
    """The search over rows in memory, or over rows on a GPU where that has a form there."""
    if rows.in_memory:
        return ClassSearch(rows, grid, n_bins)
    if rows.blocks.use_fused() and len(searched_classes(rows)) == rows.n_classes:
        from calibrant.kernels.torch.triton_classes import MAX_BINS, MAX_GRID

        if len(grid) <= MAX_GRID and n_bins <= MAX_BINS and rows.n < 1 << 31:
            return DeviceClassSearch(rows.blocks, grid, n_bins)
    return ClassSearch(rows.whole(), grid, n_bins)


class DeviceClassSearch(ClassSearch):
    """`ClassSearch` with the rows' state on the device; the answer is the same."""

    start_elements = 1 << 22

    def __init__(self, rows: Any, grid: Array, n_bins: int) -> None:
        from calibrant.kernels.torch import triton_classes
        from calibrant.kernels.torch.tensors import host

        rows.settle()
        self.device_rows = rows
        # what of the rows is on the host: everything but the logits
        columns = SimpleNamespace(n=rows.n, n_classes=rows.n_classes, labels=host(rows.target), weights=rows.weights)
        super().__init__(columns, grid, n_bins)
        self._put = rows.put
        self.launches = triton_classes.ClassLaunches(
            rows.tensor, rows.target, self._put(self.weights), self._put(grid), n_bins
        )

    def refresh(self) -> tuple[float, float]:
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
        self.top = Top(*map(self._host, (held.peak, held.winner, held.mass)))
        changed = self.improve_class(j, preserve_accuracy, fewest_hits)
        self._load(fewest_hits)
        return changed

    def _load(self, fewest_hits: float) -> None:
        positions = np.searchsorted(self.grid, self.temperatures).astype(np.int32)
        limits = (self.total, TIE, float(fewest_hits))
        self.launches.flags.zero_()
        self.launches.load(self._put(self.temperatures), self._put(positions), tuple(map(self._put, self.top)), limits)

    def _host(self, values: Any) -> Array:
        return values.cpu().numpy().copy()

    def _scaled(self, block: slice) -> tuple[Array, Array]:
        from calibrant.kernels.torch.tensors import first_maximum

        values = self.device_rows.tensor[block].double()
        confidence = block_confidences(values, (1.0 / self.grid).tolist())
        return self._host(confidence), self._host(first_maximum(values) == self.device_rows.target[block])

    def _in_full(self, temperatures: Array, chosen: Any = EVERY, without: int | None = None) -> Top:
        from calibrant.kernels.torch.rows import scaled_top

        rows = None if chosen is EVERY else self._put(chosen)
        return Top(*map(self._host, scaled_top(self.device_rows.tensor, self._put(temperatures), rows, without)))

    def _column(self, j: int) -> Array:
        return self._host(self.device_rows.tensor[:, j].double())
