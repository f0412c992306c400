"""calibrant.sklearn: any scikit-learn classifier with calibrated probabilities, by any method of this library."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import check_cv
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import _safe_indexing, indexable
from sklearn.utils._set_output import ADAPTERS_MANAGER
from sklearn.utils.metadata_routing import _routing_enabled, process_routing
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import (
    _check_method_params,
    _check_sample_weight,
    check_is_fitted,
    has_fit_parameter,
    validate_data,
)

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.learned import check_learned
from calibrant.calibrators.registry import class_names, get, resolve
from calibrant.core.arrays import Array
from calibrant.core.atomic import atomic_write
from calibrant.core.errors import InputError, MissingExtraError, warn_user
from calibrant.core.softmax import log_stored

Params = dict[str, Any]
"""Keyword arguments."""
SMALLEST = float(np.finfo(np.float32).eps)
"""The smallest positive probability of one of many classes that is taken at its word."""


MANY_CLASSES: dict[str, tuple[str, Params]] = {"platt": ("vs", {}), "iso": ("iso", {"mode": "one_vs_rest"})}
"""What the names of scikit-learn's methods stand for with more than two classes."""


class CalibratedClassifier(CalibratedClassifierCV):
    """A classifier whose probabilities are calibrated on data it was not trained on.

    Each fold's held-out scores become logits: a `decision_function` as it is (a binary one d as the columns −d/2 and
    d/2, so that softmax equals the logistic function of d), else the logarithm of `predict_proba`. With
    `ensemble=True` every fold keeps its pair of classifier and calibrator, and probabilities are averaged; with
    `ensemble=False` one calibrator learns from all held-out logits and one classifier from all data.

    Tags, metadata routing and the meaning of the parameters are those of scikit-learn's own class.

    Parameters
    ----------
    estimator : a classifier; None means LogisticRegression. Wrap a fitted one in `sklearn.frozen.FrozenEstimator` to
        keep it as it is: then all data given to `fit` go to the calibrator.
    method : a short name ("auto", "sigmoid", "isotonic", "ts", "beta", …) or an unfitted calibrator. The default
        cross-validates several methods on every fold, which takes about a second; "shape" takes a tenth of it and never
        changes a prediction of several classes. With two classes the score of the second one is calibrated. With more,
        "isotonic" works class by class and "sigmoid" is vector scaling, a slope and a bias per class.
    cv : number of folds, a splitter, or an iterable of splits, as everywhere in scikit-learn.
    ensemble : True, False or "auto" (True unless the estimator is frozen).
    n_jobs : folds fitted at the same time.

    Attributes
    ----------
    classes_ : the labels, in the order of the columns of `predict_proba`.
    calibrated_pairs_ : list of (classifier, calibrator).

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = load_iris(return_X_y=True)
    >>> CalibratedClassifier(GaussianNB(), method="ts", cv=3).fit(X, y).predict_proba(X).shape
    (150, 3)
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        method: Any = "auto",
        cv: Any = None,
        ensemble: Any = "auto",
        n_jobs: Any = None,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.ensemble = ensemble
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> CalibratedClassifier:
        """Train the classifier and calibrate it on held-out folds; y may hold labels of any type.

        `fit_params` go to the classifier's `fit`, cut to the rows of a fold where they have an entry per row; `groups`
        go to the splitter. With metadata routing switched on, they go where the requests say.
        """
        if y is None:
            raise InputError("CalibratedClassifier requires y to be passed, but the target y is None")
        check_classification_targets(y)
        X, y = indexable(X, y)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X)
        estimator = self._get_estimator()
        frozen = isinstance(estimator, FrozenEstimator)
        if frozen:
            check_is_fitted(estimator)
        encoder = LabelEncoder().fit(estimator.classes_ if frozen else y)
        self.classes_ = encoder.classes_
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise InputError(f"y holds {unknown[:3].tolist()}, which the fitted estimator does not know")
        y, labels, every = np.asarray(y), encoder.transform(y), slice(None)
        fit_params, split_params = self._routed(X, weights, fit_params)
        fits: list[Any] = []
        """Classifiers, the logits that they gave to rows they were not fitted on, and which rows these are."""
        if frozen:
            fits = [(estimator, class_logits(estimator, X, self.classes_), every)]
        else:
            splits = list(self._splitter(y, labels).split(X, y, **split_params))
            data = (X, y, fit_params)
            work = partial(_fit_fold, estimator, data, self.classes_)
            fits = Parallel(n_jobs=self.n_jobs)(delayed(work)(split) for split in splits)
            if not self.ensemble:  # "auto" is True
                _, held_out, order = zip(*fits, strict=True)
                fits = [(_fitted(estimator, data, every), np.concatenate(held_out), np.concatenate(order))]
        self.calibrated_pairs_ = [
            (fitted, self._calibrate(logits, labels[rows], None if weights is None else weights[rows]))
            for fitted, logits, rows in fits
        ]
        validate_data(self, X, skip_check_array=True)  # remembers the number and the names of the features
        return self

    def predict_proba(self, X: Any) -> Array:
        """Calibrated probabilities (n×K), columns in the order of `classes_`."""
        probabilities = self._probabilities(X)
        wanted = vars(self).get("_sklearn_output_config", {"transform": "default"})["transform"]
        if wanted == "default":
            return probabilities
        adapter = ADAPTERS_MANAGER.adapters[wanted]
        return adapter.create_container(probabilities, X, columns=[str(name) for name in self.classes_])

    def predict(self, X: Any) -> Array:
        """The label of highest calibrated probability."""
        chosen = self._probabilities(X).argmax(axis=1)
        return self.classes_[chosen]

    def set_output(self, *, transform: str | None = None) -> CalibratedClassifier:
        """Give probabilities as a frame ("pandas", "polars") with a column per class, or as an array ("default")."""
        if transform is None:
            return self
        if transform not in ADAPTERS_MANAGER.supported_outputs:
            raise InputError(f'transform must be one of "default", "pandas", "polars", got {transform!r}')
        # under this name scikit-learn's `clone` keeps the choice
        self._sklearn_output_config = {"transform": transform}
        return self

    def _routed(self, X: Any, weights: Array | None, fit_params: Params) -> tuple[Params, Params]:
        """Parameters of the classifier's fit, the weights among them, and of the splitter's split."""
        weighed = fit_params if weights is None else {**fit_params, "sample_weight": weights}
        if _routing_enabled():
            routed = process_routing(self, "fit", **weighed)
            return _check_method_params(X, routed.estimator.fit), routed.splitter.split
        groups, estimator = {"groups": weighed.pop("groups", None)}, self._get_estimator()
        if weights is not None and not has_fit_parameter(estimator, "sample_weight"):
            del weighed["sample_weight"]
            if not isinstance(estimator, FrozenEstimator):
                warn_user(f"{type(estimator).__name__} takes no sample_weight: only the calibrator uses the weights")
        return _check_method_params(X, weighed), groups

    def _probabilities(self, X: Any) -> Array:
        check_is_fitted(self)
        parts = [
            calibrator.predict_proba(_scores(class_logits(estimator, X, self.classes_)))
            for estimator, calibrator in self.calibrated_pairs_
        ]
        return np.mean(parts, axis=0)

    def _get_estimator(self) -> Any:
        return LogisticRegression() if self.estimator is None else self.estimator

    def _splitter(self, y: Array, labels: Array) -> Any:
        """The splitter of `cv`; a number of folds may not exceed the rows of the smallest class."""
        if isinstance(self.cv, str):
            raise InputError(
                f"cv is {self.cv!r}: to keep a fitted classifier, wrap it in sklearn.frozen.FrozenEstimator"
            )
        splitter = check_cv(self.cv, y, classifier=True)
        if len(self.classes_) < 2:
            raise InputError(f"y has {len(self.classes_)} class, but a classifier needs samples of at least 2 classes")
        counts = np.bincount(labels)
        if isinstance(self.cv, (int, type(None))) and splitter.n_splits > counts.min():
            raise InputError(
                f"Requesting {splitter.n_splits}-fold cross-validation but provided less than {splitter.n_splits} "
                f"examples for at least one class: {self.classes_[counts.argmin()]!r} has {counts.min()}; choose a cv "
                f"of at most {counts.min()}"
            )
        return splitter

    def _calibrate(self, logits: Array, labels: Array, weights: Array | None) -> Calibrator:
        calibrator = self.method
        if isinstance(calibrator, str):
            known = MANY_CLASSES if len(self.classes_) > 2 else {}
            name, parameters = known.get(resolve(calibrator), (calibrator, {}))
            calibrator = get(name, **parameters)
            if "weights_are" in calibrator.get_params(deep=False):  # weights of scikit-learn are copies
                calibrator.set_params(weights_are="counts")
        return clone(calibrator).fit(_scores(logits), labels, sample_weight=weights)


def _scores(logits: Array) -> Array:
    """One score per row where there are two classes."""
    return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits


def _fit_fold(estimator: Any, data: tuple[Any, Array, Params], classes: Array, split: Any) -> tuple[Any, Array, Any]:
    """The classifier that learned from some rows, its logits of the others, and their numbers."""
    fitted, test = _fitted(estimator, data, split[0]), split[1]
    return fitted, class_logits(fitted, _safe_indexing(data[0], test), classes), test


def _fitted(estimator: Any, data: tuple[Any, Array, Params], rows: Any) -> Any:
    X, y, params = data
    given = _check_method_params(X, params, indices=rows)
    return clone(estimator).fit(_safe_indexing(X, rows), y[rows], **given)


def class_logits(estimator: Any, X: Any, classes: Array) -> Array:
    """Scores of a fitted classifier as logits (n×K), one column for each of `classes`.

    >>> from sklearn.linear_model import LogisticRegression
    >>> fitted = LogisticRegression().fit([[0.0], [1.0], [2.0], [3.0]], ["a", "a", "b", "b"])
    >>> logits = class_logits(fitted, [[3.0]], fitted.classes_)
    >>> bool(np.isclose(logits[0, 1] - logits[0, 0], fitted.decision_function([[3.0]])[0]))
    True
    """
    decides = hasattr(estimator, "decision_function")
    if decides:
        scores = np.asarray(estimator.decision_function(X), dtype=np.float64)
    elif hasattr(estimator, "predict_proba"):
        scores = np.asarray(estimator.predict_proba(X), dtype=np.float64)
        if scores.shape[1] > 2:
            # naive Bayes gives 1e-200 to classes that are right, and log p would then outweigh every other column
            scores = np.where(scores > 0, np.maximum(scores, SMALLEST), 0.0)
        scores = log_stored(scores)  # a zero stays −inf, because what it counts as is learned from the fit data
    else:
        raise InputError(f"{type(estimator).__name__} has neither decision_function nor predict_proba")
    if scores.ndim == 1:
        scores = np.stack([-scores / 2, scores / 2], axis=1)
    known = np.asarray(estimator.classes_)
    if scores.shape[1] != len(known):
        raise InputError(
            f"{type(estimator).__name__} gives {scores.shape[1]} scores per row, but knows {len(known)} classes: "
            'with a support vector machine use decision_function_shape="ovr"'
        )
    # a class that this fold never saw: as unlikely as the least likely score
    logits = np.full((len(scores), len(classes)), scores.min() if decides else -np.inf)
    logits[:, np.searchsorted(classes, known)] = scores
    return logits


def save_classifier(model: CalibratedClassifier, path: Any) -> Path:
    """Write a fitted classifier with its calibrators to one file, by skops: no code is in it.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = load_iris(return_X_y=True)
    >>> fitted = CalibratedClassifier(GaussianNB(), method="ts", cv=2).fit(X, y)
    >>> path = save_classifier(fitted, tempfile.mkdtemp() + "/iris.skops")
    >>> bool((load_classifier(path).predict(X) == fitted.predict(X)).all())
    True
    """
    check_is_fitted(model)
    skops = _skops()
    try:
        content = skops.dumps(model)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise InputError(f"skops cannot write this classifier ({reason}); joblib.dump writes it as a pickle") from error
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)
    return Path(path)


def load_classifier(path: Any, *, trusted: Sequence[str] = ()) -> CalibratedClassifier:
    """A classifier that `save_classifier` wrote.

    Parameters
    ----------
    path : path
    trusted : names of types, such as "mypackage.MyClassifier"
        That skops may load besides those of scikit-learn, numpy and this library.
    """
    skops, wrapper = _skops(), f"{__name__}.{CalibratedClassifier.__name__}"
    known = {wrapper, *(f"{module}.{name}" for name, module in class_names().items()), *trusted}
    try:
        unknown = sorted(set(skops.get_untrusted_types(file=path)) - known)
        if unknown:
            raise InputError(
                f"{path} holds types that skops does not know: {', '.join(unknown[:5])}; name them in trusted=[...] "
                "where you trust where they came from"
            )
        model = skops.load(path, trusted=sorted(known))
        for _, calibrator in model.calibrated_pairs_:
            check_learned(calibrator, len(calibrator.classes_))
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        if isinstance(error, InputError):
            raise
        reason = " ".join(str(error).split())
        raise InputError(f"{path} is not a classifier that save_classifier wrote ({reason})") from error
    return model


def _skops() -> Any:
    try:
        from skops import io
    except ImportError as error:
        raise MissingExtraError("skops", "skops") from error
    return io
