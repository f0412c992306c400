"""The contract of every calibrator: a scikit-learn transformer from logits to calibrated logits."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from calibrant.calibrators.confidence_bins import map_rows
from calibrant.calibrators.learned import (
    Learned,
    check_declared,
    inner_calibrators,
    learned_values,
    scales_classes,
    widen,
)
from calibrant.calibrators.maps import numpy_space, within_floor
from calibrant.calibrators.prepare import check_names, prepared, ready
from calibrant.calibrators.solvers.folds import FOLDS, content_folds, sample_rows
from calibrant.calibrators.tensors import answer_tensor
from calibrant.core.arrays import (
    Array,
    check_matrix,
    check_score_matrix,
    check_scores,
    check_values,
    is_tensor,
    look_like_probabilities,
    probabilities_error,
)
from calibrant.core.errors import FitWarning, InputError, warn_user
from calibrant.core.rows import Rows, sums_finitely, two_columns, warn_of_selection
from calibrant.core.softmax import softmax
from calibrant.core.threads import map_blocks, one_blas_thread, row_blocks, serial
from calibrant.core.zeros import LOG_EPS, raised

if TYPE_CHECKING:
    from typing import Self


PRECISE_LOGIT = 64.0
"""float32 logits up to this size give probabilities good to about 1e-6."""


SERIAL_SIZE = 1 << 15
"""Scores up to which a fit uses one thread."""

_changes = count(1)
_last_change = [0]
"""The number of the last change: of anything that any calibrator of this process learned.

In a list: an attribute of the class would make Python look all attributes of all calibrators up anew.
"""
_kept: WeakKeyDictionary[Calibrator, tuple[int, SimpleNamespace]] = WeakKeyDictionary()
"""What calibrators learned, as their maps take it, and the number of the last change when that was noted."""


class Fact:
    """One entry of a method's record of facts, read on the class or on an object.

    An entry that depends on the parameters is a rule: it is asked of an object, and False on the class.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: Any) -> Any:
        entry = owner.facts.get(self.name, False)
        if not callable(entry):
            return entry
        return instance is not None and bool(entry(instance))


def of_inner(name: str) -> Callable[[Any], bool]:
    """The rule of a fact that is the one of the calibrator inside."""
    return lambda wrapper: getattr(wrapper.calibrator, name)


class Calibrator(TransformerMixin, BaseEstimator):
    """Base of all calibrators.

    A method declares what it learns in `learns` and writes `_fit(rows)`, which sets those names, and
    `_map(xp, logits, learned)`, its map from logits to logits over the array API: numpy, torch and ONNX all run that
    one function. Everything around them (the input gate, timing, dtypes, prediction, artifacts, exports) is shared.

    Facts
    -----
    A method declares them in its class statement, `class Shifted(Calibrator, additive=True)`, as the one record
    `facts`; each can be read on the class and on an object. What depends on the parameters is given as a function of
    the object.

    keeps_prediction : the predicted class of a row never changes.
    keeps_ranking : the order of two rows by confidence never changes.
    additive : the fit reads the logits only through `Rows.total` (and `gather`), so it runs chunk by chunk.
    additive_scores : the fit of one score per row runs chunk by chunk.
    requires_logits : log-probabilities are not enough, because a constant added to a row matters.
    few_parameters : five or fewer whatever K, so that its answers on the fit data are about those on new data.
    fits_on_device : the fit takes rows on a GPU though it is not additive; "unweighted": if they have no weights.
    takes_groups : `fit` and predictions take the group of each row.
    cross_fits : the fit puts rows into folds by their values, which float32 and float64 round differently.
    searches_in_order : classes are searched one after another, so that their order matters.
    trains_network : learned by many gradient steps.
    has_steps : the map jumps at learned places, such as the edges of bins.

    Also declared
    -------------
    tasks : "multiclass" (logits n×K) and "binary" (one logit per row).
    learns : names, shapes and ranges of what a fit learns; `learns_binary` where a binary fit learns other names.

    Binary scores (n,) are calibrated as the matrix [0, z], unless a method defines its own `_fit_binary` and
    `_map_binary`.

    After `fit`: `task_`, `n_features_in_`, `classes_`, `n_iter_`, `objective_trace_`, `fit_seconds_`, `n_parameters_`;
    after `fit` also `n_rows_` and `fingerprint_`, which name the fit data in a saved artifact, `score_columns_`, the
    names of the scores of a file or table, and `log_floor_`, the logarithm of what a probability of 0 counts as.
    """

    facts: ClassVar[dict[str, Any]] = {}
    keeps_prediction = Fact()
    keeps_ranking = Fact()
    additive = Fact()
    additive_scores = Fact()
    requires_logits = Fact()
    few_parameters = Fact()
    fits_on_device = Fact()
    takes_groups = Fact()
    cross_fits = Fact()
    searches_in_order = Fact()
    trains_network = Fact()
    has_steps = Fact()
    tasks: ClassVar[tuple[str, ...]] = ("multiclass", "binary")
    learns: ClassVar[Mapping[str, Learned]] = {}
    learns_binary: ClassVar[Mapping[str, Learned] | None] = None
    task_: str = "multiclass"
    kind_: str = "logits"
    log_floor_: float | None = None
    score_columns_: tuple[str, ...] = ()

    is_base: ClassVar[bool] = True
    """Whether the class is a base of methods, which cannot be fitted."""

    def __init_subclass__(cls, *, is_base: bool = False, **facts: Any) -> None:
        super().__init_subclass__()
        cls.is_base = is_base
        unknown = [name for name in facts if not isinstance(vars(Calibrator).get(name), Fact)]
        if unknown:
            raise TypeError(f"{cls.__name__} declares {', '.join(unknown)}, which is not a fact of a calibrator")
        cls.facts = {**cls.facts, **facts}

    @classmethod
    @cache
    def _get_param_names(cls) -> list[str]:
        # scikit-learn reads the signature for each clone
        return super()._get_param_names()

    def fit(
        self,
        logits: Any,
        y: Any = None,
        sample_weight: Any = None,
        groups: Any = None,
        *,
        clusters: Any = None,
        engine: Any = "local",
    ) -> Self:
        """Learn from held-out logits and their labels, or from predictions that hold both.

        Where `additive` is true, predictions in files are read chunk by chunk, as often as the solver needs; other
        methods work on a map of the file, or of a scratch copy on disk. The answer is that of the arrays.

        Parameters
        ----------
        logits : array or tensor (n×K), or (n,) of one logit per row; or Predictions, a path, a table (then without y)
        y : labels (n,): class numbers, or 0 and 1
        sample_weight : array (n,), optional
            A weight of 2 is the row twice.
        groups : array (n,), or a mapping of two
            The group of each row, for methods that treat groups differently (`X+group`, `X+multi`).
        clusters : array (n,), optional
            Rows of one cluster (patient, image) stay in one fold where the method makes folds.
        engine : "local", "dask", the address of a Dask scheduler ("tcp://host:8786"), or an engine
            Where passes over files run.
        """
        if self.is_base:
            raise TypeError(
                f"{type(self).__name__} is a base class: fit a method, such as those of calibrant.methods()"
            )
        with prepared(self, logits, y, sample_weight, groups, clusters, engine) as rows:
            name = rows.fingerprint() if rows.in_memory else ""
            self.fit_rows(self._sample_rows(ready(self, rows)))
            check_declared(self)
            rows.settle()
            self._warn_of_selection(rows)
            self._keep_floor(rows.log_floor)
            self.n_rows_, self.fingerprint_ = rows.n, name or rows.fingerprint() or None
        return self

    def _sample_rows(self, rows: Rows) -> Rows:
        """Return the rows of the fit: a sample if the method puts very many rows into folds."""
        sampled = self.cross_fits and not self.additive and not self.takes_groups and rows.in_memory
        chosen = sample_rows(rows, 0) if sampled else None
        if chosen is None:
            return rows
        warn_user(
            f"{type(self).__name__} was fitted to a sample of {len(chosen):,} of {rows.n:,} rows to bound its memory"
        )
        return rows.take(chosen)

    def _warn_of_selection(self, rows: Rows) -> None:
        """Warn of rows that seem to be selected, and of classes without fit rows if their numbers were learned."""
        warn_of_selection(rows, by_class=scales_classes(self))

    def _group_numbers(self, groups: Any, n_rows: int) -> Array | None:
        """The number of each row's group, for methods that take groups."""
        if groups is not None:
            raise InputError(
                f"{type(self).__name__} treats all groups alike: take GroupCalibrator (X+group), or leave groups out"
            )
        return None

    def _keep_floor(self, log_floor: float) -> None:
        """Keep what a zero counts as, also in calibrators inside this one, which may be used by themselves."""
        self.log_floor_ = log_floor
        for inner in inner_calibrators(self):
            inner._keep_floor(log_floor)

    def fit_rows(self, rows: Rows) -> Self:
        """Learn from rows that have passed the gate."""
        with self._fitting(rows) as begun:
            self._fit_either(begun)
        return self

    def fit_held_out(self, rows: Rows, fold: Array) -> Array:
        """Learn from all rows, and return for each row the answer of a fit without its fold (n×K, or n if binary).

        A second stage that learns from these answers, or a score taken on them, sees the calibrator as new data will.
        """
        self._told_of_fold = ""
        with self._fitting(rows) as begun:
            if self._narrows(rows):
                # what a method keeps of its folds knows fewer columns
                return Calibrator._held_out(self, begun, fold)
            if not rows.one_score or self.maps_one_score():
                return self._held_out(begun, fold)
            answers = self._held_out(begun.matrix(), fold)
            return answers[:, 1] - answers[:, 0]

    @contextmanager
    def _fitting(self, rows: Rows) -> Iterator[Rows]:
        """Begin a fit, and keep how long it takes."""
        started = time.perf_counter()
        # work on few rows takes less time than waking other threads
        with one_blas_thread(), serial() if rows.size <= SERIAL_SIZE else nullcontext():
            yield self._begin(rows)
        self.fit_seconds_ = time.perf_counter() - started

    @classmethod
    def maps_one_score(cls) -> bool:
        """Has the method a map for one score that is more than its map for two classes?"""
        return cls._fit_binary is not Calibrator._fit_binary

    def fit_for_next(self, rows: Rows, seed: int) -> Array:
        """Learn from all rows, and return answers (n×K, or n if binary) on them from which a second stage may learn.

        They are this fit's own where `few_parameters` is true, else held-out ones: a calibrator of many parameters is
        more confident on its fit data than on new data.
        """
        if self.few_parameters or rows.total_weight < 2 * FOLDS:
            return self.fit_rows(rows)._calibrated(rows.logits)
        answers = self.fit_held_out(rows, content_folds(rows, FOLDS, seed))
        if self._told_of_fold:
            warn_user(f"the next stage learns from fits that leave out a fold, and one of them: {self._told_of_fold}")
        return answers

    def transform(self, logits: Any) -> Array:
        """Calibrated logits of the input's shape and dtype; probability methods return log-probabilities."""
        self._check_fitted()
        if is_tensor(logits) and self.task_ != "multilabel":
            return answer_tensor(self, logits, probabilities=False)
        calibrated = self._calibrated(self._admitted(logits))
        return calibrated[:, None] if self.task_ == "binary" and np.ndim(logits) == 2 else calibrated

    def predict_proba(self, logits: Any) -> Array:
        """Calibrated probabilities (n×K), or (n×2) of one score per row; rows sum to one."""
        self._check_fitted()
        if is_tensor(logits):
            return answer_tensor(self, logits, probabilities=True)
        given = self._admitted(logits)
        probabilities = self._probabilities(given)
        if given.dtype == np.float32:
            # neighbouring float32 numbers near 1e4 differ by 1e-3: such rows need float64 to give 1e-5 in probability
            size = np.abs(given) if given.ndim == 1 else np.maximum(given.max(axis=1), -given.min(axis=1))
            large = np.flatnonzero(size > PRECISE_LOGIT)
            if len(large):
                exact = self._probabilities(given[large].astype(np.float64))
                probabilities[large] = keep_winner(exact.astype(np.float32), exact.argmax(axis=1))
        return probabilities

    def predict(self, logits: Any) -> Array:
        """The class of highest calibrated probability of each row; the first of equals."""
        return self._predicted(self.transform(logits))

    def go_on_from(self, fitted: Calibrator) -> Self:
        """Start the next fit where another of the same settings ended; solvers that reach an optimum need not."""
        return self

    @property
    def n_parameters_(self) -> int:
        """How many numbers the fit learned: the free ones of `learns`, and those of calibrators inside this one."""
        total = 0
        for _, rule, value in learned_values(self):
            for one in value if rule.many else [value]:
                total += one.n_parameters_ if rule.kind == "calibrator" else np.size(one) * rule.free
        return total

    def _fit(self, rows: Rows) -> None:
        raise NotImplementedError(f"{type(self).__name__} defines no _fit(rows)")

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        """Calibrated logits (n×K) of the same dtype, row by row.

        `xp` is an array-API namespace (numpy, torch or the ONNX writer) and `learned` holds what `learns` declares as
        float64 arrays of that namespace, and for a calibrator inside this one its own `learned`.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no _map(xp, logits, learned)")

    def _transform(self, logits: Array) -> Array:
        """`_map` in numpy, block by block; a method may put a fused kernel here that gives the same answer."""
        learned = self._ready()
        return map_rows(lambda block: self._map(numpy_space, logits[block], learned), logits)

    def _fit_binary(self, rows: Rows) -> None:
        self._fit(rows.matrix())

    def _fit_either(self, rows: Rows) -> None:
        if self._narrows(rows):
            present = rows.present()
            self._fit(rows.columns(present))
            widen(self, present, rows.n_classes)
        else:
            (self._fit_binary if rows.one_score else self._fit)(rows)

    def _narrows(self, rows: Rows) -> bool:
        """Whether there are classes without fit rows, which a map of single classes must leave out."""
        if not any(rule.shared for rule in self.learns.values()) or rows.one_score or rows.every_class:
            return False
        return 1 < len(rows.present()) < rows.n_classes

    def _map_either(self, xp: Any, given: Any, learned: Any) -> Any:
        """The map of logits (n×K), or of scores (n,)."""
        return (self._map_binary if len(given.shape) == 1 else self._map)(xp, given, learned)

    def _map_binary(self, xp: Any, scores: Any, learned: Any, /) -> Any:
        """Calibrated logits (n,) of scores (n,): by default those of the matrix [0, z]."""
        calibrated = self._map(xp, xp.stack([xp.zeros_like(scores), scores], axis=1), learned)
        return calibrated[:, 1] - calibrated[:, 0]

    def _transform_binary(self, scores: Array, /) -> Array:
        if type(self)._map_binary is Calibrator._map_binary:
            calibrated = self._transform(two_columns(scores))
            return calibrated[:, 1] - calibrated[:, 0]
        return self._map_binary(numpy_space, scores, self._ready())

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name.endswith("_"):
            # a number of its own: a thread that is late must not bring back one under which something was kept
            _last_change[0] = next(_changes)

    def _ready(self) -> SimpleNamespace:
        """`_learned()`, kept until any calibrator learns anything: of one row it would take as long as the map."""
        changes, learned = _kept.get(self, (-1, SimpleNamespace()))
        if changes != _last_change[0]:
            changes, learned = _last_change[0], self._learned()
            _kept[self] = changes, learned
        return learned

    def _learned(self) -> SimpleNamespace:
        """What the fit learned, as float64 arrays under the names of `learns`."""
        found = SimpleNamespace()
        for name, rule, value in learned_values(self):
            if rule.kind == "calibrator":
                vars(found)[name] = [one._learned() for one in value] if rule.many else value._learned()
            else:
                plain = [np.asarray(one, np.float64) for one in value] if rule.many else np.asarray(value, np.float64)
                vars(found)[name] = plain
        return found

    def _check_learned(self) -> None:
        """Raise InputError where what was learned is unsound in a way that shapes and ranges do not show."""

    def _held_out(self, rows: Rows, fold: Array) -> Array:
        """Fit on all rows and answer for each from a fit without its fold; methods that cross-fit anyway override."""
        self._fit_either(rows)
        answers = np.empty_like(rows.logits)
        for part in np.unique(fold):
            out = np.flatnonzero(fold == part)
            answers[out] = self._without(rows, fold != part)._answers_on(rows.take(out))
        return answers

    def _answers_on(self, rows: Any) -> Array:
        return self._calibrated(rows.logits)

    def _without(self, rows: Any, kept: Array) -> Calibrator:
        """A fit to some of the rows; this one where they hold no weight."""
        part = rows.take(np.flatnonzero(kept))
        if not part.n or not part.total_weight > 0:
            return self
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FitWarning)
            fitted = self._settled().fit_rows(part)
        if caught:
            self._told_of_fold = str(caught[0].message)
        return fitted

    def _settled(self) -> Calibrator:
        """An unfitted copy in which what this fit chose by cross-validation is given: one number, learned from all."""
        return clone(self)

    @property
    def _n_classes(self) -> int:
        """K of the logits; 2 of one score per row."""
        return 2 if self.task_ == "binary" else int(self.n_features_in_)

    def _begin(self, rows: Rows) -> Rows:
        """Check that the method serves the rows and set what every fit leaves behind; the rows of the fit."""
        if rows.one_score and "binary" not in self.tasks:
            raise InputError(
                f"{type(self).__name__} calibrates a matrix (n, K) of logits, but there is one score per row: "
                "give both columns, or take a method for the task binary"
            )
        self.task_, self.n_features_in_ = ("binary", 1) if rows.one_score else ("multiclass", rows.n_classes)
        self.classes_, self.n_iter_, self.objective_trace_ = np.arange(rows.n_classes), 1, np.empty(0)
        return rows

    def _calibrated(self, given: Array) -> Array:
        """Calibrated logits of a matrix (n×K), or of scores (n,)."""
        return self._transform_binary(given) if given.ndim == 1 else self._transform(given)

    def _predicted(self, calibrated: Array) -> Array:
        if self.task_ == "binary":
            calibrated = two_columns(calibrated.reshape(-1))
        return self.classes_[calibrated.argmax(axis=1)]

    def _probabilities(self, given: Array) -> Array:
        calibrated = self._calibrated(given)
        if given.ndim == 1:
            calibrated = two_columns(calibrated)
        return keep_winner(softmax(calibrated), calibrated.argmax(axis=1))

    def _admitted(self, values: Any) -> Array:
        """A matrix (n×K), or one score per row (n,), that may enter a prediction; zeros (−inf) get the fit's floor.

        The one place where the values of a prediction's input are looked at.
        """
        check, what = {
            "multiclass": (check_matrix, "one logit for each class of the fit"),
            "binary": (check_scores, "one score per row"),
            "multilabel": (check_score_matrix, "one score for each label of the fit"),
        }[self.task_]
        shape: tuple[int, ...] = getattr(values, "shape", ())
        if len(shape) == 2 and shape[1] != self.n_features_in_:
            raise InputError(
                f"X has {shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} features "
                f"as input: {what}"
            )
        array = check(values)
        matrix = array.reshape(len(array), -1)
        if self.task_ == "multiclass" and look_like_probabilities(array):
            raise probabilities_error(len(array), "logits", "give their logarithms, np.log(p)")
        check_names(self, values, matrix, reset=False)
        # blocks on all cores find out in one pass whether there is anything to explain
        finite = all(map_blocks(lambda block: sums_finitely(matrix[block]), row_blocks(*matrix.shape)))
        floor = self.log_floor_
        if finite and (self.task_ == "multiclass" or floor is None):
            return array
        if not finite and self.task_ != "multilabel":
            check_values(matrix, from_logits=True, name="logits" if self.task_ == "multiclass" else "scores")
        if floor is not None:
            return raised(array, floor) if self.task_ == "multiclass" else within_floor(numpy_space, array, floor)
        if np.isinf(array).any():
            raise InputError("logits hold -Inf (probability 0), but this calibrator learned no floor: fit it again")
        return array

    def _check_fitted(self) -> None:
        if "fit_seconds_" not in vars(self):
            # it begins with the tags of the class, which take longer than the map of one row
            check_is_fitted(self)

    def __sklearn_is_fitted__(self) -> bool:
        return "fit_seconds_" in vars(self)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def keep_winner(probabilities: Array, winner: Array) -> Array:
    """The same array; where rounding made another class win, this one gets the next larger number.

    At a very high temperature logits differ by less than probabilities can.
    """
    differs = probabilities.argmax(axis=1) != winner
    if np.count_nonzero(differs):
        lost = np.flatnonzero(differs)
        highest = probabilities[lost].max(axis=1)
        probabilities[lost, winner[lost]] = np.nextafter(highest, probabilities.dtype.type(2))
    return probabilities


class BinaryCalibrator(Calibrator, is_base=True):
    """Base of calibrators that know only one logit per row, the positive class's.

    A method writes `_fit_binary(rows)` and `_map_binary(xp, scores, learned)`. On a matrix of two columns it works on
    z₁ − z₀ and returns [0, u]; more columns are an InputError.
    """

    tasks = ("binary",)

    def _begin(self, rows: Rows) -> Rows:
        if rows.n_classes != 2:
            raise InputError(
                f"{type(self).__name__} calibrates one score per row or two columns, but the logits have "
                f"{rows.n_classes} columns: take ts, vs or another method for many classes"
            )
        return super()._begin(rows)

    def _fit_binary(self, rows: Rows) -> None:
        raise NotImplementedError(f"{type(self).__name__} defines no _fit_binary(rows)")

    def _map_binary(self, xp: Any, scores: Any, learned: Any, /) -> Any:
        raise NotImplementedError(f"{type(self).__name__} defines no _map_binary(xp, scores, learned)")

    def _fit(self, rows: Rows) -> None:
        self._fit_binary(Rows(rows.logits[:, 1] - rows.logits[:, 0], rows.labels, rows.weights))

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        scores = logits[:, 1] - logits[:, 0]
        if self.log_floor_ is not None:
            scores = within_floor(xp, scores, self.log_floor_)
        calibrated = self._map_binary(xp, scores, learned)
        return xp.stack([xp.zeros_like(calibrated), calibrated], axis=1)


class Identity(Calibrator, keeps_prediction=True, few_parameters=True, keeps_ranking=True, additive=True):
    """Leave the logits as they are: the baseline of every method.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import Identity
    >>> logits = np.array([[2.0, 0.0], [0.5, 1.0]])
    >>> bool((Identity().fit(logits, [0, 1]).transform(logits) == logits).all())
    True
    """

    def _fit(self, rows: Rows) -> None:
        pass

    def _keep_floor(self, log_floor: float) -> None:
        """Leave finite scores as they are, also if the fit rows have none as large."""
        super()._keep_floor(log_floor if self.task_ == "multiclass" else min(log_floor, LOG_EPS))

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        return logits
