"""What is known of classes that were not stored: bounds on their share of the softmax at any temperature.

Of a row only the k largest logits are known, and R = Σ exp(z_j) over the m other classes, none of which exceeds
X = exp(smallest stored logit). At the inverse temperature β the others weigh S(β) = Σ exp(β·z_j) = Σ x_j^β with
Σ x_j = R and 0 ≤ x_j ≤ X. For β < 1 the power is concave: S is largest when all x_j are equal, m·(R/m)^β, and smallest
when few classes hold all of R, at least X^β·q with q = R/X (R^β where q < 1: one class holds it). For β > 1 it is
convex and the two change places; at β = 1 both are R.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class TopRows(NamedTuple):
    """The known part of some rows, logits measured from the row's peak, float64."""

    stored: np.ndarray
    """The k largest logits (n×k)."""
    rest: np.ndarray
    """log R of the classes of which nothing else is known (n,); −inf where there are none."""
    lowest: np.ndarray
    """log X (n,)."""
    n_rest: np.ndarray
    """m (n,)."""
    label: np.ndarray
    """The logit of the label (n,); NaN where it is not known."""
    label_apart: np.ndarray
    """Is the label known, but not among the stored (n,)? It then weighs besides them and besides the rest."""


def log_masses(rows: TopRows, inverse_temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bound (n,) of log Σ_j exp(β·z_j) over all classes of each row."""
    beta = float(inverse_temperature)
    known = np.exp(beta * rows.stored).sum(axis=1)
    known += np.where(rows.label_apart, np.exp(beta * np.where(rows.label_apart, rows.label, 0.0)), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        even = np.exp((1 - beta) * np.log(rows.n_rest) + beta * rows.rest)
        crowd = rows.rest - rows.lowest  # log q
        packed = np.exp(beta * rows.lowest + np.where(crowd >= 0, crowd, beta * crowd))
    none = np.isneginf(rows.rest)
    even, packed = np.where(none, 0.0, even), np.where(none, 0.0, packed)
    low, high = np.minimum(even, packed), np.maximum(even, packed)
    return np.log(known + low), np.log(known + high)
