"""Predictions that come with the package, to try everything on real numbers; and long-tailed subsets of your own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from calibrant.core.errors import InputError
from calibrant.data.long_tailed import long_tailed_indices
from calibrant.data.predictions import Predictions

__all__ = ["FOLDER", "Dataset", "embedded_path", "load", "long_tailed_indices", "names"]

FOLDER = Path(__file__).parent / "embedded"
"""Where the files are."""


@dataclass(frozen=True)
class Dataset:
    """The predictions of one network on held-out data: `val` to fit on, `test` to judge by."""

    name: str
    val: Predictions
    test: Predictions


def names() -> list[str]:
    """Names that `load` and `open_predictions` know."""
    return sorted(path.stem for path in FOLDER.glob("*.npz"))


def load(name: str) -> Dataset:
    """Load an embedded data set.

    >>> data = load("cifar10-resnet18")
    >>> data.val.n, data.test.n
    (5000, 10000)
    """
    from calibrant.data.opening import open_predictions

    embedded_path(name)
    return Dataset(name, open_predictions(f"{name}#val"), open_predictions(f"{name}#test"))


def embedded_path(name: str) -> Path:
    """The file behind an embedded name."""
    if name not in names():
        raise InputError(f"there is no embedded data set {name!r}: choose one of {', '.join(names())}")
    return FOLDER / f"{name}.npz"
