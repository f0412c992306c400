"""Measure predictions by the registered metrics: values, intervals, and the draws that comparisons pair.

One pass over the predictions, chunk by chunk on an engine, keeps a few numbers per row and sums by class, so that a
file larger than memory can be measured, as it is or under a fitted calibrator.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np

from calibrant.core.arrays import Array, check_score_values, short_repr
from calibrant.core.bins import over, width_index
from calibrant.core.errors import InputError, warn_user
from calibrant.core.softmax import finite_log_odds, probability_log_odds
from calibrant.core.threads import one_blas_thread
from calibrant.core.zeros import cost_of_zero
from calibrant.data import Predictions
from calibrant.data.chunks import Chunk, add_up, cut, flattened
from calibrant.engines.engine import Engine
from calibrant.evaluation.bootstrap import Resamples, sampled
from calibrant.evaluation.consistency import NoiseFloor, cluster_sums, noise_floor
from calibrant.evaluation.evidence import Evidence, Precision, count_evidence, loss_precision
from calibrant.evaluation.intervals import Intervals, ScannedRows
from calibrant.evaluation.results import ClassProfile
from calibrant.evaluation.tables import Estimate, Figures
from calibrant.kernels.rows import ALL, RowColumns
from calibrant.metrics.classwise import class_sums, probability_block
from calibrant.metrics.inputs import Checked
from calibrant.metrics.record import BINS, LAST, METRICS, ClassGaps, Gaps, Metric, facts, probe_metric, user_metric

CLASS_TABLE_ELEMENTS = 20_000_000
"""Rows × classes × bins of the widest table that is resampled at once."""

CLASS_ELEMENTS = 60_000_000
"""Rows × classes up to which every class's column is sorted."""

MOST_CLASSES = 20_000
"""The same for classes, whose columns are sorted one by one."""

SCORE_ROWS = 2_000_000
"""Up to this many rows the figures that need all scores at once (slope, curve, ROC AUC) are computed."""

CLASS_DRAWS, ENOUGH_ABOVE = 200, 10
"""Drawn labels behind the test of all classes, and errors at least as large as the observed one that end it."""

Chosen = Sequence[str] | Mapping[str, Callable[..., Any]] | None


def scan_predictions(
    predictions: Predictions,
    drawn: Resamples,
    *,
    n_bins: int,
    calibrator: Any = None,
    codes: Array | None = None,
    engine: str | Engine = "local",
) -> ScannedRows:
    """One pass over the rows as they are, or as a fitted calibrator transforms them.

    Parameters
    ----------
    drawn : the resamples of the rows; class figures use as many of them as a table of classes × bins allows.
    codes : the group of each row (n,), for a calibrator that treats groups differently.
    """
    seen = flattened(predictions)
    draws = drawn.fewer(max(256, CLASS_TABLE_ELEMENTS // (seen.n_classes * n_bins)))
    work = partial(_scanned, wanted=draws.rows, n_bins=n_bins, calibrator=calibrator, codes=codes)
    found, sums, kept, _ = add_up(work, predictions, engine, "measuring" if calibrator is None else "")
    chosen = np.concatenate(kept).astype(predictions.dtype)
    columns = RowColumns(*map(np.concatenate, zip(*found, strict=True)))
    of_logits = calibrator is not None or predictions.kind == "logits"
    if seen.flat:
        rows = column_rows(columns, draws, seen.weights, task=seen.task, of_logits=of_logits)
    else:

        def every() -> Array:
            parts = (rows.values for chunk in cut(predictions) for rows, _ in _blocks(chunk, calibrator, codes))
            return np.concatenate(list(parts))

        # all values are read again only where a metric needs them and not all rows were kept
        values = chosen if len(chosen) == seen.n else every
        given = values, seen.labels, seen.weights, of_logits and values is every, seen.task, seen.n_classes
        rows = ScannedRows(*given, ALL, columns, draws=draws)
    rows.kept = chosen
    rows.totals[class_sums, (n_bins, "width")] = sums
    return rows


def evaluate_evidence(predictions: Predictions, engine: str | Engine = "local") -> tuple[Evidence, Precision | None]:
    """Evidence in the rows of uncalibrated predictions, and the precision of their log loss, from one pass."""
    weighted, _, clusters, _ = sampled(predictions, None, None, "rows", one_cluster=True)
    rows = weighted.expanded()
    found, _ = add_up(_row_columns, rows, engine, "")
    columns = RowColumns(*map(np.concatenate, zip(*found, strict=True)))
    seen, size = flattened(rows), {"task": rows.task, "n_classes": rows.n_classes, "n_rows": weighted.n}
    evidence = count_evidence(columns.correct, seen.weights, clusters, **size)
    return evidence, loss_precision(columns.nll, evidence, seen.weights, clusters)


def _row_columns(chunk: Chunk) -> tuple[list[RowColumns], int]:
    return [rows.found for rows, _ in _blocks(chunk, None, None, checked=True)], chunk.n


def column_rows(
    columns: RowColumns, draws: Resamples, weights: Array | None, *, task: str, of_logits: bool
) -> ScannedRows:
    """Rows of one score per row of which columns are known.

    Probabilities that came from logits saturate at 1, while the log loss does not: the log-odds follow from it.
    """
    scores, labels = probability_log_odds(columns.confidence), columns.correct.astype(np.int64)
    if of_logits:
        loss = columns.nll.astype(np.float64)
        with np.errstate(divide="ignore"):
            # log(exp(x) − 1): the log-odds of the other class
            against = np.where(loss < 30, np.log(np.expm1(np.minimum(loss, 30.0))), loss)
        scores = np.where(columns.correct, -against, against)
    return ScannedRows(finite_log_odds(scores), labels, weights, True, task, level=ALL, found=columns, draws=draws)


def _blocks(
    chunk: Chunk, calibrator: Any, codes: Array | None, *, checked: bool = False
) -> Iterator[tuple[Checked, int]]:
    """The rows of a chunk in memory, and the number of the first among all rows; of many labels, each is a row.

    checked : values are checked, and all columns found, on the way.
    """
    row = chunk.first_row
    for part in chunk.parts():
        values, seen = part.values, flattened(part)
        if codes is not None:
            values = calibrator.transform_codes(part.logits, codes[row : row + part.n])
        elif calibrator is not None:
            values = calibrator.transform(part.logits)
        if values.shape != part.values.shape:
            raise InputError(f"the calibrator returned shape {values.shape} for scores of shape {part.values.shape}")
        if seen.flat:
            values = values.reshape(-1)
        from_logits = calibrator is not None or part.kind == "logits"
        rows = Checked(values, seen.labels, seen.weights, from_logits, seen.task, seen.n_classes)
        name, first_row = chunk.predictions.called(row - chunk.first_row)
        with chunk.naming():
            if checked and rows.flat:
                check_score_values(values, from_logits=from_logits, name=name, first_row=first_row)
            if checked:
                rows.columns("all", name=name, first_row=first_row)
        yield rows, row * (seen.n // part.n)
        row += part.n


def _scanned(
    chunk: Chunk, *, wanted: Array, n_bins: int, calibrator: Any, codes: Array | None
) -> tuple[list[RowColumns], Any, list[Array], int]:
    """Columns of the rows, sums by class, probabilities of the wanted rows, number of rows."""
    found, kept, sums = [], [], []
    for rows, first in _blocks(chunk, calibrator, codes, checked=True):
        found.append(rows.found)
        sums.append(class_sums(rows, n_bins, "width"))
        inside = wanted[np.searchsorted(wanted, first) : np.searchsorted(wanted, first + len(rows.labels))] - first
        some = Checked(rows.values[inside], rows.labels[:1], None, rows.from_logits, rows.task)
        kept.append(probability_block(some, slice(0, None)) if len(inside) else np.empty((0, rows.n_classes)))
    return found, reduce(add, sums), kept, chunk.n


def chosen_metrics(
    wanted: Chosen, task: str, *, n_classes: int = 2, compared: bool = False, criterion: str = ""
) -> list[Metric]:
    """The metrics of a result, in the order of its tables. Custom ones are probed first.

    wanted : names of registered figures, or functions of (probabilities, labels, sample_weight=None) by name, which
        come on top of the usual ones; None for those alone. compared : only those that `compare` shows by itself.
    """
    if not isinstance(wanted, Mapping | Sequence | None):
        raise InputError(f"metrics must be names, or functions by name, got {short_repr(wanted)}")
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
    flat = task != "multiclass"
    listed = [probe_metric(one, n_classes, flat=flat) if one.plain else one for one in listed if one.figures]
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
            if any(map(np.isnan, values.values())):
                raise InputError(f"the metric {one.name} is NaN on these {n:,} rows")
            if rows.weights is not None and not one.copies:
                warn_user(f"the metric {one.name} does not count a weight of 2 as the row twice")
        else:
            # does the number of bins set those that the interval is made of?
            binned = (isinstance(rule, ClassGaps) or (isinstance(rule, Gaps) and rule.table in BINS) for rule in rules)
            values = one.values(rows, None, **{"n_bins": n_bins} if any(binned) else {})
        for figure in one.figures:
            interval, draws[figure.name] = intervals.of(one, figure, values[figure.name])
            found[figure.name] = Estimate(values[figure.name], *interval)
    return found, draws, left_out


def classwise_test(rows: ScannedRows, n_bins: int, seed: int, share: float = 1.0) -> NoiseFloor:
    """The consistency test of the classwise ECE at a share of the level, from the rows in memory.

    The share of labels, drawn from the probabilities themselves, whose classwise ECE is at least the observed one;
    with ten such draws among the first m it is 10/m (Besag & Clifford 1991). Labels of one cluster cannot be drawn one
    by one: the residuals of whole clusters are multiplied at random instead (`cluster_sums`).
    """
    chosen, (n, n_classes) = rows.draws.rows, rows.kept.shape
    total = rows.mass[chosen].sum() * n_classes
    mass, first, unit = rows.mass[chosen], n_classes * np.arange(n), rows.draws.unit
    cells = (width_index(rows.kept, n_bins) + n_bins * np.arange(n_classes)).ravel()
    stated = np.bincount(cells, (mass[:, None] * rows.kept).ravel())
    labels = first + rows.labels[chosen]

    def error(places: Array) -> float:
        return float(np.abs(stated - np.bincount(cells[places], mass, len(stated))).sum()) / total

    observed = error(labels)
    if rows.draws.counts.shape[1] < n:
        index, right = (one.reshape(n, n_classes).T for one in (cells, np.bincount(labels, minlength=cells.size)))
        gaps = cluster_sums(index, rows.kept.T, right, mass, unit, len(stated), draws=CLASS_DRAWS, seed=seed)
        return noise_floor(np.abs(gaps).sum(axis=1) / total, observed, share)
    # the cumulated probabilities of one row after the other: a drawn label is one search
    steps = (np.minimum(np.cumsum(rows.kept, axis=1, dtype=np.float64), 1.0) + np.arange(n)[:, None]).ravel()
    generator, errors, above = np.random.default_rng([seed, 29]), [], 0
    for count in range(1, CLASS_DRAWS + 1):
        found = np.searchsorted(steps, np.arange(n) + generator.random(n), side="right")
        errors.append(error(np.clip(found, first, first + n_classes - 1)))
        above += errors[-1] >= observed - 1e-12
        if above == ENOUGH_ABOVE:
            return replace(noise_floor(np.array(errors), observed), p_value=min(1.0, above / count / share))
    return noise_floor(np.array(errors), observed, share)


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
