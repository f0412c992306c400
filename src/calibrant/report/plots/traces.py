"""How a fit or a training run went: losses per step, in total and per class (Jung et al. 2023, fig. 3 and 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.report.plots.style import NEUTRAL, PALETTE, axes_or_new, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    """Total and spread of class losses over the steps of a fit.

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
    for (name, values), color, style in zip(traces.items(), cycle(PALETTE), styles, strict=False):
        ax.plot(np.asarray(values, dtype=float), color=color, linestyle=style, linewidth=1.5, label=name)
    return tidy(ax, x="step", y=quantity, title=title)
