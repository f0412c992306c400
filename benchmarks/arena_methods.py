"""The contestants of the arena: `fit(probabilities, labels)` returns a function from probabilities to probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Predict = Callable[[np.ndarray], np.ndarray]
Fit = Callable[[np.ndarray, np.ndarray], Predict]

PROBMETRICS = (
    "temp-scaling", "ts-mix", "platt", "platt-logits", "isotonic", "ivap", "ivap-ovr", "ivap-ovo", "cir",
    "linear-scaling", "affine-scaling", "quadratic-scaling", "beta", "svs", "sms", "logistic", "logistic-mix",
    "guo-ts", "torchunc-ts", "torchcal-ts", "autogluon-ts", "autogluon-inv-ts", "dircal", "dircal-cv",
)  # fmt: skip
"""The names of probmetrics' `get_calibrator`."""

PROBMETRICS_CLASSES = {
    "ets": "ETSCalibrator",
    "cdf-spline": "CDFSplineCalibrator",
    "mli-spline": "MLISplineCalibrator",
    "histogram": "BinaryHistogramBinningCalibrator",
    "platt-binner": "BinaryPlattBinnerCalibrator",
    "affine-ridge": "RegularizedAffineScalingCalibrator",
    "quadratic-ridge": "RegularizedQuadraticScalingCalibrator",
    "vector": "VectorScalingCalibrator",
    "matrix": "MatrixScalingCalibrator",
    "kernel": "KernelCalibrator",
}
"""Calibrators of probmetrics that have no short name."""

BINARY_ONLY = {
    "linear-scaling", "affine-scaling", "quadratic-scaling", "beta", "mli-spline", "histogram", "platt-binner",
    "affine-ridge", "quadratic-ridge",
}  # fmt: skip
MULTICLASS_ONLY = {"ivap-ovr", "ivap-ovo", "vector", "matrix", "sms"}


def ours(name: str) -> Fit:
    """One of calibrant's methods on log-probabilities; `auto` is the default."""

    def fit(probabilities: np.ndarray, labels: np.ndarray) -> Predict:
        import calibrant

        calibrator = calibrant.AutoCalibrator() if name == "auto" else calibrant.get(name)
        calibrator.fit(_log(probabilities), labels)
        return lambda test: calibrator.predict_proba(_log(test))

    return fit


def _log(probabilities: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(probabilities)


def probmetrics(name: str) -> Fit:
    def fit(probabilities: np.ndarray, labels: np.ndarray) -> Predict:
        import probmetrics.calibrators as library

        if name in PROBMETRICS_CLASSES:
            calibrator = getattr(library, PROBMETRICS_CLASSES[name])()
        else:
            calibrator = library.get_calibrator(name)
        calibrator.fit(probabilities, labels)
        return calibrator.predict_proba

    return fit


def scikit_learn(method: str) -> Fit:
    def fit(probabilities: np.ndarray, labels: np.ndarray) -> Predict:
        from sklearn.base import BaseEstimator, ClassifierMixin
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.frozen import FrozenEstimator

        class Scores(ClassifierMixin, BaseEstimator):
            """A fitted classifier whose features are its own probabilities."""

            def fit(self, features: np.ndarray, target: np.ndarray) -> Scores:
                self.classes_ = np.arange(features.shape[1])
                return self

            def predict_proba(self, features: np.ndarray) -> np.ndarray:
                return features

            def predict(self, features: np.ndarray) -> np.ndarray:
                return features.argmax(axis=1)

        scores = FrozenEstimator(Scores().fit(probabilities, labels))
        rows, row_weights = probabilities, np.ones(len(labels))
        if method == "temperature":  # it fails on absent classes: each gets a row with weight 0
            absent = np.setdiff1d(np.arange(probabilities.shape[1]), labels)
            rows = np.concatenate([rows, np.full((len(absent), rows.shape[1]), 1 / rows.shape[1], rows.dtype)])
            labels, row_weights = np.concatenate([labels, absent]), np.append(row_weights, np.zeros(len(absent)))
        all_rows = np.arange(len(labels))  # one fold, because the scores are frozen and few rows cannot fill five
        fitted = CalibratedClassifierCV(scores, method=method, cv=[(all_rows, all_rows)])
        fitted.fit(rows, labels, sample_weight=row_weights)

        def predict(test: np.ndarray) -> np.ndarray:
            answer = np.zeros(test.shape)
            answer[:, fitted.classes_] = fitted.predict_proba(test)  # classes missing from the fit part get 0
            return answer

        return predict

    return fit


def netcal(module: str, class_name: str, **options: Any) -> Fit:
    def fit(probabilities: np.ndarray, labels: np.ndarray) -> Predict:
        import importlib

        calibrator = getattr(importlib.import_module(f"netcal.{module}"), class_name)(**options)
        binary = probabilities.shape[1] == 2
        calibrator.fit(probabilities[:, 1] if binary else probabilities, labels)

        def predict(test: np.ndarray) -> np.ndarray:
            answer = np.asarray(calibrator.transform(test[:, 1] if binary else test))
            return _two(answer.ravel()) if binary else answer

        return predict

    return fit


def betacal(probabilities: np.ndarray, labels: np.ndarray) -> Predict:
    from betacal import BetaCalibration

    calibrator = BetaCalibration(parameters="abm").fit(probabilities[:, 1:], labels)
    return lambda test: _two(calibrator.predict(test[:, 1:]))


def venn_abers(probabilities: np.ndarray, labels: np.ndarray) -> Predict:
    from venn_abers import VennAbers

    calibrator = VennAbers()
    calibrator.fit(probabilities, labels)
    return lambda test: calibrator.predict_proba(test)[0]


def _two(positive: np.ndarray) -> np.ndarray:
    return np.stack([1 - positive, positive], axis=1)


def peers(binary: bool) -> dict[str, Fit]:
    """Every peer for a task, by the name it has in tables."""
    left_out = MULTICLASS_ONLY if binary else BINARY_ONLY
    names = [name for name in (*PROBMETRICS, *PROBMETRICS_CLASSES) if name not in left_out]
    found = {f"probmetrics {name}": probmetrics(name) for name in names}
    found |= {f"scikit-learn {method}": scikit_learn(method) for method in ("sigmoid", "isotonic", "temperature")}
    found |= {
        "netcal temperature": netcal("scaling", "TemperatureScaling"),
        "netcal logistic": netcal("scaling", "LogisticCalibration"),
        "netcal beta": netcal("scaling", "BetaCalibration"),
        "netcal histogram": netcal("binning", "HistogramBinning"),
        "netcal isotonic": netcal("binning", "IsotonicRegression"),
        "netcal bbq": netcal("binning", "BBQ"),
        "netcal enir": netcal("binning", "ENIR"),
    }
    return found | ({"betacal": betacal, "venn-abers": venn_abers} if binary else {})
