"""What the differential attacks share: counts, fits with their warnings, and invariances of any method."""

from __future__ import annotations

import collections
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from problems import Problem

import calibrant as cal
from calibrant.core.errors import InputError
from calibrant.core.zeros import raised

LOOSE = {"sctl+vs": 1e-3, "sctl+cts-nll": 1e-3, "joint": 5e-3}
"""Fixed points, and a mean over a path weighted by losses that are minimised loosely, agree to this
difference in probability; all others to 1e-4 (float32: 3e-4)."""

ORDERED = {"cts", "u-cts"}
"""Methods that take the classes one after another by definition, so that their order matters."""

MIRRORED = {"ts", "platt", "beta", "quad", "iso", "va", "platt+group"}
"""Methods of one score that treat both classes alike; the others bin, bend or split on the positive side."""

FLAT = {"ms": 1e-5, "dir": 1e-5, "vs": 1e-5, "sms": 1e-4}
SAME_LOSS = {"pts": 0.02, "sctl+vs": 1e-4, "sctl+cts-nll": 1e-4, "sctl+ets": 1e-4, **FLAT}
"""A network, fixed points, and K² parameters for few rows: the optimum need not be unique, or the loss is flat around
it. Where answers differ, the losses on the fit data must agree to this (the training of the network is stopped early,
at rounding's mercy)."""


class Attack:
    """Counts comparisons and keeps what was wrong."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self.folder = tempfile.TemporaryDirectory()

    def report(self, problems: int, started: float) -> None:
        """What was compared so far."""
        counts = ", ".join(f"{count:,} {name}" for name, count in sorted(self.counts.items()))
        print(f"{problems} problems in {time.perf_counter() - started:,.0f} s: {counts}", flush=True)

    def fail(self, problem: Problem, what: str) -> None:
        """Keep and print a finding."""
        self.counts["wrong"] += 1
        self.wrong.append(f"seed {problem.seed} ({problem.words}): {what}")
        print(self.wrong[-1], flush=True)

    def guarded(self, problem: Problem, name: str, check: Callable[[Problem, str], None]) -> None:
        """One check of one method, in which a crash is a finding."""
        try:
            check(problem, name)
        except Exception as error:
            self.fail(problem, f"{name}: {type(error).__name__}: {error}")

    def fitted(self, problem: Problem, name: str) -> tuple[Any, np.ndarray, bool] | None:
        """A fit, its answers and whether it warned; None where it refuses. Answers must be probabilities."""
        try:
            fitted, warned = fit(name, problem)
        except InputError:
            self.counts["refused with an InputError"] += 1
            return None
        self.counts["fits that warned"] += warned
        self.counts["fits"] += 1
        p = answers(fitted, problem)
        sums = np.ones(1) if problem.task == "multilabel" else p.sum(axis=1)
        if not (np.isfinite(p).all() and p.min() >= 0 and p.max() <= 1 + 1e-6 and np.abs(sums - 1).max() < 1e-5):
            self.fail(problem, f"{name}: answers are not probabilities that sum to one")
        return fitted, p, warned

    def invariances(self, problem: Problem, name: str, fitted: Any, p: np.ndarray, warned: bool) -> None:
        """The same answer however the same problem is put."""
        tolerance = LOOSE.get(name, 1e-4 if problem.logits.dtype == np.float64 else 3e-4)
        for what, other, undo in variations(problem, name, fitted, self.folder.name):
            self.counts[f"{what} compared"] += 1
            again, also = (other, False) if not isinstance(other, Problem) else fit(name, other)
            asked = other if isinstance(other, Problem) and what in ASKED_ANEW else problem
            found = undo(answers(again, asked))
            difference = float(np.abs(found - p).max())
            if difference <= tolerance or warned or also:
                continue
            if name in SAME_LOSS:
                self.counts["losses compared instead of answers"] += 1
                if abs(log_loss(problem, found) - log_loss(problem, p)) <= SAME_LOSS[name]:
                    continue
            self.fail(problem, f"{name}: {what} changes a probability by {difference:.2g}, without a warning")


ASKED_ANEW = ("permuted classes", "the other dtype")
"""Variations whose calibrator is asked about the varied logits."""


def fit(name: str, problem: Problem) -> tuple[Any, bool]:
    """A fitted calibrator, and whether it warned of anything but zeros."""
    extra = {} if problem.groups is None else {"groups": problem.groups}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = cal.get(name).fit(problem.logits, problem.labels, sample_weight=problem.weights, **extra)
    return fitted, warned_of_more_than_zeros(caught)


def warned_of_more_than_zeros(caught: list[warnings.WarningMessage]) -> bool:
    """Zeros are raised by a rule of their own, which the references follow."""
    return any("probability of 0" not in str(one.message) for one in caught)


def answers(fitted: Any, problem: Problem) -> np.ndarray:
    """Calibrated probabilities of the problem's rows."""
    if problem.groups is not None:
        return fitted.predict_proba(problem.logits, groups=problem.groups)
    return fitted.predict_proba(problem.logits)


def log_loss(problem: Problem, p: np.ndarray) -> float:
    """Weighted mean of −log p of the labels."""
    own = p[np.arange(len(p)), problem.labels].astype(np.float64)
    return float(problem.mass @ -np.log(np.maximum(own, 1e-300)) / problem.mass.sum())


def same(p: np.ndarray) -> np.ndarray:
    """Answers that need no rearranging."""
    return p


Variation = tuple[str, Any, Callable[[np.ndarray], np.ndarray]]


def variations(problem: Problem, name: str, fitted: Any, folder: str) -> Iterator[Variation]:
    """(what was varied, the varied problem or a calibrator, how its answers are put back in order)."""
    rng = np.random.default_rng(problem.seed)
    yield "row order", problem.rows(rng.permutation(len(problem.logits))), same
    # many labels are averaged by evidence, for which the weights of a user are rescaled to sum to n
    if problem.weights is not None and not (problem.weights % 1).any() and name != "multilabel":
        copies = np.repeat(np.arange(len(problem.logits)), problem.weights.astype(int))
        yield "weight as copies", problem.rows(copies).without_weights(), same
    # the rest in turn: each costs a fit
    turn = (problem.seed + sum(map(ord, name))) % 4
    if turn == 0:
        path = Path(folder) / "fitted.safetensors"
        cal.save(fitted, path)
        yield "saved and loaded", cal.load(path), same
    elif turn == 1 and problem.logits.dtype == np.float32:
        yield "the other dtype", problem.with_logits(in_float64(problem, fitted)), same
    elif turn == 2 and symmetric(problem, name):
        yield permuted(problem, rng)
    elif turn == 3 and problem.task == "multiclass" and problem.groups is None:
        yield "chunks", in_chunks(name, problem, Path(folder)), same


def in_float64(problem: Problem, fitted: Any) -> np.ndarray:
    """The same logits; zeros as the calibrator raised them, because folds depend on every bit of a row."""
    if problem.task == "multilabel" or not np.isinf(problem.logits).any():
        return problem.logits.astype(np.float64)
    return raised(problem.logits, fitted.log_floor_).astype(np.float64)


def symmetric(problem: Problem, name: str) -> bool:
    """Whether the numbers of the classes have no part in the definition of the method."""
    return name in MIRRORED if problem.task == "binary" else name not in ORDERED and not problem.tied_tops


def permuted(problem: Problem, rng: np.random.Generator) -> Variation:
    """Classes (or labels) in another order; of one score the two classes exchanged."""
    what = "permuted classes"
    if problem.task == "binary":
        turned = problem.with_logits(-problem.logits).with_labels(1 - problem.labels)
        return what, turned, lambda p: p[:, ::-1]
    order = rng.permutation(problem.logits.shape[1])
    place = np.argsort(order)
    moved = problem.with_logits(np.ascontiguousarray(problem.logits[:, order]))
    labels = problem.labels[:, order] if problem.task == "multilabel" else place[problem.labels]
    return what, moved.with_labels(labels), lambda p: p[:, place]


def in_chunks(name: str, problem: Problem, folder: Path) -> Any:
    """The method fitted from a folder of three files."""
    parts = folder / "parts"
    parts.mkdir(exist_ok=True)
    for number, rows in enumerate(np.array_split(np.arange(len(problem.labels)), 3)):
        arrays = {"logits": problem.logits[rows], "labels": problem.labels[rows]}
        if problem.weights is not None:
            arrays["weights"] = problem.weights[rows]
        np.savez(parts / f"part{number}.npz", **arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cal.get(name).fit(cal.open_predictions(parts))
