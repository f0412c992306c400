"""Names: what arrays of files and columns of tables are called.

One column per class carries a prefix that says the kind: `logit_cat`, `probability_cat`, `prob_cat`. Outcomes of
several labels are `label_cat`, shares of annotators `label_share_cat`. `scores` and `labels` may name columns
themselves: one name, several with commas between, or a pattern such as `prob_*`. Columns named 0 … K − 1 are those
classes, in whatever order they stand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from calibrant.core.errors import InputError
from calibrant.data.source import Field

LABELS = ("labels", "label")
"""Names of labels that win over any other."""

OTHER_LABELS = ("label_ids", "targets", "target", "y_true", "answer", "outcome")
"""Names that libraries use; read where exactly one of them is there."""

SCORES = {
    "logits": "logits",
    "logit": "logits",
    "probabilities": "probabilities",
    "probability": "probabilities",
    "probs": "probabilities",
    "prob": "probabilities",
    "proba": "probabilities",
    "y_prob": "probabilities",
    "y_proba": "probabilities",
    "pred_proba": "probabilities",
}
"""Names of scores, and the kind that they say."""

CONFIDENCE, CORRECT = "confidence", "correct"
PREDICTIONS, LABEL_IDS = "predictions", "label_ids"
"""What Hugging Face's Trainer calls the logits and the labels."""

WEIGHTS = ("weights", "weight", "sample_weight")
GROUPS = ("groups", "group")
CLUSTERS = ("clusters", "cluster")
LABEL_SHARES = "label_shares"
CLASS_NAMES = "class_names"

PARTNERS = {CONFIDENCE: CORRECT, PREDICTIONS: LABEL_IDS}
"""Names of scores that only count beside the labels that belong to them."""

PREDICTED = ("pred", "prediction", "predicted", "predicted_label", "y_pred")
"""Names of the answer given, beside a confidence and the true label."""

KNOWN = frozenset({*LABELS, *OTHER_LABELS, *SCORES, *WEIGHTS, *GROUPS, *CLUSTERS, *PARTNERS, *PARTNERS.values()})
"""All names above that columns of a table may have."""


SINGLE = {("binary", "probabilities"): "probability", ("pairs", "probabilities"): "confidence"}
"""What files call one score per row, by task and kind; logits keep their name."""


PREFIXES = {
    "logit_": "logits",
    "logits_": "logits",
    "logit.": "logits",
    "probability_": "probabilities",
    "probabilities_": "probabilities",
    "prob_": "probabilities",
    "proba_": "probabilities",
    "prob.": "probabilities",
    "probability.": "probabilities",
}
SHARE_PREFIXES = ("label_share_", "label_shares_", "share_")
LABEL_PREFIXES = ("label_", "labels_")

ROW_NAMES = frozenset({"", "unnamed: 0", "index", "id", "row", "row_id", "rownames", "__index_level_0__"})
"""Names of columns that number the rows; they are never scores."""


@dataclass(frozen=True)
class Wanted:
    """What the caller says about a file: names of arrays or columns, or arrays in their place."""

    kind: str | None = None
    task: str | None = None
    scores: str | None = None
    labels: Any = None
    weights: Any = None
    by: tuple[str, ...] = ()
    cluster: Any = None
    class_names: Sequence[str] | None = None
    require_labels: bool = True
    ignore_index: int | None = None
    guard: bool = True
    """Are logits that look like probabilities an error? Not where they are only transformed."""
    part: bool = False
    """Is the file one of several? A few of its rows may look like probabilities by chance; fits look at all parts."""


def score_kind(word: str) -> str | None:
    """The kind that a name of scores says, if it says one.

    >>> score_kind("prob_cat"), score_kind("risk"), score_kind("score")
    ('probabilities', 'probabilities', None)
    """
    low = word.lower()
    if low in SCORES:
        return SCORES[low]
    if "logit" in low:
        return "logits"
    return "probabilities" if "prob" in low or low.startswith(("risk", CONFIDENCE)) else None


def split_names(fields: Mapping[str, Field]) -> list[str]:
    """The prefixes that `file#prefix` can pick, and "" if the file has scores without one."""
    found = set()
    for key in fields:
        for word in (*SCORES, *PARTNERS):
            if key == word or key.endswith("_" + word):
                prefix = key[: -len(word)]
                if word not in PARTNERS or prefix + PARTNERS[word] in fields:
                    found.add(prefix.removesuffix("_"))
    return sorted(found)


def canonical(names: Sequence[str]) -> list[str]:
    """Column names with known words in lower case (`Label` is `label`), where that is no clash.

    >>> canonical(["Label", "Prob_A", "Age"])
    ['label', 'Prob_A', 'Age']
    """
    taken = set(names)
    return [name.lower() if name.lower() in KNOWN and name.lower() not in taken else name for name in names]


def picked(names: Sequence[str], text: str, option: str = "", called: str = "") -> list[str]:
    """The columns that a name, several names with commas, or a pattern stands for; an InputError for one of an option
    that stands for none."""
    columns: list[str] = []
    for word in [text] if text in names else [part.strip() for part in text.split(",")]:
        hits = [word] if word in names else [name for name in names if fnmatchcase(name, word)]
        if not hits and option:
            raise InputError(f"{called} has no {word} for --{option}, only {', '.join(map(str, names))[:200]}")
        columns.extend(hit for hit in hits if hit not in columns)
    return columns


def prefix_of(name: str, prefixes: Iterable[str] = PREFIXES) -> str:
    """The first of some prefixes that a name has, in lower case; "" for none."""
    return next((prefix for prefix in prefixes if name.lower().startswith(prefix)), "")
