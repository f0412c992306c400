"""Measure predictions: every metric with its interval, the consistency test, the worst classes, a verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from calibrant.core import progress
from calibrant.core.arrays import check_counts
from calibrant.core.bins import check_n_bins
from calibrant.core.metric_facts import facts
from calibrant.data import Predictions, as_predictions
from calibrant.engines.engine import Engine
from calibrant.evaluation.bootstrap import Resamples, draw
from calibrant.evaluation.classwise_intervals import classwise_estimates
from calibrant.evaluation.clinical import NAMES as CLINICAL
from calibrant.evaluation.clinical import clinical_estimates, exact_log_odds
from calibrant.evaluation.consistency import consistency_test
from calibrant.evaluation.flat import flat_columns, flattened, hits, two_class
from calibrant.evaluation.grouping import clusters_by, columns_by, make_grouping
from calibrant.evaluation.groups import column_groups
from calibrant.evaluation.intervals import (
    TopLabelCells,
    bin_error_intervals,
    debiased_interval,
    mean_intervals,
    ranking_intervals,
    smooth_error_intervals,
    spread_interval,
)
from calibrant.evaluation.labels import label_figures, repeated
from calibrant.evaluation.large import collect, scaled
from calibrant.evaluation.measurement import Measurement
from calibrant.evaluation.mendable import mendable
from calibrant.evaluation.reliability import reliability_bins
from calibrant.evaluation.scan import scan_predictions
from calibrant.evaluation.scoring import class_profile
from calibrant.evaluation.table import Estimate, Figures
from calibrant.evaluation.verdicts import TOO_FEW, too_few_to_tell, verdict
from calibrant.kernels.rows import RowColumns
from calibrant.metrics.binning import bin_sums
from calibrant.metrics.classwise import class_loss_sums, class_sums, losses_of_sums
from calibrant.metrics.inputs import Checked
from calibrant.metrics.registry import OF_COLUMNS

CLASSWISE = ("ace", "marginal_ece", "classwise_loss_std")
BINNED = ("ece", "mce", "adaptive_ece", "debiased_ece")
UNBINNED = ("sweep_ece", "smooth_ece", "soft_ece", "ks_error", "mmce", "confidence_auroc", "aurc")
"""The errors of the top label that take a number of bins, and those that do not (`soft_ece` has 15 soft ones)."""

CLINICAL_ROWS = 2_000_000
"""Up to this many rows the figures that need all rows at once (slope, curve, ROC AUC) are computed."""

LABEL_RESAMPLES = 200
"""Resamples behind the intervals of single labels, of which there may be a thousand."""

COST_OF_ZERO = tuple(-float(np.log(np.float64(np.finfo(dtype).tiny))) for dtype in (np.float32, np.float64))
"""Nats that a probability of 0 for what happened costs: those of the smallest normal number of the dtype."""

ORDER = (
    "ece", "over_confidence", "under_confidence", "mce", "adaptive_ece", "debiased_ece", "sweep_ece", "smooth_ece",
    "soft_ece", "ks_error", "mmce", "sce", "ace", "marginal_ece", "nll", "brier", "accuracy",
    "confidence", "entropy", "confidence_auroc", "aurc", "classwise_loss_std",
)  # fmt: skip
"""The order in which figures are shown."""


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
    if predictions.label_field is not None and by is None and cluster is None and _bare(predictions):
        return _measure_large(predictions, n_bins=n_bins, resamples=resamples, seed=seed, decompose=decompose)
    by, cluster = repeated(predictions, by, cluster)
    if predictions.task == "multilabel":
        options = {"n_bins": n_bins, "resamples": resamples, "seed": seed, "engine": engine}
        return _measure_labels(predictions, by, cluster, decompose, **options)
    given, predictions = predictions, predictions.expanded()
    labels, weights = predictions.labels, predictions.weights
    clusters = clusters_by(predictions, cluster)
    drawn = draw(predictions.n, resamples, seed, clusters)
    scanned = scan_predictions(predictions, drawn, n_bins=n_bins, engine=engine)
    columns = scanned.columns
    progress.step("intervals", 0, 3)
    values, intervals = _top_label(columns, weights, drawn, n_bins, predictions.task)
    progress.step("intervals", 1, 3)
    estimates = {name: Estimate(values[name], *intervals[name]) for name in values}
    spread = _class_spread(columns.nll, labels, weights, predictions.n_classes, scanned.draws)
    estimates["classwise_loss_std"] = spread
    class_estimates, left_out = classwise_estimates(
        scanned.sums,
        scanned.kept,
        labels,
        weights,
        draws=scanned.draws,
        n_bins=n_bins,
        whole=lambda: _whole(predictions),
    )
    estimates |= class_estimates
    if predictions.flat:
        for name in CLASSWISE:
            estimates.pop(name, None)  # one probability per row: the ECE itself, or nothing
        if predictions.n <= CLINICAL_ROWS:
            score = exact_log_odds(columns.confidence, columns.correct, columns.nll, predictions.kind == "logits")
            estimates |= clinical_estimates(score, columns.correct, weights, drawn)
        else:
            left_out = {**left_out, **dict.fromkeys(CLINICAL, f"more than {CLINICAL_ROWS:,} rows")}
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
        verdict=TOO_FEW if too_few else verdict(estimates, floor, predictions.task),
        metrics=Figures({name: estimates[name] for name in (*ORDER, *CLINICAL) if name in estimates}),
        noise_floor=floor,
        bins=bins,
        classes=class_profile(columns, scanned.sums, labels, weights, n_bins),
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


def _whole(predictions: Predictions) -> Checked:
    values, weights, from_logits = predictions.values, predictions.weights, predictions.kind == "logits"
    if predictions.flat:
        return two_class(values, predictions.labels, weights, from_logits)
    return Checked(values, predictions.labels, weights, from_logits)


def _bare(predictions: Predictions) -> bool:
    return predictions.weights is None and predictions.clusters is None


def _measure_large(predictions: Predictions, *, n_bins: int, seed: int, **options: Any) -> Measurement:
    """So many single scores that only sums and a sample of them are held; see `evaluation.large`."""
    cells, scores, outcomes = collect(predictions, n_bins, seed)
    sample = Predictions(scores, outcomes, kind=predictions.kind, task=predictions.task)
    small = measure(sample, n_bins=n_bins, seed=seed, **options)
    p, outcome, weight = cells.rows()
    checked = two_class(p, outcome, weight, False)
    columns, sums = flat_columns(checked), class_sums(checked, n_bins, "width")
    values = _top_label_values(columns, weight, n_bins, predictions.task)
    values |= {name: total / predictions.n for name, total in cells.sums.items()}
    values["sce"] = float(sums.norm(1).mean())
    shrink = float(np.sqrt(len(scores) / predictions.n))
    estimates = {
        name: scaled(one, values[name], shrink, most=1.0 if facts(name).percent else np.inf)
        for name, one in small.metrics.items()
        if name in values
    }
    floor = cells.floor(seed)
    few = too_few_to_tell(p, outcome, weight, predictions.task)
    return replace(
        small,
        n=predictions.n,
        verdict=TOO_FEW if few else verdict(estimates, floor, predictions.task),
        metrics=Figures(estimates),
        noise_floor=floor,
        bins=reliability_bins(p, outcome, n_bins=n_bins, weights=weight, seed=seed),
        classes=class_profile(columns, sums, outcome, weight, n_bins),
        left_out={name: "too many rows" for name in small.metrics if name not in estimates},
        warnings=(*predictions.notes, f"intervals come from {len(scores):,} of the rows, scaled to all of them"),
    )


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


def _top_label_values(columns: RowColumns, weights: np.ndarray | None, n_bins: int, task: str) -> dict[str, float]:
    """Calibration errors of confidences against outcomes, without intervals."""
    given = (columns.confidence, columns.correct, weights)
    split = OF_COLUMNS["over_under_confidence"](*given, n_bins=n_bins)
    values = {"over_confidence": split.over, "under_confidence": split.under}
    values |= {name: OF_COLUMNS[name](*given, n_bins=n_bins) for name in BINNED}
    values |= {name: OF_COLUMNS[name](*given) for name in UNBINNED}
    if task == "binary":
        values["roc_auc"] = values.pop("confidence_auroc")
        del values["aurc"]
    return values


def _top_label(
    columns: RowColumns, weights: np.ndarray | None, drawn: Resamples, n_bins: int, task: str
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    confidence, correct = columns.confidence, columns.correct
    given = (confidence, correct, weights)
    values = _top_label_values(columns, weights, n_bins, "pairs")
    cells = TopLabelCells.build(*given, drawn, n_bins=n_bins)
    intervals = bin_error_intervals(cells, values)
    correction = float(bin_sums(*given, n_bins, "width").noise_squared)
    intervals["debiased_ece"] = debiased_interval(cells, values["debiased_ece"], correction, cells.width)
    intervals |= smooth_error_intervals(cells, values)
    intervals |= ranking_intervals(cells, drawn.take(correct), values)
    means = {
        "nll": columns.nll,
        "brier": columns.brier,
        "accuracy": hits(columns, task),
        "confidence": confidence,
        "entropy": columns.entropy,
    }
    values |= {name: float(np.average(column.astype(np.float64), weights=weights)) for name, column in means.items()}
    intervals |= mean_intervals(means, weights, drawn)[0]
    if task == "binary":
        # the ranking of outcomes by p is the ROC curve; deferral by p means nothing
        values["roc_auc"], intervals["roc_auc"] = values.pop("confidence_auroc"), intervals.pop("confidence_auroc")
        del values["aurc"]
    return values, intervals


def _class_spread(
    nll: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, n_classes: int, draws: Resamples
) -> Estimate:
    """Standard deviation of the classes' mean losses."""
    weight, loss = class_loss_sums(nll, labels, weights, n_classes)
    value = losses_of_sums(weight, loss).std
    means = np.divide(loss, weight, out=np.full(n_classes, np.nan), where=weight > 0)
    mine = draws.take(labels)
    mass = np.ones(len(mine)) if weights is None else draws.take(weights)
    interval = spread_interval(means, mine, draws.take(nll), mass, resamples=draws, value=value)
    return Estimate(value, *interval)
