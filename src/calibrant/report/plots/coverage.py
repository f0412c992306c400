"""Risk–coverage: how many errors remain when the least sure rows go to a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.report.plots.style import PALETTE, axes_or_new, checked, percent_axis, tidy, top_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class RiskCoverage:
    """Error rate among the most confident share of rows; rows of equal confidence are kept or deferred together.

    Attributes
    ----------
    threshold : a row is kept when its confidence is at least this; falling.
    coverage, risk : share of rows kept, and share of errors among them.
    """

    threshold: np.ndarray
    coverage: np.ndarray
    risk: np.ndarray

    def at(self, coverage: np.ndarray) -> np.ndarray:
        """Index of the smallest kept share that reaches each asked-for coverage."""
        return np.minimum(np.searchsorted(self.coverage, np.asarray(coverage) - 1e-12), len(self.coverage) - 1)

    def plot(self, ax: Axes | None = None, *, label: str | None = None, color: str = PALETTE[0]) -> Axes:
        """Draw the error rate over the share of rows kept."""
        ax = axes_or_new(ax)
        ax.step(self.coverage, self.risk, where="pre", color=color, linewidth=1.5, label=label)
        ax.set(xlim=(0, 1), ylim=(0, None))
        percent_axis(ax.xaxis)
        percent_axis(ax.yaxis)
        return tidy(ax, x="share kept (coverage)", y="error rate among the kept (risk)")


def risk_coverage(probabilities: Any, labels: Any, *, from_logits: bool = False) -> RiskCoverage:
    """Risk at every coverage, from the surest row to all rows (El-Yaniv & Wiener 2010).

    risk(t) = Σ 1{c_i ≥ t}·1{wrong_i} / Σ 1{c_i ≥ t}, one point for each distinct confidence t.

    Examples
    --------
    >>> curve = risk_coverage([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]], [0, 1, 1])
    >>> curve.coverage.round(2).tolist(), curve.risk.round(2).tolist()
    ([0.33, 0.67, 1.0], [0.0, 0.5, 0.33])
    """
    matrix, targets = checked(probabilities, labels, from_logits=from_logits)
    return risk_coverage_of_columns(*top_label(matrix, targets))


def risk_coverage_of_columns(
    confidence: np.ndarray, correct: np.ndarray, *, weights: np.ndarray | None = None
) -> RiskCoverage:
    """The same curve from a column of confidences and a column of right (True) or wrong (False)."""
    order = np.argsort(-confidence, kind="stable")
    ordered = confidence[order]
    mass = np.ones(len(ordered)) if weights is None else np.asarray(weights, dtype=np.float64)[order]
    last_of_ties = np.append(ordered[1:] != ordered[:-1], True)
    kept = np.cumsum(mass)
    wrong = np.cumsum(mass * ~np.asarray(correct, dtype=bool)[order])
    keep = last_of_ties & (kept > 0)
    return RiskCoverage(ordered[keep], kept[keep] / kept[-1], wrong[keep] / kept[keep])


def risk_coverage_curve(
    models: Mapping[str, Any],
    labels: Any,
    *,
    from_logits: bool = False,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """One line a model: errors that remain over the share of rows it answers itself.

    Parameters
    ----------
    models : name → probabilities (n×K), all for the same rows.

    Examples
    --------
    >>> p = [[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]]
    >>> risk_coverage_curve({"raw": p}, [0, 1, 1]).get_xlabel()
    'share kept (coverage)'
    """
    ax = axes_or_new(ax)
    for (name, values), color in zip(models.items(), cycle(PALETTE), strict=False):
        risk_coverage(values, labels, from_logits=from_logits).plot(ax, label=name, color=color)
    ax.legend(frameon=False, fontsize="small")
    if title:
        ax.set_title(title)
    return ax
