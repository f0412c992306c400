"""Wide tables: which columns of a CSV, parquet file or frame are the scores, the labels and the shares.

One column per class carries a prefix that says the kind: `logit_cat`, `probability_cat`, `prob_cat`. Outcomes of
several labels are `label_cat`, shares of annotators `label_share_cat`. `scores` and `labels` may name columns
themselves: one name, several with commas between, or a pattern such as `prob_*`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from calibrant.core.errors import InputError
from calibrant.core.schema import KINDS, class_key, number_order
from calibrant.data.fields import KNOWN, LABEL_SHARES, LABELS, PARTNERS, SCORES, Wanted, score_kind
from calibrant.data.limits import MAX_CLASSES

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
class Layout:
    """Columns that stand side by side for one matrix, by the name of the matrix; the class names, if they have any."""

    matrices: dict[str, list[str]] = field(default_factory=dict)
    class_names: list[str] | None = None

    @property
    def columns(self) -> set[str]:
        """All columns that belong to a matrix."""
        return {column for group in self.matrices.values() for column in group}


def canonical(names: Sequence[str]) -> list[str]:
    """Column names with known words in lower case (`Label` is `label`), where that is no clash.

    >>> canonical(["Label", "Prob_A", "Age"])
    ['label', 'Prob_A', 'Age']
    """
    taken = set(names)
    return [name.lower() if name.lower() in KNOWN and name.lower() not in taken else name for name in names]


def is_wide(names: Sequence[str], wanted: Wanted) -> bool:
    """Is there anything for `layout` to arrange: columns with a prefix, or columns that the caller describes?"""
    named = wanted.scores is not None or isinstance(wanted.labels, str) or wanted.kind is not None
    return named or any(_prefix(name, tuple(PREFIXES)) is not None for name in names)


def layout(names: Sequence[str], wanted: Wanted, called: str) -> Layout:
    """Which columns belong together."""
    if len(names) > MAX_CLASSES:
        raise InputError(f"{called}: the header has {len(names)} columns, but at most {MAX_CLASSES} are read")
    matrices: dict[str, list[str]] = {}
    classes: list[str] | None = None
    scores = _scores(names, wanted, called)
    if scores is not None:
        key, columns, classes = scores
        order = number_order(classes)  # columns named 0 … K − 1 are those classes, in whatever order they stand
        if order is not None:
            columns, classes = [columns[place] for place in order], [str(place) for place in range(len(order))]
        matrices[key] = columns
    labels = _labels(names, wanted, classes, called)
    if labels is not None:
        matrices[labels[0]] = labels[1]
    shares = _suffixed(names, SHARE_PREFIXES)
    if classes is not None and shares and set(shares) == set(map(class_key, classes)):
        matrices[LABEL_SHARES] = [shares[class_key(word)] for word in classes]
    used = [*KNOWN, *(column for group in matrices.values() for column in group)]
    twice = next((column for column in used if list(names).count(column) > 1), None)
    if twice is not None:
        raise InputError(f"{called} has two columns called {twice!r}: rename one of them")
    unnamed = classes is None or len(classes) == 1 or number_order(classes) is not None
    return Layout(matrices, None if unnamed else classes)


def _scores(names: Sequence[str], wanted: Wanted, called: str) -> tuple[str, list[str], list[str]] | None:
    """The name of the score matrix, its columns and their classes; None where the scores are one column or list."""
    if wanted.scores is not None:
        if wanted.scores in names:
            return None
        columns = _picked(names, wanted.scores, "scores", called)
        if wanted.kind is None and score_kind(wanted.scores) is None:
            raise InputError(f"{called}: {wanted.scores} does not say what it holds: give --kind")
        return wanted.scores, columns, _endings(columns, wanted.scores)
    found: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    for name in names:
        prefix = _prefix(name, tuple(PREFIXES))
        if prefix is not None:
            found[PREFIXES[prefix]][name] = name[len(prefix) :]
    ones = [word for word in SCORES if word in names]
    said = sorted({*(kind for kind in KINDS if found[kind]), *(SCORES[word] for word in ones)}, key=KINDS.index)
    if len(said) == 2 and wanted.kind is None:
        raise InputError(f"{called} has columns of logits and of probabilities: choose with kind= or --kind")
    chosen = wanted.kind or (said[0] if said else "")
    ones = [word for word in ones if SCORES[word] == chosen]
    if ones and found.get(chosen):
        some = next(iter(found[chosen]))
        many = f"{some[: len(_prefix(some, tuple(PREFIXES)) or '')]}*"
        raise InputError(f"{called} has {ones[0]} and {some}: choose with --scores '{many}' or --scores {ones[0]}")
    if ones:
        return None
    if found.get(chosen):
        return chosen, list(found[chosen]), list(found[chosen].values())
    paired = any(scores in names and labels in names for scores, labels in PARTNERS.items())
    if paired and wanted.kind != "logits":
        return None
    return _everything(names, wanted, said, called)


def _everything(names: Sequence[str], wanted: Wanted, said: list[str], called: str) -> tuple[str, list[str], list[str]]:
    """With `kind` alone: every column that has no other role."""
    other = {*KNOWN, *wanted.by, str(wanted.labels), str(wanted.weights), str(wanted.cluster)}
    rest = [name for name in names if name not in other and name.lower() not in ROW_NAMES]
    if wanted.kind is not None and not said and rest:
        return wanted.kind, rest, list(rest)
    chosen = wanted.kind or ""
    expected = {"logits": "logit_...", "probabilities": "probability_..."}.get(chosen, "logit_... or probability_...")
    mark = next((mark for mark in ("\t", ";") if len(names) == 1 and mark in names[0]), None)
    if mark is not None:
        raise InputError(
            f"{called} has one column, {names[0][:60]!r}: separate the columns with commas, not with {mark!r}"
        )
    raise InputError(
        f"{called} has no columns {expected}, only {', '.join(names)[:200]}: name the scores with scores= (--scores), "
        "or give kind= (--kind)"
    )


def _labels(
    names: Sequence[str], wanted: Wanted, classes: list[str] | None, called: str
) -> tuple[str, list[str]] | None:
    """The name and the columns of a matrix of labels, where there is one."""
    if isinstance(wanted.labels, str):
        if wanted.labels in names:
            return None
        columns = _picked(names, wanted.labels, "labels", called)
        endings = _endings(columns, wanted.labels)
        places = {class_key(ending): column for ending, column in zip(endings, columns, strict=True)}
        if classes is not None and set(places) == set(map(class_key, classes)):
            columns = [places[class_key(word)] for word in classes]
        return wanted.labels, columns
    if classes is None or wanted.labels is not None or any(word in names for word in LABELS):
        return None
    found = _suffixed(names, LABEL_PREFIXES)
    if len(classes) > 1 and set(found) == set(map(class_key, classes)):
        return "labels", [found[class_key(word)] for word in classes]
    return None


def _picked(names: Sequence[str], text: str, option: str, called: str) -> list[str]:
    """The columns that a name, several names with commas, or a pattern stands for."""
    columns: list[str] = []
    for word in (part.strip() for part in text.split(",")):
        hits = [word] if word in names else [name for name in names if fnmatchcase(name, word)]
        if not hits:
            raise InputError(f"{called} has no {word} for --{option}, only {', '.join(map(str, names))[:200]}")
        columns.extend(hit for hit in hits if hit not in columns)
    return columns


def _endings(columns: list[str], text: str) -> list[str]:
    """What distinguishes the columns: the part that `*` stands for, or the names without a known prefix."""
    head, star, tail = text.partition("*")
    if star and "," not in text:
        return [column[len(head) : len(column) - len(tail)] for column in columns]
    prefixes = [_prefix(column, tuple(PREFIXES)) for column in columns]
    if all(prefix is not None for prefix in prefixes):
        return [column[len(prefix or "") :] for column, prefix in zip(columns, prefixes, strict=True)]
    return columns


def _suffixed(names: Sequence[str], prefixes: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in names:
        prefix = _prefix(name, prefixes)
        if prefix is not None:
            found[class_key(name[len(prefix) :])] = name
    return found


def _prefix(name: str, prefixes: tuple[str, ...]) -> str | None:
    low = name.lower()
    return next((prefix for prefix in prefixes if low.startswith(prefix)), None)
