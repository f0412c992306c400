"""calibrant.sklearn: any scikit-learn classifier with calibrated probabilities, by any method of this library."""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from numbers import Integral
from pathlib import Path
from traceback import walk_stack
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.metrics._scorer import _BaseScorer, _cached_call
from sklearn.model_selection import StratifiedGroupKFold, check_cv
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import _safe_indexing, indexable
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
from calibrant.core.arrays import Array, check_choice
from calibrant.core.atomic import atomic_write
from calibrant.core.errors import FitWarning, InputError, MissingExtraError, warn_user
from calibrant.core.schema import identifiers
from calibrant.core.softmax import log_stored
from calibrant.metrics import METRICS
from calibrant.metrics.record import FIGURES, Figure, Metric

Params = dict[str, Any]
"""Keyword arguments."""
SMALLEST_LOG = float(np.log(np.finfo(np.float32).eps))
"""Logarithm of the smallest probability of a classifier that is used unchanged."""


MANY_CLASSES: dict[str, tuple[str, Params]] = {"platt": ("svs", {}), "iso": ("iso", {"mode": "one_vs_rest"})}
"""Methods for more than two classes by the names of scikit-learn's methods."""


class CalibratedClassifier(CalibratedClassifierCV):
    """A classifier whose probabilities are calibrated on data it was not trained on.

    Each fold's held-out scores become logits: a `decision_function` as it is (a binary one d as the columns −d/2 and
    d/2, so that softmax equals the logistic function of d), else the logarithm of `predict_proba`. One calibrator
    learns from the held-out logits of all folds together. If splits hold out a row several times, it counts once.

    With `ensemble=True` the calibrator is applied to the classifier of each fold, and the probabilities are averaged;
    with `ensemble=False` it is applied to one classifier that is fitted to all data. Tags, metadata routing and the
    meaning of the other parameters are those of scikit-learn's class.

    Parameters
    ----------
    estimator : a classifier; None means LogisticRegression. Wrap a fitted one in `sklearn.frozen.FrozenEstimator` to
        keep it as it is: then all data given to `fit` go to the calibrator.
    method : a short name ("auto", "sigmoid", "isotonic", "ts", "beta", …) or an unfitted calibrator. The default
        cross-validates several methods; "shape" takes a tenth of its time and never changes a prediction of several
        classes. With two classes the score of the second one is calibrated. With more,
        "isotonic" works class by class and "sigmoid" is "svs", a regularized slope and bias per class.
    cv : number of folds, a splitter, or an iterable of splits, as everywhere in scikit-learn.
    ensemble : True, False or "auto" (True unless the estimator is frozen).
    n_jobs : folds fitted at the same time.

    Attributes
    ----------
    classes_ : the labels, in the order of the columns of `predict_proba`.
    calibrated_pairs_ : list of (classifier, calibrator); the calibrator is the same in all pairs.

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

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None, clusters: Any = None, **fit_params: Any
    ) -> CalibratedClassifier:
        """Train the classifier and calibrate it on held-out folds; y may hold labels of any type.

        `groups` go to the splitter and to methods that calibrate by group. Rows of the same cluster (patient, image) go
        to the same fold if `cv` is a number. `fit_params` go to the classifier's `fit`, cut to the rows of a fold where
        they have an entry per row. With metadata routing switched on, the requests decide.

        Whole-number weights count copies of a row. The calibrator rescales other weights to a mean of 1.
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
        calibrator = self._get_calibrator(len(self.classes_))
        if len(self.classes_) > 2 and "multiclass" not in calibrator.tasks:
            raise InputError(
                "Only binary classification is supported. The type of the target is multiclass: the method "
                f"{self.method!r} calibrates one score per row; take auto, svs or another method for many classes"
            )
        by_group = _check_groups(calibrator, groups)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise InputError(f"y holds {unknown[:3].tolist()}, which the fitted estimator does not know")
        y, labels = np.asarray(y), encoder.transform(y)
        columns = {"sample_weight": weights, "groups": groups, "clusters": clusters}
        fit_params, split_params = self._routed(X, columns, fit_params)
        if frozen:
            classifiers, logits, rows = [estimator], class_logits(estimator, X, self.classes_), np.arange(len(y))
        else:
            splits = self._split_rows(X, y, labels, clusters, split_params)
            data = (X, y, fit_params)
            work = partial(_fit_fold, estimator, data, self.classes_)
            fits = Parallel(n_jobs=self.n_jobs)(delayed(work)(split) for split in splits)
            classifiers, held_out = map(list, zip(*fits, strict=True))
            logits, rows = np.concatenate(held_out), np.concatenate([test for _, test in splits])
            if not self.ensemble:  # "auto" is True
                classifiers = [_fitted(estimator, data, slice(None))]
        columns = {**by_group, "clusters": clusters, "sample_weight": _rescale_weights(weights, labels)}
        counts = np.bincount(rows, minlength=len(y))
        if counts.max() > 1:  # copies of a row go to the same fold and have the weight of one row together
            total = 1.0 if weights is None else columns["sample_weight"]
            columns["sample_weight"] = total / np.maximum(counts, 1)
            columns["clusters"] = np.arange(len(y)) if clusters is None else clusters
        with _merge_warnings():
            calibrator = clone(calibrator).fit(_scores(logits), labels[rows], **_take_rows(columns, rows))
        self.calibrated_pairs_ = [(classifier, calibrator) for classifier in classifiers]
        validate_data(self, X, skip_check_array=True)  # remembers the number and the names of the features
        return self

    def predict_proba(self, X: Any, groups: Any = None) -> Array:
        """Calibrated probabilities (n×K), columns in the order of `classes_`; always an array."""
        check_is_fitted(self)
        metadata = _check_groups(self.calibrated_pairs_[0][1], groups)
        with _merge_warnings():
            parts = [
                calibrator.predict_proba(_scores(class_logits(estimator, X, self.classes_)), **metadata)
                for estimator, calibrator in self.calibrated_pairs_
            ]
        return np.mean(parts, axis=0)

    def predict(self, X: Any, groups: Any = None) -> Array:
        """The label of highest calibrated probability."""
        chosen = self.predict_proba(X, groups).argmax(axis=1)
        return self.classes_[chosen]

    def score(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> float:
        """Accuracy of the predictions."""
        return float(accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight))

    def set_output(self, *, transform: str | None = None) -> CalibratedClassifier:
        """Return the classifier unchanged: probabilities are arrays, as those of scikit-learn's classifiers."""
        return self

    def _routed(self, X: Any, metadata: Params, fit_params: Params) -> tuple[Params, Params]:
        """Parameters of the classifier's fit, the weights among them, and of the splitter's split."""
        if _routing_enabled():
            fit_params.update((name, value) for name, value in metadata.items() if value is not None)
            routed = process_routing(self, "fit", **fit_params)
            return _check_method_params(X, routed.estimator.fit), routed.splitter.split
        weights, estimator = metadata["sample_weight"], self._get_estimator()
        if weights is not None:
            if has_fit_parameter(estimator, "sample_weight"):
                fit_params["sample_weight"] = weights
            elif not isinstance(estimator, FrozenEstimator):
                warn_user(f"{type(estimator).__name__} takes no sample_weight: only the calibrator uses the weights")
        # splitters made from a number ignore groups, with a warning
        return _check_method_params(X, fit_params), {} if self._counts_folds else {"groups": metadata["groups"]}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = "multiclass" in self._get_calibrator(3).tasks
        return tags

    def _get_estimator(self) -> Any:
        return LogisticRegression() if self.estimator is None else self.estimator

    @property
    def _counts_folds(self) -> bool:
        """Whether `cv` is a number of folds or None."""
        return self.cv is None or isinstance(self.cv, Integral)

    def _split_rows(self, X: Any, y: Array, labels: Array, clusters: Any, split_params: Params) -> list[Any]:
        """Training and calibration rows of each fold; InputError if the folds are too small to learn from."""
        if isinstance(self.cv, str):
            raise InputError(
                f"cv is {self.cv!r}: to keep a fitted classifier, wrap it in sklearn.frozen.FrozenEstimator"
            )
        splitter = check_cv(self.cv, y, classifier=True)
        if len(self.classes_) < 2:
            raise InputError(f"y has {len(self.classes_)} class, but a classifier needs samples of at least 2 classes")
        counts, n_splits = np.bincount(labels), getattr(splitter, "n_splits", 0)
        if n_splits > counts.min():
            raise InputError(
                f"Requesting {n_splits}-fold cross-validation but provided less than {n_splits} "
                f"examples for at least one class: {self.classes_[counts.argmin()]!r} has {counts.min()}; cv must be "
                "between 2 and the number of rows of the rarest class"
            )
        if clusters is not None and self._counts_folds:
            splitter = StratifiedGroupKFold(n_splits)
            split_params = {"groups": identifiers(clusters, len(y), "clusters")[0]}
        numbers = np.arange(len(y))
        splits = [(numbers[train], numbers[test]) for train, test in splitter.split(X, y, **split_params)]
        useful = [test for train, test in splits if len(test) > 1 and np.isin(labels[test], labels[train]).any()]
        if not useful or not np.ptp(labels[np.concatenate(useful)]):
            raise InputError(
                "LeaveOneOut and other splits that hold out one row, one class or all rows of a class leave nothing to "
                "calibrate on: choose a cv that puts rows of all classes into the training and the test parts"
            )
        lost = np.unique(np.concatenate([np.setdiff1d(labels[test], labels[train]) for train, test in splits]))
        if len(lost):
            warn_user(
                f"a test part contains all rows of {self.classes_[lost][:3].tolist()}: the classifier of that fold "
                "does not know the class, which impairs the calibrator; choose a cv that spreads the rows of each class"
            )
        return splits

    def _get_calibrator(self, n_classes: int) -> Calibrator:
        """The unfitted calibrator of `method`."""
        if not isinstance(self.method, str):
            return self.method
        known = MANY_CLASSES if n_classes > 2 else {}
        name, parameters = known.get(resolve(self.method), (self.method, {}))
        calibrator = get(name, **parameters)
        if "weights_are" in calibrator.get_params(deep=False):  # weights of scikit-learn are copies
            calibrator.set_params(weights_are="counts")
        return calibrator


def _check_groups(calibrator: Calibrator, groups: Any) -> Params:
    """Return the groups as an argument for calibrators by group; InputError if they need groups that are missing."""
    if calibrator.takes_groups and groups is None:
        raise InputError(f"{type(calibrator).__name__} needs groups: one per row")
    return {"groups": groups} if calibrator.takes_groups else {}


def _rescale_weights(weights: Any, labels: Array) -> Any:
    """Weights for calibrators: whole numbers count copies; others, such as those of boosting, get the mean 1."""
    if weights is None:
        return None
    totals, counts = np.bincount(labels, weights), np.bincount(labels)
    if totals.max() < 1.001 * totals.min() and counts.max() > 1.1 * counts.min():
        warn_user(
            "sample_weight balances the classes: the probabilities refer to equally frequent classes, not to the "
            "frequencies in y; leave the weights out for those"
        )
    positive = weights[weights > 0]
    if (positive == np.rint(positive)).all():
        return weights
    return weights / positive.mean()


def _take_rows(metadata: Any, rows: Any) -> Params:
    """Entries of each column, or of each column of a mapping, at some rows."""
    return {
        name: _take_rows(values, rows) if isinstance(values, Mapping) else np.asarray(values)[rows]
        for name, values in metadata.items()
        if values is not None
    }


_search_kinds: set[str] = set()
"""Kinds of warnings that this process issued in a search or cross-validation, where each is shown once."""


@contextmanager
def _merge_warnings() -> Iterator[None]:
    """Issue each kind of FitWarning of the block once, with its count; kinds differ in more than numbers."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        yield
    kinds: dict[str, list[Any]] = {}
    for one in caught:
        if not issubclass(one.category, FitWarning):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        # the scores of a base model are known to be logits
        elif "are taken as logits" not in str(one.message):
            kinds.setdefault(re.sub(r"\d[\d.,e+-]*", "#", str(one.message)), []).append(one)
    # made by a search or cross-validation of scikit-learn
    if any(frame.f_code.co_name.startswith("_fit_and_") for frame, _ in walk_stack(None)):
        for kind in _search_kinds.intersection(kinds):
            del kinds[kind]
        _search_kinds.update(kinds)
    else:
        _search_kinds.clear()
    for first, *others in kinds.values():
        warn_user(f"{first.message}" + f" (and {len(others)} similar warnings)" * bool(others), first.category)


def _scores(logits: Array) -> Array:
    """One score per row where there are two classes."""
    return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits


def _fit_fold(estimator: Any, data: Any, classes: Array, split: Any) -> Any:
    """A classifier fitted to the training rows of a split, and its logits of the test rows."""
    fitted = _fitted(estimator, data, split[0])
    return fitted, class_logits(fitted, _safe_indexing(data[0], split[1]), classes)


def _fitted(estimator: Any, data: Any, rows: Any) -> Any:
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
        scores = log_stored(scores)  # a zero stays −inf: the calibrator learns its floor from the fit data
        # naive Bayes gives 1e-200 to classes that are right: such values keep their order, but not their size
        scores = np.maximum(scores, SMALLEST_LOG) - np.log1p(np.maximum(SMALLEST_LOG - scores, 0))
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


TARGETS = {
    "calibration_slope": 1.0,
    "observed_expected": 1.0,
    "calibration_intercept": 0.0,
    "over_confidence": 0.0,
    "under_confidence": 0.0,
}
"""Best values of metrics that are neither minimized nor maximized."""


def scorer(metric: str, *, task: str | None = None, **options: Any) -> MetricScorer:
    """Return a scorer of a registered metric for searches, `cross_validate` and threshold tuning; greater is better.

    Metrics for which lower is better are negated, as in scikit-learn's `neg_log_loss`; of metrics with a best value,
    such as `calibration_slope`, the distance to it is negated.

    Parameters
    ----------
    metric : name of a metric or of one of its values, such as "ece", "nll", "miscalibration"
    task : "binary" or "multiclass", optional
        Two classes are scored by the probability of the second one unless the task is "multiclass". Of several labels
        per row, the score is the mean over the labels.
    **options : parameters of the metric, such as `n_bins=10`

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.model_selection import cross_val_score
    >>> X, y = load_iris(return_X_y=True)
    >>> scores = cross_val_score(LogisticRegression(max_iter=500), X, y, scoring=scorer("nll"))
    >>> bool((scores < 0).all())
    True
    """
    # curves have no value unless options select one point
    figure = FIGURES.get(metric, Figure(metric, metric, metric, better=int(metric == "net_benefit")))
    record = next((one for one in METRICS.values() if figure in one.figures), METRICS.get(metric))
    if record is None or not (record.figures or figure.better):
        names = [one.name for record in METRICS.values() for one in record.figures]
        raise InputError(f"{metric!r} is not a metric with one value: use net_benefit, {', '.join(names)}")
    default = "multiclass" if record.about in ("matrix", "confidence") else "binary"
    by_class = check_choice(task or default, "task", ("binary", "multiclass")) == "multiclass"
    # intervals may contain functions without a name, which cannot be pickled
    return MetricScorer(replace(record, figures=(replace(figure, interval=None),)), by_class, options)


class MetricScorer(_BaseScorer):
    """Scorer of probabilities for scikit-learn; `scorer` creates it."""

    def __init__(self, metric: Metric, by_class: bool, options: Params) -> None:
        self._metric, self._by_class, figure = metric, by_class, metric.figures[0]
        sign = figure.better or (-1 if figure.name in TARGETS else 1)
        super().__init__(self._evaluate, sign, options, "predict_proba")

    def __repr__(self) -> str:
        return f"scorer({self._metric.figures[0].name!r})"

    def __call__(self, estimator: Any, X: Any, y_true: Any, **metadata: Any) -> float:
        """Return the score, given `sample_weight` and, for methods that calibrate by group, `groups`."""
        return self._score(partial(_cached_call, None), estimator, X, y_true, **metadata)

    def _score(
        self, method_caller: Any, estimator: Any, X: Any, y_true: Any, groups: Any = None, **metadata: Any
    ) -> float:
        if groups is not None:
            probabilities = estimator.predict_proba(X, groups=groups)
        elif np.ndim(y_true) == 2:
            probabilities = estimator.predict_proba(X)
        else:
            probabilities = method_caller(estimator, "predict_proba", X, pos_label=None)
        options = {**self._kwargs, **metadata, "classes": estimator.classes_}
        return self._sign * self._evaluate(y_true, probabilities, **options)

    def _evaluate(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None, *, classes: Any = None, **options: Any
    ) -> float:
        """Return the metric of probabilities (n, K), or (n,) of the second class; or of predicted labels (n,)."""
        labels = np.asarray(y_true)
        if labels.ndim == 2:
            parts = [one[:, 1] for one in y_pred] if isinstance(y_pred, list) else np.asarray(y_pred).T
            one_label = partial(self._evaluate, sample_weight=sample_weight, classes=np.arange(2), **options)
            return float(np.mean([*map(one_label, labels.T, parts)]))
        found, values = np.unique(labels), np.asarray(y_pred)
        is_labels = values.ndim == 1 and classes is None and (values.dtype.kind != "f" or np.isin(values, found).all())
        if is_labels:  # threshold tuning scores predictions
            classes = np.union1d(found, values)
            values = (values[:, None] == classes).astype(np.float64)
        elif values.ndim == 1:
            values = np.stack([1 - values, values], axis=1)
        if classes is None:
            classes = found if len(found) == values.shape[1] else np.arange(values.shape[1])
        # a class that the estimator does not know has probability 0
        known = np.union1d(classes, found)
        matrix = np.zeros((len(values), len(known)), values.dtype)
        matrix[:, np.searchsorted(known, classes)] = values
        with warnings.catch_warnings():
            if is_labels:
                warnings.simplefilter("ignore")
            given = matrix if self._by_class or len(known) != 2 else matrix[:, 1]
            options["sample_weight"] = sample_weight
            ((name, value),) = self._metric.values(given, np.searchsorted(known, labels), **options).items()
        return abs(value - TARGETS[name]) if name in TARGETS else value


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
