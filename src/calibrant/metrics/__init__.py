"""MEASURE: every metric as a function of (probabilities, labels); additive ones also as a class over chunks.

All of them take `probabilities`, (n, K) or (n,) of the positive class, or logits with ``from_logits=True``; `labels`
(n,) of class indices, or of 0 and 1; and `sample_weight` (n,), in which a weight of 2 counts as the row twice. Of a
matrix they ask about the predicted class, of one probability per row about the positive class.
"""

from inspect import cleandoc

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
from calibrant.metrics.classwise import (
    ClasswiseLosses,
    ClasswiseOverUnder,
    ace,
    classwise_ece,
    classwise_losses,
    classwise_over_under,
    marginal_ece,
    sce,
)
from calibrant.metrics.clinical import calibration_intercept, calibration_slope, observed_expected
from calibrant.metrics.decision import DecisionCurve, ThresholdMetrics, decision_curve, net_benefit, threshold_metrics
from calibrant.metrics.decomposition import ScoreDecomposition, score_decomposition
from calibrant.metrics.discrimination import average_precision, roc_auc
from calibrant.metrics.flexible import (
    FlexibleCalibration,
    e50,
    e90,
    flexible_calibration,
    integrated_calibration_index,
)
from calibrant.metrics.ks import ks_error, kuiper_error
from calibrant.metrics.mmce import mmce
from calibrant.metrics.multicalibration import MulticalibrationError, multicalibration_error
from calibrant.metrics.ranking import rank_changes
from calibrant.metrics.registry import ADDITIVE, BINARY, METRICS
from calibrant.metrics.reliability import Reliability, reliability
from calibrant.metrics.scores import accuracy, brier, confidence, entropy, nll
from calibrant.metrics.selective import RiskCoverage, aurc, confidence_auroc, risk_coverage
from calibrant.metrics.shared_parameters import with_shared_parameters
from calibrant.metrics.smooth import smooth_ece
from calibrant.metrics.soft import soft_ece
from calibrant.metrics.streaming import stream
from calibrant.metrics.sweep import sweep_ece
from calibrant.metrics.top_label import (
    OverUnderConfidence,
    adaptive_ece,
    debiased_ece,
    ece,
    mce,
    over_under_confidence,
)

__all__ = [
    "ADDITIVE",
    "BINARY",
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
    "DecisionCurve",
    "FlexibleCalibration",
    "MulticalibrationError",
    "OverUnderConfidence",
    "Reliability",
    "RiskCoverage",
    "ScoreDecomposition",
    "ThresholdMetrics",
    "accuracy",
    "ace",
    "adaptive_ece",
    "aurc",
    "average_precision",
    "brier",
    "calibration_intercept",
    "calibration_slope",
    "classwise_ece",
    "classwise_losses",
    "classwise_over_under",
    "confidence",
    "confidence_auroc",
    "debiased_ece",
    "decision_curve",
    "e50",
    "e90",
    "ece",
    "entropy",
    "flexible_calibration",
    "integrated_calibration_index",
    "ks_error",
    "kuiper_error",
    "marginal_ece",
    "mce",
    "mmce",
    "multicalibration_error",
    "net_benefit",
    "nll",
    "observed_expected",
    "over_under_confidence",
    "rank_changes",
    "reliability",
    "risk_coverage",
    "roc_auc",
    "sce",
    "score_decomposition",
    "smooth_ece",
    "soft_ece",
    "stream",
    "sweep_ece",
    "threshold_metrics",
    "update_all",
]

for _metric in {*METRICS.values(), *BINARY.values(), rank_changes, multicalibration_error}:
    _metric.__doc__ = with_shared_parameters(cleandoc(_metric.__doc__ or ""), _metric.__annotations__)
