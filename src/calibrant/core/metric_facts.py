"""What a metric is called, in which unit it is shown, and which direction is good: the one table that every view reads.

Figures are fractions everywhere in the library; `percent` says that a view multiplies by 100.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class MetricFacts(NamedTuple):
    """How one metric is shown."""

    label: str
    """As a line or a heading names it."""
    column: str
    """The same in a narrow column, without the percent sign."""
    percent: bool
    """Shown in percent; else as it is."""
    better: int
    """−1 where low values are good, +1 where high ones are, 0 where neither is by itself."""
    meaning: str
    """One line of explanation."""
    places: int = 4
    """Decimals of a figure that is not in percent."""

    @property
    def heading(self) -> str:
        """The label with a capital letter."""
        return self.label[:1].upper() + self.label[1:]

    @property
    def title(self) -> str:
        """The label with the unit of a column."""
        return self.label + (" %" if self.percent else "")


FACTS: dict[str, MetricFacts] = {
    "ece": MetricFacts("ECE", "ECE", True, -1, "mean gap between confidence and accuracy"),
    "over_confidence": MetricFacts("overconfidence", "over", True, 0, "the part of ECE where confidence is too high"),
    "under_confidence": MetricFacts("underconfidence", "under", True, 0, "the part of ECE where confidence is too low"),
    "mce": MetricFacts("largest bin (MCE)", "MCE", True, -1, "gap of the worst bin"),
    "adaptive_ece": MetricFacts("adaptive ECE", "ada", True, -1, "the same gap over bins of equal size"),
    "debiased_ece": MetricFacts("debiased ECE", "debiased", True, -1, "the gap with its sampling noise subtracted"),
    "sweep_ece": MetricFacts("sweep ECE", "sweep", True, -1, "the gap over as many bins as stay monotone"),
    "smooth_ece": MetricFacts("smooth ECE", "smooth", True, -1, "gap after kernel smoothing, without bins"),
    "soft_ece": MetricFacts("soft ECE", "soft", True, -1, "gap over soft bins, as the training loss measures it"),
    "ks_error": MetricFacts("KS error", "KS", True, -1, "largest gap accumulated over confidence, without bins"),
    "mmce": MetricFacts("MMCE", "MMCE", True, -1, "kernel mean of the gap, without bins"),
    "sce": MetricFacts("classwise ECE", "class", True, -1, "the gap of every class's probability, averaged"),
    "ace": MetricFacts("ACE", "ACE", True, -1, "classwise gap over ranges of equal size"),
    "marginal_ece": MetricFacts("marginal ECE", "marginal", True, -1, "root mean square of the classwise gaps"),
    "nll": MetricFacts("NLL", "NLL", False, -1, "log loss: surprise at the true class, in nats"),
    "brier": MetricFacts("Brier", "Brier", False, -1, "squared error of all probabilities"),
    "accuracy": MetricFacts("accuracy", "acc", True, 1, "share of right predictions"),
    "confidence": MetricFacts("mean confidence", "confidence", True, 0, "mean probability of the predicted class"),
    "entropy": MetricFacts("mean entropy", "entropy", False, 0, "mean spread of the probabilities, in nats"),
    "confidence_auroc": MetricFacts(
        "confidence AUROC", "conf AUROC", True, 1, "how well confidence tells right from wrong"
    ),
    "aurc": MetricFacts("AURC", "AURC", True, -1, "mean error over all deferral rates"),
    "calibration_slope": MetricFacts("slope", "slope", False, 0, "1 is perfect; below 1 p is too extreme"),
    "calibration_intercept": MetricFacts(
        "intercept", "intercept", False, 0, "0 is perfect; above 0 p is too low on average"
    ),
    "observed_expected": MetricFacts("O:E ratio", "O:E", False, 0, "events seen for each event expected"),
    "integrated_calibration_index": MetricFacts("ICI", "ICI", True, -1, "mean gap of the smooth calibration curve"),
    "e50": MetricFacts("E50", "E50", True, -1, "median gap of the smooth calibration curve"),
    "e90": MetricFacts("E90", "E90", True, -1, "90th percentile of the gap of the smooth calibration curve"),
    "kuiper_error": MetricFacts("Kuiper error", "Kuiper", True, -1, "largest gap over any range of p, without bins"),
    "roc_auc": MetricFacts("ROC AUC", "AUC", False, 1, "chance that a positive gets a higher p than a negative"),
    "average_precision": MetricFacts("average precision", "AP", False, 1, "area under the precision-recall curve"),
    "miscalibration": MetricFacts("miscalibration", "MSC", False, -1, "part of the log loss that a map can mend"),
    "discrimination": MetricFacts("discrimination", "DSC", False, 1, "what p tells beyond the base rate, in nats"),
    "uncertainty": MetricFacts("uncertainty", "UNC", False, 0, "log loss of the base rate"),
    "gap": MetricFacts("gap", "gap", True, 0, "mean confidence minus accuracy"),
    "noise_floor": MetricFacts("noise floor", "floor", True, 0, "the ECE that a calibrated model would show"),
    "changed_predictions": MetricFacts("changed predictions", "chg", True, 0, "rows whose decision changed"),
    "changed_rankings": MetricFacts("changed rankings", "order", True, 0, "pairs whose order was reversed"),
    "p_beats_best": MetricFacts("P(beats best)", "P", False, 0, "share of paired resamples better than the best", 2),
    "fit_seconds": MetricFacts("fit s", "fit", False, 0, "seconds that the fit took", 2),
    "n": MetricFacts("rows", "rows", False, 0, "rows behind the figures", 0),
    "n_positive": MetricFacts("positives", "positives", False, 0, "rows that have the label", 0),
    "mean_rank": MetricFacts("mean rank", "rank", False, 0, "1 is first on every model", 2),
    "best_or_tied": MetricFacts(
        "best or tied", "wins", False, 0, "models on which it is best or within noise of it", 0
    ),
    "n_parameters": MetricFacts("parameters", "params", False, 0, "learned numbers", 0),
    "classwise_loss_std": MetricFacts("class loss spread", "class std", False, -1, "spread of the class losses"),
}

ABSOLUTE = (
    "ece", "over_confidence", "under_confidence", "mce", "adaptive_ece", "debiased_ece", "sweep_ece", "smooth_ece",
    "soft_ece", "ks_error", "mmce", "sce", "ace", "marginal_ece", "kuiper_error", "integrated_calibration_index",
    "e50", "e90",
)  # fmt: skip
"""Sizes of gaps: noise adds to them, so that an estimate can stand at the upper end of its interval."""

ALIASES = {"classwise_ece": "sce"}
"""Earlier names of single figures; `metrics.classwise_ece` itself is the vector over classes."""


def known_name(name: str) -> str:
    """The present name of a figure."""
    return ALIASES.get(name, name)


def facts(name: str) -> MetricFacts:
    """The facts of a metric; one that is not listed goes by its own name, and less of it is better."""
    plain = name.replace("_", " ")
    return FACTS.get(known_name(name), MetricFacts(plain, plain, False, -1, ""))


def sign(name: str) -> float:
    """What to multiply a figure by so that less is better."""
    return -1.0 if facts(name).better > 0 else 1.0


def number(name: str, value: float, places: int | None = None) -> str:
    """A figure as every table prints it: percent with two places, others with theirs or `places`.

    >>> number("ece", 0.0312), number("n", 1500), number("nll", float("nan"))
    ('3.12', '1,500', '—')
    """
    look = facts(name)
    if not math.isfinite(value):
        return "—"
    if look.percent:
        return f"{100 * value:.2f}"
    return f"{value:,.{look.places if places is None else places}f}"
