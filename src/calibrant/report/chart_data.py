"""From test rows to the few numbers that charts need: bins and curves, so that a page hardly grows with the rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.errors import FitWarning
from calibrant.evaluation.bootstrap import clopper_pearson
from calibrant.evaluation.deferral import risk_coverage_curve, threshold_for_error
from calibrant.evaluation.groups import GroupAnalysis
from calibrant.evaluation.rendering import figure
from calibrant.evaluation.results import Comparison, MethodRow
from calibrant.evaluation.shift import ShiftCurves
from calibrant.kernels.rows import RowColumns
from calibrant.metrics.clinical import THRESHOLDS, decision_curve, flexible_calibration, threshold_metrics
from calibrant.metrics.record import facts
from calibrant.report.charts import charts, shift_chart
from calibrant.report.methods import class_temperatures
from calibrant.report.wording import class_names, wording

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
THRESHOLD_FIGURES = ("sensitivity", "specificity", "ppv", "npv", "flagged")
BINS = (
    "lower", "upper", "confidence", "accuracy", "accuracy_low", "accuracy_high", "noise_low", "noise_high", "count",
)  # fmt: skip

Columns = dict[str, list[Any]]


def finished(comparison: Comparison) -> dict[str, RowColumns]:
    """The methods that worked, with what diagrams need of every test row."""
    return {row.method: row.columns for row in comparison.rows if row.columns is not None}


def baseline(comparison: Comparison) -> str:
    """The uncalibrated scores, or the first method that worked; empty where none did."""
    names = finished(comparison)
    return "none" if "none" in names else next(iter(names), "")


def payload(comparison: Comparison, shift: ShiftCurves | None = None) -> dict[str, Any]:
    """What the page's script reads: chart specifications and the numbers behind them."""
    done, words, curves = finished(comparison), wording(comparison), None
    groups, decisions = group_tables(comparison), decision_tables(comparison)
    drawn = charts(words, len(shown_groups(comparison)) if groups else 0, decisions is not None) if done else {}
    if shift is not None:
        drawn = drawn | {"shift": shift_chart(list(shift.methods), facts(shift.metric))}
        # the mean of each method at every severity, with its standard error
        found = zip(shift.methods, shift.mean, shift.sem, strict=True)
        tables = ((name, {"severity": shift.severities, "value": mean, "error": sem}) for name, mean, sem in found)
        curves = stacked(tables, value=5, error=5)
    parts = {name: _diagrams(comparison, name, one) | _deferral(comparison, one) for name, one in done.items()}
    names = ("reliability", "histogram", "means", "coverage", "guarantees")
    return {
        "methods": list(done),
        "before": baseline(comparison),
        "selected": comparison.best or "",
        "charts": drawn,
        **{name: stacked((method, one[name]) for method, one in parts.items()) for name in names},
        "words": {"mean": words.mean, "share": words.share},
        "sentences": {name: ece_words(comparison.row(name)) for name in done},
        "classes": class_tables(comparison),
        "groups": groups,
        "decisions": decisions,
        "smooth": smooth_table(comparison),
        "shift": curves,
    }


def rounded(values: Any, digits: int = 4) -> list[Any]:
    """Short numbers for the page: rounded, None for what is not finite; what is no fraction stays as it is."""
    array = np.asarray(values)
    if array.dtype.kind != "f":
        return array.tolist()
    return [round(float(value), digits) if np.isfinite(value) else None for value in array]


def stacked(parts: Iterable[tuple[str, Mapping[str, Any]]], **digits: int) -> Columns:
    """The columns of several methods below each other, beside the method; four digits of what `digits` does not name.

    >>> stacked([("a", {"x": [0.123456]}), ("b", {"x": [1.0]})])
    {'method': ['a', 'b'], 'x': [0.1235, 1.0]}
    """
    table: Columns = {"method": []}
    for method, columns in parts:
        for name, values in columns.items():
            table.setdefault(name, []).extend(rounded(values, digits.get(name, 4)))
        table["method"] += [method] * (max(map(len, table.values())) - len(table["method"]))
    return table


def _diagrams(comparison: Comparison, method: str, columns: RowColumns) -> dict[str, Any]:
    """Bins of the reliability diagram, how many rows of either outcome each narrow range of the stated probability
    holds, and mean confidence and accuracy."""
    bins, words, edges = comparison.bins(method), wording(comparison), np.linspace(0, 1, HISTOGRAM_BINS + 1)
    found = {name: getattr(bins, name)[bins.filled] for name in BINS}
    stated, right = np.clip(columns.confidence, 0, 1), columns.correct
    named = {"confidence": columns.confidence, "accuracy": right}
    return {
        "reliability": found | {"height": found["count"] / bins.count.max(initial=1)},
        "histogram": {
            "left": np.tile(edges[:-1], 2),
            "outcome": np.repeat([words.yes, words.no], HISTOGRAM_BINS),
            "rows": np.concatenate([np.histogram(stated[chosen], edges)[0] for chosen in (right, ~right)]),
        },
        "means": {name: [np.average(column, weights=comparison.weights)] for name, column in named.items()},
    }


def ece_words(row: MethodRow) -> str:
    """The sentence beside the reliability diagram."""
    text, floor = f": calibration error {figure('ece', row.metrics['ece'].value)}", row.noise_floor
    if floor is not None:
        text += (
            f"; a perfectly calibrated model would show about {figure('ece', floor.mean)}"
            f", up to {figure('ece', floor.critical)} by chance"
        )
    return f"{text}."


def _deferral(comparison: Comparison, columns: RowColumns) -> dict[str, Any]:
    """Error among the kept rows, its upper bound and the threshold, for every whole percent deferred; and for each
    target error the threshold that holds it with 95% confidence, None where there is none."""
    sure, right = columns.confidence, columns.correct
    if comparison.about == "positive class":
        # columns of a positive class hold its probability and its label; the decision is p ≥ 0.5
        sure, right = np.maximum(sure, 1 - sure), columns.prediction == right
    deferred, curve = np.arange(100) / 100, risk_coverage_curve(sure, right)
    place = np.searchsorted(curve.coverage, 1 - deferred - 1e-12)
    coverage, risk, threshold = (one[place] for one in (curve.coverage, curve.risk, curve.threshold))
    kept = np.rint(coverage * len(sure))
    bound = [clopper_pearson(*counts, 0.9)[1] for counts in zip(np.rint(risk * kept), kept, strict=True)]
    held = [threshold_for_error(sure, right, target) for target in TARGET_ERRORS]
    guarantees = {name: [getattr(one, name) for one in held] for name in ("target", "threshold", "error")}
    return {
        "coverage": {"deferred": deferred, "risk": risk, "bound": bound, "threshold": threshold},
        "guarantees": guarantees | {"deferred": [1 - one.coverage for one in held]},
    }


def class_tables(comparison: Comparison) -> dict[str, Any]:
    """The class explorer: per method the classes' errors, temperatures and diagrams, within a budget of cells.

    A diagram is a list of [mean confidence in thousandths, right rows, rows] over the bins that hold rows PREDICTED as
    the class.
    """
    total, names = comparison.n_classes, class_names(comparison)
    result: dict[str, Any] = {"names": [], "rows": [], "methods": {}, "left_out": [], "total": total}
    rows = {
        row.method: (row.columns, row.classes, class_temperatures(row, total))
        for row in comparison.rows
        if row.columns is not None and row.classes is not None and comparison.task == "multiclass"
    }
    methods, budget, shown = result["methods"], CLASS_CELLS, np.arange(0)
    warm = [name for name, (*_, temperatures) in rows.items() if temperatures is not None]
    first = (baseline(comparison), comparison.best or "", comparison.second or "", *warm[:1])
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
            "accuracy": rounded(classes.accuracy[shown], 3),
            "over": rounded(classes.top_over[shown]),
            "under": rounded(classes.top_under[shown]),
            "temperature": None if temperatures is None else rounded(temperatures[shown], 3),
            "bins": diagrams,
        }
    return result


def _class_diagrams(columns: RowColumns, shown: Array, n_bins: int) -> list[list[list[int]]]:
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


def group_analyses(comparison: Comparison) -> dict[str, GroupAnalysis]:
    """What is known of the groups under each method; empty where none were asked for."""
    return {row.method: row.groups for row in comparison.rows if row.groups is not None}


def shown_groups(comparison: Comparison) -> list[int]:
    """Places of the groups to show, the largest gap under the best method first."""
    found = group_analyses(comparison)
    chosen = found.get(comparison.best or "") or next(iter(found.values()))
    size = [abs(one.metrics["gap"].value) for one in chosen.groups]
    return [int(place) for place in np.argsort(-np.nan_to_num(size), kind="stable")[:MOST_GROUPS]]


def focus_group(comparison: Comparison) -> int:
    """The group whose diagram is drawn: worst served under the best method, else before it, else the largest gap."""
    found = group_analyses(comparison)
    worst = [found[name].worst for name in (comparison.best, baseline(comparison)) if name in found]
    return next((place for place in worst if place is not None), shown_groups(comparison)[0])


def group_tables(comparison: Comparison) -> dict[str, Any] | None:
    """Gaps of the shown groups under every method, the bins of the group in focus, and a sentence per method."""
    found, words = group_analyses(comparison), wording(comparison)
    if not found:
        return None
    shown, focus = shown_groups(comparison), focus_group(comparison)
    bins, gaps = [], []
    for method, analysis in found.items():
        sums, groups = analysis.groups[focus].bins, [analysis.groups[place] for place in shown]
        if sums is not None:
            weight, stated, seen = np.stack([sums.weight, sums.confidence, sums.correct])[:, sums.weight > 0]
            bins.append((method, {"confidence": stated / weight, "accuracy": seen / weight, "count": weight}))
        ends = [one.metrics["gap"] for one in groups]
        columns = {
            "group": [one.name for one in groups],
            "rows": [one.n for one in groups],
            "gap": [one.value for one in ends],
            "low": [one.low for one in ends],
            "high": [one.high for one in ends],
            "few": [one.too_few for one in groups],
            "side": [words.sides[1 - (one.low > 0) + (one.high < 0)] for one in ends],
        }
        gaps.append((method, columns))
    return {
        "gaps": stacked(gaps),
        "bins": stacked(bins),
        "focus": analysis.groups[focus].name,
        "sentences": {method: f"{one.verdict[:1].upper()}{one.verdict[1:]}." for method, one in found.items()},
    }


def has_decisions(comparison: Comparison) -> bool:
    """Is this one probability per row, of which both outcomes were seen?"""
    return comparison.task == "binary" and bool(finished(comparison)) and len(np.unique(comparison.labels)) == 2


def decision_tables(comparison: Comparison) -> dict[str, Any] | None:
    """Net benefit and what thresholds do, for every method; None for other tasks."""
    if not has_decisions(comparison):
        return None
    parts, weights = [], comparison.weights
    for method, columns in finished(comparison).items():
        given = columns.confidence, columns.correct, THRESHOLDS
        curve = decision_curve(*given, sample_weight=weights)
        figures = threshold_metrics(*given, sample_weight=weights)
        found = {"threshold": THRESHOLDS, "benefit": curve.model}
        parts.append((method, found | {name: getattr(figures, name) for name in THRESHOLD_FIGURES}))
    return {
        "thresholds": stacked(parts, benefit=5),
        "everyone": {"threshold": rounded(THRESHOLDS), "benefit": rounded(curve.treat_all, 5)},
        "table": TABLE_THRESHOLDS,
        "prevalence": rounded([np.average(comparison.labels, weights=weights)])[0],
    }


def smooth_table(comparison: Comparison) -> Columns:
    """The flexible calibration curve of the methods with its 95% band, as far as there is time for the fits."""
    done = finished(comparison) if has_decisions(comparison) else {}
    order = filter(done.get, dict.fromkeys((baseline(comparison), comparison.best or "", *done)))
    parts = []
    for name in islice(order, max(2, MOST_FITTED // max(1, comparison.n_test))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            one = done[name]
            curve = flexible_calibration(one.confidence, one.correct, sample_weight=comparison.weights)
        fields = ("probability", "observed", "low", "high")
        parts.append((name, {field: getattr(curve, field)[::2] for field in fields}))
    return stacked(parts)
