"""A metric under growing shift of the data (Karandikar et al. 2021, fig. 2, 7 and 8)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.report.plots.style import MARKERS, PALETTE, axes_or_new, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    """One line per calibrator: mean of a metric over corruptions at each severity, with error bars.

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
    for (name, values), step, color, marker in zip(means.items(), steps, cycle(PALETTE), cycle(MARKERS), strict=False):
        y = np.asarray(values, dtype=float)
        if y.shape != x.shape:
            raise InputError(f"{name!r} has {y.size} values, but there are {x.size} severities")
        bars = None if errors is None or name not in errors else np.asarray(errors[name], dtype=float)
        ax.errorbar(
            x + step, y, yerr=bars, color=color, marker=marker, markersize=4, linewidth=1.4, elinewidth=1, label=name
        )
    ax.set_ylim(bottom=0)
    ax.set_xticks(x)
    return tidy(ax, x="severity", y=metric, title=title, percent="y" if percent else "")
