"""Draw the figure of the front page: `python docs/scripts/front_picture.py` writes docs/images/front-*.svg.

Reliability of the embedded CIFAR-100 network on its 10,000 test rows, before and after `conf+shape+keep` is fitted on
the 5,000 validation rows.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np

import calibrant as cal

FOLDER = Path(__file__).resolve().parents[1] / "images"
METHOD = "conf+shape+keep"
COLOURS = {
    "light": {"ink": "#1b1f24", "muted": "#59636e", "bar": "#0b5cad", "gap": "#e0732c"},
    "dark": {"ink": "#e7eaee", "muted": "#9ca7b3", "bar": "#6fb4f0", "gap": "#f2935c"},
}


def main() -> None:
    """Fit, measure, and draw both schemes."""
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "front", "font.family": "sans-serif"})
    data = cal.datasets.load("cifar100-resnet18")
    fitted = cal.get(METHOD).fit(data.val.logits, data.val.labels)
    panels = {
        "Before": cal.metrics.reliability(data.test.probabilities, data.test.labels, n_bins=15),
        "After": cal.metrics.reliability(fitted.predict_proba(data.test.logits), data.test.labels, n_bins=15),
    }
    for scheme, colours in COLOURS.items():
        draw(panels, colours, FOLDER / f"front-{scheme}.svg")


def draw(panels: dict, colours: dict[str, str], path: Path) -> None:
    """Accuracy of each bin as a bar, and what is missing from or beyond the stated confidence as a second one."""
    figure, axes = plt.subplots(1, 2, figsize=(7.4, 3.5), sharey=True)
    for axis, (title, found) in zip(axes, panels.items(), strict=True):
        filled = found.filled
        centre = ((found.lower + found.upper) / 2)[filled]
        confidence, accuracy = found.confidence[filled], found.accuracy[filled]
        low, high = np.minimum(confidence, accuracy), np.maximum(confidence, accuracy)
        axis.bar(centre, low, width=1 / 17, color=colours["bar"])
        axis.bar(centre, high - low, bottom=low, width=1 / 17, color=colours["gap"], label="gap")
        axis.plot([0, 1], [0, 1], color=colours["muted"], linewidth=1, linestyle=(0, (3, 3)))
        axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="stated confidence")
        axis.set_title(f"{title}: ECE {100 * found.ece:.2f}%", color=colours["ink"], fontsize=11, loc="left")
        axis.tick_params(colors=colours["muted"], labelsize=9, length=0)
        axis.xaxis.label.set_color(colours["muted"])
        axis.spines[:].set_visible(False)
    axes[0].set_ylabel("how often right", color=colours["muted"])
    axes[1].legend(frameon=False, loc="upper left", labelcolor=colours["ink"], fontsize=9)
    figure.tight_layout()
    figure.savefig(path, transparent=True, metadata={"Date": None})
    plt.close(figure)
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


if __name__ == "__main__":
    main()
