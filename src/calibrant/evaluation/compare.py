"""Fit every method on one set of rows, measure it on another, and say which differences are more than noise."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import clone

from calibrant.calibrators.registry import get, names
from calibrant.core import progress
from calibrant.core.arrays import check_counts
from calibrant.core.bins import check_n_bins
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.metric_facts import known_name, sign
from calibrant.data import Predictions, open_predictions
from calibrant.data.chunked import SPILL_BYTES
from calibrant.engines.engine import Engine
from calibrant.evaluation.bootstrap import Resamples, draw
from calibrant.evaluation.consistency import consistency_test
from calibrant.evaluation.results import Comparison, MethodRow
from calibrant.evaluation.scan import top_columns
from calibrant.evaluation.scoring import METRICS, Scored, score
from calibrant.kernels.rows import RowColumns
from calibrant.metrics.ranking import rank_changes

TIE_TAIL = 0.025
"""A method ties with the best when it beats it in more than this share of the resamples (a two-sided 95% interval)."""

Methods = str | Sequence[Any] | Mapping[str, Any]


def compare(
    val: Any,
    test: Any,
    methods: Methods = "all",
    *,
    criterion: str = "nll",
    resamples: int = 1000,
    seed: int = 0,
    n_bins: int = 15,
    engine: str | Engine = "local",
) -> Comparison:
    """Fit methods on `val`, measure them on `test`, with paired bootstrap intervals.

    All methods meet the same resamples of the test rows, so that differences between methods are judged by their own
    spread, which is far smaller than the spread of either figure. A method that fails is a row with its reason.

    Parameters
    ----------
    val, test : Predictions, path, or (logits, labels)
        Rows to fit on and rows to measure on; K must agree.
    methods : "all", a name, names, calibrators, or a mapping of names to calibrators
        Short names as `calibrant.get` knows them.
    criterion : str
        The metric that decides `best`; the default is a proper score, which no map can game.
    resamples : int
        Number of bootstrap resamples.
    seed : int
        Seed of the resamples.
    n_bins : int
        Bins of the calibration errors.
    engine : "local", "dask", the address of a Dask scheduler, or an engine
        Where passes over the rows run; files are read chunk by chunk.

    Returns
    -------
    Comparison

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
    if criterion not in METRICS:
        raise InputError(f"criterion must be one of {', '.join(METRICS)}, got {criterion!r}")
    chosen = resolve_methods(methods)
    val, test = as_predictions(val, "val"), as_predictions(test, "test")
    if val.n_classes != test.n_classes:
        raise InputError(f"val has {val.n_classes} classes, but test has {test.n_classes}: give the same classes")
    check_counts(val.weights, "weights of val")
    check_counts(test.weights, "weights of test")
    fit_rows, before = _FitRows(val, engine), top_columns(test, engine)
    drawn = draw(test.n, resamples, seed)
    rows, scored = [], {}
    for place, (name, calibrator) in enumerate(chosen.items()):
        progress.step("comparing methods", place, len(chosen), name)
        row, figures = _run(name, calibrator, fit_rows, test, drawn=drawn, n_bins=n_bins)
        if val.kind == "probabilities" and getattr(row.calibrator, "requires_logits", False):
            row = replace(row, warnings=(*row.warnings, "made for logits, fitted on logarithms of probabilities"))
        rows.append(row)
        if figures is not None:
            scored[name] = figures
    progress.step("comparing methods", len(chosen), len(chosen))
    rows = [_finish(row, before, test.weights, n_bins=n_bins, seed=seed) for row in rows]
    rows, best, second = _rank(rows, scored, criterion)
    first = next((row for row in rows if row.method == "none" and row.error is None), None)
    first = first or next((row for row in rows if row.error is None), None)
    comparison = Comparison(
        rows=tuple(rows),
        criterion=criterion,
        best=best,
        second=second,
        n_val=val.n,
        n_test=test.n,
        n_classes=test.n_classes,
        class_names=test.class_names or val.class_names,
        labels=test.labels,
        weights=test.weights,
        noise_floor=None if first is None else first.noise_floor,
        n_bins=n_bins,
        resamples=resamples,
        seed=seed,
    )
    return replace(comparison, verdict=comparison_verdict(comparison))


def as_predictions(given: Any, name: str) -> Predictions:
    """Predictions from themselves, from a path, or from a pair (logits, labels)."""
    if isinstance(given, Predictions):
        return given
    if isinstance(given, (str, os.PathLike)):
        return open_predictions(given)
    if isinstance(given, (tuple, list)) and len(given) == 2:
        return Predictions.from_arrays(logits=given[0], labels=given[1], name=name)
    raise InputError(f"{name} must be Predictions, a path or a pair (logits, labels), got {type(given).__name__}")


def resolve_methods(methods: Methods) -> dict[str, Any]:
    """Names and unfitted calibrators; a calibrator that cannot even be built stands as its exception."""
    if isinstance(methods, Mapping):
        return dict(methods)
    if isinstance(methods, str):
        methods = names() if methods == "all" else [part.strip() for part in methods.split(",") if part.strip()]
    if len(methods) == 0:
        raise InputError(f"methods is empty: name at least one of {', '.join(names())}")
    chosen: dict[str, Any] = {}
    for method in methods:
        if isinstance(method, str):
            chosen[method] = _build(method)
        else:
            chosen[_free_name(type(method).__name__, chosen)] = method
    return chosen


def _build(name: str) -> Any:
    try:
        return get(name)
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

    def fit(self, calibrator: Any) -> Any:
        """The calibrator, fitted."""
        if self.rows is None:
            return calibrator.fit_predictions(self.val, engine=self.engine)
        calibrator.fit(self.rows.logits, self.rows.labels, sample_weight=self.rows.weights)
        return calibrator


def _run(
    name: str, calibrator: Any, fit_rows: _FitRows, test: Predictions, *, drawn: Resamples, n_bins: int
) -> tuple[MethodRow, Scored | None]:
    started = time.perf_counter()
    try:
        if isinstance(calibrator, Exception):
            raise calibrator
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FitWarning)
            calibrator = fit_rows.fit(clone(calibrator, safe=False))
        seconds = time.perf_counter() - started
        figures = score(calibrator, test, resamples=drawn, n_bins=n_bins, engine=fit_rows.engine)
        n_parameters = int(calibrator.n_parameters_)
    except Exception as error:
        reason = " ".join(f"{error}".split()) or type(error).__name__
        return MethodRow(name, error=reason, fit_seconds=time.perf_counter() - started), None
    said = tuple(dict.fromkeys(str(one.message) for one in caught if issubclass(one.category, FitWarning)))
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
    before: RowColumns,
    weights: np.ndarray | None,
    *,
    n_bins: int,
    seed: int,
) -> MethodRow:
    if row.columns is None:
        return row
    columns = row.columns
    floor = consistency_test(columns.confidence, columns.correct, n_bins=n_bins, weights=weights, seed=seed)
    return replace(
        row,
        changed_predictions=float(np.average(columns.prediction != before.prediction, weights=weights)),
        changed_rankings=rank_changes(before.confidence, columns.confidence),
        noise_floor=floor,
    )


def _rank(
    rows: list[MethodRow], scored: Mapping[str, Scored], criterion: str
) -> tuple[list[MethodRow], str | None, str | None]:
    """Mark ties in every column and the chance of beating the best by the criterion."""
    if not scored:
        return rows, None, None
    orders = {metric: _order(scored, metric) for metric in METRICS}
    best = orders[criterion][0]
    second = orders[criterion][1] if len(orders[criterion]) > 1 else None
    result = []
    for row in rows:
        if row.method not in scored:
            result.append(row)
            continue
        beats = {metric: _p_beats(scored, row.method, orders[metric][0], metric) for metric in METRICS}
        ties = tuple(m for m in METRICS if orders[m][0] == row.method or beats[m] > TIE_TAIL)
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
    ece = best.metrics["ece"].value
    name = comparison.criterion
    sentence = f"{best.method} is best by {name} ({best.metrics[name].value:.4f})"
    base = next((row for row in comparison.rows if row.method == "none" and row.error is None), None)
    if base is not None and base is not best:
        sentence += f": ECE {100 * base.metrics['ece'].value:.2f}% → {100 * ece:.2f}%"
        sentence += f", NLL {base.metrics['nll'].value:.4f} → {best.metrics['nll'].value:.4f}"
    tied = [row.method for row in comparison.rows if row.ties_best and row is not best]
    return sentence + (f"; within noise of it: {', '.join(tied)}" if tied else "")
