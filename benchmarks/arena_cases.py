"""The data sets of the arena: float32 probabilities and labels, a calibration part and a test part of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

FAMILIES = {
    "zoo": "zoo/*.npz",
    "cifar": "external/c10_[!h]*.npz",
    "long-tailed": "external/sctl_*.npz",
    "vlm": "external/vlm_*.npz",
    "llm": "external/llm_*.npz",
    "tabular-multiclass": "tabular/*.npz",
    "tabular-binary": "tabular/*.npz",
    "pairs": "external/imagenet_pairs_*.npz",
    "forecasts": "external/binary_*.npz",
    "ptbxl": "external/multilabel_ptbxl_*.npz",
    "medical": "chestxray14/*.npz",
}
"""Where the files of each family lie under the data folder."""


@dataclass(frozen=True)
class Case:
    """One data set: probabilities n×K (K = 2 for binary problems) as float32, labels as int64."""

    family: str
    name: str
    fit: np.ndarray
    fit_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray

    @property
    def binary(self) -> bool:
        return self.fit.shape[1] == 2

    @property
    def source(self) -> str:
        """What is independent of other cases: the data set without the model."""
        return self.name.split("__", maxsplit=1)[0].split(":", maxsplit=1)[0]


def cases(folder: Path, families: list[str]) -> Iterator[Case]:
    """Every data set of the families, in the order of the file names."""
    for family in families:
        for path in sorted(folder.glob(FAMILIES[family])):
            with np.load(path) as data:
                arrays = {key: data[key] for key in data.files if key.startswith(("val_", "test_"))}
            yield from _of_file(family, path.stem, arrays)


def _of_file(family: str, name: str, arrays: dict[str, np.ndarray]) -> Iterator[Case]:
    if family == "ptbxl":
        for label in range(arrays["val_labels"].shape[1]):
            parts = [_two(arrays[f"{part}_probabilities"][:, label]) for part in ("val", "test")]
            labels = [arrays[f"{part}_labels"][:, label].astype(np.int64) for part in ("val", "test")]
            if all(0 < one.sum() < len(one) for one in labels):
                yield Case(family, f"{name}:{label}", parts[0], labels[0], parts[1], labels[1])
        return
    fit, test = (_probabilities(arrays, part) for part in ("val", "test"))
    binary = fit.shape[1] == 2
    if family.startswith("tabular") and binary != (family == "tabular-binary"):
        return
    labels = [
        arrays[f"{part}_{'correct' if family == 'pairs' else 'labels'}"].astype(np.int64) for part in ("val", "test")
    ]
    yield Case(family, name, fit, labels[0], test, labels[1])


def _probabilities(arrays: dict[str, np.ndarray], part: str) -> np.ndarray:
    if f"{part}_logits" in arrays:
        logits = arrays[f"{part}_logits"].astype(np.float64)
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        return (scores / scores.sum(axis=1, keepdims=True)).astype(np.float32)
    for key in ("confidence", "probability"):
        if f"{part}_{key}" in arrays:
            return _two(arrays[f"{part}_{key}"])
    return arrays[f"{part}_probabilities"].astype(np.float32)


def _two(positive: np.ndarray) -> np.ndarray:
    """Both columns of a binary problem."""
    positive = positive.astype(np.float64)
    return np.stack([1 - positive, positive], axis=1).astype(np.float32)


def nested(case: Case, seed: int) -> Case:
    """A problem inside the calibration part alone: two thirds fit, one third scores. The test part is not touched."""
    order = np.random.default_rng([seed, 7]).permutation(len(case.fit_labels))
    cut = 2 * len(order) // 3
    fit, held_out = order[:cut], order[cut:]
    return replace(
        case,
        fit=case.fit[fit],
        fit_labels=case.fit_labels[fit],
        test=case.fit[held_out],
        test_labels=case.fit_labels[held_out],
    )


def resplit(case: Case, seed: int) -> Case:
    """All rows of the case shuffled and split again at the same sizes: for families of few files."""
    scores, labels = np.concatenate([case.fit, case.test]), np.concatenate([case.fit_labels, case.test_labels])
    order = np.random.default_rng([seed, 11]).permutation(len(labels))
    cut = len(case.fit_labels)
    return replace(
        case,
        name=f"{case.name}#{seed}",
        fit=scores[order[:cut]],
        fit_labels=labels[order[:cut]],
        test=scores[order[cut:]],
        test_labels=labels[order[cut:]],
    )


def few_rows(case: Case, n_rows: int, seed: int) -> Case:
    """The case with a random part of its fit rows."""
    chosen = np.random.default_rng([seed, 13]).permutation(len(case.fit_labels))[:n_rows]
    return replace(case, fit=case.fit[chosen], fit_labels=case.fit_labels[chosen])
