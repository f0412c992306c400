"""The worst calibration of any group at any range of probabilities, in standard errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.metrics.inputs import ClassIndices, Probabilities, RowWeights, top_label
from calibrant.metrics.record import documented

DRAWS = 1000
ROW_DRAWS = 40_000_000
"""Rows × draws up to which every row is simulated; beyond, runs of neighbouring rows as one normal step each."""
RUNS = 256
BLOCK_ELEMENTS = 4_000_000


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
    stated, true, weights = top_label(probabilities, labels, sample_weight, from_logits)
    confidence, correct = stated.astype(np.float64), true.astype(np.float64)
    mass = np.ones(len(confidence)) if weights is None else np.asarray(weights, dtype=np.float64)
    levels = [_Level(*level, confidence, mass) for level in _levels(groups, len(confidence))]
    ranges = {name: one for level in levels for name, one in level.ranges(correct).items()}
    left_out = tuple(name for level in levels for name in level.left_out)
    if not ranges:
        raise InputError(f"in all {len(left_out)} groups the probabilities are 0 or 1: there is nothing to test")
    worst = max(ranges, key=ranges.__getitem__)
    level = next(level for level in levels if worst in level.scale)
    value = ranges[worst]
    reached = _simulated(levels, draws, seed)
    at_least = int((reached >= value - 1e-9).sum())
    points = value * level.scale[worst] / level.weight[worst]
    return MulticalibrationError(value, (1 + at_least) / (draws + 1), points, worst, ranges, left_out)


class _Level:
    """One way to split rows into groups: rows in the order of group and probability, and each group's spread."""

    def __init__(self, names: list[str], code: np.ndarray, confidence: np.ndarray, mass: np.ndarray) -> None:
        variance = np.bincount(code[code >= 0], (mass**2 * confidence * (1 - confidence))[code >= 0], len(names))
        weight = np.bincount(code[code >= 0], mass[code >= 0], len(names))
        known = variance > 0
        self.left_out = [name for name, one in zip(names, known, strict=True) if not one]
        self.scale = {name: float(np.sqrt(one)) for name, one in zip(names, variance, strict=True) if one > 0}
        self.weight = {name: float(one) for name, one in zip(names, weight, strict=True)}
        rows = np.flatnonzero((code >= 0) & known[np.maximum(code, 0)])
        self.order = rows[np.lexsort((confidence[rows], code[rows]))]
        self.confidence, self.mass = confidence, mass
        owner, stated = code[self.order], confidence[self.order]
        last = np.ones(len(owner), dtype=bool)
        last[:-1] = (owner[1:] != owner[:-1]) | (stated[1:] != stated[:-1])
        self.ends = np.flatnonzero(last)
        """The last row of each run of tied probabilities: the sums are looked at there."""
        self.owner = owner[self.ends]
        self.starts = np.flatnonzero(np.append(True, self.owner[1:] != self.owner[:-1])) if len(owner) else self.ends
        self.spread = np.sqrt(variance[self.owner[self.starts]]) if len(owner) else np.empty(0)

    def ranges(self, correct: np.ndarray) -> dict[str, float]:
        """The range of each group in standard errors."""
        excess = (self.mass * (correct - self.confidence))[self.order]
        return dict(zip(self.scale, self.standard(np.cumsum(excess)[None, self.ends])[0].tolist(), strict=True))

    def standard(self, path: np.ndarray) -> np.ndarray:
        """Ranges (r, G) of running sums (r, runs) that go on from one group to the next."""
        if not len(self.starts):
            return np.zeros((len(path), 0))
        before = np.where(self.starts > 0, path[:, np.maximum(self.starts, 1) - 1], 0.0)
        before[:, 0] = 0.0
        top = np.maximum(np.maximum.reduceat(path, self.starts, axis=1) - before, 0.0)
        low = np.minimum(np.minimum.reduceat(path, self.starts, axis=1) - before, 0.0)
        return (top - low) / self.spread


def _simulated(levels: list[_Level], draws: int, seed: int) -> np.ndarray:
    """The statistic (R,) of labels drawn from the probabilities: every row's, or, of many rows, by the normal limit."""
    confidence, mass = levels[0].confidence, levels[0].mass
    generator = np.random.default_rng([seed, 19])
    found = np.zeros(draws)
    if len(confidence) * draws > ROW_DRAWS:
        for level in levels:
            _by_normal_steps(level, found, generator)
        return found
    block = max(1, BLOCK_ELEMENTS // len(confidence))
    for start in range(0, draws, block):
        part = slice(start, min(start + block, draws))
        right = generator.random((part.stop - start, len(confidence))) < confidence
        excess = mass * (right - confidence)
        for level in levels:
            path = np.cumsum(excess[:, level.order], axis=1)
            largest = level.standard(path[:, level.ends]).max(axis=1, initial=0.0)
            found[part] = np.maximum(found[part], largest)
    return found


def _by_normal_steps(level: _Level, found: np.ndarray, generator: np.random.Generator) -> None:
    """Sums over many rows are a random walk with normal steps: runs of rows of equal variance, 256 to a group."""
    variance = (level.mass**2 * level.confidence * (1 - level.confidence))[level.order]
    running = np.cumsum(variance)
    for place, start in enumerate(level.starts.tolist()):
        stop = level.starts[place + 1] if place + 1 < len(level.starts) else len(level.ends)
        first = 0 if start == 0 else level.ends[start - 1] + 1
        edges = running[level.ends[start:stop]] - (running[first - 1] if first else 0.0)
        picked = np.unique(np.searchsorted(edges, edges[-1] * np.arange(1, RUNS + 1) / RUNS - 1e-12 * edges[-1]))
        steps = np.sqrt(np.diff(edges[np.minimum(picked, len(edges) - 1)], prepend=0.0) / edges[-1])
        walk = np.cumsum(steps * generator.standard_normal((len(found), len(steps))), axis=1)
        # a continuous walk reaches 0.583 steps further than one that is looked at in between (Siegmund 1985)
        extra = 2 * 0.5826 * float(np.sqrt(np.mean(steps**2))) if len(edges) > 2 * RUNS else 0.0
        found[:] = np.maximum(found, walk.max(axis=1).clip(0) - walk.min(axis=1).clip(None, 0) + extra)


def _levels(groups: Any, n_rows: int) -> list[tuple[list[str], np.ndarray]]:
    """Names of groups and the group of each row (−1: none), for every way in which the rows are split."""
    if isinstance(groups, Mapping):
        columns = {str(name): _names(values, n_rows, str(name)) for name, values in groups.items()}
        levels = [_coded(np.char.add(f"{name} ", values)) for name, values in columns.items()]
        if len(columns) == 2:
            (first, left), (second, right) = columns.items()
            both = np.char.add(np.char.add(f"{first} ", left), np.char.add(f" & {second} ", right))
            levels.append(_coded(both))
        return levels
    if isinstance(groups, Sequence) and len(groups) and np.ndim(groups[0]) == 1:
        masks = [np.asarray(mask) for mask in groups]
        for place, mask in enumerate(masks):
            if mask.dtype != bool or mask.shape != (n_rows,):
                raise InputError(f"mask {place} has shape {mask.shape} and {mask.dtype}: give {n_rows} booleans")
        return [([f"mask {place}"], np.where(mask, 0, -1)) for place, mask in enumerate(masks)]
    return [_coded(_names(groups, n_rows, "groups"))]


def _coded(names: np.ndarray) -> tuple[list[str], np.ndarray]:
    found, code = np.unique(names, return_inverse=True)
    return found.tolist(), code


def _names(values: Any, n_rows: int, called: str) -> np.ndarray:
    column = np.asarray(values)
    if column.shape != (n_rows,):
        raise InputError(f"{called} has shape {column.shape}, but there are {n_rows} rows: give one group per row")
    return np.array([str(value) for value in column.tolist()])
