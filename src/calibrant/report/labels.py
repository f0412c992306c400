"""The words of the page: what metrics are called, how their figures are printed, and what calibrators learned."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from calibrant.evaluation.results import HIGHER_IS_BETTER, UNRANKED, MethodRow


class Metric(NamedTuple):
    """How one metric is shown."""

    label: str
    percent: bool
    meaning: str


METRICS: dict[str, Metric] = {
    "ece": Metric("ECE", True, "mean gap between confidence and accuracy"),
    "adaptive_ece": Metric("Adaptive ECE", True, "the same gap over bins of equal size"),
    "classwise_ece": Metric("Classwise ECE", True, "the same gap for every class's probability, averaged"),
    "sce": Metric("Classwise ECE", True, "the same gap for every class's probability, averaged"),
    "over_confidence": Metric("Too sure", True, "the part of ECE where confidence exceeds accuracy"),
    "under_confidence": Metric("Not sure enough", True, "the part of ECE where accuracy exceeds confidence"),
    "nll": Metric("NLL", False, "log loss: surprise at the true class, in nats"),
    "brier": Metric("Brier", False, "squared error of all probabilities"),
    "accuracy": Metric("Accuracy", True, "share of right predictions"),
    "confidence": Metric("Confidence", True, "mean probability of the predicted class"),
    "entropy": Metric("Entropy", False, "mean spread of the probabilities, in nats"),
    "mce": Metric("Largest gap", True, "gap of the worst bin"),
    "ks_error": Metric("KS error", True, "largest gap accumulated over confidence, without bins"),
    "smooth_ece": Metric("Smooth ECE", True, "gap after kernel smoothing, without bins"),
    "debiased_ece": Metric("Debiased ECE", True, "the gap with its sampling noise taken off"),
    "aurc": Metric("AURC", False, "mean error over all deferral rates"),
    "confidence_auroc": Metric("Confidence AUROC", True, "how well confidence tells right from wrong"),
}


def metric(name: str) -> Metric:
    """How a metric is shown; one that is not listed goes by its own name."""
    return METRICS.get(name, Metric(name.replace("_", " "), False, ""))


def better(name: str) -> int:
    """−1 where low values are good, +1 where high ones are, 0 where neither is."""
    return 0 if name in UNRANKED else 1 if name in HIGHER_IS_BETTER else -1


def figure(value: float, *, percent: bool) -> str:
    """A number as the page prints it."""
    if not np.isfinite(value):
        return "–"
    return f"{100 * value:.2f}%" if percent else f"{value:.4f}"


def seconds(value: float) -> str:
    """A duration in a few characters."""
    if not np.isfinite(value):
        return "–"
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s"


def innermost(calibrator: Any) -> list[Any]:
    """A calibrator and those it wraps, outermost first."""
    chain: list[Any] = []
    while calibrator is not None and len(chain) < 5:
        chain.append(calibrator)
        calibrator = getattr(calibrator, "calibrator_", None)
    return chain


def class_temperatures(row: MethodRow, n_classes: int) -> np.ndarray | None:
    """The temperature of each class, where the method learned such a thing."""
    for calibrator in innermost(row.calibrator):
        values = getattr(calibrator, "temperatures_", None)
        # temperatures of confidence bins come with edges
        if values is not None and not hasattr(calibrator, "edges_") and np.shape(values) == (n_classes,):
            return np.asarray(values, dtype=float)
    return None


def summary(calibrator: Any) -> str:
    """The first sentence of a method's own description."""
    text = (type(calibrator).__doc__ or "").strip().split("\n\n")[0]
    return " ".join(text.replace("`", "").split())


PLUMBING = {"n_features_in_", "feature_names_in_", "classes_", "calibrator_"}
PLUMBING |= {"fit_seconds_", "n_iter_", "n_rows_", "fingerprint_"}
"""What every calibrator carries along; it says nothing about the method."""


def learned(calibrator: Any) -> list[tuple[str, str]]:
    """Name and readable value of everything a fitted calibrator learned, wrapped ones included."""
    found = []
    for depth, part in enumerate(innermost(calibrator)):
        prefix = f"{type(part).__name__}." if depth else ""
        for name, value in vars(part).items():
            if name.endswith("_") and not name.startswith("_") and name not in PLUMBING:
                text = readable(value)
                if text:
                    found.append((prefix + name, text))
    return found


def readable(value: Any) -> str:
    """A learned value in one line: numbers as they are, long arrays by shape and range; empty for what is no number."""
    if isinstance(value, bool | str | int | np.integer):
        return str(value)
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        return ""
    if array.ndim == 0:
        return f"{float(array):.5g}"
    if array.ndim == 1 and array.size <= 16:
        return ", ".join(f"{number:.4g}" for number in array)
    low, middle, high = np.nanmin(array), np.nanmedian(array), np.nanmax(array)
    shape = "×".join(str(size) for size in array.shape)
    return f"{shape} numbers, from {low:.4g} to {high:.4g}, median {middle:.4g}"
