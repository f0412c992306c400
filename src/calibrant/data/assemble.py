"""From the named arrays of a file or frame to `Predictions`: one set of names and one wording for all formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from calibrant.core.arrays import as_array, check_real
from calibrant.core.errors import InputError
from calibrant.core.schema import FLAT, check_kind, resolve_task
from calibrant.data import columns as known
from calibrant.data.columns import Wanted, score_kind, split_names
from calibrant.data.predictions import Predictions, Words, join
from calibrant.data.source import MAX_TEXT_BYTES, BrokenField, Field, Fields

FEW_ROWS = 10
"""One file of many is not judged by fewer rows: a few may look like probabilities by chance."""


def assemble(fields: Mapping[str, Field], name: str, split: str = "", wanted: Wanted | None = None) -> Predictions:
    """Check the arrays that belong together and join them; `wanted` names them, or replaces those of the file."""
    wanted = wanted or Wanted()
    key, kind, task = _score_key(fields, name, split, wanted)
    scores, roles = fields[key], _Roles(fields, name, split, wanted, key)
    if task is None and len(scores.shape) == 1 and roles.only_correct():
        task = "pairs"
    labels = roles.labels(pairs=task == "pairs")
    task = wanted.task or task
    label_shape = None if labels is None else np.shape(labels)
    one = len(scores.shape) > 2 or resolve_task(task, scores.shape, label_shape, f"{name}: {key}") in FLAT
    columns = {"labels": labels, "label_shares": roles.label_shares() if labels is None else None}
    columns |= {"weights": roles.weights(), "clusters": roles.clusters()}
    found = join(
        scores,
        columns,
        roles.groups(),
        kind,
        task,
        Words(name, key, roles.label_word, roles.weight_word),
        class_names=roles.class_names(None if one else scores.shape[1]),
        ignore_index=wanted.ignore_index,
        guard=(FEW_ROWS if wanted.part else 2) if wanted.guard else None,
    )
    found.extras = {} if wanted.ignore_index is not None else roles.extras()
    if isinstance(fields, Fields):
        found.notes = fields.notes
        found.score_columns = tuple(fields.members.get(key, (key,)))
    return found


def _score_key(fields: Mapping[str, Field], name: str, split: str, wanted: Wanted) -> tuple[str, str, str | None]:
    """The array of the scores, its kind, and the task as far as names tell it."""
    check_kind(wanted.kind)
    prefix = f"{split}_" if split else ""
    if wanted.scores is not None:
        return _named_scores(fields, name, prefix, wanted)
    present = [word for word in known.SCORES if prefix + word in fields]
    kinds = sorted({known.SCORES[word] for word in present})
    if wanted.kind is None and len(kinds) == 2:
        raise InputError(f"{name} has both {prefix}logits and {prefix}probabilities: choose one with kind= or --kind")
    chosen = wanted.kind or (kinds[0] if kinds else "")
    words = [word for word in present if known.SCORES[word] == chosen]
    if words:
        exact = [word for word in words if word == chosen]
        if not exact and len(words) > 1:
            raise InputError(f"{name} has {', '.join(words)}: choose one with scores= or --scores")
        return prefix + (exact or words)[0], chosen, None
    paired = prefix + known.CONFIDENCE in fields and prefix + known.CORRECT in fields
    if paired and wanted.kind in (None, "probabilities"):
        return prefix + known.CONFIDENCE, "probabilities", "pairs"
    if prefix + known.PREDICTIONS in fields and prefix + known.LABEL_IDS in fields:
        return prefix + known.PREDICTIONS, wanted.kind or "logits", None
    if split in fields:  # a matrix under a bare name, such as shift_noise_3: the caller must say what it holds
        if wanted.kind is None:
            raise InputError(f'{name}: {split} does not say what it holds: give kind="logits" or kind="probabilities"')
        return split, wanted.kind, None
    raise _no_scores(fields, name, split, wanted.kind)


def _named_scores(fields: Mapping[str, Field], name: str, prefix: str, wanted: Wanted) -> tuple[str, str, str | None]:
    word = str(wanted.scores)
    key = _either(fields, prefix, word)
    if key is None:
        raise InputError(f"{name} has no {prefix}{word} for the scores, only {listing(fields)}")
    kind = wanted.kind or score_kind(word)
    if kind is None:
        raise InputError(f"{name}: {word} does not say what it holds: give --kind logits or --kind probabilities")
    pairs = word == known.CONFIDENCE and prefix + known.CORRECT in fields and wanted.labels in (None, known.CORRECT)
    return key, kind, "pairs" if pairs else None


def _no_scores(fields: Mapping[str, Field], name: str, split: str, kind: str | None) -> InputError:
    prefix = f"{split}_" if split else ""
    wanted = f"{prefix}{kind}" if kind else f"{prefix}logits or {prefix}probabilities"
    splits = [word for word in split_names(fields) if word and word != split]
    remedy = "give the n×K matrix that name, or name it with --scores"
    if splits:
        remedy = f"pick a part with {name.partition('#')[0]}#{splits[0]}"
        remedy += f" (parts: {', '.join(splits)})" if len(splits) > 1 else ""
    return InputError(f"{name} has no {wanted}, only {listing(fields)}: {remedy}")


class _Roles:
    """Everything of a file that has an entry per row, beside the scores, by its role."""

    def __init__(self, fields: Mapping[str, Field], name: str, split: str, wanted: Wanted, key: str) -> None:
        self.fields, self.name, self.split, self.wanted, self.key = fields, name, split, wanted, key
        self.prefix = f"{split}_" if split else ""
        self.n_rows = fields[key].shape[0] if fields[key].shape else 0
        self.label_word, self.weight_word = "labels", "weights"
        self.used = {key}

    def only_correct(self) -> bool:
        """Does the file say which rows are correct, and nothing else that could be labels?"""
        there = self.prefix + known.CORRECT in self.fields
        return there and self.wanted.labels in (None, known.CORRECT) and _label_key(self.fields, self.split) is None

    def labels(self, *, pairs: bool) -> Any:
        """The labels, read; None where there are none and none are needed."""
        given = self.wanted.labels
        if given is not None and not isinstance(given, str):
            return as_array(given, f"{self.name}: labels")
        key = _label_key(self.fields, self.split, pairs=pairs) if given is None else self._find(given, "labels")
        if key is None:
            if self.wanted.require_labels and self.prefix + known.LABEL_SHARES not in self.fields:
                raise InputError(
                    f"{self.name} has no {self.prefix}{known.CORRECT if pairs else 'labels'}, only "
                    f"{listing(self.fields)}: add them, or give labels= (--labels)"
                )
            return None
        self.label_word = key
        return self._read(key, texts=True)

    def label_shares(self) -> Any:
        """The shares of annotators, or None."""
        key = self.prefix + known.LABEL_SHARES
        return self._read(key) if key in self.fields else None

    def weights(self) -> Any:
        """The weights, read, or None."""
        found = self._column(self.wanted.weights, "weights", known.WEIGHTS)
        self.weight_word = found if isinstance(found, str) else "weights"
        return self._read(found).reshape(self.n_rows) if isinstance(found, str) else found

    def clusters(self) -> Any:
        """What is independent of each other, or None."""
        found = self._column(self.wanted.cluster, "cluster", known.CLUSTERS)
        if isinstance(found, str):
            return self._read(found, texts=True)
        return None if found is None else np.asarray(found)

    def groups(self) -> dict[str, np.ndarray]:
        """The columns that `by` names, or the one called group."""
        keys = {word: self._find(word, "by") for word in self.wanted.by}
        own = self._column(None, "by", known.GROUPS)
        if own is not None and own not in keys.values():
            keys["group"] = own
        return {word: self._read(key, texts=True) for word, key in keys.items()}

    def class_names(self, expected: int | None) -> list[str] | None:
        """Names of the classes."""
        names = None if self.wanted.class_names is None else list(self.wanted.class_names)
        if names is None:
            key = _either(self.fields, self.prefix, known.CLASS_NAMES)
            if key is None:
                return None
            self.used.add(key)
            names = _read_names(self.fields[key], f"{self.name}: {key}")
        if expected is not None and len(names) != expected:
            raise InputError(
                f"{self.name}: {known.CLASS_NAMES} has {len(names)} names, but {self.key} has {expected} columns"
            )
        return names

    def extras(self) -> dict[str, Field]:
        """What else has an entry per row."""
        others = [f"{split}_" for split in split_names(self.fields) if split and split != self.split]
        found = {}
        for key, field in self.fields.items():
            mine = key.startswith(self.prefix) and not any(key.startswith(other) for other in others)
            if not mine or key in self.used or isinstance(field, BrokenField):
                continue
            if field.shape[:1] == (self.n_rows,):
                found[key[len(self.prefix) :]] = field
        return found

    def _column(self, given: Any, option: str, words: tuple[str, ...]) -> Any:
        """An array as given, or the key of the column that the caller or one of the usual words names."""
        if isinstance(given, str):
            return self._find(given, option)
        own = next((self.prefix + word for word in words if self.prefix + word in self.fields), None)
        return own if given is None else given

    def _find(self, word: str, option: str) -> str:
        key = _either(self.fields, self.prefix, word)
        if key is None:
            raise InputError(f"{self.name} has no {self.prefix}{word} for --{option}, only {listing(self.fields)}")
        return key

    def _read(self, key: str, *, texts: bool = False) -> np.ndarray:
        """A column, read only after its length is known to fit."""
        field, called = self.fields[key], f"{self.name}: {key}"
        if not texts:
            check_real(field.dtype, called)
        if field.shape[:1] != (self.n_rows,):
            rows = field.shape[0] if field.shape else 1
            raise InputError(f"{called} has {rows} rows, but {self.key} has {self.n_rows}")
        self.used.add(key)
        return field.read()


def _either(fields: Mapping[str, Field], prefix: str, word: str) -> str | None:
    """The name with the prefix of the part, or without it."""
    return next((key for key in (prefix + word, word) if key in fields), None)


def _label_key(fields: Mapping[str, Field], split: str, *, pairs: bool = False) -> str | None:
    """`val_labels` for `val`; for `shift_noise_3` also `shift_noise_labels` and `shift_labels`."""
    prefix = f"{split}_" if split else ""
    if pairs:
        return prefix + known.CORRECT if prefix + known.CORRECT in fields else None
    words = split.split("_") if split else []
    # labels without the prefix belong to the arrays without it
    families = ["_".join([*words[:length], ""]) for length in range(len(words), 0, -1)] or [""]
    choices = [[family + word for word in known.LABELS] for family in families]
    for keys in (*choices, [prefix + word for word in known.OTHER_LABELS]):
        there = [key for key in keys if key in fields]
        if len(there) > 1:
            raise InputError(f"{' and '.join(there)} may both be the labels: choose one with labels= or --labels")
        if there:
            return there[0]
    return None


def _read_names(field: Field, called: str) -> list[str]:
    """Class names from an array of texts."""
    if field.dtype.kind not in "US" or len(field.shape) != 1:
        raise InputError(f"{called} must be a list of texts, got dtype {field.dtype} of shape {field.shape}")
    if field.nbytes > MAX_TEXT_BYTES:
        raise InputError(f"{called} takes {field.nbytes} bytes, but at most {MAX_TEXT_BYTES} are read")
    try:
        return [item.decode() if isinstance(item, bytes) else str(item) for item in field.read().tolist()]
    except UnicodeDecodeError as error:
        raise InputError(f"{called} is not UTF-8 text: {error}") from error


def listing(fields: Mapping[str, Any], most: int = 12) -> str:
    """The names of the arrays, for error messages."""
    keys = sorted(fields)
    text = ", ".join(keys[:most]) or "nothing"
    return text if len(keys) <= most else f"{text} and {len(keys) - most} more"
