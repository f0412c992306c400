"""The columns that maps of probabilities are fitted to: the top confidence, or the probability of every class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from calibrant.calibrators.helpers.confidence_bins import top_columns
from calibrant.core.errors import InputError
from calibrant.core.rows import Rows
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.rows import RowColumns

COLUMNS_AT_ONCE = 16


def mapped_columns(rows: Rows, mode: str) -> tuple[Iterable[RowColumns], int]:
    """What a mode maps, and how many maps that makes: the top confidence, or the probability of every class."""
    if mode not in {"top_label", "one_vs_rest"}:
        raise InputError(f"mode must be 'top_label' or 'one_vs_rest', got {mode!r}")
    return ([top_columns(rows)], 1) if mode == "top_label" else (class_columns(rows), rows.n_classes)


def class_probabilities(logits: np.ndarray) -> Iterator[np.ndarray]:
    """The probability of each class in turn (n,), float64: the same bits when fitting and when transforming."""
    log_mass = _log_mass(logits)
    for first in range(0, logits.shape[1], COLUMNS_AT_ONCE):
        for column in logits[:, first : first + COLUMNS_AT_ONCE].T.astype(np.float64):
            yield np.exp(column - log_mass)


def class_columns(rows: Rows) -> Iterator[RowColumns]:
    """For each class in turn: its probability as the confidence, and whether it is the label as correctness."""
    nothing = np.empty(0)
    for j, probability in enumerate(class_probabilities(rows.logits)):
        yield RowColumns(probability, rows.labels, rows.labels == j, nothing, nothing, nothing)


def _log_mass(logits: np.ndarray) -> np.ndarray:
    def part(block: slice) -> np.ndarray:
        values = logits[block].astype(np.float64)
        peak = values.max(axis=1)
        return peak + np.log(np.exp(values - peak[:, None]).sum(axis=1))

    return np.concatenate(map_blocks(part, row_blocks(len(logits), logits.shape[1])))
