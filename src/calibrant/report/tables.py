"""The tables of the pages as tables of results; the templates make HTML of all of them by the same macros."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from calibrant.core.arrays import Array
from calibrant.evaluation.bootstrap import draw
from calibrant.evaluation.consistency import SIGNIFICANCE
from calibrant.evaluation.rendering import figure
from calibrant.evaluation.results import EXTRAS, Comparison
from calibrant.evaluation.scan import column_rows
from calibrant.evaluation.scoring import estimated
from calibrant.evaluation.table import Cell, Estimate, Row, Table
from calibrant.kernels.rows import RowColumns
from calibrant.metrics.record import METRICS, facts
from calibrant.metrics.top_label import ece
from calibrant.report.chart_data import baseline, finished, group_analyses, has_decisions, shown_groups
from calibrant.report.wording import class_names

MOST_LABELS = 200
"""Labels in the table; of more, those with the largest error after calibration."""
FEW_POSITIVES = 10
LARGEST_LOSS = 700.0
"""Log losses from here on come of probabilities of exactly 0 or 1, not of logits."""


@dataclass(frozen=True)
class Line(Row):
    """A row with a remark beside its name, and a style of the page."""

    note: str = ""
    kind: str = ""


def _ranked(comparison: Comparison, columns: Mapping[str, str], texts: Mapping[str, Mapping[str, str]]) -> Table:
    """The methods by the deciding metric, the best first, those that failed at the end."""
    found = {row.name: row for row in comparison.table().rows}
    worked = [found[name] for name in comparison.ranking(comparison.criterion)]
    failed = [row for row in found.values() if row.error is not None]
    return Table("Method", columns, (*worked, *failed), texts=texts)


def methods_table(comparison: Comparison) -> Table:
    """Every figure of every method, the deciding one first; answers do not change with their confidence."""
    extras = EXTRAS[comparison.task == "pairs" :]
    columns = {}
    for name in (*sorted(comparison.metric_names, key=lambda name: name != comparison.criterion), *extras):
        look = facts(name)
        # the split of the ECE goes by its short names: the table has many columns
        part = look.better == 0 and name not in extras
        columns[name] = look.column.capitalize() if part else look.heading
    if comparison.task != "multiclass":
        columns.pop("sce", None)  # with one probability per row it is the ECE again
    return _ranked(comparison, columns, {})


def model_methods(comparison: Comparison) -> Table:
    """The main figures of every method on one model."""
    names = (comparison.criterion, "ece", *["accuracy"] * (comparison.task != "pairs"))
    columns, said = {name: facts(name).heading for name in names}, {}
    for row in comparison.rows:
        floor = row.noise_floor
        said[row.method] = "–" if floor is None else "no gap seen" if floor.p_value >= SIGNIFICANCE else "no"
    return _ranked(comparison, columns, {"Calibrated after": said})


def small_figure(metric: str, value: float) -> str:
    """A figure of a small table: gaps in signed points, clinical figures with two decimals, others with their unit."""
    if metric == "gap":
        return f"{100 * value:+.1f}".replace("-", "−")
    return f"{value:.2f}".replace("-", "−") if metric in CLINICAL else figure(metric, value)


def group_table(comparison: Comparison) -> Table | None:
    """Every shown group before and after the best method."""
    found, best, before = group_analyses(comparison), comparison.best or "", baseline(comparison)
    if best not in found:
        return None
    columns = {"n": "Rows", "old": "Gap before", "new": "Gap after", "ece": "ECE after", "floor": "by chance"}
    lines = []
    for place in shown_groups(comparison):
        old, new = found[before].groups[place], found[best].groups[place]
        cells = {
            "n": Cell("n", Estimate(new.n)),
            "old": Cell("gap", old.metrics["gap"]),
            "new": Cell("gap", new.metrics["gap"]),
            "ece": Cell("ece", Estimate(new.metrics["ece"].value)),
            "floor": Cell("ece", Estimate(new.noise_floor.mean)),
        }
        if "observed_expected" in new.metrics:
            columns["expected"] = "O:E after"
            cells["expected"] = Cell("observed_expected", new.metrics["observed_expected"])
        lines.append(Line(new.name, cells, note="few rows" if new.too_few else ""))
    return Table("Group", columns, tuple(lines), f"Groups before and after {best}")


def label_table(comparison: Comparison) -> Table | None:
    """Error and log loss of every label before and after the best method; None for other tasks.

    The largest error stands first; labels with too few events cannot be ranked and stand last.
    """
    done, width = finished(comparison), comparison.n_classes
    both = baseline(comparison), comparison.best or ""
    if comparison.task != "multilabel" or both[1] not in done or len(comparison.labels) % width:
        return None
    labels = comparison.labels.reshape(-1, width)
    weights = None if comparison.weights is None else comparison.weights[::width]
    values = np.stack([_by_label(done[name], width, weights, comparison.n_bins) for name in both], axis=1)
    positive = labels.sum(axis=0).astype(int)
    few = np.minimum(positive, len(labels) - positive) < FEW_POSITIVES
    names, total = class_names(comparison), positive.sum()
    pooled = np.array([[comparison.row(name).metrics[key].value for name in both] for key in ("ece", "nll")])
    found = [("all labels pooled", total, pooled, "", "macro")]
    found.append(("mean of the labels", total, values.mean(axis=2), "", "macro"))
    for place in np.lexsort((-values[0, 1], few))[:MOST_LABELS]:
        look = (f"fewer than {FEW_POSITIVES} events", "few") if few[place] else ("", "")
        found.append((names[place], positive[place], values[:, :, place], *look))
    lines = []
    for name, positives, figures, note, kind in found:
        numbers = zip(LABEL_FIGURES.items(), (positives, *figures.flat), strict=True)
        cells = {title: Cell(metric, Estimate(value)) for (title, metric), value in numbers}
        lines.append(Line(name, cells, note=note, kind=kind))
    columns = {title: title for title in LABEL_FIGURES}
    return Table("Label", columns, tuple(lines), f"Labels before and after {both[1]}")


LABEL_FIGURES = {
    "Positives": "n_positive",
    "ECE before": "ece", "ECE after": "ece", "Log loss before": "nll", "Log loss after": "nll",
}  # fmt: skip


def _by_label(columns: RowColumns, width: int, weights: Array | None, n_bins: int) -> Array:
    """ECE and mean log loss (2, L) of every label."""
    stated, seen, loss = (column.reshape(-1, width) for column in (columns.confidence, columns.correct, columns.nll))
    errors = [ece(p, y, sample_weight=weights, n_bins=n_bins) for p, y in zip(stated.T, seen.T, strict=True)]
    return np.stack([errors, np.average(loss, axis=0, weights=weights)])


def clinical_figures(comparison: Comparison, columns: RowColumns) -> Mapping[str, Estimate]:
    """Slope, intercept, O:E and the rest with bootstrap intervals over rows."""
    resamples = draw(len(columns.nll), comparison.resamples, comparison.seed)
    of_logits = columns.nll.max(initial=0.0) < LARGEST_LOSS
    scores = column_rows(columns, resamples, comparison.weights, task="binary", of_logits=of_logits)
    chosen = [one for one in METRICS.values() if one.figures and one.about == "score"]
    return estimated(chosen, scores, resamples, n_bins=15)[0]


def clinical_table(comparison: Comparison) -> Table | None:
    """Each figure before and after the best method, and what it says in words."""
    if not has_decisions(comparison):
        return None
    done, before, best = finished(comparison), baseline(comparison), comparison.best or ""
    old = clinical_figures(comparison, done[before])
    new = old if best == before else clinical_figures(comparison, done[best])
    rows, words = [], {}
    for name, (label, ideal, *_) in CLINICAL.items():
        rows.append(Row(label, {"old": Cell(name, old[name]), "new": Cell(name, new[name])}))
        words[label] = ("" if ideal is None else f"Ideal {ideal:g}. ") + clinical_words(name, new[name])
    columns, texts = {"old": "Before", "new": f"After `{best}`"}, {"In words, after": words}
    return Table("Figure", columns, tuple(rows), "Calibration in clinical terms, before and after", texts)


Words = tuple[str, str, str]
"""What is said where the interval is below the ideal, holds it, and is above it; {} is the figure times a factor, or
the odds of which it is the logarithm."""

SEEN = "For every 100 events expected, {:.0f} were seen: "
ODDS = "on average; their odds should be multiplied by {:.2f}."
CLINICAL: dict[str, tuple[str, float | None, int | None, Words]] = {
    "observed_expected": ("Observed : expected events", 1.0, 100,
     (f"{SEEN}risk is overestimated on average.", f"{SEEN}no more than chance explains.",
      f"{SEEN}risk is underestimated on average.")),
    "calibration_intercept": ("Calibration in the large (intercept)", 0.0, None,
     (f"Risks are too high {ODDS}", "The average risk is right, as far as these rows can tell.",
      f"Risks are too low {ODDS}")),
    "calibration_slope": ("Calibration slope", 1.0, 1,
     ("Risks are too extreme: high ones too high, low ones too low.",
      "Risks are neither too extreme nor too timid, as far as these rows can tell.",
      "Risks are too timid: high ones too low, low ones too high.")),
    "integrated_calibration_index": ("Mean distance of the curve (ICI)", 0.0, 100,
     3 * ("On average a stated risk is {:.1f} points from the smooth curve.",)),
    "roc_auc": ("Discrimination (ROC AUC)", None, 100,
     3 * ("In {:.0f} of 100 pairs of a positive and a negative, the positive has the higher risk.",)),
}  # fmt: skip


def clinical_words(name: str, one: Estimate) -> str:
    """What a clinical figure says."""
    _, ideal, factor, (below, holds, above) = CLINICAL[name]
    words = holds if ideal is None or one.low <= ideal <= one.high else below if one.value < ideal else above
    return words.format(factor * one.value if factor else np.exp(one.value))
