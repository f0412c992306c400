"""MEASURE: every metric as a function of (probabilities, labels); additive ones also as a class over chunks."""

from calibrant.metrics.additive import (
    Additive,
    AdditiveAccuracy,
    AdditiveBrier,
    AdditiveClasswiseEce,
    AdditiveClasswiseLosses,
    AdditiveClasswiseOverUnder,
    AdditiveConfidence,
    AdditiveDebiasedEce,
    AdditiveEce,
    AdditiveEntropy,
    AdditiveNll,
    AdditiveOverUnderConfidence,
    AdditiveReliability,
    AdditiveSce,
    AdditiveSoftEce,
    update_all,
)
from calibrant.metrics.class_losses import ClasswiseLosses, classwise_losses
from calibrant.metrics.classwise import (
    ClasswiseOverUnder,
    ace,
    classwise_ece,
    classwise_over_under,
    marginal_ece,
    sce,
)
from calibrant.metrics.debiased import debiased_ece
from calibrant.metrics.ks import ks_error
from calibrant.metrics.mmce import mmce
from calibrant.metrics.ranking import rank_changes
from calibrant.metrics.registry import ADDITIVE, METRICS
from calibrant.metrics.reliability import Reliability, reliability
from calibrant.metrics.scores import accuracy, brier, confidence, entropy, nll
from calibrant.metrics.selective import RiskCoverage, aurc, confidence_auroc, risk_coverage
from calibrant.metrics.smooth import smooth_ece
from calibrant.metrics.soft import soft_ece
from calibrant.metrics.streaming import stream
from calibrant.metrics.sweep import sweep_ece
from calibrant.metrics.top_label import (
    OverUnderConfidence,
    adaptive_ece,
    ece,
    over_under_confidence,
)

__all__ = [
    "ADDITIVE",
    "METRICS",
    "Additive",
    "AdditiveAccuracy",
    "AdditiveBrier",
    "AdditiveClasswiseEce",
    "AdditiveClasswiseLosses",
    "AdditiveClasswiseOverUnder",
    "AdditiveConfidence",
    "AdditiveDebiasedEce",
    "AdditiveEce",
    "AdditiveEntropy",
    "AdditiveNll",
    "AdditiveOverUnderConfidence",
    "AdditiveReliability",
    "AdditiveSce",
    "AdditiveSoftEce",
    "ClasswiseLosses",
    "ClasswiseOverUnder",
    "OverUnderConfidence",
    "Reliability",
    "RiskCoverage",
    "accuracy",
    "ace",
    "adaptive_ece",
    "aurc",
    "brier",
    "classwise_ece",
    "classwise_losses",
    "classwise_over_under",
    "confidence",
    "confidence_auroc",
    "debiased_ece",
    "ece",
    "entropy",
    "ks_error",
    "marginal_ece",
    "mmce",
    "nll",
    "over_under_confidence",
    "rank_changes",
    "reliability",
    "risk_coverage",
    "sce",
    "smooth_ece",
    "soft_ece",
    "stream",
    "sweep_ece",
    "update_all",
]
