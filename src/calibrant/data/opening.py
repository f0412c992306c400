"""`open_predictions`: an address in, `Predictions` out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.data import datasets
from calibrant.data.fields import assemble, check_kind, split_names
from calibrant.data.folder import part_paths
from calibrant.data.formats import HOLDS_PARTS, SUFFIXES, format_of, suffix_of
from calibrant.data.npy import array_field, matrix_path
from calibrant.data.parts import is_pattern, matching, open_all, without_bad_parts
from calibrant.data.predictions import Predictions


def open_predictions(
    path: str | os.PathLike[str],
    *,
    kind: str | None = None,
    labels: Any = None,
    weights: Any = None,
    class_names: Sequence[str] | None = None,
    require_labels: bool = True,
    skip_bad_parts: bool = False,
    engine: Any = "local",
) -> Predictions:
    """Open a file or folder of predictions, or an embedded data set, without reading its values yet.

    Parameters
    ----------
    path : str or path
        `.npz`, `.npy` (a pair), `.parquet`, `.safetensors`, `.csv`, `.csv.gz`, a pickle of arrays, a folder of such
        files, a pattern (`parts/*.npz`), the same behind any fsspec address (`s3://bucket/parts/*.parquet`), or an
        embedded name (`cifar100-resnet18#test`). `file#val` picks the arrays `val_logits`, `val_labels`.
    kind : {"logits", "probabilities"}, optional
        What the values are, where the file does not say or holds both.
    labels, weights : array or path of an `.npy` file, optional
        Used in place of those in the file.
    class_names : sequence of str, optional
        Used in place of those in the file.
    require_labels : bool
        False accepts a file without labels.
    skip_bad_parts : bool
        Of a folder or pattern, leave out parts that cannot be read and list them in `Predictions.skipped`; every value
        is read once to find them.
    engine : "local", "dask", the address of a scheduler, or an engine
        Where `skip_bad_parts` reads them.

    Returns
    -------
    Predictions

    Examples
    --------
    >>> test = open_predictions("cifar10-resnet18#test")
    >>> test.n, test.n_classes, test.kind
    (10000, 10, 'logits')
    """
    check_kind(kind)
    options: dict[str, Any] = {
        "labels": _vector(labels, "labels"),
        "weights": _vector(weights, "weights"),
        "class_names": None if class_names is None else [str(name) for name in class_names],
        "require_labels": require_labels,
    }
    text = os.fspath(path).removeprefix("file://")
    if _is_remote(text):
        from calibrant.data.remote import expand, open_remote

        addresses, split = expand(text)
        if addresses == [text.rpartition("#")[0] or text]:
            return open_remote(addresses[0], split, kind, options)
        joined = open_all(
            addresses, text, lambda part: open_remote(part, split, kind, options), skip_bad_parts=skip_bad_parts
        )
        return without_bad_parts(joined, engine) if skip_bad_parts else joined
    file, split = locate(text)
    if not file.is_dir() and not is_pattern(str(file)):
        return open_file(file, split, kind, options)
    if labels is not None or weights is not None:
        what = "is a folder" if file.is_dir() else "stands for several files"
        raise InputError(f"{file} {what}: labels and weights must be in its files")
    found = part_paths(file) if file.is_dir() else matching(str(file))
    joined = open_all(
        found, str(file), lambda part: open_file(part, split, kind, options), skip_bad_parts=skip_bad_parts
    )
    return without_bad_parts(joined, engine) if skip_bad_parts else joined


def _is_remote(text: str) -> bool:
    return re.match(r"[a-z][a-z0-9+.-]+(::|://)", text) is not None


def open_parts(
    path: str | os.PathLike[str], *, kind: str | None = None, labels: Any = None, require_labels: bool = True
) -> dict[str, Predictions]:
    """The one part that `path` names, under "", or every part of a file that has only named ones.

    >>> sorted(open_parts("cifar10-resnet18"))
    ['test', 'val']
    """
    if _is_remote(os.fspath(path)):
        return {"": open_predictions(path, kind=kind, labels=labels, require_labels=require_labels)}
    file, split = locate(path)
    one_part = split or labels is not None or file.is_dir() or is_pattern(str(file))
    if one_part or SUFFIXES.get(suffix_of(file)) not in HOLDS_PARTS:
        return {"": open_predictions(path, kind=kind, labels=labels, require_labels=require_labels)}
    check_kind(kind)
    with _naming(file):
        fields = format_of(file).fields(file, kind)
        splits = split_names(fields)
        if "" in splits or not splits:
            splits = [""]
        return {
            split: assemble(
                fields,
                display_name(file) + (f"#{split}" if split else ""),
                split,
                kind=kind,
                require_labels=require_labels,
            )
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


def open_file(file: Path, split: str, kind: str | None, options: dict[str, Any]) -> Predictions:
    """Open one local file."""
    name = display_name(file) + (f"#{split}" if split else "")
    with _naming(file):
        return assemble(format_of(file).fields(file, kind), name, split, kind=kind, **options)


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Trouble of the file system (no permission, a broken disk) is bad input too."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from error


def _vector(given: Any, what: str) -> np.ndarray | None:
    if given is None or not isinstance(given, (str, os.PathLike)):
        return given
    file = Path(given)
    if file.suffix != ".npy":
        raise InputError(f"{what}={str(file)!r} must be an array or the path of an .npy file")
    if not file.is_file():
        raise InputError(f"{file} does not exist: there is no such file for the {what}")
    return array_field(file).read()
