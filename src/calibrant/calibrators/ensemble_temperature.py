"""Ensemble temperature scaling."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.learned import TEMPERATURE, Learned
from calibrant.calibrators.maps import keep_prediction, like, log_probabilities, prediction
from calibrant.calibrators.solvers.simplex import minimise_on_simplex, minimise_quadratic
from calibrant.calibrators.solvers.temperature import fit_inverse_temperature, minimise_smooth
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.rows import Rows
from calibrant.kernels.mixture import mixture_nll, mixture_squares


class EnsembleTemperatureScaling(Calibrator, keeps_prediction=True, additive=True, few_parameters=True):
    """A mixture of three distributions, w₁·softmax(z/T) + w₂·softmax(z) + w₃/K (Zhang et al. 2020, eq. 8).

    First T minimises the loss of softmax(z/T), then the weights, which are at least 0 and sum to one, that of the
    mixture: a convex problem, solved exactly. `transform` returns log-probabilities.

    Parameters
    ----------
    loss : {"nll", "mse"}
        Negative log-likelihood, or the squared error to the one-hot label that the original uses.

    Attributes
    ----------
    temperature_ : float
        The learned T.
    weights_ : (3,)
        The learned w₁, w₂, w₃.

    Examples
    --------
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> fitted = cal.EnsembleTemperatureScaling().fit(val.logits, val.labels)
    >>> round(fitted.temperature_, 2), fitted.weights_.shape
    (1.56, (3,))
    """

    learns = {"temperature_": TEMPERATURE, "weights_": Learned((3,), 0.0, 1.0)}

    def __init__(self, loss: str = "nll") -> None:
        self.loss = loss

    @property
    def n_parameters_(self) -> int:
        """One temperature and two free weights."""
        return 3

    def _fit(self, rows: Rows) -> None:
        if self.loss not in {"nll", "mse"}:
            raise InputError(f"loss must be nll or mse, got {self.loss!r}")
        found = fit_inverse_temperature(rows)
        if self.loss == "nll":
            found.warn()
            self.temperature_ = 1.0 / found.value
            self._fit_weights_nll(rows)
        else:

            def errors(temperatures: np.ndarray) -> np.ndarray:
                """Mean squared error to the one-hot label of softmax(z/T), for an array of temperatures."""
                sums = [rows.total(mixture_squares, 1.0 / temperature) for temperature in temperatures]
                return np.array([(gram[0, 0] - 2 * hits[0]) / rows.total_weight + 1 for gram, hits in sums])

            self.temperature_, _ = minimise_smooth(errors, 1.0 / found.value)
            gram, hits = rows.total(mixture_squares, 1.0 / self.temperature_)
            self.weights_ = minimise_quadratic(2 * gram / rows.total_weight, -2 * hits / rows.total_weight)
            mean = (self.weights_ @ gram @ self.weights_ - 2 * hits @ self.weights_) / rows.total_weight + 1
            self.objective_trace_ = np.array([float(mean)])
        self.n_iter_ = len(self.objective_trace_)

    def _fit_weights_nll(self, rows: Rows) -> None:
        total, beta = rows.total_weight, 1.0 / self.temperature_

        def evaluate(shares: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
            loss, gradient, hessian = rows.total(mixture_nll, beta, shares)
            return loss / total, gradient / total, hessian / total

        # from temperature scaling itself, so that the mixture is never worse on the fit data
        self.weights_, trace, converged = minimise_on_simplex(evaluate, np.array([1.0, 0.0, 0.0]))
        self.objective_trace_ = np.array(trace)
        if not converged:
            warnings.warn(f"the weights did not converge in {len(trace)} steps", FitWarning, stacklevel=5)

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        weights = like(xp, learned.weights_, logits)
        mixed = weights[0] * xp.softmax_of_rows(logits * like(xp, 1.0 / learned.temperature_, logits))
        mixed = mixed + weights[1] * xp.softmax_of_rows(logits) + weights[2] / logits.shape[1]
        # where the uniform part is all there is, the predicted class still leads
        return keep_prediction(xp, log_probabilities(xp, mixed), prediction(xp, logits))
