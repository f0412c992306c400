"""Calibration metrics inside a training loop: updated batch by batch on the device, read when wanted.

`update` launches work and returns: it never waits for the device. The state has the size of the bins, whatever the
number of rows, and adds up over processes.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.kernels.torch.columns import MEANS, BinSums, columns
from calibrant.kernels.torch.tensors import rows_of_maps
from calibrant.metrics.chunks import Streaming, streaming, update_all

NAMES = ("ece", "mce", "nll", "brier", "accuracy", "confidence")
"""What `compute` returns; "entropy" too where it is asked for."""


class CalibrationMetrics:
    """ECE, NLL, Brier score and accuracy of a stream of batches, in one pass over each.

    Parameters
    ----------
    n_bins : int
        Equal-width bins (lo, hi] of the top confidence.
    from_logits : bool
        Whether `update` is given logits or probabilities.
    ignore_index : int, optional
        Rows with this label are left out, as padding is.
    entropy : bool
        Whether `compute` gives the mean entropy too.
    device : torch device, optional
        Where the state lives; that of the first batch by default.
    metrics : names, optional
        Further metrics, of those that are functions of sums (`calibrant.metrics.streaming`), registered ones included.
        They wait for the device at each batch.

    Examples
    --------
    >>> import torch
    >>> metric = CalibrationMetrics(n_bins=10)
    >>> metric.update(torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0]))
    >>> round(metric.compute()["accuracy"].item(), 2)
    0.5
    """

    def __init__(
        self,
        n_bins: int = 15,
        *,
        from_logits: bool = True,
        ignore_index: int | None = None,
        entropy: bool = False,
        device: Any = None,
        metrics: Sequence[str] = (),
    ) -> None:
        self.n_bins, self.from_logits, self.ignore_index = n_bins, from_logits, ignore_index
        self.entropy, self.device, self.metrics = entropy, device, tuple(metrics)
        self.others = [streaming(name) for name in self.metrics]
        self.sums: BinSums | None = None if device is None else BinSums(n_bins, device)

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Add a batch: logits (n, K), or dense (N, K, …) with labels (N, …)."""
        if self.sums is None:
            self.sums = BinSums(self.n_bins, logits.device)
        values, target = as_rows(logits.detach(), labels)
        found = columns(values, target, from_logits=self.from_logits, entropy=self.entropy)
        self.sums.add(found, target, weights, ignore_index=self.ignore_index)
        if self.others:
            kept = slice(None) if self.ignore_index is None else target != self.ignore_index
            own = None if weights is None else weights[kept].cpu().numpy()
            update_all(self.others, values[kept], target[kept].cpu().numpy(), own, from_logits=self.from_logits)

    def compute(self) -> dict[str, Tensor]:
        """Every metric of `NAMES`, and those asked for, as tensors () on the device; NaN before the first row."""
        if self.sums is None:
            raise InputError("compute() before update(): there are no rows yet")
        others = {one.name: torch.as_tensor(one.value(), dtype=torch.float64) for one in self.others}
        return metrics_of(self.sums, entropy=self.entropy) | others

    def reset(self) -> None:
        """Forget all rows."""
        if self.sums is not None:
            self.sums.state.zero_()
        self.others = [streaming(name) for name in self.metrics]

    def sync(self, group: Any = None) -> None:
        """Add up the states of all processes of a torch.distributed group; every process then holds the total."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            if self.sums is None:
                # a process without rows takes part with zeros
                self.sums = BinSums(self.n_bins, self.device or "cpu")
            torch.distributed.all_reduce(self.sums.state, group=group)
            if self.others:
                held: list[Any] = [None] * torch.distributed.get_world_size(group)
                torch.distributed.all_gather_object(held, self.others, group=group)
                self.others = [reduce(Streaming.merge, parts) for parts in zip(*held, strict=True)]

    def __repr__(self) -> str:
        rows = 0 if self.sums is None else int(self.sums.slot("rows")[0])
        return f"CalibrationMetrics(n_bins={self.n_bins}, rows={rows})"


def metrics_of(sums: BinSums, *, entropy: bool = False) -> dict[str, Tensor]:
    """Every metric of `NAMES` from the sums, as tensors; NaN where a row held NaN, ∞ or −∞ alone."""
    weight, confidence, correct = sums.bins()[:, 0]
    gap = (confidence - correct).abs()
    found = {
        "ece": sums.ece()[0],
        "mce": torch.where(weight > 0, gap / weight.clamp_min(1e-300), 0.0).amax(),
        **{name: sums.mean(slot)[0] for name, slot in MEANS.items() if entropy or name != "entropy"},
    }
    is_bad = sums.slot("bad")[0] > 0
    return {name: torch.where(is_bad, torch.nan, value) for name, value in found.items()}


def as_rows(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (n, K) and labels (n,) of a batch; dense maps (N, K, H, W) become one row per position."""
    if logits.ndim < 2:
        raise InputError(f"logits must have shape (n, K) or (N, K, …), got {tuple(logits.shape)}")
    expected = (logits.shape[0], *logits.shape[2:])
    if tuple(labels.shape) != expected:
        raise InputError(
            f"labels must have shape {expected} for logits {tuple(logits.shape)}, got {tuple(labels.shape)}"
        )
    return logits if logits.ndim == 2 else rows_of_maps(logits), labels.reshape(-1).long()


def dense_rows(logits: Tensor, labels: Tensor, *, ignore_index: int | None = None) -> tuple[Tensor, Tensor]:
    """Rows (n, K) and labels (n,) of the positions that count, on the device of the maps: what `fit` takes.

    Parameters
    ----------
    logits : (N, K, H, W) tensor, or (N, K, …)
    labels : (N, H, W) tensor of class indices
    ignore_index : positions with this label are left out

    Examples
    --------
    >>> import torch
    >>> rows, labels = dense_rows(torch.zeros(2, 3, 4, 4), torch.full((2, 4, 4), 255), ignore_index=255)
    >>> tuple(rows.shape), tuple(labels.shape)
    ((0, 3), (0,))
    """
    rows, target = as_rows(logits.detach(), labels)
    if ignore_index is None:
        return rows, target
    counted = target != ignore_index
    return rows[counted], target[counted]


def as_torchmetric(n_bins: int = 15, *, from_logits: bool = True, ignore_index: int | None = None) -> Any:
    """The same as a `torchmetrics.Metric`, which Lightning logs and synchronises by itself.

    `compute` returns the dictionary of all metrics; torchmetrics must be installed.
    """
    from torchmetrics import Metric

    class CalibrationMetric(Metric):
        """ECE, NLL, Brier score, accuracy of a stream of batches."""

        full_state_update = False
        is_differentiable = False

        def __init__(self) -> None:
            super().__init__()
            self.add_state("sums", default=BinSums(n_bins, "cpu").state, dist_reduce_fx="sum")

        def _held(self) -> BinSums:
            state: Any = self.sums
            held = BinSums(n_bins, state.device)
            held.state = state
            return held

        def update(self, logits: Tensor, labels: Tensor) -> None:
            """Add a batch."""
            values, target = as_rows(logits.detach(), labels)
            found = columns(values, target, from_logits=from_logits, entropy=False)
            self._held().add(found, target, ignore_index=ignore_index)

        def compute(self) -> dict[str, Tensor]:
            """Every metric as a tensor."""
            return metrics_of(self._held())

    return CalibrationMetric()
