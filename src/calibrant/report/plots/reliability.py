"""The reliability diagram: accuracy against confidence, with counts, intervals and the noise band."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.evaluation.reliability import reliability_bins
from calibrant.metrics.reliability import Reliability
from calibrant.report.plots.style import NEUTRAL, OVER, UNDER, axes_or_new, checked, tidy, top_label

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
    matrix, targets = checked(probabilities, labels, from_logits=from_logits)
    return reliability_bins(*top_label(matrix, targets), n_bins=n_bins, binning=binning)


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
