"""Parameterized temperature scaling: a small network reads the sorted logits and names each row's temperature.

A hundred weights over ten features need no framework: written out in numpy the fit reads its data block by block,
in memory or out of it, and gives the same bits for the same seed.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.learned import SMALL, Learned
from calibrant.calibrators.maps import like, numpy_space, wide
from calibrant.calibrators.solvers.temperature import fit_inverse_temperature
from calibrant.core.arrays import Array, check_whole
from calibrant.core.errors import InputError
from calibrant.core.progress import step
from calibrant.core.rows import two_columns
from calibrant.core.statistic import statistic

LOSSES = ("nll", "mse")

LOWEST_TEMPERATURE = 1e-3
"""|MLP| may pass through 0; a temperature may not."""


class ParameterizedTemperatureScaling(
    Calibrator, keeps_prediction=True, additive=True, requires_logits=True, trains_network=True
):
    """z/T(z), T(z) = |MLP(the k largest logits, sorted)| (Tomani et al. 2022).

    The network starts as plain temperature scaling and is trained by L-BFGS on the mean of −log p[y] ("nll") or of
    Σ_k (p_k − 1{y = k})² ("mse"). A share of the rows, told by a hash of their logits, is held out of the fit: training
    stops when their loss has not improved for `patience` steps, and the best state is kept.

    Parameters
    ----------
    top_k : how many of the largest logits the network reads
    hidden_units, hidden_layers : of the network (tanh)
    loss : "nll" or "mse"
    max_iterations : of L-BFGS
    held_out_share : of the rows, for early stopping; 0 trains on all rows to convergence
    patience : steps without a better held-out loss
    seed : of the first weights and of the hash

    Attributes
    ----------
    weights_, biases_ : lists of the layers' matrices and vectors
    feature_mean_, feature_scale_ : (k,) standardisation of the network's input

    Examples
    --------
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> fitted = cal.ParameterizedTemperatureScaling().fit(val.logits, val.labels)
    >>> fitted.temperatures(val.logits).shape
    (5000,)
    """

    learns = {
        "weights_": Learned(many=True),
        "biases_": Learned(many=True),
        "feature_mean_": Learned(("F",), free=False),
        "feature_scale_": Learned(("F",), SMALL, free=False),
    }

    def __init__(
        self,
        *,
        top_k: int = 10,
        hidden_units: int = 5,
        hidden_layers: int = 2,
        loss: str = "nll",
        max_iterations: int = 100,
        held_out_share: float = 0.2,
        patience: int = 10,
        seed: int = 0,
    ) -> None:
        self.top_k = top_k
        self.hidden_units = hidden_units
        self.hidden_layers = hidden_layers
        self.loss = loss
        self.max_iterations = max_iterations
        self.held_out_share = held_out_share
        self.patience = patience
        self.seed = seed

    def temperatures(self, logits: Any) -> Array:
        """T of each row (n,), always above 0."""
        given = self._admitted(logits)
        matrix = two_columns(given) if given.ndim == 1 else given
        return _temperatures(numpy_space, matrix, self._ready())[:, 0]

    def go_on_from(self, fitted: Calibrator) -> Calibrator:
        """Train on from the weights of another fit, in its units, instead of from temperature scaling.

        Only where held-out rows stop the training: otherwise repeated refits would overfit the fit data.
        """
        if self.held_out_share > 0:
            self._first = fitted
        return self

    def _fit(self, rows: Any) -> None:
        whole = {"top_k": 1, "hidden_units": 1, "hidden_layers": 0, "max_iterations": 1, "patience": 1}
        for name, least in whole.items():
            check_whole(getattr(self, name), name, least)
        if self.loss not in LOSSES:
            raise InputError(f"loss must be one of {', '.join(LOSSES)}, got {self.loss!r}")
        if not 0 <= self.held_out_share < 1:
            raise InputError(f"held_out_share must lie in [0, 1), got {self.held_out_share}")
        k = min(self.top_k, rows.n_classes)
        sizes = (k, *[self.hidden_units] * self.hidden_layers, 1)
        generator = np.random.default_rng(self.seed)
        hash_vector = generator.normal(size=k)
        first, plain = self.__dict__.pop("_first", None), fit_inverse_temperature(rows)
        if first is None:
            total, sums, squares = rows.total(feature_moments, k)
            self.feature_mean_ = sums / total
            spread = np.sqrt(np.maximum(squares / total - self.feature_mean_**2, 0))
            self.feature_scale_ = np.where(spread > 0, spread, 1.0)
            flat = start(sizes, 1 / plain.value, generator)
        else:
            self.feature_mean_, self.feature_scale_ = first.feature_mean_, first.feature_scale_
            layers = zip(first.weights_, first.biases_, strict=True)
            flat = np.concatenate([part.ravel() for layer in layers for part in layer])
        problem = Problem(sizes, self.feature_mean_, self.feature_scale_, self.loss, hash_vector, self.held_out_share)
        if plain.limit:
            # the network would follow the likelihood to where it has no maximum
            plain.warn()
        else:
            flat = self._train(rows, problem, flat)
        self.weights_, self.biases_ = unpack(flat, sizes)

    def _train(self, rows: Any, problem: Problem, flat: Array) -> Array:
        _, _, kept, _, held_out = rows.total(evaluate, flat, problem)
        if kept <= 0 or held_out <= 0:
            # rows too few or too alike to be told apart
            problem = problem._replace(held_out_share=0.0)
        points, trace = [flat], []
        watched: dict[bytes, float] = {}

        def objective(candidate: Array) -> tuple[float, Array]:
            loss, gradient, kept, other_loss, held_out = rows.total(evaluate, candidate, problem)
            watched[candidate.tobytes()] = other_loss / held_out if problem.held_out_share else loss / kept
            return loss / kept, gradient / kept

        def best() -> int:
            """The first of the points whose watched loss is lowest."""
            return min(range(len(points)), key=lambda place: watched[points[place].tobytes()])

        def after_step(intermediate_result: Any) -> None:
            trace.append(float(intermediate_result.fun))
            points.append(intermediate_result.x.copy())
            step("fitting the temperature network", len(trace), self.max_iterations)
            if len(trace) - best() >= self.patience:
                raise StopIteration

        minimize(
            objective,
            flat,
            jac=True,
            method="L-BFGS-B",
            callback=after_step,
            options={"maxiter": self.max_iterations, "maxcor": 20, "gtol": 1e-7, "ftol": 1e-12},
        )
        self.n_iter_, self.objective_trace_ = max(1, len(trace)), np.array(trace)
        return points[best()]

    def _map(self, xp, logits, learned):
        calibrated = wide(xp, logits) / _temperatures(xp, logits, learned)
        return xp.keep_increasing(like(xp, calibrated, logits), logits)


def _temperatures(xp: Any, logits: Any, learned: Any) -> Any:
    """T = |MLP(the k largest logits)| of each row (n, 1)."""
    top = wide(xp, xp.largest(logits, learned.feature_mean_.shape[0]))
    hidden = (top - learned.feature_mean_) / learned.feature_scale_
    layers = list(zip(learned.weights_, learned.biases_, strict=True))
    for weight, bias in layers[:-1]:
        hidden = xp.tanh(xp.matmul(hidden, weight) + bias)
    output = xp.abs(xp.matmul(hidden, layers[-1][0]) + layers[-1][1])
    return xp.at_least(output, LOWEST_TEMPERATURE)


class Problem(NamedTuple):
    """What stays the same while the weights change."""

    sizes: tuple[int, ...]
    feature_mean: Array
    feature_scale: Array
    loss: str
    hash_vector: Array
    held_out_share: float


@statistic
def feature_moments(logits: Array, labels: Array, weights: Array | None, k: int) -> tuple[float, Array, Array]:
    """Total weight, and the weighted sums of the features and of their squares."""
    features = numpy_space.largest(logits, k)
    mass = np.ones(len(features)) if weights is None else weights
    return float(mass.sum()), mass @ features, mass @ features**2


def unpack(flat: Array, sizes: tuple[int, ...]) -> tuple[list[Array], list[Array]]:
    """Matrices and vectors of the layers from one flat vector."""
    weights, biases = [], []
    for before, after in pairwise(sizes):
        weight, bias, flat = np.split(flat, [before * after, (before + 1) * after])
        weights.append(weight.reshape(before, after).copy())
        biases.append(bias.copy())
    return weights, biases


def start(sizes: tuple[int, ...], temperature: float, generator: np.random.Generator) -> Array:
    """Random hidden layers under a last layer that answers about `temperature` for every row."""
    parts = []
    for place, (before, after) in enumerate(pairwise(sizes)):
        last = place == len(sizes) - 2
        size = 0.01 * temperature if last else 1 / np.sqrt(before)
        parts += [generator.normal(scale=size, size=before * after), np.full(after, temperature if last else 0.0)]
    return np.concatenate(parts)


@statistic
def evaluate(
    logits: Array, labels: Array, weights: Array | None, flat: Array, problem: Problem
) -> tuple[float, Array, float, float, float]:
    """Loss, gradient by the flat weights and weight of the rows that train, loss and weight of the rows held out."""
    features = numpy_space.largest(logits, problem.sizes[0])
    mass = np.ones(len(labels)) if weights is None else weights
    # a number in [0, 1) that equal rows share, wherever they stand, and similar rows do not
    held_out = np.modf(np.abs(np.sin(features @ problem.hash_vector) * 43758.5453))[0] < problem.held_out_share
    kept = mass * ~held_out
    layer_weights, layer_biases = unpack(flat, problem.sizes)
    activations = [(features - problem.feature_mean) / problem.feature_scale]
    for weight, bias in zip(layer_weights[:-1], layer_biases[:-1], strict=True):
        activations.append(np.tanh(activations[-1] @ weight + bias))
    output = (activations[-1] @ layer_weights[-1] + layer_biases[-1])[:, 0]
    temperature = np.maximum(np.abs(output), LOWEST_TEMPERATURE)
    losses, slopes = _loss_and_slope(logits, labels, temperature, problem.loss)
    # dL/dT·dT/d(output); rows at the floor or held out pull nothing
    pull = (mass * slopes * np.where(np.abs(output) > LOWEST_TEMPERATURE, np.sign(output), 0.0) * ~held_out)[:, None]
    gradient: list[Array] = []
    for activation, weight in zip(activations[::-1], layer_weights[::-1], strict=True):
        gradient = [(activation.T @ pull).ravel(), pull.sum(axis=0), *gradient]
        pull = (pull @ weight.T) * (1 - activation**2)
    other = mass - kept
    return float(kept @ losses), np.concatenate(gradient), float(kept.sum()), float(other @ losses), float(other.sum())


def _loss_and_slope(logits: Array, labels: Array, temperature: Array, loss: str) -> tuple[Array, Array]:
    """Each row's loss and its derivative in T."""
    place = np.arange(len(labels))
    shifted = logits - logits.max(axis=1, keepdims=True).astype(np.float64)
    p = np.exp(shifted / temperature[:, None])
    total = p.sum(axis=1)
    p /= total[:, None]
    mean = (p * shifted).sum(axis=1)
    own = shifted[place, labels]
    if loss == "nll":
        return np.log(total) - own / temperature, (own - mean) / temperature**2
    own_p = p[place, labels]
    losses = (p**2).sum(axis=1) - 2 * own_p + 1
    in_scale = 2 * ((p**2 * (shifted - mean[:, None])).sum(axis=1) - own_p * (own - mean))
    return losses, -in_scale / temperature**2
