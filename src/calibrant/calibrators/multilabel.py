"""Calibration of many labels at once, each by its own map as far as its rows determine one.

Maps with a few parameters are many small logistic regressions, each pulled to the fit of all of them together. Label l
has the columns x (d, L, n)[:, l] and its own parameters θ_l = (slopes, intercept). The pooled fit θ₀ treats
every (row, label) as a row. θ_l minimises Σ_i w_i·log-loss + ½·k·(θ_l − θ₀)ᵀ·M·(θ_l − θ₀), with M the curvature of the
pooled log loss per unit of Σ p(1 − p): k is measured in such units, so that a label with Σ p(1 − p) = k lies about
halfway between the pooled fit and its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

from calibrant.calibrators.auto import EVIDENCE_FACTOR, FEWEST_ROWS
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.learned import INNERS, RECORD, Learned
from calibrant.calibrators.logistic import beta_features, slope_features, stacked
from calibrant.calibrators.prepare import ready
from calibrant.calibrators.registry import get, resolve
from calibrant.calibrators.solvers.folds import FOLDS, content_folds, divided
from calibrant.core.arrays import Array
from calibrant.core.errors import InputError, warn_user
from calibrant.core.rows import Rows
from calibrant.core.softmax import sigmoid, softmax, softplus
from calibrant.core.threads import map_blocks, row_blocks
from calibrant.kernels.logistic import Pull, batch_sums, fit_logistic, logistic_sums, newton

FAMILIES = ("platt", "beta", "quad")
"""Maps with a few parameters that can be shrunk; "auto" tries them in this order."""

STRENGTHS = (np.inf, 1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3)
"""What cross-validation tries, strongest first; the first leaves one map for all labels."""

PATIENCE = 2
"""Strengths in a row that may lose before the search ends."""

ENTRIES = 200_000
"""Of scores from which the strength is chosen; with more, labels are taken evenly by how often they occur."""

FEWEST = 20
"""A label with fewer rows of either value gets the map of all labels; chosen on the calibration part of PTB-XL."""

IDENTITY = {"platt": (1.0,), "beta": (1.0, 1.0), "quad": (1.0, 1.0)}
"""Slopes of each map that leaves the scores unchanged."""

UNCHANGED_LOSS = 0.075
"""Mean log loss of a label at which no calibration has the prior weight of the pooled map and of its map.

Chosen on the calibration part of PTB-XL.
"""

POOLED_ENTRIES = 200_000
"""Scores that the map of all labels is made of; with more, labels are taken evenly by how often they occur."""

BLOCK_ELEMENTS = 1 << 16


class MultilabelCalibrator(Calibrator):
    """A binary map per label, shrunk towards the map of all labels together.

    With s the log-odds of a label, its map is that of Platt, beta or quadratic calibration; its parameters minimise the
    label's log loss plus a pull to the pooled fit, whose strength is chosen by cross-validation over rows. A label with
    a few positives gets nearly the pooled map, a frequent one nearly its own.

    With "auto" the parameters of each label are averaged with those of the pooled map and of no calibration. As in
    `AutoCalibrator`, their weights are proportional to π·exp(L/2), where L is the held-out log-likelihood of the label;
    π is 0.075/l : 1 : 1 for no calibration, pooled and own map, and l the mean log loss of the label before: a label of
    small loss can gain little. With fewer than 10 rows the predictions stay unchanged.

    Any other method for one score (isotonic, spline, histogram binning, Venn-Abers, …) can be named instead. Such a map
    has no parameters to shrink: each label gets its own, and a label with fewer than 20 rows of either value the map of
    all labels together, which a FitWarning says.

    Parameters
    ----------
    calibrator : "auto", a short name of a method for one score, or an unfitted calibrator
        The map of each label; "auto" takes that of "platt", "beta" and "quad" with the lowest cross-validated log loss.
    strength : number, inf or "cv"
        Of the pull, in rows of maximal curvature times four (Σ p(1 − p)); inf is one map for all labels. Maps without
        parameters to shrink know "cv", which means the above, and inf.
    weights_are : {"rows", "counts"}
        Whether the weights in L are rescaled to sum to the number of rows, or count copies of rows.
    seed : int
        Of the folds.

    Attributes
    ----------
    coef_ : array (L, d)
        Parameters of each label's map: slopes and intercept.
    pooled_ : array (d,)
        Those of the pooled map.
    range_ : array (2,)
        Lowest and highest score of the fit data.
    calibrators_ : list of fitted calibrators
        In place of these three, for other methods; `places_` (L,) says which of them is a label's.
    weights_ : array (L, 3)
        With "auto": weights of no calibration, the pooled map and the map of the label.
    family_, strength_ : the chosen map and strength; 0 where every frequent label has its own map.
    scores_ : dict
        Cross-validated log loss of each family that was tried.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import MultilabelCalibrator
    >>> rng = np.random.default_rng(0)
    >>> scores = 2 * rng.normal(size=(500, 8)) - 2
    >>> labels = rng.random((500, 8)) < 1 / (1 + np.exp(-scores / 2))
    >>> fitted = MultilabelCalibrator("platt").fit(scores, labels)
    >>> fitted.coef_.shape, fitted.predict_proba(scores).shape
    ((8, 2), (500, 8))
    """

    tasks = ("multilabel",)
    learns = {
        "coef_": Learned(("K", "D"), optional=True),
        "pooled_": Learned(("D",), optional=True),
        "range_": Learned((2,), increasing=True, optional=True),
        "calibrators_": INNERS._replace(optional=True),
        "places_": Learned(("K",), 0.0, free=False, optional=True),
        "weights_": RECORD,
        "family_": RECORD,
        "strength_": RECORD,
        "scores_": RECORD,
    }

    def __init__(
        self, calibrator: Any = "auto", *, strength: float | str = "cv", weights_are: str = "rows", seed: int = 0
    ) -> None:
        self.calibrator = calibrator
        self.strength = strength
        self.weights_are = weights_are
        self.seed = seed

    @property
    def n_parameters_(self) -> int:
        """Parameters of all labels' maps."""
        return sum(one.n_parameters_ for one in self.calibrators_) if self._by_label else int(np.size(self.coef_))

    def _begin(self, rows: Any) -> Any:
        self.task_, self.n_features_in_, self.classes_ = "multilabel", rows.n_classes, np.arange(rows.n_classes)
        self.n_iter_, self.objective_trace_ = 1, np.empty(0)
        return rows

    def predict_proba(self, logits: Any) -> Array:
        """Calibrated probability of each label (n×L)."""
        self._check_fitted()
        scores = self._admitted(logits)
        return sigmoid(self._transform(scores.astype(np.float64))).astype(scores.dtype)

    def _predicted(self, calibrated: Array) -> Array:
        """1 where the calibrated probability of a label is above ½ (n×L)."""
        return (calibrated > 0).astype(np.int64)

    @property
    def _by_label(self) -> bool:
        return "calibrators_" in vars(self)

    def _fit(self, rows: Rows) -> None:
        method, strength = self._method(), self.strength
        if strength != "cv":
            if isinstance(strength, (bool, str)) or not float(strength) > 0:
                raise InputError(f"strength must be a number above 0, inf or 'cv', got {strength!r}")
            strength = float(strength)
        for name in ("coef_", "pooled_", "range_", "calibrators_", "places_", "weights_"):  # of an earlier fit
            self.__dict__.pop(name, None)
        self.scores_: dict[str, float] = {}
        self.strength_: float | str = strength
        if not isinstance(method, Calibrator):
            self._fit_shrunken(method, rows, strength)
            return
        if strength not in ("cv", np.inf):
            raise InputError(
                f"strength is {strength!r}, but {self.calibrator!r} has no parameters to shrink: give 'cv' or inf, or "
                f"one of {', '.join(map(repr, FAMILIES))}"
            )
        self.family_ = resolve(self.calibrator) if isinstance(self.calibrator, str) else type(method).__name__
        self.strength_ = 0.0 if strength == "cv" else strength
        self._fit_maps(method, rows, pooled_only=strength == np.inf)

    def _fit_maps(self, method: Calibrator, rows: Rows, *, pooled_only: bool) -> None:
        """A map for each frequent label, and the first one for all other labels together."""
        positives = rows.mass() @ rows.labels
        rare = pooled_only | (np.minimum(positives, rows.total_weight - positives) < FEWEST)
        if rare.any() and not pooled_only:
            warn_user(
                f"{int(rare.sum())} of {rows.n_classes} labels have fewer than {FEWEST} rows of either value: they get "
                "the map of all labels together"
            )
        columns = [Rows(rows.logits[:, j], rows.labels[:, j], rows.weights) for j in np.flatnonzero(~rare)]
        if rare.any():
            some = some_labels(rows, max(1, POOLED_ENTRIES // rows.n))
            weights = None if some.weights is None else np.repeat(some.weights, some.n_classes)
            columns.insert(0, Rows(some.logits.reshape(-1), some.labels.reshape(-1), weights))
        self.calibrators_ = [clone(method).fit_rows(ready(method, own)) for own in columns]
        self.places_ = np.where(rare, 0.0, np.cumsum(~rare) - (not rare.any()))

    def _fit_shrunken(self, families: tuple[str, ...], rows: Rows, strength: float | str) -> None:
        counted = rows.logits if rows.weights is None else rows.logits[rows.weights > 0]
        low, high = float(counted.min()), float(counted.max())
        self.range_ = np.array([low, high if high > low else low + 1.0])
        positives = rows.mass() @ rows.labels
        empty = int(((positives == 0) | (positives == rows.mass().sum())).sum())
        if empty:
            warn_user(f"{empty} of {rows.n_classes} labels have one value in all rows: they lean on the pooled map")
        self.family_ = families[0]
        if len(families) > 1 or isinstance(strength, str):
            found = {family: self._choose(family, rows, strength) for family in families}
            self.scores_ = {family: loss for family, (_, loss) in found.items()}
            self.family_ = min(families, key=self.scores_.__getitem__)
            self.strength_ = found[self.family_][0]
        data = self._data(self.family_, rows)
        pooled = data.pooled()
        self.pooled_, self.coef_ = pooled.centre, fit_labels(data, pooled, float(self.strength_))
        if len(families) > 1:
            self._average_by_evidence(rows)

    def _average_by_evidence(self, rows: Rows) -> None:
        """Average the map of each label with no calibration and the pooled map."""
        scale = 1.0 if self.weights_are == "counts" else rows.rows_per_weight
        value = self.range_[0] if self.family_ == "quad" else 0.0
        unchanged = np.tile([*IDENTITY[self.family_], value], (rows.n_classes, 1))
        maps = np.stack([unchanged, np.tile(self.pooled_, (rows.n_classes, 1)), self.coef_])
        losses = np.zeros((3, rows.n_classes))
        for train, test in self._folds(self.family_, rows):
            pooled = train.pooled()
            own = fit_labels(train, pooled, float(self.strength_), self.coef_, tolerance=1e-3)
            losses += [test.losses(points) for points in (unchanged, np.tile(pooled.centre, (len(own), 1)), own)]
        if scale * rows.total_weight < FEWEST_ROWS:
            warn_user(f"{rows.n} rows: predictions unchanged; calibration needs {FEWEST_ROWS} rows or more")
            losses[1:] = np.inf
        prior = np.ones_like(losses)
        prior[0] = UNCHANGED_LOSS * rows.total_weight / np.maximum(losses[0], 1e-300)
        self.weights_ = softmax((np.log(prior) - EVIDENCE_FACTOR * scale * losses).T)
        self.coef_ = np.einsum("lm,mld->ld", self.weights_, maps)

    def _folds(self, family: str, rows: Rows) -> list[tuple[Labelled, Labelled]]:
        """Training and test rows of all folds in which both have weight."""
        rows = divided(rows)
        data, fold, mass = self._data(family, rows), content_folds(rows, FOLDS, self.seed), rows.mass()
        outside = [fold == number for number in range(FOLDS) if 0 < mass[fold == number].sum() < mass.sum()]
        return [(data.take_rows(np.flatnonzero(~out)), data.take_rows(np.flatnonzero(out))) for out in outside]

    def _method(self) -> tuple[str, ...] | Calibrator:
        """Families of maps that are shrunk, or the calibrator of single labels."""
        made = self.calibrator
        if isinstance(made, str):
            name = made.strip().lower()
            name = name if name == "auto" else resolve(name)
            if name == "auto" or name in FAMILIES:
                return FAMILIES if name == "auto" else (name,)
            made = get(name)
        if not isinstance(made, Calibrator) or "binary" not in made.tasks or made.takes_groups:
            raise InputError(
                f"MultilabelCalibrator takes calibrator='auto' or a method for one score, got {self.calibrator!r}: see "
                "calibrant.methods()"
            )
        return made

    def _data(self, family: str, rows: Rows) -> Labelled:
        columns = stacked(label_features, rows.logits.T.reshape(-1), family=family, ends=self.range_)
        labels = np.ascontiguousarray(rows.labels.T, dtype=np.float64)
        return Labelled(columns.reshape(-1, *labels.shape), labels, rows.weights, non_negative=family != "platt")

    def _choose(self, family: str, rows: Rows, strength: float | str) -> tuple[float, float]:
        """The strength of the lowest cross-validated log loss, and that loss per entry."""
        rows = some_labels(rows, max(1, ENTRIES // rows.n))
        tried = STRENGTHS if isinstance(strength, str) else (strength,)
        folds = self._folds(family, rows)
        pools = [train.pooled() for train, _ in folds]
        points: list[Any] = [None] * len(folds)
        best, worse = (tried[0], np.inf), 0
        for candidate in tried if folds else ():
            points = [
                fit_labels(train, pooled, candidate, start, tolerance=1e-3)
                for (train, _), pooled, start in zip(folds, pools, points, strict=True)
            ]
            losses = [test.losses(point).sum() for (_, test), point in zip(folds, points, strict=True)]
            loss = sum(losses) / (rows.n_classes * rows.total_weight)
            worse = 0 if loss < best[1] else worse + 1
            best = (candidate, loss) if loss < best[1] else best
            if worse >= PATIENCE:
                break
        return best

    def _check_learned(self) -> None:
        if self._by_label:
            places = np.asarray(vars(self).get("places_", np.inf))
            if not (places < len(self.calibrators_)).all() or (places != np.floor(places)).any():
                raise InputError(
                    f"MultilabelCalibrator.places_ must name one of {len(self.calibrators_)} calibrators for each label"
                )
            if any(one.task_ != "binary" for one in self.calibrators_):
                raise InputError("MultilabelCalibrator.calibrators_ must be fitted to one score per row")
            return
        missing = [name for name in ("coef_", "pooled_", "range_") if name not in vars(self)]
        if missing:
            raise InputError(f"MultilabelCalibrator lacks its learned {missing[0]}")
        width = {"platt": 2, "beta": 3, "quad": 3}.get(self.family_)
        if width != np.shape(self.coef_)[1]:
            raise InputError(
                f"MultilabelCalibrator.coef_ has {np.shape(self.coef_)[1]} columns, which no map {self.family_!r} has"
            )

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        if self._by_label:
            every = list(zip(self.calibrators_, learned.calibrators_, strict=True))
            chosen = ((label, *every[place]) for label, place in enumerate(self.places_.astype(np.intp)))
            return xp.stack([one._map_binary(xp, logits[:, label], own) for label, one, own in chosen], axis=1)
        coef, ends = (xp.astype(one, logits.dtype) for one in (learned.coef_, learned.range_))
        columns = label_features(xp, logits, self.family_, ends)
        return sum(column * coef[:, j] for j, column in enumerate(columns)) + coef[:, -1]


def label_features(xp: Any, scores: Any, family: str, ends: Any) -> Sequence[Any]:
    """What a map of a family reads of scores (of any shape); `ends` are the lowest and the highest of the fit data."""
    if family == "platt":
        return [scores]
    return beta_features(xp, scores) if family == "beta" else slope_features(xp, scores, ends)


def some_labels(rows: Rows, most: int) -> Rows:
    """At most this many labels, taken evenly in the order of how often they occur; all where there are no more."""
    if rows.n_classes <= most:
        return rows
    # labels of equal frequency are ordered by their scores, so that their numbers do not matter
    order = np.lexsort((rows.mass() @ rows.logits, rows.mass() @ rows.labels))
    chosen = order[np.linspace(0, rows.n_classes - 1, most).round().astype(np.intp)]
    return replace(rows, logits=rows.logits[:, chosen], labels=rows.labels[:, chosen])


class Labelled(NamedTuple):
    """Columns (d, L, n), labels (L, n) of 0.0 and 1.0, row weights (n,) or None, and whether slopes stay above 0."""

    columns: Array
    labels: Array
    weights: Array | None
    non_negative: bool

    def take_rows(self, rows: Array) -> Labelled:
        """Some rows."""
        columns = np.ascontiguousarray(self.columns[:, :, rows])
        weights = None if self.weights is None else self.weights[rows]
        return Labelled(columns, self.labels[:, rows], weights, self.non_negative)

    def pooled(self) -> Pull:
        """The fit of all labels together (d + 1,), and the metric M (d + 1, d + 1) of a pull to it."""
        flat, labels = self.columns.reshape(len(self.columns), -1), self.labels.reshape(-1)
        weights = None if self.weights is None else np.tile(self.weights, len(self.labels))
        if np.average(labels, weights=weights) in (0.0, 1.0):
            # nothing to learn a slope from: half a (row, label) of the other kind
            half = 0.5 / (len(labels) if weights is None else weights.sum())
            labels = np.clip(labels, half, 1 - half)
        point = fit_logistic(flat, labels, weights, non_negative=self.non_negative).point
        hessian = logistic_sums(flat, labels, weights, point)[2]
        metric = hessian / hessian[-1, -1]
        return Pull(point, metric + 1e-9 * np.diag(np.diag(metric)))

    def losses(self, points: Array) -> Array:
        """Weighted sum of the log loss of each label (L,), with its parameters (L, d + 1)."""
        score = np.einsum("dln,ld->ln", self.columns, points[:, :-1]) + points[:, -1:]
        losses = softplus(score) - self.labels * score
        return losses.sum(axis=1) if self.weights is None else losses @ self.weights


def fit_labels(
    data: Labelled, pooled: Pull, strength: float, start: Array | None = None, *, tolerance: float = 1e-6
) -> Array:
    """Parameters of every label (L, d + 1) at a strength of the pull; infinity gives the pooled ones."""
    n_labels = len(data.labels)
    alike = np.tile(pooled.centre, (n_labels, 1))
    if np.isinf(strength):
        return alike
    pull = strength * pooled.strength
    lower = np.append(np.full(len(data.columns), 0.0 if data.non_negative else -np.inf), -np.inf)
    columns = data.columns.transpose(1, 0, 2)

    def evaluate(points: Array, which: Array) -> tuple[Array, Array, Array]:
        def part(block):
            chosen = block if len(which) == n_labels else which[block]
            return batch_sums(columns[chosen], data.labels[chosen], data.weights, points[block])

        # the blocks are of labels, so that no sum depends on how many threads there are
        parts = map_blocks(part, row_blocks(len(which), data.labels.shape[1], BLOCK_ELEMENTS))
        loss, gradient, hessian = (np.concatenate(one) for one in zip(*parts, strict=True))
        offset = points - pooled.centre
        bent = offset @ pull
        return loss + 0.5 * (bent * offset).sum(axis=1), gradient + bent, hessian + pull

    return newton(evaluate, alike if start is None else start, lower, gap=tolerance**2)[0]
