"""The tables of the pages as data; the templates make HTML of all of them by the same macros."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibrant.evaluation import table
from calibrant.evaluation.bootstrap import draw
from calibrant.evaluation.models import ModelComparison
from calibrant.evaluation.rendering import bounds, figure
from calibrant.evaluation.results import EXTRAS, Comparison, MethodRow, TestColumns
from calibrant.evaluation.scoring import column_estimates
from calibrant.evaluation.table import Estimate
from calibrant.evaluation.verdicts import SIGNIFICANCE
from calibrant.kernels.rows import RowColumns
from calibrant.metrics.record import facts, number
from calibrant.metrics.top_label import ece
from calibrant.report.chart_data import baseline, finished, group_analyses, has_decisions, shown_groups
from calibrant.report.methods import full_name, summary
from calibrant.report.wording import shown_metrics

MOST_LABELS = 200
"""Labels in the table; of more, those with the largest error after calibration."""
FEW_POSITIVES = 10
LARGEST_LOSS = 700.0
"""Log losses from here on come of probabilities of exactly 0 or 1, not of logits."""


@dataclass(frozen=True)
class Cell:
    """A figure as text, with its interval; `value` is what a sorted column goes by, `kind` a style of the page."""

    text: str
    interval: str = ""
    kind: str = ""
    tie: bool = False
    value: str = ""


@dataclass(frozen=True)
class Line:
    """One row: a name (with marks of code), what is said beside or below it, and the cells."""

    name: str
    cells: Sequence[Cell]
    kind: str = ""
    note: str = ""
    full: str = ""
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Headings with their meaning or link, rows, and the methods that failed with the reason."""

    caption: str
    heads: Sequence[tuple[str, str]]
    lines: Sequence[Line]
    failed: Sequence[tuple[str, str]] = ()
    kind: str = "small"
    sorted_by: int = -1
    direction: str = "none"
    note: str = ""


def failures(comparison: Comparison) -> list[tuple[str, str]]:
    """The methods that failed, and why."""
    return [(row.method, row.error) for row in comparison.rows if row.error is not None]


def _cell(one: table.Cell | None, shown: Callable[[str, float], str] = figure) -> Cell:
    """A figure of a result with its unit, its marks and its interval."""
    if one is None:
        return Cell("failed")
    value = one.estimate.value
    kind = "best" if one.best else "second" if one.second else ""
    sorted_by = f"{value:.10g}" if np.isfinite(value) else ""
    interval = bounds(one.metric, one.estimate, shown) if np.isfinite(value) else ""
    return Cell(shown(one.metric, value), interval, kind, one.tie, sorted_by)


def _ranked(comparison: Comparison, names: Sequence[str]) -> list[tuple[MethodRow, list[Cell]]]:
    """The methods that worked, best first, with the cells of the columns."""
    found = {row.name: row for row in comparison.table().rows}
    order = comparison.ranking(comparison.criterion)
    return [(comparison.row(one), [_cell(found[one].cells[name]) for name in names]) for one in order]


def methods_table(comparison: Comparison) -> Table:
    """Every method by the deciding metric; answers do not change with their confidence."""
    extras = EXTRAS[comparison.task == "pairs" :]
    names = [*shown_metrics(comparison), *extras]
    heads = [("Method", "short name; choose one to see it in the charts")]
    for name in names:
        look = facts(name)
        # the split of the ECE goes by its short names: the table has many columns
        part = look.better == 0 and name not in extras
        heads.append((look.column.capitalize() if part else look.heading, look.meaning))
    lines = [
        Line(
            row.method,
            shown,
            note=summary(row.calibrator),
            full=full_name(row.method, row.calibrator),
            best=row.method == comparison.best,
        )
        for row, shown in _ranked(comparison, names)
    ]
    direction = "descending" if facts(comparison.criterion).better > 0 else "ascending"
    place = names.index(comparison.criterion) + 1 if comparison.criterion in names else -1
    caption = "Methods and their figures on the test rows"
    return Table(caption, heads, lines, failures(comparison), sorted_by=place, direction=direction)


def model_methods(name: str, comparison: Comparison) -> Table:
    """The main figures of every method on one model."""
    names = list(dict.fromkeys((comparison.criterion, "ece", "accuracy")))
    if comparison.task == "pairs":
        names.remove("accuracy")
    lines = []
    for row, shown in _ranked(comparison, names):
        floor = row.noise_floor
        said = "–" if floor is None else ("no gap seen" if floor.p_value >= SIGNIFICANCE else "no")
        lines.append(Line(f"`{row.method}`", [*shown, Cell(said)]))
    heads = _plain_heads("Method", *(facts(one).heading for one in names), "Calibrated after")
    return Table(f"Methods on {name}", heads, lines, failures(comparison))


def matrix(comparison: ModelComparison) -> Table:
    """Methods × models, then mean rank and wins."""
    found = comparison.table()
    lines = [
        Line(
            f"`{row.name}`",
            [replace(_cell(row.cells.get(name), number), interval="") for name in found.columns],
            full=full_name(row.name),
            best=row.best,
        )
        for row in found.rows
    ]
    links = [(name, f"#model-{place}") for place, name in enumerate(comparison.models)]
    heads = [("Method", ""), *links, ("Mean rank", ""), (f"Best or tied, of {len(links)}", "")]
    return Table("The deciding metric of every method on every model", heads, lines, kind="matrix")


def _plain_heads(*names: str) -> list[tuple[str, str]]:
    return [(name, "") for name in names]


def _signed_points(_: str, value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "−")


def _two_decimals(_: str, value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def group_table(comparison: Comparison) -> Table | None:
    """Every shown group before and after the best method."""
    found, best, before = group_analyses(comparison), comparison.best or "", baseline(comparison) or ""
    if best not in found or before not in found:
        return None
    clinical = "observed_expected" in found[best].groups[0].metrics
    lines = []
    for place in shown_groups(comparison):
        old, new = found[before].groups[place], found[best].groups[place]
        gaps = [_cell(table.Cell("gap", one.metrics["gap"]), _signed_points) for one in (old, new)]
        errors = [Cell(figure("ece", one)) for one in (new.metrics["ece"].value, new.noise_floor.mean)]
        cells = [Cell(f"{new.n:,}"), *gaps, *errors]
        if clinical:
            cells.append(_cell(table.Cell("observed_expected", new.metrics["observed_expected"]), _two_decimals))
        lines.append(Line(new.name, cells, note="few rows" if new.too_few else ""))
    heads = ["Group", "Rows", "Gap before", "Gap after", "ECE after", "by chance", *["O:E after"] * clinical]
    return Table(f"Groups before and after {best}", _plain_heads(*heads), lines)


def label_table(comparison: Comparison) -> Table | None:
    """Error and log loss of every label before and after the best method; None for other tasks.

    The largest error stands first; labels with too few events cannot be ranked and stand last.
    """
    columns = {row.method: columns for row, columns in finished(comparison)}
    both, width = (baseline(comparison) or "", comparison.best or ""), comparison.n_classes
    if comparison.task != "multilabel" or both[1] not in columns or len(comparison.labels) % width:
        return None
    labels = np.asarray(comparison.labels).reshape(-1, width)
    weights = None if comparison.weights is None else np.asarray(comparison.weights).reshape(-1, width)[:, 0]
    old, new = (_by_label(columns[name], width, weights, comparison.n_bins) for name in both)
    positive = labels.sum(axis=0).astype(int)
    few = np.minimum(positive, len(labels) - positive) < FEW_POSITIVES

    def line(name: str, positives: int, figures: Sequence[np.ndarray], kind: str, note: str = "") -> Line:
        shown = [figure("ece", one[0]) for one in figures] + [figure("nll", one[1]) for one in figures]
        return Line(name, [Cell(text) for text in (f"{positives:,}", *shown)], kind, note)

    pooled = [np.array([comparison.row(name).metrics[key].value for key in ("ece", "nll")]) for name in both]
    lines = [line("all labels pooled", int(positive.sum()), pooled, "macro")]
    lines.append(line("mean of the labels", int(positive.sum()), [old.mean(axis=1), new.mean(axis=1)], "macro"))
    names = comparison.class_names or tuple(f"label {index}" for index in range(width))
    for place in np.lexsort((-new[0], few))[:MOST_LABELS]:
        kind, note = ("few", f"fewer than {FEW_POSITIVES} events") if few[place] else ("", "")
        lines.append(line(str(names[place]), int(positive[place]), [old[:, place], new[:, place]], kind, note))
    heads = ("Label", "Positives", "ECE before", "ECE after", "Log loss before", "Log loss after")
    note = f"The {MOST_LABELS} largest errors of {width:,} labels." if width > MOST_LABELS else ""
    return Table(f"Labels before and after {both[1]}", _plain_heads(*heads), lines, note=note)


def _by_label(columns: TestColumns, width: int, weights: np.ndarray | None, n_bins: int) -> np.ndarray:
    """ECE and mean log loss (2, L) of every label."""
    stated, seen, loss = (
        np.asarray(column).reshape(-1, width) for column in (columns.confidence, columns.correct, columns.nll)
    )
    errors = [ece(stated[:, place], seen[:, place], sample_weight=weights, n_bins=n_bins) for place in range(width)]
    return np.stack([np.array(errors), np.average(loss, axis=0, weights=weights)])


def clinical_figures(comparison: Comparison, columns: TestColumns) -> dict[str, Estimate]:
    """Slope, intercept, O:E and the rest with bootstrap intervals over rows."""
    loss, seen, none = np.asarray(columns.nll, dtype=float), np.asarray(columns.correct, dtype=bool), np.empty(0)
    rows = RowColumns(columns.confidence, columns.prediction, seen, loss, none, none)
    resamples = draw(len(loss), comparison.resamples, comparison.seed)
    of_logits = bool(loss.max(initial=0.0) < LARGEST_LOSS)
    return column_estimates((), rows, resamples, weights=comparison.weights, of_logits=of_logits)[0]


def clinical_table(comparison: Comparison) -> Table | None:
    """Each figure before and after the best method, and what it says in words."""
    if not has_decisions(comparison):
        return None
    columns = {row.method: columns for row, columns in finished(comparison)}
    before, best = baseline(comparison) or "", comparison.best or ""
    old = clinical_figures(comparison, columns[before])
    new = old if best == before else clinical_figures(comparison, columns[best])
    lines = []
    for name, label, ideal, *_ in CLINICAL:
        goal = "" if ideal is None else f"Ideal {ideal:g}. "
        cells = [_cell(table.Cell(name, one[name]), _two_decimals) for one in (old, new)]
        lines.append(Line(label, [*cells, Cell(goal + clinical_words(name, new[name]))]))
    heads = _plain_heads("Figure", "Before", f"After `{best}`", "In words, after")
    return Table("Calibration in clinical terms, before and after", heads, lines, kind="small said")


Words = tuple[str, str, str]
"""What is said where the interval is below the ideal, holds it, and is above it; {} is what the figure comes to."""

SEEN = "For every 100 events expected, {:.0f} were seen: "
ODDS = "on average; their odds should be multiplied by {:.2f}."
CLINICAL: tuple[tuple[str, str, float | None, Callable[[float], float], Words], ...] = (
    ("observed_expected", "Observed : expected events", 1.0, lambda value: 100 * value,
     (f"{SEEN}risk is overestimated on average.", f"{SEEN}no more than chance explains.",
      f"{SEEN}risk is underestimated on average.")),
    ("calibration_intercept", "Calibration in the large (intercept)", 0.0, np.exp,
     (f"Risks are too high {ODDS}", "The average risk is right, as far as these rows can tell.",
      f"Risks are too low {ODDS}")),
    ("calibration_slope", "Calibration slope", 1.0, float,
     ("Risks are too extreme: high ones too high, low ones too low.",
      "Risks are neither too extreme nor too timid, as far as these rows can tell.",
      "Risks are too timid: high ones too low, low ones too high.")),
    ("integrated_calibration_index", "Mean distance of the curve (ICI)", 0.0, lambda value: 100 * value,
     3 * ("On average a stated risk is {:.1f} points from the smooth curve.",)),
    ("roc_auc", "Discrimination (ROC AUC)", None, lambda value: 100 * value,
     3 * ("In {:.0f} of 100 pairs of a positive and a negative, the positive has the higher risk.",)),
)  # fmt: skip


def clinical_words(name: str, one: Estimate) -> str:
    """What a clinical figure says."""
    _, _, ideal, shown, (below, holds, above) = next(row for row in CLINICAL if row[0] == name)
    if ideal is None or one.low <= ideal <= one.high:
        return holds.format(shown(one.value))
    return f"{below if one.value < ideal else above}".format(shown(one.value))
