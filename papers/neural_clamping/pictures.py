"""The paper's figures 2 and 3 from committed results: `python papers/neural_clamping/pictures.py`."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from matplotlib.axes import Axes  # noqa: E402
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from tables import FEWER, LARGER, NAMES, SHORT, SHOWN, read, runs_of  # noqa: E402

from calibrant.report.plots import MARKERS, NEUTRAL, PALETTE, percent_axis, tidy  # noqa: E402

RESOLUTION = 90


MEASURES = {"ece": "ECE", "ace": "ACE", "entropy": "entropy, nats", "nll": "log loss"}


def over_gamma() -> Figure:
    """Figure 2: held-out ECE, ACE, entropy and log loss over γ, with δ at λ = 10 and with T alone."""
    figure, axes = panels(len(MEASURES))
    for ax, (column, words) in zip(axes, MEASURES.items(), strict=True):
        for name, color, marker in zip(NAMES, PALETTE, MARKERS, strict=False):
            scores = read(f"{name}-clamping")["scores"]
            for penalty, style, pool in ((10.0, "solid", "λ = 10"), ("T alone", "dashed", "T alone")):
                points = sorted((one["gamma"], one[column]) for one in scores if one["penalty"] == penalty)
                label = f"{NAMES[name]}, {pool}"
                ax.plot(*zip(*points, strict=True), color=color, marker=marker, linestyle=style, label=label)
        finish(ax, column, x="γ", y=f"held-out {words}")
    axes[2].legend(frameon=False, fontsize="x-small", loc="center right")
    return figure


def starts() -> Figure:
    """Figure 3: test figures of each seed from both starts, beside temperature scaling."""
    measures = {**MEASURES, "sce": "SCE"}
    figure, axes = panels(len(measures))
    cases = ((SHOWN, 0.001), (SHOWN, 0.1), (LARGER, 0.001), (FEWER, 0.001))
    for ax, (column, words) in zip(axes, measures.items(), strict=True):
        for place, (network, rate) in enumerate(cases):
            study = read(f"{network}-clamping")
            for start, color, marker, step in (
                ("normal", PALETTE[0], "o", -0.2),
                ("data-driven", PALETTE[2], "s", 0.2),
            ):
                values = [run["joint"][column] for run in runs_of(study, start, rate)]
                label = f"{start} start" if place == 0 else None
                ax.plot([place + step] * len(values), values, marker, color=color, alpha=0.8, label=label)
            level, label = study["ts"][column], "temperature scaling" if place == 0 else None
            ax.plot((place - 0.4, place + 0.4), (level, level), color=NEUTRAL, linestyle="dashed", label=label)
        names = [f"{SHORT[network]}\nrate {rate:g}" for network, rate in cases]
        ax.set_xticks(range(len(cases)), names, fontsize="x-small")
        finish(ax, column, x="", y=f"test {words}")
    axes[0].legend(frameon=False, fontsize="x-small", loc="lower right")
    return figure


def finish(ax: Axes, column: str, *, x: str, y: str) -> None:
    """Labels; errors are percentages from 0 on."""
    if column in ("ece", "ace"):
        ax.set_ylim(bottom=0)
    if column in ("ece", "ace", "sce"):
        percent_axis(ax.yaxis)
    tidy(ax, x=x, y=y)


def panels(count: int, columns: int = 2) -> tuple[Figure, list[Axes]]:
    """A figure of its own with `count` axes."""
    rows = -(-count // columns)
    figure = Figure(figsize=(4.6 * columns, 3.2 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(rows, columns, place + 1) for place in range(count)]


def main() -> int:
    """Write the pictures."""
    for name, figure in {"figure-2": over_gamma(), "figure-3": starts()}.items():
        figure.savefig(HERE / "results" / f"{name}.png", dpi=RESOLUTION, pil_kwargs={"optimize": True})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
