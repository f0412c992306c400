"""Second stages of fits over rows on a GPU: the inner calibrator's map runs there, block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.calibrators.helpers.tensors import device_map

if TYPE_CHECKING:
    from calibrant.calibrators.base import Calibrator


class MappedRows:
    """Rows on a device under a fitted calibrator's map; for second stages of few parameters."""

    in_memory = False

    def __init__(self, rows: Any, calibrator: Calibrator) -> None:
        self.rows, self.calibrator = rows, calibrator
        self.n, self.n_classes, self.total_weight = rows.n, rows.n_classes, rows.total_weight
        self.labels, self.weights = rows.labels, rows.weights
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
