"""Predictions that come with the package, to try everything on real numbers; and long-tailed subsets of your own."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.errors import InputError
from calibrant.data.opening import embedded_names as names
from calibrant.data.opening import open_predictions
from calibrant.data.predictions import Predictions

__all__ = ["Dataset", "load", "long_tailed_indices", "names"]


@dataclass(frozen=True)
class Dataset:
    """The predictions of one network on held-out data: `val` to fit on, `test` to judge by.

    The rows of `val` are in random order, those of `test` are sorted by class: draw a part of them at random, as the
    first thousand are of few classes.
    """

    name: str
    val: Predictions
    test: Predictions


def load(name: str) -> Dataset:
    """Load an embedded data set.

    >>> data = load("cifar10-resnet18")
    >>> data.val.n, data.test.n
    (5000, 10000)
    """
    if name not in names():
        raise InputError(f"there is no embedded data set {name!r}: choose one of {', '.join(names())}")
    return Dataset(name, open_predictions(f"{name}#val"), open_predictions(f"{name}#test"))


def long_tailed_indices(labels: Any, ratio: float, seed: int = 0) -> Array:
    """Places of a long-tailed subset: class i keeps floor(n₀·ρ^(i/(K−1))) of its rows (Jung et al. 2023, eq. 16).

    Parameters
    ----------
    labels : (n,) class indices 0…K−1; n₀ is the number of rows of class 0, and every class must hold enough.
    ratio : ρ in (0, 1], the size of the last class over that of the first.
    seed : which rows of a class are kept.

    Returns
    -------
    (m,) increasing places among the rows.

    Examples
    --------
    >>> cifar10 = np.repeat(np.arange(10), 5000)
    >>> len(long_tailed_indices(cifar10, 0.1))
    20431
    >>> len(long_tailed_indices(np.repeat(np.arange(100), 500), 0.1))
    19573
    """
    targets = np.asarray(labels)
    if targets.ndim != 1 or len(targets) == 0 or not np.issubdtype(targets.dtype, np.integer) or targets.min() < 0:
        raise InputError(f"labels must be class indices (n,), got shape {targets.shape} of {targets.dtype}")
    if not 0 < ratio <= 1:
        raise InputError(f"ratio must lie in (0, 1], got {ratio}")
    held = np.bincount(targets)
    n_classes = len(held)
    if n_classes < 2:
        raise InputError("labels name 1 class, but a tail needs 2 or more")
    # slightly above the product: 500·0.1 must not become 49 by rounding
    wanted = np.floor(held[0] * ratio ** (np.arange(n_classes) / (n_classes - 1)) * (1 + 1e-12)).astype(np.int64)
    short = np.flatnonzero(held < wanted)
    if len(short):
        place = int(short[0])
        raise InputError(
            f"class {place} has {held[place]} rows, but its place in the tail needs {wanted[place]}: "
            "order the classes by size, largest first"
        )
    generator = np.random.default_rng(seed)
    kept = [generator.permutation(np.flatnonzero(targets == i))[: wanted[i]] for i in range(n_classes)]
    return np.sort(np.concatenate(kept))
