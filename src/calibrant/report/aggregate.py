"""From test rows to the few numbers a page needs: bins and curves, so that its size hardly depends on the data's."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.evaluation.deferral import clopper_pearson, risk_coverage_curve, threshold_for_error
from calibrant.evaluation.reliability import reliability_bins
from calibrant.evaluation.results import ClassProfile, Comparison, MethodRow, TestColumns
from calibrant.evaluation.shift import ShiftCurves
from calibrant.report.labels import class_temperatures
from calibrant.report.wording import sureness, wording

HISTOGRAM_BINS = 40
CLASS_CELLS = 25_000
"""Bins of class diagrams that a page may carry, about 300 kB; methods beyond are left out of the class explorer."""
MOST_CLASSES = 2_000
"""Classes the explorer lists; of more, those predicted most often."""
TARGET_ERRORS = (0.2, 0.1, 0.05, 0.02, 0.01)

Table = dict[str, list[Any]]


def finished(comparison: Comparison) -> list[tuple[MethodRow, TestColumns]]:
    """The rows that have something to draw, with what they have."""
    return [(row, row.columns) for row in comparison.rows if row.error is None and row.columns is not None]


def baseline(comparison: Comparison) -> str | None:
    """The uncalibrated row, or the first that worked."""
    names = [row.method for row, _ in finished(comparison)]
    return "none" if "none" in names else next(iter(names), None)


def reliability_table(comparison: Comparison) -> Table:
    """Bins of every method's reliability diagram."""
    names = {"left": "lower", "right": "upper", "low": "accuracy_low", "high": "accuracy_high"}
    names |= {"band_low": "noise_low", "band_high": "noise_high"}
    names |= {name: name for name in ("confidence", "accuracy", "count")}
    table: Table = {"method": [], **{name: [] for name in names}, "height": []}
    for row, columns in finished(comparison):
        bins = reliability_bins(
            columns.confidence, columns.correct, n_bins=comparison.n_bins, weights=comparison.weights
        )
        full = bins.filled
        table["method"] += [row.method] * int(full.sum())
        for name, field in names.items():
            table[name] += rounded(getattr(bins, field)[full])
        table["height"] += rounded(bins.count[full] / max(1, bins.count.max(initial=1)))
    return table


def histogram_table(comparison: Comparison) -> Table:
    """How many rows of either outcome fall into each narrow range of the stated probability."""
    words = wording(comparison)
    table: Table = {"method": [], "left": [], "outcome": [], "rows": []}
    edges = np.linspace(0, 1, HISTOGRAM_BINS + 1)
    for row, columns in finished(comparison):
        right = np.asarray(columns.correct, dtype=bool)
        for word, chosen in ((words.yes, right), (words.no, ~right)):
            counts = np.histogram(np.clip(columns.confidence[chosen], 0, 1), edges)[0]
            table["method"] += [row.method] * HISTOGRAM_BINS
            table["left"] += rounded(edges[:-1])
            table["outcome"] += [word] * HISTOGRAM_BINS
            table["rows"] += counts.tolist()
    return table


def means(comparison: Comparison) -> list[dict[str, Any]]:
    """Mean confidence and accuracy of every method."""
    result = []
    for row, columns in finished(comparison):
        values = (np.average(column, weights=comparison.weights) for column in (columns.confidence, columns.correct))
        confidence, accuracy = rounded(list(values))
        result.append({"method": row.method, "confidence": confidence, "accuracy": accuracy})
    return result


def coverage_table(comparison: Comparison) -> Table:
    """Error among the kept rows, its upper bound and the threshold, for every whole percent deferred."""
    table: Table = {"method": [], "deferred": [], "risk": [], "bound": [], "threshold": []}
    asked = 1 - np.arange(100) / 100
    for row, columns in finished(comparison):
        curve = risk_coverage_curve(*sureness(comparison, columns))
        n = len(columns.confidence)
        place = np.minimum(np.searchsorted(curve.coverage, asked - 1e-12), len(curve.coverage) - 1)
        kept = np.rint(curve.coverage[place] * n).astype(int)
        errors = np.rint(curve.risk[place] * kept).astype(int)
        table["method"] += [row.method] * len(asked)
        table["deferred"] += rounded(1 - asked)
        table["risk"] += rounded(curve.risk[place])
        table["bound"] += rounded([clopper_pearson(int(e), int(k), 0.9)[1] for e, k in zip(errors, kept, strict=True)])
        table["threshold"] += rounded(curve.threshold[place])
    return table


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


def shift_table(shift: ShiftCurves) -> Table:
    """A metric over severities, with its standard error."""
    table: Table = {"method": [], "severity": [], "value": [], "error": []}
    for place, name in enumerate(shift.methods):
        table["method"] += [name] * len(shift.severities)
        table["severity"] += list(shift.severities)
        table["value"] += rounded(shift.mean[place], 5)
        table["error"] += rounded(shift.sem[place], 5)
    return table


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
    confidence = total(stated) / np.maximum(count, 1)
    diagrams: list[list[list[int]]] = [[] for _ in shown]
    for place_shown, bin_index in np.argwhere(count > 0):
        here = place_shown, bin_index
        diagrams[place_shown].append([round(1000 * confidence[here]), int(right[here]), int(count[here])])
    return diagrams


def rounded(values: Any, digits: int = 4) -> list[Any]:
    """Short numbers for the page: rounded, whole ones without a point, None for what is not finite."""
    array = np.asarray(values)
    if array.dtype.kind in "iu":
        return array.tolist()
    return [round(float(value), digits) if np.isfinite(value) else None for value in array]
