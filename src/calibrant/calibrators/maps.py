"""What the maps of the methods share, over the array API: one function for numpy, torch and the ONNX writer.

`xp` is a `Space`: an array namespace with the operations on rows that it does in a way of its own. numpy's are here,
torch's too, and the ONNX writer's in `shipping/onnx`. Columns have the shape (n, 1). First rows of logits (softmax,
mixtures, the rule by which a prediction is kept), then the confidence of the predicted class: its bin, a new value for
it, and how the other classes make room.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import numpy as numpy_functions

from calibrant.calibrators import confidence_bins
from calibrant.core import bins
from calibrant.core import softmax as numpy_softmax
from calibrant.core.arrays import Array
from calibrant.core.zeros import floor_score
from calibrant.kernels.rows import scan
from calibrant.kernels.scaling import restore_prediction

MARGIN = 8
"""By how many rounding steps a kept prediction leads: what a softmax in the same precision still shows."""

LEAST_AVERAGE = 1e-290
"""An average probability below this is computed by logarithms."""

CAP_ROOM = 1e-12
"""A share may lie exactly at the cap; the last bit of another exponential must not put it above."""


class Space:
    """An array namespace for maps: the functions of the array API, and operations on rows that a library may replace.

    What is written here uses the array API alone, and is the meaning of each operation.
    """

    keeps_order = False
    """Do different logits stay different whatever is done to them? In a graph of float64 those of float32 do."""

    def __init__(self, functions: ModuleType) -> None:
        # as attributes of its own, which torch.compile can follow
        vars(self).update({name: one for name, one in vars(functions).items() if name not in dir(type(self))})

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def single_precision(self, values: Any) -> Any:
        """Values in float32 where that is faster: ONNX runtimes multiply matrices of float64 at half the speed."""
        return values

    def places(self, matrix: Any) -> Any:
        """The numbers of the columns (K,), where the matrix is."""
        return self.arange(matrix.shape[1], dtype=self.int64)

    def confidence(self, logits: Any) -> Any:
        """Largest probability of each row (n, 1) in float64."""
        return self.max(self.class_chances(logits), axis=1, keepdims=True)

    def class_chances(self, logits: Any) -> Any:
        """Probability of every class (n×K) in float64."""
        return self.softmax_of_rows(wide(self, logits))

    def entry(self, matrix: Any, column: Any) -> Any:
        """The entry of each row at a column (n, 1)."""
        return self.take_along_axis(matrix, column, axis=1)

    def with_entry(self, matrix: Any, column: Any, value: Any) -> Any:
        """The matrix (n×K) with a number or a column (n, 1) in place of the entry of each row at a column (n, 1)."""
        return self.where(self.places(matrix)[None, :] == column, value, matrix)

    def at_least(self, values: Any, least: float) -> Any:
        """Values, or a number where they are below it."""
        return self.maximum(values, self.full_like(values, least))

    def softplus(self, values: Any) -> Any:
        """log(1 + exp(x)), without overflow."""
        return self.at_least(values, 0.0) + self.log1p(self.exp(-self.abs(values)))

    def keep_increasing(self, scores: Any, logits: Any) -> Any:
        """Scores that rise with the logits within a row, with the prediction restored where rounding tied it.

        In the ONNX graph, which computes in float64, float32 logits that differ stay apart, and its last nodes take
        the prediction from the logits.
        """
        if self.keeps_order:
            return scores
        column = prediction(self, logits)
        moved = prediction(self, scores) != column
        return self.where(moved, self.keep_prediction(scores, column), scores)

    def keep_prediction(self, scores: Any, column: Any) -> Any:
        """Scores whose given column (n, 1) leads every other by a few rounding steps at least.

        The one rule for a kept prediction: it is the first maximum of the raw logits, whatever rounding did to the
        scores.
        """
        return self.with_leader(self.with_entry(scores, column, -self.inf), column, self.entry(scores, column))

    def with_leader(self, others: Any, column: Any, value: Any) -> Any:
        """Scores of the other classes (−∞ at the column), and the value (n, 1) at the column, raised until it leads."""
        ahead = _ahead_of(self, self.max(others, axis=1, keepdims=True))
        return self.with_entry(others, column, self.maximum(value, ahead))

    @property
    def of_members(self) -> Space:
        """The space for members of an average, which need no lead of a few rounding steps."""
        return self

    def normalized_scores(self, scores: Any) -> Any:
        """Log-probabilities of scores (n×K); for members of an average, the scores."""
        return self.log_softmax_of_rows(scores)

    def log_mean_softmax(self, logits: Any, weights: Any) -> Any:
        """log Σ_m w_m·softmax(z_m) of logits (M×n×K) in float64."""
        return log_mean(self, self.log_softmax_of_rows(logits), weights)

    def apply_stages(self, stages: list[tuple[Any, Any]], answers: list[Any]) -> list[Any]:
        """What second stages of one class, each with what it learned, make of the answers (n×K) before them."""
        return [stage._after(self, one, learned) for (stage, learned), one in zip(stages, answers, strict=True)]

    def bins_by_class(self, chances: Any, edges: Any) -> Any:
        """Bin of each entry (n×K) between the edges (K×(M+1)) of its column: (lo, hi], the outer bins open-ended."""
        if edges.shape[1] == 2:
            return self.astype(self.zeros_like(chances), self.int64)
        above = self.astype(chances[:, :, None] > edges[None, :, 1:-1], chances.dtype)
        return self.astype(self.sum(above, axis=2), self.int64)

    def lines_by_class(self, chances: Any, knots: Any, values: Any) -> Any:
        """Each column of probabilities (n×K) through its own lines; tables K×W, the last knot repeated.

        The lines join (knots, values) and are constant outside, as numpy.interp has it.
        """
        if knots.shape[1] == 1:
            return 0 * chances + values[:, 0]
        inside = self.minimum(self.maximum(chances, knots[:, 0]), knots[:, -1])
        reached = self.astype(inside[:, :, None] >= knots[None, :, :-1], chances.dtype)
        index = self.astype(self.sum(reached, axis=2), self.int64) - 1
        # the slope between neighbouring knots; 0 between knots at the same place
        gaps, rises = (one[:, 1:] - one[:, :-1] for one in (knots, values))
        slopes = self.where(gaps > 0, rises / self.where(gaps > 0, gaps, self.ones_like(gaps)), 0 * gaps)
        slope, left, bottom = (self.by_class(table, index) for table in (slopes, knots, values))
        return slope * (inside - left) + bottom

    def by_class(self, table: Any, index: Any) -> Any:
        """table[j, index[·, j]] of each column j."""
        n_classes, width = table.shape
        starts = width * self.places(self.matrix_transpose(table))
        return self.reshape(table, (n_classes * width,))[index + starts]

    def capped(self, shares: Any, cap: Any, total: Any) -> Any:
        """Log-shares (n×K) with none above the cap and the same sum in each row: min(λ·q, cap)."""
        return self.minimum(shares + self.water_level(shares, cap, total), cap)

    def water_level(self, shares: Any, cap: Any, total: Any) -> Any:
        """log λ (n, 1) such that the shares min(λ·q, cap) of a row keep their sum; all arguments are logarithms.

        With the m largest at the cap, λ_m = (sum − m·cap) / (sum of the rest); the answer is the first m at which the
        largest of the rest fits below the cap. In logs, because the rest may be too small for a float.
        """
        descending = self.flip(self.sort(shares, axis=1), axis=1)
        tails = self.flip(self.logcumsumexp(self.flip(descending, axis=1), 1), axis=1)
        counts = self.astype(self.places(shares), shares.dtype)[None, :]
        left = self.at_least(self.exp(total) - counts * self.exp(cap), 0.0)
        levels = self.log(left) - tails
        over = levels + descending > cap + CAP_ROOM
        # NaN (nothing left of nothing) is not above the cap, so such a place counts as fitting
        first = self.argmax(self.astype(~over, self.int32), axis=1, keepdims=True)
        chosen = self.entry(levels, first)
        # where nothing but the predicted class's −inf is left, all others are at the cap
        chosen = self.where(self.isfinite(chosen), chosen, self.full_like(chosen, 1e300))
        crowded = self.max(shares, axis=1, keepdims=True) > cap
        return self.where(crowded, chosen, self.zeros_like(chosen))


class NumpySpace(Space):
    """numpy: what it has fused forms for, and probabilities with the bits that the fits see."""

    softmax_of_rows = staticmethod(numpy_softmax.softmax)
    log_softmax_of_rows = staticmethod(numpy_softmax.log_softmax)
    # the methods themselves: of one row the functions around them take longer than the sum
    max, sum, argmax = staticmethod(np.ndarray.max), staticmethod(np.ndarray.sum), staticmethod(np.ndarray.argmax)
    zeros_like = staticmethod(np.zeros_like)

    def full_like(self, values: Array, number: float) -> Any:
        """A number that broadcasts to the shape."""
        return values.dtype.type(number)

    def stack(self, arrays: list[Array], *, axis: int = 0) -> Array:
        """In a fifth of the time of `stack` for a few small arrays."""
        return np.array(arrays) if axis == 0 else np.stack(arrays, axis=axis)

    def apply_stages(self, stages: list[tuple[Any, Any]], answers: list[Array]) -> list[Array]:
        """All at once, as rows of one matrix: of few rows numpy's calls take longer than what they compute."""
        if len(stages) == 1:
            return super().apply_stages(stages, answers)
        n_rows, (first, learned) = len(answers[0]), stages[0]
        columns = SimpleNamespace()
        for name, value in vars(learned).items():
            if isinstance(value, np.ndarray):  # what a stage learned becomes a column beside its rows
                values = np.array([vars(one)[name] for _, one in stages])
                vars(columns)[name] = values.T.repeat(n_rows, -1)[..., None]
        joined = first._after(self, np.concatenate(answers), columns)
        return [joined[start : start + n_rows] for start in range(0, len(joined), n_rows)]

    def astype(self, values: Any, dtype: Any, *, copy: bool = True) -> Any:
        """By the method."""
        return values.astype(dtype, copy=copy)

    def at_least(self, values: Array, least: float) -> Array:
        """Without an array of the number."""
        return np.maximum(values, least)

    def softplus(self, values: Array) -> Array:
        """In one function."""
        return np.logaddexp(0.0, values)

    def largest(self, logits: Array, count: int) -> Array:
        """The largest logits of each row, largest first, in float64 (n×count)."""
        n_classes = logits.shape[1]
        top = logits if count == n_classes else np.partition(logits, n_classes - count, axis=1)[:, n_classes - count :]
        return np.sort(top, axis=1)[:, ::-1].astype(np.float64)

    def confidence(self, logits: Array) -> Array:
        """By the scan that the fits take."""
        return scan(logits, None, from_logits=True, columns="top").confidence[:, None]

    def class_chances(self, logits: Array) -> Array:
        """By the columns that the fits take."""
        return np.stack(list(confidence_bins.class_probabilities(logits)), axis=1)

    def with_entry(self, matrix: Array, column: Array, value: Any) -> Array:
        """One copy, where a mask and a choice would pass over the matrix twice."""
        changed = matrix.copy()
        changed.reshape(-1)[_flat(matrix, column)] = value if isinstance(value, float) else value[:, 0]
        return changed

    def entry(self, matrix: Array, column: Array) -> Array:
        """Twice as fast as `take_along_axis`."""
        return matrix.reshape(-1)[_flat(matrix, column)][:, None]

    def keep_increasing(self, scores: Array, logits: Array) -> Array:
        """Only rows that rounding changed are touched."""
        restore_prediction(logits, scores)
        return scores

    def keep_prediction(self, scores: Array, column: Array) -> Array:
        """With one copy."""
        kept, place = scores.copy(), _flat(scores, column)
        flat = kept.reshape(-1)
        own = flat[place]
        flat[place] = -np.inf
        flat[place] = np.maximum(own, _ahead_of(self, kept.max(axis=1)))
        return kept

    @property
    def of_members(self) -> Space:
        """Fewer calls per row."""
        return member_space

    def log_mean_softmax(self, logits: Array, weights: Array) -> Array:
        """By probabilities, unless one is too small for that."""
        with np.errstate(over="ignore"):
            exponentials = np.exp(logits - numpy_softmax.row_peak(logits))
        exponentials *= weights[:, None, None] / exponentials.sum(axis=2, keepdims=True)
        average = exponentials.sum(axis=0)
        if average.min(initial=1.0) < LEAST_AVERAGE:
            return super().log_mean_softmax(logits, weights)
        return np.log(average)

    def bins_by_class(self, chances: Array, edges: Array) -> Array:
        """By bisection, column by column: no table of n×K×M comparisons."""
        return np.stack([bins.place(column, own) for column, own in zip(chances.T, edges, strict=True)], axis=1)

    def lines_by_class(self, chances: Array, knots: Array, values: Array) -> Array:
        """By bisection, column by column."""
        columns = zip(chances.T, knots, values, strict=True)
        return np.stack([np.interp(column, own, heights) for column, own, heights in columns], axis=1)

    def logcumsumexp(self, values: Array, axis: int) -> Array:
        """log Σ_{i ≤ j} exp(v_i)."""
        return np.logaddexp.accumulate(values, axis=axis)

    def capped(self, shares: Array, cap: Array, total: Array) -> Array:
        """In place, crowded rows only: sorting all would cost more than the rest of the map."""
        over = shares.max(axis=1) > cap[:, 0]
        if np.count_nonzero(over):
            crowded = np.flatnonzero(over)
            with np.errstate(divide="ignore", invalid="ignore"):
                shares[crowded] = super().capped(shares[crowded], cap[crowded], total[crowded])
        return shares


def _flat(matrix: Array, column: Array) -> Array:
    """The places (n,) of a column (n, 1) in a matrix read row by row: numpy finds them in half the time of pairs."""
    return np.arange(0, matrix.size, matrix.shape[1]) + column[:, 0]


class MemberSpace(NumpySpace):
    """numpy for members of an average, which takes their softmax: a prediction is restored only if it moved."""

    def normalized_scores(self, scores: Array) -> Array:
        """Return the scores unchanged."""
        return scores

    def keep_prediction(self, scores: Array, column: Array) -> Array:
        """Return the scores unchanged if the column leads."""
        moved = scores.argmax(axis=1) != column[:, 0]
        return super().keep_prediction(scores, column) if np.count_nonzero(moved) else scores

    def with_leader(self, others: Array, column: Array, value: Array) -> Array:
        """Without raising the value if it leads."""
        return self.keep_prediction(self.with_entry(others, column, value), column)


numpy_space, member_space = NumpySpace(numpy_functions), MemberSpace(numpy_functions)


@cache
def torch_space() -> Space:
    """torch on any device; imported here, when a tensor has arrived."""
    import torch
    from array_api_compat import torch as functions

    class TorchSpace(Space):
        def softmax_of_rows(self, logits: Any) -> Any:
            return torch.softmax(logits, dim=-1)

        def log_softmax_of_rows(self, logits: Any) -> Any:
            return torch.log_softmax(logits, dim=-1)

        def largest(self, logits: Any, count: int) -> Any:
            return torch.topk(logits, count, dim=1).values

        def places(self, matrix: Any) -> Any:
            return torch.arange(matrix.shape[1], device=matrix.device)

        def entry(self, matrix: Any, column: Any) -> Any:
            # take_along_dim fixes the number of rows when a module is exported; gather does not
            return torch.gather(matrix, 1, column)

    return TorchSpace(functions)


def like(xp: Any, values: Any, logits: Any) -> Any:
    """Learned numbers in the dtype of the logits."""
    return values if values.dtype == logits.dtype else xp.astype(values, logits.dtype)


def wide(xp: Any, logits: Any) -> Any:
    """Logits in float64, for sums and logarithms that need it."""
    return logits if logits.dtype == xp.float64 else xp.astype(logits, xp.float64)


def log_probabilities(xp: Any, probabilities: Any) -> Any:
    """Logits that softmax maps back to these probabilities; a zero becomes the smallest normal number."""
    tiny = float(xp.finfo(probabilities.dtype).smallest_normal)
    return xp.log(xp.at_least(probabilities, tiny))


def log_mean(xp: Any, logarithms: Any, weights: Any) -> Any:
    """log Σ_m w_m·exp(l_m) of the first axis, without overflow."""
    peak = xp.max(logarithms, axis=0)
    shares = xp.reshape(weights, (-1, *[1] * len(peak.shape)))
    return peak + xp.log(xp.sum(shares * xp.exp(logarithms - peak), axis=0))


def prediction(xp: Any, logits: Any) -> Any:
    """Column of the largest logit of each row (n, 1); the first of equals."""
    return xp.argmax(logits, axis=1, keepdims=True)


def _ahead_of(xp: Any, others: Any) -> Any:
    step = MARGIN * float(xp.finfo(others.dtype).eps)
    return others + step * xp.at_least(xp.abs(others), 1.0)


def mix_with_uniform(xp: Any, logits: Any, weight: Any) -> Any:
    """log(α·softmax(z) + (1 − α)/K), α a number or a column; the predicted class stays ahead even at α = 0."""
    share = like(xp, weight, logits)
    mixed = xp.softmax_of_rows(logits) * share + (1 - share) / logits.shape[1]
    return xp.keep_prediction(log_probabilities(xp, mixed), prediction(xp, logits))


def sigmoid(xp: Any, log_odds: Any) -> Any:
    """1/(1 + exp(−s)) without overflow, with the bits of `core.softmax.sigmoid` in numpy."""
    small = xp.exp(-xp.abs(log_odds))
    share = 1.0 / (1.0 + small)
    return xp.where(log_odds >= 0, share, small * share)


def interpolate(xp: Any, points: Any, knots: Any, values: Any) -> Any:
    """Linear interpolation at points (n,), by bisection and constant beyond the outer knots."""
    count = knots.shape[0]
    if count == 1:
        return values[0] + xp.zeros_like(points)
    upper = xp.clip(xp.searchsorted(knots, points, side="right"), 1, count - 1)
    (left, low), (right, high) = ([xp.take(one, at) for one in (knots, values)] for at in (upper - 1, upper))
    return low + xp.clip((points - left) / (right - left), 0.0, 1.0) * (high - low)


def log_odds(xp: Any, values: Any) -> Any:
    """log(c / (1 − c)) of confidences strictly inside (0, 1)."""
    return xp.log(values) - xp.log1p(-values)


def with_confidence(xp: Any, logits: Any, new_log_odds: Any) -> Any:
    """Log-probabilities (n×K) whose predicted class has the confidence of these log-odds (n, 1)."""
    return with_mapped_confidence(xp, logits, lambda _: new_log_odds)


def with_mapped_confidence(xp: Any, logits: Any, change: Callable[[Any], Any]) -> Any:
    """Log-probabilities (n×K) whose predicted class has log-odds change(u), u (n, 1) its present ones.

    The other classes share what is left in their old proportions. Where the runner-up would overtake, its share is
    capped and the excess flows to the rest; the predicted class keeps at least 1/K.
    """
    exact, column = wide(xp, logits), prediction(xp, logits)
    others = xp.with_entry(exact, column, -xp.inf)
    peak = xp.max(others, axis=1, keepdims=True)
    total = peak + xp.log(xp.sum(xp.exp(others - peak), axis=1, keepdims=True))
    present = xp.max(exact, axis=1, keepdims=True) - total
    # the least confidence a predicted class can have is 1/K
    least = -float(np.log(logits.shape[1] - 1.0))
    odds = xp.at_least(change(present), least)
    top = -xp.softplus(-odds)
    rest = top - odds
    shares = like(xp, xp.capped(others + (rest - total), top, rest), logits)
    return xp.with_leader(shares, column, like(xp, top, logits))


def each_array(learned: Any, make: Callable[[Any], Any]) -> Any:
    """What was learned, with `make(array)` in place of every array."""
    if isinstance(learned, SimpleNamespace):
        return SimpleNamespace(**{name: each_array(value, make) for name, value in vars(learned).items()})
    return [each_array(one, make) for one in learned] if isinstance(learned, list) else make(learned)


def within_floor(xp: Any, scores: Any, log_floor: float) -> Any:
    """Scores in which those beyond the floor, ±∞ among them, count as the floor, so that their order stays."""
    level = floor_score(log_floor)
    return xp.minimum(xp.maximum(scores, xp.full_like(scores, -level)), xp.full_like(scores, level))


def raise_zeros(xp: Any, logits: Any, log_floor: float, *, scores: bool) -> Any:
    """Logits (n×K) with a value for −∞, or `scores` of any shape, each a log-odds, within the floor."""
    if scores:
        return within_floor(xp, logits, log_floor)
    peak = xp.max(logits, axis=1, keepdims=True)
    log_mass = peak + xp.log(xp.sum(xp.exp(logits - peak), axis=1, keepdims=True))
    return xp.where(xp.isinf(logits), log_mass + log_floor, logits)
