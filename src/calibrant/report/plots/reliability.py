"""The reliability diagram: accuracy against confidence, with counts, intervals and the noise band."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.core.bins import check_n_bins, mass_index, width_edges, width_index
from calibrant.core.errors import InputError
from calibrant.evaluation.consistency import drawn_right
from calibrant.evaluation.reliability import wilson_interval
from calibrant.report.plots.style import NEUTRAL, OVER, UNDER, axes_or_new, checked, percent_axis, tidy, top_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWS = 400
"""Label sets drawn for the band of chance."""


@dataclass(frozen=True)
class Reliability:
    """The non-empty bins of a reliability diagram, lowest confidence first.

    Attributes
    ----------
    n : rows in all bins together.
    left, right : where each bin begins and ends on the confidence axis.
    confidence, accuracy, count : mean confidence, share of right predictions and rows of each bin.
    share : the bin's part of all rows, or of their weight.
    low, high : Wilson interval of the accuracy.
    band_low, band_high : where the accuracy of a perfectly calibrated model would fall by chance alone.
    """

    n: int
    left: np.ndarray
    right: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray
    count: np.ndarray
    share: np.ndarray
    low: np.ndarray
    high: np.ndarray
    band_low: np.ndarray
    band_high: np.ndarray

    @property
    def over(self) -> float:
        """The part of the calibration error where the model is too sure."""
        return float(np.sum(self.share * np.maximum(0, self.confidence - self.accuracy)))

    @property
    def under(self) -> float:
        """The part of the calibration error where the model is not sure enough."""
        return float(np.sum(self.share * np.maximum(0, self.accuracy - self.confidence)))

    @property
    def ece(self) -> float:
        """Mean gap between confidence and accuracy over these bins."""
        return self.over + self.under

    def plot(self, ax: Axes | None = None, *, title: str | None = None, counts: bool = True) -> Axes:
        """Draw the diagram: bars from the diagonal to the accuracy, whiskers, the noise band, counts below."""
        ax = axes_or_new(ax)
        gap = self.accuracy - self.confidence
        ax.fill_between(*self._band_outline(), color=NEUTRAL, alpha=0.18, linewidth=0, label="chance alone")
        ax.plot([0, 1], [0, 1], color=NEUTRAL, linewidth=1, linestyle=(0, (4, 3)))
        for side, color, word in ((gap < 0, OVER, "too sure"), (gap >= 0, UNDER, "not sure enough")):
            width = (self.right - self.left)[side]
            ax.bar(
                self.left[side], gap[side], width, bottom=self.confidence[side], align="edge",
                color=color, alpha=0.25, linewidth=0, label=word if side.any() else None,
            )  # fmt: skip
        whiskers = np.clip([self.accuracy - self.low, self.high - self.accuracy], 0, None)
        ax.errorbar(
            self.confidence, self.accuracy, yerr=whiskers, fmt="o", markersize=4, color="black", elinewidth=1,
            capsize=0, label="accuracy, 95% interval",
        )  # fmt: skip
        ax.set(xlim=(0, 1), ylim=(0, 1))
        if counts:
            self._draw_counts(ax)
        ax.text(0.03, 0.97, f"ECE {self.ece:.2%}\nn = {self.n:,}", transform=ax.transAxes, va="top")
        ax.legend(loc="center left", frameon=False, fontsize="small", bbox_to_anchor=(0.0, 0.72))
        percent_axis(ax.xaxis)
        percent_axis(ax.yaxis)
        return tidy(ax, x="confidence", y="accuracy", title=title)

    def _band_outline(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # the band lies around the diagonal: the offset of each bin is carried over the bin's whole width
        x = np.stack([self.left, self.right], axis=1).ravel()
        shift = np.repeat(self.confidence, 2)
        low = np.clip(np.repeat(self.band_low, 2) - shift + x, 0, 1)
        high = np.clip(np.repeat(self.band_high, 2) - shift + x, 0, 1)
        return x, low, high

    def _draw_counts(self, ax: Axes) -> None:
        twin = ax.twinx()
        twin.bar(self.left, self.count, self.right - self.left, align="edge", color=NEUTRAL, alpha=0.35, linewidth=0)
        twin.set_ylim(0, 5 * max(1, self.count.max(initial=1)))
        twin.set_yticks([0, int(self.count.max(initial=1))])
        twin.tick_params(labelsize="x-small", length=2, labelcolor=NEUTRAL)
        for side in ("top", "left"):
            twin.spines[side].set_visible(False)


def reliability(
    probabilities: Any,
    labels: Any,
    *,
    n_bins: int = 15,
    binning: str = "width",
    from_logits: bool = False,
) -> Reliability:
    """Bins of the top label's confidence with accuracy, intervals and the band of chance.

    A_b = mean of 1{prediction = label}, C_b = mean confidence in bin b (Guo et al. 2017, eq. 1-2). The interval
    around A_b is Wilson's at 95%. The band holds 95% of the accuracies that labels drawn from the confidences
    themselves give (Bröcker & Smith 2007).

    Parameters
    ----------
    probabilities : (n, K) probabilities, or logits with `from_logits=True`.
    labels : (n,) class indices.
    binning : "width" for bins (lo, hi] of equal width, "mass" for bins of equal counts.

    Examples
    --------
    >>> bins = reliability([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]], [0, 1, 1], n_bins=2)
    >>> bins.count.tolist(), round(float(bins.accuracy[0]), 3), round(bins.ece, 3)
    ([3], 0.667, 0.1)
    """
    matrix, targets = checked(probabilities, labels, from_logits=from_logits)
    return reliability_of_columns(*top_label(matrix, targets), n_bins=n_bins, binning=binning)


def reliability_diagram(
    probabilities: Any,
    labels: Any,
    *,
    n_bins: int = 15,
    binning: str = "width",
    from_logits: bool = False,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw `reliability(...)` and return the axes.

    Examples
    --------
    >>> ax = reliability_diagram([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]], [0, 1, 1], n_bins=2)
    >>> ax.get_xlabel()
    'confidence'
    """
    bins = reliability(probabilities, labels, n_bins=n_bins, binning=binning, from_logits=from_logits)
    return bins.plot(ax, title=title)


def reliability_of_columns(
    confidence: np.ndarray,
    correct: np.ndarray,
    *,
    n_bins: int = 15,
    binning: str = "width",
    weights: np.ndarray | None = None,
) -> Reliability:
    """The same bins from a column of confidences and a column of right (True) or wrong (False), weighted or not."""
    n_bins = check_n_bins(n_bins)
    confidence = np.asarray(confidence)
    if binning == "width":
        index, edges = width_index(confidence, n_bins), width_edges(n_bins)
        left, right = edges[:-1], edges[1:]
    elif binning == "mass":
        index = mass_index(confidence, n_bins, weights)
        left, right = _mass_spans(confidence, index, n_bins)
    else:
        raise InputError(f'binning must be "width" or "mass", got {binning!r}')
    mass = np.ones(len(confidence)) if weights is None else np.asarray(weights, dtype=np.float64)

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(index, weights=values, minlength=n_bins)

    values = np.clip(confidence.astype(np.float64), 0, 1)
    bin_mass = total(mass)
    full = bin_mass > 0
    size = np.where(full, bin_mass, 1)
    mean_confidence, accuracy = total(mass * values) / size, total(mass * np.asarray(correct)) / size
    # Kish's number of equally weighted rows that would be as noisy: the plain count when there are no weights
    effective = np.where(full, size**2 / np.maximum(total(mass**2), 1e-300), 1)
    low, high = wilson_interval(accuracy, effective)
    drawn = drawn_right(values, index, n_bins, weights, draws=DRAWS, seed=0)
    band_low, band_high = np.quantile(drawn, [0.025, 0.975], axis=0) / size
    count = np.bincount(index, minlength=n_bins)
    columns = (left, right, mean_confidence, accuracy, count, bin_mass / mass.sum(), low, high, band_low, band_high)
    return Reliability(len(confidence), *(column[full] for column in columns))


def _mass_spans(confidence: np.ndarray, index: np.ndarray, n_bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the rows of each equal-mass bin begin and end."""
    left, right = np.full(n_bins, np.inf), np.full(n_bins, -np.inf)
    np.minimum.at(left, index, confidence)
    np.maximum.at(right, index, confidence)
    return left, right
