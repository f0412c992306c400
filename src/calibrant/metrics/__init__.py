"""MEASURE: every metric as a function of (probabilities, labels), and over chunks where it is a function of sums.

All of them take `probabilities`, (n, K) or (n,) of the positive class, or logits with ``from_logits=True``; `labels`
(n,) of class indices, or of 0 and 1; and `sample_weight` (n,), in which a weight of 2 counts as the row twice. Of a
matrix they ask about the predicted class, of one probability per row about the positive class.

A metric is one function below `@metric(...)` in a file of this folder and its name in a line below; files, and the
functions in them, stand in the order in which tables show the metrics.
"""

# isort: off
from calibrant.metrics.record import METRICS as METRICS, Metric as Metric, register_metric as register_metric
from calibrant.metrics.top_label import (
    OverUnderConfidence as OverUnderConfidence,
    ece as ece,
    over_under_confidence as over_under_confidence,
    mce as mce,
    adaptive_ece as adaptive_ece,
    debiased_ece as debiased_ece,
    sweep_ece as sweep_ece,
    smooth_ece as smooth_ece,
    soft_ece as soft_ece,
    ks_error as ks_error,
    kuiper_error as kuiper_error,
    mmce as mmce,
    reliability as reliability,
    Reliability as Reliability,
)
from calibrant.metrics.classwise import (
    classwise_ece as classwise_ece,
    sce as sce,
    ace as ace,
    marginal_ece as marginal_ece,
    classwise_over_under as classwise_over_under,
    ClasswiseOverUnder as ClasswiseOverUnder,
    classwise_losses as classwise_losses,
    ClasswiseLosses as ClasswiseLosses,
)
from calibrant.metrics.scores import (
    nll as nll,
    brier as brier,
    accuracy as accuracy,
    confidence as confidence,
    entropy as entropy,
)
from calibrant.metrics.selective import (
    confidence_auroc as confidence_auroc,
    aurc as aurc,
    risk_coverage as risk_coverage,
    RiskCoverage as RiskCoverage,
    rank_changes as rank_changes,
)
from calibrant.metrics.clinical import (
    calibration_slope as calibration_slope,
    calibration_intercept as calibration_intercept,
    observed_expected as observed_expected,
    integrated_calibration_index as integrated_calibration_index,
    e50 as e50,
    e90 as e90,
    flexible_calibration as flexible_calibration,
    FlexibleCalibration as FlexibleCalibration,
    roc_auc as roc_auc,
    average_precision as average_precision,
    score_decomposition as score_decomposition,
    ScoreDecomposition as ScoreDecomposition,
    net_benefit as net_benefit,
    decision_curve as decision_curve,
    DecisionCurve as DecisionCurve,
    threshold_metrics as threshold_metrics,
    ThresholdMetrics as ThresholdMetrics,
)
from calibrant.metrics.multicalibration import (
    multicalibration_error as multicalibration_error,
    MulticalibrationError as MulticalibrationError,
)
from calibrant.metrics.chunks import (
    Streaming as Streaming,
    stream as stream,
    streaming as streaming,
    update_all as update_all,
)
