"""CalibratedClassifier equals a direct call of its calibrator, over base models, labels, weights, groups and folds."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import AdaBoostClassifier, GradientBoostingClassifier, RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, ShuffleSplit, StratifiedKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

import calibrant
from calibrant.sklearn import CalibratedClassifier

N = 150

BASES = {
    "logistic regression": LogisticRegression(),
    "naive Bayes": GaussianNB(),
    "forest": RandomForestClassifier(4, max_depth=4, random_state=0),
    "SVC": SVC(),
    "boosting": GradientBoostingClassifier(n_estimators=4, random_state=0),
    "MLP": MLPClassifier((4,), max_iter=20, random_state=0),
    "AdaBoost": AdaBoostClassifier(DecisionTreeClassifier(max_depth=1, random_state=0), n_estimators=4, random_state=0),
}
LABELS = {
    "text": np.array(["cat", "dog", "elk"]),
    "bool": np.array([False, True]),
    "signs": np.array([-1, 1]),
    "gaps": np.array([2, 7, 30]),
}
WEIGHTS = {
    "none": None,
    "counts": np.resize([1, 2, 3], N),
    "shares": np.random.default_rng(1).exponential(size=N) / N,
}
METHODS = {"none": {2: ("platt", "bend"), 3: ("svs", "ts")}, "groups": {2: ("platt+group",), 3: ("ts+group",)}}
FOLDS = {
    "int": 2,
    "splitter": StratifiedKFold(3, shuffle=True, random_state=0),
    "groups": GroupKFold(3),
    "overlap": ShuffleSplit(2, test_size=0.5, random_state=0),
    "prefit": None,
}
AXES = (BASES, LABELS, WEIGHTS, METHODS, FOLDS, (True, False))


def covering_cases():
    """Cases that contain each pair of values of two axes, chosen greedily."""
    missing = {
        ((i, a), (j, b))
        for (i, one), (j, other) in itertools.combinations(enumerate(AXES), 2)
        for a in one
        for b in other
    }
    cases = list(itertools.product(*AXES))
    found = []
    while missing:
        pairs = {case: set(itertools.combinations(enumerate(case), 2)) & missing for case in cases}
        best = max(cases, key=lambda case: len(pairs[case]))
        missing -= pairs[best]
        found.append(best)
    return found


def scores_of(model, X):
    """The decision function, or the logarithm of the probabilities, of which tiny ones are compressed."""
    if hasattr(model, "decision_function"):
        return model.decision_function(X)
    with np.errstate(divide="ignore"):
        logits = np.log(model.predict_proba(X))
    lowest = np.log(np.finfo(np.float32).eps)
    tiny = (logits < lowest) & np.isfinite(logits)
    logits[tiny] = lowest - np.log1p(lowest - logits[tiny])
    return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits


@pytest.mark.parametrize(("base", "labels", "weights", "groups", "folds", "ensemble"), covering_cases())
@pytest.mark.filterwarnings("ignore")
def test_a_calibrated_classifier_equals_one_calibrator_of_all_held_out_rows(
    base, labels, weights, groups, folds, ensemble
):
    estimator, names, w = BASES[base], LABELS[labels], WEIGHTS[weights]
    X, codes = make_classification(N + 20, 5, n_informative=4, n_redundant=0, n_classes=len(names), random_state=2)
    X, X_test, codes, y = X[:N], X[N:], codes[:N], names[codes[:N]]
    ward, ward_test = (np.resize(["a", "b", "c", "d", "e"], len(one)) for one in (X, X_test))
    scaled = None if w is None else w / (w.mean() if weights == "shares" else 1)

    def train(rows):
        metadata = {"sample_weight": w[rows]} if w is not None else {}
        return clone(estimator).fit(X[rows], y[rows], **metadata)

    if folds == "prefit":
        given, cv = FrozenEstimator(train(slice(None))), None
        classifiers, scores, rows = [given], scores_of(given, X), np.arange(N)
    else:
        given, cv = estimator, FOLDS[folds]
        splits = (StratifiedKFold(cv) if isinstance(cv, int) else cv).split(X, y, ward if folds == "groups" else None)
        splits = list(splits)
        classifiers = [train(fit) for fit, _ in splits]
        held_out = [scores_of(model, X[rest]) for model, (_, rest) in zip(classifiers, splits, strict=True)]
        scores, rows = np.concatenate(held_out), np.concatenate([rest for _, rest in splits])
        if not ensemble:
            classifiers = [train(slice(None))]
    if folds == "overlap":  # a row that is held out twice has half its weight each time
        scaled = (1 if w is None else scaled) / np.bincount(rows, minlength=N).clip(1)
    for method in METHODS[groups][len(names)]:
        by_group = method.endswith("+group")
        model = CalibratedClassifier(given, method=method, cv=cv, ensemble=ensemble)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, y, sample_weight=w, groups=ward if by_group or folds == "groups" else None)
        metadata = {"groups": ward[rows]} if by_group else {}
        if folds == "overlap":
            metadata["clusters"] = rows
        weight = None if scaled is None else scaled[rows]
        direct = calibrant.get(method).fit(scores, codes[rows], sample_weight=weight, **metadata)
        metadata = {"groups": ward_test} if by_group else {}
        expected = [direct.predict_proba(scores_of(fitted, X_test), **metadata) for fitted in classifiers]
        found = model.predict_proba(X_test, **metadata)
        np.testing.assert_allclose(found, np.mean(expected, axis=0), rtol=0, atol=1e-12)
        np.testing.assert_array_equal(model.predict(X_test, **metadata), names[found.argmax(axis=1)])
        np.testing.assert_array_equal(model.classes_, names)
