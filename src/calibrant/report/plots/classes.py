"""Class by class: calibration error and temperature against accuracy (Frenkel & Goldberger 2021, fig. 1 and 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.metrics.reliability import reliability
from calibrant.report.plots.style import NEUTRAL, OVER, PALETTE, UNDER, axes_or_new, checked, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
        ax.scatter(self.accuracy, self.over, s=16, marker="o", color=OVER, alpha=0.85, linewidth=0, label="too sure")
        ax.scatter(
            self.accuracy, self.under, s=16, marker="^", color=UNDER, alpha=0.85, linewidth=0, label="not sure enough"
        )
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
    matrix, targets = checked(probabilities, labels, from_logits=from_logits)
    n_classes = matrix.shape[1]
    count = np.bincount(targets, minlength=n_classes)
    hits = np.bincount(targets, weights=matrix.argmax(axis=1) == targets, minlength=n_classes)
    accuracy = np.divide(hits, count, out=np.full(n_classes, np.nan), where=count > 0)
    bins = [reliability(matrix[:, j], targets == j, n_bins=n_bins) for j in range(n_classes)]
    over, under = np.array([b.over for b in bins]), np.array([b.under for b in bins])
    return ClassCalibration(accuracy, over, under, count)


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
