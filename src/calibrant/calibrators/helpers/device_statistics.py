"""Statistics of fits over rows on a GPU: the pass over the logits runs there, a few numbers per row come back.

Each statistic of a fit ends in a function of such numbers, and that function is the same here and for arrays. A fit
that reads calibrated logits gets `MappedRows`: the inner calibrator's map runs on the device, block by block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.calibrators.helpers.tensors import device_map
from calibrant.calibrators.solvers.bin_roots import summed_by_bin
from calibrant.calibrators.solvers.temperature_search import stacked_label_sums, stacked_soft_sums, stacked_width_sums
from calibrant.core.bins import place
from calibrant.kernels.mixture import mixed_sums

if TYPE_CHECKING:
    from calibrant.calibrators.base import Calibrator


def width_statistic(rows: Any, _: Any, betas: np.ndarray, n_bins: int) -> tuple[np.ndarray]:
    """Bin sums at each temperature."""
    return stacked_width_sums(rows.confidences_at(betas), rows.top()[2], rows.row_weights(), n_bins)


def soft_statistic(rows: Any, _: Any, betas: np.ndarray, n_bins: int, bandwidth: float) -> tuple[np.ndarray]:
    """Soft bin sums at each temperature."""
    return stacked_soft_sums(rows.confidences_at(betas), rows.top()[2], rows.row_weights(), n_bins, bandwidth)


def label_statistic(
    rows: Any, _: Any, betas: np.ndarray, accuracy: np.ndarray, bandwidth: float, norm: float
) -> tuple[np.ndarray]:
    """The label form of the soft-binned error at each temperature."""
    return stacked_label_sums(rows.confidences_at(betas), rows.row_weights(), accuracy, bandwidth, norm)


def mixture_nll(rows: Any, beta: float, shares: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """The mixture's NLL and its derivatives by the shares; the probabilities of the labels are computed once."""
    from calibrant.kernels.torch.row_passes import label_shares

    columns = [rows.remembered(("label shares", b), lambda b=b: label_shares(rows, b)) for b in (beta, 1.0)]
    columns.append(np.full(rows.n, 1 / rows.n_classes))
    return mixed_sums(np.stack(columns), rows.row_weights(), shares)


def mixture_squares(rows: Any, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """The products of the three components."""
    from calibrant.kernels.torch.row_passes import mixture_products

    sharp, plain, both, own_sharp, own_plain, total = mixture_products(rows, beta)
    flat = total / rows.n_classes
    return np.array([[sharp, both, flat], [both, plain, flat], [flat] * 3]), np.array([own_sharp, own_plain, flat])


def bin_moments(rows: Any, _: Any, edges: np.ndarray, inverse: np.ndarray) -> tuple[np.ndarray]:
    """The sums of each confidence bin at a temperature of its own."""
    from calibrant.kernels.torch.row_passes import label_gaps, row_moments

    index = place(rows.top()[0], edges)
    gaps = rows.remembered("label gaps", lambda: label_gaps(rows))
    return summed_by_bin(index, row_moments(rows, inverse[index]), gaps, rows.row_weights(), len(inverse))


def losses_and_bins(rows: Any, calibrator: Calibrator | None) -> tuple[np.ndarray, np.ndarray]:
    """Summed NLL of each class and bin sums, of calibrated logits."""
    from calibrant.calibrators.class_loss import summed_by_class
    from calibrant.kernels.torch.row_passes import label_columns

    change = None if calibrator is None else device_map(calibrator, rows.tensor.device)
    losses, confidence, correct = label_columns(rows, change)
    return summed_by_class(losses, confidence, correct, rows.labels, rows.row_weights(), rows.n_classes)


STATISTICS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "_width_statistic": width_statistic,
    "_soft_statistic": soft_statistic,
    "_label_statistic": label_statistic,
    "mixture_nll": mixture_nll,
    "mixture_squares": mixture_squares,
    "bin_moments": bin_moments,
    "_losses_and_bins": losses_and_bins,
}
"""Statistics by name, beside those of `kernels.torch.rows.TWINS`."""


class MappedRows:
    """Rows on a device under a fitted calibrator's map; for second stages of few parameters."""

    in_memory = False

    def __init__(self, rows: Any, calibrator: Calibrator) -> None:
        self.rows, self.calibrator = rows, calibrator
        self.n, self.n_classes, self.total_weight = rows.n, rows.n_classes, rows.total_weight
        self.labels, self.weights = rows.labels, rows.row_weights()
        self.change = device_map(calibrator, rows.tensor.device)

    def sample(self, size: int) -> MappedRows:
        """About `size` evenly spaced rows."""
        return MappedRows(self.rows.sample(size), self.calibrator)

    def top_odds(self) -> tuple[np.ndarray, np.ndarray]:
        """Prediction and log-odds of its confidence (n,) of each row."""
        from calibrant.kernels.torch.row_passes import top_odds

        prediction, log_odds = top_odds(self.rows, self.change)
        return prediction, log_odds

    def total(self, statistic: Any, shape: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """`shape_sums` of the mapped rows."""
        from array_api_compat import torch as xp

        from calibrant.calibrators.shape import features
        from calibrant.kernels.torch.row_passes import bent_sums

        return bent_sums(self.rows, lambda log_p: features(xp, log_p), shape, self.change)


def fit_inner(calibrator: Calibrator, rows: Any) -> MappedRows:
    """Fit an inner calibrator of few parameters on the device; the rows as it maps them."""
    return MappedRows(rows, calibrator.fit_rows(rows))


def can_fit_inner(calibrator: Calibrator | None) -> bool:
    """Is this inner calibrator fitted on the device, and its answers on the fit rows good for a second stage?"""
    return calibrator is None or bool(calibrator.few_parameters and (calibrator.additive or calibrator.fits_on_device))
