"""Several models or calibrators in one figure: accuracy against confidence, and error against entropy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.metrics.top_label import adaptive_ece
from calibrant.report.plots.reliability import reliability
from calibrant.report.plots.style import MARKERS, NEUTRAL, PALETTE, axes_or_new, checked, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class ErrorAndEntropy:
    """Calibration error and mean entropy (nats) of one model."""

    ece: float
    entropy: float


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
    for (name, values), color, marker in zip(models.items(), cycle(PALETTE), cycle(MARKERS), strict=False):
        bins = reliability(values, labels, n_bins=n_bins, binning="mass", from_logits=from_logits)
        ax.plot(bins.confidence, bins.accuracy, color=color, marker=marker, markersize=3.5, linewidth=1.4, label=name)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    return tidy(ax, x="confidence", y="accuracy", title=title, percent="xy")


def error_and_entropy(
    probabilities: Any, labels: Any, *, n_bins: int = 15, from_logits: bool = False
) -> ErrorAndEntropy:
    """ECE over bins of equal mass, and the mean of −Σ p log p, of one model.

    Examples
    --------
    >>> round(error_and_entropy([[0.5, 0.5], [0.5, 0.5]], [0, 1]).entropy, 4)
    0.6931
    """
    matrix, targets = checked(probabilities, labels, from_logits=from_logits)
    error = adaptive_ece(matrix, targets, n_bins=n_bins)
    values = matrix.astype(np.float64)
    logs = np.log(np.where(values > 0, values, 1))
    return ErrorAndEntropy(ece=error, entropy=float(-(values * logs).sum(axis=1).mean()))


def ece_vs_entropy(
    models: Mapping[str, Any],
    labels: Any,
    *,
    n_bins: int = 15,
    from_logits: bool = False,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """One point per model: calibration error over mean entropy (Karandikar et al. 2021, fig. 10).

    A model can be calibrated by being unsure everywhere; the lower left corner is the better place.

    Examples
    --------
    >>> p = np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]])
    >>> ece_vs_entropy({"raw": p, "flat": 0.5 * p + 0.25}, [0, 1, 1]).get_xlabel()
    'mean entropy (nats)'
    """
    ax = axes_or_new(ax)
    for (name, values), color, marker in zip(models.items(), cycle(PALETTE), cycle(MARKERS), strict=False):
        point = error_and_entropy(values, labels, n_bins=n_bins, from_logits=from_logits)
        ax.scatter(point.entropy, point.ece, s=36, color=color, marker=marker, linewidth=0, label=name)
    ax.set_ylim(bottom=0)
    return tidy(ax, x="mean entropy (nats)", y="calibration error", title=title, percent="y")
