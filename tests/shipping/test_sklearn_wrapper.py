"""CalibratedClassifier as scikit-learn sees it."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import get_scorer, log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

import calibrant
from calibrant.core.errors import InputError
from calibrant.sklearn import CalibratedClassifier, class_logits

pytestmark = pytest.mark.filterwarnings("ignore")


@parametrize_with_checks(
    [
        CalibratedClassifier(cv=2),
        *(CalibratedClassifier(cv=2, method=method) for method in ("platt", "beta", "iso", "svs", "bend")),
        # its scores of weighted and of repeated rows differ by the tolerance
        CalibratedClassifier(LinearSVC(tol=1e-10, max_iter=100_000), ensemble=False, cv=2, method="vs"),
    ]
)
def test_scikit_learns_own_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return train_test_split(X / 16, np.array([f"digit {i}" for i in y]), random_state=0, test_size=0.4)


@pytest.fixture(scope="module")
def tumours():
    X, y = load_breast_cancer(return_X_y=True)
    return train_test_split(X, np.where(y == 1, "benign", "malignant"), random_state=0)


@pytest.mark.parametrize(
    "estimator",
    [LinearSVC(C=0.1), GaussianNB(), RandomForestClassifier(30, random_state=0), KNeighborsClassifier(), SVC()],
    ids=lambda e: type(e).__name__,
)
def test_text_labels_any_scores_and_no_worse_than_scikit_learns_own(estimator, digits):
    X, X_test, y, y_test = digits
    ours = CalibratedClassifier(estimator, cv=3).fit(X, y)
    theirs = CalibratedClassifierCV(estimator, cv=3).fit(X, y)
    probabilities = ours.predict_proba(X_test)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert set(ours.predict(X_test)) <= set(y)
    assert log_loss(y_test, probabilities) < 1.1 * log_loss(y_test, theirs.predict_proba(X_test))


@pytest.mark.parametrize("estimator", [RidgeClassifier(), GaussianNB()], ids=lambda e: type(e).__name__)
def test_binary_scores_become_two_columns(estimator, tumours):
    X, X_test, y, y_test = tumours
    model = CalibratedClassifier(make_pipeline(StandardScaler(), estimator), cv=3).fit(X, y)
    assert model.predict_proba(X_test).shape == (len(X_test), 2)
    assert model.score(X_test, y_test) > 0.9


def test_softmax_of_a_binary_decision_is_the_logistic_function(tumours):
    X, X_test, y, _ = tumours
    fitted = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    model = CalibratedClassifier(FrozenEstimator(fitted), method="none").fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X_test), fitted.predict_proba(X_test), atol=1e-12)


def test_a_frozen_classifier_is_kept_and_calibrated_on_all_rows(digits):
    X, X_test, y, _ = digits
    fitted = LinearSVC().fit(X[:600], y[:600])
    weights = fitted.coef_.copy()
    model = CalibratedClassifier(FrozenEstimator(fitted), method="ts").fit(X[600:], y[600:])
    np.testing.assert_array_equal(fitted.coef_, weights)
    direct = calibrant.TemperatureScaling().fit(
        fitted.decision_function(X[600:]), np.searchsorted(fitted.classes_, y[600:])
    )
    assert model.calibrated_pairs_[0][1].temperature_ == direct.temperature_
    np.testing.assert_array_equal(model.predict(X_test), fitted.predict(X_test))
    few = CalibratedClassifier(FrozenEstimator(fitted)).fit(X[600:660], y[600:660])
    assert len(few.classes_) == 10


def test_without_ensemble_one_calibrator_learns_from_all_held_out_rows(digits):
    X, X_test, y, _ = digits
    model = CalibratedClassifier(LinearSVC(), cv=4, ensemble=False, method="shape").fit(X, y)
    assert len(model.calibrated_pairs_) == 1
    assert model.calibrated_pairs_[0][1].n_rows_ == len(X)
    np.testing.assert_array_equal(model.predict(X_test), LinearSVC().fit(X, y).predict(X_test))


def test_in_a_pipeline_and_a_grid_search(digits):
    X, X_test, y, y_test = digits
    pipeline = make_pipeline(StandardScaler(), CalibratedClassifier(LinearSVC(), cv=2))
    grid = {"calibratedclassifier__method": ["ts", "vs"], "calibratedclassifier__estimator__C": [0.01, 0.1]}
    search = GridSearchCV(pipeline, grid, scoring="neg_log_loss", cv=2).fit(X[:400], y[:400])
    assert search.score(X_test, y_test) > -0.5


def test_weights_reach_classifier_and_calibrator(digits):
    X, _, y, _ = digits
    weights = np.where(y == "digit 3", 5.0, 1.0)
    plain, heavy = (
        CalibratedClassifier(LogisticRegression(), cv=2).fit(X, y, sample_weight=w).predict_proba(X)[:, 3].mean()
        for w in (None, weights)
    )
    assert heavy > plain
    with pytest.warns(UserWarning, match="takes no sample_weight"):
        CalibratedClassifier(KNeighborsClassifier(), cv=2).fit(X, y, sample_weight=weights)


def test_a_calibrator_object_is_cloned_and_the_model_pickles(digits):
    X, X_test, y, _ = digits
    method = calibrant.TemperatureScaling()
    model = CalibratedClassifier(GaussianNB(), method=method, cv=2).fit(X, y)
    assert not hasattr(method, "temperature_")
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict_proba(X_test), model.predict_proba(X_test))
    assert clone(model).get_params()["cv"] == 2


def test_a_class_missing_from_a_fold_gets_a_column():
    fitted = LogisticRegression().fit([[0.0], [1.0], [2.0], [3.0]], [0, 0, 2, 2])
    logits = class_logits(fitted, [[0.0], [3.0]], np.array([0, 1, 2]))
    assert logits.shape == (2, 3)
    assert (logits[:, 1] <= logits.min()).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cv": "prefit"}, "FrozenEstimator"),
        ({"method": "magic"}, "no method is called"),
        ({"cv": 50}, "50-fold"),
        ({"estimator": StandardScaler()}, "neither decision_function nor predict_proba"),
        ({"estimator": SVC(decision_function_shape="ovo")}, "45 scores per row"),
    ],
)
def test_errors_name_the_remedy(options, words, digits):
    X, _, y, _ = digits
    with pytest.raises(InputError, match=words):
        CalibratedClassifier(**{"estimator": GaussianNB(), **options}).fit(X[:300], y[:300])


def test_labels_that_a_frozen_classifier_does_not_know(digits):
    X, _, y, _ = digits
    known = y != "digit 9"
    fitted = GaussianNB().fit(X[known], y[known])
    with pytest.raises(InputError, match=r"digit 9.*does not know"):
        CalibratedClassifier(FrozenEstimator(fitted)).fit(X, y)


class Recorder(LogisticRegression):
    """Remembers what its fits were given."""

    seen: list = []

    def fit(self, X, y, sample_weight=None, flags=None, alpha=None):
        type(self).seen.append((len(X), None if flags is None else np.asarray(flags), alpha))
        return super().fit(X, y, sample_weight=sample_weight)


def test_fit_parameters_reach_the_classifier_fold_by_fold(tumours):
    X, _, y, _ = tumours
    Recorder.seen = []
    flags = np.arange(len(X))
    CalibratedClassifier(Recorder(), method="platt", cv=3).fit(X, y, flags=flags, alpha=7)
    assert len(Recorder.seen) == 3
    for rows, given, alpha in Recorder.seen:
        assert len(given) == rows < len(X)
        assert alpha == 7
        np.testing.assert_array_equal(given, flags[np.isin(flags, given)])


def test_groups_reach_the_splitter(tumours):
    from sklearn.model_selection import GroupKFold

    X, _, y, _ = tumours
    groups = np.arange(len(X)) // 7
    Recorder.seen = []
    flags = groups.copy()
    CalibratedClassifier(Recorder(), method="platt", cv=GroupKFold(3)).fit(X, y, flags=flags, groups=groups)
    for rows, given, _ in Recorder.seen:
        # whole groups are left out
        assert all((groups == group).sum() == (given == group).sum() for group in np.unique(given))
        assert rows < len(X)
    with pytest.raises(ValueError, match="groups"):
        CalibratedClassifier(Recorder(), cv=GroupKFold(3)).fit(X, y)


def test_metadata_routing(tumours):
    import sklearn
    from sklearn.model_selection import GroupKFold

    X, _, y, _ = tumours
    groups = np.arange(len(X)) // 7
    with sklearn.config_context(enable_metadata_routing=True):
        inner = Recorder().set_fit_request(flags=True, sample_weight=True)
        Recorder.seen = []
        model = CalibratedClassifier(inner, method="platt", cv=GroupKFold(3))
        model.fit(X, y, sample_weight=np.ones(len(X)), groups=groups, flags=groups)
        assert len(Recorder.seen) == 3
        assert all(len(given) == rows for rows, given, _ in Recorder.seen)
        with pytest.raises(ValueError, match="alpha"):
            model.fit(X, y, groups=groups, alpha=1)


@pytest.mark.parametrize("place", ["inside", "around"])
def test_weights_reach_whom_the_requests_name(tumours, place):
    import sklearn
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, _, y, _ = tumours
    weights = np.where(y == "malignant", 50.0, 1.0)
    means = {}
    with sklearn.config_context(enable_metadata_routing=True), warnings.catch_warnings():
        warnings.simplefilter("error")
        for asked in (True, False):
            inner = LogisticRegression().set_fit_request(sample_weight=asked)
            scaler = StandardScaler().set_fit_request(sample_weight=False).set_transform_request()
            if place == "inside":
                inner = make_pipeline(scaler, inner)
            model = CalibratedClassifier(inner, method="none", cv=2).set_fit_request(sample_weight=True)
            model = model if place == "inside" else make_pipeline(scaler, model)
            model.fit(X, y, sample_weight=weights)
            plain = clone(model).fit(X, y)
            means[asked] = model.predict_proba(X)[:, 1].mean() - plain.predict_proba(X)[:, 1].mean()
    assert means[True] > 0.02
    assert means[False] == 0


@pytest.mark.parametrize("kind", ["pandas", "polars", "default"])
def test_probabilities_are_arrays_whatever_output_is_set(kind, tumours):
    import pandas

    X, X_test, y, y_test = tumours
    frame = pandas.DataFrame(X_test, index=np.arange(len(X_test)) + 100)
    model = CalibratedClassifier(GaussianNB(), method="platt", cv=2).set_output(transform=kind)
    fitted = clone(model).fit(pandas.DataFrame(X), y)
    assert type(fitted.predict_proba(frame)) is np.ndarray
    assert get_scorer("neg_log_loss")(fitted, frame, y_test) > -1


@pytest.mark.parametrize("name", ["sigmoid", "isotonic", "auto", "beta", "va", "spline"])
def test_methods_by_the_names_of_scikit_learn(name, tumours):
    X, X_test, y, y_test = tumours
    forest = RandomForestClassifier(50, random_state=0)
    model = CalibratedClassifier(forest, method=name, cv=3, ensemble=False).fit(X, y)
    theirs = CalibratedClassifierCV(forest, method="sigmoid", cv=3, ensemble=False).fit(X, y)
    assert model.calibrated_pairs_[0][1].task_ == "binary"
    assert log_loss(y_test, model.predict_proba(X_test)) < 1.15 * log_loss(y_test, theirs.predict_proba(X_test))


@pytest.mark.parametrize("name", ["sigmoid", "isotonic"])
def test_methods_of_scikit_learn_with_many_classes(name, digits):
    X, X_test, y, y_test = digits
    ours = CalibratedClassifier(GaussianNB(), method=name, cv=3).fit(X, y)
    theirs = CalibratedClassifierCV(GaussianNB(), method=name, cv=3).fit(X, y)
    assert log_loss(y_test, ours.predict_proba(X_test)) < 1.1 * log_loss(y_test, theirs.predict_proba(X_test))


@pytest.mark.parametrize("estimator", [GaussianNB(), LogisticRegression(max_iter=300)], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("load", [load_digits, load_wine], ids=["digits", "wine"])
def test_sigmoid_of_several_classes_is_no_worse_than_scikit_learns_on_few_rows(load, estimator):
    X, y = load(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, train_size=100, random_state=0, stratify=y)
    ours = CalibratedClassifier(estimator, method="sigmoid", cv=3).fit(X, y)
    theirs = CalibratedClassifierCV(estimator, method="sigmoid", cv=3).fit(X, y)
    assert log_loss(y_test, ours.predict_proba(X_test)) < log_loss(y_test, theirs.predict_proba(X_test))


def test_sigmoid_of_many_classes_with_two_rows_each_keeps_predictions():
    rng = np.random.default_rng(0)
    centers, classes = rng.normal(size=(200, 16)), np.arange(200)
    X, X_fit, X_test = (centers.repeat(n, axis=0) + rng.normal(size=(200 * n, 16)) for n in (4, 2, 10))
    fitted = FrozenEstimator(GaussianNB(var_smoothing=0.1).fit(X, classes.repeat(4)))
    ours = CalibratedClassifier(fitted, method="sigmoid").fit(X_fit, classes.repeat(2))
    theirs = CalibratedClassifierCV(fitted, method="sigmoid", cv=2).fit(X_fit, classes.repeat(2))
    y_test = classes.repeat(10)
    assert ours.score(X_test, y_test) > fitted.score(X_test, y_test) - 0.01
    assert log_loss(y_test, ours.predict_proba(X_test)) < log_loss(y_test, theirs.predict_proba(X_test))


@pytest.mark.parametrize("method", ["platt", "ts", calibrant.VennAbers()], ids=str)
def test_a_whole_classifier_is_saved(method, tumours, tmp_path):
    from calibrant.sklearn import load_classifier, save_classifier

    X, X_test, y, _ = tumours
    model = CalibratedClassifier(make_pipeline(StandardScaler(), GaussianNB()), method=method, cv=2).fit(X, y)
    again = load_classifier(save_classifier(model, tmp_path / "model.skops"))
    np.testing.assert_array_equal(again.predict_proba(X_test), model.predict_proba(X_test))
    np.testing.assert_array_equal(again.predict(X_test), model.predict(X_test))
    assert again.classes_.tolist() == model.classes_.tolist()
    clone(again).fit(X, y)


def test_an_unknown_type_is_named_before_it_is_loaded(tumours, tmp_path):
    from calibrant.sklearn import load_classifier, save_classifier

    X, X_test, y, _ = tumours
    Recorder.seen = []
    model = CalibratedClassifier(Recorder(), method="platt", cv=2).fit(X, y)
    folder = save_classifier(model, tmp_path / "model")
    with pytest.raises(InputError, match="Recorder") as caught:
        load_classifier(folder)
    assert "\n" not in str(caught.value)
    known = f"{Recorder.__module__}.Recorder"
    again = load_classifier(folder, trusted=[known])
    np.testing.assert_array_equal(again.predict(X_test), model.predict(X_test))


def test_a_file_that_is_no_classifier_is_one_line(tumours, tmp_path):
    from calibrant.sklearn import load_classifier, save_classifier

    X, _, y, _ = tumours
    path = save_classifier(CalibratedClassifier(GaussianNB(), method="ts", cv=2).fit(X, y), tmp_path / "model.skops")
    content = path.read_bytes()
    for bad in (b"", b"nothing", content[: len(content) // 2]):
        path.write_bytes(bad)
        with pytest.raises(InputError, match="is not a classifier") as caught:
            load_classifier(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="absent"):
        load_classifier(tmp_path / "absent")
