"""Histogram binning."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.calibrators import maps
from calibrant.calibrators.base import Calibrator, fact
from calibrant.calibrators.confidence_bins import ConfidenceBins, fill_empty, mapped_columns, quantile_bins
from calibrant.calibrators.learned import CHANCE, EDGES, Learned
from calibrant.calibrators.solvers.positive_class import positive_columns, sigmoid_map, step_value
from calibrant.core.bins import check_n_bins, place
from calibrant.core.progress import step
from calibrant.core.rows import Rows
from calibrant.core.softmax import probability_log_odds, sigmoid


class HistogramBinning(Calibrator):
    """Replace a probability by the frequency of its equal-mass bin (Zadrozny & Elkan 2001).

    Parameters
    ----------
    n_bins : int
        Equal-mass bins of the fit data.
    mode : {"top_label", "one_vs_rest"}
        "top_label": the confidence of the predicted class becomes the accuracy of its bin; the other probabilities
        are rescaled to the rest and the prediction stays (see `calibrators/top_label.py`).
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

    @fact
    def keeps_prediction(self) -> bool:
        """One map of the top confidence keeps it; a map of the positive class need not."""
        return self.task_ != "binary" and self.mode == "top_label"

    @fact
    def additive(self) -> bool:
        """A map per class reads whole columns."""
        return self.mode == "top_label"

    def _fit_binary(self, rows: Rows) -> None:
        edges, bins = quantile_bins(positive_columns(rows), rows.weights, check_n_bins(self.n_bins))
        self.edges_, self.values_ = edges[None], bin_frequencies(bins)[None]

    def _transform_binary(self, scores: np.ndarray) -> np.ndarray:
        index = place(sigmoid(scores.astype(np.float64)), self.edges_[0])
        return probability_log_odds(self.values_[0][index]).astype(scores.dtype)

    def _map_binary(self, xp: Any, scores: Any, learned: Any) -> Any:
        share = step_value(
            xp, sigmoid_map(xp, xp.astype(scores, xp.float64)), learned.edges_[0, :], learned.values_[0, :]
        )
        return xp.astype(xp.log(share) - xp.log1p(-share), scores.dtype)

    def _fit(self, rows: Rows) -> None:
        n_bins = check_n_bins(self.n_bins)
        columns, n_columns = mapped_columns(rows, self.mode)
        self.edges_, self.values_ = np.empty((n_columns, n_bins + 1)), np.empty((n_columns, n_bins))
        weights = rows.weights
        for j, column in enumerate(columns):
            self.edges_[j], bins = quantile_bins(column, weights, n_bins)
            self.values_[j] = bin_frequencies(bins)
            step("histogram binning", j + 1, n_columns)

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        if learned.edges_.shape[0] == 1:
            bin_index = xp.place(xp.confidence(logits), learned.edges_[0])
            return maps.with_confidence(xp, logits, maps.log_odds(xp, learned.values_[0][bin_index]))
        mapped = xp.steps_by_class(xp.class_chances(logits), learned.edges_, learned.values_)
        return maps.normalised(xp, mapped, logits)


def bin_frequencies(bins: ConfidenceBins) -> np.ndarray:
    """Accuracy of each bin, at least half a row away from 0 and 1."""
    margin = 0.5 / np.maximum(bins.mass, 1.0)
    return fill_empty(np.clip(bins.accuracy, margin, 1.0 - margin), bins.filled)
