"""By how much a recalibration would lower a score: the cross-validated excess risk, by any map or by a quick one."""

import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.base import clone

from calibrant.calibrators.multilabel import MultilabelCalibrator
from calibrant.calibrators.registry import get
from calibrant.calibrators.solvers.folds import content_folds
from calibrant.core.arrays import Array, check_choice, check_counts, check_whole, short_repr
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.few_clusters import count_clusters, mean_error, needs_t_interval, t_quantile
from calibrant.core.rows import Rows
from calibrant.core.schema import cluster_codes
from calibrant.core.softmax import finite_log_odds, sigmoid, softplus
from calibrant.core.zeros import log_floor_of, raised
from calibrant.data import Predictions, open_predictions
from calibrant.data.predictions import CHUNK_BYTES
from calibrant.data.source import ArraySource
from calibrant.evaluation.tables import Json, PlainData
from calibrant.metrics.clinical import Z_95
from calibrant.metrics.inputs import Checked

UNITS = {"nll": "nats", "brier": "Brier units"}


@dataclass(frozen=True)
class CalibrationLoss(PlainData):
    """score = value + refinement, both means over the rows; `float(...)` is the value."""

    value: float
    """What a recalibration would take off the score; below 0 where it would add to it."""
    standard_error: float
    """Of the value, over rows, whatever they weigh (or over clusters of rows)."""
    reach: float = field(default=Z_95, kw_only=True)
    """Half-width of the 95% interval in standard errors; over few clusters a quantile of Student's t."""
    score: float
    """The score of the predictions as they are."""
    refinement: float
    """The score that remains after recalibration: the model's own part."""
    metric: str
    """"nll" or "brier"."""
    calibrator: str
    folds: int
    n: int

    def __float__(self) -> float:
        return self.value

    @property
    def beyond_noise(self) -> bool:
        """Is the value above 0 by more than its 95% interval?"""
        return self.value > self.reach * self.standard_error

    def to_dict(self) -> Json:
        """All fields by name, and whether the value is beyond noise."""
        return {**super().to_dict(), "beyond_noise": self.beyond_noise}

    def __str__(self) -> str:
        return (
            f"{self.value:.4f} ± {self.standard_error:.4f} of the {self.score:.4f} {UNITS[self.metric]} are "
            "miscalibration, which a map can fix; the rest is the model's"
        )

    def sentence(self, n: int, log_loss: float, *, calibrated: bool) -> str:
        """State the loss and its method, given n rows with this log loss; `calibrated` is the verdict on them."""
        digits = int(np.clip(np.ceil(-np.log10(self.standard_error)), 3, 8)) if self.standard_error > 0 else 3
        how = f"{self.calibrator}, {self.folds} folds"
        if self.n < n:
            how += f", {self.n:,} of the rows"
        elif abs(self.score - log_loss) > 0.01 * log_loss:
            how += ", zeros counted as half the smallest positive value"
        error, whole = f"± {self.standard_error:.{digits}f}", f"{self.score:.{digits}f} nats"
        if not self.beyond_noise:
            if calibrated:
                return f"no miscalibration beyond noise ({error}) in the {whole} ({how})"
            return f"a map lowers the log loss of {whole} by no more than noise ({error}) ({how})"
        return (
            f"{self.value:.{digits}f} {error} of the {whole} are miscalibration, which a map can fix; the rest is the "
            f"model's ({how})"
        )


def calibration_loss(
    predictions: Any,
    calibrator: Any = "sms",
    *,
    score: str = "nll",
    folds: int = 5,
    seed: int = 0,
    kind: str | None = None,
    task: str | None = None,
) -> CalibrationLoss:
    """What a recalibration would gain, S(p) − S(g(p)), with g fitted by cross-validation (Berta et al. 2025).

    Each row is mapped by a calibrator that was fitted without the row's fold, so the estimate is not biased upwards as
    the in-sample `metrics.score_decomposition` is; it may be negative for predictions that are calibrated already.
    The standard error treats the folds' maps as given. Rows of one cluster stay in one fold.

    Parameters
    ----------
    predictions : Predictions, a path, a frame, a dict of arrays or (scores, labels)
        Of any task. For multilabel every label counts the same. A probability of 0 counts as half the smallest
        positive one of its column, before and after.
    calibrator : short name or an unfitted calibrator
        g; for multilabel a `MultilabelCalibrator` is taken in place of "sms".
    score : {"nll", "brier"}
        Log loss in nats; or the Brier score, summed over classes for a matrix, (p − y)² for one probability.
    folds : int
        At least 2.
    seed : int
        Of the folds.
    kind, task : as in `open_predictions`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.normal(size=4000)
    >>> labels = rng.random(4000) < 1 / (1 + np.exp(-scores))
    >>> found = calibration_loss((3 * scores, labels))
    >>> found.value > 0.1, abs(float(calibration_loss((scores, labels)))) < 0.01
    (True, True)
    """
    check_choice(score, "score", tuple(UNITS))
    folds, seed = check_whole(folds, "folds", 2), check_whole(seed, "seed", 0)
    opened = open_predictions(predictions, kind=kind, task=task)
    if not opened.spread:
        check_counts(opened.weights, "weights")
    name = type(calibrator).__name__
    if isinstance(calibrator, str):
        name = calibrator
        calibrator = get("multilabel" if opened.task == "multilabel" and name == "sms" else name)
    if not hasattr(calibrator, "fit_rows"):
        raise InputError(f"calibrator must be a short name or a calibrator, got {short_repr(calibrator)}")
    return cross_validated(opened.expanded(), calibrator, name, score=score, folds=folds, seed=seed)


def cross_validated(
    opened: Predictions, calibrator: Any, name: str, *, score: str = "nll", folds: int = 5, seed: int = 0
) -> CalibrationLoss:
    """The calibration loss by the maps of a calibrator, fitted by `fit_rows` and applied by `transform`."""
    logits, labels, clusters = opened.logits.astype(np.float64), opened.labels, opened.clusters
    if opened.task == "multiclass":
        scores = raised(logits, log_floor_of(logits, one_score=False))
    else:
        scores = np.apply_along_axis(finite_log_odds, 0, logits)
    # a class that has probability and never comes is part of what is wrong with these rows
    rows = folded = Rows(scores, labels, opened.weights, every_class=True)
    if labels.ndim == 2:
        folded = replace(rows, labels=scores.argmax(axis=1))
    # rows of one cluster share a fold, because they are no independent check of each other
    if clusters is not None:
        clusters, _ = cluster_codes(clusters)
        n_clusters = clusters.max() + 1
        if n_clusters < rows.n:
            if n_clusters < folds:
                raise InputError(f"{n_clusters} clusters are too few for {folds} folds: give fewer folds")
            # clusters are dealt by their number of rows
            folded = replace(folded, weights=None, clusters=clusters)
    fold, calibrated = content_folds(folded, folds, seed), np.empty_like(scores)
    parts = np.unique(fold)
    for part in parts:
        kept = rows.take(np.flatnonzero(fold != part))
        if not kept.total_weight > 0:
            raise InputError(f"{rows.n} rows are too few for {len(parts)} folds: give fewer folds")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            fitted = clone(calibrator, safe=False).fit_rows(kept)
        calibrated[fold == part] = fitted.transform(scores[fold == part])
    before, after = (_losses(found, labels, score) for found in (scores, calibrated))
    mass, gain = rows.mass(), before - after
    value, whole, rest = (float(np.average(column, weights=mass)) for column in (gain, before, after))
    # what each row, whatever it weighs, or each cluster adds to the deviation of the mean
    centred, reach = mass * (gain - value), Z_95
    if clusters is not None and clusters.max() + 1 < rows.n and needs_t_interval(count_clusters(clusters, mass)):
        error, freedom = mean_error(centred, mass, clusters)
        reach = float(t_quantile(freedom))
    else:
        error = float(np.linalg.norm(centred if clusters is None else np.bincount(clusters, centred)) / mass.sum())
    return CalibrationLoss(value, error, whole, rest, score, name, folds, opened.n, reach=reach)


def _losses(scores: Array, labels: Array, score: str) -> Array:
    """Loss of each row (n,): of the logits of classes, of one score, or the mean over scores of labels."""
    if scores.shape == labels.shape:
        losses = softplus(np.where(labels == 1, -scores, scores))
        if score == "brier":
            losses = (sigmoid(scores) - labels) ** 2
        return losses.reshape(len(labels), -1).mean(axis=1)
    return Checked(scores, labels, None, from_logits=True).column(score)


FEWEST_ROWS, FEWEST_CLUSTERS = 50, 10
"""With fewer rows or clusters the folds' maps are too poor to say anything."""

ENTRIES = {"binary": 100_000, "pairs": 100_000, "multilabel": 200_000, "multiclass": 1_000_000}
"""Scores from which the estimate is made; of more rows a random part is taken."""

VECTOR_ENTRIES = 300_000
VECTOR_ROWS = 25
"""Up to so many scores, where every class that occurs does so in so many rows, each gets its own scale and bias."""


def mendable(
    predictions: Predictions, clusters: Array | None, seed: int, decompose: bool | None
) -> CalibrationLoss | None:
    """The cross-validated calibration loss by a map that takes less than about half a second.

    None where it is not wanted (`decompose=False`), where there are too few rows, and for large files, of which a part
    is only read where `decompose=True` asks for it.
    """
    n, width = predictions.source.shape
    if decompose is False or n < FEWEST_ROWS or len(np.unique(predictions.labels)) < 2:
        return None
    most = max(FEWEST_ROWS, ENTRIES[predictions.task] // width)
    if n > most:
        values = n * width * predictions.dtype.itemsize
        if decompose is None and values > CHUNK_BYTES and not isinstance(predictions.source, ArraySource):
            return None
        chosen = np.sort(np.random.default_rng([seed, 23]).choice(n, most, replace=False, shuffle=False))
        part, clusters = predictions[chosen], None if clusters is None else clusters[chosen]
    else:
        part = predictions.like(_checked=True)
    if clusters is not None and len(np.unique(clusters)) < FEWEST_CLUSTERS:
        return None
    part.clusters, part.spread = clusters, predictions.spread
    if part.task == "multilabel":
        # a fixed pull to the map of all labels, because choosing it by cross-validation takes seconds
        return cross_validated(part, MultilabelCalibrator("platt", strength=10.0), "platt by label", seed=seed)
    counts, name = np.bincount(part.labels), "ts"
    if part.flat:
        name = "spline"
    elif part.n * part.n_classes <= VECTOR_ENTRIES and counts[counts > 0].min() >= VECTOR_ROWS:
        name = "vs"
    return cross_validated(part, get(name), name, seed=seed)
