"""Fit every method on one set of rows, measure it on another, and say which differences are more than noise."""

import itertools
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone

from calibrant.calibrators.base import Calibrator, Identity
from calibrant.calibrators.group import GroupedCalibrator
from calibrant.calibrators.prepare import check_over_logits, default_names, task_method, task_names
from calibrant.core import progress
from calibrant.core.arrays import check_counts, check_whole
from calibrant.core.bins import check_n_bins
from calibrant.core.errors import InputError, said
from calibrant.core.few_clusters import count_clusters, few_clusters_notes
from calibrant.core.schema import cluster_codes
from calibrant.data import Predictions, open_parts, open_predictions
from calibrant.data.chunks import SPILL_BYTES, flattened
from calibrant.data.guards import shared_rows
from calibrant.data.source import ArraySource
from calibrant.engines.engine import Engine
from calibrant.evaluation.bootstrap import Resamples, column_of, draw, sampled
from calibrant.evaluation.evidence import count_evidence
from calibrant.evaluation.groups import (
    Grouping,
    columns_by,
    common_groups,
    group_differences,
    make_grouping,
    row_groups,
    split_name,
)
from calibrant.evaluation.intervals import ScannedRows
from calibrant.evaluation.results import TOO_FEW_TO_COMPARE, Comparison, MethodRow
from calibrant.evaluation.scoring import Chosen, chosen_metrics, class_profile, estimated, scan_predictions, zero_notes
from calibrant.evaluation.tables import Figures, Json, figure
from calibrant.evaluation.verdict import judge_calibration, run_ece_test
from calibrant.metrics.record import Metric, facts, sign
from calibrant.metrics.selective import reversed_share

TIE_TAIL = 0.025
"""A method ties with the best when it beats it in more than this share of the resamples (a two-sided 95% interval)."""

FOLDS = 5
"""Folds of a cross-fit where nothing else is asked for."""
FOLD = "\0fold"
"""The column of groups that holds the fold of each row; no file can have one of this name."""

Methods = str | Sequence[Any] | Mapping[str, Any]

Halves = tuple[Predictions, Predictions | None]
"""Rows to fit on and rows to measure on; None where one set of rows is to be divided."""


def compare(
    val: Any,
    test: Any = None,
    methods: Methods = "default",
    *,
    kind: str | None = None,
    task: str | None = None,
    scores: Any = None,
    labels: Any = None,
    weights: Any = None,
    class_names: Any = None,
    ignore_index: int | None = None,
    criterion: str = "nll",
    resamples: int = 1000,
    seed: int = 0,
    n_bins: int = 15,
    by: Any = None,
    cluster: Any = None,
    engine: str | Engine = "local",
    metrics: Chosen = None,
    weights_are: str = "rows",
    cv: int | None = None,
    split: float | None = None,
) -> Comparison:
    """Fit methods on `val`, measure them on `test`, with paired bootstrap intervals.

    All methods are measured on the same resamples of the test rows, so that differences between methods are judged by
    their own spread, which is far smaller than that of either figure. A method that fails is a row with its reason.

    Parameters
    ----------
    val, test : Predictions, path, frame, dictionary of arrays, or (scores, labels)
        Rows to fit on and rows to measure on; K and the task must agree. Without `test` the rows of `val` are
        divided by `seed`, clusters being kept together, as `cv` or `split` say.
    kind, task, scores, labels, weights, class_names, ignore_index : optional
        What both files or tables hold, and where; see `open_predictions`.
    methods : "default", "all", a short name, a list of short names or calibrators, or a mapping of names to either
        Short names as `calibrant.get` knows them. By default the eight that are worth a first look in the task, with
        `by` two that calibrate by group among them.
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
    weights_are : {"rows", "counts"}
        What intervals and tests draw: the rows, whatever they weigh; or every copy, a weight of 2 being the row twice.
    cv : int, optional
        Without `test`: folds of a cross-fit, 5 by default. Every row is measured by fits on the other folds; the
        `calibrator` of a row of the table is fitted on all.
    split : float, optional
        Without `test`, in place of `cv`: the share of rows to fit on; the others are measured on.

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
    criterion = facts(criterion).name
    told = {
        "kind": kind, "task": task, "scores": scores, "labels": labels, "weights": weights, "class_names": class_names,
        "ignore_index": ignore_index,
    }  # fmt: skip
    val, test, by, cluster, division = _opened(val, test, told, by, cluster, cv=cv, split=split, seed=seed)
    same = "" if FOLD in val.groups else shared_rows(val, test)
    notes = [f"VAL and TEST share rows, so the figures of every method are optimistic: {same}"] if same else []
    test, by, clusters, weighed = sampled(test, by, cluster, weights_are)
    given, val, test = test, val.expanded(), test.expanded()
    seen = flattened(test)
    measured = chosen_metrics(metrics, seen.task, n_classes=seen.n_classes, compared=True, criterion=criterion)
    grouping = None if by is None else make_grouping(by, seen.n)
    groups = (None, None) if by is None or test.task == "multilabel" else common_groups(val, by)
    chosen = resolve_methods(methods, val.task, val.n_classes, groups[0] is not None, weights_are, val.absent)
    drawn = draw(seen.n, resamples, seed, clusters)
    shared: Json = {"weights": seen.weights, "clusters": clusters, "n_bins": n_bins}
    mapped = val.kind == "logits" and val.source.whole() is not None
    # a large file is read chunk by chunk by every fit
    small = mapped or val.n * val.n_classes * val.dtype.itemsize <= SPILL_BYTES
    fit_rows = val.rows() if small else None
    scan = partial(scan_predictions, drawn=drawn, n_bins=n_bins, engine=engine)
    as_given, found = scan(test), []
    before, n_clusters = as_given.columns(), count_clusters(clusters, as_given.mass)
    size: Json = {"task": test.task, "n_classes": test.n_classes, "n_rows": given.n}
    measure_row = partial(
        _measure_row,
        measured=measured,
        drawn=drawn,
        size=size,
        grouping=grouping,
        seed=seed,
        weights=seen.weights,
        clusters=clusters,
        n_bins=n_bins,
    )
    for name, calibrator in progress.each("comparing methods", chosen):
        started = time.perf_counter()
        raw = isinstance(calibrator, Identity)  # measured as it is: what a zero counts as is for those who learn
        try:
            with said() as heard:
                fitted = _fitted(calibrator, val, fit_rows, groups[0], engine)
                seconds, n_parameters = time.perf_counter() - started, int(fitted.n_parameters_)
                codes = fitted.group_codes(groups[1], test.n) if isinstance(fitted, GroupedCalibrator) else None
            with said() as also:
                if raw:
                    rows = as_given
                elif FOLD in test.groups:
                    rows = scan(_cross_fitted(calibrator, val, test, groups, engine))
                else:
                    rows = scan(test, calibrator=fitted, codes=codes)
                row = measure_row(rows, raw)
        except Exception as error:
            reason = " ".join(f"{error}".split()) or type(error).__name__
            found.append(MethodRow(name, error=reason, fit_seconds=time.perf_counter() - started))
            continue
        if val.kind == "probabilities" and isinstance(fitted, Calibrator) and fitted.requires_logits:
            heard["made for logits, fitted on logarithms of probabilities"] += 1
        columns = rows.columns()
        notes += zero_notes(columns.nll) if raw else []
        found.append(
            replace(
                row,
                method=name,
                calibrator=fitted,
                fit_seconds=seconds,
                n_parameters=n_parameters,
                warnings=tuple(also if raw else heard | also),
                changed_predictions=float(np.average(columns.prediction != before.prediction, weights=seen.weights)),
                changed_rankings=reversed_share(before.confidence, columns.confidence),
            )
        )
    floors = {row.method: row.noise_floor for row in found if row.error is None}
    comparison = Comparison(
        rows=tuple(found),
        criterion=criterion,
        n_val=val.n,
        n_test=given.n,
        n_classes=test.n_classes,
        class_names=val.class_names or test.class_names,
        labels=seen.labels,
        weighed=weighed,
        noise_floor=floors.get("none", next(iter(floors.values()), None)),
        **shared,
        resamples=resamples,
        seed=seed,
        task=test.task,
        warnings=(*given.notes, *few_clusters_notes(n_clusters, given.n), *notes),
        division=division,
        shares_rows=bool(same),
        too_few_rows=count_evidence(before.correct, seen.weights, clusters, **size).shortage,
        n_clusters=None if n_clusters == given.n else n_clusters,
        grouping=grouping,
    )
    return judged(comparison)


def _measure_row(
    rows: ScannedRows,
    raw: bool,
    *,
    measured: Sequence[Metric],
    drawn: Resamples,
    size: Json,
    grouping: Grouping | None,
    seed: int,
    weights: Any,
    clusters: Any,
    n_bins: int,
) -> MethodRow:
    """Metrics, test of calibration, groups and columns of rows; with a verdict if they are uncalibrated (`raw`)."""
    figures, draws, _ = estimated(measured, rows, drawn, n_bins, paired=True)
    floor, figures = run_ece_test(rows, figures, clusters, n_bins=n_bins, seed=seed)
    columns, calibration = rows.columns(), ""
    if raw:
        evidence = count_evidence(columns.correct, weights, clusters, stated=columns.confidence, **size)
        calibration, figures = judge_calibration(rows, floor, evidence, figures, n_bins=n_bins, seed=seed)
    # float32 is enough for diagrams, and thirty methods of a million rows must fit in memory
    narrow = {name: getattr(columns, name).astype(np.float32) for name in ("nll", "brier")}
    analysis: Json = {"weights": weights, "clusters": clusters, "n_bins": n_bins, "resamples": len(drawn.counts)}
    return MethodRow(
        "",
        metrics=figures,
        calibration=calibration,
        columns=columns._replace(prediction=columns.prediction.astype(np.int32), entropy=np.empty(0), **narrow),
        draws=draws,
        classes=class_profile(rows, n_bins),
        noise_floor=floor,
        groups=grouping and row_groups(rows, grouping, **analysis),
    )


def open_halves(model: Any, told: Mapping[str, Any]) -> Halves:
    """The rows of one model, as `compare_models` takes it."""
    from calibrant.datasets import Dataset

    if isinstance(model, str | os.PathLike):
        parts = open_parts(model, **told)
        if "" not in parts and not {"val", "test"} <= parts.keys():
            raise InputError(f"{os.fspath(model)} has the parts {', '.join(parts)}, but val and test are needed")
        model, told = parts.get("", parts), {}
    elif isinstance(model, Dataset):
        model = vars(model)
    if isinstance(model, Mapping) and {"val", "test"} <= model.keys():
        model = model["val"], model["test"]
    val, test = model if isinstance(model, tuple | list) and len(model) == 2 else (model, None)
    val = open_predictions(val, name="val", **told)
    return val, None if test is None else open_predictions(test, name="test", **told)


def _opened(val: Any, test: Any, told: Json, by: Any, cluster: Any, **how: Any) -> tuple[Any, ...]:
    """Rows to fit on and to measure on with classes in one order, columns of groups, clusters, how one was divided."""
    val, division = open_predictions(val, name="val", **told), ""
    if test is None:
        (val, by), cluster = carried(val, by, cluster), None
        val, test, division = divided(val, **how)
    else:
        if how["cv"] is not None or how["split"] is not None:
            raise InputError("cv and split divide one set of rows, but there are two, val and test")
        test = open_predictions(test, name="test", **told)
        if isinstance(cluster, str):
            with suppress(InputError):  # the rows to fit on may have no such column
                val, _ = carried(val, None, cluster)
    if val.task != test.task:
        raise InputError(f"val is a {val.task} task, but test is {test.task}: give task=")
    for rows, word in ((val, "val"), (test, "test")):
        rows.refuse_probabilities()
        check_counts(rows.weights, f"weights of {word}")
    test = test.aligned(val.schema, "val")
    return val, test, None if by is None else columns_by(test, by), cluster, division


def carried(rows: Predictions, by: Any, cluster: Any) -> tuple[Predictions, list[str] | None]:
    """Predictions that hold their groups and clusters themselves, so that a part of them does; the names of groups."""
    columns = {} if by is None else columns_by(rows, by)
    groups = {**rows.groups, **{split_name(name)[0]: column for name, column in columns.items()}}
    clusters = rows.clusters if cluster is None else column_of(rows, cluster)
    return rows.like(groups=groups, clusters=clusters), list(columns) or None


def divided(
    rows: Predictions, *, cv: int | None = None, split: float | None = None, seed: int = 0
) -> tuple[Predictions, Predictions, str]:
    """The rows to fit on, those to measure on, and words on how they were drawn.

    Parameters
    ----------
    cv : folds of a cross-fit: both sets are then all rows, and their column `FOLD` says which fold a row is in.
    split : in place of it, the share of rows to fit on.

    Examples
    --------
    >>> rows = Predictions(np.zeros((10, 2)), [0, 1] * 5, clusters=[0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    >>> val, test, words = divided(rows, split=0.6)
    >>> val.n, test.n, words, set(val.clusters) & set(test.clusters)
    (6, 4, 'split at random, seed 0', set())
    """
    if cv is not None and split is not None:
        raise InputError("cv divides the rows into folds, split into two parts: give one of them")
    cv = check_whole(FOLDS if cv is None else cv, "cv", 2)
    shares = np.arange(1, cv) / cv if split is None else np.array([split])
    # clusters (or rows) are drawn in turn, and a part ends where they hold its share of the rows
    _, unit, sizes = np.unique(
        np.arange(rows.n) if rows.clusters is None else cluster_codes(rows.clusters)[0],
        return_inverse=True,
        return_counts=True,
    )
    order = np.random.default_rng([seed, 31]).permutation(len(sizes))
    reached = np.cumsum(sizes[order]) - sizes[order] / 2
    fold = np.searchsorted(shares, reached / rows.n, side="right")[np.argsort(order)[unit]]
    if len(np.unique(fold)) <= len(shares):
        raise InputError(f"{len(sizes)} rows or clusters cannot be divided at {shares.tolist()} of them")
    if split is None:
        rows = rows.like(groups={**rows.groups, FOLD: fold})
        return rows, rows, f"cross-fitted in {cv} folds, seed {seed}"
    val, test = (rows[fold == part].like(notes=rows.notes) for part in (0, 1))
    return val, test, f"split at random, seed {seed}"


def resolve_methods(  # noqa: PLR0917
    methods: Methods, task: str, n_classes: int, grouped: bool = False, weights_are: str = "rows", absent: Any = None
) -> Json:
    """Names and unfitted calibrators; a calibrator that cannot even be built stands as its exception."""
    if isinstance(methods, str):
        every = task_names(task) if methods == "all" else ()
        listed = [part.strip() for part in methods.split(",") if part.strip()]
        methods = (
            list(dict.fromkeys([*every, *default_names(task, grouped)])) if methods in ("default", "all") else listed
        )
    if not isinstance(methods, Iterable):
        raise InputError(f"methods must be short names or calibrators, got {methods!r}")
    named: Json = dict(methods) if isinstance(methods, Mapping) else {}
    chosen: Json = {}
    for method in methods if not named else ():
        name = class_name = method if isinstance(method, str) else type(method).__name__
        for count in itertools.count(2):
            if isinstance(method, str) or name not in named:
                break
            name = f"{class_name} {count}"
        named[name] = method
    if not named:
        raise InputError(f"methods is empty: name at least one of {', '.join(task_names(task))}")
    settings = {"weights_are": weights_are, "absent": absent}
    for name, method in named.items():
        chosen[name] = method
        if not isinstance(method, str):
            if not hasattr(method, "fit"):
                raise InputError(f"methods must be short names or calibrators, got {method!r}")
            continue
        try:
            made = chosen[name] = task_method(method, task, n_classes)
            # those of its parameters, or of a calibrator inside, that the data or the comparison decide
            known = {parameter: parameter.rpartition("__")[2] for parameter in made.get_params()}
            made.set_params(**{parameter: settings[last] for parameter, last in known.items() if last in settings})
        except InputError:
            raise  # a misspelt name is the caller's mistake, not a method that failed
        except Exception as error:
            chosen[name] = error
    return chosen


def _fitted(calibrator: Any, val: Predictions, rows: Any, groups: Any, engine: str | Engine) -> Any:
    """A fitted copy of a calibrator, of the rows of `val` where they are in memory; `groups` has one entry per row."""
    if isinstance(calibrator, Exception):
        raise calibrator
    check_over_logits(calibrator)
    calibrator = clone(calibrator, safe=False)
    if val.task == "multilabel" and isinstance(calibrator, Identity):
        return calibrator
    grouped = isinstance(calibrator, GroupedCalibrator)
    if not grouped and (rows is None or val.spread):
        return calibrator.fit(val, engine=engine)
    rows = val.rows() if rows is None else rows
    options = {"groups": groups} if grouped else {}
    if val.clusters is not None and isinstance(calibrator, Calibrator):
        options["clusters"] = val.clusters  # rows of one cluster share a fold
    return calibrator.fit(rows.logits, rows.labels, sample_weight=rows.weights, **options)


def _cross_fitted(
    calibrator: Any, val: Predictions, test: Predictions, groups: Any, engine: str | Engine
) -> Predictions:
    """The test rows calibrated by fits on the other folds, which warn of nothing that the fit on all does not."""
    calibrated = np.empty_like(test.logits)
    with said():
        for fold in set(test.groups[FOLD]):
            kept, own = np.flatnonzero(val.groups[FOLD] != fold), test.groups[FOLD] == fold
            part = val[kept].like(spread=val.spread)
            fitted = _fitted(calibrator, part, part.rows(), None if groups[0] is None else groups[0][kept], engine)
            options = {"groups": groups[1][own]} if isinstance(fitted, GroupedCalibrator) else {}
            calibrated[own] = fitted.transform(test.logits[own], **options)
    return test.like(source=ArraySource(calibrated.reshape(test.n, -1), test.name), kind="logits", _checked=False)


def judged(comparison: Comparison) -> Comparison:
    """With the best by the criterion and the chance of beating it, ties in every column, and the verdict.

    With too few rows no method is ranked, and the best is the default if it was compared.
    """
    # where a figure is known of no method, the first stands for the best
    rows = comparison.by_method
    done = [method for method, row in rows.items() if row.error is None]
    if done and comparison.too_few_rows:
        best, verdict = "auto" if "auto" in done else None, f"{comparison.too_few_rows}: {TOO_FEW_TO_COMPARE}"
        return replace(comparison, best=best, second=None, verdict=verdict)
    orders = {metric: comparison.ranking(metric) or done for metric in comparison.metric_names}
    best, second, *_ = [*orders.get(comparison.criterion, []), None, None]

    for method in done:
        row, beats = rows[method], {}
        for metric, (first, *_) in orders.items():
            # the share of resamples in which the method is better; what differs by rounding only counts half
            gap = sign(metric) * row.minus(rows[first], metric)[1]
            slack = 1e-9 * max(abs(rows[first].metrics[metric].value), 1e-9)
            beats[metric] = float((gap < -slack).mean() + 0.5 * (np.abs(gap) <= slack).mean())
        ties = tuple(one for one, order in orders.items() if order[0] == method or beats[one] > TIE_TAIL)
        chance, tied = beats[comparison.criterion], comparison.criterion in ties
        difference = Figures({one: row.minus(rows[best], one)[0] for one in row.metrics if method != best})
        rows[method] = replace(row, p_beats_best=chance, ties_best=tied, ties=ties, difference=difference)
    ranked = replace(comparison, rows=tuple(rows.values()), best=best, second=second)
    shipped, base = (rows.get(name or "", MethodRow("")) for name in (ranked.recommended, "none"))
    if shipped.groups is not None and base.groups is not None:
        ranked = replace(ranked, group_changes=group_differences(shipped, base, ranked))
    if best is None:
        return replace(ranked, verdict="every method failed")
    # one sentence: what the best method does to the error, and who ties with it
    name, found = comparison.criterion, rows[best].metrics
    verdict, changes = f"{best} is best by {facts(name).label} ({figure(name, found[name].value)})", []
    for one in ("ece", "nll"):
        if base.metrics and best != "none" and one in found:
            values = (figure(one, figures[one].value) for figures in (base.metrics, found))
            changes.append(f"{facts(one).label} {' → '.join(values)}")
    others = [method for method, row in rows.items() if row.ties_best and method != best]
    verdict += f": {', '.join(changes)}" * bool(changes) + f"; within noise of it: {', '.join(others)}" * bool(others)
    return replace(ranked, verdict=verdict)
