"""Fit every method on one set of rows, measure it on another, and say which differences are more than noise."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone

from calibrant.calibrators.base import Identity
from calibrant.calibrators.prepare import check_over_logits
from calibrant.calibrators.task_methods import task_method, task_names
from calibrant.core import progress
from calibrant.core.arrays import check_counts
from calibrant.core.bins import check_n_bins
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.zeros import log_floor_of
from calibrant.data import Predictions, as_predictions
from calibrant.data.chunks import SPILL_BYTES
from calibrant.data.guards import shared_rows
from calibrant.engines.engine import Engine
from calibrant.evaluation.bootstrap import Resamples, draw
from calibrant.evaluation.consistency import consistency_test
from calibrant.evaluation.flat import flattened
from calibrant.evaluation.groups import Grouping, clusters_by, column_groups, columns_by, common_groups, make_grouping
from calibrant.evaluation.labels import RawScores, repeated
from calibrant.evaluation.results import Comparison, MethodRow
from calibrant.evaluation.scan import group_codes, top_columns
from calibrant.evaluation.scoring import Chosen, Scored, chosen_metrics, score
from calibrant.kernels.rows import RowColumns
from calibrant.metrics.record import Metric, facts, known_name, number, sign
from calibrant.metrics.selective import rank_changes

TIE_TAIL = 0.025
"""A method ties with the best when it beats it in more than this share of the resamples (a two-sided 95% interval)."""

SHARED_WORDS = "VAL and TEST share rows, so the figures of every method are optimistic"

Methods = str | Sequence[Any] | Mapping[str, Any]


def compare(
    val: Any,
    test: Any,
    methods: Methods = "all",
    *,
    kind: str | None = None,
    task: str | None = None,
    criterion: str = "nll",
    resamples: int = 1000,
    seed: int = 0,
    n_bins: int = 15,
    by: Any = None,
    cluster: Any = None,
    engine: str | Engine = "local",
    metrics: Chosen = None,
) -> Comparison:
    """Fit methods on `val`, measure them on `test`, with paired bootstrap intervals.

    All methods are measured on the same resamples of the test rows, so that differences between methods are judged by
    their own spread, which is far smaller than that of either figure. A method that fails is a row with its reason.

    Parameters
    ----------
    val, test : Predictions, path, frame, dictionary of arrays, or (scores, labels)
        Rows to fit on and rows to measure on; K and the task must agree.
    kind, task : str, optional
        What the values are, and the task, where nothing else says it; see `open_predictions`.
    methods : "all", a name, names, calibrators, or a mapping of names to calibrators
        Short names as `calibrant.get` knows them.
    criterion : str
        The metric that decides `best`; the default is a proper score, which only better probabilities lower.
    n_bins, resamples, seed : int
        Bins of the calibration errors; bootstrap resamples behind the intervals, and their seed.
    by : one or two columns of groups of the test rows
        Each method's figures of every group then stand in its row, as in `measure`.
    cluster : a column
        The independent units (a patient, an image): whole clusters are drawn.
    engine : "local", "dask", the address of a Dask scheduler, or an engine
        Where passes over the rows run; files are read chunk by chunk.
    metrics : names, or mapping of names to functions, optional
        Registered figures to show instead of the usual ones; or functions of (probabilities, labels,
        sample_weight=None) that return a number, less being better, on top of them. They may be the criterion.

    Examples
    --------
    >>> generator = np.random.default_rng(0)
    >>> labels = generator.integers(0, 3, 400)
    >>> logits = 4 * np.eye(3)[labels] + 4 * generator.normal(size=(400, 3))
    >>> table = compare((logits[:200], labels[:200]), (logits[200:], labels[200:]), ["none", "ts"], resamples=200)
    >>> table.best
    'ts'
    """
    check_n_bins(n_bins)
    criterion = known_name(criterion)
    val, test = (as_predictions(rows, name, kind=kind, task=task) for rows, name in ((val, "val"), (test, "test")))
    if val.task != test.task:
        raise InputError(f"val is a {val.task} task, but test is {test.task}: give task= (--task)")
    chosen = resolve_methods(methods, val.task, val.n_classes)
    val.refuse_probabilities()
    test.refuse_probabilities()
    test = test.aligned(val.schema, "val")
    check_counts(val.weights, "weights of val")
    check_counts(test.weights, "weights of test")
    seen_task = "binary" if test.task == "multilabel" else test.task
    measured = chosen_metrics(metrics, seen_task, compared=True, criterion=criterion)
    same = shared_rows(val, test)
    given, val, test = test, val.expanded(), test.expanded()
    seen = flattened(test)
    fit_rows, before = _FitRows(val, engine), top_columns(test, engine)
    if by is not None and test.task != "multilabel":
        fit_rows.groups, fit_rows.test_groups = common_groups(val, test, by)
    by, cluster = repeated(given, by, cluster)
    clusters = clusters_by(seen, cluster)
    drawn = draw(seen.n, resamples, seed, clusters)
    grouping = None if by is None else make_grouping(columns_by(seen, by), seen.n)
    rows, scored = [], {}
    for place, (name, calibrator) in enumerate(chosen.items()):
        progress.step("comparing methods", place, len(chosen), name)
        row, figures = _run(name, calibrator, fit_rows, test, drawn=drawn, n_bins=n_bins, metrics=measured)
        if val.kind == "probabilities" and getattr(row.calibrator, "requires_logits", False):
            row = replace(row, warnings=(*row.warnings, "made for logits, fitted on logarithms of probabilities"))
        rows.append(row)
        if figures is not None:
            scored[name] = figures
    progress.step("comparing methods", len(chosen), len(chosen))
    shared: dict[str, Any] = {"weights": seen.weights, "clusters": clusters, "n_bins": n_bins}
    judge = partial(_finish, before=before, grouping=grouping, task=seen.task, resamples=resamples, seed=seed)
    rows = [judge(row, **shared) for row in rows]
    rows, best, second = _rank(rows, scored, criterion)
    first = next((row for row in rows if row.method == "none" and row.error is None), None)
    first = first or next((row for row in rows if row.error is None), None)
    comparison = Comparison(
        rows=tuple(rows),
        criterion=criterion,
        best=best,
        second=second,
        n_val=val.n,
        n_test=given.n,
        n_classes=test.n_classes,
        class_names=val.class_names or test.class_names,
        labels=seen.labels,
        weights=seen.weights,
        noise_floor=None if first is None else first.noise_floor,
        n_bins=n_bins,
        resamples=resamples,
        seed=seed,
        task=test.task,
        warnings=(*given.notes, *((f"{SHARED_WORDS}: {same}",) if same else ())),
    )
    return replace(comparison, verdict=comparison_verdict(comparison))


def resolve_methods(methods: Methods, task: str = "multiclass", n_classes: int | None = None) -> dict[str, Any]:
    """Names and unfitted calibrators; a calibrator that cannot even be built stands as its exception."""
    if isinstance(methods, Mapping):
        return dict(methods)
    if isinstance(methods, str):
        methods = (
            task_names(task) if methods == "all" else [part.strip() for part in methods.split(",") if part.strip()]
        )
    if len(methods) == 0:
        raise InputError(f"methods is empty: name at least one of {', '.join(task_names(task))}")
    chosen: dict[str, Any] = {}
    for method in methods:
        if isinstance(method, str):
            chosen[method] = _build(method, task, n_classes)
        else:
            chosen[_free_name(type(method).__name__, chosen)] = method
    return chosen


def _build(name: str, task: str, n_classes: int | None) -> Any:
    try:
        return task_method(name, task, n_classes)
    except InputError:
        raise  # a misspelt name is the caller's mistake, not a method that failed
    except Exception as error:
        return error


def _free_name(wanted: str, taken: Mapping[str, Any]) -> str:
    name, count = wanted, 2
    while name in taken:
        name, count = f"{wanted} {count}", count + 1
    return name


class _FitRows:
    """The rows that every method is fitted on: arrays, or a file that is read chunk by chunk where it is large."""

    def __init__(self, val: Predictions, engine: str | Engine) -> None:
        self.val, self.engine = val, engine
        mapped = val.kind == "logits" and val.source.whole() is not None
        large = val.n * val.n_classes * val.dtype.itemsize > SPILL_BYTES
        self.rows = val.rows() if mapped or not large else None
        self.groups: np.ndarray | None = None
        self.test_groups: np.ndarray | None = None

    def fit(self, calibrator: Any) -> Any:
        """A fitted copy of the calibrator."""
        check_over_logits(calibrator)
        calibrator = clone(calibrator, safe=False)
        if self.val.task == "multilabel" and isinstance(calibrator, Identity):
            return RawScores(log_floor_of(self.val.logits, one_score=True))
        if getattr(calibrator, "takes_groups", False):
            rows = self.val.rows() if self.rows is None else self.rows
            return calibrator.fit(rows.logits, rows.labels, sample_weight=rows.weights, groups=self.groups)
        if self.rows is None or self.val.spread:
            return calibrator.fit(self.val, engine=self.engine)
        calibrator.fit(self.rows.logits, self.rows.labels, sample_weight=self.rows.weights)
        return calibrator


def _run(
    name: str,
    calibrator: Any,
    fit_rows: _FitRows,
    test: Predictions,
    *,
    drawn: Resamples,
    n_bins: int,
    metrics: Sequence[Metric],
) -> tuple[MethodRow, Scored | None]:
    started = time.perf_counter()
    try:
        if isinstance(calibrator, Exception):
            raise calibrator
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FitWarning)
            calibrator = fit_rows.fit(calibrator)
        seconds = time.perf_counter() - started
        codes, notes = group_codes(calibrator, fit_rows.test_groups, test.n)
        options: Any = {"n_bins": n_bins, "engine": fit_rows.engine, "metrics": metrics, "codes": codes}
        figures = score(calibrator, test, resamples=drawn, **options)
        n_parameters = int(calibrator.n_parameters_)
    except Exception as error:
        reason = " ".join(f"{error}".split()) or type(error).__name__
        return MethodRow(name, error=reason, fit_seconds=time.perf_counter() - started), None
    said = tuple(dict.fromkeys(str(one.message) for one in caught if issubclass(one.category, FitWarning))) + notes
    row = MethodRow(
        name,
        calibrator=calibrator,
        metrics=figures.metrics,
        fit_seconds=seconds,
        n_parameters=n_parameters,
        columns=figures.columns,
        classes=figures.classes,
        warnings=said,
    )
    return row, figures


def _finish(
    row: MethodRow,
    *,
    before: RowColumns,
    grouping: Grouping | None,
    task: str,
    resamples: int,
    seed: int,
    **shared: Any,
) -> MethodRow:
    """What is judged beside the figures; `shared` holds weights, clusters and the number of bins."""
    columns = row.columns
    if columns is None:
        return row
    changed = np.average(columns.prediction != before.prediction, weights=shared["weights"])
    return replace(
        row,
        groups=None if grouping is None else column_groups(columns, grouping, task, resamples=resamples, **shared),
        changed_predictions=float(changed),
        changed_rankings=rank_changes(before.confidence, columns.confidence),
        noise_floor=consistency_test(columns.confidence, columns.correct, seed=seed, **shared),
    )


def _rank(
    rows: list[MethodRow], scored: Mapping[str, Scored], criterion: str
) -> tuple[list[MethodRow], str | None, str | None]:
    """Mark ties in every column and the chance of beating the best by the criterion."""
    if not scored:
        return rows, None, None
    names = list(next(iter(scored.values())).metrics)
    orders = {metric: _order(scored, metric) for metric in names}
    best = orders[criterion][0]
    second = orders[criterion][1] if len(orders[criterion]) > 1 else None
    result = []
    for row in rows:
        if row.method not in scored:
            result.append(row)
            continue
        beats = {metric: _p_beats(scored, row.method, orders[metric][0], metric) for metric in names}
        ties = tuple(m for m in names if orders[m][0] == row.method or beats[m] > TIE_TAIL)
        result.append(
            replace(
                row,
                p_beats_best=_p_beats(scored, row.method, best, criterion),
                ties_best=criterion in ties,
                ties=ties,
            )
        )
    return result, best, second


def _order(scored: Mapping[str, Scored], metric: str) -> list[str]:
    return sorted(scored, key=lambda name: sign(metric) * scored[name].metrics[metric].value)


def _p_beats(scored: Mapping[str, Scored], challenger: str, best: str, metric: str) -> float:
    """Share of resamples in which the challenger is better; equal figures count half."""
    difference = sign(metric) * (_recentred(scored[challenger], metric) - _recentred(scored[best], metric))
    # what differs by rounding only is equal
    slack = 1e-9 * max(abs(scored[best].metrics[metric].value), 1e-9)
    return float((difference < -slack).mean() + 0.5 * (np.abs(difference) <= slack).mean())


def _recentred(scored: Scored, metric: str) -> np.ndarray:
    """Draws around the estimate: a resampled ECE is biased upwards, its spread is what we need."""
    draws = scored.draws[metric]
    return scored.metrics[metric].value + draws - draws.mean()


def comparison_verdict(comparison: Comparison) -> str:
    """One sentence: what the best method does to the error, and who ties with it."""
    if comparison.best is None:
        return "every method failed"
    best = comparison.row(comparison.best)
    name = comparison.criterion
    sentence = f"{best.method} is best by {name} ({best.metrics[name].value:.4f})"
    base = next((row for row in comparison.rows if row.method == "none" and row.error is None), None)
    if base is not None and base is not best:
        changes = []
        for one, unit in (("ece", "%"), ("nll", "")):
            if one in best.metrics:
                old, new = (f"{number(one, row.metrics[one].value)}{unit}" for row in (base, best))
                changes.append(f"{facts(one).label} {old} → {new}")
        sentence += f": {', '.join(changes)}" if changes else ""
    tied = [row.method for row in comparison.rows if row.ties_best and row is not best]
    return sentence + (f"; within noise of it: {', '.join(tied)}" if tied else "")
