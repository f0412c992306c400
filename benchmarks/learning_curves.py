"""How many fit rows a method needs: log loss after fits on 50 … 5,000 rows of every family.

    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/learning_curves.py --data ../shared/data --json curves.json \
        --figure docs/images/learning-curves.png

Everything happens inside the calibration parts: two thirds of the rows are there to draw fit rows from, one third
scores, and the test parts are not read. Each size is drawn `--draws` times. Last come the fits whose default is worse
than the better of none and ts (paired over the rows that score, Holm-adjusted at each size). `--figure` draws the
excess of the log loss over the best method of that size; with `--json` of an earlier run and `--draw-only` nothing is
fitted again.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from arena import answer, row_losses, worse
from arena_cases import FAMILIES, Case, cases, few_rows, nested
from arena_methods import ours

SIZES = (50, 100, 200, 500, 1000, 5000)
BINARY = ("none", "ts", "platt", "bend")
MULTICLASS = ("none", "ts", "shape", "vs", "auto")


DEFAULTS = ("auto", "bend")
"""What `AutoCalibrator()` fits to more than two classes and to two."""


SHOWN_AS = {"auto": "default", "bend": "default", "vs": "vs (classes), platt (one score)"}
SHOWN_AS["platt"] = SHOWN_AS["vs"]
"""Names in the legend, which all panels share."""


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    excesses: dict[tuple[str, int], dict[str, dict[str, float]]] = defaultdict(dict)
    sums: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for case in (case for family in options.families for case in spread(options, family)):
        inner = nested(case, seed=0)
        for size in SIZES:
            if size > len(inner.fit_labels):
                continue
            for draw in range(options.draws):
                small = few_rows(inner, size, draw)
                if len(np.unique(small.fit_labels)) < 2:
                    continue
                by_row: dict[str, np.ndarray] = {}
                for name in BINARY if case.binary else MULTICLASS:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        found, _ = answer(ours(name), small, 600)
                    by_row[name] = row_losses(found, small.test_labels)
                    sums[case.family, size][name].append(float(by_row[name].mean()))
                excesses[case.family, size][f"{case.name}#{draw}"] = _excess(by_row)
    return [
        {
            "family": family,
            "rows": size,
            "fits": len(next(iter(found.values()))),
            "log_loss": _means(found),
            "excess": excesses[family, size],
        }
        for (family, size), found in sums.items()
    ]


def spread(options: argparse.Namespace, family: str) -> list[Case]:
    """At most `--files` data sets of a family, evenly spread over its file names."""
    every = [case for case in cases(options.data, [family]) if case.fit.shape[1] <= options.most_classes]
    return every[:: max(1, len(every) // options.files)][: options.files]


def _excess(by_row: dict[str, np.ndarray]) -> dict[str, float]:
    """The default's loss minus that of the better of none and ts, and its standard error."""
    default = next(by_row[name] for name in DEFAULTS if name in by_row)
    excess = default - min((by_row["none"], by_row["ts"]), key=np.mean)
    return {"excess": float(excess.mean()), "excess_error": float(excess.std() / np.sqrt(len(excess)))}


def _means(found: dict[str, list[float]]) -> dict[str, float]:
    return {name: float(np.mean(values)) for name, values in found.items()}


def table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for family in dict.fromkeys(row["family"] for row in rows):
        mine = [row for row in rows if row["family"] == family]
        names = list(mine[0]["log_loss"])
        lines += [
            f"\n| {family}, fit rows | " + " | ".join(names) + " | fits |",
            "| --- |" + " ---: |" * (len(names) + 1),
        ]
        for row in mine:
            figures = " | ".join(f"{row['log_loss'][name]:.4f}" for name in names)
            lines.append(f"| {row['rows']:,} | {figures} | {row['fits']} |")
    return "\n".join([*lines, "\nWorse than the better of none and ts, Holm-adjusted at each size:\n", *_worse(rows)])


def _worse(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for size in sorted({row["rows"] for row in rows}):
        tested = {n: one for row in rows if row["rows"] == size for n, one in row.get("excess", {}).items()}
        lines += [f"- {size:,} rows, {len(tested)} fits: " + "; ".join(one.lstrip("- ") for one in worse(tested))]
    return lines


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    families = list(dict.fromkeys(row["family"] for row in rows))
    columns = 3
    figure, grid = plt.subplots(
        -(-len(families) // columns), columns, figsize=(9.6, 2.6 * -(-len(families) // columns)), layout="constrained"
    )
    colours = {"none": "#888888", "ts": "#d55e00", "shape": "#009e73", "vs": "#cc79a7", "platt": "#cc79a7"}
    for axes, family in zip(grid.ravel(), families, strict=False):
        mine = [row for row in rows if row["family"] == family]
        for name in mine[0]["log_loss"]:
            excess = [row["log_loss"][name] - min(row["log_loss"].values()) for row in mine]
            style = {"color": colours.get(name, "#0072b2"), "linewidth": 2.2 if name in ("auto", "bend") else 1.0}
            axes.plot(
                [row["rows"] for row in mine],
                np.array(excess) + 1e-4,
                marker="o",
                markersize=3,
                label=SHOWN_AS.get(name, name),
                **style,
            )
        axes.set(xscale="log", yscale="log", title=family, xlabel="fit rows", ylabel="excess log loss + 1e-4")
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid.ravel()[len(families) :]:
        axes.set_axis_off()
    named = {
        label: line for axes in grid.ravel() for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(named.values(), named, loc="outside upper center", ncols=len(named), frameon=False)
    figure.savefig(path, dpi=100, pil_kwargs={"optimize": True})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with zoo, external, tabular, chestxray14")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--files", type=int, default=1000, help="most files of a family, spread over its names")
    parser.add_argument("--most-classes", type=int, default=1000, help="leave out files with more classes")
    parser.add_argument("--draws", type=int, default=2, help="random draws of each size")
    parser.add_argument("--json", type=Path, required=True, help="where the figures are written")
    parser.add_argument("--figure", type=Path, help="draw the curves there")
    parser.add_argument("--draw-only", action="store_true", help="draw what --json holds")
    options = parser.parse_args()
    if not options.draw_only:
        options.json.write_text(json.dumps(run(options), indent=1))
    rows = json.loads(options.json.read_text())
    print(table(rows))
    if options.figure:
        draw(rows, options.figure)


if __name__ == "__main__":
    main()
