"""From the named arrays of a file to `Predictions`: one set of names and one wording for all formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from calibrant.core.arrays import check_matrix_shape, check_real, check_some_rows
from calibrant.core.errors import InputError
from calibrant.core.schema import check_kind, resolve_task
from calibrant.data import fields as known
from calibrant.data.fields import BrokenField, Field, Wanted, score_kind, split_names
from calibrant.data.gather import Columns, fill, refuse_one_hot
from calibrant.data.guards import FEW_ROWS, refuse_probability_rows
from calibrant.data.limits import MAX_TEXT_BYTES, check_counts
from calibrant.data.predictions import Predictions
from calibrant.data.source import DifferenceSource, Source, TakenSource

MANY_ROWS = 20_000_000
"""Rows of one score from which on labels wait in the file until they are needed."""


def assemble(fields: Mapping[str, Field], name: str, split: str = "", wanted: Wanted | None = None) -> Predictions:
    """Check the arrays that belong together and join them; `wanted` names them, or replaces those of the file."""
    wanted = wanted or Wanted()
    key, kind, task = _score_key(fields, name, split, wanted)
    matrix = fields[key]
    called = f"{name}: {key}"
    columns = _Columns(fields, name, split, wanted, matrix.shape[:1], key)
    if task is None and len(matrix.shape) == 1 and _only_correct(fields, split, wanted):
        task = "pairs"
    if len(matrix.shape) == 1 and matrix.shape[0] >= MANY_ROWS:
        waiting = columns.waiting_labels(pairs=task == "pairs")
        if waiting is not None:
            found = columns.join(matrix.source(name), kind, resolve_task(wanted.task or task, matrix.shape, None), None)
            found.label_field = waiting
            return found
    labels = columns.labels(pairs=task == "pairs")
    if len(matrix.shape) > 2:
        return _dense(matrix, kind, task, columns, labels)
    label_shape = None if labels is None else np.shape(labels)
    task = resolve_task(wanted.task or task, matrix.shape, label_shape, called)
    if task == "multiclass" or (task == "binary" and matrix.shape[1:] == (2,)):
        check_matrix_shape(matrix.shape, matrix.dtype, called)
    else:
        check_real(matrix.dtype, called)
        check_some_rows(matrix.shape, called)
    check_counts(matrix.shape, called)
    source = matrix.source(name)
    if task == "multilabel" and wanted.task is None and np.shape(labels) == matrix.shape:
        head = next(iter(source.blocks(0, min(64, matrix.shape[0]), 64)))
        refuse_one_hot(np.asarray(labels), head, kind, f"{name}: {columns.label_word}", key)
    if wanted.guard and kind == "logits" and task in ("multiclass", "binary"):
        refuse_probability_rows(source, called, FEW_ROWS if wanted.part else 2)
    if task == "binary" and matrix.shape[1:] == (2,):
        source, kind = DifferenceSource(source, kind), "logits"
    return columns.join(source, kind, task, labels)


def _only_correct(fields: Mapping[str, Field], split: str, wanted: Wanted) -> bool:
    """Does the file say which rows are correct, and nothing else that could be labels?"""
    key = f"{split}_{known.CORRECT}" if split else known.CORRECT
    return wanted.labels in (None, known.CORRECT) and key in fields and label_key(fields, split) is None


def _dense(matrix: Field, kind: str, task: str | None, columns: _Columns, labels: Any) -> Predictions:
    """Scores of more than two dimensions: read as a whole, and brought into rows."""
    found = Predictions(
        matrix.read(),
        labels,
        kind=kind,
        task=columns.wanted.task or task,
        weights=columns.weights(),
        groups=columns.groups(),
        clusters=columns.clusters(),
        class_names=columns.class_names(),
        ignore_index=columns.wanted.ignore_index,
        name=columns.name,
    )
    found.field = columns.key
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
    remedy = f"pick a part with {name.partition('#')[0]}#{splits[0]}" if splits else "give the n×K matrix that name"
    remedy += f" (parts: {', '.join(splits)})" if len(splits) > 1 else ""
    remedy += "" if splits else ", or name it with --scores"
    return InputError(f"{name} has no {wanted}, only {listing(fields)}: {remedy}")


class _Columns:
    """Everything of a file that has an entry per row, beside the scores."""

    def __init__(  # noqa: PLR0917
        self, fields: Mapping[str, Field], name: str, split: str, wanted: Wanted, rows: tuple[int, ...], key: str
    ) -> None:
        self.fields, self.name, self.split, self.wanted, self.key = fields, name, split, wanted, key
        self.prefix = f"{split}_" if split else ""
        self.n_rows = rows[0] if rows else 0
        self.label_word, self.weight_word = "labels", "weights"
        self.used = {key}

    def labels(self, *, pairs: bool) -> Any:
        """The labels, read; None where there are none and none are needed."""
        wanted = self.wanted.labels
        if wanted is not None and not isinstance(wanted, str):
            return wanted
        if isinstance(wanted, str):
            self.label_word = self._find(wanted, "labels")
        else:
            found = label_key(self.fields, self.split, pairs=pairs)
            if found is None:
                if self.wanted.require_labels and self.prefix + known.LABEL_SHARES not in self.fields:
                    raise InputError(
                        f"{self.name} has no {self.prefix}{known.CORRECT if pairs else 'labels'}, only "
                        f"{listing(self.fields)}: add them, or give labels= (--labels)"
                    )
                return None
            self.label_word = found
        return self._read(self.label_word, texts=True)

    def waiting_labels(self, *, pairs: bool) -> Field | None:
        """The outcomes of very many rows, not yet read; None where they must be looked at first."""
        wanted = self.wanted
        given = wanted.labels if isinstance(wanted.labels, str) else None
        if wanted.ignore_index is not None or (wanted.labels is not None and given is None):
            return None
        key = label_key(self.fields, self.split, pairs=pairs) if given is None else self._find(given, "labels")
        field = None if key is None else self.fields[key]
        if key is None or field is None or field.dtype.kind not in "fiub" or field.shape != (self.n_rows,):
            return None
        self.used.add(key)
        self.label_word = key
        return field

    def weights(self) -> Any:
        """The weights, read, or None."""
        wanted = self.wanted.weights
        if wanted is not None and not isinstance(wanted, str):
            return wanted
        key = self._find(wanted, "weights") if isinstance(wanted, str) else self._first(known.WEIGHTS)
        self.weight_word = key or "weights"
        return None if key is None else self._read(key).reshape(self.n_rows)

    def groups(self) -> dict[str, np.ndarray]:
        """The columns that `by` names, or the one called group."""
        keys = {word: self._find(word, "by") for word in self.wanted.by}
        own = self._first(known.GROUPS)
        if own is not None and own not in keys.values():
            keys["group"] = own
        return {word: self._read(key, texts=True) for word, key in keys.items()}

    def clusters(self) -> Any:
        """What is independent of each other, or None."""
        wanted = self.wanted.cluster
        if wanted is not None and not isinstance(wanted, str):
            return np.asarray(wanted)
        key = self._find(wanted, "cluster") if isinstance(wanted, str) else self._first(known.CLUSTERS)
        return None if key is None else self._read(key, texts=True)

    def class_names(self, expected: int | None = None) -> list[str] | None:
        """Names of the classes."""
        names = None if self.wanted.class_names is None else list(self.wanted.class_names)
        if names is None:
            key = _either(self.fields, self.prefix, known.CLASS_NAMES)
            if key is None:
                return None
            self.used.add(key)
            names = read_names(self.fields[key], f"{self.name}: {key}")
        if expected is not None and len(names) != expected:
            raise InputError(
                f"{self.name}: {known.CLASS_NAMES} has {len(names)} names, but {self.key} has {expected} columns"
            )
        return names

    def join(self, source: Source, kind: str, task: str, labels: Any) -> Predictions:
        """The predictions, with what is left in the file as extras."""
        names = self.class_names(2 if task in ("binary", "pairs") else source.shape[1])
        shares_key = self.prefix + known.LABEL_SHARES
        shares = self._read(shares_key) if labels is None and shares_key in self.fields else None
        columns = Columns(labels, shares, self.weights(), self.groups(), self.clusters())
        if self.wanted.ignore_index is not None and labels is not None:
            if len(labels) != self.n_rows:
                raise InputError(f"{self.name}: {self.label_word} has {len(labels)} rows, but {self.key} {self.n_rows}")
            kept = columns.rows_without(self.wanted.ignore_index, f"{self.name}: {self.label_word}")
            source, columns = TakenSource(source, kept), columns.take(kept)
        found = Predictions.__new__(Predictions)
        words = self.name, self.key, self.label_word, self.weight_word
        fill(found, source, kind, task, columns, names, *words)
        found.extras = {} if self.wanted.ignore_index is not None else self._extras()
        return found

    def _extras(self) -> dict[str, Field]:
        others = [f"{split}_" for split in split_names(self.fields) if split and split != self.split]
        found = {}
        for key, field in self.fields.items():
            mine = key.startswith(self.prefix) and not any(key.startswith(other) for other in others)
            if isinstance(field, BrokenField) or key in self.used or not mine:
                continue
            if field.shape[:1] == (self.n_rows,):
                found[key[len(self.prefix) :]] = field
        return found

    def _first(self, words: tuple[str, ...]) -> str | None:
        return next((self.prefix + word for word in words if self.prefix + word in self.fields), None)

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


def label_key(fields: Mapping[str, Field], split: str, *, pairs: bool = False) -> str | None:
    """`val_labels` for `val`; for `shift_noise_3` also `shift_noise_labels` and `shift_labels`."""
    words = split.split("_") if split else []
    prefix = f"{split}_" if split else ""
    if pairs:
        return prefix + known.CORRECT if prefix + known.CORRECT in fields else None
    for length in range(len(words), -1, -1):
        if length == 0 and words:
            break  # labels without the prefix belong to the arrays without it
        keys = ["_".join([*words[:length], label]) for label in known.LABELS]
        there = [key for key in keys if key in fields]
        if len(there) > 1:
            raise InputError(f"{' and '.join(there)} may both be the labels: choose one with labels= or --labels")
        if there:
            return there[0]
    others = [prefix + word for word in known.OTHER_LABELS if prefix + word in fields]
    if len(others) > 1:
        raise InputError(f"{' and '.join(others)} may both be the labels: choose one with labels= or --labels")
    return others[0] if others else None


def read_names(field: Field, called: str) -> list[str]:
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
