"""Risk–coverage: how many errors remain when the least sure rows go to a person."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

from calibrant.evaluation import deferral
from calibrant.metrics.selective import RiskCoverage
from calibrant.report.plots.style import PALETTE, axes_or_new, checked, tidy, top_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    return deferral.risk_coverage_curve(*top_label(matrix, targets))


def risk_coverage_curve(
    models: Mapping[str, Any],
    labels: Any,
    *,
    from_logits: bool = False,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """One line per model: errors that remain over the share of rows it answers itself.

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
        curve = risk_coverage(values, labels, from_logits=from_logits)
        ax.step(curve.coverage, curve.risk, where="pre", color=color, linewidth=1.5, label=name)
    ax.set(xlim=(0, 1), ylim=(0, None))
    return tidy(ax, x="share kept (coverage)", y="error among the kept", title=title, percent="xy")
