"""Smooth calibration error: the residuals are smoothed instead of binned."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.metrics.inputs import ClassIndices, Probabilities, RowWeights, top_label
from calibrant.metrics.record import Gaps, metric

N_CELLS = 4096
"""Cells of [0, 1] the residuals are gathered in."""


def reflected_gaussian(cells: Any, value: float, points: int = 200) -> np.ndarray:
    """Density (L, points) at the midpoints of [0, 1] of a Gaussian around each confidence, reflected at 0 and 1.

    The bandwidth is the error itself.
    """
    grid, bandwidth = (np.arange(points) + 0.5) / points, max(value, 1e-3)
    density = np.zeros((len(cells.confidence), points))
    for mirror in range(-2, 4):
        image = mirror + cells.confidence if mirror % 2 == 0 else mirror + 1 - cells.confidence
        density += np.exp(-0.5 * ((grid - image[:, None]) / bandwidth) ** 2)
    return density / (bandwidth * np.sqrt(2 * np.pi))


@metric(
    "smooth ECE",
    "smooth",
    unit="%",
    meaning="gap after kernel smoothing, without bins",
    interval=Gaps(reflected_gaussian, lambda g, share: np.abs(g).mean(axis=-1)),
)
def smooth_ece(
    probabilities: Probabilities, labels: ClassIndices, *, sample_weight: RowWeights = None, from_logits: bool = False
) -> float:
    """smECE: smoothed residuals at the bandwidth that equals the error itself (Błasiok & Nakkiran 2023, def. 3).

    ``smECE_σ = ∫₀¹ |1/n Σ_i K_σ(t, c_i)(a_i − c_i)| dt`` with a Gaussian kernel reflected at 0 and 1, taken at the
    fixed point ``σ = smECE_σ``. Residuals are shared between the two nearest of 4096 cells (error below 1e-4).

    Examples
    --------
    >>> from calibrant.metrics import smooth_ece
    >>> round(smooth_ece([[0.75, 0.25]] * 4, [0, 0, 1, 1]), 4)
    0.25
    """
    spectrum = _spectrum(*top_label(probabilities, labels, sample_weight, from_logits))
    low, high = 0.0, 1.0
    surplus_low, surplus_high = smoothed_error(spectrum, low) - low, smoothed_error(spectrum, high) - high
    if surplus_low <= 0:
        return 0.0
    # the error falls in σ, so σ − error has one root; the Illinois rule keeps false position from stalling
    for _ in range(60):
        middle = (low * surplus_high - high * surplus_low) / (surplus_high - surplus_low)
        surplus = smoothed_error(spectrum, middle) - middle
        if abs(surplus) < 1e-10 or high - low < 1e-10:
            break
        if surplus > 0:
            low, surplus_low, surplus_high = middle, surplus, surplus_high / 2
        else:
            high, surplus_high, surplus_low = middle, surplus, surplus_low / 2
    return float(middle)


def smoothed_error(spectrum: np.ndarray, bandwidth: float) -> float:
    """smECE_σ of the residuals with this cosine spectrum."""
    # on [0, 1] with reflecting ends the Gaussian kernel multiplies the k-th cosine by exp(−(πkσ)²/2)
    frequency = np.pi * np.arange(len(spectrum))
    smoothed = np.fft.irfft(spectrum * np.exp(-((frequency * bandwidth) ** 2) / 2), 2 * N_CELLS)
    return float(np.abs(smoothed[:N_CELLS]).sum())


def _spectrum(confidence: np.ndarray, correct: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Fourier transform of the residuals on the grid, mirrored at 1 so that it becomes a cosine series."""
    wide = confidence.astype(np.float64, copy=False)
    residual = correct - wide
    if weights is not None:
        residual = residual * weights
    position = np.clip(wide * N_CELLS - 0.5, 0.0, N_CELLS - 1.0)
    cell = np.minimum(position.astype(np.intp), N_CELLS - 2)
    upper = position - cell
    grid = np.bincount(cell, residual * (1 - upper), minlength=N_CELLS)
    grid[1:] += np.bincount(cell, residual * upper, minlength=N_CELLS - 1)
    return np.fft.rfft(np.concatenate([grid, grid[::-1]])) / (len(wide) if weights is None else weights.sum())
