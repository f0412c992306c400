"""`open_predictions`: an address, a frame or arrays in, `Predictions` out."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core.arrays import look_like_probabilities
from calibrant.core.errors import InputError
from calibrant.core.schema import check_kind, check_task, resolve_task
from calibrant.data.arrays import array_field
from calibrant.data.assemble import assemble
from calibrant.data.columns import LABEL_IDS, PREDICTIONS, Wanted, arrange, split_names
from calibrant.data.files import (
    HOLDS_PARTS,
    display_name,
    is_pattern,
    locate,
    matching,
    naming,
    open_file,
    part_paths,
    reader_of,
    suffix_of,
)
from calibrant.data.parts import open_all, without_bad_parts
from calibrant.data.predictions import Predictions
from calibrant.data.remote import expand, open_remote
from calibrant.data.source import DifferenceSource
from calibrant.data.tables import column_fields, frame_columns


def open_predictions(
    path: Any,
    *,
    kind: str | None = None,
    task: str | None = None,
    scores: str | None = None,
    labels: Any = None,
    weights: Any = None,
    by: Any = None,
    cluster: Any = None,
    class_names: Sequence[str] | None = None,
    ignore_index: int | None = None,
    require_labels: bool = True,
    skip_bad_parts: bool = False,
    engine: Any = "local",
    guard: bool = True,
) -> Predictions:
    """Open a file or folder of predictions, or an embedded data set, without reading its values yet.

    Parameters
    ----------
    path : str, path or object
        `.npz`, `.npy` (a pair), `.parquet`, `.safetensors`, `.csv`, `.csv.gz`, `.jsonl`, `.pt`, a pickle of arrays, a
        folder of such files, a pattern (`parts/*.npz`), the same behind any fsspec address
        (`s3://bucket/parts/*.parquet`), or an embedded name (`cifar100-resnet18#test`). `file#val` picks the arrays
        `val_logits`, `val_labels`. Objects in memory work too: a frame (pandas, polars, pyarrow), a dictionary of
        arrays, an object with `.predictions` and `.label_ids`, or a pair `(scores, labels)`.
    kind : {"logits", "probabilities"}, optional
        What the values are, where the file does not say or holds both.
    task : {"multiclass", "binary", "multilabel", "pairs"}, optional
        Where names and shapes do not tell.
    scores : str, optional
        The array or column of the scores, or the columns: `"risk"`, `"a,b,c"`, `"prob_*"`.
    labels, weights, cluster : str, path of an `.npy` file, or array, optional
        The array or column that holds them, or arrays used in place of those in the file.
    by : str or sequence of str, optional
        Arrays or columns that become `groups`.
    class_names : sequence of str, optional
        Used in place of those in the file.
    ignore_index : int, optional
        Rows with this label are left out (−100 in Hugging Face and torch).
    require_labels : bool
        False accepts a file without labels.
    skip_bad_parts : bool
        Of a folder or pattern, leave out parts that cannot be read and list them in `Predictions.skipped`; every value
        is read once to find them.
    engine : "local", "dask", the address of a scheduler, or an engine
        Where `skip_bad_parts` reads them.
    guard : bool
        False accepts logits that look like probabilities.

    Returns
    -------
    Predictions

    Examples
    --------
    >>> test = open_predictions("cifar10-resnet18#test")
    >>> test.n, test.n_classes, test.kind
    (10000, 10, 'logits')
    >>> open_predictions({"confidence": [0.9, 0.6], "correct": [True, False]}).task
    'pairs'
    """
    wanted = describe(
        kind=kind,
        task=task,
        scores=scores,
        labels=labels,
        weights=weights,
        by=by,
        cluster=cluster,
        class_names=class_names,
        ignore_index=ignore_index,
        require_labels=require_labels,
        guard=guard,
    )
    if not isinstance(path, (str, os.PathLike)):
        return from_object(path, wanted)
    text, one = os.fspath(path).removeprefix("file://"), replace(wanted, part=True)
    if _is_remote(text):
        addresses, split = expand(text)
        if addresses == [text.rpartition("#")[0] or text]:
            return open_remote(addresses[0], split, wanted)
        joined = open_all(addresses, text, lambda part: open_remote(part, split, one), skip_bad_parts=skip_bad_parts)
    else:
        file, split = locate(text)
        if not file.is_dir() and not is_pattern(str(file)):
            return open_file(file, split, wanted)
        if any(given is not None and not isinstance(given, str) for given in (wanted.labels, wanted.weights)):
            what = "is a folder" if file.is_dir() else "stands for several files"
            raise InputError(f"{file} {what}: labels and weights must be in its files")
        found = part_paths(file) if file.is_dir() else matching(str(file))
        joined = open_all(found, str(file), lambda part: open_file(part, split, one), skip_bad_parts=skip_bad_parts)
    return without_bad_parts(joined, engine) if skip_bad_parts else joined


def describe(*, by: Any = None, class_names: Sequence[str] | None = None, **options: Any) -> Wanted:
    """What the caller says about a file, checked; paths of `.npy` files are read."""
    columns = [by] if isinstance(by, str) else list(by or ())
    names = None if class_names is None else [str(name) for name in class_names]
    groups = tuple(word.strip() for name in columns for word in str(name).split(",") if word.strip())
    wanted = Wanted(by=groups, class_names=names, **options)
    check_kind(wanted.kind)
    check_task(wanted.task)
    return replace(wanted, **{word: _vector(getattr(wanted, word), word) for word in ("labels", "weights", "cluster")})


def _is_remote(text: str) -> bool:
    return re.match(r"[a-z][a-z0-9+.-]+(::|://)", text) is not None


def open_parts(path: str | os.PathLike[str], **options: Any) -> dict[str, Predictions]:
    """The one part that `path` names, under "", or every part of a file that has only named ones.

    >>> sorted(open_parts("cifar10-resnet18"))
    ['test', 'val']
    """
    if _is_remote(os.fspath(path)):
        return {"": open_predictions(path, **options)}
    file, split = locate(path)
    arrays = any(options.get(word) is not None for word in ("labels", "weights"))
    one_part = split or arrays or file.is_dir() or is_pattern(str(file))
    if one_part or suffix_of(file) not in HOLDS_PARTS:
        return {"": open_predictions(path, **options)}
    wanted = describe(**options)
    with naming(file):
        fields = reader_of(file)(file, wanted)
        splits = split_names(fields)
        if "" in splits or not splits:
            splits = [""]
        return {
            split: assemble(fields, display_name(file) + (f"#{split}" if split else ""), split, wanted)
            for split in splits
        }


def _vector(given: Any, what: str) -> Any:
    """An array, the name of one, or the content of an `.npy` file, which wins over a name."""
    if not isinstance(given, (str, os.PathLike)):
        return given
    file = Path(given)
    if file.suffix != ".npy":
        if isinstance(given, os.PathLike):
            raise InputError(f"{what}={str(file)!r} must be an array, the name of one, or the path of an .npy file")
        return given
    if not file.is_file():
        raise InputError(f"{file} does not exist: there is no such file for the {what}")
    return array_field(file).read()


def from_object(given: Any, wanted: Wanted, name: str = "") -> Predictions:
    """Predictions from any object that holds scores and labels."""
    if isinstance(given, Predictions):
        return _retold(given, wanted)
    if hasattr(given, PREDICTIONS) and hasattr(given, LABEL_IDS):
        given = {PREDICTIONS: _first(given.predictions), LABEL_IDS: _first(given.label_ids)}
    if isinstance(given, (tuple, list)) and len(given) in (2, 3):
        return _from_pair(given, wanted, name)
    columns = dict(given) if isinstance(given, Mapping) else frame_columns(given)
    if columns is None:
        raise InputError(
            f"{name or 'predictions'} must be Predictions, a path, a frame, a dictionary of arrays, an object with "
            f".predictions and .label_ids, or a pair (scores, labels), got {type(given).__name__}"
        )
    found = column_fields({str(word): column for word, column in columns.items()})
    return assemble(arrange(found, list(found), wanted, name or "the table"), name, "", wanted)


def as_predictions(given: Any, name: str = "", **options: Any) -> Predictions:
    """Predictions from themselves, a path or any object that holds scores and labels; options as `open_predictions`."""
    if isinstance(given, (str, os.PathLike)):
        return open_predictions(given, **options)
    return from_object(given, describe(**options), name)


def _from_pair(given: Any, wanted: Wanted, name: str) -> Predictions:
    """(scores, labels) or (scores, labels, weights); bare scores are logits."""
    scores, labels, *rest = given
    for option in ("scores", "labels", "weights", "cluster"):
        if isinstance(getattr(wanted, option), str):
            raise InputError(f"{option}={getattr(wanted, option)!r} names a column, but a pair of arrays has no names")
    if wanted.by:
        raise InputError(f"by={wanted.by[0]!r} names a column, but a pair of arrays has no names: give Predictions")
    made = Predictions(
        scores,
        labels,
        kind=wanted.kind,
        task=wanted.task,
        weights=rest[0] if rest else wanted.weights,
        clusters=wanted.cluster,
        class_names=wanted.class_names,
        ignore_index=wanted.ignore_index,
        name=name,
    )
    made.refuse_probabilities()
    if wanted.kind is None and made.kind == "logits" and made.flat and look_like_probabilities(made.values):
        raise InputError(
            f"{name or 'scores'}: all {made.n} lie in [0, 1], as probabilities do and logits may: say "
            "kind='probabilities' or kind='logits'"
        )
    return made


def _retold(given: Predictions, wanted: Wanted) -> Predictions:
    """Predictions with what the caller adds: a task for two columns, groups and clusters from other columns."""
    made = given
    if wanted.kind not in (None, given.kind):
        raise InputError(f"kind={wanted.kind!r}, but {given.name or 'the predictions'} hold {given.kind}")
    if wanted.task not in (None, given.task):
        resolve_task(wanted.task, given.source.shape, None, given.name or "the predictions")
        if (given.task, wanted.task) != ("multiclass", "binary"):
            raise InputError(f"{given.name or 'the predictions'} hold a {given.task} task, not {wanted.task}")
        made = given.with_source(DifferenceSource(given.source, given.kind), "logits")
        made.task = "binary"
    columns = {word: given.column(word) for word in wanted.by}
    clusters = wanted.cluster
    if isinstance(clusters, str):
        clusters = given.column(clusters)
    if (columns and set(columns) != set(given.groups)) or clusters is not None:
        made = made.with_source(made.source, checked=made._checked)
        made.groups = {**given.groups, **columns}
        made.clusters = given.clusters if clusters is None else np.asarray(clusters)
        if made.clusters is not None and len(made.clusters) != made.n:
            raise InputError(f"clusters has {len(made.clusters)} rows, but the predictions have {made.n}")
    return made


def _first(value: Any) -> Any:
    """The first of several outputs: a trainer may return hidden states behind the logits."""
    return value[0] if isinstance(value, tuple) else value
