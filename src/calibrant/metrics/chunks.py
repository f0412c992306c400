"""Metrics over chunks: `update` with each chunk, `merge` partial results in any order, then ask for the `value`.

A metric is run once on a few made-up rows to see which totals it asks for. Chunks are then summed into those totals
alone, and the metric itself turns them into its value: no metric has a second form.
"""

import copy
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Self

import numpy as np

from calibrant.core.arrays import short_repr
from calibrant.core.errors import InputError
from calibrant.data.chunks import Chunk, add_up, flattened
from calibrant.data.predictions import Predictions
from calibrant.engines.engine import Engine
from calibrant.kernels.rows import LEVELS
from calibrant.metrics.inputs import ORDER_OF_ROWS, Checked, NeedsRowsError, Total, check
from calibrant.metrics.record import METRICS, Metric


class Streaming:
    """A metric as sums over rows: `update`, `merge`, `value`."""

    def __init__(self, metric: Metric, options: dict[str, Any]) -> None:
        self.name, self.options = metric.name, options
        values = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
        rows = Checked(values, np.array([0, 1, 1, 0]), None, False, additive=True)
        try:
            if metric.plain:
                raise NeedsRowsError("is a function of all rows")
            metric.function(rows, None, **options)
        except NeedsRowsError as reason:
            raise InputError(f"{self._words()} {reason}, which sums over chunks do not keep") from None
        self.asked = list(rows.totals)
        self.level = rows.level
        self._sums: dict[Total, Any] = {}
        self._n_classes = 0

    def update(self, chunk: Any, labels: Any = None, sample_weight: Any = None, *, from_logits: bool = False) -> Self:
        """Add the rows of a `Predictions`, or of a matrix with labels; returns itself."""
        update_all([self], chunk, labels, sample_weight, from_logits=from_logits)
        return self

    def merge(self, other: Self) -> Self:
        """Add all rows that another of the same metric and options has seen; returns itself."""
        if self.name != other.name or self.options != other.options:
            raise InputError(f"cannot merge {other._words()} into {self._words()}: give both the same options")
        if other._sums:
            self.add(other._sums, other._n_classes)
        return self

    __add__ = merge

    def value(self) -> Any:
        """The metric of all rows so far."""
        if not self._sums:
            raise InputError(f"{self._words()} has seen no row of positive weight: update it first")
        rows = Checked(None, np.empty(0), None, False, totals=self._sums)
        return METRICS[self.name].function(rows, None, **self.options)

    def add(self, sums: dict[Total, Any], n_classes: int) -> None:
        """Add totals of rows of so many classes."""
        if self._sums and n_classes != self._n_classes:
            raise InputError(f"{self._words()} has seen {self._n_classes} classes, but this chunk has {n_classes}")
        self._n_classes = n_classes
        self._sums = {asked: self._sums[asked] + one if self._sums else one for asked, one in sums.items()}

    def _words(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{self.name}({options})" if options else self.name


def streaming(name: str, **options: Any) -> Streaming:
    """A metric over chunks, for those that are functions of sums over rows.

    Examples
    --------
    >>> metric = streaming("ece", n_bins=10)
    >>> _ = metric.update([[0.9, 0.1], [0.9, 0.1]], [0, 1]).update([[0.4, 0.6]], [1])
    >>> round(metric.value(), 4)
    0.4
    """
    if not isinstance(name, str) or name not in METRICS:
        shown = name if isinstance(name, str) else short_repr(name)
        raise InputError(f"{shown} is not the name of a metric: choose from {', '.join(METRICS)}")
    return Streaming(METRICS[name], options)


def update_all(
    metrics: Iterable[Streaming],
    chunk: Any,
    labels: Any = None,
    sample_weight: Any = None,
    *,
    from_logits: bool = False,
) -> Checked:
    """Update several metrics with one pass over a chunk (and one more for the classwise ones); returns its rows."""
    metrics, values, seen = list(metrics), chunk, chunk
    if labels is None:
        seen, from_logits = flattened(chunk), chunk.kind == "logits"
        values = chunk.values.reshape(-1) if seen.flat else chunk.values
        labels, sample_weight = seen.labels, seen.weights
    weighs_nothing = sample_weight is not None and not np.any(sample_weight)
    rows = check(values, labels, None if weighs_nothing else sample_weight, from_logits, weights_are="parts")
    if isinstance(chunk, Predictions):
        rows.task = seen.task  # which says what a right prediction is
    level = max((one.level for one in metrics), default=-1)
    if level >= 0:
        rows.columns(list(LEVELS)[level])
    # a chunk may weigh nothing as long as the whole does not; its values were checked all the same
    for metric in () if weighs_nothing else metrics:
        metric.add({asked: asked[0](rows, *asked[1]) for asked in metric.asked}, rows.n_classes)
    return rows


def stream(
    predictions: Predictions, metrics: Sequence[str | Streaming] | None = None, *, engine: str | Engine = "local"
) -> dict[str, Any]:
    """Values by name, of predictions of any size, in one pass.

    Metrics that are functions of totals keep a few sums. The other top-label metrics (equal-mass bins, smECE, KS, risk
    and coverage …) keep the confidence and correctness of every row: 9 bytes per row, and what a sort of them needs.

    Parameters
    ----------
    predictions : Predictions
    metrics : names as in `METRICS`, or metrics with options of their own (`streaming("ece", n_bins=30)`); by default
        all that keep a few sums
    engine : "local", "dask", the address of a scheduler, or an engine

    Examples
    --------
    >>> import calibrant
    >>> test = calibrant.open_predictions("cifar10-resnet18#test")
    >>> {name: round(value, 4) for name, value in stream(test, ["accuracy", "ks_error"]).items()}
    {'accuracy': 0.9334, 'ks_error': 0.038}
    """
    if not isinstance(predictions, Predictions):
        raise InputError(f"predictions must be Predictions, got {short_repr(predictions)}: use open_predictions")
    if metrics is not None and (isinstance(metrics, str) or not isinstance(metrics, Sequence)):
        raise InputError(f"metrics must be a list of names, got {short_repr(metrics)}")
    sums, ranked = {}, []
    for metric in METRICS if metrics is None else metrics:
        try:
            one = streaming(metric) if isinstance(metric, str) else copy.deepcopy(metric)
            sums[one.name] = one
        except InputError as error:
            if metrics is not None and ORDER_OF_ROWS not in str(error):
                raise
            ranked += [str(metric)] * (metrics is not None)
    work = partial(_measured, metrics=list(sums.values()), ranked=bool(ranked))
    *done, columns, _ = add_up(work, predictions, engine)
    found = {one.name: one.value() for one in done}
    if ranked:
        confidence, correct = map(np.concatenate, zip(*columns, strict=True))
        given = confidence, correct.astype(np.int64)
        found |= {name: METRICS[name].function(*given, sample_weight=predictions.weights) for name in ranked}
    return {name: found[name] for name in (one if isinstance(one, str) else one.name for one in metrics or found)}


def _measured(chunk: Chunk, *, metrics: list[Streaming], ranked: bool) -> tuple[Any, ...]:
    """The metrics of a chunk; where some rank rows, their confidences and correctness; and the number of rows."""
    metrics, kept = copy.deepcopy(metrics), []
    try:
        for part in chunk.parts():
            rows = update_all(metrics, part)
            if ranked:
                kept.append(rows.top()[:2])
    except InputError:
        # a metric does not know the file: reading again and checking every value names file and row
        for _ in chunk.blocks(check=True):
            pass
        raise
    return *metrics, kept, chunk.n
