"""Groups, clusters, weights, folds and warnings of CalibratedClassifier."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import AdaBoostClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, LeaveOneGroupOut, LeaveOneOut, cross_validate
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

import calibrant
from calibrant.core.errors import FitWarning, InputError
from calibrant.sklearn import CalibratedClassifier, class_logits


@pytest.fixture(scope="module")
def wards():
    """Rows of three wards, where the third has three times the odds, and a classifier that does not know the ward."""
    rng = np.random.default_rng(0)
    X, ward = rng.normal(size=(1800, 2)), rng.permutation(np.repeat(["a", "b", "c"], 600))
    y = rng.random(1800) < 1 / (1 + np.exp(-X[:, 0] - 2 * (ward == "c")))
    fitted = LogisticRegression().fit(X[:, :1].repeat(2, axis=1), rng.random(1800) < 1 / (1 + np.exp(-X[:, 0])))
    return X, y, ward, FrozenEstimator(fitted)


@pytest.mark.parametrize("method", ["platt+group", "ts+group", "platt+multi"])
def test_groups_reach_the_calibrator(method, wards):
    X, y, ward, frozen = wards
    model = CalibratedClassifier(frozen, method=method).fit(X, y, groups=ward)
    logits = class_logits(frozen, X, frozen.classes_)
    scores = logits[:, 1] - logits[:, 0]
    direct = calibrant.get(method).fit(scores, y.astype(int), groups=ward)
    found = model.predict_proba(X, groups=ward)
    np.testing.assert_allclose(found, direct.predict_proba(scores, groups=ward), atol=1e-12)
    np.testing.assert_array_equal(model.predict(X, groups=ward), found.argmax(axis=1).astype(bool))
    if method == "platt+group":
        for name in "abc":
            assert found[ward == name, 1].mean() == pytest.approx(y[ward == name].mean(), abs=0.02)


def test_two_columns_of_groups_and_folds(wards):
    X, y, ward, _ = wards
    groups = {"ward": ward, "sex": np.arange(len(X)) % 2}
    model = CalibratedClassifier(method="platt+group", cv=2).fit(X, y, groups=groups)
    assert model.predict_proba(X, groups=groups).shape == (len(X), 2)


@pytest.mark.filterwarnings("error")
def test_a_method_by_group_without_groups_raises(wards):
    X, y, ward, frozen = wards
    with pytest.raises(InputError, match="needs groups"):
        CalibratedClassifier(frozen, method="platt+group").fit(X, y)
    model = CalibratedClassifier(frozen, method="platt+group").fit(X, y, groups=ward)
    for call in (model.predict_proba, model.predict):
        with pytest.raises(InputError, match="needs groups"):
            call(X)


def test_requests_route_groups_to_the_calibrator_in_a_search(wards):
    X, y, ward, frozen = wards
    with sklearn.config_context(enable_metadata_routing=True):
        model = CalibratedClassifier(frozen, method="platt+group").set_fit_request(groups=True)
        model = model.set_predict_proba_request(groups=True)
        search = GridSearchCV(model, {"method": ["platt+group"]}, cv=2, scoring=lambda *_: 0.0)
        fitted = search.fit(X[::3], y[::3], groups=ward[::3]).best_estimator_
    np.testing.assert_array_equal(fitted.calibrated_pairs_[0][1].groups_, ["a", "b", "c"])


def test_rows_of_a_cluster_stay_in_one_fold(wards):
    X, y, _, _ = wards
    clusters = np.arange(len(X)) // 6
    seen = []

    class Recorder(LogisticRegression):
        def fit(self, X, y, marks=None):
            seen.append(marks)
            return super().fit(X, y)

    CalibratedClassifier(Recorder(), method="platt", cv=3).fit(X, y, clusters=clusters, marks=clusters)
    assert len(seen) == 3
    for marks in seen:
        assert (np.unique(marks, return_counts=True)[1] == 6).all()


def test_clusters_reach_the_folds_of_the_calibrator(wards):
    X, y, _, frozen = wards
    clusters = np.arange(len(X)) // 30
    model = CalibratedClassifier(frozen, method="auto").fit(X, y, clusters=clusters)
    logits = class_logits(frozen, X, frozen.classes_)
    direct = calibrant.AutoCalibrator(weights_are="counts").fit(logits[:, 1] - logits[:, 0], y, clusters=clusters)
    np.testing.assert_allclose(
        model.predict_proba(X), direct.predict_proba(logits[:, 1] - logits[:, 0]), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("method", ["auto", "platt", "beta", "bend", "svs"])
def test_weights_of_any_scale_give_the_same_probabilities(method, wards):
    X, y, _, frozen = wards
    weights = np.random.default_rng(1).exponential(size=len(X))
    first, *others = (
        CalibratedClassifier(frozen, method=method).fit(X, y, sample_weight=scale * weights).predict_proba(X)
        for scale in (1.0, 1e-9, 1e7)
    )
    for other in others:
        np.testing.assert_allclose(other, first, rtol=0, atol=1e-9)


def test_boosting_of_calibrated_classifiers():
    X, y = make_classification(300, random_state=0)
    tree = DecisionTreeClassifier(max_depth=2, random_state=0)
    for method in ("auto", "platt", "beta", "iso"):
        base = CalibratedClassifier(tree, method=method, cv=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            boosted = AdaBoostClassifier(base, n_estimators=2, random_state=0).fit(X, y)
        assert boosted.score(X, y) > 0.8


def test_weights_that_balance_the_classes_are_reported(wards):
    X, y, _, frozen = wards
    y = y & (np.arange(len(y)) % 5 == 0)
    balanced = np.where(y, len(y) / 2 / y.sum(), len(y) / 2 / (~y).sum())
    with pytest.warns(FitWarning, match="balances the classes"):
        CalibratedClassifier(frozen, method="platt").fit(X, y, sample_weight=balanced)


@pytest.mark.parametrize(
    "cv", [LeaveOneOut(), KFold(40), 40, list(LeaveOneOut().split(np.zeros(60)))], ids=["loo", "kfold", "int", "list"]
)
@pytest.mark.parametrize("ensemble", [True, False])
def test_folds_too_small_to_calibrate_on_raise(cv, ensemble):
    X, y = make_classification(60, random_state=0)
    with pytest.raises(InputError, match=r"LeaveOneOut|40-fold"):
        CalibratedClassifier(GaussianNB(), method="platt", cv=cv, ensemble=ensemble).fit(X, y)


def test_the_error_for_a_class_of_one_row_suggests_no_impossible_number_of_folds():
    X, y = make_classification(60, random_state=0)
    y[:] = 0
    y[0] = 1
    with pytest.raises(InputError, match="between 2 and the number of rows"):
        CalibratedClassifier(GaussianNB()).fit(X, y)


class ProbabilityScores(LogisticRegression):
    """A classifier with a decision function inside [0, 1]."""

    def decision_function(self, X):
        return 1 / (1 + np.exp(-super().decision_function(X)))


def test_the_decision_function_of_a_base_model_does_not_look_like_probabilities(wards):
    X, y, _, _ = wards
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CalibratedClassifier(ProbabilityScores(), method="platt").fit(X, y).predict_proba(X)


def fit_warnings(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    found = [one for one in caught if issubclass(one.category, FitWarning)]
    assert not any(one.filename.endswith("contextlib.py") for one in found)
    return [str(one.message) for one in found]


def test_each_kind_of_warning_is_issued_once_per_fit_and_once_per_search():
    X, y = make_classification(200, class_sep=4, random_state=0)
    model = CalibratedClassifier(DecisionTreeClassifier(random_state=0), method="platt", cv=5)
    assert len(fit_warnings(lambda: model.fit(X, y))) == 1
    by_group = CalibratedClassifier(GaussianNB(), method="platt+group", cv=5).fit(X, y, groups=np.arange(200) % 3)
    (found,) = fit_warnings(lambda: by_group.predict_proba(X, groups=np.full(200, 3)))
    assert "4 similar warnings" in found
    grid = {"estimator__max_depth": [2, 3, 4, 5], "method": ["platt", "beta"]}
    searched = fit_warnings(lambda: GridSearchCV(model, grid, cv=3).fit(X, y))
    assert 0 < len(searched) <= 6
    assert 0 < len(fit_warnings(lambda: cross_validate(model, X, y, cv=3))) <= 3


@pytest.mark.parametrize("n_classes", [2, 3])
def test_tiny_probabilities_keep_their_order_but_not_their_size(n_classes):
    X, y = make_classification(900, 30, n_informative=4, n_redundant=25, n_classes=n_classes, random_state=0)
    bayes = GaussianNB().fit(X, y)
    logits = class_logits(bayes, X, bayes.classes_)
    stored = bayes.predict_proba(X)
    assert stored.min() < 1e-20
    assert logits[np.isfinite(logits)].min() > -30
    for column in range(n_classes):
        order = np.argsort(stored[:, column], kind="stable")
        assert (np.diff(logits[order, column]) >= 0).all()
    ordinary = (stored > 1e-6).all(axis=1)
    np.testing.assert_array_equal(logits[ordinary], np.log(stored[ordinary]))


def test_group_folds_still_reach_the_splitter(wards):
    X, y, ward, _ = wards
    model = CalibratedClassifier(method="platt", cv=GroupKFold(3)).fit(X, y, groups=ward)
    assert [calibrator.n_rows_ for _, calibrator in model.calibrated_pairs_] == [1800] * 3


@pytest.mark.parametrize("ensemble", [True, False])
def test_repeated_splits_count_each_row_once(wards, ensemble):
    X, y, _, _ = wards
    X, y = X[:200], y[:200]
    once, repeated = KFold(4), list(KFold(4).split(X)) * 3
    for method in ("auto", "platt", "bend", "ts-bayes"):
        fits = [
            CalibratedClassifier(method=method, cv=cv, ensemble=ensemble).fit(X, y, clusters=np.arange(200))
            for cv in (once, repeated)
        ]
        first, second = (fitted.predict_proba(X) for fitted in fits)
        np.testing.assert_allclose(second, first, rtol=0, atol=1e-6)


def test_masks_select_the_rows_of_a_split(wards):
    X, y, _, _ = wards
    splits = list(KFold(3).split(X))
    masks = [(np.isin(np.arange(len(X)), train), np.isin(np.arange(len(X)), test)) for train, test in splits]
    first, second = (CalibratedClassifier(method="platt", cv=cv).fit(X, y).predict_proba(X) for cv in (splits, masks))
    np.testing.assert_array_equal(first, second)


def test_clusters_of_one_class_each_may_be_the_folds(wards):
    X, y, _, _ = wards
    patients = 2 * (np.arange(len(X)) % 5) + y
    model = CalibratedClassifier(method="platt", cv=LeaveOneGroupOut()).fit(X, y, groups=patients)
    assert len(model.calibrated_pairs_) == 10
    assert model.predict_proba(X)[:, 1].mean() == pytest.approx(y.mean(), abs=0.02)


@pytest.mark.parametrize("ensemble", [True, False])
def test_splits_that_hold_out_all_rows_of_a_class_raise(ensemble):
    X, y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) // 20
    with pytest.raises(InputError, match="all rows of a class"):
        CalibratedClassifier(GaussianNB(), cv=KFold(3), ensemble=ensemble).fit(X, y)


@pytest.mark.filterwarnings("ignore:.*probability of 0")
def test_a_class_with_all_rows_in_one_test_part_is_reported():
    X, y = make_classification(300, n_informative=4, n_classes=3, random_state=0)
    half = np.arange(300) % 2 | (y == 2)  # all rows of class 2 are in the same half
    with pytest.warns(FitWarning, match=r"all rows of \[2\]"):
        model = CalibratedClassifier(GaussianNB(), cv=GroupKFold(2)).fit(X, y, groups=half)
    assert np.isfinite(model.predict_proba(X)).all()


def test_fold_classifiers_of_few_rows_share_a_useful_calibrator():
    X, y = make_classification(450, 20, n_informative=5, class_sep=2, random_state=0)
    model = CalibratedClassifier(make_pipeline(StandardScaler(), SVC()), cv=5).fit(X[:50], y[:50])
    plain = clone(model).set_params(method="none").fit(X[:50], y[:50])
    losses = [log_loss(y[50:], one.predict_proba(X[50:])) for one in (model, plain)]
    assert losses[0] < 0.6 * losses[1]


def test_score_takes_groups(wards):
    X, y, ward, frozen = wards
    model = CalibratedClassifier(frozen, method="platt+group").fit(X, y, groups=ward)
    weights = np.arange(len(X))
    expected = np.average(model.predict(X, groups=ward) == y, weights=weights)
    assert model.score(X, y, sample_weight=weights, groups=ward) == pytest.approx(expected)
    with pytest.raises(InputError, match="needs groups"):
        model.score(X, y)
    with sklearn.config_context(enable_metadata_routing=True):
        model = clone(model).set_fit_request(groups=True).set_score_request(groups=True)
        found = cross_validate(model, X, y, cv=2, params={"groups": ward}, error_score="raise")
    assert (found["test_score"] > 0.6).all()
