"""Confidence against accuracy: the reliability diagram, several models in one, and class by class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.evaluation.consistency import reliability_bins
from calibrant.metrics.classwise import classwise_over_under
from calibrant.metrics.inputs import check, top_label
from calibrant.metrics.reliability import Reliability
from calibrant.report.plots.style import NEUTRAL, OVER, PALETTE, UNDER, axes_or_new, in_turn, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def reliability(
    probabilities: Any,
    labels: Any,
    *,
    n_bins: int = 15,
    binning: str = "width",
    from_logits: bool = False,
) -> Reliability:
    """Bins of the top label's confidence with accuracy, intervals and the band of chance; NaN in an empty bin.

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
    >>> bins.count.tolist(), round(float(bins.accuracy[1]), 3), round(bins.ece, 3)
    ([0, 3], 0.667, 0.1)
    """
    confidence, correct, _ = top_label(probabilities, labels, None, from_logits)
    return reliability_bins(confidence, correct, n_bins=n_bins, binning=binning)


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
    return draw_reliability(bins, ax, title=title)


def draw_reliability(
    bins: Reliability, ax: Axes | None = None, *, title: str | None = None, counts: bool = True
) -> Axes:
    """Draw bins that have intervals: bars from the diagonal to the accuracy, whiskers, the noise band, counts below."""
    ax = axes_or_new(ax)
    gap = bins.accuracy - bins.confidence
    ax.fill_between(*_band_outline(bins), color=NEUTRAL, alpha=0.18, linewidth=0, label="chance alone")
    ax.plot([0, 1], [0, 1], color=NEUTRAL, linewidth=1, linestyle=(0, (4, 3)))
    for side, color, word in ((gap < 0, OVER, "too sure"), (gap >= 0, UNDER, "not sure enough")):
        width = (bins.upper - bins.lower)[side]
        ax.bar(
            bins.lower[side], gap[side], width, bottom=bins.confidence[side], align="edge",
            color=color, alpha=0.25, linewidth=0, label=word if side.any() else None,
        )  # fmt: skip
    whiskers = np.clip([bins.accuracy - bins.accuracy_low, bins.accuracy_high - bins.accuracy], 0, None)
    ax.errorbar(
        bins.confidence, bins.accuracy, yerr=whiskers, fmt="o", markersize=4, color="black", elinewidth=1,
        capsize=0, label="95% interval",
    )  # fmt: skip
    ax.set(xlim=(0, 1), ylim=(0, 1))
    if counts:
        _draw_counts(bins, ax)
    heading = f"ECE {bins.ece:.2%}, n = {bins.n:,}"
    return tidy(ax, x="confidence", y="accuracy", title=title, heading=heading, percent="xy")


def _band_outline(bins: Reliability) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    # the band lies around the diagonal: the offset of each bin is carried over the bin's whole width
    full = bins.filled
    x = np.stack([bins.lower[full], bins.upper[full]], axis=1).ravel()
    shift = np.repeat(bins.confidence[full], 2)
    low, high = (np.clip(np.repeat(band[full], 2) - shift + x, 0, 1) for band in (bins.noise_low, bins.noise_high))
    return x, low, high


def _draw_counts(bins: Reliability, ax: Axes) -> None:
    twin, most = ax.twinx(), int(bins.count.max(initial=1))
    twin.bar(bins.lower, bins.count, bins.upper - bins.lower, align="edge", color=NEUTRAL, alpha=0.35, linewidth=0)
    twin.set_ylim(0, 5 * most)
    twin.set_yticks([0, most])
    twin.tick_params(labelsize="x-small", length=2, labelcolor=NEUTRAL)
    for side in ("top", "left"):
        twin.spines[side].set_visible(False)


def accuracy_confidence_curve(
    models: Mapping[str, Any],
    labels: Any,
    *,
    n_bins: int = 15,
    from_logits: bool = False,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """One line per model: accuracy over confidence in bins of equal mass (Karandikar et al. 2021, fig. 6).

    Below the diagonal a model is too sure, above it not sure enough.

    Parameters
    ----------
    models : name → probabilities (n×K), all for the same rows.
    labels : (n,) class indices.

    Examples
    --------
    >>> p = np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]])
    >>> ax = accuracy_confidence_curve({"raw": p, "flat": 0.5 * p + 0.25}, [0, 1, 1], n_bins=3)
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['raw', 'flat']
    """
    ax = axes_or_new(ax)
    ax.plot([0, 1], [0, 1], color=NEUTRAL, linewidth=1, linestyle=(0, (4, 3)))
    for values, look in in_turn(models):
        bins = reliability(values, labels, n_bins=n_bins, binning="mass", from_logits=from_logits)
        ax.plot(bins.confidence, bins.accuracy, markersize=3.5, linewidth=1.4, **look)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    return tidy(ax, x="confidence", y="accuracy", title=title, percent="xy")


@dataclass(frozen=True)
class ClassCalibration:
    """Calibration of each class: `over` + `under` is its calibration error; NaN accuracy where a class is absent."""

    accuracy: np.ndarray
    over: np.ndarray
    under: np.ndarray
    count: np.ndarray

    @property
    def ece(self) -> np.ndarray:
        """Calibration error of each class."""
        return self.over + self.under

    def plot(self, ax: Axes | None = None, *, title: str | None = None) -> Axes:
        """Two points per class: how much of its error is too sure and how much not sure enough."""
        ax = axes_or_new(ax)
        ax.vlines(self.accuracy, self.under, self.over, color=NEUTRAL, alpha=0.25, linewidth=0.7)
        for error, marker, color, words in (
            (self.over, "o", OVER, "too sure"),
            (self.under, "^", UNDER, "not sure enough"),
        ):
            ax.scatter(self.accuracy, error, s=16, marker=marker, color=color, alpha=0.85, linewidth=0, label=words)
        ax.set_ylim(bottom=0)
        return tidy(ax, x="class accuracy", y="class calibration error", title=title, percent="xy")


def class_calibration(
    probabilities: Any, labels: Any, *, n_bins: int = 15, from_logits: bool = False
) -> ClassCalibration:
    """Over- and under-confidence of every class, with its accuracy.

    For class j the probabilities p_j are binned against 1{y = j}; over_j = Σ_b (n_b/n)·max(0, C_b − A_b) and under_j
    likewise (Frenkel & Goldberger 2021, eq. 3-4, divided by n so that every class stays below 1).

    Examples
    --------
    >>> result = class_calibration([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]], [0, 1, 1])
    >>> result.accuracy.tolist(), bool(np.isclose(*result.ece))
    ([1.0, 0.5], True)
    """
    rows = check(probabilities, labels, None, from_logits)
    count, correct = np.bincount(rows.labels, minlength=rows.n_classes), top_label(rows, None, None, from_logits)[1]
    hits = np.bincount(rows.labels, weights=correct, minlength=rows.n_classes)
    accuracy = np.divide(hits, count, out=np.full(rows.n_classes, np.nan), where=count > 0)
    parts = classwise_over_under(rows, None, n_bins=n_bins)  # type: ignore[arg-type]
    return ClassCalibration(accuracy, parts.over, parts.under, count)


def class_ece_vs_accuracy(
    probabilities: Any,
    labels: Any,
    *,
    n_bins: int = 15,
    from_logits: bool = False,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the over- and under-confidence of every class against its accuracy.

    Examples
    --------
    >>> class_ece_vs_accuracy([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]], [0, 1, 1]).get_xlabel()
    'class accuracy'
    """
    result = class_calibration(probabilities, labels, n_bins=n_bins, from_logits=from_logits)
    return result.plot(ax, title=title)


def class_temperature_vs_accuracy(
    temperatures: Any,
    class_accuracy: Any,
    *,
    single_temperature: float | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the temperature of every class against its accuracy; a line marks the single best temperature.

    Parameters
    ----------
    temperatures : (K,) learned temperatures, e.g. `ClassTemperatureScaling.temperatures_`.
    class_accuracy : (K,) accuracies, e.g. `class_calibration(...).accuracy`.

    Examples
    --------
    >>> class_temperature_vs_accuracy([1.5, 2.0], [0.9, 0.6], single_temperature=1.7).get_ylabel()
    'temperature'
    """
    values, accuracy = np.asarray(temperatures, dtype=float), np.asarray(class_accuracy, dtype=float)
    if values.shape != accuracy.shape or values.ndim != 1:
        raise InputError(
            f"temperatures have shape {values.shape}, but class_accuracy has {accuracy.shape}: give one value per class"
        )
    ax = axes_or_new(ax)
    ax.axhline(1, color=NEUTRAL, linewidth=0.8, linestyle=(0, (2, 3)))
    if single_temperature is not None:
        words = f"one temperature: {single_temperature:.2f}"
        ax.axhline(single_temperature, color=PALETTE[1], linewidth=1.2, label=words)
    ax.scatter(accuracy, values, s=18, color=PALETTE[0], alpha=0.85, linewidth=0, label="one per class")
    return tidy(ax, x="class accuracy", y="temperature", title=title, percent="x")
