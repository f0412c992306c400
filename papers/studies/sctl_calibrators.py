"""The calibrators that the class-loss study refits, among them PTS with the paper's weight decay.

Without a penalty the likelihood of parameterized temperature scaling has no optimum within reach: after 100 steps of
L-BFGS a last bit of a logit moves the test ECE by hundredths of a point. With the weight decay of 0.002 of Jung et al.
2023 a few hundred steps reach an optimum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.class_loss import FOCUS, SMOOTHING, ClassLossScaling
from calibrant.calibrators.parameterized_temperature import (
    LOWEST_TEMPERATURE,
    ParameterizedTemperatureScaling,
    Problem,
    unpack,
)
from calibrant.calibrators.registry import get
from calibrant.core.arrays import Array
from calibrant.core.softmax import log_softmax
from calibrant.core.statistic import statistic

BASES = {"TS": "ts", "ETS": "ets", "PTS": "pts", "CTS": "cts-nll"}
"""Short names of the calibrators."""

DECAY = 0.002


class DecayedPTS(ParameterizedTemperatureScaling):
    """PTS that minimizes mean loss + ½·DECAY·‖weights‖²; further refits start from the previous optimum.

    Parameters
    ----------
    training_loss : "nll", "label_smoothing" or "focal"
    seed : of the first weights
    """

    def __init__(self, *, training_loss: str = "nll", seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.training_loss = training_loss

    def go_on_from(self, fitted: Calibrator) -> Calibrator:
        """Start from the weights of another fit, in its units."""
        self._first = fitted
        return self

    def _train(self, rows: Any, problem: Problem, flat: Array) -> Array:
        n = len(np.asarray(rows.labels))

        def objective(candidate: Array) -> tuple[float, Array]:
            loss, gradient = rows.total(loss_and_gradient, candidate, problem._replace(loss=self.training_loss))
            return loss / n + 0.5 * DECAY * candidate @ candidate, gradient / n + DECAY * candidate

        options = {"maxiter": 3000, "maxfun": 6000, "maxcor": 20, "gtol": 1e-8, "ftol": 1e-15}
        found = minimize(objective, flat, jac=True, method="L-BFGS-B", options=options)
        self.n_iter_, self.objective_trace_ = found.nit, np.array([found.fun])
        return found.x


def plain_calibrator(base: str) -> Calibrator:
    """The calibrator of one of BASES."""
    return DecayedPTS() if base == "PTS" else get(BASES[base])


def calibrator_with_loss(base: str, loss: str, **options: Any) -> Calibrator:
    """The calibrator of one of BASES, fitted with a loss of `ClassLossScaling`."""
    if base == "PTS" and loss != "cross_entropy":
        return DecayedPTS(training_loss=loss)
    return ClassLossScaling(plain_calibrator(base), loss=loss, **options)


@statistic
def loss_and_gradient(
    logits: Array, labels: Array, weights: Array | None, flat: Array, problem: Problem
) -> tuple[float, Array]:
    """Summed loss and its gradient by the flat weights of the network."""
    z = logits.astype(np.float64)
    features = -np.sort(-z, axis=1)[:, : problem.sizes[0]]
    layer_weights, layer_biases = unpack(flat, problem.sizes)
    activations = [(features - problem.feature_mean) / problem.feature_scale]
    for weight, bias in zip(layer_weights[:-1], layer_biases[:-1], strict=True):
        activations.append(np.tanh(activations[-1] @ weight + bias))
    output = (activations[-1] @ layer_weights[-1] + layer_biases[-1])[:, 0]
    temperature = np.maximum(np.abs(output), LOWEST_TEMPERATURE)
    losses, slopes = temperature_slopes(z, labels, temperature, problem.loss)
    mass = np.ones(len(labels)) if weights is None else weights
    pull = (mass * slopes * np.where(np.abs(output) > LOWEST_TEMPERATURE, np.sign(output), 0.0))[:, None]
    gradient: list[Array] = []
    for activation, weight in zip(activations[::-1], layer_weights[::-1], strict=True):
        gradient = [(activation.T @ pull).ravel(), pull.sum(axis=0), *gradient]
        pull = (pull @ weight.T) * (1 - activation**2)
    return float(mass @ losses), np.concatenate(gradient)


def temperature_slopes(z: Array, labels: Array, temperature: Array, loss: str) -> tuple[Array, Array]:
    """Loss of each row at its temperature, and its derivative by the temperature."""
    rows = np.arange(len(labels))
    logs = log_softmax(z / temperature[:, None])
    expected = (np.exp(logs) * z).sum(axis=1)
    log_p, target = logs[rows, labels], z[rows, labels]
    if loss == "label_smoothing":
        log_p = (1 - SMOOTHING) * log_p + SMOOTHING * logs.mean(axis=1)
        target = (1 - SMOOTHING) * target + SMOOTHING * z.mean(axis=1)
    losses, slopes = -log_p, (target - expected) / temperature**2
    if loss == "focal":
        rest = -np.expm1(log_p)
        slopes *= rest**FOCUS - FOCUS * np.exp(log_p) * rest ** (FOCUS - 1) * log_p
        losses = rest**FOCUS * losses
    return losses, slopes
