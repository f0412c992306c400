"""Lines over coverage, the severity of a shift, or the steps of a fit: one per model, method or class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.evaluation import deferral
from calibrant.metrics.inputs import top_label
from calibrant.metrics.scores import entropy
from calibrant.metrics.selective import RiskCoverage
from calibrant.metrics.top_label import adaptive_ece
from calibrant.report.plots.style import NEUTRAL, PALETTE, axes_or_new, in_turn, tidy

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
    confidence, correct, _ = top_label(probabilities, labels, None, from_logits)
    return deferral.risk_coverage_curve(confidence, correct)


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
    for values, look in in_turn(models):
        curve = risk_coverage(values, labels, from_logits=from_logits)
        ax.step(curve.coverage, curve.risk, where="pre", linewidth=1.5, **look | {"marker": ""})
    ax.set(xlim=(0, 1), ylim=(0, None))
    return tidy(ax, x="share kept (coverage)", y="error among the kept", title=title, percent="xy")


def shift_curves(
    severities: Any,
    means: Mapping[str, Any],
    errors: Mapping[str, Any] | None = None,
    *,
    metric: str = "ECE",
    percent: bool = True,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """One line per calibrator: mean of a metric over corruptions at each severity (Karandikar et al. 2021, fig. 2).

    Parameters
    ----------
    severities : (s,) e.g. 0 … 5.
    means : name → (s,) values.
    errors : name → (s,) half-lengths of the bars, e.g. within-subject standard errors.

    Examples
    --------
    >>> ax = shift_curves([0, 1], {"none": [0.1, 0.2], "ts": [0.02, 0.08]}, {"ts": [0.01, 0.01]})
    >>> ax.get_xlabel(), len(ax.get_legend().get_texts())
    ('severity', 2)
    """
    x = np.asarray(severities, dtype=float)
    ax = axes_or_new(ax)
    # a small sideways step keeps the bars of neighbouring lines apart
    steps = np.linspace(-0.06, 0.06, len(means)) if len(means) > 1 else np.zeros(1)
    for (values, look), step in zip(in_turn(means), steps, strict=True):
        y, name = np.asarray(values, dtype=float), look["label"]
        if y.shape != x.shape:
            raise InputError(f"{name!r} has {y.size} values, but there are {x.size} severities")
        bars = None if errors is None or name not in errors else np.asarray(errors[name], dtype=float)
        ax.errorbar(x + step, y, yerr=bars, markersize=4, linewidth=1.4, elinewidth=1, **look)
    ax.set_ylim(bottom=0)
    ax.set_xticks(x)
    return tidy(ax, x="severity", y=metric, title=title, percent="y" if percent else "")


@dataclass(frozen=True)
class ClassLossTrace:
    """Losses of every class over the steps (steps×K), their mean weighted by class shares, and their spread."""

    class_losses: np.ndarray
    total: np.ndarray
    spread: np.ndarray

    def plot(self, ax: Axes | None = None, *, highlight: int = 3, title: str | None = None) -> Axes:
        """A thin line per class, the `highlight` worst at the last step in colour, the total in black."""
        ax = axes_or_new(ax)
        steps = np.arange(len(self.total))
        ax.plot(steps, self.class_losses, color=NEUTRAL, alpha=0.3, linewidth=0.7)
        worst = np.argsort(-self.class_losses[-1], kind="stable")[:highlight]
        for index, color in zip(worst, cycle(PALETTE), strict=False):
            ax.plot(steps, self.class_losses[:, index], color=color, linewidth=1.4, label=f"class {index}")
        ax.plot(steps, self.total, color="black", linewidth=1.8, label="all rows")
        return tidy(ax, x="step", y="loss", title=title)


def class_loss_trace(class_losses: Any, *, class_shares: Any = None) -> ClassLossTrace:
    """Total and spread of class losses over the steps of a fit (Jung et al. 2023, fig. 3 and 4).

    total_t = Σ_j share_j·L_tj and spread_t the sample standard deviation of L_t over the classes.

    Parameters
    ----------
    class_losses : (steps, K) mean loss of every class after every step.
    class_shares : (K,) share of the rows in each class; equal shares when absent.

    Examples
    --------
    >>> trace = class_loss_trace([[2.0, 4.0], [1.0, 1.0]])
    >>> trace.total.tolist(), trace.spread.round(3).tolist()
    ([3.0, 1.0], [1.414, 0.0])
    """
    losses = np.asarray(class_losses, dtype=float)
    if losses.ndim != 2 or losses.shape[1] < 2:
        raise InputError(f"class_losses have shape {losses.shape}, but (steps, 2 classes or more) is needed")
    shares = np.ones(losses.shape[1]) if class_shares is None else np.asarray(class_shares, dtype=float)
    if shares.shape != losses.shape[1:]:
        raise InputError(f"class_shares have shape {shares.shape}, but class_losses hold {losses.shape[1]} classes")
    return ClassLossTrace(losses, losses @ (shares / shares.sum()), losses.std(axis=1, ddof=1))


def loss_traces(
    traces: Mapping[str, Any], *, quantity: str = "loss", title: str | None = None, ax: Axes | None = None
) -> Axes:
    """One line per method: a loss, the spread of class losses, or ECE, over the steps of its fit.

    Parameters
    ----------
    traces : name → (steps,) values, e.g. `calibrator.objective_trace_`; lengths may differ.
    quantity : what the values are; names the vertical axis.

    Examples
    --------
    >>> ax = loss_traces({"ce": [2.0, 1.0, 0.8], "focal": [1.5, 0.9]}, quantity="total loss")
    >>> len(ax.lines), ax.get_ylabel()
    (2, 'total loss')
    """
    ax = axes_or_new(ax)
    styles = cycle(["-", "--", "-.", ":"])
    for (values, look), line in zip(in_turn(traces), styles, strict=False):
        ax.plot(np.asarray(values, dtype=float), linestyle=line, linewidth=1.5, **look | {"marker": ""})
    return tidy(ax, x="step", y=quantity, title=title)


@dataclass(frozen=True)
class ErrorAndEntropy:
    """Calibration error and mean entropy (nats) of one model."""

    ece: float
    entropy: float


def error_and_entropy(
    probabilities: Any, labels: Any, *, n_bins: int = 15, from_logits: bool = False
) -> ErrorAndEntropy:
    """ECE over bins of equal mass, and the mean of −Σ p log p, of one model.

    Examples
    --------
    >>> round(error_and_entropy([[0.5, 0.5], [0.5, 0.5]], [0, 1]).entropy, 4)
    0.6931
    """
    given = probabilities, labels
    error = adaptive_ece(*given, n_bins=n_bins, from_logits=from_logits)
    return ErrorAndEntropy(ece=error, entropy=entropy(*given, from_logits=from_logits))


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
    for values, look in in_turn(models):
        point = error_and_entropy(values, labels, n_bins=n_bins, from_logits=from_logits)
        ax.scatter(point.entropy, point.ece, s=36, linewidth=0, **look)
    ax.set_ylim(bottom=0)
    return tidy(ax, x="mean entropy (nats)", y="calibration error", title=title, percent="y")
