"""MEASURE: every metric as a function of (probabilities, labels), and over chunks where it is a function of sums.

All of them take `probabilities`, (n, K) or (n,) of the positive class, or logits with ``from_logits=True``; `labels`
(n,) of class indices, or of 0 and 1; and `sample_weight` (n,), in which a weight of 2 counts as the row twice. Of a
matrix they ask about the predicted class, of one probability per row about the positive class.

A metric is one function below `@metric(...)` in a file of this folder and its name in a line below; the lines stand in
the order in which tables show the metrics.
"""

# isort: off
from calibrant.metrics.record import METRICS as METRICS, Metric as Metric, register_metric as register_metric
from calibrant.metrics.top_label import OverUnderConfidence as OverUnderConfidence
from calibrant.metrics.top_label import ece as ece
from calibrant.metrics.top_label import over_under_confidence as over_under_confidence
from calibrant.metrics.top_label import mce as mce
from calibrant.metrics.top_label import adaptive_ece as adaptive_ece
from calibrant.metrics.top_label import debiased_ece as debiased_ece
from calibrant.metrics.sweep import sweep_ece as sweep_ece
from calibrant.metrics.smooth import smooth_ece as smooth_ece
from calibrant.metrics.soft import soft_ece as soft_ece
from calibrant.metrics.ks import ks_error as ks_error
from calibrant.metrics.ks import kuiper_error as kuiper_error
from calibrant.metrics.mmce import mmce as mmce
from calibrant.metrics.classwise import classwise_ece as classwise_ece
from calibrant.metrics.classwise import sce as sce
from calibrant.metrics.classwise import ace as ace
from calibrant.metrics.classwise import marginal_ece as marginal_ece
from calibrant.metrics.classwise import classwise_over_under as classwise_over_under
from calibrant.metrics.classwise import ClasswiseOverUnder as ClasswiseOverUnder
from calibrant.metrics.classwise import classwise_losses as classwise_losses
from calibrant.metrics.classwise import ClasswiseLosses as ClasswiseLosses
from calibrant.metrics.scores import nll as nll
from calibrant.metrics.scores import brier as brier
from calibrant.metrics.scores import accuracy as accuracy
from calibrant.metrics.scores import confidence as confidence
from calibrant.metrics.scores import entropy as entropy
from calibrant.metrics.selective import confidence_auroc as confidence_auroc
from calibrant.metrics.selective import aurc as aurc
from calibrant.metrics.selective import risk_coverage as risk_coverage
from calibrant.metrics.selective import RiskCoverage as RiskCoverage
from calibrant.metrics.reliability import reliability as reliability
from calibrant.metrics.reliability import Reliability as Reliability
from calibrant.metrics.clinical import calibration_slope as calibration_slope
from calibrant.metrics.clinical import calibration_intercept as calibration_intercept
from calibrant.metrics.clinical import observed_expected as observed_expected
from calibrant.metrics.flexible import integrated_calibration_index as integrated_calibration_index
from calibrant.metrics.flexible import e50 as e50
from calibrant.metrics.flexible import e90 as e90
from calibrant.metrics.flexible import flexible_calibration as flexible_calibration
from calibrant.metrics.flexible import FlexibleCalibration as FlexibleCalibration
from calibrant.metrics.discrimination import roc_auc as roc_auc
from calibrant.metrics.discrimination import average_precision as average_precision
from calibrant.metrics.decomposition import score_decomposition as score_decomposition
from calibrant.metrics.decomposition import ScoreDecomposition as ScoreDecomposition
from calibrant.metrics.decision import net_benefit as net_benefit
from calibrant.metrics.decision import decision_curve as decision_curve
from calibrant.metrics.decision import DecisionCurve as DecisionCurve
from calibrant.metrics.decision import threshold_metrics as threshold_metrics
from calibrant.metrics.decision import ThresholdMetrics as ThresholdMetrics
from calibrant.metrics.multicalibration import multicalibration_error as multicalibration_error
from calibrant.metrics.multicalibration import MulticalibrationError as MulticalibrationError
from calibrant.metrics.ranking import rank_changes as rank_changes
from calibrant.metrics.chunks import Streaming as Streaming
from calibrant.metrics.chunks import stream as stream
from calibrant.metrics.chunks import streaming as streaming
from calibrant.metrics.chunks import update_all as update_all
