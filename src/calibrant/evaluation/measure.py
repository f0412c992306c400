"""Measure predictions: every metric with its interval, the consistency test, the worst classes, a verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from calibrant.core import progress
from calibrant.core.arrays import check_counts
from calibrant.core.bins import check_n_bins
from calibrant.data import Predictions, as_predictions
from calibrant.engines.engine import Engine
from calibrant.evaluation.bootstrap import draw
from calibrant.evaluation.calibration_loss import mendable
from calibrant.evaluation.consistency import consistency_test
from calibrant.evaluation.flat import flattened
from calibrant.evaluation.groups import clusters_by, column_groups, columns_by, make_grouping
from calibrant.evaluation.labels import label_figures, repeated
from calibrant.evaluation.measurement import Measurement
from calibrant.evaluation.reliability import reliability_bins
from calibrant.evaluation.scan import scan_predictions
from calibrant.evaluation.scoring import Chosen, chosen_metrics, class_profile, estimated
from calibrant.evaluation.verdicts import TOO_FEW, too_few_to_tell, verdict

LABEL_RESAMPLES = 200
"""Resamples behind the intervals of single labels, of which there may be a thousand."""

COST_OF_ZERO = tuple(-float(np.log(np.float64(np.finfo(dtype).tiny))) for dtype in (np.float32, np.float64))
"""Nats that a probability of 0 for what happened costs: those of the smallest normal number of the dtype."""


def measure(
    predictions: Any,
    *,
    by: Any = None,
    cluster: Any = None,
    kind: str | None = None,
    task: str | None = None,
    n_bins: int = 15,
    resamples: int = 1000,
    seed: int = 0,
    decompose: bool | None = None,
    engine: str | Engine = "local",
    metrics: Chosen = None,
) -> Measurement:
    """Every metric of the library with 95% intervals, and whether the error is more than chance.

    Parameters
    ----------
    predictions : Predictions, path, frame, dictionary of arrays, or (scores, labels)
        Anything that `open_predictions` takes.
    by : str, array or mapping, optional
        One or two columns of groups (names, an array of a value per row, or a mapping of names to arrays), each of
        which is then measured by itself; "age:5" cuts a column of numbers into five quantile groups.
    cluster : str or array, optional
        What is independent (a patient, an image): a column, of which whole clusters are drawn.
    kind : {"logits", "probabilities"}, optional
        What the values are, where nothing else says it.
    task : {"multiclass", "binary", "multilabel", "pairs"}, optional
        Where names and shapes do not tell. Figures of a binary or multilabel task are about the positive class.
    n_bins, resamples, seed : int
        Bins of the calibration errors; bootstrap resamples behind the intervals, and their seed.
    decompose : bool, optional
        Estimate how much of the log loss a map can mend (`calibration_loss`, with a quick map). By default this is
        done for files of up to 64 MB and arrays; of many rows a random part is used.
    engine : "local", "dask", the address of a Dask scheduler, or an engine
        Where the pass over the rows runs.
    metrics : names, or mapping of names to functions, optional
        Registered figures to compute instead of all; or functions of (probabilities, labels, sample_weight=None) that
        return a number, on top of all.

    Examples
    --------
    >>> generator = np.random.default_rng(0)
    >>> labels = generator.integers(0, 3, 1000)
    >>> logits = 4 * np.eye(3)[labels] + 4 * generator.normal(size=(1000, 3))
    >>> measure(Predictions.from_arrays(logits=logits, labels=labels)).verdict
    'overconfident by 24.8 points'
    """
    check_n_bins(n_bins)
    predictions = as_predictions(predictions, kind=kind, task=task)
    predictions.refuse_probabilities()
    check_counts(predictions.weights, "weights")
    by, cluster = repeated(predictions, by, cluster)
    if predictions.task == "multilabel":
        options = {"n_bins": n_bins, "resamples": resamples, "seed": seed, "engine": engine, "metrics": metrics}
        return _measure_labels(predictions, by, cluster, decompose, **options)
    given, predictions = predictions, predictions.expanded()
    weights = predictions.weights
    clusters = clusters_by(predictions, cluster)
    drawn = draw(predictions.n, resamples, seed, clusters)
    chosen = chosen_metrics(metrics, predictions.task)
    rows = scan_predictions(predictions, drawn, n_bins=n_bins, engine=engine)
    columns = rows.columns()
    progress.step("intervals", 0, 3)
    estimates, _, left_out = estimated(chosen, rows, drawn, n_bins)
    progress.step("intervals", 2, 3)
    confidence, correct = columns.confidence, columns.correct
    floor = consistency_test(confidence, correct, n_bins=n_bins, weights=weights, seed=seed, clusters=clusters)
    groups = None
    if by is not None:
        grouping = make_grouping(columns_by(predictions, by), predictions.n)
        options = {"n_bins": n_bins, "resamples": resamples, "seed": seed}
        groups = column_groups(columns, grouping, predictions.task, weights=weights, clusters=clusters, **options)
    bins = reliability_bins(confidence, correct, n_bins=n_bins, weights=weights, seed=seed)
    progress.step("intervals", 3, 3)
    too_few = too_few_to_tell(confidence, correct, weights, predictions.task)
    return Measurement(
        n=given.n,
        n_classes=predictions.n_classes,
        n_bins=n_bins,
        resamples=resamples,
        seed=seed,
        verdict=TOO_FEW if too_few else verdict(bins.over, bins.under, floor, predictions.task),
        metrics=estimates,
        noise_floor=floor,
        bins=bins,
        classes=class_profile(rows, n_bins),
        class_names=predictions.class_names,
        left_out=left_out,
        groups=groups,
        task=predictions.task,
        calibration_loss=None if too_few else mendable(predictions, clusters, seed, decompose),
        warnings=(*given.notes, *_hints(predictions, columns.nll)),
    )


def _hints(predictions: Predictions, nll: np.ndarray) -> tuple[str, ...]:
    """What a reader should know about how the rows were read."""
    found = []
    if predictions.task == "multiclass" and predictions.n_classes == 2:
        found.append("two columns are measured about the predicted class; --task binary asks about the positive class")
    for cost in COST_OF_ZERO:
        if n_zero := np.count_nonzero(np.abs(nll - cost) < 1e-6 * cost):
            found.append(
                f"{n_zero:,} rows give what happened a probability of 0, and each adds {cost:.0f} nats to the NLL: it "
                "measures the rounding of the file; fit and compare count a zero as half the smallest positive value"
            )
    return tuple(found)


def _measure_labels(
    predictions: Predictions, by: Any, cluster: np.ndarray, decompose: bool | None, **options: Any
) -> Measurement:
    """All labels together, and each by itself."""
    together = measure(flattened(predictions), by=by, cluster=cluster, decompose=False, **options)
    few, clusters = together.verdict == TOO_FEW, cluster[:: predictions.n_classes]  # of a row, not of its labels
    fewer = min(options["resamples"], LABEL_RESAMPLES)
    figures = label_figures(predictions, n_bins=options["n_bins"], resamples=fewer, seed=options["seed"])
    return replace(
        together,
        n=predictions.n,
        n_classes=predictions.n_classes,
        class_names=predictions.class_names,
        task="multilabel",
        labels=figures,
        calibration_loss=None if few else mendable(predictions, clusters, options["seed"], decompose),
        warnings=predictions.notes,
    )
