"""Random problems × all metrics and fits, against literal numpy and scipy: no difference without a warning.

python benchmarks/attack/differential.py --problems 1000

Each number is a problem of several classes and one of one score per row, now and then also one of several labels and
one with groups; costly methods take turns. Metrics must equal their literal definition to 1e-9 (square roots 1e-7,
float32 logits in classwise bins 2e-5, smECE on its grid 1e-4). Likelihood fits must reach a loss within 1e-5 of the
best that scipy finds, or warn. No method may depend on the order of the rows, the dtype, the order of the classes,
chunks, or being saved and loaded; a weight of 2 is the row twice; answers are probabilities, and promises are kept.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import fit_references
import metric_references
import numpy as np
import one_score
from attack import Attack
from problems import Problem, draw, draw_labels, draw_scores, with_groups

import calibrant as cal
from calibrant.core.zeros import raised

METHODS = (
    "none",
    "ts",
    "ts-ece",
    "ts-adaece",
    "ts-soft",
    "cts",
    "u-cts",
    "cts-nll",
    "cts-shrunk",
    "vs",
    "ms",
    "dir",
    "svs",
    "sms",
    "ets",
    "ws",
    "cws",
    "bts",
    "ccts",
    "hb",
    "iso",
    "spline",
    "shape",
    "conf",
    "joint",
    "pts",
    "ts+top",
    "vs+top",
    "sctl+ts",
    "sctl+ets",
    "sctl+vs",
    "sctl+cts-nll",
    "conf+shape+keep",
    "auto",
)

ROOTS = {"debiased_ece": 1e-7, "mmce": 1e-7, "soft_ece": 1e-7, "marginal_ece": 1e-7, "smooth_ece": 1e-4}
"""Square roots of sums that may cancel to rounding noise, and smECE, which is computed on a grid."""

EVERY = {
    **dict.fromkeys(("ts", "cts-nll", "vs", "platt", "beta", "iso", "ws", "cws"), 2),
    **dict.fromkeys(("none", "ts-adaece", "ts-soft", "u-cts", "ms", "sctl+ts"), 8),
    **dict.fromkeys(("svs", "cts-shrunk"), 12),
    **dict.fromkeys(("conf", "dir", "sms", "vs+top", "sctl+cts-nll", "sctl+ets"), 16),
    **dict.fromkeys(("joint", "pts", "conf+shape+keep", "auto", *one_score.LABEL_METHODS), 24),
    **dict.fromkeys(one_score.GROUP_METHODS, 24),
    "sctl+vs": 48,
}
USUAL = 4
"""Methods are tried on every so many problems, in turn; the costly ones less often."""


class Matrix(Attack):
    """The attack on what serves logits (n×K)."""

    def metrics(self, problem: Problem) -> None:
        """Every metric against its literal definition."""
        expected = metric_references.everything(problem.wide, problem.labels, problem.mass, problem.logits.dtype)
        for name, value in expected.items():
            options = {"from_logits": True, "sample_weight": problem.weights}
            found: Any = getattr(cal.metrics, name)(problem.logits, problem.labels, **options)
            if name == "over_under_confidence":
                found = np.array([found.over, found.under])
            elif name == "classwise_losses":
                found = found.losses
            narrow = problem.logits.dtype == np.float32 and name in ("classwise_ece", "sce")
            tolerance = 2e-5 if narrow else ROOTS.get(name, 1e-9) * max(1.0, float(np.max(np.abs(value))))
            self.counts["metric values"] += 1
            if not np.allclose(found, value, rtol=0, atol=tolerance):
                self.fail(problem, f"{name} is {found}, literally {value}")

    def method(self, problem: Problem, name: str) -> None:
        """One method: its optimum, its invariances, its promises."""
        fit = self.fitted(problem, name)
        if fit is None:
            return
        fitted, p, warned = fit
        if fitted.keeps_prediction and not (p.argmax(axis=1) == problem.logits.argmax(axis=1)).all():
            self.fail(problem, f"{name}: a kept prediction changed")
        self.optimum(problem, name, fitted, warned)
        self.invariances(problem, name, fitted, p, warned)

    def optimum(self, problem: Problem, name: str, fitted: cal.Calibrator, warned: bool) -> None:
        """The loss that a likelihood fit reached beside the lowest that scipy finds."""
        x = raised(problem.logits, fitted.log_floor_).astype(np.float64)
        given = problem.labels, problem.mass, fitted
        if name == "ts":
            reached, best = fit_references.temperature(x, *given)
        elif name in ("vs", "cts-nll", "svs"):
            reached, best = fit_references.vector(x, *given, with_bias=name != "cts-nll")
        elif name in ("ms", "dir", "sms"):
            x = x - np.logaddexp.reduce(x, axis=1)[:, None] if name == "dir" else x
            reached, best = fit_references.matrix(x, *given)
        elif name == "ets":
            reached, best = fit_references.mixture(x, *given)
        elif name in ("sctl+ts", "sctl+vs", "sctl+cts-nll"):
            reached, best = fit_references.class_losses(x, *given)
        else:
            return
        self.counts["optima"] += 1
        if not (math.isfinite(reached) and reached <= best + 1e-5) and not warned:
            self.fail(problem, f"{name}: loss {reached:.7f}, but scipy reaches {best:.7f}, without a warning")


def attack_on(attack: Matrix, seed: int, methods: list[str]) -> None:
    """Everything that is tried on one number."""
    problem, scores = draw(seed), draw_scores(seed)
    attack.guarded(problem, "metrics", lambda given, _: attack.metrics(given))
    attack.guarded(scores, "metrics", lambda given, _: one_score.metrics(attack, given))
    for place, name in enumerate(methods):
        if (seed + place) % EVERY.get(name, USUAL):
            continue
        if name in METHODS:
            attack.guarded(problem, name, attack.method)
        if name in one_score.SCORE_METHODS:
            attack.guarded(scores, name, lambda given, one: one_score.method(attack, given, one))
        if name in one_score.LABEL_METHODS:
            attack.guarded(draw_labels(seed), name, lambda given, one: one_score.invariant(attack, given, one))
        if name in one_score.GROUP_METHODS:
            grouped = with_groups(scores if name.startswith("platt") else problem)
            attack.guarded(grouped, name, lambda given, one: one_score.invariant(attack, given, one))


def main() -> None:
    others = (*one_score.SCORE_METHODS, *one_score.LABEL_METHODS, *one_score.GROUP_METHODS)
    every = list(dict.fromkeys([*METHODS, *others]))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--methods", nargs="*", default=every)
    given = parser.parse_args()
    attack, started = Matrix(), time.perf_counter()
    for seed in range(given.first, given.first + given.problems):
        attack_on(attack, seed, given.methods)
        if seed % 50 == 49:
            attack.report(seed + 1 - given.first, started)
    attack.report(given.problems, started)
    raise SystemExit(1 if attack.wrong else 0)


if __name__ == "__main__":
    main()
