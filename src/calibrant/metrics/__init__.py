"""MEASURE: every metric as a function of (probabilities, labels); additive ones also as a class over chunks."""

from calibrant.metrics.classwise import ace, classwise_ece, classwise_over_under, marginal_ece, sce
from calibrant.metrics.ece import (
    OverUnderConfidence,
    Reliability,
    adaptive_ece,
    ece,
    over_under_confidence,
    reliability,
)
from calibrant.metrics.scores import accuracy, brier, confidence, entropy, nll

__all__ = [
    "OverUnderConfidence",
    "Reliability",
    "accuracy",
    "ace",
    "adaptive_ece",
    "brier",
    "classwise_ece",
    "classwise_over_under",
    "confidence",
    "ece",
    "entropy",
    "marginal_ece",
    "nll",
    "over_under_confidence",
    "reliability",
    "sce",
]
