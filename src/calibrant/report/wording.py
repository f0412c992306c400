"""The words of the page that depend on the task: figures are about the predicted class, or about the positive one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from calibrant.evaluation.results import Comparison


@dataclass(frozen=True)
class Wording:
    """What one kind of task calls things.

    high, low : a bin whose stated probability is above, or below, what was seen.
    stated, seen : titles of the axes of a reliability diagram. mean, share : their means, in a few characters.
    yes, no : the two outcomes of a row.
    """

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

    @property
    def sides(self) -> list[str]:
        """Too high, within chance, too low."""
        return [self.high, "within chance", self.low]


PREDICTED = Wording(
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


PICKED_CLASS = replace(PREDICTED, stated="confidence when it says this class", seen="how often it is right")
"""Of the rows predicted as one class."""


def wording(comparison: Comparison) -> Wording:
    """The words of a comparison's task."""
    return POSITIVE if comparison.about == "positive class" else PREDICTED


TITLES = {
    "multiclass": "How far to trust a {:,}-class model",
    "binary": "How far to trust the probability of the positive class",
    "multilabel": "How far to trust the probabilities of {:,} labels",
    "pairs": "How far to trust a model's stated confidence",
}
"""The page's heading where none is given."""
SIZES = {"multiclass": "{:,} classes", "multilabel": "{:,} labels", "binary": "{:,} positives among them ({:.1%})"}
"""What else a page says about the size of its data; confidences alone have no classes."""


def sizes(comparison: Comparison) -> list[str]:
    """How much was compared, on how many rows of what."""
    labels, failed = comparison.labels, sum(row.error is not None for row in comparison.rows)
    counts = (np.sum(labels), np.mean(labels)) if comparison.task == "binary" else (comparison.n_classes,)
    return [
        f"{len(comparison.rows) - failed} methods" + f", {failed} failed" * (failed > 0),
        f"fitted on {comparison.n_val:,} rows",
        f"measured on {comparison.n_test:,}",
        *(words.format(*counts) for task, words in SIZES.items() if task == comparison.task),
        f"{comparison.n_bins} bins",
        f"{comparison.resamples:,} bootstrap resamples",
    ]


def class_names(comparison: Comparison) -> list[str]:
    """The names of the classes or labels, numbers where there are none."""
    word = "label" if comparison.task == "multilabel" else "class"
    numbered = [f"{word} {index}" for index in range(comparison.n_classes)]
    return list(map(str, comparison.class_names or numbered))
