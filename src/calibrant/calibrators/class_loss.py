"""Scaling of class-wise training losses."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone

from calibrant.calibrators.base import Calibrator, of_inner
from calibrant.calibrators.learned import INNER, RECORD, Learned
from calibrant.calibrators.tensors import device_map
from calibrant.core.arrays import Array
from calibrant.core.bins import total_gap
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.progress import step
from calibrant.core.rows import Rows, Smoothing
from calibrant.core.softmax import log_softmax
from calibrant.core.statistic import statistic
from calibrant.kernels.bins import width_sums

CHOICES = {
    "normalization": ("normal", "centered_minmax", "minmax"),
    "loss": ("cross_entropy", "balanced", "label_smoothing", "focal", "focal_detached"),
    "alpha_beta": ("refit", "first_step"),
    "class_loss": ("mean", "sum"),
}
FIRST_STEP = 0.02
"""Share of the way to the refit that counts as the optimiser's first step: the learning rate of the authors' code."""

SMOOTHING, FOCUS = 0.05, 3.0
"""The paper's strengths of its two baselines (§5.3)."""

N_BINS = 15
MAX_REFITS = 200
TOLERANCE = 1e-7
"""Largest change of a weight from one refit to the next at a fixed point."""

SMALLEST_SPREAD = 0.02
"""Class losses that lie closer together, as a share of their mean after the first refit, are divided by this share.

A calibrator with a scale per class can make all class losses equal. There the normalised losses jump between −1 and 1
with the last bit of a loss, and no fixed point exists; with a smallest spread they pass through 0.
"""

CLASS_PAIRS, ROW_PAIRS = 20, 1
"""Number of earlier points in the search for class weights and for row weights.

Row weights have more entries than the calibrator has parameters: only the last step predicts how a residual changes.
"""

VISIBLE_CHANGE = 1e-5
"""Smallest change of a weight per refit that raises a warning; the rounding of steep refits may reach about 1e-6."""

SMALLEST_RADIUS = 1e-12
"""Longest step at which the search ends: the residual jumps, so that there is no fixed point to find."""

SMALLEST_MIXING = 1 / 1024
"""Smallest share of the residual that a step of the search follows."""

RADIUS_GROWTH, NEARBY = 4.0, 8.0
"""Longest next step, in lengths of the last step that improved, and largest distance, in longest steps, of a pair that
contributes to a step."""


class ClassLossScaling(
    Calibrator,
    keeps_prediction=of_inner("keeps_prediction"),
    keeps_ranking=of_inner("keeps_ranking"),
    additive=of_inner("additive"),
    few_parameters=of_inner("few_parameters"),
    requires_logits=of_inner("requires_logits"),
    trains_network=of_inner("trains_network"),
):
    """Refit a calibrator so that classes of high loss count more (Jung et al. 2023, eq. 8).

    Minimises Σ_i (1 + w_i)·L_i over the parameters of the calibrator, L_i the mean NLL of class i and
    w_i = β/(1 + exp(−L̄_i/α)) − β/2 (eq. 5) of the normalised losses L̄, without gradient through w. The answer is
    the fixed point where the weights belong to the losses they produce.

    Parameters
    ----------
    calibrator : Calibrator
        Any that is fitted by likelihood: TemperatureScaling, EnsembleTemperatureScaling, VectorScaling,
        ClassTemperatureScaling(objective="nll"), ParameterizedTemperatureScaling …; each refit hands it rows whose
        weights are the loss weights, so honouring sample weights is all it takes.
    normalization : {"normal", "centered_minmax", "minmax"}
        L̄ = (L − mean)/std; (L − mean)/(max − min); (L − min)/(max − min) (app. A).
    loss : {"cross_entropy", "balanced", "label_smoothing", "focal", "focal_detached"}
        The method; "balanced", its sum of class losses with w = 0; or one of the paper's two baselines: the calibrator
        refitted with label smoothing 0.05 or with the focal loss of γ = 3, and no class weights. "focal" is the loss as
        printed; "focal_detached" treats the factor (1 − p)^γ as a weight without gradient, as the authors' code does.
    alpha_beta : {"refit", "first_step"}
        Where the class losses after the change come from when α and β are chosen on eq. 6: from the first refit, or
        from the first step of an optimiser, as in the paper. The standard deviation that normalises the losses is that
        of a sample (K − 1 in the divisor).
    class_loss : {"mean", "sum"}
        What L_i is: the mean NLL of the rows of a class, or their sum as eq. 3 is printed (over the rows that a class
        has on average, so that both are the same for balanced classes).
    bounded : bool
        Keep α in [0.1, ½·ln K] and β in [1.5, 2], as the paper does. Without bounds eq. 6 may choose β < 0, or weights
        below −1, where a class counts nothing.

    Attributes
    ----------
    calibrator_ : the refitted calibrator.
    class_weights_ : (K,) the w_i; 0 for absent classes.
    alpha_, beta_ : the shape of the weight function, chosen once by SLSQP on eq. 6.
    std_trace_, ece_trace_ : std of the class losses and ECE of the fit data, refit by refit, the start included.

    Examples
    --------
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> fitted = cal.ClassLossScaling(cal.TemperatureScaling()).fit(val.logits, val.labels)
    >>> int(fitted.class_weights_.argmax())  # the class of the highest loss: dogs
    5
    """

    learns = {
        "calibrator_": INNER,
        "class_weights_": Learned(("K",), free=False),
        "alpha_": Learned((), free=False),
        "beta_": Learned((), free=False),
        "std_trace_": RECORD,
        "ece_trace_": RECORD,
    }

    def __init__(
        self,
        calibrator: Calibrator,
        normalization: str = "normal",
        loss: str = "cross_entropy",
        *,
        alpha_beta: str = "refit",
        class_loss: str = "mean",
        bounded: bool = True,
    ) -> None:
        self.calibrator = calibrator
        self.normalization = normalization
        self.loss = loss
        self.alpha_beta = alpha_beta
        self.class_loss = class_loss
        self.bounded = bounded

    def _fit(self, rows: Rows) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        objective = self.calibrator.get_params(deep=False).get("objective", "nll")
        if objective != "nll":
            raise InputError(
                f"{type(self.calibrator).__name__} minimises {objective!r}, but class losses can only weigh a "
                "likelihood: give it objective='nll'"
            )
        self.class_weights_ = np.zeros(rows.n_classes)
        self.alpha_, self.beta_ = 1.0, 1.5
        self._trace: list[tuple[float, float, float]] = []
        self._record(rows, None)
        if self.loss == "cross_entropy":
            self._fit_class_weights(rows)
        elif self.loss == "balanced":
            self._refit(rows, self._weigh_classes(rows))
        elif self.loss == "label_smoothing":
            if not self.calibrator.additive:
                raise InputError(
                    f"{type(self.calibrator).__name__} looks at single rows, but label smoothing gives it sums over "
                    "rows and labels: take a calibrator that is additive"
                )
            self._refit(rows, replace(rows, each=Smoothing(SMOOTHING)))
        else:
            self._fit_focal(rows)
        if self._told:
            # without an optimum, the last refit ends at the mode under the weak prior, as that of the calibrator itself
            self._refit(rows, self._weighted, has_prior=True)
        self.objective_trace_, self.std_trace_, self.ece_trace_ = np.array(self._trace).T
        self.n_iter_ = len(self._trace) - 1
        # warnings of earlier refits, under weights that are no longer used, are dropped
        for last in self._told:
            warnings.warn(str(last.message), last.category, stacklevel=4)
        del self._trace, self._told, self._losses, self._weighted

    def _fit_class_weights(self, rows: Rows) -> None:
        """Fit under class weights that belong to the class losses of the fit."""
        counts = self._counts(rows)
        present = counts > 0

        def refit(weights: Array, previous: Calibrator | None) -> Array:
            self.class_weights_[present] = weights
            self._refit(rows, self._weigh_classes(rows), previous)
            return self._losses[present]

        before = self._losses[present]
        after = refit(class_weights(before, self.normalization, self.alpha_, self.beta_), None)
        changed = after
        if self.alpha_beta == "first_step":
            changed = _class_losses(rows, counts, self.calibrator_, FIRST_STEP)[0][present]
        self.alpha_, self.beta_ = choose_shape(
            before, changed, self.normalization, rows.n_classes, bounded=self.bounded
        )
        smallest = SMALLEST_SPREAD * float(after.mean())
        self._find_fixed_point(
            refit,
            lambda losses: class_weights(losses, self.normalization, self.alpha_, self.beta_, smallest),
            after,
            FixedPoint(CLASS_PAIRS),
            (-0.5 * abs(self.beta_), 0.5 * abs(self.beta_)),
        )

    def _weigh_classes(self, rows: Rows) -> Rows:
        """Return rows with weights that make their NLL the sum of (1 + w_i)·L_i."""
        counts = self._counts(rows)
        factors = np.maximum(1 + self.class_weights_, 0.0) * _per_row(1.0, counts)
        factors *= rows.total_weight / np.count_nonzero(counts)
        return rows.with_weights(rows.mass() * factors[np.asarray(rows.labels)])

    def _fit_focal(self, rows: Rows) -> None:
        """Fit under row weights that belong to the losses of the fit.

        The gradient of the focal loss is a weighted gradient of the NLL, so a fixed point is a stationary point.
        """
        counted, detached = rows.mass() > 0, self.loss == "focal_detached"

        def refit(weights: Array, previous: Calibrator | None) -> Array:
            self._refit(rows, rows.with_weights(rows.mass() * weights), previous)
            return rows.gather(partial(_row_losses, calibrator=self.calibrator_))[0]

        losses = refit(np.ones(rows.n), None)
        self._find_fixed_point(
            refit,
            lambda losses: counted * focal_weights(losses, detached=detached),
            losses,
            FixedPoint(ROW_PAIRS),
            (0.0, np.inf),
        )

    def _find_fixed_point(
        self,
        refit: Callable[[Array, Calibrator | None], Array],
        weigh: Callable[[Array], Array],
        losses: Array,
        search: FixedPoint,
        bounds: tuple[float, float],
    ) -> None:
        """Search for the weights that the losses of a refit under them lead to.

        Parameters
        ----------
        refit : (weights, previous fit) → losses of the fit under these weights.
        weigh : losses → weights.
        losses : start of the search.
        bounds : range of the weights.
        """
        weights = weigh(losses)
        for number in range(MAX_REFITS):
            target = weigh(refit(weights, self.calibrator_))
            change = float(np.abs(target - weights).max())
            if change <= TOLERANCE:
                return
            weights = np.clip(search.propose_point(weights, target), *bounds)
            if search.radius <= SMALLEST_RADIUS:
                break
            step("weights", number + 1, None, f"change {change:.1e}")
        weights = search.point
        change = float(np.abs(weigh(refit(weights, self.calibrator_)) - weights).max())
        if change > VISIBLE_CHANGE:
            warnings.warn(f"the weights still change by {change:.1e} per refit", FitWarning, stacklevel=5)

    def _refit(
        self, rows: Rows, weighted: Rows, previous: Calibrator | None = None, *, has_prior: bool = False
    ) -> None:
        """Fit the calibrator to weighted rows.

        During a search without the weak prior: a mode under the prior whose weights lead to no optimum again would be a
        fixed point, although it is not the minimum.
        """
        fresh, self._weighted = clone(self.calibrator), replace(weighted, has_prior=has_prior)
        with warnings.catch_warnings(record=True) as self._told:
            warnings.simplefilter("always")
            self.calibrator_ = (fresh if previous is None else fresh.go_on_from(previous)).fit_rows(self._weighted)
        self._record(rows, self.calibrator_)

    def _counts(self, rows: Rows) -> Array:
        """What the summed loss of a class is divided by (K,): its rows, or one number for all; absent, 0."""
        counts = rows.class_weight()
        return counts if self.class_loss == "mean" else (counts > 0) * counts[counts > 0].mean()

    def _record(self, rows: Rows, calibrator: Calibrator | None) -> None:
        counts = self._counts(rows)
        self._losses, sums = _class_losses(rows, counts, calibrator)
        present = self._losses[counts > 0]
        spread = present.std(ddof=1) if len(present) > 1 else 0.0
        gaps = float(total_gap(sums[1] - sums[2], rows.total_weight))
        self._trace.append((float((1 + self.class_weights_) @ self._losses), float(spread), gaps))

    def _map(self, xp, logits, learned):
        return self.calibrator_._map(xp, logits, learned.calibrator_)

    def _transform(self, logits: Array) -> Array:
        return self.calibrator_._transform(logits)


def normalise_losses(losses: Array, normalization: str, smallest_spread: float = 0.0) -> Array:
    """L̄ of the class losses (eq. 4 and app. A); 0 where they do not differ.

    The spread that divides them is at least `smallest_spread`.
    """
    if len(losses) < 2 or np.ptp(losses) <= 1e-12 * max(1.0, float(np.abs(losses).max())):
        return np.zeros_like(losses)
    if normalization == "normal":
        return (losses - losses.mean()) / max(losses.std(ddof=1), smallest_spread)
    scaled = (losses - losses.min()) / max(np.ptp(losses), smallest_spread)
    return scaled - scaled.mean() if normalization == "centered_minmax" else scaled


def class_weights(losses: Array, normalization: str, alpha: float, beta: float, smallest_spread: float = 0.0) -> Array:
    """w_i = β/(1 + exp(−L̄_i/α)) − β/2 (eq. 5): odd in L̄, within ±β/2."""
    return 0.5 * beta * np.tanh(0.5 * normalise_losses(losses, normalization, smallest_spread) / alpha)


def choose_shape(
    before: Array, after: Array, normalization: str, n_classes: int, *, bounded: bool = True
) -> tuple[float, float]:
    """α in [0.1, ½·ln K] and β in [1.5, 2], or any α > 0 and β, of the lowest eq. 6, by SLSQP from (1, 1.5)."""
    from scipy.optimize import minimize

    highest = max(0.1, 0.5 * float(np.log(n_classes)))

    def spread(shape: Array) -> float:
        weights = class_weights(after, normalization, *shape)
        return float(np.linalg.norm(before - weights * (after - before) - after.mean()))

    bounds = np.array([(0.1, highest), (1.5, 2.0)] if bounded else [(1e-3, np.inf), (-np.inf, np.inf)])
    found = minimize(spread, [min(1.0, highest), 1.5], bounds=bounds, method="SLSQP")
    alpha, beta = np.clip(found.x, *bounds.T).tolist()
    return alpha, beta


def focal_weights(losses: Array, *, detached: bool) -> Array:
    """(1−p)^γ − γ·p·(1−p)^(γ−1)·log p of rows with the losses −log p; if detached, only the first term.

    This is the derivative of the focal loss by −log p.
    """
    miss = -np.expm1(-np.maximum(losses, 0.0))
    factor = miss**FOCUS
    return factor if detached else factor + FOCUS * (1 - miss) * miss ** (FOCUS - 1) * losses


def _row_losses(logits: Array, labels: Array, _: Any, calibrator: Calibrator) -> tuple[Array]:
    """−log p of the label of each row (n,)."""
    log_p = log_softmax(calibrator._transform(logits.astype(np.float64)))
    return (-log_p[np.arange(len(labels)), labels],)


def _per_row(sums: Array | float, totals: Array) -> Array:
    """Sums by class over the weight of each class (K,); 0 for an absent class."""
    return np.divide(sums, totals, out=np.zeros_like(totals), where=totals > 0)


def _class_losses(rows: Rows, counts: Array, calibrator: Calibrator | None, share: float = 1.0) -> tuple[Array, Array]:
    """Loss of each class (K,), summed and divided by `counts`, and the bin sums of the confidence.

    They are those of logits a `share` of the way from what they are to what the calibrator makes of them.
    """
    losses, sums = rows.total(_losses_and_bins.in_float64(), calibrator, share)
    return _per_row(losses, counts), sums


def _between(logits, mapped, share):
    return mapped if share == 1 else (1 - share) * logits + share * mapped


@statistic
def _losses_and_bins(logits, labels, weights, calibrator, share):
    scores = logits if calibrator is None else _between(logits, calibrator._transform(logits), share)
    scores = log_softmax(scores.astype(np.float64))
    losses = -scores[np.arange(len(labels)), labels]
    correct = scores.argmax(axis=1) == labels
    return summed_by_class(losses, np.exp(scores.max(axis=1)), correct, labels, weights, logits.shape[1])


@_losses_and_bins.on_device
def _(rows, calibrator, share):
    from calibrant.kernels.torch.rows import label_columns

    change = None
    if calibrator is not None:
        mapped = device_map(calibrator, rows.tensor.device)
        change = lambda block: _between(block, mapped(block), share)  # noqa: E731
    losses, confidence, correct = rows.per_row(label_columns, change=change)
    return summed_by_class(losses, confidence, correct, rows.labels, rows.weights, rows.n_classes)


def summed_by_class(losses, confidence, correct, labels, weights, n_classes):  # noqa: PLR0917
    """Summed loss of each class, and the bin sums of the confidence, from columns with an entry per row."""
    weighted = losses if weights is None else losses * weights
    by_class = np.bincount(labels, weights=weighted, minlength=n_classes)
    return by_class, width_sums(confidence, correct, weights, N_BINS)


class FixedPoint:
    """A search for x = g(x) by Anderson acceleration with a trust region.

    Each pair (x, g(x) − x) shows how the residual g(x) − x changes along one direction. A step starts at the point of
    the smallest residual, solves for a residual of 0 along the directions of the pairs nearby, and follows the
    remaining residual by the share `mixing`. If the residual grows, the next step is at most half as long and uses the
    new pair, so that steps become as short as the nonlinearity of g requires.

    Attributes
    ----------
    point : the point of the smallest residual.
    """

    def __init__(self, n_pairs: int) -> None:
        self.n_pairs = n_pairs
        self.pairs: list[tuple[Array, Array]] = []
        self.point = self.residual = np.empty(0)
        self.size = self.radius = np.inf
        self.mixing = 1.0

    def propose_point(self, point: Array, image: Array) -> Array:
        """Return the next point to evaluate, given g(point)."""
        residual = image - point
        size = float(np.linalg.norm(residual))
        if self.pairs:
            moved, turned = point - self.point, residual - self.residual
            length, curved = float(np.linalg.norm(moved)), float(turned @ turned)
            self.radius = max(self.radius, RADIUS_GROWTH * length) if size <= self.size else 0.5 * length
            if curved > 0:
                self.mixing = float(np.clip(-(moved @ turned) / curved, SMALLEST_MIXING, 1.0))
        self.pairs = [*self.pairs[-self.n_pairs :], (point, residual)]
        if size <= self.size:
            self.point, self.residual, self.size = point, residual, size
        step = self._solve_nearby()
        length = float(np.linalg.norm(step))
        return self.point + step * min(1.0, self.radius / length if length > 0 else 1.0)

    def _solve_nearby(self) -> Array:
        """The Anderson step from the best point."""
        step, directions = self.mixing * self.residual, []
        for point, residual in self.pairs:
            moved, turned = point - self.point, residual - self.residual
            distance = float(np.linalg.norm(moved))
            if 0 < distance <= NEARBY * self.radius:
                # if several pairs explain the residual, the nearest ones prevail
                directions.append((moved / distance**2, turned / distance**2))
        if not directions:
            return step
        steps, turns = (np.stack(columns, axis=1) for columns in zip(*directions, strict=True))
        return step - (steps + self.mixing * turns) @ np.linalg.lstsq(turns, self.residual, rcond=1e-8)[0]
