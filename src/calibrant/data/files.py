"""Which function reads a file, and one file opened."""

from __future__ import annotations

import glob
import importlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calibrant.core.errors import InputError
from calibrant.data.arrays import is_companion, matrix_path
from calibrant.data.assemble import assemble
from calibrant.data.columns import Wanted
from calibrant.data.predictions import Predictions

EMBEDDED = Path(__file__).parent / "embedded"
"""Where the data sets of the package are."""

PATTERN = re.compile(r"[*?\[]")

READERS = {
    ".npz": "arrays.npz_fields",
    ".npy": "arrays.npy_fields",
    ".parquet": "tables.table_fields",
    ".feather": "tables.table_fields",
    ".arrow": "tables.table_fields",
    ".safetensors": "arrays.safetensors_fields",
    ".csv": "tables.csv_fields",
    ".csv.gz": "tables.csv_fields",
    ".tsv": "tables.csv_fields",
    ".tsv.gz": "tables.csv_fields",
    ".p": "arrays.pickle_fields",
    ".pkl": "arrays.pickle_fields",
    ".pickle": "arrays.pickle_fields",
    ".pt": "arrays.torch_fields",
    ".pth": "arrays.torch_fields",
    ".jsonl": "json_lines.fields",
    ".ndjson": "json_lines.fields",
}
"""Suffix to the function `fields(path, wanted)` that returns the named arrays of a file, unread."""

HOLDS_PARTS = (".npz", ".safetensors", ".p", ".pkl", ".pickle", ".pt", ".pth")
"""Formats in which one file can hold several parts (`#val`, `#test`)."""


def suffix_of(path: Path) -> str:
    """The suffix that decides the format: `.csv.gz` is one."""
    return next((suffix for suffix in READERS if path.name.lower().endswith(suffix)), path.suffix.lower())


def reader_of(path: Path) -> Callable[..., Any]:
    """The function that reads a path; an InputError that lists the known suffixes for any other."""
    suffix = suffix_of(path)
    if suffix not in READERS:
        raise InputError(f"{path} has the suffix {suffix or '(none)'}, but the known ones are {', '.join(READERS)}")
    module, name = READERS[suffix].split(".")
    return getattr(importlib.import_module(f"calibrant.data.{module}"), name)


def embedded_names() -> list[str]:
    """Names of the data sets that come with the package."""
    return sorted(path.stem for path in EMBEDDED.glob("*.npz"))


def locate(path: str | os.PathLike[str]) -> tuple[Path, str]:
    """The file or folder and the part behind `#`; an InputError if there is no such file."""
    text = os.fspath(path)
    if not text:
        raise InputError("the path is empty: give a file, a folder or an embedded data set")
    if "\0" in text:
        raise InputError(f"{text!r} is not a path: it contains a zero byte")
    with naming(Path(text)):
        address, mark, split = text.rpartition("#")
        if not mark or Path(text).exists():
            address, split = text, ""
        file = Path(address)
        if not file.exists() and address in embedded_names():
            file = EMBEDDED / f"{address}.npz"
        if suffix_of(file) == ".npy":
            file = matrix_path(file)
        if is_pattern(address):
            return Path(address), split
        if not file.exists():
            known = ", ".join(embedded_names())
            hint = "" if file.suffix else f", and no embedded data set ({known})"
            raise InputError(f"{address} does not exist: there is no such file{hint}")
        if not file.is_dir() and not file.is_file():
            raise InputError(f"{address} is neither a file nor a folder")
        return file, split


def display_name(file: Path) -> str:
    """What messages call a file: its path, or the name of an embedded data set."""
    return file.stem if file.parent == EMBEDDED else str(file)


def open_file(file: Path, split: str, wanted: Wanted) -> Predictions:
    """Open one local file."""
    name = display_name(file) + (f"#{split}" if split else "")
    with naming(file):
        return assemble(reader_of(file)(file, wanted), name, split, wanted)


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Errors of the file system (no permission, a broken disk) are bad input too."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from error


def is_pattern(address: str) -> bool:
    """Does it hold `*`, `?` or `[`, and no file of that very name exists?"""
    return PATTERN.search(address) is not None and not Path(address).exists()


def part_paths(address: Path) -> list[Path]:
    """The files of a folder, or those that match a pattern (`**` goes into folders), that hold rows, sorted by name."""
    folder = address.is_dir()
    found = address.iterdir() if folder else map(Path, glob.glob(str(address), recursive=True))
    parts = [path for path in sorted(found, key=str) if holds_rows(path) and path.is_file()]
    if not parts:
        what = "is a folder without" if folder else "matches no"
        raise InputError(f"{address} {what} prediction files ({', '.join(sorted(READERS))})")
    return parts


def holds_rows(path: Path) -> bool:
    """Does the name say so? Hidden files and the companions of `.npy` matrices hold none."""
    hidden = path.name.startswith((".", "_"))
    return not hidden and suffix_of(path) in READERS and not (path.suffix == ".npy" and is_companion(path))
