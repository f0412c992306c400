"""Paired tests of the default against every peer, adjusted for their number (Holm 1979).

All tests are one-sided: the hypothesis is that the default's loss is not above the peer's. They are adjusted over the
files and peers of a family, separately for log loss and Brier score.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

LEVEL = 0.05
FEWEST = 5
"""Test rows of the rarer outcome of a binary file from which on it is tested: with fewer its noise is unknown."""

SCORES = ("log_loss", "brier")
"""The two rows of what is kept of a method on a data set."""


@dataclass(frozen=True)
class Excess:
    """The default's mean loss minus that of a peer on one file, and the p-value of "not above 0"."""

    file: str
    peer: str
    mean: float
    p_value: float

    def __str__(self) -> str:
        return f"- {self.file}, {self.peer}: +{self.mean:.5f}, adjusted p = {self.p_value:.2g}"


def paired(default: np.ndarray, peer: np.ndarray) -> tuple[float, float]:
    """Mean difference of the losses of the same rows, and its p-value by a paired t test, one-sided."""
    from scipy.stats import t

    difference = np.asarray(default, dtype=np.float64) - np.asarray(peer, dtype=np.float64)
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    return _tested(float(difference.mean()), float(error), t(len(difference) - 1))


def resampled(differences: np.ndarray, test_to_fit: float) -> tuple[float, float]:
    """Mean difference over random re-splits, and the p-value of the corrected resampled t test, one-sided.

    Re-splits share rows, so that the variance over J of them is not divided by J but multiplied by
    1/J + n_test/n_fit (Nadeau & Bengio 2003, eq. 13).
    """
    from scipy.stats import t

    differences = np.asarray(differences, dtype=np.float64)
    error = np.sqrt((1 / len(differences) + test_to_fit) * differences.var(ddof=1))
    return _tested(float(differences.mean()), float(error), t(len(differences) - 1))


def _tested(mean: float, error: float, distribution: Any) -> tuple[float, float]:
    if error == 0:  # the same answer on every row
        return mean, 0.0 if mean > 0 else 1.0
    return mean, float(distribution.sf(mean / error))


def holm(p_values: Iterable[float]) -> np.ndarray:
    """Adjusted p-values: the i-th smallest of m times m − i + 1, never below a smaller one's, at most 1."""
    given = np.asarray(list(p_values), dtype=np.float64)
    order = np.argsort(given, kind="stable")
    adjusted = np.empty(len(given))
    adjusted[order] = np.minimum(np.maximum.accumulate(given[order] * np.arange(len(given), 0, -1)), 1.0)
    return adjusted


def rejected(tested: list[Excess]) -> list[Excess]:
    """Those above 0 beyond noise, with adjusted p-values, the clearest first."""
    adjusted = holm(one.p_value for one in tested)
    found = [replace(one, p_value=float(p)) for one, p in zip(tested, adjusted, strict=True) if p <= LEVEL]
    return sorted(found, key=lambda one: one.p_value)


class RowStore:
    """Per-row log losses and Brier scores of every method: one npz of float32 arrays 2×n per data set."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        if folder:
            folder.mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> dict[str, np.ndarray]:
        path = self._path(name)
        if path is None or not path.exists():
            return {}
        with np.load(path) as kept:
            return {method: kept[method] for method in kept.files}

    def write(self, name: str, rows: dict[str, np.ndarray]) -> None:
        path = self._path(name)
        if path is not None:
            scratch = path.with_suffix(".part.npz")
            np.savez(scratch, **rows)
            scratch.replace(path)

    def _path(self, name: str) -> Path | None:
        return self.folder / f"{quote(name, safe=' #~')}.npz" if self.folder else None


def losses(results: dict[str, dict[str, Any]], family: str, default: str, store: RowStore) -> dict[str, list[str]]:
    """Per score, the lines of a family's report: each (file, peer) on which the default is worse beyond noise.

    Binary files with fewer than 5 test rows of the rarer outcome are left out: they are too few to tell.
    """
    tested: dict[str, list[Excess]] = {score: [] for score in SCORES}
    splits: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for name, one in results.items():
        if one["family"] != family:
            continue
        if one.get("rarest", FEWEST) < FEWEST:
            continue
        if "#" in name:
            splits[name.split("#", maxsplit=1)[0]].append(one)
        else:
            _over_rows(name, store.read(name), default, tested)
    for file, many in splits.items():
        _over_splits(file, many, default, tested)
    return {score: _report(found) for score, found in tested.items()}


def _over_rows(name: str, rows: dict[str, np.ndarray], default: str, tested: dict[str, list[Excess]]) -> None:
    for peer in rows:
        if default in rows and not peer.startswith("calibrant "):
            for place, score in enumerate(SCORES):
                tested[score].append(Excess(name, peer, *paired(rows[default][place], rows[peer][place])))


def _over_splits(file: str, splits: list[dict[str, Any]], default: str, tested: dict[str, list[Excess]]) -> None:
    if len(splits) < 2:
        return
    ratio = float(np.mean([one["n_test"] / one["n_fit"] for one in splits]))
    figures = [one["figures"] for one in splits]
    for peer in figures[0]:
        if peer.startswith("calibrant ") or not all(
            SCORES[0] in one.get(m, {}) for one in figures for m in (peer, default)
        ):
            continue
        for score in SCORES:
            differences = np.array([one[default][score] - one[peer][score] for one in figures])
            tested[score].append(Excess(file, peer, *resampled(differences, ratio)))


def _report(tested: list[Excess]) -> list[str]:
    if not tested:
        return ["No peer tested."]
    found = rejected(tested)
    files, peers = len({one.file for one in tested}), len({one.peer for one in tested})
    return [f"{len(found)} of {len(tested)} pairs ({files} files, {peers} peers).", *map(str, found)]
