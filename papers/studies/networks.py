"""The networks of a study: files that hold val and test predictions."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibrant.core.errors import InputError
from calibrant.data import open_predictions

SHIFTED = 0.15
"""Total variation between the class shares of val and test from which their priors count as different."""


@dataclass(frozen=True)
class Network:
    """Logits (n, K) and labels (n,) to fit on and to measure on."""

    name: str
    val_logits: np.ndarray
    val_labels: np.ndarray
    test_logits: np.ndarray
    test_labels: np.ndarray

    @property
    def n_classes(self) -> int:
        """K."""
        return self.test_logits.shape[1]

    @property
    def long_tailed(self) -> bool:
        """Whether val has other class shares than test, as a long-tailed val beside a balanced test has."""
        val, test = (np.bincount(labels, minlength=self.n_classes) for labels in (self.val_labels, self.test_labels))
        return float(np.abs(val / val.sum() - test / test.sum()).sum() / 2) > SHIFTED


def read_networks(folder: str | os.PathLike[str], inner: str) -> list[Network]:
    """Every `.npz` of `folder/inner`, or of the folder itself where that is absent, by name."""
    home = Path(folder)
    if (home / inner).is_dir():
        home = home / inner
    paths = sorted(home.glob("*.npz")) if home.is_dir() else []
    if not paths:
        raise InputError(f"{home} holds no .npz file: a study needs val_logits, val_labels, test_logits, test_labels")
    return [read_network(path) for path in paths]


def read_network(path: Path) -> Network:
    """The val and test predictions of one file."""
    val, test = (open_predictions(f"{path}#{part}") for part in ("val", "test"))
    if val.n_classes != test.n_classes:
        raise InputError(f"{path}: val has {val.n_classes} classes, but test has {test.n_classes}")
    return Network(path.stem, val.logits, val.labels, test.logits, test.labels)


def one_of_most_classes(networks: list[Network]) -> Network:
    """The network the class figures show: the first by name among the balanced ones of the most classes."""
    balanced = [network for network in networks if not network.long_tailed] or networks
    return max(balanced, key=lambda network: network.n_classes)


def one_of_fewest_classes(networks: list[Network]) -> Network:
    """The network the traces show: the first by name among the balanced ones of the fewest classes."""
    balanced = [network for network in networks if not network.long_tailed] or networks
    return min(balanced, key=lambda network: network.n_classes)
