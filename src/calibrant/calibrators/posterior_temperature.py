"""Temperature scaling that averages over a posterior of temperatures."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.interpolate import make_interp_spline

from calibrant.calibrators import maps
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.learned import RECORD, TEMPERATURE
from calibrant.core.arrays import Array
from calibrant.core.rows import Rows
from calibrant.kernels.scaling import INVERSE_TEMPERATURES, temperature_losses

PRIOR_WIDTHS = (0.15, 0.3, 0.6, 1.2)
"""Standard deviations of log T in the prior, an equal mixture of normal distributions around T = 1."""

MAX_TEMPERATURES, MIN_WEIGHT = 7, 0.01
"""Number of temperatures before pruning, and the posterior weight below which one is dropped."""

POINT_WIDTH = 0.01
"""Posterior standard deviation of log T below which the mean represents it: probabilities change by less than 2e-5."""

N_POINTS, N_ZOOMS, LOG_RANGE = 801, 3, 40.0
"""Points of log T, refinements of their range, and the log-density below the peak that still counts."""


class PosteriorTemperatureScaling(Calibrator, keeps_prediction=True, few_parameters=True, additive=True):
    """Average softmax(z/T) over the posterior of the temperature: q = Σ_k w_k·softmax(z/T_k).

    The prior of log T is an equal mixture of N(0, σ²) with σ = 0.15, 0.3, 0.6, 1.2. A few rows that are all right move
    the temperature only as far as their likelihood outweighs this prior, and the average stays finite where the maximum
    of the likelihood is at T = 0. With some hundred rows it equals temperature scaling. The posterior is represented by
    the nodes of a Gauss quadrature with at most 7 temperatures. T lies between 1/362 and 512.

    Attributes
    ----------
    temperatures_, weights_ : arrays (M,)
        At most 7 temperatures and their posterior weights.
    log_evidence_ : float
        Log of the likelihood of the labels, averaged over the prior.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import PosteriorTemperatureScaling
    >>> logits = np.array([[4.0, 0.0], [0.0, 4.0], [3.0, 0.0]])
    >>> fitted = PosteriorTemperatureScaling().fit(logits, [0, 1, 0])
    >>> bool(0.5 < np.exp(fitted.weights_ @ np.log(fitted.temperatures_)) < 1)
    True
    """

    learns = {
        "temperatures_": TEMPERATURE._replace(shape=("M",)),
        "weights_": TEMPERATURE._replace(shape=("M",), low=0.0, high=1.0),
        "log_evidence_": RECORD,
    }

    @property
    def n_parameters_(self) -> int:
        """One: the temperature."""
        return 1

    def _fit(self, rows: Rows) -> None:
        losses, gaps = rows.total(temperature_losses)
        points, mass, self.log_evidence_ = temperature_posterior(losses + INVERSE_TEMPERATURES * gaps)
        nodes, self.weights_ = quadrature(points, mass)
        self.temperatures_ = np.exp(nodes)

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        scaled = maps.wide(xp, logits) * xp.reshape(1.0 / learned.temperatures_, (-1, 1, 1))
        answer = maps.like(xp, xp.log_mean_softmax(scaled, learned.weights_), logits)
        return xp.keep_prediction(answer, maps.prediction(xp, logits))


def log_prior(points: Array) -> Array:
    """Log of the prior density of log T."""
    widths = np.array(PRIOR_WIDTHS)[:, None]
    densities = np.exp(-0.5 * (points / widths) ** 2) / (widths * np.sqrt(2 * np.pi))
    return np.log(np.maximum(densities.mean(axis=0), np.finfo(float).tiny))


def temperature_posterior(losses: Array) -> tuple[Array, Array, float]:
    """Posterior of log T: points, their weights, and the log evidence.

    `losses` are the summed log losses at `INVERSE_TEMPERATURES`. They are interpolated, because the posterior of many
    rows is narrower than the distance of two temperatures.
    """
    nodes = -np.log(INVERSE_TEMPERATURES[::-1])
    curve = make_interp_spline(nodes, losses[::-1], k=7)
    low, high = ends = nodes[0], nodes[-1]
    for _ in range(N_ZOOMS):
        points, step = np.linspace(low, high, N_POINTS, retstep=True)
        log_density = log_prior(points) - curve(points)
        peak = log_density.max()
        near = points[log_density > peak - LOG_RANGE]
        low, high = max(near[0] - step, ends[0]), min(near[-1] + step, ends[1])
    mass = np.exp(log_density - peak)
    return points, mass / mass.sum(), float(peak + np.log(mass.sum() * step))


def quadrature(points: Array, mass: Array) -> tuple[Array, Array]:
    """Nodes and weights of the Gauss quadrature of a distribution on points; weights below 0.01 are dropped."""
    mean = mass @ points
    spread = np.sqrt(mass @ (points - mean) ** 2)
    count = MAX_TEMPERATURES if spread > POINT_WIDTH else 1
    powers = np.vander((points - mean) / max(spread, POINT_WIDTH), count, increasing=True)
    # the nodes are the eigenvalues of the multiplication by x, in an orthonormal basis of polynomials
    basis = np.linalg.qr(np.sqrt(mass)[:, None] * powers)[0]
    nodes, vectors = np.linalg.eigh(basis.T @ (points[:, None] * basis))
    weights = np.where(vectors[0] ** 2 < MIN_WEIGHT, 0.0, vectors[0] ** 2)
    return nodes[weights > 0], weights[weights > 0] / weights.sum()
