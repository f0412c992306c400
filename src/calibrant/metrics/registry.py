"""The metrics by name, and what a program may want to know about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calibrant.metrics import (
    additive,
    classwise,
    clinical,
    decision,
    decomposition,
    discrimination,
    flexible,
    ks,
    scores,
    selective,
    smooth,
    soft,
    sweep,
    top_label,
)
from calibrant.metrics.mmce import mmce, mmce_of
from calibrant.metrics.reliability import reliability, reliability_of

METRICS: dict[str, Callable[..., Any]] = {
    "ece": top_label.ece,
    "over_under_confidence": top_label.over_under_confidence,
    "adaptive_ece": top_label.adaptive_ece,
    "classwise_ece": classwise.classwise_ece,
    "sce": classwise.sce,
    "ace": classwise.ace,
    "marginal_ece": classwise.marginal_ece,
    "debiased_ece": top_label.debiased_ece,
    "sweep_ece": sweep.sweep_ece,
    "ks_error": ks.ks_error,
    "kuiper_error": ks.kuiper_error,
    "mce": top_label.mce,
    "smooth_ece": smooth.smooth_ece,
    "soft_ece": soft.soft_ece,
    "mmce": mmce,
    "nll": scores.nll,
    "brier": scores.brier,
    "accuracy": scores.accuracy,
    "entropy": scores.entropy,
    "confidence": scores.confidence,
    "confidence_auroc": selective.confidence_auroc,
    "aurc": selective.aurc,
    "risk_coverage": selective.risk_coverage,
    "classwise_losses": classwise.classwise_losses,
    "classwise_over_under": classwise.classwise_over_under,
    "reliability": reliability,
}
"""Every metric of (probabilities, labels); `rank_changes` compares two sets of predictions and stands apart."""

BINARY: dict[str, Callable[..., Any]] = {
    "calibration_slope": clinical.calibration_slope,
    "calibration_intercept": clinical.calibration_intercept,
    "observed_expected": clinical.observed_expected,
    "integrated_calibration_index": flexible.integrated_calibration_index,
    "e50": flexible.e50,
    "e90": flexible.e90,
    "flexible_calibration": flexible.flexible_calibration,
    "net_benefit": decision.net_benefit,
    "decision_curve": decision.decision_curve,
    "threshold_metrics": decision.threshold_metrics,
    "roc_auc": discrimination.roc_auc,
    "average_precision": discrimination.average_precision,
    "score_decomposition": decomposition.score_decomposition,
}
"""The metrics of one probability per row, P(y = 1), and labels 0/1; those above take such columns too."""

OF_COLUMNS: dict[str, Callable[..., Any]] = {
    "ece": top_label.ece_of,
    "over_under_confidence": top_label.over_under_confidence_of,
    "adaptive_ece": top_label.adaptive_ece_of,
    "debiased_ece": top_label.debiased_ece_of,
    "sweep_ece": sweep.sweep_ece_of,
    "ks_error": ks.ks_error_of,
    "kuiper_error": ks.kuiper_error_of,
    "mce": top_label.mce_of,
    "smooth_ece": smooth.smooth_ece_of,
    "soft_ece": soft.soft_ece_of,
    "mmce": mmce_of,
    "confidence_auroc": selective.confidence_auroc_of,
    "aurc": selective.aurc_of,
    "risk_coverage": selective.risk_coverage_of,
    "reliability": reliability_of,
}
"""The top-label metrics as functions of (confidence, correct, weights): what resampling calls."""

ADDITIVE: dict[str, type[additive.Additive]] = {
    "ece": additive.AdditiveEce,
    "over_under_confidence": additive.AdditiveOverUnderConfidence,
    "classwise_ece": additive.AdditiveClasswiseEce,
    "sce": additive.AdditiveSce,
    "debiased_ece": additive.AdditiveDebiasedEce,
    "soft_ece": additive.AdditiveSoftEce,
    "nll": additive.AdditiveNll,
    "brier": additive.AdditiveBrier,
    "accuracy": additive.AdditiveAccuracy,
    "entropy": additive.AdditiveEntropy,
    "confidence": additive.AdditiveConfidence,
    "classwise_losses": additive.AdditiveClasswiseLosses,
    "classwise_over_under": additive.AdditiveClasswiseOverUnder,
    "reliability": additive.AdditiveReliability,
}
"""The additive form of each metric that has one."""
