"""The words of the page that depend on the task: figures are about the predicted class, or about the positive one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from calibrant.evaluation.flat import about
from calibrant.evaluation.results import Comparison


@dataclass(frozen=True)
class Wording:
    """What one kind of task calls things.

    high, low : a bin whose stated probability is above, or below, what was seen.
    stated, seen : titles of the axes of a reliability diagram. mean, share : their means, in a few characters.
    yes, no : the two outcomes of a row.
    """

    about: str
    high: str
    low: str
    stated: str
    seen: str
    mean: str
    share: str
    yes: str
    no: str
    reliability_shows: str
    reliability_reads: str
    histogram_title: str
    histogram_shows: str
    histogram_reads: str
    deferral_lead: str

    def about_class(self) -> Wording:
        """The same for the rows predicted as one class."""
        return replace(self, stated="confidence when it says this class", seen="how often it is right")

    @property
    def sides(self) -> list[str]:
        """Too high, within chance, too low."""
        return [self.high, "within chance", self.low]


PREDICTED = Wording(
    about="predicted class",
    high="too sure",
    low="not sure enough",
    stated="confidence: what the model says",
    seen="accuracy: how often it is right",
    mean="mean confidence",
    share="accuracy",
    yes="right",
    no="wrong",
    reliability_shows="Predictions grouped by stated confidence; each mark is how often that group was right, with its "
    "95% interval. Bars and small numbers count the rows; bins of fewer than 10 are faint.",
    reliability_reads="On the dashed line the model means what it says; below, it is too sure. Inside the grey boxes, "
    "chance alone explains the distance.",
    histogram_title="How sure is it?",
    histogram_shows="How many test rows got which confidence, split into right and wrong predictions.",
    histogram_reads="The two dashed lines, mean confidence and accuracy, should stand together. Wrong rows far to the "
    "right are confident mistakes.",
    deferral_lead="If someone else decides the cases below a confidence threshold, how many errors remain?",
)

POSITIVE = Wording(
    about="positive class",
    high="too high",
    low="too low",
    stated="probability of the positive class",
    seen="observed share of positives",
    mean="mean probability",
    share="observed share",
    yes="positive",
    no="negative",
    reliability_shows="Rows grouped by the stated probability of the positive class; each mark is the share of "
    "positives in that group, with its 95% interval. Bars and small numbers count the rows; bins of fewer than 10 are "
    "faint.",
    reliability_reads="On the dashed line probabilities mean what they say; below it they are too high, above it too "
    "low. Inside the grey boxes, chance alone explains the distance.",
    histogram_title="Who gets which probability?",
    histogram_shows="How many test rows got which probability, split into positives and negatives.",
    histogram_reads="The two dashed lines, mean probability and observed share of positives, should stand together. "
    "The less the two colours overlap, the better the model tells positives from negatives.",
    deferral_lead="A row is decided as positive from a probability of 50% on, and is as sure as the larger of p and "
    "1 − p. If someone else decides the least sure rows, how many errors remain?",
)


def wording(comparison: Comparison) -> Wording:
    """The words of a comparison's task."""
    return POSITIVE if about(comparison.task) == "positive class" else PREDICTED


def title(comparison: Comparison) -> str:
    """The page's heading where none is given."""
    if comparison.task == "binary":
        return "How far to trust the probability of the positive class"
    if comparison.task == "multilabel":
        return f"How far to trust the probabilities of {comparison.n_classes:,} labels"
    if comparison.task == "pairs":
        return "How far to trust a model's stated confidence"
    return f"How far to trust a {comparison.n_classes:,}-class model"


def size(comparison: Comparison) -> str:
    """How many classes, labels or positives there are; nothing of confidences alone."""
    if comparison.task == "binary":
        count, share = int(np.sum(comparison.labels)), float(np.mean(comparison.labels))
        return f"{count:,} positives among them ({share:.1%})"
    if comparison.task == "multilabel":
        return f"{comparison.n_classes:,} labels"
    return "" if comparison.task == "pairs" else f"{comparison.n_classes:,} classes"


def shown_metrics(comparison: Comparison) -> list[str]:
    """Metrics of the table, the deciding one first; with one probability per row the classwise ECE is the ECE again."""
    names = sorted(comparison.metric_names, key=lambda name: name != comparison.criterion)
    return names if comparison.task == "multiclass" else [name for name in names if name != "sce"]
