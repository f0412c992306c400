"""What a page shows: the numbers behind its charts, and its tables.

Charts get bins and curves, so that a page hardly grows with the rows. Tables are tables of results, of which the
templates make HTML by the same macros.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.errors import said
from calibrant.evaluation.bootstrap import clopper_pearson, draw
from calibrant.evaluation.deferral import kept_worth, threshold_for_error
from calibrant.evaluation.results import Comparison, MethodRow
from calibrant.evaluation.scoring import column_rows, estimated, zero_notes
from calibrant.evaluation.shift import ShiftCurves
from calibrant.evaluation.tables import Cell, Estimate, Json, Row, Table, figure, plain
from calibrant.kernels.rows import RowColumns
from calibrant.metrics.clinical import THRESHOLDS, decision_curve, flexible_calibration, threshold_metrics
from calibrant.metrics.record import METRICS, facts
from calibrant.metrics.top_label import ece
from calibrant.report.charts import charts, shift_chart
from calibrant.report.wording import POSITIVE, class_names, class_temperatures, wording

HISTOGRAM_BINS = 40
CLASS_CELLS = 25_000
"""Bins of class diagrams that a page may carry, about 300 kB; methods beyond are left out of the class explorer."""
MOST_CLASSES = 2_000
"""Classes the explorer lists; of more, those predicted most often."""
MOST_GROUPS = 40
"""Groups the page shows; of more, those with the largest gaps under the best method."""
MOST_FITTED = 2_000_000
"""Rows through which smooth curves are fitted, over all methods; the uncalibrated and the best come first."""
TARGET_ERRORS = (0.2, 0.1, 0.05, 0.02, 0.01)
TABLE_THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)
BINS = (
    "lower", "upper", "confidence", "accuracy", "accuracy_low", "accuracy_high", "noise_low", "noise_high", "count",
)  # fmt: skip
GUARANTEES = ("target", "threshold", "error", "coverage")
GAPS = ("group", "rows", "gap", "low", "high", "few", "side")
MOST_LABELS = 200
"""Labels in the table; of more, those with the largest error after calibration."""
FEW_POSITIVES = 10


def finished(comparison: Comparison) -> dict[str, RowColumns]:
    """The methods that worked, with what diagrams need of every test row."""
    return {row.method: row.columns for row in comparison.rows if row.columns}


def baseline(comparison: Comparison) -> str:
    """The uncalibrated scores, or the first method that worked; empty where none did."""
    names = finished(comparison)
    return next(filter(names.get, ("none", *names)), "")


def shown_method(comparison: Comparison) -> str:
    """The method that charts and tables of one method show: the recommended one, else the first that worked."""
    return comparison.recommended or baseline(comparison)


def payload(comparison: Comparison, shift: ShiftCurves | None = None) -> Json:
    """What the page's script reads: chart specifications and the numbers behind them."""
    done, words, curves = finished(comparison), wording(comparison), None
    groups, decisions = group_tables(comparison)[0], decision_tables(comparison)
    drawn = charts(words, len(set(groups["gaps"]["group"])) if groups else 0, decisions is not None) if done else {}
    if shift is not None:
        drawn = drawn | {"shift": shift_chart(list(shift.methods), facts(shift.metric))}
        # the mean of each method at every severity, with its standard error
        found = zip(shift.methods, shift.mean, shift.sem, strict=True)
        curves = stacked(
            {name: {"severity": shift.severities, "value": mean, "error": sem} for name, mean, sem in found}
        )
    parts = {name: _diagrams(comparison, name, one) for name, one in done.items()}
    names = ("reliability", "histogram", "means", "coverage", "guarantees")
    return {
        "methods": list(done),
        "before": baseline(comparison),
        "selected": shown_method(comparison),
        "charts": drawn,
        **{name: stacked({method: one[name] for method, one in parts.items()}) for name in names},
        "words": {"mean": words.mean, "share": words.share},
        "sentences": {name: ece_words(comparison.row(name)) for name in done},
        "classes": class_tables(comparison),
        "groups": groups,
        "decisions": decisions,
        "shift": curves,
    }


def rounded(values: Any) -> Any:
    """Numbers with as many digits as the page shows, None for what is not finite; what is no fraction stays."""
    array = np.asarray(values)
    return plain(np.round(array.astype(float), 4) if array.dtype.kind == "f" else array)


def stacked(parts: dict[str, Json]) -> Json:
    """The columns of several methods below each other, beside the method.

    >>> stacked({"a": {"x": [0.123456]}, "b": {"x": [1.0]}})
    {'method': ['a', 'b'], 'x': [0.1235, 1.0]}
    """
    table: Json = {"method": []}
    for method, columns in parts.items():
        for name, values in columns.items():
            table.setdefault(name, []).extend(rounded(values))
        table["method"] += [method] * len(values)
    return table


def _diagrams(comparison: Comparison, method: str, columns: RowColumns) -> Json:
    """What the charts of one method show.

    Bins of the reliability diagram; how many rows of either outcome each narrow range of the stated probability holds;
    mean confidence and accuracy; error among the kept rows, its upper bound and the threshold, for every whole percent
    deferred; and for each target error the threshold that holds it with 95% confidence, None where there is none.
    """
    bins, words, edges = comparison.bins(method), wording(comparison), np.linspace(0, 1, HISTOGRAM_BINS + 1)
    found = {name: getattr(bins, name)[bins.filled] for name in BINS}
    sure, right, weights, clusters = columns.confidence, columns.correct, comparison.weights, comparison.clusters
    stated, mean = np.clip(sure, 0, 1), {"confidence": sure, "accuracy": right}
    if words is POSITIVE:
        # columns of a positive class hold its probability and its label; the decision is p ≥ 0.5
        sure, right = np.maximum(sure, 1 - sure), columns.prediction == right
    deferred, (curve, worth) = np.arange(100) / 100, kept_worth(sure, right, weights, clusters)
    place = np.searchsorted(curve.coverage, 1 - deferred - 1e-12)
    risk, threshold = curve.risk[place], curve.threshold[place]
    bound = [clopper_pearson(*counts, 0.9)[1] for counts in zip(risk * worth[place], worth[place], strict=True)]
    held = [threshold_for_error(sure, right, one, weights=weights, clusters=clusters) for one in TARGET_ERRORS]
    outcomes = (columns.correct, ~columns.correct)
    return {
        "reliability": found | {"height": found["count"] / bins.count.max(initial=1)},
        "histogram": {
            "left": np.tile(edges[:-1], 2),
            "outcome": np.repeat([words.yes, words.no], HISTOGRAM_BINS),
            "rows": np.concatenate([np.histogram(stated[chosen], edges)[0] for chosen in outcomes]),
        },
        "means": {name: [np.average(column, weights=weights)] for name, column in mean.items()},
        "coverage": {"deferred": deferred, "risk": risk, "bound": bound, "threshold": threshold},
        "guarantees": {name: [getattr(one, name) for one in held] for name in GUARANTEES},
    }


def ece_words(row: MethodRow) -> str:
    """The sentence beside the reliability diagram."""
    text, floor = f": calibration error {figure('ece', row.metrics['ece'].value)}", row.noise_floor
    if floor is None:
        return f"{text}."
    chance = f"{figure('ece', floor.mean)}, up to {figure('ece', floor.critical)} by chance"
    return f"{text}; a perfectly calibrated model would show about {chance}."


def class_tables(comparison: Comparison) -> Json:
    """The class explorer: per method the classes' errors, temperatures and diagrams, within a budget of cells.

    A diagram is a list of [mean confidence in thousandths, right rows, rows] over the bins that hold rows PREDICTED as
    the class.
    """
    total, names = comparison.n_classes, class_names(comparison)
    result: Json = {"names": [], "rows": [], "methods": {}, "left_out": [], "total": total}
    rows = {
        row.method: (row.columns, row.classes, class_temperatures(row, total))
        for row in comparison.rows
        if row.columns and row.classes and comparison.task == "multiclass"
    }
    methods, budget, shown = result["methods"], CLASS_CELLS, np.arange(0)
    warm = [name for name, (*_, temperatures) in rows.items() if temperatures is not None]
    first = (baseline(comparison), shown_method(comparison), comparison.second or "", *warm[:1])
    for name in filter(rows.get, dict.fromkeys((*first, *comparison.ranking(comparison.criterion), *rows))):
        columns, classes, temperatures = rows[name]
        if not methods:
            shown = np.sort(np.argsort(-classes.predicted, kind="stable")[:MOST_CLASSES])
            result |= {"names": [names[index] for index in shown], "rows": rounded(classes.count[shown])}
        diagrams = _class_diagrams(columns, shown, comparison.n_bins)
        size = sum(map(len, diagrams))
        if size > budget and len(methods) >= 2:
            result["left_out"].append(name)
            continue
        budget -= size
        methods[name] = {
            "accuracy": rounded(classes.accuracy[shown]),
            "over": rounded(classes.top_over[shown]),
            "under": rounded(classes.top_under[shown]),
            "temperature": None if temperatures is None else rounded(temperatures[shown]),
            "bins": diagrams,
        }
    return result


def _class_diagrams(columns: RowColumns, shown: Array, n_bins: int) -> list[Any]:
    """Bins of equal size of the rows predicted as each class."""
    order, diagrams = np.lexsort((columns.confidence, columns.prediction)), []
    for start, stop in np.searchsorted(columns.prediction[order], [shown, shown + 1]).T:
        rows = order[start:stop]
        stated, n = columns.confidence[rows].astype(float), len(rows)
        # about √n / 2 bins, which leaves 2·√n rows in each; rows of the same confidence share the bin of their first
        cell = np.searchsorted(stated, stated) * min(max(int(n**0.5 / 2), 1), n_bins) // max(1, n)
        count, right, total = (np.bincount(cell, weights) for weights in (None, columns.correct[rows], stated))
        full = count > 0
        thousandths = np.rint(1000 * total[full] / count[full])
        diagrams.append(np.stack([thousandths, right[full], count[full]], axis=-1).astype(int).tolist())
    return diagrams


def group_tables(comparison: Comparison) -> tuple[Json | None, Table | None]:
    """Gaps of groups under every method, the bins of the worst, a sentence per method; and the groups before and after.

    Shown are the groups of largest gap under the best method, the largest first. The one whose diagram is drawn is
    worst served under the best method, else before it, else has the largest gap.
    """
    found, words = {row.method: row.groups for row in comparison.rows if row.groups}, wording(comparison)
    if not found:
        return None, None
    name, bins, gaps, lines = shown_method(comparison), {}, {}, []
    before, best = found[baseline(comparison)], found[name]
    shown = np.argsort([-np.nan_to_num(abs(one.metrics["gap"].value)) for one in best.groups], kind="stable")
    shown = shown[:MOST_GROUPS]
    focus = next(place for place in (best.worst, before.worst, shown[0]) if place is not None)
    for method, analysis in found.items():
        sums, columns = analysis.groups[focus].bins, []
        weight, stated, seen = np.stack(sums)[:, sums.weight > 0]
        bins[method] = {"confidence": stated / weight, "accuracy": seen / weight, "count": weight}
        for one in (analysis.groups[place] for place in shown):
            gap = one.metrics["gap"]
            side = words.sides[1 - (gap.low > 0) + (gap.high < 0)]
            columns.append((one.name, one.n, gap.value, gap.low, gap.high, one.too_few, side))
        gaps[method] = dict(zip(GAPS, zip(*columns, strict=True), strict=True))
    for place in shown:
        old, new = before.groups[place].metrics, best.groups[place]
        error, chance = Estimate(new.metrics["ece"].value), Estimate(new.noise_floor.mean)
        both, ratio = (old["gap"], new.metrics["gap"]), new.metrics.get("observed_expected")
        lines.append((new.name, (Estimate(new.n), *both, error, chance, ratio), "few rows" * new.too_few))
    return {
        "gaps": stacked(gaps),
        "bins": stacked(bins),
        "focus": best.groups[focus].name,
        "by": best.columns,
        "total": len(best.groups),
        "sentences": {method: f"{one.verdict[:1].upper()}{one.verdict[1:]}." for method, one in found.items()},
    }, _before_and_after("Group", name, GROUP_FIGURES, lines)


def decision_tables(comparison: Comparison) -> Json | None:
    """Net benefit and what thresholds do, for every method; None but for one probability per row and both outcomes.

    The flexible calibration curve with its 95% band as well, as far as there is time for the fits.
    """
    if comparison.task != "binary" or not finished(comparison) or len(np.unique(comparison.labels)) != 2:
        return None
    parts, smooth, weights, done = {}, {}, comparison.weights, finished(comparison)
    for method, columns in done.items():
        given = columns.confidence, columns.correct, THRESHOLDS
        curve = decision_curve(*given, sample_weight=weights)
        parts[method] = {"benefit": curve.model, **vars(threshold_metrics(*given, sample_weight=weights))}
    order = dict.fromkeys((baseline(comparison), shown_method(comparison), *done))
    for method in islice(order, max(2, MOST_FITTED // comparison.n_test)):
        rows = done[method].confidence, done[method].correct
        with said():
            fitted = flexible_calibration(*rows, sample_weight=weights, clusters=comparison.clusters)
        smooth[method] = {name: getattr(fitted, name)[::2] for name in ("probability", "observed", "low", "high")}
    return {
        "smooth": stacked(smooth),
        "thresholds": stacked(parts),
        "everyone": {"threshold": rounded(THRESHOLDS), "benefit": rounded(curve.treat_all)},
        "table": TABLE_THRESHOLDS,
        "prevalence": round(np.average(comparison.labels, weights=weights), 4),
    }


@dataclass(frozen=True)
class Line(Row):
    """A row with a remark beside its name, and a style of the page."""

    note: str = ""
    kind: str = ""


def _ranked(comparison: Comparison, columns: Mapping[str, str]) -> Table:
    """The methods by the deciding metric, the best first, those that failed at the end.

    With too few rows to compare methods they keep the order asked for.
    """
    found = {row.name: row for row in comparison.table().rows}
    order = comparison.fitted_methods if comparison.too_few_rows else comparison.ranking(comparison.criterion)
    worked = [found[name] for name in order]
    return Table("Method", columns, worked + [row for row in found.values() if row.error is not None])


def methods_table(comparison: Comparison) -> Table:
    """Every figure of every method, the deciding one first; answers do not change with their confidence."""
    extras = comparison.shown_extras[comparison.task == "pairs" :]
    columns = {}
    for name in (*sorted(comparison.metric_names, key=lambda name: name != comparison.criterion), *extras):
        look = facts(name)
        # the split of the ECE goes by its short names: the table has many columns
        part = look.better == 0 and name not in extras
        columns[name] = look.column.capitalize() if part else look.heading
    if comparison.task != "multiclass":
        columns.pop("sce", None)  # with one probability per row it is the ECE again
    return _ranked(comparison, columns)


def model_methods(comparison: Comparison) -> Table:
    """The main figures of every method on one model."""
    names = (comparison.criterion, "ece", *["accuracy"] * (comparison.task != "pairs"))
    columns, said = {name: facts(name).heading for name in names}, {}
    for row in comparison.rows:
        floor = row.noise_floor
        said[row.method] = "–" if floor is None else "no" if floor.significant else "no gap seen"
    return replace(_ranked(comparison, columns), texts={"Calibrated after": said})


def small_figure(metric: str, value: float) -> str:
    """A figure of a small table: gaps in signed points, clinical figures with two decimals, others with their unit."""
    if metric == "gap":
        return f"{100 * value:+.1f}".replace("-", "−")
    return f"{value:.2f}".replace("-", "−") if metric in CLINICAL else figure(metric, value)


GROUP_FIGURES = {
    "Rows": "n", "Gap before": "gap", "Gap after": "gap", "ECE after": "ece", "by chance": "ece",
    "O:E after": "observed_expected",
}  # fmt: skip
LABEL_FIGURES = {
    "Positives": "n_positive",
    "ECE before": "ece", "ECE after": "ece", "Log loss before": "nll", "Log loss after": "nll",
}  # fmt: skip
"""Headings of the columns, with the metric of each."""


def _before_and_after(axis: str, best: str, figures: Mapping[str, str], found: Iterable[Sequence[Any]]) -> Table:
    """Lines of a name, its figures (None for those that are missing), a remark and a style, below their headings."""
    lines = []
    for name, values, *look in found:
        named = zip(figures.items(), values, strict=True)
        cells = {title: Cell(metric, one) for (title, metric), one in named if one}
        lines.append(Line(name, cells, False, None, *look))
    return Table(axis, {title: title for title in cells}, lines, f"{axis}s before and after {best}")


def label_table(comparison: Comparison) -> Table | None:
    """Error and log loss of every label before and after the best method; None for other tasks.

    The largest error stands first; labels with too few events cannot be ranked and stand last.
    """
    done, width, best = finished(comparison), comparison.n_classes, shown_method(comparison)
    if comparison.task != "multilabel" or best not in done or len(comparison.labels) % width:
        return None
    weights = None if comparison.weights is None else comparison.weights[::width]
    labels, both = comparison.labels.reshape(-1, width), (baseline(comparison), best)
    errors, losses, positive = [], [], labels.sum(axis=0)
    for name in both:
        stated, seen, loss = (getattr(done[name], one).reshape(-1, width) for one in ("confidence", "correct", "nll"))
        of_labels = zip(stated.T, seen.T, strict=True)
        errors.append([ece(*one, sample_weight=weights, n_bins=comparison.n_bins) for one in of_labels])
        losses.append(np.average(loss, axis=0, weights=weights))
    values = np.vstack([positive, *errors, *losses])
    pooled = [comparison.row(name).metrics[key].value for key in ("ece", "nll") for name in both]
    total, few = positive.sum(), np.minimum(positive, len(labels) - positive) < FEW_POSITIVES
    lines = [
        ("all labels pooled", map(Estimate, [total, *pooled]), "", "macro"),
        ("mean of the labels", map(Estimate, [total, *values[1:].mean(axis=1)]), "", "macro"),
    ]
    for place in np.lexsort((-values[2], few))[:MOST_LABELS]:
        look = (f"fewer than {FEW_POSITIVES} events", "few") if few[place] else ()
        lines.append((class_names(comparison)[place], map(Estimate, values[:, place]), *look))
    return _before_and_after("Label", best, LABEL_FIGURES, lines)


def clinical_figures(comparison: Comparison, columns: RowColumns) -> tuple[Mapping[str, Estimate], Iterable[str]]:
    """Slope, intercept, O:E and the rest with bootstrap intervals over rows, or over clusters of them; warnings."""
    resamples = draw(len(columns.nll), comparison.resamples, comparison.seed, comparison.clusters)
    of_logits = not zero_notes(columns.nll)  # what a zero costs says nothing about its log-odds
    scores = column_rows(columns, resamples, comparison.weights, task="binary", of_logits=of_logits)
    chosen = [one for one in METRICS.values() if one.figures and one.about == "score"]
    with said() as told:
        found, *_ = estimated(chosen, scores, resamples, n_bins=15)
    return found, told


def clinical_table(comparison: Comparison) -> tuple[Table, list[tuple[str, str]]]:
    """Each figure before and after the best method, what it says in words, and what the methods' fits warn of."""
    done, before, best = finished(comparison), baseline(comparison), shown_method(comparison)
    both = {name: clinical_figures(comparison, done[name]) for name in (before, best)}
    old, new, rows, words = both[before][0], both[best][0], [], {}
    for name, (label, ideal, *_) in CLINICAL.items():
        rows.append(Row(label, {"old": Cell(name, old[name]), "new": Cell(name, new[name])}))
        words[label] = ("" if ideal is None else f"Ideal {ideal:g}. ") + clinical_words(name, new[name])
    columns, texts = {"old": "Before", "new": f"After `{best}`"}, {"In words, after": words}
    table = Table("Figure", columns, rows, "Calibration in clinical terms, before and after", texts)
    return table, [(name, text) for name, (_, told) in both.items() for text in told]


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
    if ideal is not None and not np.isfinite(one.low):
        return "Its interval is unknown."
    words = holds if ideal is None or one.low <= ideal <= one.high else below if one.value < ideal else above
    return words.format(factor * one.value if factor else np.exp(one.value))
