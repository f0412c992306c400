"""Likelihood fits written down literally and minimised by scipy, from more than one start."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize, minimize_scalar
from scipy.special import logsumexp, softmax

import calibrant as cal

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


def _common_unit(z: np.ndarray, w: np.ndarray, inverse_temperature: float) -> float:
    """The unit of the scales in structured scaling: 1/T, or one over the median spread where T is far above it."""
    mean = w @ z / w.sum()
    spread = np.sqrt(np.maximum(w @ z**2 / w.sum() - mean**2, 0.0))
    sizes = w @ np.abs(z) / w.sum()
    spread = np.where(spread > 1e-7 * sizes, spread, sizes)
    return float(np.median(np.maximum(inverse_temperature, 1 / np.where(spread > 0, spread, 1.0))))


def _inverse_temperature(z: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    """1/T of `ts`, whose optimum is compared by itself: where it is at infinity, any large number will do as a unit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(1 / cal.get("ts").fit(z, y, sample_weight=w).temperature_)


def vector(z: np.ndarray, y: np.ndarray, w: np.ndarray, fitted: Any, *, with_bias: bool) -> tuple[float, float]:
    """The same for `vs` and `svs` (with its penalty), or for `cts-nll` without bias."""
    n_classes, share = z.shape[1], w / w.sum()
    spread = np.maximum(z.std(axis=0), 1e-9 * np.abs(z).max() + 1e-300)
    one_hot = np.eye(n_classes)[y]
    strength = getattr(fitted, "strength_", 0.0) / w.sum()
    if strength:
        spread = np.full(n_classes, 1 / _common_unit(z, w, _inverse_temperature(z, y, w)))
    unit = z / spread

    def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
        scales, biases = point[:n_classes], point[n_classes:] if with_bias else np.zeros(n_classes)
        scores = unit * scales + biases
        mass = logsumexp(scores, axis=1)
        residual = share[:, None] * (np.exp(scores - mass[:, None]) - one_hot)
        departure = scales - scales.mean()
        loss = float(share @ (mass - scores[np.arange(len(y)), y]))
        loss += 0.5 * strength * float(departure @ departure + biases @ biases)
        by_scale = (residual * unit).sum(axis=0) + strength * departure
        by_bias = residual.sum(axis=0) + strength * biases
        return loss, np.concatenate([by_scale, by_bias]) if with_bias else by_scale

    own = (fitted.scale_ if with_bias else 1 / fitted.temperatures_) * spread
    own = np.concatenate([own, fitted.bias_]) if with_bias else own
    bounds = None if with_bias else [(0, None)] * n_classes
    return objective(own)[0], _lowest(objective, [np.zeros(len(own)), np.clip(own, -50, 50)], bounds)


def matrix(x: np.ndarray, y: np.ndarray, w: np.ndarray, fitted: Any) -> tuple[float, float]:
    """The same for `ms`, `dir` (features x) and `sms`, with their penalties."""
    n_classes, share = x.shape[1], w / w.sum()
    one_hot, off = np.eye(n_classes)[y], 1 - np.eye(n_classes)
    by_diagonal = 0.0
    if hasattr(fitted, "strength_"):
        unit = _common_unit(x, w, _inverse_temperature(x, y, w))
        strength = 0.5 * fitted.strength_ / w.sum()
        by_weight, by_diagonal, by_bias = 3 * strength / unit**2, strength / unit**2, strength
    else:
        by_weight, by_bias = fitted.penalties_
        by_weight, by_bias = by_weight / (n_classes * (n_classes - 1)), by_bias / n_classes

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        point = flat.reshape(n_classes, n_classes + 1)
        weights, bias = point[:, :-1], point[:, -1]
        scores = x @ weights.T + bias
        mass = logsumexp(scores, axis=1)
        residual = share[:, None] * (np.exp(scores - mass[:, None]) - one_hot)
        departure = np.diag(weights) - np.diag(weights).mean()
        loss = float(share @ (mass - scores[np.arange(len(y)), y]))
        loss += by_weight * float((off * weights**2).sum()) + by_bias * float(bias @ bias)
        loss += by_diagonal * float(departure @ departure)
        gradient = np.empty_like(point)
        gradient[:, :-1] = residual.T @ x + 2 * by_weight * off * weights + 2 * by_diagonal * np.diag(departure)
        gradient[:, -1] = residual.sum(axis=0) + 2 * by_bias * bias
        return loss, gradient.ravel()

    own = np.column_stack([fitted.matrix_, fitted.bias_]).ravel()
    return objective(own)[0], _lowest(objective, [np.zeros(len(own)), own], None)


def mixture(z: np.ndarray, y: np.ndarray, w: np.ndarray, fitted: Any) -> tuple[float, float]:
    """The same for the weights of `ets` at its own temperature, over the simplex of softmaxed free numbers."""
    rows = np.arange(len(y))
    parts = [softmax(z / fitted.temperature_, axis=1)[rows, y], softmax(z, axis=1)[rows, y]]
    parts.append(np.full(len(y), 1 / z.shape[1]))
    chances = np.stack(parts)

    def loss(shares: np.ndarray) -> float:
        return float(-w @ np.log(np.maximum(shares @ chances, 1e-300)) / w.sum())

    starts = [np.zeros(3), np.array([8.0, 0, 0]), np.array([0, 8.0, 0]), np.array([0, 0, 8.0])]
    found = [minimize(lambda free: loss(softmax(free)), start, method="Nelder-Mead").fun for start in starts]
    return loss(np.asarray(fitted.weights_)), min(*found, *(loss(corner) for corner in np.eye(3)))


def class_losses(z: np.ndarray, y: np.ndarray, w: np.ndarray, fitted: Any) -> tuple[float, float]:
    """The same for `sctl+X`: the loss of the inner fit under the class weights it ended with."""
    totals = np.bincount(y, w, minlength=z.shape[1])
    factors = np.where(totals > 0, (1 + fitted.class_weights_) / np.where(totals > 0, totals, 1.0), 0.0)
    inner, weights = fitted.calibrator_, w * factors[y]
    if hasattr(inner, "temperature_"):
        return temperature(z, y, weights, inner)
    return vector(z, y, weights, inner, with_bias=hasattr(inner, "bias_"))
