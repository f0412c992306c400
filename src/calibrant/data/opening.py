"""`open_predictions`: an address in, `Predictions` out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from calibrant.core.errors import InputError
from calibrant.core.schema import check_kind, check_task
from calibrant.data import datasets
from calibrant.data.arrays import array_field, matrix_path
from calibrant.data.assemble import assemble
from calibrant.data.fields import Fields, Wanted, split_names
from calibrant.data.formats import HOLDS_PARTS, reader_of, suffix_of
from calibrant.data.parts import is_pattern, matching, open_all, part_paths, without_bad_parts
from calibrant.data.predictions import Predictions


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
        from calibrant.data.objects import from_object

        return from_object(path, wanted)
    text, one = os.fspath(path).removeprefix("file://"), replace(wanted, part=True)
    if _is_remote(text):
        from calibrant.data.remote import expand, open_remote

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
    with _naming(file):
        fields = reader_of(file)(file, wanted)
        splits = split_names(fields)
        if "" in splits or not splits:
            splits = [""]
        return {
            split: assemble(fields, display_name(file) + (f"#{split}" if split else ""), split, wanted)
            for split in splits
        }


def locate(path: str | os.PathLike[str]) -> tuple[Path, str]:
    """The file or folder and the part behind `#`; an InputError if there is no such file."""
    text = os.fspath(path)
    if not text:
        raise InputError("the path is empty: give a file, a folder or an embedded data set")
    if "\0" in text:
        raise InputError(f"{text!r} is not a path: it contains a zero byte")
    with _naming(Path(text)):
        return _locate(text)


def _locate(text: str) -> tuple[Path, str]:
    address, mark, split = text.rpartition("#")
    if not mark or Path(text).exists():
        address, split = text, ""
    file = Path(address)
    if not file.exists() and address in datasets.names():
        file = datasets.embedded_path(address)
    if suffix_of(file) == ".npy":
        file = matrix_path(file)
    if is_pattern(address):
        return Path(address), split
    if not file.exists():
        known = ", ".join(datasets.names())
        hint = "" if file.suffix else f", and no embedded data set ({known})"
        raise InputError(f"{address} does not exist: there is no such file{hint}")
    if not file.is_dir() and not file.is_file():
        raise InputError(f"{address} is neither a file nor a folder")
    return file, split


def display_name(file: Path) -> str:
    """What messages call a file: its path, or the name of an embedded data set."""
    return file.stem if file.parent == datasets.FOLDER else str(file)


def open_file(file: Path, split: str, wanted: Wanted) -> Predictions:
    """Open one local file."""
    name = display_name(file) + (f"#{split}" if split else "")
    with _naming(file):
        found = reader_of(file)(file, wanted)
        made = assemble(found, name, split, wanted)
        if isinstance(found, Fields):
            made.notes = tuple(found.notes)
            made.score_columns = tuple(found.members.get(made.field, (made.field,)))
        return made


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Errors of the file system (no permission, a broken disk) are bad input too."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from error


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
