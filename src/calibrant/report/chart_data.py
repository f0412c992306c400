"""From test rows to the few numbers that charts need: bins and curves, so that a page hardly grows with the rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from calibrant.core.errors import FitWarning
from calibrant.evaluation.bootstrap import clopper_pearson
from calibrant.evaluation.deferral import risk_coverage_curve, threshold_for_error
from calibrant.evaluation.groups import GroupAnalysis, GroupFigures
from calibrant.evaluation.results import ClassProfile, Comparison, MethodRow, TestColumns
from calibrant.evaluation.shift import ShiftCurves
from calibrant.metrics.clinical import THRESHOLDS, decision_curve, flexible_calibration, threshold_metrics
from calibrant.report.methods import class_temperatures
from calibrant.report.wording import Wording, wording

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

Columns = dict[str, list[Any]]


def finished(comparison: Comparison) -> list[tuple[MethodRow, TestColumns]]:
    """The rows that have something to draw, with what they have."""
    return [(row, row.columns) for row in comparison.rows if row.error is None and row.columns is not None]


def baseline(comparison: Comparison) -> str | None:
    """The uncalibrated row, or the first that worked."""
    names = [row.method for row, _ in finished(comparison)]
    return "none" if "none" in names else next(iter(names), None)


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


def reliability_table(comparison: Comparison) -> Columns:
    """Bins of every method's reliability diagram."""
    names = ("lower", "upper", "confidence", "accuracy", "accuracy_low", "accuracy_high", "noise_low", "noise_high")

    def columns_of(method: str) -> dict[str, Any]:
        bins = comparison.bins(method)
        found = {name: getattr(bins, name)[bins.filled] for name in (*names, "count")}
        return found | {"height": bins.count[bins.filled] / max(1, bins.count.max(initial=1))}

    return stacked((row.method, columns_of(row.method)) for row, _ in finished(comparison))


def histogram_table(comparison: Comparison) -> Columns:
    """How many rows of either outcome fall into each narrow range of the stated probability."""
    words = wording(comparison)
    edges = np.linspace(0, 1, HISTOGRAM_BINS + 1)
    parts = []
    for row, columns in finished(comparison):
        right = np.asarray(columns.correct, dtype=bool)
        for word, chosen in ((words.yes, right), (words.no, ~right)):
            counts = np.histogram(np.clip(columns.confidence[chosen], 0, 1), edges)[0]
            parts.append((row.method, {"left": edges[:-1], "outcome": [word] * HISTOGRAM_BINS, "rows": counts}))
    return stacked(parts)


def means(comparison: Comparison) -> list[dict[str, Any]]:
    """Mean confidence and accuracy of every method."""
    result = []
    for row, columns in finished(comparison):
        values = (np.average(column, weights=comparison.weights) for column in (columns.confidence, columns.correct))
        confidence, accuracy = rounded(list(values))
        result.append({"method": row.method, "confidence": confidence, "accuracy": accuracy})
    return result


def sureness(comparison: Comparison, columns: TestColumns) -> tuple[np.ndarray, np.ndarray]:
    """How sure each decision is (n,) and whether it is right (n,): what deferral is about.

    Columns of a positive class hold its probability and its label; the decision is p ≥ 0.5.
    """
    if wording(comparison).about == "positive class":
        p = np.asarray(columns.confidence)
        return np.maximum(p, 1 - p), np.asarray(columns.prediction) == np.asarray(columns.correct)
    return np.asarray(columns.confidence), np.asarray(columns.correct)


def coverage_table(comparison: Comparison) -> Columns:
    """Error among the kept rows, its upper bound and the threshold, for every whole percent deferred."""
    asked = 1 - np.arange(100) / 100
    parts = []
    for row, columns in finished(comparison):
        curve = risk_coverage_curve(*sureness(comparison, columns))
        place = np.minimum(np.searchsorted(curve.coverage, asked - 1e-12), len(curve.coverage) - 1)
        kept = np.rint(curve.coverage[place] * len(columns.confidence)).astype(int)
        errors = np.rint(curve.risk[place] * kept).astype(int)
        bound = [clopper_pearson(int(e), int(k), 0.9)[1] for e, k in zip(errors, kept, strict=True)]
        found = {"deferred": 1 - asked, "risk": curve.risk[place], "bound": bound, "threshold": curve.threshold[place]}
        parts.append((row.method, found))
    return stacked(parts)


def guarantees(comparison: Comparison) -> dict[str, list[list[float | None]]]:
    """For each method and target error: the threshold that holds it with 95% confidence, and the share deferred."""
    result: dict[str, list[list[float | None]]] = {}
    for row, columns in finished(comparison):
        found = [threshold_for_error(*sureness(comparison, columns), t) for t in TARGET_ERRORS]
        result[row.method] = [
            [f.target, *(rounded([f.threshold, 1 - f.coverage, f.error]) if f.kept else [None, None, None])]
            for f in found
        ]
    return result


def shift_table(shift: ShiftCurves) -> Columns:
    """A metric over severities, with its standard error."""
    values = zip(shift.methods, shift.mean, shift.sem, strict=True)
    parts = ((name, {"severity": shift.severities, "value": mean, "error": sem}) for name, mean, sem in values)
    return stacked(parts, value=5, error=5)


def class_tables(comparison: Comparison) -> dict[str, Any]:
    """The class explorer: per method the classes' errors, temperatures and diagrams, within a budget of cells.

    A diagram is a list of [mean confidence in thousandths, right rows, rows] over the bins that hold rows PREDICTED as
    the class.
    """
    rows = _in_order_of_interest(comparison)
    result: dict[str, Any] = {"names": [], "rows": [], "methods": {}, "left_out": [], "total": comparison.n_classes}
    if not rows or comparison.task != "multiclass":
        return result
    shown = _classes_to_show(rows[0][2], comparison.n_classes)
    names = comparison.class_names or tuple(f"class {index}" for index in range(comparison.n_classes))
    result["names"] = [str(names[index]) for index in shown]
    result["rows"] = rounded(rows[0][2].count[shown])
    cells = 0
    for row, columns, classes in rows:
        diagrams = _class_diagrams(columns, shown, comparison)
        size = sum(len(diagram) for diagram in diagrams)
        if cells + size > CLASS_CELLS and len(result["methods"]) >= 2:
            result["left_out"].append(row.method)
            continue
        cells += size
        temperatures = class_temperatures(row, comparison.n_classes)
        result["methods"][row.method] = {
            "accuracy": rounded(classes.accuracy[shown], 3),
            "over": rounded(classes.top_over[shown]),
            "under": rounded(classes.top_under[shown]),
            "temperature": None if temperatures is None else rounded(temperatures[shown], 3),
            "bins": diagrams,
        }
    return result


def _in_order_of_interest(comparison: Comparison) -> list[tuple[MethodRow, TestColumns, ClassProfile]]:
    rows = {row.method: (row, columns, row.classes) for row, columns in finished(comparison) if row.classes is not None}
    first = [baseline(comparison), comparison.best, comparison.second]
    warm = [name for name, (row, *_) in rows.items() if class_temperatures(row, comparison.n_classes) is not None]
    order = dict.fromkeys([*first, *warm[:1], *comparison.ranking(comparison.criterion), *rows])
    return [rows[name] for name in order if name in rows]


def _classes_to_show(classes: ClassProfile, n_classes: int) -> np.ndarray:
    if n_classes <= MOST_CLASSES:
        return np.arange(n_classes)
    return np.sort(np.argsort(-classes.predicted, kind="stable")[:MOST_CLASSES])


def class_bins(rows: np.ndarray, n_bins: int) -> np.ndarray:
    """How many bins suit classes of so many rows: about √rows / 2, which leaves 2·√rows in each.

    >>> class_bins(np.array([3, 25, 100, 5000]), 15).tolist()
    [1, 2, 5, 15]
    """
    return np.clip((np.sqrt(rows) / 2).astype(int), 1, n_bins)


def _class_diagrams(columns: TestColumns, shown: np.ndarray, comparison: Comparison) -> list[list[list[int]]]:
    """Bins of equal size of all classes in one pass: a row's cell is its predicted class and its place in it."""
    n_bins, prediction = comparison.n_bins, np.asarray(columns.prediction)
    stated = np.asarray(columns.confidence, dtype=float)
    order = np.lexsort((stated, prediction))
    rows = np.bincount(prediction, minlength=comparison.n_classes)
    classes, sorted_stated = prediction[order], stated[order]
    place = np.arange(len(order)) - (np.cumsum(rows) - rows)[classes]
    # rows of the same confidence share a bin: they take the place of the first of them
    new = np.ones(len(order), dtype=bool)
    new[1:] = (classes[1:] != classes[:-1]) | (sorted_stated[1:] != sorted_stated[:-1])
    place = place[np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))]
    cell = classes * n_bins + place * class_bins(rows, n_bins)[classes] // rows[classes]

    def total(values: np.ndarray | None) -> np.ndarray:
        weights = None if values is None else values[order]
        return np.bincount(cell, weights=weights, minlength=comparison.n_classes * n_bins).reshape(-1, n_bins)[shown]

    count, right = total(None), np.rint(total(np.asarray(columns.correct, dtype=float))).astype(int)
    thousandths = np.rint(1000 * (total(stated) / np.maximum(count, 1))).astype(int)
    both = np.stack([thousandths, right, count], axis=-1)
    return [both[place][count[place] > 0].tolist() for place in range(len(shown))]


def group_analyses(comparison: Comparison) -> dict[str, GroupAnalysis]:
    """What is known of the groups under each method; empty where none were asked for."""
    return {row.method: row.groups for row, _ in finished(comparison) if row.groups is not None}


def shown_groups(comparison: Comparison) -> list[int]:
    """Places of the groups to show, the largest gap under the best method first."""
    found = group_analyses(comparison)
    chosen = found.get(comparison.best or "") or next(iter(found.values()))
    size = [abs(one.metrics["gap"].value) for one in chosen.groups]
    return [int(place) for place in np.argsort(-np.nan_to_num(size), kind="stable")[:MOST_GROUPS]]


def focus_group(comparison: Comparison) -> int:
    """The group whose diagram is drawn: worst served under the best method, else before it, else the largest gap."""
    found = group_analyses(comparison)
    for method in (comparison.best, baseline(comparison)):
        worst = found[method].worst if method in found else None
        if worst is not None:
            return worst
    return shown_groups(comparison)[0]


def group_tables(comparison: Comparison) -> dict[str, Any] | None:
    """Gaps of the shown groups under every method, the bins of the group in focus, and a sentence per method."""
    found = group_analyses(comparison)
    if not found:
        return None
    shown, focus, words = shown_groups(comparison), focus_group(comparison), wording(comparison)
    bins = []
    for method, analysis in found.items():
        sums = analysis.groups[focus].bins
        if sums is not None:
            full = sums.weight > 0
            sides = {"confidence": sums.confidence, "accuracy": sums.correct}
            shares = {name: (values / np.where(full, sums.weight, 1))[full] for name, values in sides.items()}
            bins.append((method, shares | {"count": sums.weight[full]}))
    gaps = ((method, _gaps([one.groups[place] for place in shown], words)) for method, one in found.items())
    return {
        "gaps": stacked(gaps),
        "bins": stacked(bins),
        "focus": next(iter(found.values())).groups[focus].name,
        "sentences": {method: f"{one.verdict[:1].upper()}{one.verdict[1:]}." for method, one in found.items()},
    }


def _gaps(groups: list[GroupFigures], words: Wording) -> dict[str, Any]:
    found = [one.metrics["gap"] for one in groups]
    sides = [words.high if gap.low > 0 else words.low if gap.high < 0 else "within chance" for gap in found]
    return {
        "group": [one.name for one in groups],
        "rows": [one.n for one in groups],
        "gap": [gap.value for gap in found],
        "low": [gap.low for gap in found],
        "high": [gap.high for gap in found],
        "few": [one.too_few for one in groups],
        "side": sides,
    }


def has_decisions(comparison: Comparison) -> bool:
    """Is this one probability per row, of which both outcomes were seen?"""
    return comparison.task == "binary" and bool(finished(comparison)) and len(np.unique(comparison.labels)) == 2


def decision_tables(comparison: Comparison) -> dict[str, Any] | None:
    """Net benefit and what thresholds do, for every method; None for other tasks."""
    if not has_decisions(comparison):
        return None
    parts, everyone = [], []
    for row, columns in finished(comparison):
        given = columns.confidence, np.asarray(columns.correct, dtype=int), THRESHOLDS
        curve = decision_curve(*given, sample_weight=comparison.weights)
        figures = threshold_metrics(*given, sample_weight=comparison.weights)
        found = {"threshold": THRESHOLDS, "benefit": curve.model}
        parts.append((row.method, found | {name: getattr(figures, name) for name in THRESHOLD_FIGURES}))
        everyone = rounded(curve.treat_all, 5)
    return {
        "thresholds": stacked(parts, benefit=5),
        "everyone": {"threshold": rounded(THRESHOLDS), "benefit": everyone},
        "table": list(TABLE_THRESHOLDS),
        "prevalence": rounded([np.average(comparison.labels, weights=comparison.weights)])[0],
    }


def smooth_table(comparison: Comparison) -> Columns:
    """The flexible calibration curve of the methods with its 95% band, as far as there is time for the fits."""
    rows = {row.method: columns for row, columns in finished(comparison)} if has_decisions(comparison) else {}
    order = dict.fromkeys(name for name in (baseline(comparison), comparison.best, *rows) if name in rows)
    parts = []
    for name in list(order)[: max(2, MOST_FITTED // max(1, comparison.n_test))]:
        given = rows[name].confidence, np.asarray(rows[name].correct, dtype=int)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            curve = flexible_calibration(*given, sample_weight=comparison.weights)
        fields = ("probability", "observed", "low", "high")
        parts.append((name, {field: getattr(curve, field)[::2] for field in fields}))
    return stacked(parts)
