"""The paper's figures from committed results: `python papers/soft_objectives/pictures.py` rewrites results/*.png."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import numpy as np  # noqa: E402
import shapes  # noqa: E402
from claims import severity  # noqa: E402
from figure_claims import CELLS  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from tables import OWN_DECAY, Result, cohens_d, pick, read_results, row_name, table_rows  # noqa: E402

from calibrant.kernels.bins import memberships  # noqa: E402
from calibrant.report.plots import (  # noqa: E402
    MARKERS,
    NEUTRAL,
    PALETTE,
    axes_or_new,
    percent_axis,
    shift_curves,
    tidy,
)

Rows = dict[str, list[Result]]
RESOLUTION = 90
CE, FOCAL = "cross_entropy+none", "focal+none"
SHOWN = (
    CE,
    "cross_entropy+mmce_weighted",
    FOCAL,
    "focal+mmce_weighted",
    "focal+soft_avuc",
    "focal+soft_ece",
    "brier+none",
)
SEVERITIES = range(6)
PRIMARY_COLORS = {"cross_entropy": PALETTE[1], "focal": PALETTE[0], "brier": PALETTE[2]}
PRIMARY_WORDS = {"cross_entropy": "cross entropy", "focal": "focal", "brier": "Brier"}


def effect_sizes(rows: Rows) -> Axes:
    """Figure 1: Cohen's d of each secondary loss on ECE₂, without and with temperature scaling."""
    shown = {
        name: runs
        for name, runs in rows.items()
        if not name.endswith(("+none", OWN_DECAY)) and len(rows[f"{name.split('+')[0]}+none"]) > 1
    }
    ax = axes_or_new(None, width=6.4, height=4.2)
    places = np.arange(len(shown))[::-1]
    for scaling, words, color, step in (("none", "no scaling", PALETTE[0], 0.2), ("ts", "after TS", PALETTE[1], -0.2)):
        plain = {name: rows[f"{name.split('+')[0]}+none"] for name in shown}
        path = ("test", scaling, "mass_ece")
        effects = [cohens_d(pick(plain[name], *path), pick(runs, *path)) for name, runs in shown.items()]
        ax.barh(places + step, effects, 0.38, color=color, label=words)
    ax.axvline(0, color=NEUTRAL, linewidth=0.8)
    ax.set_yticks(places, [f"{row_name(runs[0])} ({len(runs)})" for runs in shown.values()], fontsize="small")
    ax.legend(frameon=False, fontsize="small")
    return tidy(ax, x="Cohen's d on ECE₂ (right is better; seeds in brackets)", y="")


def cells(rows: Rows) -> Axes:
    """Figure 5: ECE₂ of every cell, with the standard error over seeds where there are several."""
    shown = {name: runs for name, runs in rows.items() if not name.endswith(OWN_DECAY)}
    ax = axes_or_new(None, width=6.4, height=5.2)
    places = np.arange(len(shown))[::-1]
    values = [pick(runs, "test", "none", "mass_ece") for runs in shown.values()]
    errors = [statistics.stdev(one) / len(one) ** 0.5 if len(one) > 1 else 0.0 for one in values]
    means = [statistics.mean(one) for one in values]
    ax.barh(
        places, means, 0.7, xerr=errors, color=[PRIMARY_COLORS[name.split("+")[0]] for name in shown], ecolor=NEUTRAL
    )
    for place, mean, runs in zip(places, means, shown.values(), strict=True):
        accuracy = statistics.mean(pick(runs, "test", "none", "accuracy"))
        ax.text(mean + 0.004, place, f"{100 * accuracy:.1f}%", va="center", fontsize=7, color=NEUTRAL)
    ax.set_yticks(places, [row_name(runs[0]) for runs in shown.values()], fontsize="small")
    percent_axis(ax.xaxis)
    return tidy(ax, x="ECE₂ on the test set (accuracy beside the bar)", y="")


def accuracy_over_confidence(rows: Rows) -> Axes:
    """Figures 6 and 10: accuracy over confidence in bins of equal width, all seeds pooled."""
    ax = axes_or_new(None, width=4.8, height=4.2)
    ax.plot([0, 1], [0, 1], color=NEUTRAL, linewidth=1, linestyle=(0, (4, 3)))
    for name, color, marker in zip(SHOWN, PALETTE, MARKERS, strict=True):
        bins = [run["test"]["none"]["reliability"] for run in rows[name]]
        count = np.sum([one["count"] for one in bins], axis=0)
        filled = count > 20 * len(bins)
        line = [
            np.sum([np.multiply(one["count"], one[side]) for one in bins], axis=0)[filled] / count[filled]
            for side in ("confidence", "accuracy")
        ]
        label = row_name(rows[name][0])
        ax.plot(*line, color=color, marker=marker, markersize=3.5, linewidth=1.4, label=label)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.legend(frameon=False, fontsize="x-small")
    percent_axis(ax.xaxis)
    percent_axis(ax.yaxis)
    return tidy(ax, x="confidence", y="accuracy", title="below the line: too sure")


def under_shift(rows: Rows, lines: dict[str, tuple[str, str]], title: str) -> Axes:
    """Figures 2 and 7: ECE₂ by severity of shift, mean over corruptions; `lines` name → (row, scaling)."""
    means = {}
    for words, (row, scaling) in lines.items():
        plain = 100 * statistics.mean(pick(rows[row], "test", scaling, "mass_ece"))
        levels = [plain, *(statistics.mean(severity(rows, row, level, scaling)) for level in SEVERITIES[1:])]
        means[words] = np.array(levels) / 100
    ax = axes_or_new(None, width=4.8, height=3.8)
    return shift_curves(list(SEVERITIES), means, metric="ECE₂", title=title, ax=ax)


def soft_bins() -> Axes:
    """Figure 3: how much a confidence belongs to the middle one of five bins, by temperature."""
    confidence, ax = np.linspace(0, 1, 1001), axes_or_new(None, width=4.8, height=3.2)
    for temperature, color in zip((0.1, 0.01, 0.001, 1e-5), PALETTE, strict=False):
        ax.plot(confidence, memberships(confidence, 5, temperature)[:, 2], color=color, label=f"T = {temperature:g}")
    ax.legend(frameon=False, fontsize="small")
    return tidy(ax, x="confidence", y="membership in bin 3 of 5", title="soft bins become hard as T falls")


def soft_thresholds() -> Axes:
    """Figure 4: the soft uncertainty function over the share of the largest entropy, by κ and T."""
    share, ax = np.linspace(0.001, 0.999, 999), axes_or_new(None, width=4.8, height=3.2)
    for kappa, color in zip((0.3, 0.5, 0.7), PALETTE, strict=False):
        for temperature, style in ((1.0, "-"), (0.1, "--")):
            line = shapes.uncertainty(share, kappa, temperature)
            ax.plot(share, line, style, color=color, label=f"κ = {kappa:g}, T = {temperature:g}")
    ax.legend(frameon=False, fontsize="x-small")
    return tidy(ax, x="entropy h / ln K", y="uncertainty t(h)", title="κ is the threshold, T its sharpness")


def error_over_entropy(rows: Rows) -> Axes:
    """Figure 10, right: ECE₂ against mean entropy of the 18 cells."""
    ax = axes_or_new(None, width=4.8, height=3.8)
    named: set[str] = set()
    for cell in (one for one in CELLS if one in rows):
        primary, secondary = cell.split("+")
        point = [statistics.mean(pick(rows[cell], "test", "none", key)) for key in ("entropy", "mass_ece")]
        label = PRIMARY_WORDS[primary] if primary not in named else None
        named.add(primary)
        plain = secondary == "none"
        ax.scatter(*point, color=PRIMARY_COLORS[primary], marker="o" if plain else "^", s=30, label=label)
    ax.legend(frameon=False, fontsize="small")
    percent_axis(ax.yaxis)
    return tidy(ax, x="mean entropy, nats", y="ECE₂", title="circle: no secondary loss")


def draw(rows: Rows) -> dict[str, Axes]:
    """Every figure by file name."""
    with_cross_entropy = [f"cross_entropy+{name}" for name in ("none", "soft_ece", "soft_avuc")]
    after = {
        f"{PRIMARY_WORDS[primary]} {words}": (f"{primary}+none", scaling)
        for primary in ("focal", "brier")
        for words, scaling in (("+ TS", "ts"), ("+ TS-SB-ECE", "ts-soft"))
    }
    scalings = {"cross entropy": "none", "… + TS": "ts", "… + TS-SB-ECE": "ts-soft"}
    trained = {row_name(rows[name][0]): (name, "none") for name in SHOWN if rows[name][0]["shift"]}
    return {
        "figure-1": effect_sizes(rows),
        "figure-2": under_shift(rows, {words: (CE, one) for words, one in scalings.items()}, "post-hoc scaling"),
        "figure-3": soft_bins(),
        "figure-4": soft_thresholds(),
        "figure-5": cells(rows),
        "figure-6": accuracy_over_confidence(rows),
        "figure-7": under_shift(rows, {"cross entropy + TS": (CE, "ts"), **trained}, "training for calibration"),
        "figure-8": under_shift(
            rows, {row_name(rows[name][0]): (name, "none") for name in with_cross_entropy}, "with cross entropy"
        ),
        "figure-9": under_shift(rows, after, "TS and TS-SB-ECE"),
        "figure-10": error_over_entropy(rows),
    }


def main() -> int:
    """Write the pictures."""
    for name, ax in draw(table_rows(read_results(HERE / "results"))).items():
        ax.figure.savefig(HERE / "results" / f"{name}.png", dpi=RESOLUTION, pil_kwargs={"optimize": True})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
