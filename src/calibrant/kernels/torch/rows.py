"""Blocks of `Rows` that lie on a GPU: sums are computed where the data is.

A statistic with a form on the device (`@statistic.on_device`) runs there and only its sums come back. For
any other the rows are copied to the host: once, or where they are very many in blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from calibrant.core.arrays import Array
from calibrant.core.errors import InputError, warn_user
from calibrant.core.rows import Columns, Rows, SolvedTemperature
from calibrant.core.statistic import Kernel, Statistic, add
from calibrant.core.zeros import half_of, sample_stride, warn_of_zeros
from calibrant.kernels import scaling
from calibrant.kernels.torch.temperature import fast_fit, temperature_sums
from calibrant.kernels.torch.tensors import first_maximum, host, of_label, row_slices, use_triton, widened

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


WIDE_ELEMENTS = 1 << 22
"""Numbers of a block in float64: a pass holds a few copies of it."""

LONGEST = 4096
"""Classes up to which the Triton kernels of vector scaling hold a row and its sums in registers."""

HOST_ELEMENTS = 1 << 30
"""Up to this many logits a fit that needs them on the host gets them once; beyond, in blocks, pass by pass."""


class HostView:
    """A tensor on a device as an array: picked entries are copied to the host, all of them where an array is needed."""

    def __init__(self, read: Callable[[], Tensor]) -> None:
        tensor = read()
        self.read, self.shape, self.ndim = read, tuple(tensor.shape), tensor.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the array."""
        return self[:0].dtype

    def __getitem__(self, index: Any) -> Array:
        return host(widened(self.read()[torch.as_tensor(index) if isinstance(index, np.ndarray) else index]))

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype)


@dataclass(eq=False)
class DeviceBlocks:
    """Logits (n×K) in any floating dtype, labels (n,) and weights (n,) or None, all on one device.

    A statistic's form on the device is called with this object. `change` is a map of the logits, row by row, such as a
    fitted calibrator, under which second stages see them. `fused` says that sums may take exponentials in float32.
    """

    tensor: Tensor
    target: Tensor
    mass: Tensor | None = None
    change: Callable[..., Tensor] | None = None
    settled: bool = False
    fused: bool = True
    on_device: ClassVar[bool] = True
    _remembered: dict[Any, Any] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        # the kernels step from label to label: a view such as y[::3] must be copied
        self.target, self.mass = self.target.contiguous(), None if self.mass is None else self.mass.contiguous()
        self.n, self.n_classes = self.shape = tuple(self.tensor.shape)

    def rows(self) -> Rows:
        """The rows of a fit; labels are copied to the host only where they are read there."""
        logits, labels = HostView(lambda: self.tensor), HostView(lambda: self.target)
        return Rows(logits, labels, self.weights, blocks=self)  # type: ignore[arg-type]

    def put(self, values: Any, dtype: Any = None) -> Tensor:
        """An array as a tensor where the rows are."""
        return torch.as_tensor(values, dtype=dtype, device=self.tensor.device)

    def sums(self, statistic: Statistic, parameters: tuple[Any, ...], rows: Rows) -> tuple[Any, ...]:
        """Sum of the statistic over all rows: on the device where it has a form there, else block by block."""
        self.settle()
        if statistic.device_form is not None and rows.each is None:
            return statistic.device_form(self, *parameters)
        if statistic.array_form is not None and rows.each is None:
            return self.array_sums(statistic, *parameters)
        return reduce(add, (part.total(statistic, *parameters) for part in self._on_host(rows)))

    def array_sums(self, statistic: Statistic, *parameters: Any) -> tuple[Any, ...]:
        """Sum of a statistic that is written over the array API, on the device and in float64."""
        there = [self.put(one, torch.float64) for one in parameters]
        parts = (
            statistic.array_form(values, self.target[block], None if self.mass is None else self.mass[block], *there)
            for block, values in self.wide_blocks()
        )
        return tuple(host(total)[()] for total in reduce(add, parts))

    def wide_blocks(self, change: Callable[..., Tensor] | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Places and float64 logits (m, K) of blocks of rows, as `change` or the rows' own map gives them."""
        self.settle()
        change = change or self.change
        for block in row_slices(self.n, self.n_classes, WIDE_ELEMENTS):
            values = self.tensor[block]
            yield block, (values if change is None else change(widened(values))).double()

    def per_row(
        self, work: Callable[..., tuple[Tensor, ...]], *given: Tensor, change: Callable[..., Tensor] | None = None
    ) -> list[Any]:
        """Arrays (n, …) on the host, joined from what `work(values, labels, *given)` gives for each block."""
        columns = self.target, *given
        parts = [work(values, *(one[block] for one in columns)) for block, values in self.wide_blocks(change)]
        return [host(torch.cat(column)) for column in zip(*parts, strict=True)]

    def gather(self, columns: Columns, parameters: tuple[Any, ...], rows: Rows) -> Sequence[Array]:
        """Arrays with an entry per row: computed on the device where they have a form there, else on the host."""
        self.settle()
        if isinstance(columns, Kernel) and columns.device_form is not None:
            return columns.device_form(self, *parameters)
        parts = [part.gather(columns, *parameters) for part in self._on_host(rows)]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def _on_host(self, rows: Rows) -> Iterator[Rows]:
        """All rows on the host, or where they are very many block by block."""
        self._warn_of_copy()
        if self.n * self.n_classes <= HOST_ELEMENTS:
            yield Rows(self.array(), self.labels, self.weights, each=rows.each)
            return
        for block in row_slices(*self.shape):
            yield Rows(*self._block(block), each=rows.each)

    def sample(self, rows: Rows, size: int) -> Rows:
        """About `size` evenly spaced rows."""
        self.settle()
        some = slice(None, None, max(1, self.n // max(1, size)))
        mass = None if self.mass is None else self.mass[some]
        chosen = replace(self, tensor=self.tensor[some], target=self.target[some], mass=mass)
        return replace(chosen.rows(), each=rows.each)

    def weighted(self, weights: Array | None) -> DeviceBlocks:
        """The same rows with other weights; nothing else is copied."""
        self.settle()
        return replace(self, mass=None if weights is None else self.put(weights))

    def precise(self) -> DeviceBlocks:
        """The same rows, whose sums take exponentials in float64."""
        self.settle()
        return replace(self, fused=False)

    def array(self) -> Array:
        """All logits on the host, for fits that have no form on the device."""
        self.settle()
        self._warn_of_copy()
        return self.remembered("array", lambda: self._block(slice(None))[0])

    @cached_property
    def log_floor(self) -> float:
        """The logarithm of what a probability of 0 counts as, from the rows that `core.zeros` samples."""
        lowest = float(self._lowest)
        if not lowest > -torch.inf:
            log_p = self._sampled()
            lowest = float(log_p.masked_fill(torch.isneginf(log_p), torch.inf).amin())
        return half_of(min(lowest, 0.0), self.n_classes)

    @cached_property
    def _lowest(self) -> Tensor:
        """The smallest log-probability of the sample, zeros included; two small launches that nobody waits for."""
        return self._sampled().amin()

    def _sampled(self) -> Tensor:
        """Log-probabilities of the sampled rows; 0 in rows that do not count."""
        some = slice(None, None, sample_stride(self.n, self.n_classes))
        # as precise as on the host: folds hash the values that zeros get from it
        log_p = self.tensor[some].log_softmax(dim=1, dtype=torch.float64)
        return log_p if self.mass is None else log_p.masked_fill((self.mass[some] == 0)[:, None], 0.0)

    def fingerprint(self, rows: Rows) -> str:
        """Rows on a device have no name."""
        return ""

    def fold_columns(self, salt: np.uint64, odd: np.uint64) -> tuple[Array, ...]:
        """A hash of each row that the order of its columns does not change, its prediction, and its label's logit.

        The bits are those of the host's hash: signed integers wrap around at 64 bits as the unsigned ones there do.
        """
        start, factor = int(salt.astype(np.int64)), int(odd.astype(np.int64))

        def mix(bits: Tensor) -> Tensor:
            for shift in (32, 29):
                # a shift of unsigned numbers brings in zeros from the left
                bits = (bits ^ ((bits >> shift) & ((1 << (64 - shift)) - 1))) * factor
            return bits

        def work(values: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
            hashes = mix(mix((values.float().double() + 0.0).view(torch.int64) ^ start).sum(dim=1))
            return hashes, first_maximum(values), of_label(values, labels)

        hashes, *others = self.per_row(work)
        return hashes.view(np.uint64), *others

    def label_shares(self, beta: float) -> Array:
        """The probability of the label of each row under softmax(β·z); n numbers, which are kept."""

        def work(values: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
            return (of_label((values * beta).softmax(dim=1), labels),)

        return self.remembered(("label shares", beta), lambda: self.per_row(work)[0])

    def hold_probabilities(self) -> bool:
        """Are all values at least 0 and does every row sum to 1, or in percent, as `core.arrays` has it, to 100?"""

        def held(values: Tensor) -> Tensor:
            sums = values.sum(dim=1)
            percent = (sums - 100).abs() <= min(0.5 * self.n_classes, 2.0)
            return (((sums - 1).abs() <= 1e-3) | percent).all() & (values >= 0).all()

        return all(bool(held(self.tensor[block].float())) for block in row_slices(*self.shape))

    def top(self) -> list[Array]:
        """Confidence, prediction and correctness of each row; they are n numbers each, and are kept."""
        return self.remembered("top", lambda: self.per_row(top_columns))

    def solved_temperature(self) -> SolvedTemperature | None:
        """The temperature of the lowest NLL by one launch; None where the general solver is needed."""
        solved = fast_fit(self.tensor, self.target, self.mass, meanwhile=lambda: self._lowest) if self.fused else None
        if solved is not None or self.settled:
            return solved
        self.settle()
        return self.solved_temperature()

    def confidences_at(self, betas: Array) -> Array:
        """The top confidence of softmax(β·z) for every row and β: (n, G) in float64."""
        return self.per_row(lambda values, _: (scaling.block_confidences(values, betas.tolist()),))[0]

    @cached_property
    def labels(self) -> Array:
        """The labels (n,) on the host."""
        return host(self.target)

    @cached_property
    def weights(self) -> Array | None:
        """The weight of each row (n,) on the host, or None."""
        return None if self.mass is None else host(self.mass)

    def remembered(self, key: Any, work: Callable[[], Any]) -> Any:
        """What `work` gave the first time it was asked for under this key."""
        if key not in self._remembered:
            self._remembered[key] = work()
        return self._remembered[key]

    def _warn_of_copy(self) -> None:
        """Say once that the work is done on the host."""
        size = f"{self.n}×{self.n_classes}"
        text = f"this fit has no form on the GPU: {size} logits are copied to the host and fitted there"
        self.remembered("warned", lambda: warn_user(text))

    def settle(self) -> None:
        """Look at every label and value: raise InputError at a bad one, and give zeros (−inf) a value.

        The fused fit of a temperature notices them by itself, so that it needs no such pass.
        """
        if self.settled:
            return
        self.settled = True
        lowest, highest = torch.stack(torch.aminmax(self.target)).tolist()
        if lowest < 0 or highest >= self.n_classes:
            raise InputError(
                f"labels reach from {lowest} to {highest}, but the logits have columns 0..{self.n_classes - 1}"
            )
        if torch.isfinite(torch.stack(torch.aminmax(self.tensor))).all():
            return
        infinite = torch.isneginf(self.tensor).any(dim=1)
        picked = self.tensor[infinite].double()
        bad = ~(self.tensor < torch.inf).all(dim=1)
        bad[infinite] |= torch.isneginf(picked).all(dim=1)
        if bad.any():
            first = bad.nonzero()[0, 0]
            raise InputError(f"{int(bad.sum())} rows of logits hold NaN or infinite values, the first in row {first}")
        level = picked.logsumexp(dim=1, keepdim=True) + self.log_floor
        self.tensor = self.tensor.clone()
        self.tensor[infinite] = torch.where(torch.isneginf(picked), level, picked).to(self.tensor.dtype)
        counted = infinite if self.mass is None else infinite & (self.mass > 0)
        warn_of_zeros(int(counted.sum()), self.n, self.log_floor)

    def use_fused(self) -> bool:
        """Whether the sums run as Triton kernels."""
        return self.fused and use_triton(self.tensor)

    def _block(self, block: slice) -> tuple[Array, Array, Array | None]:
        logits = host(widened(self.tensor[block]))
        return logits, host(self.target[block]), None if self.mass is None else host(self.mass[block])


def device_blocks(logits: Tensor, labels: Any, weights: Any) -> DeviceBlocks:
    """Check the inputs of a fit on a device; one wait for all checks together."""
    if logits.ndim != 2 or logits.shape[1] < 2 or len(logits) == 0:
        raise InputError(f"logits must have shape (n, K) with n ≥ 1 and K ≥ 2, got {tuple(logits.shape)}")
    if logits.dtype not in FLOATS:
        raise InputError(f"logits must be floating-point numbers, got {logits.dtype}")
    rows = logits.detach()
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    target = torch.as_tensor(labels, device=rows.device)
    if target.shape != (len(rows),):
        raise InputError(f"labels must have shape ({len(rows)},), got {tuple(target.shape)}")
    if target.is_floating_point() or target.dtype == torch.bool:
        raise InputError(f"labels must be whole numbers, got {target.dtype}")
    target = target.long()
    mass = None
    if weights is not None:
        mass = torch.as_tensor(weights, device=rows.device).double()
        if mass.shape != (len(rows),):
            raise InputError(f"sample_weight must have shape ({len(rows)},), got {tuple(mass.shape)}")
        if not ((torch.isfinite(mass) & (mass >= 0)).all() and mass.sum() > 0):
            raise InputError("sample_weight must be finite, not negative and not all zero")
    return DeviceBlocks(rows, target, mass)


@scaling.temperature_sums.on_device
def _temperature_sums(rows: DeviceBlocks, beta: float) -> tuple[float, ...]:
    return tuple(temperature_sums(rows.tensor, rows.target, rows.mass, beta).tolist())


@scaling.vector_sums.on_device
def _vector_sums(rows: DeviceBlocks, *point: Array) -> tuple[Any, ...]:
    if not (rows.use_fused() and rows.n_classes <= LONGEST):
        return rows.array_sums(scaling.vector_sums, *point)
    from calibrant.kernels.torch import triton_vector

    loss, sums = map(host, triton_vector.vector_sums(*_given(rows, point)))
    return float(loss), sums[:2], sums[2:]


@scaling.vector_product.on_device
def _vector_product(rows: DeviceBlocks, *point: Array) -> tuple[Any, ...]:
    if not (rows.use_fused() and rows.n_classes <= LONGEST):
        return rows.array_sums(scaling.vector_product, *point)
    from calibrant.kernels.torch import triton_vector

    return (host(triton_vector.vector_product(*_given(rows, point))),)


def _given(rows: DeviceBlocks, point: tuple[Array, ...]) -> tuple[Any, ...]:
    """What the Triton kernels of vector scaling take."""
    return rows.tensor, rows.target, rows.mass, rows.put(np.vstack(point), torch.float32)


def top_columns(values: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Confidence in float64, prediction and correctness of each row: work for `DeviceBlocks.per_row`.

    Near 1 neighbouring float32 numbers are 6e-8 apart: methods that rank confidences would see ties.
    """
    prediction = first_maximum(values)
    confidence = 1.0 / (values - values.amax(dim=1, keepdim=True)).exp_().sum(dim=1)
    return confidence, prediction.int(), prediction == labels


def label_columns(values: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """NLL of the label, confidence and correctness of each row."""
    scores = values.log_softmax(dim=1)
    return -of_label(scores, labels), scores.amax(dim=1).exp(), first_maximum(scores) == labels


def top_odds(values: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Prediction of each row, and the peak minus the log-sum-exp of all other logits."""
    prediction = first_maximum(values)
    others = values.scatter(1, prediction[:, None], -torch.inf).logsumexp(dim=1)
    return prediction, values.amax(dim=1) - others


def label_moments(values: Tensor, labels: Tensor, betas: Tensor) -> tuple[Tensor, ...]:
    """The logit of the label minus the highest one of each row, and `kernels.scaling.row_moments` at its β."""
    return of_label(values, labels) - values.amax(dim=1), scaling.block_moments(values, betas)


def scaled_top(
    logits: Tensor, temperatures: Tensor, rows: Tensor | None = None, without: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Peak, first winner and Σ exp(s − peak) of each (chosen) row of s = z/T; one class may be left out."""
    n_rows = len(logits) if rows is None else len(rows)
    peaks = logits.new_empty(n_rows, dtype=torch.float64)
    masses, winners = torch.empty_like(peaks), logits.new_empty(n_rows, dtype=torch.int32)
    for block in row_slices(n_rows, logits.shape[1]):
        scores = logits[block if rows is None else rows[block]].double() / temperatures
        if without is not None:
            scores[:, without] = -torch.inf
        winner = first_maximum(scores)
        peak = scores.gather(1, winner[:, None])
        peaks[block], winners[block] = peak[:, 0], winner.to(torch.int32)
        masses[block] = scores.sub_(peak).exp_().sum(dim=1)
    return peaks, winners, masses
