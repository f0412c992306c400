"""Figures for papers, public as `calibrant.plots`: compute → data → plot, each with `ax=`.

Functions named after a figure draw it and return the matplotlib axes. Functions named after the data behind it return
a frozen dataclass; `class_calibration`, `class_loss_trace` and `simplex_paths` can `plot(ax=None)`, and
`draw_reliability` draws the bins of `reliability`.
Nothing here touches matplotlib's global state: without `ax=`, a figure of its own is made (`ax.figure.savefig`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.errors import InputError
from calibrant.evaluation.consistency import reliability_bins
from calibrant.metrics.classwise import classwise_over_under
from calibrant.metrics.inputs import check
from calibrant.metrics.scores import entropy
from calibrant.metrics.selective import RiskCoverage, risk_coverage
from calibrant.metrics.top_label import Reliability, adaptive_ece

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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

    def picture() -> bytes:
        written = BytesIO()
        figure.savefig(written, format="png", dpi=144)
        return written.getvalue()

    # a notebook asks the last value of a cell for its picture: the axes answer with their figure
    axes._repr_png_ = picture  # type: ignore[attr-defined]
    return axes


NARROW_INCHES, COMPACT_INCHES = 4.0, 2.2
"""Figures below the first width, such as a journal's column, get a smaller legend; axes below the second, such as one
of several panels, smaller type."""
COMPACT_POINTS = 7


def tidy(
    ax: Axes,
    *,
    x: str = "",
    y: str = "",
    title: str = "",
    heading: str = "",
    percent: str = "",
    legend: bool = True,
) -> Axes:
    """Name the axes, put legend (under `heading`) and title above them, take away what carries no information.

    The axes in `percent` ("x", "y" or "xy") show fractions as percent. The legend stands where it covers nothing, in as
    many columns as fit; without it the heading stands in the upper left corner, and titles of several panels at one
    height.
    """
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    for name in percent:
        percent_axis(ax.xaxis if name == "x" else ax.yaxis)
    ax.set(xlabel=x, ylabel=y)
    ax.spines[["top", "right"]].set_visible(False)
    _, words = ax.get_legend_handles_labels()
    figure, height = ax.get_figure(root=True), 0.0
    inches = 0.0 if figure is None else figure.get_figwidth()
    width = inches * ax.get_position().width
    compact = width < COMPACT_INCHES
    if not legend:
        small = COMPACT_POINTS if compact else "small"
        ax.text(0.04, 0.97, heading.replace(", ", "\n"), va="top", fontsize=small, transform=ax.transAxes)
    elif words:
        size = FontProperties(size="x-small" if inches < NARROW_INCHES else "small").get_size_in_points()
        # an entry is a handle, a gap and its word; a wider gap parts the columns
        entry = 2.4 * size + max(TextPath((0, 0), word, size=size).get_extents().width for word in words)
        gap = 1.2 * size
        columns = int(np.clip((72 * width + gap) // (entry + gap), 1, min(3, len(words))))
        ax.legend(
            loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, title=heading, alignment="left", frameon=False,
            fontsize=size, title_fontsize=size, borderaxespad=0.3, borderpad=0.2, labelspacing=0.25,
            columnspacing=1.2, handlelength=1.6,
        )  # fmt: skip
        height = 1.35 * size * (-(-len(words) // columns) + bool(heading)) + 4
    if title:
        ax.set_title(title, pad=6 + height)
    if compact:
        ax.tick_params(labelsize=COMPACT_POINTS, length=2)
        for text in (ax.xaxis.label, ax.yaxis.label, ax.title):
            text.set_fontsize(COMPACT_POINTS + 1)
        for line in ax.lines:
            line.set_markersize(2.5)
    return ax


def percent_axis(axis: Any) -> None:
    """Print the fractions of an axis as percent, few enough that a narrow figure holds them."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(PercentFormatter(1.0))


def in_turn(named: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """The values of each name with the look of its line: colours and markers by turns, the name for the legend."""
    for (name, values), color, marker in zip(named.items(), cycle(PALETTE), cycle(MARKERS), strict=False):
        yield values, {"color": color, "marker": marker, "label": name}


def reliability(
    probabilities: Any, labels: Any, *, n_bins: int = 15, binning: str = "width", from_logits: bool = False
) -> Reliability:
    """Bins of the top label's confidence with accuracy, intervals and the band of chance; NaN in an empty bin.

    A_b = mean of 1{prediction = label}, C_b = mean confidence in bin b (Guo et al. 2017, eq. 1-2). The interval
    around A_b is Wilson's at 95%. The band holds 95% of the accuracies that labels drawn from the confidences
    themselves give (Bröcker & Smith 2007).

    Parameters
    ----------
    probabilities : (n, K) probabilities, or logits with `from_logits=True`.
    labels : (n,) class indices.
    binning : "width" for bins (lo, hi] of equal width, "mass" for bins of equal counts.

    Examples
    --------
    >>> bins = reliability([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]], [0, 1, 1], n_bins=2)
    >>> bins.count.tolist(), round(float(bins.accuracy[1]), 3), round(bins.ece, 3)
    ([0, 3], 0.667, 0.1)
    """
    confidence, correct, _ = check(probabilities, labels, None, from_logits).top()
    return reliability_bins(confidence, correct, n_bins=n_bins, binning=binning)


def reliability_diagram(
    probabilities: Any,
    labels: Any,
    *,
    n_bins: int = 15,
    binning: str = "width",
    from_logits: bool = False,
    title: str = "",
    legend: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Draw `reliability(...)` and return the axes.

    Axes below 2.2 inches, such as a panel of a paper's figure, get smaller type. Without a `legend` the titles of
    several panels stand at one height, and ECE and n in the upper left corner.

    Examples
    --------
    >>> ax = reliability_diagram([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]], [0, 1, 1], n_bins=2)
    >>> ax.get_xlabel()
    'confidence'
    """
    bins = reliability(probabilities, labels, n_bins=n_bins, binning=binning, from_logits=from_logits)
    return draw_reliability(bins, ax, title=title, legend=legend)


def _with_diagonal(ax: Axes | None) -> Axes:
    """Axes of accuracy over confidence, with the line on which both are equal."""
    ax = axes_or_new(ax)
    ax.plot([0, 1], [0, 1], color=NEUTRAL, linewidth=1, linestyle=(0, (4, 3)))
    ax.set(xlim=(0, 1), ylim=(0, 1))
    return ax


def draw_reliability(bins: Reliability, ax: Axes | None = None, *, title: str = "", legend: bool = True) -> Axes:
    """Draw bins that have intervals: bars from the diagonal to the accuracy, whiskers, the noise band, counts below."""
    ax = _with_diagonal(ax)
    full, gap, widths = bins.filled, bins.accuracy - bins.confidence, bins.upper - bins.lower
    # the band lies around the diagonal: the offset of each bin is carried over the bin's whole width
    x = np.stack([bins.lower, bins.upper], axis=1)[full]
    band = np.stack([bins.noise_low, bins.noise_high]) - bins.confidence
    low, high = np.clip(band[:, full, None] + x, 0, 1)
    ax.fill_between(x.ravel(), low.ravel(), high.ravel(), color=NEUTRAL, alpha=0.18, linewidth=0, label="chance alone")
    for side, color, word in ((gap < 0, OVER, "too sure"), (gap >= 0, UNDER, "not sure enough")):
        ax.bar(
            bins.lower[side], gap[side], widths[side], bottom=bins.confidence[side], align="edge",
            color=color, alpha=0.25, linewidth=0, label=word if side.any() else None,
        )  # fmt: skip
    whiskers = np.abs([bins.accuracy_low, bins.accuracy_high] - bins.accuracy)
    ax.errorbar(
        bins.confidence, bins.accuracy, yerr=whiskers, fmt="o", markersize=4, color="black", elinewidth=1,
        label="95% interval",
    )  # fmt: skip
    twin, most = ax.twinx(), bins.count.max(initial=1)
    twin.bar(bins.lower, bins.count, widths, align="edge", color=NEUTRAL, alpha=0.35, linewidth=0)
    twin.set(ylim=(0, 5 * most), yticks=[0, most] if legend else [])
    twin.tick_params(labelsize="x-small", length=2, labelcolor=NEUTRAL)
    twin.spines[["top", "left"]].set_visible(False)
    heading = f"ECE {bins.ece:.2%}, n = {bins.n:,}"
    return tidy(ax, x="confidence", y="accuracy", title=title, heading=heading, percent="xy", legend=legend)


def accuracy_confidence_curve(
    models: Mapping[str, Any],
    labels: Any,
    *,
    n_bins: int = 15,
    from_logits: bool = False,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """One line per model: accuracy over confidence in bins of equal mass (Karandikar et al. 2021, fig. 6).

    Below the diagonal a model is too sure, above it not sure enough.

    Parameters
    ----------
    models : name → probabilities (n×K), all for the same rows.
    labels : (n,) class indices.

    Examples
    --------
    >>> p = np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]])
    >>> ax = accuracy_confidence_curve({"raw": p, "flat": 0.5 * p + 0.25}, [0, 1, 1], n_bins=3)
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['raw', 'flat']
    """
    ax = _with_diagonal(ax)
    for values, look in in_turn(models):
        bins = reliability(values, labels, n_bins=n_bins, binning="mass", from_logits=from_logits)
        ax.plot(bins.confidence, bins.accuracy, markersize=3.5, linewidth=1.4, **look)
    return tidy(ax, x="confidence", y="accuracy", title=title, percent="xy")


@dataclass(frozen=True)
class ClassCalibration:
    """Calibration of each class: `over` + `under` is its calibration error; NaN accuracy where a class is absent."""

    accuracy: Array
    over: Array
    under: Array
    count: Array

    @property
    def ece(self) -> Array:
        """Calibration error of each class."""
        return self.over + self.under

    def plot(self, ax: Axes | None = None, *, title: str = "") -> Axes:
        """Two points per class: how much of its error is too sure and how much not sure enough."""
        ax = axes_or_new(ax)
        ax.vlines(self.accuracy, self.under, self.over, color=NEUTRAL, alpha=0.25, linewidth=0.7)
        for error, marker, color, words in (
            (self.over, "o", OVER, "too sure"),
            (self.under, "^", UNDER, "not sure enough"),
        ):
            ax.scatter(self.accuracy, error, s=16, marker=marker, color=color, alpha=0.85, linewidth=0, label=words)
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
    rows = check(probabilities, labels, None, from_logits)
    count, hits = (np.bincount(rows.labels, one, minlength=rows.n_classes) for one in (None, rows.top()[1]))
    parts = classwise_over_under(rows, None, n_bins=n_bins)  # type: ignore[arg-type]
    return ClassCalibration(hits / np.where(count > 0, count, np.nan), parts.over, parts.under, count)


def class_ece_vs_accuracy(
    probabilities: Any,
    labels: Any,
    *,
    n_bins: int = 15,
    from_logits: bool = False,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Draw the over- and under-confidence of every class against its accuracy.

    Examples
    --------
    >>> class_ece_vs_accuracy([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]], [0, 1, 1]).get_xlabel()
    'class accuracy'
    """
    return class_calibration(probabilities, labels, n_bins=n_bins, from_logits=from_logits).plot(ax, title=title)


def class_temperature_vs_accuracy(
    temperatures: Any,
    class_accuracy: Any,
    *,
    single_temperature: float | None = None,
    title: str = "",
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
    values, accuracy = (np.asarray(one, dtype=float) for one in (temperatures, class_accuracy))
    if values.shape != accuracy.shape or values.ndim != 1:
        raise InputError(
            f"temperatures have shape {values.shape}, but class_accuracy has {accuracy.shape}: give one value per class"
        )
    ax = axes_or_new(ax)
    ax.axhline(1, color=NEUTRAL, linewidth=0.8, linestyle=(0, (2, 3)))
    if single_temperature is not None:
        label = f"one temperature: {single_temperature:.2f}"
        ax.axhline(single_temperature, color=PALETTE[1], linewidth=1.2, label=label)
    ax.scatter(accuracy, values, s=18, color=PALETTE[0], alpha=0.85, linewidth=0, label="one per class")
    return tidy(ax, x="class accuracy", y="temperature", title=title, percent="x")


def risk_coverage_curve(
    models: Mapping[str, Any],
    labels: Any,
    *,
    from_logits: bool = False,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """One line per model: errors that remain over the share of rows it answers itself, as `risk_coverage` gives them.

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
    title: str = "",
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
    x, ax = np.asarray(severities, dtype=float), axes_or_new(ax)
    # a small sideways step keeps the bars of neighbouring lines apart
    steps = np.linspace(0, 0.12, len(means))
    for (values, look), step in zip(in_turn(means), steps - steps.mean(), strict=True):
        y, name = np.asarray(values, dtype=float), look["label"]
        if y.shape != x.shape:
            raise InputError(f"{name!r} has {y.size} values, but there are {x.size} severities")
        ax.errorbar(x + step, y, yerr=(errors or {}).get(name), markersize=4, linewidth=1.4, elinewidth=1, **look)
    ax.set(ylim=(0, None), xticks=x)
    return tidy(ax, x="severity", y=metric, title=title, percent="y" if percent else "")


@dataclass(frozen=True)
class ClassLossTrace:
    """Losses of every class over the steps (steps×K), their mean weighted by class shares, and their spread."""

    class_losses: Array
    total: Array
    spread: Array

    def plot(self, ax: Axes | None = None, *, highlight: int = 3, title: str = "") -> Axes:
        """A thin line per class, the `highlight` worst at the last step in colour, the total in black."""
        ax = axes_or_new(ax)
        ax.plot(self.class_losses, color=NEUTRAL, alpha=0.3, linewidth=0.7)
        worst = np.argsort(-self.class_losses[-1], kind="stable")[:highlight]
        for index, color in zip(worst, cycle(PALETTE), strict=False):
            ax.plot(self.class_losses[:, index], color=color, linewidth=1.4, label=f"class {index}")
        ax.plot(self.total, color="black", linewidth=1.8, label="all rows")
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
    if class_shares is not None and (shape := np.shape(class_shares)) != losses.shape[1:]:
        raise InputError(f"class_shares have shape {shape}, but class_losses hold {losses.shape[1]} classes")
    return ClassLossTrace(losses, np.average(losses, axis=1, weights=class_shares), losses.std(axis=1, ddof=1))


def loss_traces(traces: Mapping[str, Any], *, quantity: str = "loss", title: str = "", ax: Axes | None = None) -> Axes:
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
    for (values, look), line in zip(in_turn(traces), cycle(["-", "--", "-.", ":"]), strict=False):
        ax.plot(values, linestyle=line, linewidth=1.5, **look | {"marker": ""})
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
    error = adaptive_ece(probabilities, labels, n_bins=n_bins, from_logits=from_logits)
    return ErrorAndEntropy(error, entropy(probabilities, labels, from_logits=from_logits))


def ece_vs_entropy(
    models: Mapping[str, Any],
    labels: Any,
    *,
    n_bins: int = 15,
    from_logits: bool = False,
    title: str = "",
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


CORNERS = np.array([[0, 0], [1, 0], [0.5, 3**0.5 / 2]])
"""Where the three certain answers lie: an equilateral triangle."""


@dataclass(frozen=True)
class SimplexPaths:
    """Distributions (steps×3) on the way from the start to the uniform one."""

    start: Array
    temperature: Array
    weight: Array

    def plot(self, ax: Axes | None = None, *, title: str = "") -> Axes:
        """Draw both paths in the triangle of all distributions over three classes."""
        ax = axes_or_new(ax, width=3.8, height=3.4)
        ax.plot(*CORNERS[[0, 1, 2, 0]].T, color=NEUTRAL, linewidth=1)
        ax.plot(*(self.temperature @ CORNERS).T, color=PALETTE[1], linewidth=1.8, label="temperature scaling")
        ax.plot(*(self.weight @ CORNERS).T, color=PALETTE[0], linewidth=1.8, linestyle="--", label="weight scaling")
        for point, word, rise in ((self.start, "start", -12), (np.full(3, 1 / 3), "uniform", 4)):
            x, y = point @ CORNERS
            ax.plot(x, y, marker="o", color="black", markersize=4)
            ax.annotate(word, (x, y), textcoords="offset points", xytext=(6, rise), fontsize="small")
        for number, side in enumerate(("right", "left", "center")):
            x, y = 1.05 * CORNERS[number] - 0.05 * CORNERS.mean(axis=0)
            ax.text(x, y, f"class {number + 1}", ha=side, va="center", fontsize="small", color=NEUTRAL)
        ax.set(xlim=(-0.3, 1.3), ylim=(-0.12, 1.0), aspect="equal")
        ax.set_axis_off()
        return tidy(ax, title=title)


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


def simplex_trajectories(start: Any = (0.6, 0.3, 0.1), *, title: str = "", ax: Axes | None = None) -> Axes:
    """Draw how temperature and weight scaling move one distribution towards the uniform one.

    Examples
    --------
    >>> len(simplex_trajectories([0.7, 0.2, 0.1]).get_legend().get_texts())
    2
    """
    return simplex_paths(start).plot(ax, title=title)
