"""Rows of a fit that lie on a GPU: the same sums as `core.rows.Rows`, computed where the data is.

A statistic with a form on the device (`@statistic.on_device`) runs there and only its sums come back. For
any other the rows are copied to the host: once, or where they are very many in blocks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.core.errors import FitWarning, InputError
from calibrant.core.rows import Columns, Factor, Rows, SolvedTemperature
from calibrant.core.statistic import Kernel, Statistic, add
from calibrant.kernels import scaling
from calibrant.kernels.torch import vector  # noqa: F401 (registers the forms of vector scaling)
from calibrant.kernels.torch.temperature import check_finite, fast_fit, temperature_confidences, temperature_sums
from calibrant.kernels.torch.tensors import host, row_slices, use_triton

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


HOST_ELEMENTS = 1 << 30
"""Up to this many logits a fit that needs them on the host gets them once; beyond, in blocks, pass by pass."""


class HostLogits:
    """The logits of rows on a device, of which picked rows (and columns) are copied to the host."""

    def __init__(self, rows: TensorRows) -> None:
        self.tensor = rows.tensor
        self.dtype = np.dtype(np.float64 if rows.tensor.dtype == torch.float64 else np.float32)

    def __getitem__(self, index: Any) -> np.ndarray:
        picked = self.tensor[torch.as_tensor(index) if isinstance(index, np.ndarray) else index]
        return host(picked if picked.dtype in (torch.float32, torch.float64) else picked.float())


class TensorRows:
    """Logits (n×K) in any floating dtype, labels (n,) and weights (n,) or None, all on one device."""

    in_memory = one_score = False
    groups = clusters = None
    fused = True
    checked = False

    def __init__(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        # the kernels step from label to label: a view such as y[::3] must be copied
        self.tensor, self.target = logits, labels.contiguous()
        self.mass = None if weights is None else weights.contiguous()
        self._remembered: dict[Any, Any] = {}

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.tensor.shape[0])

    @property
    def n_classes(self) -> int:
        """Number of columns."""
        return int(self.tensor.shape[1])

    @property
    def total_weight(self) -> float:
        """Sum of the weights; n where there are none."""
        return float(self.n) if self.mass is None else float(self.mass.sum())

    def class_weight(self) -> np.ndarray:
        """Total weight of each class (K,)."""
        self.check_labels()
        counted = torch.bincount(self.target, self.mass, minlength=self.n_classes)
        return host(counted).astype(np.float64)

    def sample(self, size: int) -> TensorRows:
        """About `size` evenly spaced rows."""
        step = max(1, self.n // max(1, size))
        return self._like(self.tensor[::step], self.target[::step], None if self.mass is None else self.mass[::step])

    def take(self, index: np.ndarray) -> TensorRows:
        """Only these rows count: the others get weight 0, so that nothing is copied."""
        chosen = torch.zeros(self.n, dtype=torch.float64, device=self.tensor.device)
        chosen[torch.as_tensor(index, device=self.tensor.device)] = 1.0
        return self._like(self.tensor, self.target, chosen if self.mass is None else self.mass * chosen)

    def hold_probabilities(self) -> bool:
        """Are all values in [0, 1] and does every row sum to 1?"""
        for block in row_slices(*self.tensor.shape):
            values = self.tensor[block].float()
            if not bool(((values.sum(dim=1) - 1).abs() <= 1e-3).all() & (values >= 0).all()):
                return False
        return True

    def fold_columns(self, salt: np.uint64, odd: np.uint64) -> tuple[np.ndarray, ...]:
        """Hash of each row, its prediction and the logit of its label; the bits are those of the host's hash."""
        from calibrant.kernels.torch.row_passes import fold_columns

        hashes, prediction, own = fold_columns(self, int(salt.astype(np.int64)), int(odd.astype(np.int64)))
        return hashes.view(np.uint64), prediction, own

    def _like(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> TensorRows:
        return TensorRows(logits, labels, weights)

    def total(self, statistic: Statistic, *parameters: Any) -> tuple[Any, ...]:
        """Sum of the statistic over all rows: on the device where it has a form there, else block by block."""
        self.check_labels()
        if statistic.device_form is not None:
            return statistic.device_form(self, *parameters)
        self._warn_of_copy()
        if self._fits_on_host():
            return self.whole().total(statistic, *parameters)
        form = statistic.form(self.n * self.n_classes)
        parts = (form(*self._block(block), *parameters) for block in row_slices(*self.tensor.shape))
        return reduce(add, parts)

    def gather(self, columns: Columns, *parameters: Any) -> Sequence[np.ndarray]:
        """Arrays with an entry per row: computed on the device where they have a form there, else on the host."""
        if isinstance(columns, Kernel) and columns.device_form is not None:
            return columns.device_form(self, *parameters)
        self._warn_of_copy()
        if self._fits_on_host():
            return self.whole().gather(columns, *parameters)
        form = columns.form(self.n * self.n_classes) if isinstance(columns, Kernel) else columns
        parts = [form(*self._block(block), *parameters) for block in row_slices(*self.tensor.shape)]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def top(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Confidence, prediction and correctness of each row; they are n numbers each, and are kept."""
        return self.remembered("top", self._top)

    def _top(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        from calibrant.kernels.torch.row_passes import top_columns

        self.check_labels()
        confidence, prediction, correct = top_columns(self)
        bad = np.flatnonzero(~np.isfinite(confidence))
        if len(bad):
            raise InputError(f"{len(bad)} rows of logits hold NaN or infinite values, the first in row {bad[0]}")
        return confidence, prediction.astype(np.int32), correct

    def whole(self) -> Rows:
        """All rows on the host, for fits that have no form on the device."""
        self._warn_of_copy()
        return self.remembered("whole", lambda: Rows(*self._block(slice(None))))

    def _fits_on_host(self) -> bool:
        return self.n * self.n_classes <= HOST_ELEMENTS

    def reweighted(self, factor: Factor) -> TensorRows:
        """The same rows with their weights multiplied by a function of logits and labels, or of labels alone."""
        table = getattr(factor, "factors", None)
        if table is not None:
            mass = torch.as_tensor(table, device=self.tensor.device)[self.target]
        else:
            (factors,) = self.gather(lambda logits, labels, weights: (factor(logits, labels),))
            mass = torch.as_tensor(factors, device=self.tensor.device)
        return self._like(self.tensor, self.target, mass if self.mass is None else self.mass * mass)

    def precise(self) -> TensorRows:
        """The same rows, whose sums take exponentials in float64."""
        twin = self._like(self.tensor, self.target, self.mass)
        twin.fused = False
        return twin

    def solved_temperature(self) -> SolvedTemperature | None:
        """The temperature of the lowest NLL by one launch; None where the general solver is needed."""
        solved = fast_fit(self.tensor, self.target, self.mass) if self.fused else None
        if solved is None:
            self.check_labels()
            check_finite(self.tensor, self.target)
        return solved

    def confidences_at(self, betas: np.ndarray) -> np.ndarray:
        """The top confidence of softmax(β·z) for every row and β: (n, G) in float64."""
        return host(temperature_confidences(self.tensor, torch.as_tensor(betas, dtype=torch.float64)))

    @property
    def labels(self) -> np.ndarray:
        """The labels (n,) on the host."""
        return self.remembered("labels", lambda: host(self.target))

    @property
    def weights(self) -> np.ndarray | None:
        """The weight of each row (n,) on the host, or None."""
        return None if self.mass is None else host(self.mass)

    @property
    def logits(self) -> HostLogits:
        """Rows of logits are copied to the host when they are picked."""
        return HostLogits(self)

    def remembered(self, key: Any, work: Callable[[], Any]) -> Any:
        """What `work` gave the first time it was asked for under this key."""
        if key not in self._remembered:
            self._remembered[key] = work()
        return self._remembered[key]

    def _warn_of_copy(self) -> None:
        """Say once that the work is done on the host."""
        if not self._remembered.setdefault("warned", False):
            self._remembered["warned"] = True
            warnings.warn(
                f"this fit has no form on the GPU: {self.n}×{self.n_classes} logits are copied to the host and fitted "
                "there",
                FitWarning,
                stacklevel=5,
            )

    def check_labels(self) -> None:
        """Raise InputError where a label has no column; the fused fit notices that by itself."""
        if not self.checked:
            lowest, highest = torch.stack(torch.aminmax(self.target)).tolist()
            if lowest < 0 or highest >= self.n_classes:
                raise InputError(
                    f"labels reach from {lowest} to {highest}, but the logits have columns 0..{self.n_classes - 1}"
                )
            self.checked = True

    def use_fused(self) -> bool:
        """Whether the sums run as Triton kernels."""
        return self.fused and use_triton(self.tensor)

    def _block(self, block: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        logits = self.tensor[block]
        wide = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
        return host(wide), host(self.target[block]), None if self.mass is None else host(self.mass[block])


def tensor_rows(logits: Tensor, labels: Any, weights: Any) -> TensorRows:
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
    mass = None if weights is None else torch.as_tensor(weights, device=rows.device).double()
    if mass is not None and mass.shape != (len(rows),):
        raise InputError(f"sample_weight must have shape ({len(rows)},), got {tuple(mass.shape)}")
    if mass is not None and not bool((torch.isfinite(mass) & (mass >= 0)).all() & (mass.sum() > 0)):
        raise InputError("sample_weight must be finite, not negative and not all zero")
    found = TensorRows(rows, target, mass)
    if not found.use_fused():
        found.check_labels()
    return found


@scaling.temperature_sums.on_device
def _temperature_sums(rows: TensorRows, beta: float) -> tuple[float, ...]:
    return tuple(temperature_sums(rows.tensor, rows.target, rows.mass, beta).tolist())


def on_device_of(rows: TensorRows) -> Callable[[np.ndarray], Tensor]:
    """A function that puts an array where the rows are."""
    return lambda values: torch.as_tensor(values, device=rows.tensor.device)
