"""The worst calibration of any group at any range of probabilities, in standard errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.core.arrays import Array, check_whole
from calibrant.core.errors import InputError
from calibrant.core.schema import identifiers
from calibrant.core.threads import row_blocks
from calibrant.metrics.inputs import ClassIndices, Probabilities, RowWeights, check
from calibrant.metrics.record import documented

DRAWS, MAX_DRAWS = 1000, 100_000
ROW_DRAWS = 40_000_000
"""Rows × draws up to which every row is simulated; beyond, runs of neighbouring rows as one normal step each."""
RUNS = 256
BLOCK_ELEMENTS = 1_000_000


@dataclass(frozen=True)
class MulticalibrationError:
    """What `multicalibration_error` found; `float()` of it is `value`."""

    value: float
    """The largest range of any group, in standard errors."""
    p_value: float
    """Chance of a value this large if every probability were true."""
    points: float
    """The range of that group divided by its weight, as a fraction: 0.03 is three percentage points."""
    worst: str
    """The name of that group."""
    by_group: dict[str, float]
    """The range of each group in standard errors."""
    left_out: tuple[str, ...]
    """Groups whose probabilities are all 0 or 1, so that nothing can vary."""

    def __float__(self) -> float:
        return self.value


@documented
def multicalibration_error(
    probabilities: Probabilities,
    labels: ClassIndices,
    groups: Any,
    *,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
    draws: int = DRAWS,
    seed: int = 0,
) -> MulticalibrationError:
    """The largest cumulated gap of any group, in standard errors, with a p-value (Hébert-Johnson et al. 2018).

    With the rows of a group in the order of p, the range ``max_k S_k − min_k S_k`` of ``S_k = Σ_{i≤k} w_i(y_i − p_i)``
    (0 included, tied p summed first) is divided by ``√Σ w_i² p_i(1 − p_i)``: the largest gap of the group in any
    interval of probabilities (Kuiper's statistic; Arrieta-Ibarra et al. 2022). The p-value is the share of label sets
    drawn from p, (1 + number)/(draws + 1), whose largest range over groups is at least as large.

    Parameters
    ----------
    groups : array (n,) of names; a mapping of columns, of which the intersections of two are groups too; or a list of
        boolean masks (n,), which may overlap

    Examples
    --------
    >>> from calibrant.metrics import multicalibration_error
    >>> found = multicalibration_error([0.5] * 200, [0, 1] * 50 + [1] * 100, ["a"] * 100 + ["b"] * 100)
    >>> found.worst, found.value, found.p_value < 0.01
    ('b', 10.0, True)
    """
    check_whole(draws, "draws", 1, MAX_DRAWS)
    check_whole(seed, "seed", 0)
    rows = check(probabilities, labels, sample_weight, from_logits)
    confidence, correct, _ = rows.top(ordered=True)
    confidence, mass = confidence.astype(np.float64), rows.mass
    names, row, code = _members(groups, len(confidence))
    variance = mass**2 * confidence * (1 - confidence)
    squares = np.bincount(code, variance[row], len(names))
    known = np.flatnonzero(squares)
    left_out = tuple(names[one] for one in np.flatnonzero(squares == 0))
    if not len(known):
        raise InputError(f"in all {len(left_out)} groups the probabilities are 0 or 1: there is nothing to test")
    row, code = row[squares[code] > 0], code[squares[code] > 0]
    order = np.lexsort((confidence[row], code))
    row, code = row[order], code[order]
    # each group is a walk of the cumulated gaps, looked at where a run of tied probabilities ends
    stated = confidence[row]
    ends = np.flatnonzero(np.append((code[1:] != code[:-1]) | (stated[1:] != stated[:-1]), True))
    starts = np.flatnonzero(np.diff(code[ends], prepend=-1))

    def ranges(correct: Array) -> Array:
        """The range of each group (r, G) in standard errors under sets of labels (r, n)."""
        path = np.cumsum((mass * (correct - confidence))[:, row], axis=1)[:, ends]
        # the sums go on from one group to the next
        before = np.where(starts > 0, path[:, starts - 1], 0.0)
        top, low = (extreme.reduceat(path, starts, axis=1) - before for extreme in (np.maximum, np.minimum))
        return (top.clip(0) - low.clip(None, 0)) / np.sqrt(squares[known])

    observed, generator, n_rows = ranges(correct[None])[0], np.random.default_rng([seed, 19]), len(confidence)
    value, worst = float(observed.max()), known[observed.argmax()]
    if n_rows * draws > ROW_DRAWS:
        simulated = _normal_limit(np.split(np.cumsum(variance[row])[ends], starts[1:]), draws, generator)
    else:
        parts = row_blocks(draws, n_rows, BLOCK_ELEMENTS)
        drawn = (generator.random((part.stop - part.start, n_rows)) < confidence for part in parts)
        simulated = np.concatenate([ranges(correct).max(axis=1) for correct in drawn])
    at_least = int((simulated >= value - 1e-9).sum())
    points = value * np.sqrt(squares[worst]) / np.bincount(code, mass[row], len(names))[worst]
    by_group = {names[one]: float(found) for one, found in zip(known, observed, strict=True)}
    return MulticalibrationError(value, (1 + at_least) / (draws + 1), float(points), names[worst], by_group, left_out)


def _normal_limit(walks: list[Array], draws: int, generator: np.random.Generator) -> Array:
    """The statistic (R,) of labels drawn from the probabilities, of the cumulated variances of each group's rows.

    Sums over many rows are a random walk with normal steps: runs of rows of equal variance, 256 to a group.
    """
    found, before = np.zeros(draws), 0.0
    for own in walks:
        edges, before = own - before, own[-1]
        picked = np.unique(np.searchsorted(edges, edges[-1] * np.arange(1, RUNS + 1) / RUNS - 1e-12 * edges[-1]))
        steps = np.sqrt(np.diff(edges[np.minimum(picked, len(edges) - 1)], prepend=0.0) / edges[-1])
        walk = np.cumsum(steps * generator.standard_normal((draws, len(steps))), axis=1)
        # a continuous walk reaches 0.583 steps further than one that is looked at in between (Siegmund 1985)
        extra = 2 * 0.5826 * float(np.sqrt(np.mean(steps**2))) if len(edges) > 2 * RUNS else 0.0
        found = np.maximum(found, walk.max(axis=1).clip(0) - walk.min(axis=1).clip(None, 0) + extra)
    return found


def _members(groups: Any, n_rows: int) -> tuple[list[str], Array, Array]:
    """Names of all groups, and the rows that belong to them with the number of their group."""
    if isinstance(groups, Sequence) and len(groups) and np.ndim(groups[0]) == 1:
        masks = [np.asarray(mask) for mask in groups]
        for place, mask in enumerate(masks):
            if mask.dtype != bool or mask.shape != (n_rows,):
                raise InputError(f"mask {place} has shape {mask.shape} and {mask.dtype}: give {n_rows} booleans")
        code, row = np.nonzero(masks)
        return [f"mask {place}" for place in range(len(masks))], row, code
    columns, mapped = [], isinstance(groups, Mapping)
    for name, values in (groups if mapped else {"groups": groups}).items():
        code, words = identifiers(values, n_rows, name)
        columns.append(np.array([f"{name} {word}" if mapped else word for word in words])[code])
    if len(columns) == 2:
        columns.append(np.char.add(np.char.add(columns[0], " & "), columns[1]))
    names: list[str] = []
    codes = []
    for column in columns:
        found, code = np.unique(column, return_inverse=True)
        codes.append(code + len(names))
        names += found.tolist()
    return names, np.tile(np.arange(n_rows), len(columns)), np.concatenate(codes)
