"""The paper's figures 2 and 3 from committed results: `python papers/neural_clamping/pictures.py`."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from matplotlib.axes import Axes  # noqa: E402
from tables import NAMES, SHOWN, read, runs_of  # noqa: E402

from calibrant.report.plots.style import MARKERS, NEUTRAL, PALETTE, axes_or_new, percent_axis, tidy  # noqa: E402

RESOLUTION = 90


def over_gamma() -> Axes:
    """Figure 2: held-out ECE over γ, with δ at λ = 10 and with T alone."""
    ax = axes_or_new(None, width=4.8, height=3.6)
    for name, color, marker in zip(NAMES, PALETTE, MARKERS, strict=False):
        scores = read(f"{name}-clamping")["scores"]
        for penalty, style, words in ((10.0, "solid", "λ = 10"), ("T alone", "dashed", "T alone")):
            points = sorted((one["gamma"], one["ece"]) for one in scores if one["penalty"] == penalty)
            ax.plot(*zip(*points, strict=True), color=color, marker=marker, linestyle=style, label=f"{name}, {words}")
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False, fontsize="x-small")
    percent_axis(ax.yaxis)
    return tidy(ax, x="γ", y="held-out ECE")


def starts() -> Axes:
    """Figure 3: test ECE of each seed from both starts, beside temperature scaling and T alone."""
    ax = axes_or_new(None, width=4.8, height=3.6)
    study, places = read(f"{SHOWN}-clamping"), []
    for rate in (0.001, 0.1):
        for start, color, marker in (("normal", PALETTE[0], "o"), ("data-driven", PALETTE[2], "s")):
            errors = [run["joint"]["ece"] for run in runs_of(study, start, rate)]
            ax.plot([len(places)] * len(errors), errors, marker, color=color, alpha=0.8)
            places.append(f"{start}\nrate {rate:g}")
    ax.axhline(study["ts"]["ece"], color=NEUTRAL, linestyle="dashed", label="temperature scaling")
    ax.set_xticks(range(len(places)), places, fontsize="small")
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False, fontsize="small")
    percent_axis(ax.yaxis)
    return tidy(ax, x="", y="test ECE")


def main() -> int:
    """Write the pictures."""
    for name, ax in {"figure-2": over_gamma(), "figure-3": starts()}.items():
        ax.figure.savefig(HERE / "results" / f"{name}.png", dpi=RESOLUTION, pil_kwargs={"optimize": True})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
