"""The named arrays of a file, not yet read.

Every format is read by a function `fields(path, wanted)` that returns its arrays as `Field`s. Which of them are the
scores, the labels and the weights is decided in `calibrant.data.assemble`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from calibrant.core.errors import InputError
from calibrant.data.source import ArraySource, Source

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


@dataclass(frozen=True)
class Header:
    """What a file says about an array before its numbers."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes the numbers take; whole-number arithmetic, since a header may claim anything."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def order(self) -> Literal["C", "F"]:
        """Row-major or column-major."""
        return "F" if self.fortran else "C"


class Field(ABC):
    """One named array of a file, not yet read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @abstractmethod
    def read(self) -> np.ndarray:
        """The whole array."""

    @abstractmethod
    def source(self, name: str) -> Source:
        """The rows of a matrix, to be read in blocks."""

    def beside(self, others: Sequence[Field], key: str) -> Field:
        """This column and others side by side, as one matrix that is called `key`."""
        return ArrayField(np.column_stack([one.read() for one in (self, *others)]))

    @property
    def nbytes(self) -> int:
        """Bytes the array will take."""
        return math.prod(self.shape) * self.dtype.itemsize


class ArrayField(Field):
    """An array that is already in memory."""

    def __init__(self, array: np.ndarray) -> None:
        self._array, self.shape, self.dtype = array, array.shape, array.dtype

    def read(self) -> np.ndarray:
        """The array."""
        return self._array

    def source(self, name: str) -> Source:
        """Its rows."""
        return ArraySource(self._array, name)


class BrokenField(Field):
    """An array that cannot be read; its error comes up when the array is needed, and not before.

    A file may hold more than predictions: an array that is not asked for need not be readable.
    """

    def __init__(self, error: InputError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype"):
            raise self._error
        raise AttributeError(name)

    def read(self) -> np.ndarray:
        """Raise."""
        raise self._error

    def source(self, name: str) -> Source:
        """Raise."""
        raise self._error


class Fields(dict[str, Field]):
    """Fields of a file by name, with what the reader had to decide."""

    notes: tuple[str, ...] = ()
    members: Mapping[str, list[str]] = MappingProxyType({})
    """Columns of the file behind a matrix, where it has several."""


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
