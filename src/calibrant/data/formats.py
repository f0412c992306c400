"""Which module reads and writes a file; each is loaded when a file of its kind is met."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from calibrant.core.errors import InputError

SUFFIXES = {
    ".npz": "npz",
    ".npy": "npy",
    ".parquet": "parquet",
    ".safetensors": "safetensors",
    ".csv": "delimited",
    ".csv.gz": "delimited",
    ".p": "pickles",
    ".pkl": "pickles",
    ".pickle": "pickles",
    ".pt": "torch_files",
    ".pth": "torch_files",
    ".jsonl": "json_lines",
    ".ndjson": "json_lines",
}
"""Suffix to module; a module has `fields(path, wanted)` and, if the format can be written, `write(parts, path)`."""

HOLDS_PARTS = ("npz", "safetensors", "pickles", "torch_files")
"""Formats in which one file can hold several parts (`#val`, `#test`)."""


def suffix_of(path: Path) -> str:
    """The suffix that decides the format: `.csv.gz` is one."""
    name = path.name.lower()
    return ".csv.gz" if name.endswith(".csv.gz") else path.suffix.lower()


def format_of(path: Path) -> ModuleType:
    """The module for a path; an InputError that lists the known suffixes for any other."""
    suffix = suffix_of(path)
    if suffix not in SUFFIXES:
        raise InputError(f"{path} has the suffix {suffix or '(none)'}, but the known ones are {', '.join(SUFFIXES)}")
    return importlib.import_module(f"calibrant.data.{SUFFIXES[suffix]}")
