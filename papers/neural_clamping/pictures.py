"""The paper's figures 2 and 3 from committed results: `python papers/neural_clamping/pictures.py`."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from matplotlib.axes import Axes  # noqa: E402
from tables import CHECKPOINTS, chosen, read  # noqa: E402

from calibrant.report.plots.style import MARKERS, NEUTRAL, PALETTE, axes_or_new, percent_axis, tidy  # noqa: E402

RESOLUTION = 90


def over_gamma() -> Axes:
    """Figure 2: held-out ECE over γ, at the λ that the coarse pool chose."""
    ax = axes_or_new(None, width=4.8, height=3.6)
    for name, color, marker in zip(CHECKPOINTS, PALETTE, MARKERS, strict=False):
        study = read(f"{name}-clamping")
        penalty = study["variants"]["ce"][1]
        points = sorted((one["gamma"], one["ece"]) for one in study["scores"] if one["penalty"] == penalty)
        ax.plot(*zip(*points, strict=True), color=color, marker=marker, label=f"{name}, λ={penalty:g}")
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False, fontsize="small")
    percent_axis(ax.yaxis)
    return tidy(ax, x="γ", y="held-out ECE")


def starts() -> Axes:
    """Figure 3: test ECE of each seed from both starts, beside temperature scaling."""
    ax = axes_or_new(None, width=4.8, height=3.6)
    ticks = []
    for place, name in enumerate(CHECKPOINTS):
        study, outputs = read(f"{name}-clamping"), read(f"{name}-outputs")
        for step, start, color, marker in ((-0.2, "normal", PALETTE[0], "o"), (0.2, "data-driven", PALETTE[2], "s")):
            errors = [run["joint"]["ece"] for run in chosen(study, "chosen", start)]
            words = f"{'random' if start == 'normal' else start} start"
            label = words if place == 0 else None
            ax.plot([place + step] * len(errors), errors, marker, color=color, alpha=0.8, label=label)
        scaled = outputs["rows"]["Temperature scaling"]["ece"]
        label = "temperature scaling" if place == 0 else None
        ax.hlines(scaled, place - 0.4, place + 0.4, color=NEUTRAL, linestyle="dashed", label=label)
        ticks.append(name)
    ax.set_xticks(range(len(ticks)), ticks)
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
