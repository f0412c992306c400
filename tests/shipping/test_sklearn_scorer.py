"""Registered metrics as scorers of scikit-learn."""

from __future__ import annotations

import copy
import math
import pickle
import warnings

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.datasets import load_iris, make_classification, make_multilabel_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, TunedThresholdClassifierCV, cross_validate
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier

import calibrant
from calibrant.core.errors import InputError
from calibrant.metrics import METRICS
from calibrant.sklearn import CalibratedClassifier, scorer

NUMBERS = [(figure.name, metric) for metric in METRICS.values() for figure in metric.figures if not metric.plain]
MAXIMIZED = ("accuracy", "confidence_auroc", "roc_auc", "average_precision", "discrimination")


@pytest.fixture(scope="module")
def risks():
    X, y = make_classification(240, 6, random_state=1)
    labels = np.where(y == 1, "sick", "healthy")
    return X, labels, np.random.default_rng(0).exponential(size=240), LogisticRegression().fit(X[:120], labels[:120])


@pytest.mark.parametrize(("name", "metric"), NUMBERS, ids=[name for name, _ in NUMBERS])
def test_a_scorer_returns_the_metric_with_greater_being_better(name, metric, risks):
    X, labels, weights, model = risks
    p, y = model.predict_proba(X), (labels == "sick").astype(int)
    values = p if metric.about in ("matrix", "confidence") else p[:, 1]
    for given in ({}, {"sample_weight": weights}):
        expected = metric.values(values, y, **given)[name]
        target = {"calibration_slope": 1, "observed_expected": 1}.get(name, 0)
        if name not in (*MAXIMIZED, "confidence", "entropy", "uncertainty"):
            expected = -abs(expected - target)
        assert scorer(name)(model, X, labels, **given) == pytest.approx(expected, rel=0, abs=1e-12)


@pytest.mark.parametrize(("name", "metric"), NUMBERS, ids=[name for name, _ in NUMBERS])
def test_scorers_of_three_classes_survive_splits_without_a_class(name, metric):
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])
    model = GaussianNB().fit(X[::3], names[y[::3]])
    rows = np.flatnonzero(y > 0)
    score = scorer(name)
    try:
        expected = metric.values(model.predict_proba(X[rows]), y[rows])[name]
    except InputError:  # a metric of one positive class
        with pytest.raises(InputError, match=r"positive class|shape"):
            score(model, X[rows], names[y[rows]])
        return
    assert abs(score(model, X[rows], names[y[rows]])) == pytest.approx(abs(expected), rel=0, abs=1e-12)
    fewer = GaussianNB().fit(X[y < 2][::3], names[y[y < 2][::3]])
    assert math.isfinite(score(fewer, X, names[y]))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one)), lambda one: one])
def test_scorers_are_copied_and_pickled(copied, risks):
    X, labels, _, model = risks
    score = copied(scorer("ece", n_bins=10))
    assert score(model, X, labels) == scorer("ece", n_bins=10)(model, X, labels)
    assert scorer("ece", n_bins=2)(model, X, labels) != score(model, X, labels)


def test_two_classes_are_scored_as_a_matrix_on_request(risks):
    X, labels, _, model = risks
    p, y = model.predict_proba(X), (labels == "sick").astype(int)
    assert scorer("brier")(model, X, labels) == pytest.approx(-calibrant.metrics.brier(p[:, 1], y), abs=1e-12)
    both = scorer("brier", task="multiclass")(model, X, labels)
    assert both == pytest.approx(-calibrant.metrics.brier(p, y), abs=1e-12)


@pytest.mark.filterwarnings("error")
def test_scorers_work_in_searches(risks):
    X, labels, _, _ = risks
    model = CalibratedClassifier(LogisticRegression(), method="platt", cv=2)
    scores = {"ece": scorer("ece"), "nll": scorer("nll"), "accuracy": scorer("accuracy"), "auc": "roc_auc"}
    grid = {"estimator__C": [1e-4, 1.0]}
    search = GridSearchCV(model, grid, scoring=scores, refit="nll", cv=2).fit(X, labels)
    for name in scores:
        assert np.isfinite(search.cv_results_[f"mean_test_{name}"]).all()
    assert clone(search).fit(X, labels).best_params_ == {"estimator__C": 1.0}
    theirs = cross_validate(model, X, labels, scoring={"nll": "neg_log_loss", "ours": scorer("nll")}, cv=2)
    np.testing.assert_allclose(theirs["test_ours"], theirs["test_nll"], rtol=1e-9)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("name", "options"), [("accuracy", {}), ("ece", {}), ("net_benefit", {"thresholds": 0.2})])
def test_scorers_tune_thresholds(name, options, risks):
    X, labels, _, _ = risks
    tuned = TunedThresholdClassifierCV(LogisticRegression(), scoring=scorer(name, **options), cv=2, thresholds=20)
    tuned.fit(X, labels)
    assert math.isfinite(tuned.best_score_)
    if name == "accuracy":
        theirs = TunedThresholdClassifierCV(LogisticRegression(), scoring="accuracy", cv=2, thresholds=20)
        assert tuned.best_threshold_ == theirs.fit(X, labels).best_threshold_


def test_requests_route_weights_and_groups_to_the_scorer(risks):
    X, labels, weights, fitted = risks
    ward = np.resize(["a", "b"], len(X))
    with sklearn.config_context(enable_metadata_routing=True), warnings.catch_warnings():
        warnings.simplefilter("error")
        model = CalibratedClassifier(FrozenEstimator(fitted), method="platt+group")
        model.set_fit_request(groups=True, sample_weight=True)
        score = scorer("nll").set_score_request(groups=True, sample_weight=True)
        params = {"groups": ward, "sample_weight": weights}
        found = cross_validate(model, X, labels, cv=2, scoring=score, params=params, return_estimator=True)
        for estimator in found["estimator"]:
            direct = scorer("nll")(estimator, X, labels, groups=ward)
            assert direct == pytest.approx(
                -calibrant.metrics.nll(estimator.predict_proba(X, groups=ward)[:, 1], labels == "sick"), abs=1e-12
            )
    assert np.isfinite(found["test_score"]).all()


@pytest.mark.parametrize("model", [RandomForestClassifier(5, random_state=0), MLPClassifier((3,), max_iter=20)])
def test_several_labels_are_scored_by_their_mean(model):
    X, labels = make_multilabel_classification(80, n_classes=2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, labels)
    p = model.predict_proba(X)
    columns = [one[:, 1] for one in p] if isinstance(p, list) else p.T
    expected = -np.mean([calibrant.metrics.ece(p, y) for p, y in zip(columns, labels.T, strict=True)])
    assert scorer("ece")(model, X, labels) == pytest.approx(expected, abs=1e-12)


def test_an_unknown_task_raises():
    with pytest.raises(InputError, match="task must be"):
        scorer("ece", task="ordinal")


@pytest.mark.parametrize("name", ["reliability", "log_los", "decision_curve", "threshold_metrics"])
def test_names_without_one_value_raise_with_the_names_that_have_one(name):
    with pytest.raises(InputError, match=r"not a metric with one value.*ece"):
        scorer(name)


def test_the_score_function_takes_columns_probabilities_or_predictions(risks):
    X, labels, _, model = risks
    p, y = model.predict_proba(X), labels == "sick"
    score = scorer("ece")
    for given in (p, p[:, 1]):
        assert score._score_func(labels, given) == calibrant.metrics.ece(p[:, 1], y)
    assert scorer("accuracy")._score_func(labels, model.predict(X)) == model.score(X, labels)
