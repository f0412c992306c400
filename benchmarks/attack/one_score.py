"""The differential attack on what serves one score per row, several labels and groups of rows."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import score_references
from attack import Attack
from problems import Problem

import calibrant as cal
from calibrant.core.zeros import raised

SCORE_METHODS = ("ts", "platt", "beta", "quad", "iso", "spline", "hb", "shape", "va", "bend", "svs", "auto")
LABEL_METHODS = ("multilabel",)
GROUP_METHODS = ("ts+group", "platt+group", "ts+multi")

ROOTS = {"mmce": 1e-7}


def metrics(attack: Attack, problem: Problem) -> None:
    """Every metric of the positive class against its literal definition, from logits and from probabilities."""
    expected = score_references.everything(problem.wide, problem.labels, problem.mass, problem.logits.dtype)
    options = {"from_logits": True, "sample_weight": problem.weights}
    for name, value in expected.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = getattr(cal.metrics, name)(problem.logits, problem.labels, **options)
        attack.counts["metric values of one score"] += 1
        tolerance = ROOTS.get(name, 1e-9) * max(1.0, float(np.max(np.abs(value))))
        if not np.allclose(found, value, rtol=0, atol=tolerance):
            attack.fail(problem, f"{name} is {found}, literally {value}")
    if 0 < problem.mass @ problem.labels < problem.mass.sum():
        attack.counts["metric values of one score"] += 1
        intercept = cal.metrics.calibration_intercept(problem.logits, problem.labels, **options)
        left = score_references.unexplained(problem.wide, problem.labels, problem.mass, intercept)
        if left > 1e-9:
            attack.fail(problem, f"calibration_intercept {intercept} leaves a mean residual of {left:.2g}")
    for score in ("nll", "brier"):
        parts = cal.metrics.score_decomposition(problem.logits, problem.labels, score=score, **options)
        literal = score_references.decomposition(problem.wide, problem.labels, problem.mass, score)
        attack.counts["metric values of one score"] += 3
        given = parts.miscalibration, parts.discrimination, parts.uncertainty
        if not np.allclose(given, np.maximum(literal, 0), rtol=1e-9, atol=1e-9):
            attack.fail(problem, f"decomposition of {score} is {given}, literally {literal}")


def method(attack: Attack, problem: Problem, name: str) -> None:
    """One method of one score: its optimum, its invariances, its promises."""
    fit = attack.fitted(problem, name)
    if fit is None:
        return
    fitted, p, warned = fit
    if fitted.keeps_ranking:
        # zeros count as half the smallest probability of the rows that weigh something: others may lie below that
        finite = np.flatnonzero(np.isfinite(problem.logits))
        order = finite[np.argsort(problem.logits[finite], kind="stable")]
        rises = np.diff(p[order, 1].astype(np.float64))
        if rises.min(initial=0.0) < -1e-6:
            attack.fail(problem, f"{name}: the order of two scores was turned around by {-rises.min():.2g}")
    reference(attack, problem, name, fitted, p, warned)
    attack.invariances(problem, name, fitted, p, warned)


def reference(attack: Attack, problem: Problem, name: str, fitted: Any, p: np.ndarray, warned: bool) -> None:
    """The answer, or the loss reached, against scipy and scikit-learn."""
    s = raised(problem.logits, fitted.log_floor_).astype(np.float64)
    y, w = problem.labels, problem.mass
    if name in ("platt", "beta", "quad") and not warned:
        attack.counts["optima of one score"] += 1
        reached, best = score_references.likelihood(name, s, y, w, fitted)
        if reached > best + 1e-6:
            attack.fail(problem, f"{name}: loss {reached:.8f}, but scipy reaches {best:.8f}, without a warning")
    elif name == "ts":
        attack.counts["optima of one score"] += 1
        two = cal.get("ts")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            two.fit(np.column_stack([np.zeros_like(s), s]), y, sample_weight=problem.weights)
        if not np.isclose(two.temperature_, fitted.temperature_, rtol=1e-4):
            attack.fail(problem, f"ts: T = {fitted.temperature_:g}, but {two.temperature_:g} on the matrix [0, z]")
    elif name == "iso":
        attack.counts["optima of one score"] += 1
        expected = score_references.isotonic(s, y, w, score_references.ROUNDING)
        inside = (w > 0) & (expected > 1 / w.sum()) & (expected < 1 - 1 / w.sum())  # ends are kept off 0 and 1
        if inside.any() and np.abs(p[inside, 1] - expected[inside]).max() > 1e-5:
            attack.fail(
                problem, f"iso: differs from scikit-learn by {np.abs(p[inside, 1] - expected[inside]).max():.2g}"
            )
    elif name == "va":
        attack.counts["optima of one score"] += 1
        chosen = np.random.default_rng(problem.seed).integers(0, len(s), 4)
        expected = np.array([score_references.venn_abers(s, y, w, s[i]) for i in chosen])
        found = fitted.predict_interval(problem.logits[chosen])
        if np.abs(found - expected).max() > 1e-9:
            attack.fail(problem, f"va: ends {found.tolist()}, by isotonic fits {expected.tolist()}")


def invariant(attack: Attack, problem: Problem, name: str) -> None:
    """A method without a literal reference here: its invariances and promises."""
    fit = attack.fitted(problem, name)
    if fit is not None:
        attack.invariances(problem, name, *fit)
