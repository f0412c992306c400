"""A logit matrix and a confusion matrix, fitted together: the default for few classes."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy import inf

from calibrant.calibrators import maps
from calibrant.calibrators.confusion import EvidenceWalk, PathScaling, centred, evidence
from calibrant.calibrators.learned import RECORD, TEMPERATURE, Learned
from calibrant.calibrators.solvers.likelihood import Dense, Ridge, in_wide, minimise, on_numpy
from calibrant.calibrators.solvers.penalties import Policy, tempered
from calibrant.calibrators.solvers.scales import common_unit, newton_sums
from calibrant.core.errors import InputError
from calibrant.core.rows import Rows
from calibrant.kernels.affine import Features


class Penalties(NamedTuple):
    """Of the squares of the confusion matrix, the off-diagonal of the logit matrix, the class scales and the biases."""

    confusion: float
    linear: float
    scale: float
    bias: float


PATH = (
    Penalties(inf, inf, inf, inf),
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

BASE_RIDGE = 100.0
"""Penalty of the biases that are fitted with the temperature, before the matrices."""


def joint_features(xp: Any, logits: Any, unit: Any) -> Features:
    """What C reads and what A reads, side by side; `unit` is 1/T."""
    scaled = centred(xp, logits) * unit
    return Features(xp.concat([evidence(xp, scaled), scaled], axis=1))


def fit_base(rows: Rows) -> tuple[float, np.ndarray]:
    """One inverse temperature and a bias per class (K,), weakly shrunk: softmax(β·z̄ + b).

    A temperature alone is misled where a network prefers some class throughout: it then flattens everything.
    """
    unit, n_classes, newton = common_unit(rows), rows.n_classes, newton_sums(rows)
    # one scale for all classes: sums by every scale and bias, added up over the scales
    tie = np.zeros((2 * n_classes, n_classes + 1))
    tie[:n_classes, 0] = unit
    tie[n_classes:, 1:] = np.eye(n_classes)

    def sums(point: np.ndarray, last: bool) -> tuple[float, np.ndarray, np.ndarray | None]:
        loss, gradient, hessian = newton(*(tie @ point).reshape(2, n_classes), last)
        return loss, gradient.ravel() @ tie, None if last else tie.T @ hessian @ tie

    ridge = np.diag(np.append(1e-9, np.full(n_classes, BASE_RIDGE))) / rows.total_weight
    start = np.append(1.0, np.zeros(n_classes))
    objective = Dense(sums, rows.total_weight, ridge, np.append(1.0, start[1:]), exact=in_wide(rows))
    point = minimise(objective, start, gap=1e-11).point
    # a negative slope would reverse the network's ranking: the rest of the fit can do that where it lowers the loss
    return max(point[0], 1e-3) * unit, point[1:]


class JointWalk(EvidenceWalk):
    """Points (C | A | b), K×(2K+1)."""

    def __init__(self, rows: Rows, dtype: type | None, last: bool) -> None:
        unit, self.offset = fit_base(rows)
        self.total, n_classes = rows.total_weight, rows.n_classes
        self.diagonal = np.eye(n_classes, 2 * n_classes + 1, n_classes, dtype=bool)
        start = self.diagonal.astype(np.float64)
        start[:, -1] = self.offset
        super().__init__(rows, partial(on_numpy, joint_features, unit=unit), start, unit, dtype, last)

    def ridge(self, penalties: Penalties) -> Ridge:
        """The penalties of C, of A off its diagonal, of its diagonal about the mean, and of b about b⁰."""
        n_classes = len(self.point)
        strength = np.full(self.point.shape, penalties.confusion)
        strength[:, n_classes:] = penalties.linear
        strength[self.diagonal], strength[:, -1] = penalties.scale, penalties.bias
        centre = np.zeros(self.point.shape)
        centre[:, -1] = self.offset
        return Ridge(2 * strength / self.total, self.diagonal, centre)


class JointScaling(PathScaling):
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

    def _walker(self, rows: Rows, *, path: list[Penalties], dtype: type | None, last: bool) -> JointWalk:
        return JointWalk(rows, dtype, last)

    def _policy(self, weights: np.ndarray | None) -> Policy:
        return tempered(weights, TEMPER, PATIENCE)

    def _keep(self, point: np.ndarray) -> None:
        n_classes = len(point)
        self.matrix_, self.linear_ = point[:, :n_classes].copy(), point[:, n_classes:-1].copy()
        self.bias_ = point[:, -1].copy()

    def _path(self, n_classes: int) -> list[Penalties]:
        if isinstance(self.strength, str):
            if self.strength != "cv":
                raise InputError(f"strength must be a positive number or 'cv', got {self.strength!r}")
            return list(PATH)
        if isinstance(self.strength, bool) or not (np.isreal(self.strength) and 0 < self.strength < np.inf):
            raise InputError(f"strength must be a positive number or 'cv', got {self.strength!r}")
        return [Penalties(*(float(self.strength) * np.array([10.0, 30.0, 300.0, 100.0])))]

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        inputs = joint_features(xp, maps.wide(xp, logits), 1.0 / learned.temperature_).shared
        weights = xp.concat([xp.matrix_transpose(learned.matrix_), xp.matrix_transpose(learned.linear_)], axis=0)
        return maps.like(xp, xp.matmul(inputs, weights) + learned.bias_, logits)
