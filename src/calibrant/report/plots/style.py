"""What all figures share: the palette, fresh axes, and the checks of their input."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.core.arrays import check_labels, check_matrix, check_values
from calibrant.core.softmax import softmax

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which people with any common colour vision tell apart."""

OVER, UNDER, NEUTRAL = "#D55E00", "#0072B2", "#6B7280"
"""Too sure, not sure enough, and everything that is neither."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Shapes beside the colours, so that a figure survives a black-and-white printer."""


def axes_or_new(ax: Axes | None, *, width: float = 4.2, height: float = 3.6) -> Axes:
    """The given axes, or those of a new figure that belongs to nobody's global state."""
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
    from io import BytesIO

    with BytesIO() as picture:
        figure.savefig(picture, format="png", dpi=144)
        return picture.getvalue()


def tidy(ax: Axes, *, x: str, y: str, title: str | None = None) -> Axes:
    """Name the axes and take away what carries no information."""
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    if title:
        ax.set_title(title)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def percent_axis(axis: Any) -> None:
    """Print the fractions of an axis as percent."""
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0, decimals=None))


def checked(probabilities: Any, labels: Any, *, from_logits: bool) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (n×K) and labels (n,) that have passed the gate."""
    name = "logits" if from_logits else "probabilities"
    matrix = check_matrix(probabilities, name)
    check_values(matrix, from_logits=from_logits, name=name)
    targets = check_labels(labels, matrix.shape[0], matrix.shape[1], against=name)
    return (softmax(matrix) if from_logits else matrix), targets


def top_label(probabilities: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Confidence of the predicted class and whether it was right, row by row."""
    prediction = probabilities.argmax(axis=1)
    confidence = np.take_along_axis(probabilities, prediction[:, None], axis=1)[:, 0]
    return confidence, prediction == labels
