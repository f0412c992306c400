"""Which function reads a file; its module is loaded when a file of its kind is met."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calibrant.core.errors import InputError

READERS = {
    ".npz": "arrays.npz_fields",
    ".npy": "arrays.npy_fields",
    ".parquet": "tables.parquet_fields",
    ".feather": "tables.feather_fields",
    ".arrow": "tables.feather_fields",
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
    name = path.name.lower()
    packed = (".csv.gz", ".tsv.gz")
    return name[-len(packed[0]) :] if name.endswith(packed) else path.suffix.lower()


def reader_of(path: Path) -> Callable[..., Any]:
    """The function that reads a path; an InputError that lists the known suffixes for any other."""
    suffix = suffix_of(path)
    if suffix not in READERS:
        raise InputError(f"{path} has the suffix {suffix or '(none)'}, but the known ones are {', '.join(READERS)}")
    module, name = READERS[suffix].split(".")
    return getattr(importlib.import_module(f"calibrant.data.{module}"), name)
