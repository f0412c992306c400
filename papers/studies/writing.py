"""Studies of papers on disk: their tables, claims and figures."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.core.atomic import atomic_write
from calibrant.core.bins import width_edges, width_index
from calibrant.report.plots import (
    MARKERS,
    NEUTRAL,
    OVER,
    PALETTE,
    UNDER,
    class_calibration,
    class_loss_trace,
    class_temperature_vs_accuracy,
    loss_traces,
    percent_axis,
    reliability_diagram,
    tidy,
)
from studies.descent import share_of_worst
from studies.measuring import store
from studies.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESOLUTION = 90
"""Dots per inch: figures stay small enough to be kept beside the tables."""


def write_study(study: Study, folder: str | os.PathLike[str]) -> list[Path]:
    """Write `tables.md`, `claims.md`, `results.json`, `measurements.npz` and the figures; return their paths."""
    home = Path(folder)
    home.mkdir(parents=True, exist_ok=True)
    texts = {
        "tables.md": study.tables_markdown(),
        "claims.md": study.claims_markdown(),
        "results.json": json.dumps(study.to_dict(), indent=1, ensure_ascii=False) + "\n",
    }
    written = []
    for name, text in texts.items():
        with atomic_write(home / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
        written.append(home / name)
    with atomic_write(home / "measurements.npz") as temporary:
        store(study.measurements, temporary)
    written.append(home / "measurements.npz")
    for name, figure in draw_figures(study).items():
        with atomic_write(home / f"{name}.png") as temporary:
            figure.savefig(temporary, dpi=RESOLUTION)
        written.append(home / f"{name}.png")
    return written


def draw_figures(study: Study) -> dict[str, Figure]:
    """The figures of a study by name."""
    draw: dict[str, Callable[[Mapping[str, Any]], dict[str, Figure]]] = {
        "cts": _cts_figures, "sctl": _sctl_figures, "weight_scaling": _weight_scaling_figures,
    }  # fmt: skip
    return draw[study.name](study.figures)


def _cts_figures(data: Mapping[str, Any]) -> dict[str, Figure]:
    shown = data["classes"]
    before = shown.probabilities["Uncalibrated"]
    classes = class_calibration(before, shown.labels)
    first, (total, split, bins) = _panels(3)
    total.scatter(classes.accuracy, classes.ece, s=16, color=PALETTE[0], alpha=0.85, linewidth=0)
    percent_axis(total.xaxis)
    percent_axis(total.yaxis)
    tidy(total, x="class accuracy", y="class calibration error", title=shown.network)
    classes.plot(split, title="too sure, not sure enough")
    _bins_of_all_classes(bins, before, shown.labels)
    second, axes = _panels(3)
    for ax, (name, probabilities) in zip(axes, shown.probabilities.items(), strict=True):
        reliability_diagram(probabilities, shown.labels, ax=ax, title=f"{shown.network}, {name}")
    third, (ax,) = _panels(1)
    class_temperature_vs_accuracy(
        shown.temperatures, classes.accuracy, single_temperature=shown.single_temperature, title=shown.network, ax=ax
    )
    return {"figure-1": first, "figure-2": second, "figure-3": third}


def _bins_of_all_classes(ax: Axes, probabilities: np.ndarray, labels: np.ndarray, n_bins: int = 15) -> None:
    n, n_classes = probabilities.shape
    cell = width_index(probabilities.ravel(), n_bins) + n_bins * np.tile(np.arange(n_classes), n)
    right = np.zeros((n, n_classes))
    right[np.arange(n), labels] = 1
    gaps = np.bincount(cell, (probabilities - right).ravel(), minlength=n_bins * n_classes).reshape(n_classes, n_bins)
    edges = width_edges(n_bins)
    for sign, color, word in ((1, OVER, "too sure"), (-1, UNDER, "not sure enough")):
        height = np.maximum(sign * gaps, 0).sum(axis=0) / n
        ax.bar(edges[:-1], sign * height, np.diff(edges), align="edge", color=color, alpha=0.8, label=word)
    ax.axhline(0, color=NEUTRAL, linewidth=0.8)
    ax.legend(frameon=False, fontsize="small")
    percent_axis(ax.yaxis)
    tidy(ax, x="probability of the class", y="error, summed over classes", title="by bin")


def _sctl_figures(data: Mapping[str, Any]) -> dict[str, Figure]:
    first, axes = _panels(2)
    for ax, word, field in (
        (axes[0], "total loss", "total"),
        (axes[1], "variance of class losses", "variance"),
    ):
        for place, (name, points) in enumerate(data["points"].items()):
            color, marker = PALETTE[place % len(PALETTE)], MARKERS[place // len(PALETTE) % len(MARKERS)]
            label = f"{name} ({points.correlations[word][0]:.2f})"
            ax.scatter(
                getattr(points, field),
                points.ece,
                s=12,
                alpha=0.8,
                linewidth=0,
                label=label,
                color=color,
                marker=marker,
            )
        ax.legend(frameon=False, fontsize=6)
        percent_axis(ax.yaxis)
        tidy(ax, x=f"{word} (test)", y="ECE (test)", title="with the correlation of each network")
    traces, name = data["traces"], data["traced"]
    worst = traces["Top 3"]
    third, (total, each, spread, error, shares) = _panels(5)
    loss_traces({"total loss": worst.total}, quantity="total loss", title=f"(a) {name}, three worst classes", ax=total)
    class_loss_trace(worst.class_losses).plot(each, title="(b) class losses")
    loss_traces({"std of class losses": worst.spread}, quantity="std of class losses", title="(c)", ax=spread)
    loss_traces({"ECE": worst.ece}, quantity="ECE", title="(d)", ax=error)
    share = share_of_worst(worst)
    parts = {"three worst classes": share, "other classes": 1 - share}
    loss_traces(parts, quantity="share of the class losses", title="(e)", ax=shares)
    fourth, axes = _panels(3)
    losses = {loss: trace for loss, trace in traces.items() if loss != "Top 3"}
    for ax, field, word in zip(
        axes, ("total", "spread", "ece"), ("total loss", "std of class losses", "ECE"), strict=True
    ):
        loss_traces({loss: getattr(one, field) for loss, one in losses.items()}, quantity=word, title=name, ax=ax)
    return {"figure-1": first, "figure-3": third, "figure-4": fourth}


def _weight_scaling_figures(data: Mapping[str, Any]) -> dict[str, Figure]:
    ranks, gaps = data["ranks"], data["gaps"]
    first, axes = _panels(len(ranks))
    for ax, (name, rank) in zip(axes, ranks.items(), strict=True):
        # a sample is enough to see that one map is a curve and the other a cloud
        chosen = np.random.default_rng(0).permutation(len(rank.before))[:1500]
        pairs = (("TS by likelihood", rank.temperature, OVER), ("WS", rank.weight, UNDER))
        for word, after, color in pairs:
            label = f"{word}: {100 * rank.share[word]:.2f}% of pairs reversed"
            ax.scatter(rank.before[chosen], (after - rank.before)[chosen], s=4, color=color, linewidth=0, label=label)
        ax.margins(y=0.25)
        ax.legend(frameon=False, fontsize="small", loc="upper left")
        percent_axis(ax.xaxis)
        percent_axis(ax.yaxis)
        tidy(ax, x="confidence before", y="change of confidence", title=name)
    second, axes = _panels(len(gaps), columns=2)
    for ax, (name, gap) in zip(axes, gaps.items(), strict=True):
        place = np.arange(len(gap.before))
        ax.bar(place - 0.2, gap.before, 0.4, color=NEUTRAL, label="before")
        ax.bar(place + 0.2, gap.after, 0.4, color=PALETTE[0], label="after CWS")
        ax.axhline(0, color="black", linewidth=0.8)
        if len(place) <= 20:
            ax.set_xticks(place)
        ax.legend(frameon=False, fontsize="small")
        percent_axis(ax.yaxis)
        tidy(ax, x="class", y="confidence − accuracy", title=name)
    return {"figure-1": first, "figure-2": second}


def _panels(count: int, columns: int = 3) -> tuple[Figure, list[Axes]]:
    """A figure of its own with `count` axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(count, columns)
    rows = -(-count // columns)
    figure = Figure(figsize=(4.4 * columns, 3.6 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(rows, columns, place + 1) for place in range(count)]
