"""`open_predictions`: an address, a frame or arrays in, `Predictions` out.

Many files, the parts of a folder, of a pattern such as `parts/*.npz`, or of a bucket, are one set of predictions.
"""

import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core import progress
from calibrant.core.arrays import Array, as_array, look_like_probabilities
from calibrant.core.errors import InputError, NoRowsError
from calibrant.core.schema import check_kind, check_task, identifiers, resolve_task
from calibrant.data.arrays import array_field
from calibrant.data.chunks import part_error
from calibrant.data.files import HOLDS_PARTS, READERS, display_name, find_files, naming, open_file, reader_of, suffix_of
from calibrant.data.guards import IDS
from calibrant.data.predictions import PER_ROW, Predictions
from calibrant.data.source import (
    LABEL_IDS,
    PREDICTIONS,
    DifferenceSource,
    Field,
    Fields,
    LabelFile,
    PartsSource,
    Wanted,
    split_names,
)
from calibrant.data.suggestion import assembled
from calibrant.data.tables import column_fields, frame_columns
from calibrant.engines.engine import opened

FEW_ROWS = 10
"""One file of many is not judged by fewer rows: a few may look like probabilities by chance; fits look at all parts."""


def open_predictions(
    path: Any,
    *,
    kind: str | None = None,
    task: str | None = None,
    scores: str | Sequence[str] | None = None,
    labels: Any = None,
    weights: Any = None,
    by: Any = None,
    cluster: Any = None,
    class_names: Sequence[str] | Mapping[Any, str] | None = None,
    ignore_index: int | None = None,
    require_labels: bool | None = True,
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
        (`s3://bucket/parts/*.parquet`), or an embedded name (`cifar100-resnet18#test`; its rows are sorted by
        class). `file#val` picks the arrays `val_logits`, `val_labels`. Objects in memory work too: a frame (pandas,
        polars, pyarrow), a dictionary of arrays, an object with `.predictions` and `.label_ids`, or a pair
        `(scores, labels)`.
    kind : {"logits", "probabilities", "percent"}, optional
        What the values are, where the file does not say or holds both; percent are probabilities from 0 to 100.
    task : {"multiclass", "binary", "multilabel", "pairs"}, optional
        Where names and shapes do not tell.
    scores : str or sequence of str, optional
        The array or column of the scores, or the columns: `"risk"`, `["a", "b", "c"]` or `"a,b,c"`, `"prob_*"`.
    labels, weights, cluster : str, path of an `.npy` file, or array, optional
        The array or column that holds them, or arrays used in place of those in the file. `labels` may also be another
        file: its rows are found by a column that identifies them in both files, or stand in the same order;
        `"solution.csv#species"` names its column.
    by : str or sequence of str, optional
        Arrays or columns that become `groups`.
    class_names : sequence of str, or mapping, optional
        Used in place of those in the file. A mapping says what labels stand for: `{1: "cat", 2: "dog"}`.
    ignore_index : int, optional
        Rows with this label are left out (−100 in Hugging Face and torch).
    require_labels : bool or None
        False accepts a file without labels; None does not read them.
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
    wanted = described(
        Wanted(kind, task, scores, labels, weights, by, cluster, class_names, require_labels, ignore_index, guard)
    )
    if not isinstance(path, (str, os.PathLike)):
        return from_object(path, wanted)
    addresses, split, folder = find_files(os.fspath(path).removeprefix("file://"))
    if not folder:
        return open_file(addresses[0], split, wanted)
    if any(not isinstance(given, str | None) for given in (wanted.labels, wanted.weights)):
        raise InputError(f"{folder} is a folder or pattern: labels and weights must be in its files")
    return _open_all(
        addresses, split, replace(wanted, guard=wanted.guard and FEW_ROWS), folder, engine if skip_bad_parts else None
    )


def _open_all(addresses: list[Any], split: str, wanted: Wanted, name: str, engine: Any) -> Predictions:
    """Open every part and join them in order; all must agree in kind, classes and in having labels and weights.

    A part that cannot be opened is an error that names it. Where an engine is given, it reads everything once; parts in
    which something cannot be read or is no logit or probability are left out and listed in `Predictions.skipped`. One
    of 0 rows adds nothing.
    """
    good: dict[int, Predictions] = {}
    skipped, empty = {}, 0
    for number, address in enumerate(addresses):
        try:
            part = open_file(address, split, wanted)
            good[number] = _alike(next(iter(good.values())), part) if good else part
        except NoRowsError:
            empty += 1
        except InputError as error:
            named = part_error(error, str(address), number, len(addresses))
            if engine is None:
                raise named from error
            skipped[number] = str(named)
        progress.step(f"opening {name}", number + 1, len(addresses))
    if not good and empty:
        raise NoRowsError(f"{name}: {empty} of {len(addresses)} parts have 0 rows, and no other can be read")
    if good and engine is not None:
        with opened(engine) as running:
            skipped |= running.run(partial(_trouble, n_parts=len(addresses)), list(good.items()), operator.or_)
    left = [part for number, part in good.items() if number not in skipped]
    return _joined(left, name, [skipped[number] for number in sorted(skipped)])


def _trouble(numbered: tuple[int, Predictions], *, n_parts: int) -> dict[int, str]:
    """What is wrong with the values of a part, by its number; nothing if all is well."""
    number, part = numbered
    try:
        for _ in part.blocks(max(1, 2**20 // part.source.shape[1]), check=True):
            pass
    except (InputError, OSError) as error:
        return {number: str(part_error(error, part.name, number, n_parts))}
    return {}


def _alike(first: Predictions, part: Predictions) -> Predictions:
    """A part with the columns of the first in order; an InputError where they differ in what else they hold."""
    part = part.aligned(first.schema, first.name)
    there = PER_ROW[1:]
    words = ("task", "kind", "having labels", "groups", *(f"having {word}" for word in there))
    facts = (
        (one.task, one.kind, one.has_labels, sorted(one.groups), *(getattr(one, word) is not None for word in there))
        for one in (first, part)
    )
    for word, ours, theirs in zip(words, *facts, strict=True):
        if ours != theirs:
            raise InputError(f"{first.name} and {part.name} differ in {word}: {str(ours)[:60]} and {str(theirs)[:60]}")
    return part


def _joined(parts: list[Predictions], name: str, skipped: list[str]) -> Predictions:
    """The rows of all parts, one after another."""
    if not parts:
        raise InputError(f"{name}: all {len(skipped)} parts are bad; the first: {skipped[0]}")
    columns = {word: [getattr(part, word) for part in parts] for word in PER_ROW if word != "clusters"}
    # identifiers may count the rows of one file only
    common = [word for word in parts[0].extras if word not in IDS and all(word in part.extras for part in parts)]
    return parts[0].like(
        whole=False,
        source=PartsSource([part.source for part in parts], name),
        **{word: None if there[0] is None else np.concatenate(there) for word, there in columns.items()},
        clusters=_clusters(parts),
        groups={word: _joined_identifiers([part.groups[word] for part in parts]) for word in parts[0].groups},
        extras={word: _PartsField([part.extras[word] for part in parts]) for word in common},
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        skipped=tuple(skipped),
        _checked=False,
    )


class _PartsField(Field):
    """A column that all parts have, read when it is asked for."""

    def __init__(self, columns: list[Field]) -> None:
        self.columns, self.dtype = columns, columns[0].dtype
        self.shape = (sum(one.shape[0] for one in columns), *columns[0].shape[1:])

    def read(self) -> Array:
        """The rows of all parts."""
        return _joined_identifiers([one.read() for one in self.columns])


def _joined_identifiers(columns: list[Array]) -> Array:
    """Groups or clusters of all parts; as exact text where numbers of one part would lose digits beside another's."""
    kinds = {column.dtype.kind for column in columns}
    if len(kinds) == 1 or (kinds <= set("fiub") and all(np.nanmax(np.abs(column)) < 2**53 for column in columns)):
        return np.concatenate(columns)
    return np.concatenate([np.array(names)[codes] for codes, names in map(identifiers, columns)])


def _clusters(parts: list[Predictions]) -> Array | None:
    """Clusters of all parts; numbers that only count the images of one file must not meet those of another."""
    columns = [part.clusters for part in parts if part.clusters is not None]
    if not all(part.local_clusters for part in parts):
        return _joined_identifiers(columns) if columns else None
    firsts = accumulate((int(clusters.max()) + 1 for clusters in columns), initial=0)
    return np.concatenate([clusters + first for clusters, first in zip(columns, firsts, strict=False)])


def described(said: Wanted) -> Wanted:
    """What the caller says about a file, checked; paths of `.npy` files are read."""
    check_kind(said.kind, percent=True)
    check_task(said.task)
    columns = [said.by] if isinstance(said.by, str) else said.by or ()
    names = said.class_names
    return replace(
        said,
        guard=2 if said.guard else 0,
        by=tuple(word.strip() for name in columns for word in str(name).split(",") if word.strip()),
        class_names=names if isinstance(names, Mapping | None) else [str(name) for name in names],
        **{word: _vector(getattr(said, word), word) for word in ("labels", "weights", "cluster")},
    )


def open_parts(path: str | os.PathLike[str], **options: Any) -> dict[str, Predictions]:
    """The one part that `path` names, under "", or every part of a file that has only named ones.

    >>> sorted(open_parts("cifar10-resnet18"))
    ['test', 'val']
    """
    (file, *_), split, folder = find_files(os.fspath(path).removeprefix("file://"))
    arrays = any(options.get(word) is not None for word in ("labels", "weights"))
    if split or folder or arrays or not isinstance(file, Path) or suffix_of(file) not in HOLDS_PARTS:
        return {"": open_predictions(path, **options)}
    wanted = described(Wanted(**options))
    with naming(file):
        read = reader_of(file)
        found = split_names(read(file, wanted))
        splits = found if found and "" not in found else [""]
        return {split: assembled(partial(read, file), display_name(file, split), split, wanted) for split in splits}


def _vector(given: Any, what: str) -> Any:
    """An array, the name of one, or the content of an `.npy` file, which wins over a name; labels of any other file."""
    if not isinstance(given, (str, os.PathLike)):
        return given
    file = Path(given)
    if file.suffix == ".npy":
        with naming(file):
            return array_field(file).read()
    address, mark, column = str(given).rpartition("#")
    if not mark or file.exists():
        address, column = str(given), ""
    file = Path(address)
    if what == "labels" and suffix_of(file) in READERS and file.is_file():
        with naming(file):
            return LabelFile(str(given), reader_of(file)(file, Wanted(scores=column or None)), column)
    if isinstance(given, os.PathLike):
        raise InputError(f"{what}={address!r} must be an array, the name of one, or the path of a file that is there")
    return given


def from_object(given: Any, wanted: Wanted, name: str = "") -> Predictions:
    """Predictions from any object that holds scores and labels."""
    if isinstance(given, Predictions):
        return _retold(given, wanted)
    if hasattr(given, PREDICTIONS) and hasattr(given, LABEL_IDS):
        given = {PREDICTIONS: _first(given.predictions), LABEL_IDS: _first(given.label_ids)}
    pair = isinstance(given, (tuple, list)) and len(given) in (2, 3)
    if pair:  # bare scores are logits
        words = (wanted.word, "labels", "weights")
        given = {word: as_array(value, word) for word, value in zip(words, given, strict=False) if value is not None}
        wanted = replace(wanted, require_labels=False)
    columns = dict(given) if isinstance(given, Mapping) else frame_columns(given)
    if columns is None:
        raise InputError(
            f"{name or 'predictions'} must be Predictions, a path, a frame, a dictionary of arrays, an object with "
            f".predictions and .label_ids, or a pair (scores, labels), got {type(given).__name__}"
        )

    def read(asked: Wanted) -> Fields:
        renamed = {wanted.word: asked.word} if pair else {}
        return column_fields({renamed.get(word, word): column for word, column in columns.items()})

    made = assembled(read, name, "", wanted)
    if pair and wanted.kind is None and made.flat and look_like_probabilities(made.values):
        raise InputError(
            f"{name or 'scores'}: all {made.n} lie in [0, 1], as probabilities do and logits may: say "
            'kind="probabilities" or kind="logits"'
        )
    return made


def as_predictions(given: Any, name: str = "", **options: Any) -> Predictions:
    """Predictions from themselves, a path or any object that holds scores and labels; options as `open_predictions`."""
    if isinstance(given, (str, os.PathLike)):
        return open_predictions(given, **options)
    return from_object(given, described(Wanted(**options)), name)


def _retold(given: Predictions, wanted: Wanted) -> Predictions:
    """Predictions with what the caller adds: a task for two columns, groups and clusters from other columns."""
    made = given
    for word in ("scores", "labels", "weights", "class_names", "ignore_index"):
        if getattr(wanted, word) is not None:
            raise InputError(f"{word}= is about a file or table, but these are Predictions")
    if wanted.kind not in (None, given.kind):
        raise InputError(f"kind={wanted.kind!r}, but {given.name or 'the predictions'} hold {given.kind}")
    if wanted.task not in (None, given.task):
        resolve_task(wanted.task, given.source.shape, None, given.name or "the predictions")
        if (given.task, wanted.task) != ("multiclass", "binary"):
            raise InputError(f"{given.name or 'the predictions'} hold a {given.task} task, not {wanted.task}")
        source = DifferenceSource(given.source, given.kind)
        made = given.like(source=source, kind="logits", task="binary", _checked=False)
    if wanted.by:
        made = made.like(groups={**given.groups, **{word: given.column(word) for word in wanted.by}})
    if wanted.cluster is not None:
        clusters = given.column(wanted.cluster) if isinstance(wanted.cluster, str) else np.asarray(wanted.cluster)
        if len(clusters) != made.n:
            raise InputError(f"clusters has {len(clusters)} rows, but the predictions have {made.n}")
        made = made.like(clusters=clusters)
    return made


def _first(value: Any) -> Any:
    """The first of several outputs: a trainer may return hidden states behind the logits."""
    return value[0] if isinstance(value, tuple) else value
