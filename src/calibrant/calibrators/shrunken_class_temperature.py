"""Class temperatures shrunk towards one temperature."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.class_temperature import ClassTemperatureScaling
from calibrant.calibrators.learned import RECORD, SMALL, Learned
from calibrant.calibrators.solvers.folds import content_folds
from calibrant.calibrators.temperature import TemperatureScaling
from calibrant.core.arrays import check_whole
from calibrant.core.errors import InputError
from calibrant.core.progress import step
from calibrant.core.rows import Rows
from calibrant.kernels.scaling import vector_sums

SHARES = tuple(round(0.1 * place, 1) for place in range(11))
"""Candidate shares of the class temperatures; 0 is one temperature, 1 is CTS by likelihood."""


class ShrunkenClassTemperature(Calibrator):
    """Class temperatures between one temperature and CTS, T_j = T·(C_j/C)^s (this project's).

    C_j are the class temperatures of lowest log loss and C is their geometric mean; the share s is the candidate of
    lowest held-out log loss in cross-validation; T is the single temperature of lowest ECE once the classes are scaled.
    Class temperatures of few rows are noisy: s is small then, and 0 leaves one temperature.

    Parameters
    ----------
    share : float in [0, 1] or "cv"
        s, or "cv" to choose it from 0, 0.1 … 1.
    folds : int
        Parts of the cross-validation.
    seed : int
        Of the folds.

    Attributes
    ----------
    temperatures_ : array (K,)
    share_ : float
    share_losses_ : array (11,)
        Held-out log loss of each candidate; empty where the share was given.

    Examples
    --------
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> cal.ShrunkenClassTemperature(share=0.5).fit(val.logits, val.labels).temperatures_.round(1)
    array([1.5, 1.5, 1.6, 1.8, 1.5, 1.7, 1.5, 1.4, 1.5, 1.6])
    """

    requires_logits = True
    learns = {
        "temperatures_": Learned(("K",), SMALL),
        "share_": Learned((), 0.0, 1.0, free=False),
        "share_losses_": RECORD,
    }

    def __init__(self, share: float | str = "cv", *, folds: int = 5, seed: int = 0) -> None:
        self.share = share
        self.folds = folds
        self.seed = seed

    def _fit(self, rows: Rows) -> None:
        self._check()
        if not rows.in_memory:
            raise InputError("cts-shrunk searches the lowest ECE of scaled rows, so it cannot be fitted chunk by chunk")
        self.share_losses_ = np.empty(0)
        self.share_ = self._choose(rows) if isinstance(self.share, str) else float(self.share)
        ratio = class_ratio(class_temperatures(rows), self.share_)
        scaled = Rows(rows.logits / ratio, rows.labels, rows.weights)
        self.temperatures_ = TemperatureScaling(objective="ece", refine=True).fit_rows(scaled).temperature_ * ratio

    def _check(self) -> None:
        by_cv = isinstance(self.share, str) and self.share == "cv"
        if not by_cv and (isinstance(self.share, (str, bool)) or not 0 <= self.share <= 1):
            raise InputError(f"share must lie in [0, 1], or be 'cv', got {self.share!r}")
        check_whole(self.folds, "folds", 2)

    def _choose(self, rows: Rows) -> float:
        """The share of lowest held-out log loss; the smallest of equals."""
        fold, unbiased = content_folds(rows, self.folds, self.seed), np.zeros(rows.n_classes)
        losses = np.zeros(len(SHARES))
        for part in range(self.folds):
            held, kept = rows.take(np.flatnonzero(fold == part)), rows.take(np.flatnonzero(fold != part))
            if held.n and kept.total_weight > 0 and len(np.unique(kept.labels)) > 1:
                single, classes = TemperatureScaling().fit_rows(kept).temperature_, class_temperatures(kept)
                for place, share in enumerate(SHARES):
                    scale = 1.0 / (single ** (1 - share) * classes**share)
                    losses[place] += held.total(vector_sums.in_float64(), scale, unbiased)[0]
            step("shares of class temperatures", part + 1, self.folds)
        self.share_losses_ = losses / rows.total_weight
        return SHARES[int(np.argmin(self.share_losses_.round(12)))]

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        return logits / xp.astype(learned.temperatures_, logits.dtype)


def class_temperatures(rows: Rows) -> np.ndarray:
    """The class temperatures (K,) of lowest log loss."""
    return ClassTemperatureScaling(objective="nll").fit_rows(rows).temperatures_


def class_ratio(classes: np.ndarray, share: float) -> np.ndarray:
    """(C_j/C)^s with the geometric mean C."""
    logs = np.log(classes)
    return np.exp(share * (logs - logs.mean()))
