"""Methods of confidence bins: a frequency, a temperature or a weight of the uniform distribution for each bin."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from calibrant.calibrators import maps
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.confidence_bins import (
    ConfidenceBins,
    TopColumns,
    fill_empty,
    mapped_columns,
    quantile_bins,
    top_columns,
)
from calibrant.calibrators.learned import CHANCE, EDGES, SMALL, Learned
from calibrant.calibrators.solvers.folds import FOLDS, content_folds
from calibrant.calibrators.solvers.temperature import temperature_grid, warn_no_optimum
from calibrant.core.arrays import Array
from calibrant.core.bins import check_n_bins, mass_index, place, total_gap
from calibrant.core.errors import InputError
from calibrant.core.progress import step
from calibrant.core.rows import Rows
from calibrant.core.softmax import sigmoid
from calibrant.core.statistic import statistic
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.bins import index_sums
from calibrant.kernels.rows import TOP, scan_logits
from calibrant.kernels.scaling import row_moments

CANDIDATES = (1, 2, 3, 4, 5, 6, 8, 10, 11, 12, 13, 15, 20, 25, 30, 40)
"""Numbers of bins that "auto" tries."""

GRID_GAIN = 1e-5
"""How much closer to the accuracy a grid temperature must bring a bin to be taken."""

LOWEST, HIGHEST = 1e-6, 1e3
"""Inverse temperatures that count as 0 and as infinity."""

TRUSTED_STEP = 0.02
"""A relative step this small is taken without another look: its error is of the order of its fourth power."""

MAX_STEPS = 60

SAMPLE_SHARE = 16
"""One row in so many gives the first estimate."""


class WeightScaling(Calibrator, keeps_prediction=True, keeps_ranking=True, additive=True, few_parameters=True):
    """Mix the probabilities with the uniform distribution, α·p + (1 − α)/K (WS; Frenkel & Goldberger 2022, eq. 6).

    With A_i and C_i the accuracy and mean confidence of M equal-mass bins of the confidence, α in [0, 1] is fitted so
    that α·C_i + (1 − α)/K comes close to A_i. Order is kept, of classes in a row and of rows by confidence.

    Parameters
    ----------
    objective : {"least_squares", "adaptive_ece_l1"}
        "least_squares": α = Σ (C_i − 1/K)(A_i − 1/K) / Σ (C_i − 1/K)², what the paper's tables contain.
        "adaptive_ece_l1": the exact minimiser of the adaptive ECE (eq. 8), a weighted median of
        (A_i − 1/K)/(C_i − 1/K).
    n_bins : int
        Equal-mass bins of the confidence.

    Attributes
    ----------
    weight_ : float
        The learned α.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import WeightScaling
    >>> logits = np.log([[0.6, 0.3, 0.1]] * 4)
    >>> fitted = WeightScaling(n_bins=1).fit(logits, [0, 0, 1, 2])
    >>> round(fitted.weight_, 4)
    0.625
    >>> fitted.predict_proba(logits[:1]).round(4)
    array([[0.5   , 0.3125, 0.1875]])
    """

    learns = {"weight_": Learned((), 0.0)}

    def __init__(self, objective: str = "least_squares", *, n_bins: int = 13) -> None:
        self.objective = objective
        self.n_bins = n_bins

    def _fit(self, rows: Rows) -> None:
        if self.objective not in ("least_squares", "adaptive_ece_l1"):
            raise InputError(f"objective must be 'least_squares' or 'adaptive_ece_l1', got {self.objective!r}")
        n_bins, top = check_n_bins(self.n_bins), top_columns(rows)
        bins = ConfidenceBins.of(top, rows.weights, mass_index(top.confidence, n_bins, rows.weights), n_bins)
        confidence, accuracy = (one[bins.filled] - 1.0 / rows.n_classes for one in (bins.confidence, bins.accuracy))
        if self.objective == "least_squares":
            # bins count alike, as they hold equal mass
            squares = float(confidence @ confidence)
            weight = float(confidence @ accuracy) / squares if squares > 0 else 1.0
        else:
            # Σ mass·|A − α·C| is lowest at the median of A/C under weights mass·C, the lower one if there are two
            leverage, weight = bins.mass[bins.filled] * confidence, 1.0
            if leverage.sum() > 0:
                ratio = accuracy[leverage > 0] / confidence[leverage > 0]
                order = np.argsort(ratio, kind="stable")
                below = np.cumsum(leverage[leverage > 0][order])
                weight = ratio[order][np.searchsorted(below, 0.5 * below[-1])]
        self.weight_ = float(np.clip(weight, 0.0, 1.0))

    def _map(self, xp, logits, learned):
        return maps.mix_with_uniform(xp, logits, learned.weight_)


class ConfidenceWeightScaling(
    Calibrator,
    keeps_prediction=True,
    additive=True,
    has_steps=True,
    # weights that do not fall keep the order of confidences
    keeps_ranking=lambda own: bool(own.monotone),
):
    """Mix with the uniform distribution by a weight per confidence bin (CWS; Frenkel & Goldberger 2022, alg. 1).

    In bin i of the confidence, with accuracy A_i and mean confidence C_i, α_i = clip((A_i − 1/K)/(C_i − 1/K), 0, 1):
    an unclipped bin has confidence = accuracy exactly. A row whose weight is 0 becomes uniform, but its predicted
    class stays ahead by a few ulps.

    Parameters
    ----------
    n_bins : int, "auto" or "fit"
        Equal-mass bins: the paper's sets of equal size, except that rows of equal confidence stay together. "auto"
        takes the number of lowest held-out adaptive ECE (15 bins) in 5-fold cross-validation, "fit" that of lowest
        adaptive ECE on the fit data, as the paper does.
    monotone : bool
        Let the weights never fall from bin to bin of rising confidence (isotonic regression of A_i − 1/K on
        C_i − 1/K). Confidences then keep their order over all rows, which plain CWS reverses where a bin has a
        smaller weight than the one below it; a bin changed so no longer has confidence = accuracy.

    Attributes
    ----------
    weights_ : array (M,)
        α of each bin; a bin without fit rows takes that of the nearest bin.
    edges_ : array (M + 1,)
        Bin i holds confidences in (edges_[i], edges_[i + 1]].

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import ConfidenceWeightScaling
    >>> logits = np.log([[0.6, 0.3, 0.1]] * 4)
    >>> fitted = ConfidenceWeightScaling(n_bins=1).fit(logits, [0, 0, 1, 2])
    >>> fitted.weights_
    array([0.625])
    """

    learns = {"weights_": Learned(("B",), 0.0, 1.0), "edges_": EDGES}

    def __init__(self, n_bins: int | str = 15, *, monotone: bool = False, seed: int = 0) -> None:
        self.n_bins = n_bins
        self.monotone = monotone
        self.seed = seed

    def _fit(self, rows: Rows) -> None:
        top, n_bins = top_columns(rows), self.n_bins
        if isinstance(n_bins, str):
            if n_bins not in {"auto", "fit"}:
                raise InputError(f"n_bins must be a whole number of at least 1, 'auto' or 'fit', got {n_bins!r}")
            n_bins = choose_n_bins(top, rows, self.seed, FOLDS if n_bins == "auto" else 1)
        self.edges_, bins = quantile_bins(top, rows.weights, check_n_bins(n_bins))
        self.weights_ = bin_weights(bins, rows.n_classes, rising=self.monotone)

    def _map(self, xp, logits, learned):
        bin_index = xp.bins_by_class(xp.confidence(logits), learned.edges_[None, :])
        return maps.mix_with_uniform(xp, logits, learned.weights_[bin_index])


def bin_weights(bins: ConfidenceBins, n_classes: int, *, rising: bool = False) -> Array:
    """α_i = clip((A_i − 1/K)/(C_i − 1/K), 0, 1) of each bin; 1 where the confidence is already at chance.

    `rising` are the non-decreasing weights of least Σ n_i (A_i − 1/K − α_i (C_i − 1/K))², before clipping.
    """
    uniform = 1.0 / n_classes
    above = bins.confidence - uniform
    with np.errstate(invalid="ignore", divide="ignore"):
        weights = np.where(above > 0, (bins.accuracy - uniform) / above, 1.0)
    usable = np.flatnonzero(bins.filled & (above > 0))
    if not rising or len(usable) < 2:
        return fill_empty(np.clip(weights, 0.0, 1.0), bins.filled)
    from sklearn.isotonic import isotonic_regression

    weights = isotonic_regression(weights[usable], sample_weight=bins.mass[usable] * above[usable] ** 2)
    # an unusable bin takes the weight of the usable one below it, so that nothing falls
    below = np.maximum(np.searchsorted(usable, np.arange(len(above)), side="right") - 1, 0)
    return np.clip(weights, 0.0, 1.0)[below]


def choose_n_bins(top: TopColumns, rows: Rows, seed: int, n_folds: int) -> int:
    """The candidate of lowest adaptive ECE over held-out rows, or the fit rows for one fold; the smallest of equals."""
    # rounded, so that the last bits of a sum in another order do not change the fold
    rounded = Rows(top.confidence.round(9), top.correct.astype(np.int64), rows.weights)
    mass, fold = rows.mass(), content_folds(rounded, n_folds, seed) if n_folds > 1 else np.zeros(rows.n, np.intp)
    candidates = [n_bins for n_bins in CANDIDATES if n_bins == 1 or n_bins * 10 <= mass.sum()]
    scores = []
    for n_bins in candidates:
        calibrated = top.confidence.copy()
        for held_out in (fold == part for part in range(n_folds)):
            used = ~held_out if n_folds > 1 else held_out
            if mass[used].sum() > 0:
                edges, bins = quantile_bins(TopColumns(*(one[used] for one in top)), mass[used], n_bins)
                alpha = bin_weights(bins, rows.n_classes)[place(top.confidence[held_out], edges)]
                calibrated[held_out] = alpha * top.confidence[held_out] + (1 - alpha) / rows.n_classes
        _, confidence, hits = index_sums(mass_index(calibrated, 15, mass), calibrated, top.correct, mass, 15)
        scores.append(total_gap(hits - confidence))
    return candidates[int(np.argmin(scores))]


class ProbabilityMap(
    Calibrator,
    is_base=True,
    has_steps=True,
    # one map of the top confidence keeps it; a map of the positive class need not
    keeps_prediction=lambda own: own.task_ != "binary" and own.mode == "top_label",
    # a map per class reads whole columns
    additive=lambda own: own.mode == "top_label",
):
    """Base of maps of the top confidence (one map), or of each class's probability; or of that of a positive class.

    A method writes `_mapped(xp, chances, learned)`: probabilities (n×C) through the C maps, as many as `values_` has.
    """

    mode: str
    _mapped: Any

    def _map(self, xp, logits, learned):
        if learned.values_.shape[0] == 1:
            accuracy = self._mapped(xp, xp.confidence(logits), learned)
            return maps.with_confidence(xp, logits, maps.log_odds(xp, accuracy))
        mapped = self._mapped(xp, xp.class_chances(logits), learned)
        return maps.like(xp, maps.log_probabilities(xp, mapped / xp.sum(mapped, axis=1, keepdims=True)), logits)


class HistogramBinning(ProbabilityMap):
    """Replace a probability by the frequency of its equal-mass bin (Zadrozny & Elkan 2001).

    Parameters
    ----------
    n_bins : int
        Equal-mass bins of the fit data.
    mode : {"top_label", "one_vs_rest"}
        "top_label": the confidence of the predicted class becomes the accuracy of its bin; the other probabilities
        are rescaled to the rest and the prediction stays (see `maps.with_mapped_confidence`).
        "one_vs_rest": every class's probability is replaced by the frequency of the class in the bin, and the rows
        are normalised; predictions may change.

    Of one score per row the probability of the positive class is replaced by the frequency of positives in its bin,
    whatever the mode.

    Attributes
    ----------
    edges_ : array (1 or K, M + 1)
        Bin i holds probabilities in (edges_[·, i], edges_[·, i + 1]].
    values_ : array (1 or K, M)
        Frequency of each bin, kept half a row away from 0 and 1 so that no outcome gets probability 0.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import HistogramBinning
    >>> logits = np.array([[2.0, 0.0]] * 4)
    >>> HistogramBinning(n_bins=1).fit(logits, [0, 0, 0, 1]).predict_proba(logits[:1]).round(4)
    array([[0.75, 0.25]])
    """

    learns = {"edges_": EDGES._replace(shape=("C", "B+1")), "values_": Learned(("C", "B"), *CHANCE)}

    def __init__(self, n_bins: int = 15, *, mode: str = "top_label") -> None:
        self.n_bins = n_bins
        self.mode = mode

    def _fit_binary(self, rows: Rows) -> None:
        positive = TopColumns(sigmoid(rows.logits.astype(np.float64)), rows.labels, rows.labels == 1)
        self._fit_columns([positive], 1, rows.weights)

    def _fit(self, rows: Rows) -> None:
        self._fit_columns(*mapped_columns(rows, self.mode), rows.weights)

    def _fit_columns(self, columns: Any, n_columns: int, weights: Array | None) -> None:
        n_bins = check_n_bins(self.n_bins)
        self.edges_, self.values_ = np.empty((n_columns, n_bins + 1)), np.empty((n_columns, n_bins))
        for j, column in enumerate(columns):
            self.edges_[j], bins = quantile_bins(column, weights, n_bins)
            # at least half a row away from 0 and 1
            margin = 0.5 / np.maximum(bins.mass, 1.0)
            self.values_[j] = fill_empty(np.clip(bins.accuracy, margin, 1.0 - margin), bins.filled)
            step("histogram binning", j + 1, n_columns)

    def _map_binary(self, xp, scores, learned):
        chances = maps.sigmoid(xp, maps.wide(xp, scores))[:, None]
        return maps.like(xp, maps.log_odds(xp, self._mapped(xp, chances, learned)[:, 0]), scores)

    def _mapped(self, xp, chances, learned):
        return xp.by_class(learned.values_, xp.bins_by_class(chances, learned.edges_))


class BinTemperatureScaling(Calibrator, keeps_prediction=True, additive=True, has_steps=True):
    """Divide the logits by a temperature that depends on the row's confidence bin.

    Parameters
    ----------
    objective : {"gap", "nll"}
        "gap": Confidence-CTS (Frenkel & Goldberger 2022, eq. 5). T_i solves C_i(T_i) = A_i, the mean confidence of
        bin i after scaling against its accuracy; the confidence falls in T, so there is one root.
        "nll": BTS (Ji et al. 2019). T_i minimises the negative log-likelihood of the rows of bin i.
    n_bins : int
        Equal-mass bins of the uncalibrated confidence.
    grid : sequence of temperatures, or None
        None solves exactly. With a grid, "gap" starts every bin at T = 1 and takes a grid value when it lowers
        |A_i − C_i| by more than 1e-5, A_i clipped to [0.01, 0.99], as the paper's tables do; "nll" takes the grid
        value of the lowest NLL.

    Attributes
    ----------
    temperatures_ : array (M,)
        A bin without fit rows takes the temperature of the nearest bin.
    edges_ : array (M + 1,)
        Bin i holds confidences in (edges_[i], edges_[i + 1]].
    objective_trace_ : weighted mean |A_i − C_i|, or mean NLL, at the start of each pass over the logits.

    Notes
    -----
    A bin of n rows that are all right has no finite answer (T = 0); it is solved for a confidence of 1 − 1/(2n). A bin
    no better than chance ends at the largest temperature, 10⁶: uniform, with the prediction still ahead.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import BinTemperatureScaling
    >>> logits = np.array([[2.0, 0.0]] * 4)
    >>> BinTemperatureScaling(n_bins=1).fit(logits, [0, 0, 0, 1]).predict_proba(logits[:1]).round(4)
    array([[0.75, 0.25]])
    """

    learns = {"temperatures_": Learned(("B",), SMALL), "edges_": EDGES}

    def __init__(
        self, objective: str = "gap", *, n_bins: int = 15, grid: Sequence[float] | Array | None = None
    ) -> None:
        self.objective = objective
        self.n_bins = n_bins
        self.grid = grid

    def _fit(self, rows: Rows) -> None:
        if self.objective not in {"gap", "nll"}:
            raise InputError(f"objective must be 'gap' or 'nll', got {self.objective!r}")
        top, gap = top_columns(rows), self.objective == "gap"
        self.edges_, bins = quantile_bins(top, rows.weights, check_n_bins(self.n_bins))
        equations = (KeptBinEquations if rows.in_memory else BinEquations)(rows, self.edges_, top, bins, gap)
        if not gap and equations.matches_accuracy[bins.filled].all():
            warn_no_optimum("all rows are predicted correctly", "each bin was fitted to a confidence just below 1")
        if self.grid is None:
            inverse = np.ones(len(bins.mass))
            if rows.n >= 64 * len(inverse):
                # a sample gives the start where the data are large
                inverse, _ = equations.sample().descend(inverse)
            inverse, trace = equations.descend(inverse)
            temperatures = 1.0 / inverse
            self.objective_trace_, self.n_iter_ = np.array(trace), len(trace)
        else:
            temperatures = self._search(equations, temperature_grid(self.grid))
        self.temperatures_ = fill_empty(temperatures, bins.filled)

    def _search(self, equations: BinEquations, grid: Array) -> Array:
        gap, accuracy = self.objective == "gap", np.clip(equations.bins.accuracy, 0.01, 0.99)

        def badness(temperature: float) -> Array:
            label_gap, confidence, *_, log_mass = equations.means(np.full_like(accuracy, 1.0 / temperature))
            return np.abs(accuracy - confidence) if gap else log_mass - label_gap / temperature

        gain, best = GRID_GAIN if gap else 0.0, np.ones_like(accuracy)
        lowest = badness(1.0) - gain if gap else np.full_like(best, np.inf)
        for position, temperature in enumerate(grid):
            value = badness(temperature)
            taken = value < lowest
            best[taken] = temperature
            lowest[taken] = value[taken] - gain
            step("bin temperatures", position + 1, len(grid))
        return best

    def _map(self, xp, logits, learned):
        bin_index = xp.bins_by_class(xp.confidence(logits), learned.edges_[None, :])
        inverse = maps.like(xp, (1.0 / learned.temperatures_)[bin_index], logits)
        return xp.keep_prediction(logits * inverse, maps.prediction(xp, logits))


class BinEquations:
    """f_i(β) = 0 for each bin i, f increasing in the inverse temperature β; all are solved together.

    Where a bin matches its accuracy, f = C_i(β) − target, the mean confidence after scaling; else f is the derivative
    of the bin's mean NLL, E_β[z] − z_y averaged over its rows. A pass over rows that are not in memory serves every
    bin, and the edges place a row anew in each.
    """

    def __init__(self, rows: Rows, edges: Array, top: TopColumns, bins: ConfidenceBins, matches_accuracy: bool) -> None:
        self.rows, self.edges, self.bins, self._wanted = rows, edges, bins, matches_accuracy
        self._kernels = scan_logits.form(rows.size), row_moments.form(rows.size)
        # a bin that is right throughout has its best temperature at 0: it aims half a row below certainty
        perfect = bins.accuracy == 1.0
        self.target = np.where(perfect, 1.0 - 0.5 / np.maximum(bins.mass, 1.0), bins.accuracy)
        self.matches_accuracy = matches_accuracy | perfect

    def sample(self) -> BinEquations:
        """The same equations of a sample in memory."""
        rows = self.rows.sample(self.rows.n // SAMPLE_SHARE).whole()
        top = top_columns(rows)
        bins = ConfidenceBins.of(top, rows.weights, place(top.confidence, self.edges), len(self.target))
        return KeptBinEquations(rows, self.edges, top, bins, self._wanted)

    def evaluate(self, inverse: Array, active: Array) -> tuple[Array, float]:
        """f and its first three derivatives of each active bin (4×M), and the objective over all bins."""
        means = self.means(inverse, active)
        label_gap, confidence, expected, log_mass = means[0], means[1:5], means[5:9], means[9]
        found = np.where(self.matches_accuracy, confidence, expected)
        found[0] -= np.where(self.matches_accuracy, self.target, label_gap)
        gap, filled = self.matches_accuracy.all(), self.bins.filled
        loss = np.abs(self.bins.accuracy - confidence[0]) if gap else log_mass - inverse * label_gap
        return found, float(np.average(np.nan_to_num(loss[filled]), weights=self.bins.mass[filled]))

    def means(self, inverse: Array, active: Array | None = None) -> Array:
        """The means over each (active) bin of the ten columns of `bin_moments`, at inverse temperatures (M,)."""
        sums = self._sums(inverse, active)
        with np.errstate(invalid="ignore"):
            return sums[1:] / sums[0]

    def _sums(self, inverse: Array, active: Array | None) -> Array:
        return self.rows.total(bin_moments, self._kernels, self.edges, inverse)[0]

    def descend(self, inverse: Array) -> tuple[Array, list[float]]:
        """Inverse temperatures (M,) where every f_i is 0, and the objective at the start of each pass.

        Householder's third-order steps, each inside the bracket its bin has so far.
        """
        low, high = np.full_like(inverse, LOWEST), np.full_like(inverse, HIGHEST)
        active, trace = self.bins.filled.copy(), []
        for _ in range(MAX_STEPS):
            (value, slope, bend, turn), objective = self.evaluate(inverse, active)
            trace.append(objective)
            low = np.where(value < 0, np.maximum(low, inverse), low)
            high = np.where(value > 0, np.minimum(high, inverse), high)
            with np.errstate(all="ignore"):
                newton = value / slope
                bent = newton * (bend / slope)
                factor = (1.0 - 0.5 * bent) / (1.0 - bent + newton * newton * (turn / slope) / 6.0)
                # by f''/f' alone, as in Halley's step, where it and f'''/f' say too much
                halley = 1.0 / np.maximum(1.0 - 0.5 * bent, 0.5)
                target = inverse - newton * np.where((factor > 0.5) & (factor < 2.0), factor, halley)
            flat = ~(slope > 0)
            target = np.where(flat, inverse, np.clip(target, inverse / 8, inverse * 8))
            outside = ~flat & ~((target > low) & (target < high))
            at_limit = ((inverse <= LOWEST) & (value > 0)) | ((inverse >= HIGHEST) & (value < 0))
            target = np.where(outside, np.clip(np.sqrt(low * high), inverse / 8, inverse * 8), target)
            done = flat | at_limit | (value == 0) | (np.abs(target - inverse) <= TRUSTED_STEP * inverse)
            inverse = np.where(active & ~at_limit, target, inverse)
            active &= ~done
            if not active.any():
                break
        return inverse, trace


class KeptBinEquations(BinEquations):
    """The same over rows in memory: the bin of each row is kept, and bins that are solved need no more passes."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        rows, _, top, bins, _ = given
        gap = _label_gaps(rows.logits, rows.labels, top.prediction)
        with np.errstate(invalid="ignore"):
            self.label_gap = np.bincount(bins.index, rows.mass() * gap, len(self.target)) / bins.mass

    def sample(self) -> BinEquations:
        """An even sample of every bin, with weight in each bin that has any."""
        order = np.lexsort((-self.rows.mass(), self.bins.index))
        first = np.flatnonzero(np.diff(self.bins.index[order], prepend=-1))
        chosen = order[np.union1d(np.arange(0, len(order), SAMPLE_SHARE), first)]
        some = copy(self)
        # the label's gap stays that of all rows: where a sample is right throughout, its own would have no optimum
        some.rows, some.bins = self.rows.take(chosen), replace(self.bins, index=self.bins.index[chosen])
        return some

    def _sums(self, inverse: Array, active: Array | None) -> Array:
        rows, index = self.rows, self.bins.index
        if active is not None and active[index].mean() <= 0.7:
            chosen = np.flatnonzero(active[index])
            rows, index = rows.take(chosen), index[chosen]

        def part(block):
            return self._kernels[1](rows.logits[block], inverse[index[block]])

        moments = np.concatenate(map_blocks(part, row_blocks(len(index), rows.n_classes)))
        return summed_by_bin(index, moments, self.label_gap[index], rows.weights, len(inverse))[0]


@statistic
def bin_moments(logits, labels, weights, kernels, edges, inverse):  # noqa: PLR0917 (a statistic's parameters)
    """Σw of each bin, and Σw times each of the ten columns that the equations average, 11×M."""
    scan, moments = kernels
    logits = np.ascontiguousarray(logits)
    top, _ = scan(logits, labels, TOP)
    index = place(top.confidence, edges)
    label_gap = _label_gaps(logits, labels, top.prediction)
    return summed_by_bin(index, moments(logits, inverse[index]), label_gap, weights, len(inverse))


@bin_moments.on_device
def _(rows, _, edges, inverse):
    from calibrant.kernels.torch.rows import label_moments

    index = place(rows.top()[0], edges)
    gaps, moments = rows.per_row(label_moments, rows.put(inverse[index]))
    return summed_by_bin(index, moments, gaps, rows.weights, len(inverse))


def _label_gaps(logits, labels, prediction):
    """The label's logit minus the highest of each row."""
    every = np.arange(len(labels))
    return logits[every, labels].astype(np.float64) - logits[every, prediction]


def summed_by_bin(index, moments, label_gap, weights, n_bins):
    """`bin_moments` from the bin, the moments (n×5) and the label's gap to the peak of each row."""
    confidence, expected = row_terms(moments)
    mass = np.ones(len(index)) if weights is None else weights
    columns = (mass, *(mass * column for column in (label_gap, *confidence, *expected, np.log(moments[:, 0]))))
    return (np.stack([np.bincount(index, column, n_bins) for column in columns]),)


def row_terms(moments: Array) -> tuple[Array, Array]:
    """The confidence p and the mean E[x] of each row at its β, each with its first three derivatives by β (4×n).

    From Σ exp(β·x)·x^k, k = 0 … 4: p is one over the first of them, E[x] has the cumulants of x for derivatives.
    """
    mean, second, third, fourth = moments[:, 1:].T / moments[:, 0]
    square = mean * mean
    skew = third - mean * (3 * second - 2 * square)
    tail = fourth - 4 * mean * skew - 3 * second * second + 2 * square * square
    falling = np.stack([np.ones_like(mean), -mean, 2 * square - second, 6 * mean * (second - square) - third])
    return falling / moments[:, 0], np.stack([mean, second - square, skew, tail])
