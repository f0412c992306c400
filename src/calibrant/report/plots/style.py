"""What all figures share: the palette, fresh axes, legends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from io import BytesIO
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which people with any common colour vision tell apart."""

OVER, UNDER, NEUTRAL = "#D55E00", "#0072B2", "#6B7280"
"""Too sure, not sure enough, and everything that is neither."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Shapes beside the colours, so that a figure survives a black-and-white printer."""


def axes_or_new(ax: Axes | None, *, width: float = 4.2, height: float = 3.6) -> Axes:
    """The given axes, or those of a new figure outside matplotlib's global state."""
    if ax is not None:
        return ax
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    # a notebook asks the last value of a cell for its picture: the axes answer with their figure
    axes._repr_png_ = partial(_png, figure)  # type: ignore[attr-defined]
    return axes


def _png(figure: Any) -> bytes:
    with BytesIO() as picture:
        figure.savefig(picture, format="png", dpi=144)
        return picture.getvalue()


NARROW_INCHES = 4.0
"""Figures below this width, such as a journal's column, get a smaller legend."""


def legend(ax: Axes, *, heading: str | None = None) -> float:
    """A legend above the axes, where it covers nothing, in as many columns as fit; returns its height in points."""
    _, words = ax.get_legend_handles_labels()
    figure = ax.get_figure(root=True)
    if not words or figure is None:
        return 0.0
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    inches = float(figure.get_size_inches()[0])
    size = FontProperties(size="x-small" if inches < NARROW_INCHES else "small").get_size_in_points()
    # an entry is a handle, a gap and its word; a wider gap parts the columns
    entry = 2.4 * size + max(TextPath((0, 0), word, size=size).get_extents().width for word in words)
    room = 72 * inches * ax.get_position().width + 1.2 * size
    columns = int(np.clip(room // (entry + 1.2 * size), 1, min(3, len(words))))
    ax.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, title=heading, alignment="left", frameon=False,
        fontsize=size, title_fontsize=size, borderaxespad=0.3, borderpad=0.2, labelspacing=0.25, columnspacing=1.2,
        handlelength=1.6,
    )  # fmt: skip
    return 1.35 * size * (-(-len(words) // columns) + (heading is not None)) + 4


def tidy(ax: Axes, *, x: str, y: str, title: str | None = None, heading: str | None = None, percent: str = "") -> Axes:
    """Name the axes, put legend (under `heading`) and title above them, take away what carries no information.

    The axes in `percent` ("x", "y" or "xy") show fractions as percent.
    """
    for name in percent:
        percent_axis(ax.xaxis if name == "x" else ax.yaxis)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    height = legend(ax, heading=heading)
    if title:
        ax.set_title(title, pad=6 + height)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def percent_axis(axis: Any) -> None:
    """Print the fractions of an axis as percent, few enough that a narrow figure holds them."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(PercentFormatter(1.0, decimals=None))


def in_turn(named: Mapping[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The values of each name with the look of its line: colours and markers by turns, the name for the legend."""
    for (name, values), color, marker in zip(named.items(), cycle(PALETTE), cycle(MARKERS), strict=False):
        yield values, {"color": color, "marker": marker, "label": name}
