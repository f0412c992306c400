"""Likelihood fits written down literally and minimised by scipy, from more than one start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize, minimize_scalar
from scipy.special import logsumexp

OPTIONS = {"maxiter": 1000, "maxfun": 5000, "ftol": 1e-13, "gtol": 1e-9}


def mean_nll(scores: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> float:
    losses = logsumexp(scores, axis=1) - scores[np.arange(len(labels)), labels]
    return float(weights @ losses / weights.sum())


def temperature(z: np.ndarray, y: np.ndarray, w: np.ndarray, fitted: Any) -> tuple[float, float]:
    """Loss of a fitted `ts`, and the lowest there is."""
    size = np.abs(z - z.mean(axis=1, keepdims=True)).mean() + 1e-300
    found = minimize_scalar(
        lambda s: mean_nll(z * np.exp(s) / size, y, w), bounds=(-25, 12), method="bounded", options={"xatol": 1e-5}
    )
    return mean_nll(z / fitted.temperature_, y, w), float(found.fun)


def _lowest(
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]], starts: list[np.ndarray], bounds: Any
) -> float:
    return min(
        float(minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=OPTIONS).fun)
        for start in starts
    )


def vector(z: np.ndarray, y: np.ndarray, w: np.ndarray, fitted: Any, *, with_bias: bool) -> tuple[float, float]:
    """The same for `vs`, or for `cts-nll` without bias."""
    n_classes, share = z.shape[1], w / w.sum()
    spread = np.maximum(z.std(axis=0), 1e-9 * np.abs(z).max() + 1e-300)
    unit, one_hot = z / spread, np.eye(n_classes)[y]

    def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
        scores = unit * point[:n_classes] + (point[n_classes:] if with_bias else 0.0)
        mass = logsumexp(scores, axis=1)
        residual = share[:, None] * (np.exp(scores - mass[:, None]) - one_hot)
        by_scale = (residual * unit).sum(axis=0)
        gradient = np.concatenate([by_scale, residual.sum(axis=0)]) if with_bias else by_scale
        return float(share @ (mass - scores[np.arange(len(y)), y])), gradient

    own = (fitted.scale_ if with_bias else 1 / fitted.temperatures_) * spread
    own = np.concatenate([own, fitted.bias_]) if with_bias else own
    bounds = None if with_bias else [(0, None)] * n_classes
    return objective(own)[0], _lowest(objective, [np.zeros(len(own)), np.clip(own, -50, 50)], bounds)


def matrix(x: np.ndarray, y: np.ndarray, w: np.ndarray, fitted: Any) -> tuple[float, float]:
    """The same for `ms` and `dir` (features x), with their penalties."""
    n_classes, share = x.shape[1], w / w.sum()
    one_hot, off = np.eye(n_classes)[y], 1 - np.eye(n_classes)
    by_weight, by_bias = fitted.penalties_
    by_weight, by_bias = by_weight / (n_classes * (n_classes - 1)), by_bias / n_classes

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        point = flat.reshape(n_classes, n_classes + 1)
        weights, bias = point[:, :-1], point[:, -1]
        scores = x @ weights.T + bias
        mass = logsumexp(scores, axis=1)
        residual = share[:, None] * (np.exp(scores - mass[:, None]) - one_hot)
        loss = float(share @ (mass - scores[np.arange(len(y)), y]))
        loss += by_weight * float((off * weights**2).sum()) + by_bias * float(bias @ bias)
        gradient = np.empty_like(point)
        gradient[:, :-1] = residual.T @ x + 2 * by_weight * off * weights
        gradient[:, -1] = residual.sum(axis=0) + 2 * by_bias * bias
        return loss, gradient.ravel()

    own = np.column_stack([fitted.matrix_, fitted.bias_]).ravel()
    return objective(own)[0], _lowest(objective, [np.zeros(len(own)), own], None)
