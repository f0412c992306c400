"""Parameterized temperature scaling: a small network reads the sorted logits and names each row's temperature."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.learned import SMALL, Learned
from calibrant.calibrators.maps import like, numpy_space, wide
from calibrant.calibrators.solvers.temperature_network import (
    LOWEST_TEMPERATURE,
    Problem,
    evaluate,
    feature_moments,
    pack,
    start,
    unpack,
)
from calibrant.calibrators.temperature import TemperatureScaling
from calibrant.core.arrays import check_whole
from calibrant.core.errors import InputError
from calibrant.core.progress import step
from calibrant.core.rows import two_columns

LOSSES = ("nll", "mse")


class ParameterizedTemperatureScaling(Calibrator):
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

    keeps_prediction = True
    additive = True
    requires_logits = True
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

    def temperatures(self, logits: Any) -> np.ndarray:
        """T of each row (n,), always above 0."""
        given = self._admitted(logits)
        matrix = two_columns(given) if given.ndim == 1 else given
        return _temperatures(numpy_space, matrix, self._learned())[:, 0]

    def go_on_from(self, fitted: Calibrator) -> Calibrator:
        """Train on from the weights of another fit, in its units, instead of from temperature scaling.

        Only where held-out rows stop the training: otherwise repeated refits would overfit the fit data.
        """
        if self.held_out_share > 0:
            self._first = fitted
        return self

    def _fit(self, rows: Any) -> None:
        self._check()
        k = min(self.top_k, rows.n_classes)
        sizes = (k, *[self.hidden_units] * self.hidden_layers, 1)
        generator = np.random.default_rng(self.seed)
        hash_vector = generator.normal(size=k)
        first = self.__dict__.pop("_first", None)
        if first is None:
            self._standardise(rows, k)
            # where all or no rows are right there is no finite best temperature; the network starts at a moderate one
            plain = np.clip(TemperatureScaling().fit_rows(rows).temperature_, 0.01, 100.0)
            flat = start(sizes, float(plain), generator)
        else:
            self.feature_mean_, self.feature_scale_ = first.feature_mean_, first.feature_scale_
            flat = pack(first.weights_, first.biases_)
        problem = Problem(
            sizes=sizes,
            feature_mean=self.feature_mean_,
            feature_scale=self.feature_scale_,
            loss=self.loss,
            hash_vector=hash_vector,
            held_out_share=self.held_out_share,
        )
        self.weights_, self.biases_ = unpack(self._train(rows, problem, flat), sizes)

    def _standardise(self, rows: Any, k: int) -> None:
        total, first, second = rows.total(feature_moments, k)
        self.feature_mean_ = first / total
        spread = np.sqrt(np.maximum(second / total - self.feature_mean_**2, 0))
        self.feature_scale_ = np.where(spread > 0, spread, 1.0)

    def _train(self, rows: Any, problem: Problem, flat: np.ndarray) -> np.ndarray:
        _, _, kept, _, held_out = rows.total(evaluate, flat, problem)
        if kept <= 0 or held_out <= 0:
            # rows too few or too alike to be told apart
            problem = problem._replace(held_out_share=0.0)
        seen: dict[str, Any] = {"best": (np.inf, flat), "stale": 0, "trace": [], "held_out": {}}

        def objective(candidate: np.ndarray) -> tuple[float, np.ndarray]:
            loss, gradient, kept, other_loss, held_out = rows.total(evaluate, candidate, problem)
            watched = other_loss / held_out if problem.held_out_share else loss / kept
            seen["held_out"] = {candidate.tobytes(): watched}
            return loss / kept, gradient / kept

        def after_step(intermediate_result: Any) -> None:
            point = intermediate_result.x
            seen["trace"].append(float(intermediate_result.fun))
            watched = seen["held_out"].get(point.tobytes())
            if watched is None:
                objective(point)
                watched = seen["held_out"][point.tobytes()]
            seen["stale"] += 1
            if watched < seen["best"][0]:
                seen["best"], seen["stale"] = (watched, point.copy()), 0
            step("fitting the temperature network", len(seen["trace"]), self.max_iterations)
            if seen["stale"] >= self.patience:
                raise StopIteration

        objective(flat)
        seen["best"] = (seen["held_out"][flat.tobytes()], flat)
        minimize(
            objective,
            flat,
            jac=True,
            method="L-BFGS-B",
            callback=after_step,
            options={"maxiter": self.max_iterations, "maxcor": 20, "gtol": 1e-7, "ftol": 1e-12},
        )
        self.n_iter_ = max(1, len(seen["trace"]))
        self.objective_trace_ = np.array(seen["trace"])
        return seen["best"][1]

    def _check(self) -> None:
        whole = {"top_k": 1, "hidden_units": 1, "hidden_layers": 0, "max_iterations": 1, "patience": 1}
        for name, least in whole.items():
            check_whole(getattr(self, name), name, least)
        if self.loss not in LOSSES:
            raise InputError(f"loss must be one of {', '.join(LOSSES)}, got {self.loss!r}")
        if not 0 <= self.held_out_share < 1:
            raise InputError(f"held_out_share must lie in [0, 1), got {self.held_out_share}")

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
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
    return xp.maximum(output, xp.full_like(output, LOWEST_TEMPERATURE))
