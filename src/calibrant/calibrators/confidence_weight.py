"""Confidence-based weight scaling."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.calibrators import maps
from calibrant.calibrators.base import Calibrator, fact
from calibrant.calibrators.confidence_bins import ConfidenceBins, fill_empty, quantile_bins, top_columns
from calibrant.calibrators.learned import EDGES, Learned
from calibrant.calibrators.solvers.folds import FOLDS, content_folds
from calibrant.core.bins import check_n_bins, mass_index, place, total_gap
from calibrant.core.errors import InputError
from calibrant.core.rows import Rows
from calibrant.kernels.bins import index_sums
from calibrant.kernels.rows import RowColumns

CANDIDATES = (1, 2, 3, 4, 5, 6, 8, 10, 11, 12, 13, 15, 20, 25, 30, 40)
"""Numbers of bins that "auto" tries."""


class ConfidenceWeightScaling(Calibrator):
    """Mix with the uniform distribution by a weight per confidence bin (CWS; Frenkel & Goldberger 2022, alg. 1).

    In bin i of the confidence, with accuracy A_i and mean confidence C_i, α_i = clip((A_i − 1/K)/(C_i − 1/K), 0, 1):
    an unclipped bin has confidence = accuracy exactly. A row whose weight is 0 becomes uniform, but its predicted
    class stays ahead by a few ulps.

    Parameters
    ----------
    n_bins : int or "auto"
        Equal-mass bins. "auto" takes the number of lowest held-out adaptive ECE in 5-fold cross-validation (on its own
        fit data every number of bins has an adaptive ECE of about 0).
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

    keeps_prediction = True
    additive = True
    learns = {"weights_": Learned(("B",), 0.0, 1.0), "edges_": EDGES}

    def __init__(self, n_bins: int | str = 15, *, monotone: bool = False, seed: int = 0) -> None:
        self.n_bins = n_bins
        self.monotone = monotone
        self.seed = seed

    @fact
    def keeps_ranking(self) -> bool:
        """Weights that do not fall keep the order of confidences."""
        return bool(self.monotone)

    def _fit(self, rows: Rows) -> None:
        top, weights = top_columns(rows), rows.weights
        if isinstance(self.n_bins, str):
            if self.n_bins != "auto":
                raise InputError(f"n_bins must be a whole number of at least 1, or 'auto', got {self.n_bins!r}")
            n_bins = choose_n_bins(top, weights, rows.n_classes, self.seed)
        else:
            n_bins = check_n_bins(self.n_bins)
        self.edges_, bins = quantile_bins(top, weights, n_bins)
        self.weights_ = bin_weights(bins, rows.n_classes)
        if self.monotone:
            self.weights_ = rising_weights(self.weights_, bins, rows.n_classes)

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        bin_index = xp.place(xp.confidence(logits), learned.edges_)
        return maps.mix_with_uniform(xp, logits, learned.weights_[bin_index])


def bin_weights(bins: ConfidenceBins, n_classes: int) -> np.ndarray:
    """α_i = clip((A_i − 1/K)/(C_i − 1/K), 0, 1) of each bin; 1 where the confidence is already at chance."""
    uniform = 1.0 / n_classes
    above = bins.confidence - uniform
    with np.errstate(invalid="ignore", divide="ignore"):
        weights = np.where(above > 0, (bins.accuracy - uniform) / above, 1.0)
    return fill_empty(np.clip(weights, 0.0, 1.0), bins.filled)


def rising_weights(weights: np.ndarray, bins: ConfidenceBins, n_classes: int) -> np.ndarray:
    """The non-decreasing weights of least Σ n_i (A_i − 1/K − α_i (C_i − 1/K))², before clipping to [0, 1]."""
    from sklearn.isotonic import isotonic_regression

    uniform = 1.0 / n_classes
    above = bins.confidence - uniform
    usable = bins.filled & (above > 0)
    if usable.sum() < 2:
        return weights
    target = (bins.accuracy[usable] - uniform) / above[usable]
    rising = isotonic_regression(target, sample_weight=bins.mass[usable] * above[usable] ** 2)
    # an unusable bin takes the weight of the usable one below it, so that nothing falls
    place = np.maximum(np.searchsorted(np.flatnonzero(usable), np.arange(len(weights)), side="right") - 1, 0)
    return np.clip(rising, 0.0, 1.0)[place]


def choose_n_bins(top: RowColumns, weights: np.ndarray | None, n_classes: int, seed: int) -> int:
    """The candidate of lowest adaptive ECE over held-out rows, the smallest of equals."""
    n_rows = len(top.confidence)
    # rounded, so that the last bits of a sum in another order do not change the fold
    rounded = Rows(top.confidence.round(9), top.correct.astype(np.int64), weights)
    fold = content_folds(rounded, FOLDS, seed)
    mass = np.ones(n_rows) if weights is None else weights
    candidates = [n_bins for n_bins in CANDIDATES if n_bins == 1 or n_bins * 10 <= mass.sum()]
    scores = []
    for n_bins in candidates:
        calibrated = top.confidence.copy()
        for held_out in (fold == part for part in range(FOLDS)):
            if not (mass[~held_out].sum() > 0 and held_out.any()):
                continue
            kept = RowColumns(*(column[~held_out] if len(column) else column for column in top))
            edges, bins = quantile_bins(kept, mass[~held_out], n_bins)
            alpha = bin_weights(bins, n_classes)[place(top.confidence[held_out], edges)]
            calibrated[held_out] = alpha * top.confidence[held_out] + (1 - alpha) / n_classes
        index = mass_index(calibrated, 15, mass)
        _, confidence, hits = index_sums(index, calibrated, top.correct, mass, 15)
        scores.append(total_gap(hits - confidence))
    return candidates[int(np.argmin(scores))]
