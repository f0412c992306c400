"""Figures for papers, public as `calibrant.plots`: compute → data → plot, each with `ax=`.

Functions named after a figure draw it and return the matplotlib axes. Functions named after the data behind it return
a frozen dataclass; `class_calibration`, `class_loss_trace` and `simplex_paths` can `plot(ax=None)`, and
`draw_reliability` draws the bins of `reliability`.
Nothing here touches matplotlib's global state: without `ax=`, a figure of its own is made (`ax.figure.savefig`).
"""

from calibrant.metrics.reliability import Reliability
from calibrant.metrics.selective import RiskCoverage
from calibrant.report.plots.curves import (
    ClassLossTrace,
    ErrorAndEntropy,
    class_loss_trace,
    ece_vs_entropy,
    error_and_entropy,
    loss_traces,
    risk_coverage,
    risk_coverage_curve,
    shift_curves,
)
from calibrant.report.plots.reliability import (
    ClassCalibration,
    accuracy_confidence_curve,
    class_calibration,
    class_ece_vs_accuracy,
    class_temperature_vs_accuracy,
    draw_reliability,
    reliability,
    reliability_diagram,
)
from calibrant.report.plots.simplex import SimplexPaths, simplex_paths, simplex_trajectories
from calibrant.report.plots.style import PALETTE

__all__ = [
    "PALETTE",
    "ClassCalibration",
    "ClassLossTrace",
    "ErrorAndEntropy",
    "Reliability",
    "RiskCoverage",
    "SimplexPaths",
    "accuracy_confidence_curve",
    "class_calibration",
    "class_ece_vs_accuracy",
    "class_loss_trace",
    "class_temperature_vs_accuracy",
    "draw_reliability",
    "ece_vs_entropy",
    "error_and_entropy",
    "loss_traces",
    "reliability",
    "reliability_diagram",
    "risk_coverage",
    "risk_coverage_curve",
    "shift_curves",
    "simplex_paths",
    "simplex_trajectories",
]
