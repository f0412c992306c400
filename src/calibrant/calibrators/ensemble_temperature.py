"""Ensemble temperature scaling, and small convex problems on the simplex: weights ≥ 0 that sum to one."""

from collections.abc import Callable
from itertools import combinations

import numpy as np

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.learned import TEMPERATURE, Learned
from calibrant.calibrators.maps import like, log_probabilities, prediction
from calibrant.calibrators.solvers.temperature import fit_inverse_temperature, minimise_smooth
from calibrant.core.arrays import Array
from calibrant.core.errors import InputError, warn_user
from calibrant.core.rows import Rows
from calibrant.kernels.scaling import mixture_nll, mixture_squares

TOLERANCE, MAX_STEPS = 1e-10, 100
"""First-order decrease at which a search on the simplex ends, and its most steps."""

INSIDE = 1e-6
"""Smallest coordinate of a minimum that is inside the simplex, and smallest ratio of singular values."""


class EnsembleTemperatureScaling(Calibrator, keeps_prediction=True, additive=True, few_parameters=True):
    """A mixture of three distributions, w₁·softmax(z/T) + w₂·softmax(z) + w₃/K (Zhang et al. 2020, eq. 8).

    First T minimises the loss of softmax(z/T), then the weights, which are at least 0 and sum to one, that of the
    mixture: a convex problem, solved exactly. `transform` returns log-probabilities.

    Parameters
    ----------
    loss : {"nll", "mse"}
        Negative log-likelihood, or the squared error to the one-hot label that the original uses.

    Attributes
    ----------
    temperature_ : float
        The learned T.
    weights_ : (3,)
        The learned w₁, w₂, w₃.

    Examples
    --------
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> fitted = cal.EnsembleTemperatureScaling().fit(val.logits, val.labels)
    >>> round(fitted.temperature_, 2), fitted.weights_.shape
    (1.56, (3,))
    """

    learns = {"temperature_": TEMPERATURE, "weights_": Learned((3,), 0.0, 1.0)}
    n_parameters_ = 3
    """One temperature and two free weights."""

    def __init__(self, loss: str = "nll") -> None:
        self.loss = loss

    def _fit(self, rows: Rows) -> None:
        if self.loss not in {"nll", "mse"}:
            raise InputError(f"loss must be nll or mse, got {self.loss!r}")
        found = fit_inverse_temperature(rows)
        if self.loss == "nll":
            found.warn()
            self.temperature_ = 1.0 / found.value

            def evaluate(shares: Array) -> tuple[float, Array, Array]:
                loss, gradient, hessian = rows.total(mixture_nll, found.value, shares)
                return loss / rows.total_weight, gradient / rows.total_weight, hessian / rows.total_weight

            # from temperature scaling itself, so that the mixture is never worse on the fit data
            self.weights_, trace, converged = minimise_on_simplex(evaluate, np.array([1.0, 0.0, 0.0]))
            self.objective_trace_ = np.array(trace)
            if not converged:
                warn_user(f"the weights did not converge in {len(trace)} steps")
        else:

            def errors(temperatures: Array) -> Array:
                """Mean squared error to the one-hot label of softmax(z/T), for an array of temperatures."""
                sums = [rows.total(mixture_squares, 1.0 / temperature) for temperature in temperatures]
                return np.array([(gram[0, 0] - 2 * hits[0]) / rows.total_weight + 1 for gram, hits in sums])

            self.temperature_, _ = minimise_smooth(errors, found)
            gram, hits = rows.total(mixture_squares, 1.0 / self.temperature_)
            self.weights_ = minimise_quadratic(2 * gram / rows.total_weight, -2 * hits / rows.total_weight)
            mean = (self.weights_ @ gram @ self.weights_ - 2 * hits @ self.weights_) / rows.total_weight + 1
            self.objective_trace_ = np.array([float(mean)])
        self.n_iter_ = len(self.objective_trace_)

    def _map(self, xp, logits, learned):
        weights = like(xp, learned.weights_, logits)
        mixed = weights[0] * xp.softmax_of_rows(logits * like(xp, 1.0 / learned.temperature_, logits))
        mixed = mixed + weights[1] * xp.softmax_of_rows(logits) + weights[2] / logits.shape[1]
        # where the uniform part is all there is, the predicted class still leads
        return xp.keep_prediction(log_probabilities(xp, mixed), prediction(xp, logits))


def _minimise_on_face(hessian: Array, linear: Array, chosen: list[int]) -> tuple[Array, Array]:
    """The minimiser among points with these coordinates that sum to 1, and the singular values of its system."""
    count = len(chosen)
    system = np.ones((count + 1, count + 1))
    system[:count, :count], system[-1, -1] = hessian[np.ix_(chosen, chosen)], 0.0
    solved, _, _, values = np.linalg.lstsq(system, np.append(-linear[chosen], 1.0), rcond=None)
    return solved[:count], values


def minimise_quadratic(hessian: Array, linear: Array) -> Array:
    """The point of the simplex that minimises ½·xᵀHx + cᵀx, exactly: the best of the minimisers of all faces."""
    size = len(linear)
    best, best_value = np.full(size, 1.0 / size), np.inf
    # a regular problem with its minimum inside needs no face
    inside, values = _minimise_on_face(hessian, linear, list(range(size)))
    if inside.min() > INSIDE and values[-1] > INSIDE * values[0]:
        return inside / inside.sum()
    for count in range(1, size + 1):
        for face in combinations(range(size), count):
            chosen = list(face)
            solved, _ = _minimise_on_face(hessian, linear, chosen)
            if solved.min() < -1e-12:
                continue
            point = np.zeros(size)
            point[chosen] = np.maximum(solved, 0.0)
            point /= point.sum()
            value = 0.5 * float(point @ hessian @ point) + float(linear @ point)
            # a face is taken only for a real gain, so that redundant weights end at exactly 0
            if value < best_value - 1e-15 * max(1.0, abs(best_value)) or np.isinf(best_value):
                best, best_value = point, value
    return best


def minimise_on_simplex(
    evaluate: Callable[[Array], tuple[float, Array, Array]], start: Array
) -> tuple[Array, list[float], bool]:
    """Newton's method for a smooth convex loss on the simplex: the quadratic model is minimised exactly each step.

    Returns the point, the losses step by step and whether no first-order decrease beyond the tolerance is left.
    """
    point = start
    loss, gradient, hessian = evaluate(point)
    trace = [loss]
    for _ in range(MAX_STEPS):
        # the gap bounds how far the loss can still fall
        if float(gradient @ point - gradient.min()) <= TOLERANCE:
            return point, trace, True
        direction = minimise_quadratic(hessian, gradient - hessian @ point) - point
        expected, length = float(gradient @ direction), 1.0
        candidate = evaluate(point + direction)
        while candidate[0] > loss + 1e-4 * length * expected and length > 1e-10:
            length /= 4
            candidate = evaluate(point + length * direction)
        if length <= 1e-10 or abs(expected) <= 1e-16:
            return point, trace, abs(expected) <= 1e-8
        point = np.maximum(point + length * direction, 0.0)
        point /= point.sum()
        loss, gradient, hessian = candidate
        trace.append(loss)
    return point, trace, False
