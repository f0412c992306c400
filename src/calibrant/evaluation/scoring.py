"""Measure rows by the registered metrics: values, intervals, and the draws that comparisons pair."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.bins import over, width_index
from calibrant.core.errors import InputError
from calibrant.core.threads import one_blas_thread
from calibrant.core.zeros import cost_of_zero
from calibrant.evaluation.bootstrap import Resamples
from calibrant.evaluation.consistency import cluster_sums, noise_floor
from calibrant.evaluation.intervals import Intervals
from calibrant.evaluation.results import ClassProfile
from calibrant.evaluation.scan import ScannedRows
from calibrant.evaluation.tables import Estimate, Figures
from calibrant.metrics.classwise import class_sums
from calibrant.metrics.record import BINS, LAST, METRICS, ClassGaps, Gaps, Metric, facts, user_metric

CLASS_ELEMENTS = 60_000_000
"""Rows × classes up to which every class's column is sorted."""

MOST_CLASSES = 20_000
"""The same for classes, whose columns are sorted one by one."""

SCORE_ROWS = 2_000_000
"""Up to this many rows the figures that need all scores at once (slope, curve, ROC AUC) are computed."""

CLASS_DRAWS, ENOUGH_ABOVE = 200, 10
"""Drawn labels behind the test of all classes, and errors at least as large as the observed one that end it."""

Chosen = Sequence[str] | Mapping[str, Callable[..., Any]] | None


def chosen_metrics(wanted: Chosen, task: str, *, compared: bool = False, criterion: str = "") -> list[Metric]:
    """The metrics of a result, in the order of its tables.

    wanted : names of registered figures, or functions of (probabilities, labels, sample_weight=None) by name, which
        come on top of the usual ones; None for those alone. compared : only those that `compare` shows by itself.
    """
    about = {"any", "matrix" if task == "multiclass" else "score"}
    if task in ("multiclass", "pairs"):
        about.add("confidence")
    listed = [one for one in METRICS.values() if one.figures and one.about in about]
    functions, asked = (wanted, ()) if isinstance(wanted, Mapping) else ({}, wanted or ())
    names = [facts(name).name for name in (*asked, criterion) if name]
    known = {figure.name: figure for one in listed for figure in one.figures}
    for name in names:
        if name not in known and name not in functions:
            raise InputError(f"there is no metric {name!r} of a {task} task: choose from {', '.join(known)}")
    if compared and not asked:
        names += [name for name, figure in known.items() if figure.compared]
    if compared or asked:
        # as one record gives several figures, those that were not asked for go
        listed = [
            replace(one, figures=tuple(figure for figure in one.figures if figure.name in names)) for one in listed
        ]
    for name, function in functions.items():
        if name in known:
            raise InputError(f"there is a metric {name!r} in the library: give the function another name")
        listed.append(user_metric(function, name))
    listed = [one for one in listed if one.figures]
    return sorted(listed, key=lambda one: one.figures[0].compared or LAST) if compared else listed


@one_blas_thread()  # hundreds of thin products: the waits of a second thread cost ten times the work
def estimated(
    metrics: Sequence[Metric], rows: ScannedRows, drawn: Resamples, n_bins: int, *, paired: bool = False
) -> tuple[Figures, dict[str, Array], dict[str, str]]:
    """Every figure with its interval, the draws behind them, and what was left out and why."""
    intervals = Intervals(rows, drawn, [figure for one in metrics for figure in one.figures], n_bins, paired=paired)
    found = Figures()
    draws = {}
    left_out: dict[str, str] = {}
    n, width = len(rows.labels), rows.n_classes
    for one in metrics:
        reason, rules = "", [figure.interval for figure in one.figures]
        ranked = any(isinstance(rule, ClassGaps) and rule.binning == "mass" for rule in rules)
        if ranked and (n * width > CLASS_ELEMENTS or width > MOST_CLASSES):
            reason = f"left out, needs every column sorted ({n:,} × {width:,})"
        elif one.about == "score" and n > SCORE_ROWS:
            reason = f"more than {SCORE_ROWS:,} rows"
        if reason:
            left_out |= {figure.name: reason for figure in one.figures}
            continue
        if one.plain:
            values = one.values(rows.probabilities, rows.labels, sample_weight=rows.weights)
        else:
            # does the number of bins set those that the interval is made of?
            binned = (isinstance(rule, ClassGaps) or (isinstance(rule, Gaps) and rule.table in BINS) for rule in rules)
            values = one.values(rows, None, **{"n_bins": n_bins} if any(binned) else {})
        for figure in one.figures:
            interval, draws[figure.name] = intervals.of(one, figure, values[figure.name])
            found[figure.name] = Estimate(values[figure.name], *interval)
    return found, draws, left_out


def classwise_p_value(rows: ScannedRows, n_bins: int, seed: int) -> float:
    """The consistency test of all classes at once, of the rows that were kept.

    The share of labels, drawn from the probabilities themselves, whose classwise ECE is at least the observed one;
    with ten such draws among the first m it is 10/m (Besag & Clifford 1991). Labels of one cluster cannot be drawn one
    by one: the residuals of whole clusters are multiplied at random instead (`cluster_sums`).
    """
    chosen, (n, n_classes) = rows.draws.rows, rows.kept.shape
    mass, first, unit = rows.mass[chosen], n_classes * np.arange(n), rows.draws.unit
    cells = (width_index(rows.kept, n_bins) + n_bins * np.arange(n_classes)).ravel()
    stated = np.bincount(cells, (mass[:, None] * rows.kept).ravel())
    labels = first + rows.labels[chosen]

    def error(places: Array) -> float:
        return float(np.abs(stated - np.bincount(cells[places], mass, len(stated))).sum())

    observed = error(labels) * (1 - 1e-12)
    if rows.draws.counts.shape[1] < n:
        index, right = (one.reshape(n, n_classes).T for one in (cells, np.bincount(labels, minlength=cells.size)))
        gaps = cluster_sums(index, rows.kept.T, right, mass, unit, len(stated), draws=CLASS_DRAWS, seed=seed)
        return noise_floor(np.abs(gaps).sum(axis=1), observed).p_value
    # the cumulated probabilities of one row after the other: a drawn label is one search
    steps = (np.minimum(np.cumsum(rows.kept, axis=1, dtype=np.float64), 1.0) + np.arange(n)[:, None]).ravel()
    generator, above = np.random.default_rng([seed, 29]), 0
    for count in range(1, CLASS_DRAWS + 1):
        found = np.searchsorted(steps, np.arange(n) + generator.random(n), side="right")
        above += error(np.clip(found, first, first + n_classes - 1)) >= observed
        if above == ENOUGH_ABOVE:
            return above / count
    return (1 + above) / (CLASS_DRAWS + 1)


def zero_notes(nll: Array) -> list[str]:
    """What zeros cost: how many rows give what happened a probability of 0, and what each adds to the log loss."""
    found = []
    for cost in (cost_of_zero(np.empty(0, dtype)) for dtype in (np.float32, np.float64)):
        if n_zero := np.count_nonzero(np.abs(nll - cost) < 1e-6 * cost):
            found.append(
                f"{n_zero:,} rows give what happened a probability of 0 (or below {np.exp(-cost):.1e}), and each adds "
                f"{cost:.0f} nats to the NLL of the predictions as they are: it measures the rounding of the file; "
                "fits count a zero as half the smallest positive value"
            )
    return found


def class_profile(rows: ScannedRows, n_bins: int) -> ClassProfile:
    """Calibration, accuracy and loss of each class."""
    columns, labels, sums = rows.columns(), rows.labels, class_sums(rows, n_bins, "width")
    n_classes, mass = rows.n_classes, rows.mass
    count, right, lost = (
        np.bincount(labels, mass * column, minlength=n_classes) for column in (1, columns.correct, columns.nll)
    )
    predicted = np.bincount(columns.prediction, mass, minlength=n_classes)
    cell = columns.prediction * n_bins + width_index(columns.confidence, n_bins)
    gaps = np.bincount(cell, mass * (columns.confidence - columns.correct), minlength=n_classes * n_bins)
    with np.errstate(invalid="ignore", divide="ignore"):
        accuracy, nll = right / count, lost / count
        top = gaps.reshape(n_classes, n_bins) / predicted[:, None]
    parts = over(sums.excess), over(-sums.excess)
    return ClassProfile(sums.norm(1), *parts, accuracy, nll, count, predicted, over(top), over(-top))
