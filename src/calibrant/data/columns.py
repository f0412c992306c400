"""Names: what arrays and columns are called, and which columns of a table are the scores, the labels and the shares.

One column per class carries a prefix that says the kind: `logit_cat`, `probability_cat`, `prob_cat`. Outcomes of
several labels are `label_cat`, shares of annotators `label_share_cat`. `scores` and `labels` may name columns
themselves: one name, several with commas between, or a pattern such as `prob_*`. Columns named 0 … K − 1 are those
classes, in whatever order they stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.core.schema import KINDS, class_key, number_order
from calibrant.data.source import MAX_CLASSES, ArrayField, Field, Fields

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


def arrange(found: Fields, names: Sequence[str], wanted: Wanted, called: str) -> Fields:
    """The fields of a table with those columns joined that stand side by side for one matrix.

    names : the canonical names of all columns; several may be equal.
    """
    if len(names) > MAX_CLASSES:
        raise InputError(f"{called}: the header has {len(names)} columns, but at most {MAX_CLASSES} are read")
    matrices: dict[str, list[str]] = {}
    classes: list[str] = []
    scores = _scores(found, wanted, called)
    if scores is not None:
        key, columns, classes = scores
        order = number_order(classes)
        if order is not None:
            columns, classes = [columns[place] for place in order], [str(place) for place in range(len(order))]
        matrices[key] = columns
    matrices |= _labels(found, wanted, classes, called)
    shares = _suffixed(found, SHARE_PREFIXES)
    if classes and set(shares) == set(map(class_key, classes)):
        matrices[LABEL_SHARES] = [shares[class_key(word)] for word in classes]
    members = [column for group in matrices.values() for column in group]
    twice = next((name for name in (*KNOWN, *members) if list(names).count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{called} has two columns called {twice!r}: rename one of them")
    joined = {key: found[first].beside([found[one] for one in rest], key) for key, (first, *rest) in matrices.items()}
    made = Fields({name: field for name, field in found.items() if name not in members} | joined)
    made.notes, made.members = found.notes, matrices
    if len(classes) > 1 and number_order(classes) is None and CLASS_NAMES not in made:
        made[CLASS_NAMES] = ArrayField(np.array(classes, dtype=str))
    _add_correct(made)
    return made


def _scores(found: Fields, wanted: Wanted, called: str) -> tuple[str, list[str], list[str]] | None:
    """The name of the score matrix, its columns and their classes; None where the scores are one column or list."""
    if wanted.scores is not None:
        columns = picked(list(found), wanted.scores, "scores", called)
        if wanted.scores in found:
            return None
        if wanted.kind is None and score_kind(wanted.scores) is None:
            raise InputError(f"{called}: {wanted.scores} does not say what it holds: give --kind")
        return wanted.scores, columns, _endings(columns, wanted.scores)
    wide: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    for name in found:
        prefix = _prefix(name, PREFIXES)
        if prefix is not None:
            wide[PREFIXES[prefix]][name] = name[len(prefix) :]
    ones = [word for word in SCORES if word in found]
    said = sorted({*(kind for kind in KINDS if wide[kind]), *(SCORES[word] for word in ones)}, key=KINDS.index)
    if len(said) == 2 and wanted.kind is None:
        raise InputError(f"{called} has columns of logits and of probabilities: choose with kind= or --kind")
    chosen = wanted.kind or (said[0] if said else "")
    ones = [word for word in ones if SCORES[word] == chosen]
    if ones and wide.get(chosen):
        some = next(iter(wide[chosen]))
        many = f"{some[: len(_prefix(some, PREFIXES) or '')]}*"
        raise InputError(f"{called} has {ones[0]} and {some}: choose with --scores '{many}' or --scores {ones[0]}")
    if wide.get(chosen) and not ones:
        return chosen, list(wide[chosen]), list(wide[chosen].values())
    paired = any(scores in found and labels in found for scores, labels in PARTNERS.items())
    if ones or said or wanted.kind is None or any(split_names(found)) or (paired and wanted.kind != "logits"):
        return None
    return _named_by_labels(found, wanted, called)


def _named_by_labels(found: Fields, wanted: Wanted, called: str) -> tuple[str, list[str], list[str]]:
    """With `kind` alone: the columns of numbers, if the labels name every one of them.

    A column that no label names may as well be an age or a loss: it is not a class unless the caller says so.
    """
    other = {*KNOWN, *wanted.by, str(wanted.labels), str(wanted.weights), str(wanted.cluster)}
    rest = [name for name in found if name not in other and name.lower() not in ROW_NAMES]
    rest = [name for name in rest if len(found[name].shape) == 1 and found[name].read().dtype.kind in "fiu"]
    label = wanted.labels if isinstance(wanted.labels, str) else None
    label = next((word for word in (label, *LABELS, *OTHER_LABELS) if word in found), None)
    labelled = {class_key(value) for value in np.unique(found[label].read().astype(str)).tolist()} if label else set()
    strange = [name for name in rest if class_key(name) not in labelled]
    if strange or len(rest) < 2:
        named = [name for name in rest if name not in strange]
        advice = f"--scores {','.join(named if len(named) > 1 else rest)}"
        raise InputError(
            f"{called} has no columns logit_... or probability_..., and no label names "
            f"{', '.join(strange)[:100] or 'a column'}: choose the scores, such as {advice} (scores=), "
            f"among {', '.join(found)[:200]}"
        )
    return str(wanted.kind), rest, list(rest)


def _labels(found: Fields, wanted: Wanted, classes: list[str], called: str) -> dict[str, list[str]]:
    """The name and the columns of a matrix of labels, where there is one."""
    keys = [class_key(word) for word in classes]
    if isinstance(wanted.labels, str):
        if wanted.labels in found:
            return {}
        columns = picked(list(found), wanted.labels, "labels", called)
        places = dict(zip(map(class_key, _endings(columns, wanted.labels)), columns, strict=True))
        return {wanted.labels: [places[key] for key in keys] if keys and set(places) == set(keys) else columns}
    if wanted.labels is not None or any(word in found for word in LABELS):
        return {}
    marked = _suffixed(found, LABEL_PREFIXES)
    return {"labels": [marked[key] for key in keys]} if len(keys) > 1 and set(marked) == set(keys) else {}


def _add_correct(made: Fields) -> None:
    """Where a table gives a confidence, the answer and the true label: an answer is correct if it is the label."""
    predicted = next((word for word in PREDICTED if word in made), None)
    label = next((word for word in (*LABELS, *OTHER_LABELS) if word in made), None)
    if CONFIDENCE in made and CORRECT not in made and predicted is not None and label is not None:
        answers, truth = (made[word].read().astype(str).tolist() for word in (predicted, label))
        same = [class_key(one) == class_key(other) for one, other in zip(answers, truth, strict=True)]
        made[CORRECT] = ArrayField(np.array(same))
        del made[label]
        made.notes = (*made.notes, f"correct is where {predicted} equals {label}")


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


def _endings(columns: list[str], text: str) -> list[str]:
    """What distinguishes the columns: the part that `*` stands for, or the names without a known prefix."""
    head, star, tail = text.partition("*")
    if star and "," not in text:
        return [column[len(head) : len(column) - len(tail)] for column in columns]
    prefixes = [_prefix(column, PREFIXES) for column in columns]
    if all(prefix is not None for prefix in prefixes):
        return [column[len(prefix or "") :] for column, prefix in zip(columns, prefixes, strict=True)]
    return columns


def _suffixed(names: Mapping[str, Field], prefixes: Sequence[str]) -> dict[str, str]:
    marked = {name: _prefix(name, prefixes) for name in names}
    return {class_key(name[len(prefix) :]): name for name, prefix in marked.items() if prefix is not None}


def _prefix(name: str, prefixes: Mapping[str, str] | Sequence[str]) -> str | None:
    return next((prefix for prefix in prefixes if name.lower().startswith(prefix)), None)
