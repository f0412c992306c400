"""Two ways to be less sure: temperature and weight scaling on the way to uniform (Frenkel & Goldberger 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.report.plots.style import NEUTRAL, PALETTE, axes_or_new, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
"""Where the three certain answers lie: an equilateral triangle."""


@dataclass(frozen=True)
class SimplexPaths:
    """Distributions (steps×3) on the way from the start to the uniform one."""

    start: np.ndarray
    temperature: np.ndarray
    weight: np.ndarray

    def plot(self, ax: Axes | None = None, *, title: str | None = None) -> Axes:
        """Draw both paths in the triangle of all distributions over three classes."""
        ax = axes_or_new(ax, width=3.8, height=3.4)
        ax.plot(*CORNERS[[0, 1, 2, 0]].T, color=NEUTRAL, linewidth=1)
        ax.plot(*(self.temperature @ CORNERS).T, color=PALETTE[1], linewidth=1.8, label="temperature scaling")
        ax.plot(*(self.weight @ CORNERS).T, color=PALETTE[0], linewidth=1.8, linestyle="--", label="weight scaling")
        for point, word, rise in ((self.start, "start", -12), (np.full(3, 1 / 3), "uniform", 4)):
            x, y = point @ CORNERS
            ax.plot(x, y, marker="o", color="black", markersize=4)
            ax.annotate(word, (x, y), textcoords="offset points", xytext=(6, rise), fontsize="small")
        names = ("class 1", "class 2", "class 3")
        for corner, name, side in zip(CORNERS, names, ("right", "left", "center"), strict=True):
            x, y = corner + 0.05 * (corner - CORNERS.mean(axis=0))
            ax.text(x, y, name, ha=side, va="center", fontsize="small", color=NEUTRAL)
        ax.set(xlim=(-0.3, 1.3), ylim=(-0.12, 1.0))
        ax.set_aspect("equal")
        ax.set_axis_off()
        height = legend(ax)
        if title:
            ax.set_title(title, pad=6 + height)
        return ax


def simplex_paths(start: Any = (0.6, 0.3, 0.1), *, steps: int = 200) -> SimplexPaths:
    """p^(1/T)/Σ p^(1/T) for T from 1 to infinity, and αp + (1−α)/3 for α from 1 to 0 (eq. 6).

    Examples
    --------
    >>> paths = simplex_paths()
    >>> paths.weight[-1].round(3).tolist(), paths.temperature[-1].round(3).tolist()
    ([0.333, 0.333, 0.333], [0.333, 0.333, 0.333])
    """
    p = np.asarray(start, dtype=float)
    if p.shape != (3,) or p.min() <= 0 or abs(p.sum() - 1) > 1e-6:
        raise InputError(f"start is {p.tolist()}, but three positive probabilities that sum to 1 are needed")
    share = np.linspace(1, 0, steps)[:, None]
    powers = p**share
    return SimplexPaths(p, powers / powers.sum(axis=1, keepdims=True), share * p + (1 - share) / 3)


def simplex_trajectories(start: Any = (0.6, 0.3, 0.1), *, title: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw how temperature and weight scaling move one distribution towards the uniform one.

    Examples
    --------
    >>> len(simplex_trajectories([0.7, 0.2, 0.1]).get_legend().get_texts())
    2
    """
    return simplex_paths(start).plot(ax, title=title)
