"""By how much a recalibration would lower a score: the cross-validated excess risk."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from calibrant.calibrators.registry import get
from calibrant.calibrators.solvers.folds import content_folds
from calibrant.core.arrays import check_counts, check_whole
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.rows import Rows
from calibrant.core.softmax import finite_log_odds, log_softmax, sigmoid, softplus
from calibrant.core.zeros import log_floor_of, raised
from calibrant.data import Predictions, as_predictions
from calibrant.evaluation.table import PlainData

UNITS = {"nll": "nats", "brier": "Brier units"}


@dataclass(frozen=True)
class CalibrationLoss(PlainData):
    """score = value + refinement, both means over the rows; `float(...)` is the value."""

    value: float
    """What a recalibration would take off the score; below 0 where it would add to it."""
    standard_error: float
    """Of the value, over rows (or over clusters of rows)."""
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
        return self.value > 1.96 * self.standard_error

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, and whether the value is beyond noise."""
        return {**super().to_dict(), "beyond_noise": self.beyond_noise}

    def __str__(self) -> str:
        unit = UNITS[self.metric]
        return (
            f"{self.value:.4f} ± {self.standard_error:.4f} of the {self.score:.4f} {unit} are miscalibration, which a "
            "map can mend; the rest is the model's"
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
    if score not in UNITS:
        raise InputError(f"score must be one of {', '.join(map(repr, UNITS))}, got {score!r}")
    check_whole(folds, "folds", 2)
    opened = as_predictions(predictions, kind=kind, task=task)
    if not opened.spread:
        check_counts(opened.weights, "weights")
    made = (
        "multilabel"
        if opened.task == "multilabel" and isinstance(calibrator, str) and calibrator == "sms"
        else calibrator
    )
    name = calibrator if isinstance(calibrator, str) else type(calibrator).__name__
    return cross_validated(opened.expanded(), _maker(made), name, score=score, folds=int(folds), seed=seed)


def cross_validated(
    opened: Predictions, make: Callable[[], Any], name: str, *, score: str = "nll", folds: int = 5, seed: int = 0
) -> CalibrationLoss:
    """The calibration loss by the maps that `make` gives, each fitted by `fit_rows` and applied by `transform`."""
    before, after = _losses(opened, make, score, folds, seed)
    weight = np.ones(opened.n) if opened.weights is None else opened.weights
    gain = before - after
    value = float(np.average(gain, weights=weight))
    return CalibrationLoss(
        value=value,
        standard_error=_standard_error(gain, weight, opened.clusters),
        score=float(np.average(before, weights=weight)),
        refinement=float(np.average(after, weights=weight)),
        metric=score,
        calibrator=name,
        folds=folds,
        n=opened.n,
    )


def _losses(
    opened: Predictions, make: Callable[[], Any], score: str, folds: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Loss of each row (n,) before and after."""
    labels = opened.labels
    if opened.task == "multilabel":
        scores = np.stack([finite_log_odds(column) for column in opened.logits.astype(np.float64).T], axis=1)
        fold = _folds(Rows(scores, scores.argmax(axis=1), opened.weights), opened.clusters, folds, seed)
        calibrated = _cross_fitted(make, Rows(scores, labels, opened.weights), scores, fold)
        return _of_scores(scores, labels, score).mean(axis=1), _of_scores(calibrated, labels, score).mean(axis=1)
    if opened.flat:
        scores = finite_log_odds(opened.logits.astype(np.float64).reshape(-1))
        rows = Rows(scores, labels.astype(np.int64), opened.weights)
        fold = _folds(rows.matrix(), opened.clusters, folds, seed)
        calibrated = _cross_fitted(make, rows, scores, fold)
        return _of_scores(scores, labels, score), _of_scores(calibrated, labels, score)
    logits = _without_zeros(opened.logits.astype(np.float64))
    matrix = Rows(logits, labels, opened.weights)
    calibrated = _cross_fitted(make, matrix, logits, _folds(matrix, opened.clusters, folds, seed))
    return _of_matrix(logits, labels, score), _of_matrix(calibrated, labels, score)


def _folds(matrix: Rows, clusters: np.ndarray | None, folds: int, seed: int) -> np.ndarray:
    """The fold of each row (n,); rows of one cluster share it, because they are no independent check of each other."""
    if clusters is None or len(np.unique(clusters)) == matrix.n:
        return content_folds(matrix, folds, seed)
    _, cluster, size = np.unique(clusters, return_inverse=True, return_counts=True)
    if len(size) < folds:
        raise InputError(f"{len(size)} clusters are too few for {folds} folds: give fewer folds")
    order = np.random.default_rng([seed, 29]).permutation(len(size))
    largest_first = order[np.argsort(-size[order], kind="stable")]
    fold = np.empty(len(size), dtype=np.intp)
    fold[largest_first] = np.arange(len(size)) % folds
    return fold[cluster]


def _without_zeros(logits: np.ndarray) -> np.ndarray:
    return raised(logits, log_floor_of(logits, one_score=False)) if np.isinf(logits).any() else logits


def _maker(calibrator: Any) -> Callable[[], Any]:
    unfitted = get(calibrator) if isinstance(calibrator, str) else calibrator
    return lambda: clone(unfitted)


def _cross_fitted(make: Callable[[], Any], rows: Any, scores: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """What a fit without a row's fold makes of its scores."""
    calibrated = np.empty_like(scores)
    for part in np.unique(fold):
        inside, outside = np.flatnonzero(fold != part), np.flatnonzero(fold == part)
        kept = rows.take(inside)
        if not len(inside) or not kept.total_weight > 0:
            raise InputError(f"{len(fold)} rows are too few for {len(np.unique(fold))} folds: give fewer folds")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            fitted = make().fit_rows(kept)
        calibrated[outside] = fitted.transform(scores[outside])
    return calibrated


def _of_scores(scores: np.ndarray, labels: np.ndarray, score: str) -> np.ndarray:
    if score == "brier":
        return (sigmoid(scores) - labels) ** 2
    return softplus(np.where(labels == 1, -scores, scores))


def _of_matrix(logits: np.ndarray, labels: np.ndarray, score: str) -> np.ndarray:
    log_probabilities = log_softmax(logits)
    every = np.arange(len(labels))
    if score == "nll":
        return -log_probabilities[every, labels]
    probabilities = np.exp(log_probabilities)
    return (probabilities**2).sum(axis=1) - 2 * probabilities[every, labels] + 1


def _standard_error(gain: np.ndarray, weight: np.ndarray, clusters: np.ndarray | None) -> float:
    total = float(weight.sum())
    centred = weight * (gain - np.average(gain, weights=weight))
    if clusters is not None:
        _, cluster = np.unique(clusters, return_inverse=True)
        return float(np.sqrt((np.bincount(cluster, centred) ** 2).sum())) / total
    # a weight of 2 is the row twice: its two copies are independent rows
    return float(np.sqrt((weight * (centred / np.where(weight > 0, weight, 1.0)) ** 2).sum())) / total
