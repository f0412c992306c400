"""What the numbers of a set of predictions are about: the task, told by names, shapes or the caller.

| task | scores | labels |
| --- | --- | --- |
| multiclass | n×K | n class numbers, or `label_shares` n×K |
| binary | n, of the positive class | n of 0/1 |
| multilabel | n×L, one sigmoid per label | n×L of 0/1 |
| pairs | n, confidence of the answer given | n, correct or not |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibrant.core.arrays import (
    PROBABILITY_TOLERANCE,
    as_array,
    check_label_matrix,
    check_labels,
    check_outcomes,
    check_score_values,
    check_values,
)
from calibrant.core.errors import InputError
from calibrant.core.odds import sigmoid
from calibrant.core.softmax import log_odds, log_stored, softmax

TASKS = ("multiclass", "binary", "multilabel", "pairs")

NAMES_REMEDY = "to use names, give class_names= (--class-names)"

FLAT = ("binary", "pairs")
"""Tasks with one score per row."""


def check_task(task: str | None) -> None:
    """Raise for a task that does not exist."""
    if task is not None and task not in TASKS:
        raise InputError(f"task must be one of {', '.join(TASKS)}, got {task!r}")


def resolve_task(
    task: str | None, shape: tuple[int, ...], label_shape: tuple[int, ...] | None, name: str = "scores"
) -> str:
    """The task that the shapes tell, or the caller's where the shapes allow it.

    >>> resolve_task(None, (5,), (5,)), resolve_task(None, (5, 3), (5, 3)), resolve_task(None, (5, 2), (5,))
    ('binary', 'multilabel', 'multiclass')
    """
    check_task(task)
    one = len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)
    if task is None:
        if one:
            return "binary"
        labels_too = label_shape is not None and len(label_shape) == 2 and len(shape) == 2 and label_shape[1] > 1
        return "multilabel" if labels_too else "multiclass"
    if task == "pairs" and not one:
        raise InputError(f"{name} has shape {shape}, but pairs have one confidence per row: give (n,)")
    if task == "binary" and not one and shape[1:] != (2,):
        raise InputError(f"{name} has shape {shape}, but task binary has one score per row, or two columns")
    if task == "multiclass" and one:
        raise InputError(f"{name} has shape {shape}, but task multiclass has one column per class: give (n, K)")
    if task == "multilabel" and len(shape) != 2:
        raise InputError(f"{name} has shape {shape}, but task multilabel has one column per label: give (n, L)")
    return task


def check_task_labels(  # noqa: PLR0917
    task: str, labels: Any, shape: tuple[int, ...], class_names: Sequence[str] | None, name: str, against: str
) -> np.ndarray:
    """Checked labels of a task; texts are matched to the class names."""
    n_rows = shape[0]
    array = as_array(labels, name)
    if array.dtype.kind in "USO" and array.size:
        array = _numbers_of_texts(array, task, class_names, name)
    if task in FLAT:
        return check_outcomes(array, n_rows, name, against)
    if task == "multilabel":
        if array.ndim == 1 and shape[1] == 1:
            array = array[:, None]
        return check_label_matrix(array, shape, name, against)
    if array.dtype.kind == "b" and shape[1] == 2:
        array = array.astype(np.int64)
    return check_labels(array, n_rows, shape[1], name, against)


def _numbers_of_texts(array: np.ndarray, task: str, class_names: Sequence[str] | None, name: str) -> np.ndarray:
    """Class numbers of texts: the places of the names, or what the digits say."""
    texts = [item.decode("utf-8", "replace") if isinstance(item, bytes) else item for item in array.ravel().tolist()]
    odd = next((item for item in texts if not isinstance(item, (str, int, bool, np.integer))), None)
    if odd is not None:
        raise InputError(f"{name} holds {type(odd).__name__} ({str(odd)[:40]}): give class numbers or names")
    words = [str(item).strip() for item in texts]
    places = _places(task, class_names)
    lowered = {word.lower(): place for word, place in places.items()}
    if len(lowered) != len(places):
        lowered = {}  # names that differ by case only must match exactly
    numbers = np.empty(len(words), np.int64)
    if "" in words:
        raise InputError(f"{name} is missing in row {words.index('')}: give every row a label, or leave the row out")
    for row, word in enumerate(words):
        place = places.get(word, lowered.get(word.lower()))
        if place is None and class_names is None and word.removeprefix("-").isdecimal() and len(word) < 18:
            place = int(word)
        if place is None:
            known = f"the names are {', '.join(list(places)[:6])}" if places else NAMES_REMEDY
            if class_names is None and task in FLAT:
                known = "outcomes are 0/1, true/false or yes/no; else give --class-names NEGATIVE,POSITIVE"
            raise InputError(f"{name} must be class numbers or names, got {word[:40]!r} in row {row}: {known}")
        numbers[row] = place
    return numbers.reshape(array.shape)


def _places(task: str, class_names: Sequence[str] | None) -> dict[str, int]:
    if class_names is not None and task != "multilabel":
        return {str(word).strip(): place for place, word in enumerate(class_names)}
    if task == "multiclass":
        return {}
    no = ("false", "no", "0", "0.0", "wrong", "incorrect", "negative", "n", "f")
    yes = ("true", "yes", "1", "1.0", "right", "correct", "positive", "y", "t")
    return {**dict.fromkeys(no, 0), **dict.fromkeys(yes, 1)}


def refuse_one_hot(labels: np.ndarray | None, scores: np.ndarray, kind: str, name: str, against: str) -> None:
    """Raise where a matrix of labels may be one-hot classes: then a task of several labels must be said.

    scores : some rows of the scores. Classes have one 1 per row, and probabilities that sum to one; many labels that
    happen to look so in every one of 30 rows are rare enough to be asked for.
    """
    if labels is None or labels.ndim != 2 or labels.shape[1] < 2 or not (labels.sum(axis=1) == 1).all():
        return
    sums = np.abs(scores.sum(axis=1, dtype=np.float64) - 1) <= PROBABILITY_TOLERANCE
    if (kind == "probabilities" and sums.all()) or (kind == "logits" and len(labels) >= 30):
        raise InputError(
            f"{name} has one 1 in each of its {len(labels)} rows, beside {against} of {labels.shape[1]} columns: give "
            "class numbers, label_shares, or say --task multilabel"
        )


def check_task_values(task: str, block: np.ndarray, *, from_logits: bool, name: str, first_row: int = 0) -> None:
    """Raise unless the values are logits or probabilities of the task."""
    if task == "multiclass":
        check_values(block, from_logits=from_logits, name=name, first_row=first_row)
    else:
        check_score_values(block, from_logits=from_logits, name=name, first_row=first_row)


def to_logits(probabilities: np.ndarray, task: str) -> np.ndarray:
    """Logits of probabilities: logarithms of a row over classes, log odds of single scores."""
    return log_stored(probabilities) if task == "multiclass" else log_odds(probabilities)


def to_probabilities(logits: np.ndarray, task: str) -> np.ndarray:
    """Probabilities of logits: softmax of a row over classes, sigmoid of single scores."""
    return softmax(logits) if task == "multiclass" else sigmoid(logits)
