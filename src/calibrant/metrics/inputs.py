"""Checks the inputs of a metric and gives the rows that it is computed from.

A metric asks for totals of its rows, which add up over chunks, or for all rows, with the reason why it must.

Probabilities (n, K) are asked about the predicted class; one probability per row, (n,), is asked about the positive
class: p is used as the confidence, and the label 0/1 as correctness.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property, partial, wraps
from inspect import signature
from numbers import Real
from typing import Annotated, Any, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from calibrant.core.arrays import (
    PROBABILITY_TOLERANCE,
    Array,
    check_counts,
    check_flag,
    check_labels,
    check_matrix,
    check_outcomes,
    check_score_values,
    check_scores,
    check_weights,
    on_device,
    short_repr,
    unit_scale,
)
from calibrant.core.errors import InputError, warn_user
from calibrant.core.rows import is_one_column
from calibrant.core.softmax import finite_log_odds, probability_log_odds, sigmoid, softplus
from calibrant.core.zeros import cost_of_zero
from calibrant.kernels.isotonic import ScoreGroups, score_groups
from calibrant.kernels.rows import LEVELS, SCORES, RowColumns, scan

Probabilities: TypeAlias = Annotated[
    ArrayLike,
    "array (n, K), or (n,) or (n, 1) of the positive class: Probabilities, or logits with ``from_logits=True``.",
]
ClassIndices: TypeAlias = Annotated[
    ArrayLike, "array (n,): Class indices 0 … K−1. Every metric checks them, also where it does not read them."
]
PositiveProbabilities: TypeAlias = Annotated[
    ArrayLike, "array (n,): Probabilities of the positive class, or logits with ``from_logits=True``."
]
BinaryLabels: TypeAlias = Annotated[ArrayLike, "array (n,): 0 or 1."]
RowWeights: TypeAlias = Annotated[ArrayLike | None, "array (n,), optional: A weight of 2 counts as the row twice."]


Sums = TypeVar("Sums")
"""What a total is: anything with `+`."""

Total = tuple[Callable[..., Any], tuple[Any, ...]]
"""A statistic of rows, and its options."""

FEWEST_HARD = 10
"""Rows from which probabilities of 0 and 1 only are no accident."""

ORDER_OF_ROWS = "needs the confidences of all rows in their order"
ORDER_OF_CLASSES = "ranks every class's probabilities of all rows"


class NeedsRowsError(Exception):
    """A metric that is not a function of totals asked for them alone; the argument says why."""


@dataclass(eq=False)
class Checked:
    """Rows that metrics sum over: values, labels (n,) and weights (n,) or None that passed the gate.

    values : a matrix (n×K); a matrix on a GPU, whose columns are computed there; one score per row (n,), where logits
        of ±inf stand for probabilities of 0 and 1; or a function that reads a matrix when a metric needs it.
    task : "multiclass" of a matrix; "binary", or "pairs" where the label says that an answer was right.
    level, found : columns of the rows that are known, and how many of them.
    totals : sums that are known, by statistic and options; of chunks that are gone they are all there is.
    additive : are totals all that may be asked for?
    """

    values: Any
    labels: Array
    weights: Array | None
    from_logits: bool
    task: str = "multiclass"
    n_classes: int = 2
    level: int = -1
    found: Any = None
    totals: dict[Total, Any] = field(default_factory=dict)
    additive: bool = False

    @property
    def mass(self) -> Array:
        """The weight of each row (n,)."""
        return np.ones(len(self.labels)) if self.weights is None else self.weights

    @property
    def flat(self) -> bool:
        """Is there one score per row?"""
        return self.task != "multiclass"

    @cached_property
    def matrix(self) -> Array:
        """The values (n×K) in memory; a single score stands for two classes."""
        if callable(self.values):
            return self.values()
        if not self.flat:
            return self.values if isinstance(self.values, np.ndarray) else check_matrix(self.values)
        # beyond ±745 the probability of the other class is 0 in float64
        scores = np.clip(self.values, -745, 745)
        return np.stack([np.zeros_like(scores) if self.from_logits else 1 - scores, scores], axis=1)

    def every(self, reason: str) -> Self:
        """All rows, for what is not a function of totals."""
        if self.additive:
            raise NeedsRowsError(reason)
        return self

    def columns(self, wanted: str = "correct", *, name: str = "", first_row: int = 0) -> RowColumns:
        """Per-row columns ("correct", "top", "scores" or "all") from one pass over the values, which is remembered.

        name, first_row : what error messages call the values, and the number of their first row.
        """
        if self.level < LEVELS[wanted]:
            options: Any = {"from_logits": self.from_logits, "name": name}
            if self.flat:
                self.found = self._score_columns(LEVELS[wanted])
            elif isinstance(self.values, np.ndarray):
                self.found = scan(self.values, self.labels, columns=wanted, first_row=first_row, **options)
            else:
                from calibrant.kernels.torch.columns import host_columns

                self.found = host_columns(self.values, self.labels, **options)
            self.level = LEVELS[wanted]
        return self.found

    def _score_columns(self, level: int) -> RowColumns:
        """Columns of the question "how likely is the positive class": p for confidence, y = 1 for correctness."""
        p, positive = self.probability, self.positive
        nll = brier = entropy = np.empty(0)
        if level >= SCORES:
            from scipy.special import entr  # here, since the import alone takes longer than most metrics

            wide = p.astype(np.float64)
            share = np.clip(wide, 0.0, 1.0)  # beyond by rounding
            nll, at_zero = self.losses(), cost_of_zero(self.values)
            nll = np.where(np.isinf(nll), at_zero, nll) if self.from_logits else np.minimum(nll, at_zero)
            brier = (wide - positive) ** 2
            entropy = entr(share) + entr(1 - share)
        return RowColumns(p, (p >= 0.5).astype(np.int64), positive, nll, brier, entropy)

    def column(self, name: str) -> Array:
        """One number per row: a field of `RowColumns`, or "hit", whether the predicted class is right.

        Of one score per row, class 1 is predicted where p ≥ ½.
        """
        if name == "hit":
            found = self.columns()
            return found.prediction == found.correct if self.task == "binary" else found.correct
        return getattr(self.columns({"nll": "scores", "brier": "scores", "entropy": "all"}.get(name, "correct")), name)

    def top(self, *, ordered: bool = False) -> tuple[Array, Array, Array | None]:
        """Confidence, correctness and weights of every row, all that a top-label metric reads; or needs in order."""
        columns = (self.every(ORDER_OF_ROWS) if ordered else self).columns()
        return columns.confidence, columns.correct, self.weights

    @cached_property
    def probability(self) -> Array:
        """P(y = 1) of single scores (n,): in the dtype of the probabilities, float64 from logits."""
        return sigmoid(self.values.astype(np.float64)) if self.from_logits else self.values

    @cached_property
    def log_odds(self) -> Array:
        """log p − log(1 − p) of single scores, finite: exact 0 and 1 count as half the smallest other p and 1 − p."""
        return finite_log_odds(self.values if self.from_logits else probability_log_odds(self.values))

    @property
    def positive(self) -> Array:
        """Is the label 1 (n,)?"""
        return self.labels == 1

    def losses(self) -> Array:
        """−log of the probability of the label (n,): inf where p = 0 meets y = 1 or p = 1 meets y = 0."""
        wide = self.values.astype(np.float64)
        if self.from_logits:
            return softplus(np.where(self.positive, -wide, wide))
        with np.errstate(divide="ignore"):
            return -np.where(self.positive, np.log(wide), np.log1p(-wide))


def adds_up(statistic: Callable[..., Sums]) -> Callable[..., Sums]:
    """Make a function of rows and options a statistic whose sums add up over chunks: rows remember what it gave."""

    names = list(signature(statistic).parameters)[1:]

    @wraps(statistic)
    def known(rows: Checked, *options: Any) -> Sums:
        for name, option in zip(names, options, strict=False):
            if not isinstance(option, Hashable):
                raise InputError(f"{name} must be one number or word, got {short_repr(option)}")
        asked = known, options
        if asked not in rows.totals:
            rows.totals[asked] = statistic(rows, *options)
        return rows.totals[asked]

    return known


def check(
    probabilities: Any,
    labels: Any,
    sample_weight: Any,
    from_logits: bool,
    *,
    weights_are: str = "shares",
    one_score: bool = False,
) -> Checked:
    """Pass the three inputs of a metric through the gate; rows that did so are returned as they are.

    weights_are : "shares" for a ratio of sums, which takes any scale; "counts" for a metric that asks how many rows
        there are; "parts" for one chunk of many, whose weights stay as they are.
    one_score : does the metric ask about one probability per row?
    """
    if isinstance(probabilities, Checked):
        return probabilities.every("reads one score per row") if one_score else probabilities
    name = "logits" if check_flag(from_logits, "from_logits") else "probabilities"
    flat = one_score or is_one_column(probabilities)
    if flat:
        shape = np.shape(probabilities)
        if len(shape) == 2 and shape[1] == 2:
            raise InputError(
                f"{name} has shape {shape}, but this metric asks about one positive class: give the column of the "
                "positive class, for instance probabilities[:, 1]"
            )
        values = check_scores(probabilities, name)
        if not from_logits and values.max() <= 1 + PROBABILITY_TOLERANCE:
            values = np.minimum(values, 1)
        check_score_values(values, from_logits=from_logits, name=name)
        indices, n_classes = check_outcomes(labels, len(values)), 2
    else:
        device = on_device(probabilities) and probabilities.ndim == 2
        values = probabilities if device else check_matrix(probabilities, name)
        n_classes = values.shape[1]
        indices = check_labels(labels, len(values), n_classes, against=name)
    if not from_logits and isinstance(values, np.ndarray) and are_hard(values):
        warn_user(
            "all probabilities are exactly 0 or 1: are they predictions instead of probabilities? "
            "Metrics take (probabilities, labels)"
        )
    weights = check_weights(sample_weight, len(values))
    if weights_are == "counts":
        check_counts(weights)
    elif weights_are == "shares":
        weights = unit_scale(weights)
    return Checked(values, indices, weights, from_logits, "binary" if flat else "multiclass", n_classes)


def are_hard(probabilities: Array) -> bool:
    """Return whether ten or more rows of probabilities are all exactly 0 or 1."""
    if len(probabilities) < FEWEST_HARD or probabilities.flat[0] not in (0, 1):
        return False
    return bool(((probabilities == 0) | (probabilities == 1)).all())


check_binary = partial(check, one_score=True)
"""Pass one probability per row, labels 0/1 and weights through the gate."""


def confidence_groups(*inputs: Any, **options: Any) -> ScoreGroups:
    """Rows of equal confidence as one group, from the inputs of `check`, for metrics that need their order.

    Since ties are summed before anything is compared, no answer depends on the order of the rows, and a weight of 2 is
    the row twice by construction.
    """
    groups = score_groups(*check(*inputs, **options).top(ordered=True))
    return groups._replace(scores=groups.scores.astype(np.float64))


@adds_up
def column_sums(rows: Checked, name: str) -> Array:
    """Σw and Σw·x of a column of the rows, as a (2,) array; an infinite loss of a row of weight 0 counts nothing."""
    mass = rows.mass
    return np.array([mass.sum(), mass @ np.where(mass > 0, rows.column(name), 0.0)])


def mean(rows: Checked, name: str) -> float:
    """Weighted mean of a column of the rows."""
    weight, total = column_sums(rows, name)
    return float(total / weight)


def check_norm(norm: float) -> float:
    """The p of an ℓp norm: 1, 2 or inf (any number from 1 on makes sense)."""
    if isinstance(norm, bool) or not isinstance(norm, Real) or not norm >= 1:
        raise InputError(f"norm must be 1, 2 or inf, got {short_repr(norm)}")
    return float(norm)
