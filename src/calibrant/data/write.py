"""`write_predictions`: predictions into a file of any format that can be written, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from calibrant.core.errors import InputError
from calibrant.data.formats import HOLDS_PARTS, SUFFIXES, format_of, suffix_of
from calibrant.data.predictions import Predictions

READ_ONLY = ("pickles", "torch_files")
"""Formats that can run code in other readers are never written."""


def write_predictions(predictions: Predictions | Mapping[str, Predictions], path: str | os.PathLike[str]) -> list[Path]:
    """Write predictions to `path`, in the format of its suffix; return the files written.

    Values stream from the source chunk by chunk, checked on the way. A mapping of several parts, such as
    `{"val": …, "test": …}`, needs `.npz` or `.safetensors`. `.npy` writes a pair: `val.npy` becomes `val_logits.npy`
    and `val_labels.npy`. Pickles are never written.

    >>> import numpy as np, tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> two = Predictions.from_arrays(logits=np.array([[2.0, 1.0]]), labels=np.array([0]))
    >>> [file.name for file in write_predictions(two, folder / "two.npy")]
    ['two_logits.npy', 'two_labels.npy']
    """
    target = Path(path)
    parts = {"": predictions} if isinstance(predictions, Predictions) else dict(predictions)
    if not parts:
        raise InputError(f"there is nothing to write to {target}")
    module = format_of(target)
    if not hasattr(module, "write"):
        writable = [suffix for suffix, name in SUFFIXES.items() if name not in READ_ONLY]
        raise InputError(f"{target}: {suffix_of(target)} files are only read, never written: use {', '.join(writable)}")
    if len(parts) > 1 and SUFFIXES[suffix_of(target)] not in HOLDS_PARTS:
        first = next(iter(parts))
        raise InputError(
            f"{target} can hold one part, but there are {len(parts)} ({', '.join(parts)}): "
            f"pick one with #{first}, or write .npz or .safetensors"
        )
    if not target.parent.is_dir():
        raise InputError(f"cannot write {target}: the folder {target.parent} does not exist; create it first")
    return module.write(parts, target)
