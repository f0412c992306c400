"""Metrics of predictions that are larger than memory: one pass over the chunks, on any engine."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from calibrant.core import progress
from calibrant.core.errors import InputError
from calibrant.data.chunks import Chunk, cut
from calibrant.data.predictions import Predictions
from calibrant.engines.engine import Engine, opened
from calibrant.kernels.rows import RowColumns
from calibrant.metrics.additive import Additive, update_all
from calibrant.metrics.inputs import check
from calibrant.metrics.registry import ADDITIVE, METRICS, OF_COLUMNS

Part = tuple[list[Additive], list[tuple[np.ndarray, np.ndarray]], int]
"""Metrics of some chunks, the confidences and correctness of their rows, and how many rows those are."""


def stream(
    predictions: Predictions, metrics: Sequence[str | Additive] = tuple(ADDITIVE), *, engine: str | Engine = "local"
) -> dict[str, Any]:
    """Values by name, of predictions of any size, in one pass.

    Additive metrics keep a few sums. The other top-label metrics (equal-mass bins, smECE, KS, risk and coverage …) keep
    the confidence and correctness of every row: 9 bytes per row, and what a sort of them needs.

    Parameters
    ----------
    predictions : Predictions
    metrics : names as in `METRICS`, or additive metrics with options of their own (`AdditiveEce(n_bins=30)`)
    engine : "local", "dask", the address of a scheduler, or an engine

    Examples
    --------
    >>> import calibrant
    >>> test = calibrant.open_predictions("cifar10-resnet18#test")
    >>> {name: round(value, 4) for name, value in stream(test, ["accuracy", "ks_error"]).items()}
    {'accuracy': 0.9334, 'ks_error': 0.038}
    """
    named = {_name(metric): metric for metric in metrics if not isinstance(metric, str) or metric in ADDITIVE}
    sums = {name: ADDITIVE[one]() if isinstance(one, str) else copy.deepcopy(one) for name, one in named.items()}
    ranked = [metric for metric in metrics if isinstance(metric, str) and metric not in ADDITIVE]
    for name in ranked:
        if name not in OF_COLUMNS:
            known = name in METRICS
            reason = "ranks every class's probabilities of all rows" if known else "is not the name of a metric"
            raise InputError(
                f"{name} {reason}: streamed metrics are {', '.join(dict.fromkeys([*ADDITIVE, *OF_COLUMNS]))}"
            )
    chunks = cut(predictions)
    with opened(engine) as running:
        work = partial(_measured, metrics=list(sums.values()), columns=bool(ranked))
        done, columns, _ = running.run(work, chunks, partial(_merge, n_rows=predictions.n))
    found = {name: metric.value() for name, metric in zip(sums, done, strict=True)}
    if ranked:
        confidence, correct = map(np.concatenate, zip(*columns, strict=True))
        found |= {name: OF_COLUMNS[name](confidence, correct, predictions.weights) for name in ranked}
    return {name: found[name] for name in map(_name, metrics)}


def _name(metric: str | Additive) -> str:
    if isinstance(metric, str):
        return metric
    return next((name for name, kind in ADDITIVE.items() if type(metric) is kind), type(metric).__name__)


def _measured(chunk: Chunk, *, metrics: list[Additive], columns: bool) -> Part:
    metrics = copy.deepcopy(metrics)
    kept = []
    try:
        for part in chunk.parts(check=False):
            update_all(metrics, part)
            if columns:
                rows = _top(part)
                kept.append((rows.confidence, rows.correct))
    except InputError:
        # a metric does not know the file: reading again and checking every value names file and row
        for _ in chunk.values(check=True):
            pass
        raise
    return metrics, kept, chunk.n


def _top(part: Predictions) -> RowColumns:
    return check(part.values, part.labels, None, part.kind == "logits").columns("top")


def _merge(left: Part, right: Part, *, n_rows: int) -> Part:
    for mine, theirs in zip(left[0], right[0], strict=True):
        mine.merge(theirs)
    left[1].extend(right[1])
    done = left[2] + right[2]
    progress.step("measuring", done, n_rows)
    return left[0], left[1], done
