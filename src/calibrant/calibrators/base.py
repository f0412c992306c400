"""The contract of every calibrator: a scikit-learn transformer from logits to calibrated logits."""

from __future__ import annotations

import time
import warnings
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from calibrant.calibrators.solvers.folds import FOLDS, content_folds
from calibrant.core.arrays import check_labels, check_matrix, check_values, check_weights
from calibrant.core.blas import one_blas_thread
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.fingerprint import fingerprint
from calibrant.core.rows import Rows
from calibrant.core.softmax import softmax
from calibrant.core.threads import map_blocks, row_blocks

PRECISE_LOGIT = 64.0
"""float32 logits up to this size give probabilities good to about 1e-6."""


class Calibrator(TransformerMixin, BaseEstimator):
    """Base of all calibrators.

    A method writes `_fit(rows)`, which sets its learned attributes, and `_transform(logits)`, which returns new
    logits of the same shape and dtype; everything around them (the input gate, timing, dtypes, prediction) is here.

    Class-level facts
    -----------------
    keeps_prediction : the predicted class of a row never changes.
    keeps_ranking : the order of two rows by confidence never changes.
    additive : the fit reads the logits only through `Rows.total` (and `gather`), so it runs chunk by chunk.
    requires_logits : log-probabilities are not enough, because a constant added to a row matters.
    few_parameters : five or fewer whatever K, so that its answers on the fit data are about those on new data.

    After `fit`: `n_features_in_`, `classes_`, `n_iter_`, `objective_trace_`, `fit_seconds_`, `n_parameters_`;
    after `fit` and `fit_predictions` also `n_rows_` and `fingerprint_`, which name the fit data in a saved artifact.
    """

    keeps_prediction: ClassVar[bool] = False
    keeps_ranking: ClassVar[bool] = False
    additive: ClassVar[bool] = False
    requires_logits: ClassVar[bool] = False
    few_parameters: ClassVar[bool] = False

    def fit(self, logits: Any, y: Any = None, sample_weight: Any = None) -> Calibrator:
        """Learn from held-out logits (n×K) and their labels (n,)."""
        if y is None:
            raise InputError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        matrix = self._check_logits(logits, reset=True)
        _check_finite(matrix)
        labels = check_labels(y, *matrix.shape)
        weights = check_weights(sample_weight, len(matrix))
        self.fit_rows(Rows(matrix, labels, weights))
        self.n_rows_, self.fingerprint_ = len(matrix), fingerprint(matrix, labels, weights)
        return self

    def fit_rows(self, rows: Rows) -> Calibrator:
        """Learn from rows that have passed the gate."""
        started = time.perf_counter()
        self._begin(rows)
        with one_blas_thread():
            self._fit(rows)
        self.fit_seconds_ = time.perf_counter() - started
        return self

    def fit_held_out(self, rows: Rows, fold: np.ndarray) -> np.ndarray:
        """Learn from all rows, and return what fits without a row's fold say of that row (n×K).

        A second stage that learns from these answers, or a score taken on them, sees the calibrator as new data will.
        """
        started = time.perf_counter()
        self._begin(rows)
        with one_blas_thread():
            answers = self._held_out(rows, fold)
        self.fit_seconds_ = time.perf_counter() - started
        return answers

    def fit_for_next(self, rows: Rows, seed: int) -> np.ndarray:
        """Learn from all rows, and return answers (n×K) on them from which a second stage may learn.

        They are this fit's own where `few_parameters` is true, else held-out ones: a calibrator of many parameters is
        surer of its fit data than of new data.
        """
        if self.few_parameters or rows.total_weight < 2 * FOLDS:
            return self.fit_rows(rows)._transform(rows.logits)
        return self.fit_held_out(rows, content_folds(rows, FOLDS, seed))

    def fit_predictions(self, predictions: Any, *, engine: Any = "local", checkpoint: Any = None) -> Calibrator:
        """Learn from predictions that need not fit in memory.

        Where `additive` is true the fit reads them chunk by chunk, as often as its solver needs; other methods work on
        a map of the file, or of a scratch copy on disk. The answer is that of `fit`.

        Parameters
        ----------
        predictions : Predictions, or the address of a file, a folder or several files (`parts/*.npz`)
        engine : "local", "dask", the address of a Dask scheduler ("tcp://host:8786"), or an engine
        checkpoint : path, optional
            Where finished passes are recorded; a killed fit that is started again goes on from there.
        """
        from calibrant.calibrators.helpers.streaming import fit_predictions

        return fit_predictions(self, predictions, engine, checkpoint)

    def transform(self, logits: Any) -> np.ndarray:
        """Calibrated logits (n×K) of the input's dtype; probability methods return log-probabilities."""
        check_is_fitted(self)
        return self._transform(self._check_logits(logits, reset=False))

    def predict_proba(self, logits: Any) -> np.ndarray:
        """Calibrated probabilities (n×K); rows sum to one."""
        check_is_fitted(self)
        matrix = self._check_logits(logits, reset=False)
        probabilities = softmax(self._transform(matrix))
        if matrix.dtype == np.float32:
            # neighbouring float32 numbers near 1e4 differ by 1e-3: such rows need float64 to give 1e-5 in probability
            large = np.flatnonzero(np.maximum(matrix.max(axis=1), -matrix.min(axis=1)) > PRECISE_LOGIT)
            if len(large):
                probabilities[large] = _narrow(softmax(self._transform(matrix[large].astype(np.float64))))
        return probabilities

    def predict(self, logits: Any) -> np.ndarray:
        """The class of highest calibrated probability of each row."""
        scores = self.transform(logits)
        return self.classes_[scores.argmax(axis=1)]

    def go_on_from(self, fitted: Calibrator) -> Calibrator:
        """Start the next fit where another of the same settings ended; solvers that reach an optimum need not."""
        return self

    @property
    def n_parameters_(self) -> int:
        """How many numbers the fit learned."""
        raise NotImplementedError

    @property
    def n_parameters(self) -> int:
        """The same under the name that tables give it; a NotFittedError before `fit`."""
        check_is_fitted(self)
        return int(self.n_parameters_)

    def _fit(self, rows: Rows) -> None:
        raise NotImplementedError

    def _transform(self, logits: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _held_out(self, rows: Rows, fold: np.ndarray) -> np.ndarray:
        """Fit on all rows and answer for each from a fit without its fold; methods that cross-fit anyway override."""
        self._fit(rows)
        answers = np.empty_like(rows.logits)
        for part in np.unique(fold):
            out, kept = np.flatnonzero(fold == part), rows.take(np.flatnonzero(fold != part))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FitWarning)  # the fit on all rows has warned already
                one = self._settled().fit_rows(kept) if kept.n and kept.total_weight > 0 else self
            answers[out] = one._transform(rows.logits[out])
        return answers

    def _settled(self) -> Calibrator:
        """An unfitted copy in which what this fit chose by cross-validation is given: one number, learned from all."""
        return clone(self)

    def _begin(self, rows: Rows) -> None:
        self.n_features_in_ = rows.n_classes
        self.classes_ = np.arange(rows.n_classes)
        self.n_iter_ = 1
        self.objective_trace_ = np.empty(0)

    def _check_logits(self, logits: Any, *, reset: bool) -> np.ndarray:
        shape: tuple[int, ...] = getattr(logits, "shape", ())
        if not reset and len(shape) == 2 and shape[1] != self.n_features_in_:
            raise InputError(
                f"X has {shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} features "
                "as input: one logit for each class of the fit"
            )
        matrix = check_matrix(logits)
        validate_data(self, X=logits if hasattr(logits, "columns") else matrix, reset=reset, skip_check_array=True)
        return matrix

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "fit_seconds_")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _narrow(probabilities: np.ndarray) -> np.ndarray:
    """Probabilities in float32 whose argmax is still that of the float64 ones."""
    narrow, winner = probabilities.astype(np.float32), probabilities.argmax(axis=1)
    lost = np.flatnonzero(narrow.argmax(axis=1) != winner)
    narrow[lost, winner[lost]] = np.nextafter(narrow[lost].max(axis=1), np.float32(2))
    return narrow


def _check_finite(matrix: np.ndarray) -> None:
    """`check_values` on all cores: blocks only find out whether there is anything to explain."""

    def looks_finite(block: slice) -> bool:
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isfinite(matrix[block].sum(dtype=matrix.dtype)))

    if not all(map_blocks(looks_finite, row_blocks(*matrix.shape))):
        check_values(matrix, from_logits=True)
