"""A logit matrix and a confusion matrix, fitted together: the default for few classes."""

from __future__ import annotations

from operator import methodcaller
from typing import Any

import numpy as np

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.confusion import bent_losses
from calibrant.calibrators.learned import RECORD, TEMPERATURE, Learned
from calibrant.calibrators.shape import IDENTITY
from calibrant.calibrators.solvers.folds import FOLDS, content_folds
from calibrant.calibrators.solvers.joint import FLOOR, Penalties, Walker, inputs, scores_at
from calibrant.calibrators.solvers.newton import warn_unless_converged
from calibrant.core.blas import one_blas_thread
from calibrant.core.errors import InputError
from calibrant.core.rows import Rows
from calibrant.core.threads import map_blocks, row_blocks

PATH: tuple[Penalties | None, ...] = (
    None,
    Penalties(100.0, 300.0, 3000.0, 1000.0),
    Penalties(30.0, 90.0, 1000.0, 300.0),
    Penalties(10.0, 30.0, 300.0, 100.0),
    Penalties(3.0, 9.0, 100.0, 30.0),
    Penalties(1.0, 3.0, 30.0, 10.0),
    Penalties(0.3, 1.0, 10.0, 3.0),
)
"""What cross-validation walks, from a temperature and biases to two matrices that are nearly free."""

PATIENCE = 2
"""The walk ends when this many steps in a row were worse than the best."""

TEMPER = 0.2
"""The weight of a step is exp(−TEMPER·excess of its held-out NLL, summed over the rows)."""

SMALLEST_WEIGHT = 1e-3

LOOSE, TIGHT = 5e-5, 1e-8
"""Largest gradients at which the folds' fits and the last fit end."""

SMALL = 1 << 14
"""Up to this many logits the folds' fits are exact as well: rounding in another order of rows does not show."""


class JointScaling(Calibrator):
    """u = A·z̄/T + C·log(1 + p/0.01) + b: a matrix over logits and one over probabilities, fitted together.

    z̄ are the logits minus their mean over the classes, and p = softmax(z̄/T). T and b⁰, one temperature and a
    shrunken bias per class, are fitted first. A reads the logits as `StructuredMatrixScaling` does, C reads bounded
    evidence as `ConfusionScaling` does; which of the two serves better depends on the network. Minimises

        Σ w·NLL + π_C·Σ C² + π_A·Σ_{i≠j} A² + π_a·Σ (A_jj − mean)² + π_b·Σ (b − b⁰)²,

    which is convex. The penalties walk a path from T and b⁰ alone to nearly free matrices, until two steps in a row
    have a higher held-out NLL than the best; the parameters of the steps are averaged with weights
    exp(−0.2·excess of the held-out NLL, summed over the rows), which varies less than the best step alone.

    Parameters
    ----------
    strength : "cv" or number
        Factor of the penalties (10, 30, 300, 100) of C, A, its diagonal and b; "cv" walks the path.
    seed : int
        Of the folds of the cross-validation.

    Attributes
    ----------
    temperature_ : T.
    linear_ : (K, K) A.
    matrix_ : (K, K) C.
    bias_ : (K,) b.
    penalties_ : (m, 4) the penalties whose parameters were averaged; infinite where the matrices were left out.

    Examples
    --------
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> cal.JointScaling(1.0).fit(val.logits, val.labels).linear_.shape
    (10, 10)
    """

    learns = {
        "temperature_": TEMPERATURE,
        "linear_": Learned(("K", "K")),
        "matrix_": Learned(("K", "K")),
        "bias_": Learned(("K",)),
        "penalties_": RECORD,
    }

    def __init__(self, strength="cv", *, seed=0):
        self.strength = strength
        self.seed = seed

    @property
    def n_parameters_(self) -> int:
        """A temperature, K biases, and 2K² weights where the matrices take part."""
        n_classes = self._n_classes
        return 1 + n_classes + (2 * n_classes**2 if self.matrix_.any() else 0)

    def _fit(self, rows: Rows) -> None:
        path = self._path()
        if len(path) == 1 or rows.total_weight < 2 * FOLDS:
            self._finish(rows, path[:1], np.ones(1))
        else:
            self._held_out(rows, content_folds(rows, FOLDS, self.seed))

    def _held_out(self, rows: Rows, fold: np.ndarray) -> np.ndarray:
        path = self._path()
        parts = map_blocks(lambda part: _Part(rows, fold == part), list(np.unique(fold)))
        answers: list[np.ndarray] = []
        losses: list[float] = []
        shape = IDENTITY
        for index, penalties in enumerate(path):
            answers.append(np.empty(rows.logits.shape, dtype=parts[0].walker.features.dtype))
            for part, scores in zip(parts, map_blocks(methodcaller("step", penalties), parts), strict=True):
                answers[-1][part.out] = scores
            shape, loss = bent_losses(answers[-1], rows, shape)
            losses.append(float(loss.sum() if rows.weights is None else rows.weights @ loss))
            if index - int(np.argmin(losses)) >= PATIENCE:
                break
        weights = np.exp(-TEMPER * (np.array(losses) - min(losses)))
        weights /= weights.sum()
        used = np.flatnonzero(weights > SMALLEST_WEIGHT)
        self._finish(rows, [path[index] for index in used], weights[used] / weights[used].sum())
        return np.average([answers[index] for index in used], axis=0, weights=weights[used]).astype(rows.logits.dtype)

    def _finish(self, rows: Rows, path: list[Penalties | None], weights: np.ndarray) -> None:
        with one_blas_thread():
            walker = Walker(rows, TIGHT, np.float64)
            points = []
            for penalties in path:
                solution = walker.step(penalties)
                points.append(walker.point)
                if solution is not None:
                    warn_unless_converged("JointScaling", solution)
                    self.n_iter_, self.objective_trace_ = max(1, solution.n_iter), solution.trace
        point, n_classes = np.average(points, axis=0, weights=weights), rows.n_classes
        self.temperature_ = 1.0 / walker.unit
        self.matrix_, self.linear_ = point[:, :n_classes].copy(), point[:, n_classes:-1].copy()
        self.bias_ = point[:, -1].copy()
        self.penalties_ = np.array([(np.inf,) * 4 if one is None else one for one in path])

    def _path(self) -> list[Penalties | None]:
        if isinstance(self.strength, str):
            if self.strength != "cv":
                raise InputError(f"strength must be a positive number or 'cv', got {self.strength!r}")
            return list(PATH)
        if isinstance(self.strength, bool) or not (np.isreal(self.strength) and 0 < self.strength < np.inf):
            raise InputError(f"strength must be a positive number or 'cv', got {self.strength!r}")
        return [Penalties(*(float(self.strength) * np.array([10.0, 30.0, 300.0, 100.0])))]

    def _transform(self, logits: np.ndarray) -> np.ndarray:
        point = np.column_stack([self.matrix_, self.linear_, self.bias_])
        result = np.empty_like(logits)

        def part(block: slice) -> None:
            result[block] = scores_at(inputs(logits[block], 1.0 / self.temperature_, np.float64), point)

        map_blocks(part, row_blocks(len(logits), 4 * logits.shape[1]))
        return result

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        wide = xp.astype(logits, xp.float64)
        scaled = (wide - xp.mean(wide, axis=1, keepdims=True)) / learned.temperature_
        powers = xp.exp(scaled - xp.max(scaled, axis=1, keepdims=True))
        evidence = xp.log1p(powers / xp.sum(powers, axis=1, keepdims=True) / FLOOR)
        scores = xp.matmul(scaled, xp.matrix_transpose(learned.linear_))
        scores = scores + xp.matmul(evidence, xp.matrix_transpose(learned.matrix_)) + learned.bias_
        return xp.astype(scores, logits.dtype)


class _Part:
    """One fold: a walk over the other rows, and its answers for these."""

    def __init__(self, rows: Rows, out: np.ndarray) -> None:
        self.out = np.flatnonzero(out)
        kept = rows.take(np.flatnonzero(~out))
        exact = rows.logits.size <= SMALL
        kept = kept if kept.n and kept.total_weight > 0 else rows
        self.walker = Walker(kept, TIGHT if exact else LOOSE, np.float64 if exact else np.float32)
        self.logits = rows.logits[self.out]

    def step(self, penalties: Penalties | None) -> np.ndarray:
        """Scores of the held-out rows at the next penalties of the path."""
        self.walker.step(penalties)
        return self.walker.answer(self.logits)
