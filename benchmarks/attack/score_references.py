"""Metrics and methods of one score per row, written down literally, in float64."""

from __future__ import annotations

import math
from typing import Any

import metric_references as top
import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_expit
from sklearn.isotonic import IsotonicRegression


def losses(s: np.ndarray, y: np.ndarray) -> np.ndarray:
    """−log of the probability of the label."""
    return -np.where(y == 1, log_expit(s), log_expit(-s))


def finite(s: np.ndarray) -> np.ndarray:
    """Scores with −inf and inf at half the smallest p and 1 − p of the others."""
    if not np.isinf(s).any():
        return s
    known = s[np.isfinite(s)]
    low, high = 0.5 * expit(known).min(), 0.5 * expit(-known).min()
    return np.where(
        s == -np.inf, np.log(low) - np.log1p(-low), np.where(s == np.inf, np.log1p(-high) - np.log(high), s)
    )


ROUNDING = 2.0**-21
"""Relative gap up to which maps of one score take two scores as one: the rounding of float32."""


def isotonic(s: np.ndarray, y: np.ndarray, w: np.ndarray, rounding: float = 0.0) -> np.ndarray:
    """scikit-learn's isotonic fit at each row; rows of scores that are equal but for rounding share a value."""
    chains: list[list[float]] = []
    for value in np.unique(s[w > 0]):
        near = rounding and chains and value - chains[-1][-1] <= rounding * abs(value)
        chains = [*chains[:-1], [*chains[-1], value]] if near else [*chains, [value]]
    longer = [len(chain) > 1 and chain[-1] - chain[0] > rounding * abs(chain[-1]) for chain in chains]
    first = [value for chain, many in zip(chains, longer, strict=True) for value in (chain if many else chain[:1])]
    rank = np.searchsorted(first, s, side="right").astype(float)
    return IsotonicRegression(out_of_bounds="clip").fit(rank[w > 0], y[w > 0], sample_weight=w[w > 0]).predict(rank)


def average_precision(s: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    total, area, before = float(w @ y), 0.0, 0.0
    if total <= 0:
        return 0.0
    for level in np.unique(s[w > 0])[::-1]:
        flagged = s >= level
        found = float((w * y)[flagged].sum())
        area += (found - before) / total * found / w[flagged].sum()
        before = found
    return area


def decomposition(s: np.ndarray, y: np.ndarray, w: np.ndarray, score: str) -> tuple[float, float, float]:
    """Miscalibration, discrimination and uncertainty."""
    fitted, rate = isotonic(s, y, w), float(w @ y / w.sum())

    def mean(p: np.ndarray) -> float:
        if score == "brier":
            return float(w @ (p - y) ** 2 / w.sum())
        with np.errstate(divide="ignore"):
            loss = -np.where(y == 1, np.log(p), np.log1p(-p))
        return float(np.sum(w[w > 0] * loss[w > 0]) / w.sum())

    given = mean(expit(s)) if score == "brier" else float(w[w > 0] @ losses(s, y)[w > 0] / w.sum())
    return given - mean(fitted), mean(np.full(len(y), rate)) - mean(fitted), mean(np.full(len(y), rate))


def everything(s: np.ndarray, y: np.ndarray, w: np.ndarray, dtype: np.dtype) -> dict[str, float | np.ndarray]:
    """Every metric of the positive class by its literal definition; p = σ(s) in float64, a zero as in `dtype`."""
    p, total = expit(s), w.sum()
    width, mass = top.gaps(p, y, w, top.width_bins(p)), top.gaps(p, y, w, top.mass_bins(p, w))
    cap = -math.log(np.finfo(dtype).eps)
    cuts = np.arange(1, 100) / 100
    flagged = p[:, None] >= cuts
    found, raised = (w * y) @ flagged, (w * (1 - y)) @ flagged
    answer: dict[str, float | np.ndarray] = {
        "nll": float(w @ np.where(np.isinf(losses(s, y)), cap, losses(s, y)) / total),
        "brier": float(w @ (p - y) ** 2 / total),
        "accuracy": float(w @ ((p >= 0.5) == (y == 1)) / total),
        "confidence": float(w @ p / total),
        "ece": top.norm(width, 1),
        "mce": top.norm(width, math.inf),
        "adaptive_ece": top.norm(mass, 1),
        "ks_error": top.ks(p, y.astype(float), w),
        "kuiper_error": top.kuiper(p, y, w),
        "mmce": top.mmce(p, y.astype(float), w),
        "roc_auc": top.auroc(s, y.astype(float), w),
        "average_precision": average_precision(s, y, w),
        "net_benefit": (found - raised * cuts / (1 - cuts)) / total,
    }
    if w @ p > 0:
        answer["observed_expected"] = float(w @ y / (w @ p))
    return answer


def unexplained(s: np.ndarray, y: np.ndarray, w: np.ndarray, intercept: float) -> float:
    """|Σ w (y − σ(s + a))| / Σ w of a calibration intercept a: 0 by definition, at more than one a where σ is flat."""
    return abs(float(w @ (y - expit(finite(s) + intercept)))) / w.sum()


def lowest_loss(
    columns: np.ndarray, y: np.ndarray, w: np.ndarray, own: np.ndarray, *, non_negative: bool
) -> tuple[float, float]:
    """Mean log loss of sigmoid(own · columns + last) as fitted, and the lowest that scipy finds from two starts."""
    spread = np.maximum(columns.std(axis=1), 1e-12)
    centre = columns.mean(axis=1)
    unit = (columns - centre[:, None]) / spread[:, None]
    share = w / w.sum()

    def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
        score = point[:-1] @ unit + point[-1]
        residual = share * (expit(score) - y)
        return float(share @ losses(score, y)), np.append(unit @ residual, residual.sum())

    reached = float(share @ losses(own[:-1] @ columns + own[-1], y))
    start = np.append(own[:-1] * spread, own[-1] + own[:-1] @ centre)
    bounds = [(0.0 if non_negative else None, None)] * len(spread) + [(None, None)]
    starts = (np.zeros(len(own)), np.clip(start, 0.0 if non_negative else -50, 50))
    options = {"maxiter": 2000, "ftol": 1e-14, "gtol": 1e-10}
    found = [minimize(objective, x, jac=True, method="L-BFGS-B", bounds=bounds, options=options).fun for x in starts]
    return reached, float(min(found))


def likelihood(name: str, s: np.ndarray, y: np.ndarray, w: np.ndarray, fitted: Any) -> tuple[float, float]:
    """Mean log loss of a fitted `platt`, `beta`, `quad` or `ts`, and the lowest of its family."""
    if name == "platt":
        return lowest_loss(s[None], y, w, np.array([fitted.slope_, fitted.intercept_]), non_negative=False)
    if name == "beta":
        columns = np.stack([log_expit(s), -log_expit(-s)])
        return lowest_loss(columns, y, w, np.array([fitted.a_, fitted.b_, fitted.intercept_]), non_negative=True)
    low, high = fitted.range_
    # slope at the low end and slope at the high end, both at least 0, and the value at the low end
    t = (np.clip(s, low, high) - low) / (high - low)
    beyond = (s - np.clip(s, low, high)) / (high - low)
    ends = (high - low) * np.stack([t - 0.5 * t**2 + np.minimum(beyond, 0), 0.5 * t**2 + np.maximum(beyond, 0)])
    c0, c1, c2 = fitted.coef_
    own = np.array([c1 + 2 * c2 * low, c1 + 2 * c2 * high, c0 + c1 * low + c2 * low**2])
    return lowest_loss(ends, y, w, own, non_negative=True)


def venn_abers(s: np.ndarray, y: np.ndarray, w: np.ndarray, asked: float) -> tuple[float, float]:
    """p₀ and p₁ of one score by two isotonic fits that it joins."""
    ends = []
    for label in (0, 1):
        joined = isotonic(np.append(s, asked), np.append(y, label), np.append(w, 1.0), ROUNDING)
        ends.append(float(joined[-1]))
    return ends[0], ends[1]
