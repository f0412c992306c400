"""Rows: what every fit sees, wherever the values are.

One class holds scores, labels, weights, groups and clusters. The scores are an array in memory, or blocks that are read
pass by pass from files. A fit that touches its data only through `total`, `gather` and `sample` runs on both with the
same lines. A fingerprint names the data set, so that an artifact can say what it was fitted on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, NamedTuple, Protocol

import numpy as np

from calibrant.core.arrays import Array, check_score_values, check_values, sums_finitely
from calibrant.core.errors import InputError, warn_user
from calibrant.core.statistic import Kernel, Statistic, add, statistic
from calibrant.core.threads import BLOCK_ELEMENTS, map_blocks, row_blocks
from calibrant.core.zeros import log_floor_of, raised, sample_stride, warn_of_zeros

SHOWN_ROWS = 256
"""First rows, one of which is nearly always predicted correctly unless the rows were selected by error."""

SMALLEST_BLOCK = 1 << 18
"""Elements below which handing a block to a thread costs more than it saves."""

Columns = Kernel | Callable[..., tuple[np.ndarray, ...]]
"""`columns(logits, labels, weights, *parameters)` → arrays with an entry per row."""

Block = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Logits, labels and weights of consecutive rows."""


class SolvedTemperature(NamedTuple):
    """β = 1/T of the lowest mean NLL, the loss there and the passes it took."""

    value: float
    loss: float
    n_passes: int


class Blocks(Protocol):
    """Scores that are not an array at hand: `data.chunks.FileBlocks`, `kernels.torch.rows.DeviceBlocks`."""

    on_device: bool = False
    shape: tuple[int, ...]
    """Of all scores."""

    @property
    def log_floor(self) -> float:
        """The logarithm of what a probability of 0 counts as."""

    def sums(self, statistic: Statistic, parameters: tuple[Any, ...], rows: Rows) -> tuple[Any, ...]:
        """Sum of `statistic(logits, labels, weights, *parameters)` over all blocks, in order."""

    def gather(self, columns: Columns, parameters: tuple[Any, ...], rows: Rows) -> Sequence[Array]:
        """Arrays with an entry per row."""

    def sample(self, rows: Rows, size: int) -> Rows:
        """About so many rows."""

    def weighted(self, weights: Array | None) -> Blocks:
        """The same scores for rows with other weights: these, where weights are sent with each block."""
        return self

    def solved_temperature(self) -> SolvedTemperature | None:
        """The temperature of the lowest NLL, where it is found faster than by sums."""
        return None

    def array(self) -> Array:
        """All scores as one array."""

    def fingerprint(self, rows: Rows) -> str:
        """The name of the data set."""


@dataclass(eq=False)
class Rows:
    """Checked scores, labels, weights, group numbers and cluster numbers of n rows.

    Parameters
    ----------
    logits : array (n×K), or (n,) of one score per row, or None where they are in `blocks`
    labels : array (n,), or (n×L) of many labels
    weights, groups, clusters : arrays (n,) or None
    each : turns a block into several, such as `Smoothing`; None leaves it as it is
    blocks : where scores are that are not in memory
    settled : whether every value was looked at, and zeros have a value
    every_class : whether a map of single classes learns that those without rows are never true
    absent : what the data know of classes without labels: None, "keep" or "never"
    has_prior : whether a fit without an optimum returns the mode under a weak prior instead of the edge of its search
    rows_per_weight : number of rows that a weight of 1 stands for as evidence; user weights sum to the number of rows
    """

    logits: Any
    labels: Array
    weights: Array | None = None
    groups: Array | None = None
    clusters: Array | None = None
    each: Callable[..., Iterable[Block]] | None = None
    blocks: Blocks | None = None
    settled: bool = True
    every_class: bool = False
    absent: str | None = None
    has_prior: bool = True
    rows_per_weight: float = 1.0
    _log_floor: float | None = None

    def __post_init__(self) -> None:
        self.in_memory = self.blocks is None and self.each is None
        """Whether `logits` is an array at hand, one label per row."""
        self.on_device = self.blocks is not None and self.blocks.on_device
        """Whether the scores are on a GPU."""
        self.shape: tuple[int, ...] = self.logits.shape if self.blocks is None else self.blocks.shape
        """Of the scores."""
        self.one_score = len(self.shape) == 1
        """Whether there is one score per row."""
        self.n = len(self.labels)
        """Number of rows."""
        self.n_classes = 2 if self.one_score else self.shape[1]
        """Number of classes, or of labels; 2 of one score per row."""
        self.size = self.n if self.one_score else self.n * self.n_classes
        """Number of scores in all."""

    @property
    def total_weight(self) -> float:
        """Sum of the weights; n where there are none."""
        return float(self.n if self.weights is None else self.weights.sum())

    def mass(self) -> Array:
        """The weight of each row (n,)."""
        return np.ones(self.n) if self.weights is None else self.weights

    def class_weight(self) -> Array:
        """Total weight of each class (K,); 0 for a class that is absent."""
        if self.each is not None:
            return self.total(_class_weight)[0]
        return np.bincount(self.labels, self.weights, self.n_classes).astype(np.float64)

    def present(self) -> Array:
        """The classes of which there are rows that count."""
        return np.flatnonzero(self.class_weight() > 0)

    def columns(self, present: Array) -> Rows:
        """The rows of some classes and their columns alone."""
        whole = self.whole()
        whole.settle()
        part = whole.take(np.flatnonzero(np.isin(whole.labels, present)))
        return replace(part, logits=part.logits[:, present], labels=np.searchsorted(present, part.labels))

    def matrix(self) -> Rows:
        """One score per row as two-class logits [0, z]; a matrix is itself."""
        return replace(self, logits=two_columns(self.logits)) if self.one_score else self

    def take(self, index: Array | slice) -> Rows:
        """The rows at these places; of rows that are not in memory the others get the weight 0."""
        if self.blocks is not None:
            chosen = np.zeros(self.n)
            chosen[index] = 1.0
            return self.with_weights(chosen * self.mass())
        columns = {name: vars(self)[name] for name in ("logits", "labels", "weights", "groups", "clusters")}
        return replace(self, **{name: one[index] for name, one in columns.items() if one is not None})

    def sample(self, size: int) -> Rows:
        """About `size` rows, for a cheap first estimate; all of them when there are fewer."""
        if self.blocks is not None:
            return self.blocks.sample(self, size)
        some = slice(None, None, max(1, self.n // max(1, size)))
        if not self.settled and not sums_finitely(self.logits[some]):
            self.settle()
        return replace(self.take(some), settled=True)

    def total(self, statistic: Statistic, *parameters: Any) -> tuple[Any, ...]:
        """Sum of `statistic(logits, labels, weights, *parameters)` over all rows."""
        if self.blocks is not None:
            return self.blocks.sums(statistic, parameters, self)
        work = self.work_of(statistic, parameters, self.each)
        if not statistic.shows_bad_values:
            self.settle()
        sums = self._sums(work)
        if not self.settled and not np.isfinite(sums[: statistic.shows_bad_values]).all():
            self.settle()
            sums = self._sums(work)
        self.settled = True
        return sums

    def work_of(
        self, columns: Columns, parameters: tuple[Any, ...], each: Any = None
    ) -> Callable[..., tuple[Any, ...]]:
        """`work(logits, labels, weights)` → columns, or of a statistic sums, of a block; other processes can get it."""
        form = columns.form(self.size) if isinstance(columns, Kernel) else columns
        return partial(_summed, form, each, parameters)

    def _sums(self, work: Callable[..., tuple[Any, ...]]) -> tuple[Any, ...]:
        # few large blocks would leave cores idle; the cut depends on the data alone, so the sums have the same bits
        elements = min(max(self.size // 16, SMALLEST_BLOCK), BLOCK_ELEMENTS)
        return reduce(add, self._map(work, elements))

    def gather(self, columns: Columns, *parameters: Any) -> Sequence[Array]:
        """Arrays with an entry per row, joined in the order of the rows; every row has its own label alone."""
        if self.blocks is not None:
            return self.blocks.gather(columns, parameters, self)
        self.settle()
        parts = self._map(self.work_of(columns, parameters), BLOCK_ELEMENTS)
        return parts[0] if len(parts) == 1 else [np.concatenate(part) for part in zip(*parts, strict=True)]

    def _map(self, work: Callable[..., Any], elements: int) -> list[Any]:
        def part(block: slice) -> Any:
            weights = None if self.weights is None else self.weights[block]
            return work(self.logits[block], self.labels[block], weights)

        return map_blocks(part, row_blocks(self.n, max(1, self.size // self.n), elements))

    def whole(self) -> Rows:
        """All rows as arrays, for fits that rank or divide them."""
        if self.each is not None:
            raise InputError(
                "'cv' needs one label per row, label smoothing gives each row all: give the penalty as a number"
            )
        if self.blocks is None:
            return self
        # what a zero counts as was learned on the device before zeros got that value
        floor = self.log_floor if self.on_device else None
        logits, labels = self.blocks.array(), np.asarray(self.labels)
        return replace(self, logits=logits, labels=labels, blocks=None, settled=False, _log_floor=floor)

    def reweighted(self, factor: Columns) -> Rows:
        """The same rows with their weights multiplied by `factor(logits, labels, weights)` → (array (n,),)."""
        (factors,) = self.gather(factor)
        return self.with_weights(self.mass() * factors)

    def with_weights(self, weights: Array | None) -> Rows:
        """The same rows with other weights."""
        return replace(self, weights=weights, blocks=None if self.blocks is None else self.blocks.weighted(weights))

    def solved_temperature(self) -> SolvedTemperature | None:
        """The temperature of the lowest NLL, where it is found faster than by sums."""
        return None if self.blocks is None or self.each is not None else self.blocks.solved_temperature()

    def settle(self) -> None:
        """Look at every value, raise InputError at a bad one, and give zeros (±inf) a value, with a warning."""
        if self.settled or self.blocks is not None:
            return
        self.settled = True
        if all(self._map(lambda logits, *_: sums_finitely(logits), BLOCK_ELEMENTS)):
            return
        if self.one_score or self.labels.ndim == 2:
            check_score_values(self.logits.reshape(-1), from_logits=True, name="scores")
        else:
            check_values(self.logits, from_logits=True, name="logits")
        infinite = np.isinf(self.logits).reshape(self.n, -1).any(axis=1)
        n_zero = (infinite & (self.mass() > 0)).sum()
        self.logits = raised(self.logits, self.log_floor, scores=self.labels.ndim == 2)
        warn_of_zeros(n_zero, self.n, self.log_floor)

    @property
    def log_floor(self) -> float:
        """The logarithm of what a probability of 0 counts as, from a fixed sample of the rows that count."""
        if self.blocks is not None:
            return self.blocks.log_floor
        if self._log_floor is None:
            some = slice(None, None, sample_stride(self.n, self.n_classes))
            sample = self.logits[some]
            if self.weights is not None:
                sample = sample[self.weights[some] > 0]
            self._log_floor = log_floor_of(sample, one_score=self.one_score or self.labels.ndim == 2)
        return self._log_floor

    def fingerprint(self) -> str:
        """A short name of the data set, the same in memory and in files."""
        if self.blocks is not None:
            return self.blocks.fingerprint(self)
        logits = self.logits.reshape(self.n, -1)
        sample = logits[:: max(1, self.n // SAMPLED_ROWS)]
        return fingerprint_of_sample(logits.shape, sample, self.labels, self.weights)


def warn_of_selection(rows: Rows, *, by_class: bool) -> None:
    """Warn of rows that seem to be selected: all labels are equal, or no row is predicted correctly.

    With `by_class` also name classes without fit rows: a map with parameters per class learns nothing about them.
    """
    if rows.one_score or rows.labels.ndim == 2:
        return
    present, selected = rows.present(), "if the rows were selected by that, the fit does not hold for other rows"
    if len(present) == 1:
        warn_user(f"all labels are equal: {selected}")
    elif by_class and len(present) < rows.n_classes:
        absent = np.setdiff1d(np.arange(rows.n_classes), present)
        shown = ", ".join(map(str, [*absent[:5], "…"][: len(absent)]))
        warn_user(f"{len(absent)} of {rows.n_classes} classes have no fit rows ({shown}): nothing is learned of them")
    if rows.in_memory and not (_has_hit(rows, slice(SHOWN_ROWS)) or _has_hit(rows, slice(None))):
        warn_user(f"no row is predicted correctly: {selected}")


def _has_hit(rows: Rows, some: slice) -> bool:
    hits = rows.logits[some].argmax(axis=1) == rows.labels[some]
    return bool((hits if rows.weights is None else hits & (rows.weights[some] > 0)).any())


@dataclass(frozen=True)
class Smoothing:
    """Each row with its own label at weight 1−ε and with every label at ε/K: label smoothing of any likelihood."""

    share: float

    def __call__(self, logits: Array, labels: Array, weights: Array | None) -> Iterable[Block]:
        """The block once with its own labels, and once with each label."""
        ones = np.ones(len(labels)) if weights is None else weights
        yield logits, labels, (1 - self.share) * ones
        every = self.share / logits.shape[1] * ones
        for label in range(logits.shape[1]):
            yield logits, np.full_like(labels, label), every


@dataclass(frozen=True)
class Largest:
    """Numbers of which + keeps the larger ones, for statistics of extremes."""

    values: Array

    def __add__(self, other: Largest) -> Largest:
        return Largest(np.maximum(self.values, other.values))


def score_range(rows: Rows) -> Array:
    """Lowest and highest score of the rows that count, by label: (2, 2), (inf, −inf) where there are none."""
    return rows.total(_score_range)[0].values * (-1.0, 1.0)


@statistic
def _score_range(scores: Array, labels: Array, weights: Array | None) -> tuple[Largest]:
    counted = np.ones(len(labels), bool) if weights is None else weights > 0
    parts = [scores[counted & (labels == label)] for label in (0, 1)]
    extremes = [(-one.min(initial=np.inf), one.max(initial=-np.inf)) for one in parts]
    return (Largest(np.array(extremes)),)


def two_columns(scores: Array) -> Array:
    """The matrix [0, z] (n×2) of scores (n,)."""
    return np.stack([np.zeros_like(scores), scores], axis=1)


def is_one_column(values: Any) -> bool:
    """Whether an array or list has the shape (n,) or (n, 1): one score per row."""
    try:
        shape = np.shape(values)
    except (ValueError, TypeError):
        return False
    return len(shape) == 1 or tuple(shape[1:]) == (1,)


def _summed(
    form: Callable[..., tuple[Any, ...]],
    each: Callable[..., Iterable[Block]] | None,
    parameters: tuple[Any, ...],
    *block: Any,
) -> tuple[Any, ...]:
    if each is None:
        return form(*block, *parameters)
    return reduce(add, (form(*one, *parameters) for one in each(*block)))


@statistic
def _class_weight(logits: Array, labels: Array, weights: Array | None) -> tuple[Array]:
    return (np.bincount(labels, weights, logits.shape[1]).astype(np.float64),)


SAMPLED_ROWS = 256


def fingerprint_of_sample(shape: tuple[int, ...], sample: Array, labels: Array, weights: Array | None) -> str:
    """`sha256:` and 32 hex digits over the shape, all labels, all weights and 256 evenly spaced rows of the logits.

    It recognises a data set at the cost of a millisecond; it is no proof against someone who forges one. float32
    logits and the same numbers as float64 have the same fingerprint. `sample` is every (n // 256)-th row.
    """
    digest = hashlib.sha256(repr(shape).encode())
    for values, dtype in ((sample, "<f8"), (labels, "<i8"), (weights, "<f8")):
        if values is not None:
            digest.update(np.ascontiguousarray(values, dtype).data)
    return f"sha256:{digest.hexdigest()[:32]}"
