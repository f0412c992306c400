"""AutoCalibrator: folds, the one-standard-error rule, the reason, and that it is a calibrator like any other."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone

import calibrant
from calibrant import metrics
from calibrant.calibrators.auto import AutoCalibrator, default_candidates
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.solvers.folds import content_folds
from calibrant.core.errors import InputError
from calibrant.core.rows import Rows


def blobs(n: int, seed: int, scale: float = 3.0):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 4, n)
    return scale * (np.eye(4)[labels] + generator.normal(size=(n, 4))), labels


class Padded(Calibrator):
    """Temperature scaling that claims a thousand parameters."""

    def _fit(self, rows):
        self.inner_ = calibrant.TemperatureScaling().fit(rows.logits, rows.labels)

    def _transform(self, logits):
        return self.inner_.transform(logits)

    @property
    def n_parameters_(self):
        return 1000


class Broken(Calibrator):
    def _fit(self, rows):
        raise RuntimeError("no")


def by_class(classes, n_folds):
    """Folds that are balanced within every class."""
    folds = np.empty(len(classes), dtype=np.intp)
    folds[np.argsort(classes, kind="stable")] = np.arange(len(classes)) % n_folds
    return folds


@pytest.mark.parametrize("n_folds", [2, 5])
def test_folds_are_balanced_within_every_predicted_class(rng, n_folds):
    logits = rng.normal(size=(200, 7))
    folds = content_folds(Rows(logits, rng.integers(0, 7, 200)), n_folds, seed=0)
    for j in range(7):
        counts = np.bincount(folds[logits.argmax(axis=1) == j], minlength=n_folds)
        assert np.ptp(counts) <= 1
    assert np.ptp(np.bincount(folds)) <= 1


def test_it_finds_the_obvious():
    chooser = AutoCalibrator(["none", "ts"]).fit(*blobs(600, 0))
    assert chooser.chosen_ == "ts"
    assert chooser.scores_["ts"] < chooser.scores_["none"]
    assert "ts has the best cross-validated nll" in chooser.reason_
    honest = AutoCalibrator(["none", "ts"]).fit(*blobs(600, 0, scale=1.0))
    assert honest.chosen_ == "none"


def test_the_reason_counts_the_folds_there_were():
    logits, labels = blobs(40, 0)
    assert "over 12 folds" in AutoCalibrator(["none", "ts"], cv=100).fit(logits[:12], labels[:12]).reason_


def test_folds_do_not_confirm_chance_counts_of_the_labels():
    # logits without information, and labels as likely as each other: whatever frequencies are learned are chance
    generator = np.random.default_rng(0)
    logits, labels = generator.normal(size=(300, 30)), generator.integers(0, 30, 300)
    biased = calibrant.ConfusionScaling(np.inf, penalty_scale=np.inf, penalty_bias=1.0)
    scores = AutoCalibrator(["ts", biased]).fit(logits, labels).scores_
    assert scores["ConfusionScaling"] > scores["ts"] + 0.02
    confirmed = AutoCalibrator(["ts", biased], cv=by_class(labels, 5)).fit(logits, labels).scores_
    assert confirmed["ConfusionScaling"] < confirmed["ts"]


def test_scores_are_out_of_fold():
    logits, labels = blobs(300, 1)
    chooser = AutoCalibrator(["ts"], cv=3, seed=2).fit(logits, labels)
    folds = content_folds(Rows(logits, labels), 3, seed=2)
    losses = []
    for fold in range(3):
        fitted = calibrant.TemperatureScaling().fit(logits[folds != fold], labels[folds != fold])
        losses.append(metrics.nll(fitted.transform(logits[folds == fold]), labels[folds == fold], from_logits=True))
    sizes = np.bincount(folds)
    assert chooser.scores_["ts"] == pytest.approx(np.average(losses, weights=sizes))


def test_equal_scores_go_to_fewer_parameters():
    chooser = AutoCalibrator([Padded(), "ts"]).fit(*blobs(300, 0))
    assert chooser.chosen_ == "ts"
    assert chooser.n_parameters_ == 1
    assert "1 parameter) is within one standard error" in chooser.reason_
    assert "Padded" in chooser.reason_
    assert "1000 parameters), and simpler." in chooser.reason_


@pytest.mark.parametrize("criterion", ["ece", "brier", "accuracy", "classwise_ece", metrics.adaptive_ece])
def test_any_metric_can_decide(criterion):
    chooser = AutoCalibrator(["none", "ts"], criterion=criterion).fit(*blobs(400, 0))
    assert set(chooser.scores_) == {"none", "ts"}
    assert all(score >= 0 for score in chooser.scores_.values())
    if criterion == "accuracy":
        assert chooser.chosen_ == "none"  # nothing to gain, so nothing to learn
    elif criterion != "classwise_ece":
        assert chooser.chosen_ == "ts"


def test_keep_predictions():
    chooser = AutoCalibrator(["ts", "vs"], keep_predictions=True).fit(*blobs(300, 0))
    assert list(chooser.scores_) == ["ts"]
    with pytest.raises(InputError, match="keep every prediction"):
        AutoCalibrator(["vs"], keep_predictions=True).fit(*blobs(300, 0))


def test_failures_are_named_not_fatal():
    chooser = AutoCalibrator([Broken(), "ts"]).fit(*blobs(200, 0))
    assert chooser.failures_ == {"Broken": "no"}
    with pytest.raises(InputError, match="Broken: no"):
        AutoCalibrator([Broken()]).fit(*blobs(200, 0))


def test_weights_count(rng):
    logits, labels = blobs(200, 0)
    weights = rng.integers(1, 3, 200).astype(float)
    chooser = AutoCalibrator(["ts"]).fit(logits, labels, sample_weight=weights)
    assert chooser.calibrator_.temperature_ == pytest.approx(
        calibrant.TemperatureScaling().fit(logits, labels, sample_weight=weights).temperature_
    )


def test_it_is_a_calibrator():
    logits, labels = blobs(200, 0)
    chooser = clone(AutoCalibrator(["ts"], seed=3)).fit(logits, labels)
    assert np.array_equal(chooser.transform(logits), chooser.calibrator_.transform(logits))
    again = pickle.loads(pickle.dumps(chooser))
    assert np.array_equal(again.predict_proba(logits), chooser.predict_proba(logits))
    assert chooser.transform(logits.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target_prior": "equal"}, "target_prior must be 'uniform'"),
        ({"target_prior": [0.5, 0.5]}, "one frequency for each of"),
        ({"cv": 1}, "cv must be a whole number of at least 2, or the fold of each row, got 1"),
        ({"criterion": "eec"}, "^criterion 'eec' is not a metric"),
        ({"candidates": "ts"}, "must be a list"),
        ({"candidates": []}, "no candidates"),
        ({"candidates": ["tss"]}, "no method is called 'tss'"),
    ],
)
def test_bad_parameters_are_refused_in_fit(options, words):
    with pytest.raises(InputError, match=words):
        AutoCalibrator(**{"candidates": ["ts"], **options}).fit(*blobs(100, 0))


def test_few_rows_of_many_classes():
    logits, labels = blobs(7, 0)
    assert AutoCalibrator(["none", "ts"], cv=5).fit(logits, labels).chosen_ in ("none", "ts")


def test_given_folds_are_used():
    logits, labels = blobs(100, 0)
    fold = np.repeat([0, 1], 50)
    chooser = AutoCalibrator(["ts"], cv=fold).fit(logits, labels)
    expected = []
    for part in (0, 1):
        fitted = calibrant.TemperatureScaling().fit(logits[fold != part], labels[fold != part])
        expected.append(metrics.nll(fitted.transform(logits[fold == part]), labels[fold == part], from_logits=True))
    assert chooser.scores_["ts"] == pytest.approx(np.mean(expected))


def test_a_target_prior_shifts_what_is_chosen(shared_data):
    data = np.load(shared_data / "zoo" / "c10lt_resnet18_ce.npz")
    logits, labels = data["val_logits"].astype(np.float32), data["val_labels"]
    test, truth = data["test_logits"].astype(np.float32), data["test_labels"]
    chooser = AutoCalibrator(target_prior="uniform").fit(logits, labels)
    calibrated = chooser.transform(test)
    gain = (calibrated.argmax(axis=1) == truth).mean() - (test.argmax(axis=1) == truth).mean()
    assert gain > 0.015
    assert metrics.ece(calibrated, truth, from_logits=True) < 0.018


def test_kept_predictions_are_kept_with_class_parameters_too():
    logits, labels = blobs(400, 0)
    chooser = AutoCalibrator(["conf+keep"], keep_predictions=True).fit(logits, labels)
    assert (chooser.predict(logits) == logits.argmax(axis=1)).all()


def test_saved_and_loaded(tmp_path):
    logits, labels = blobs(200, 0)
    chooser = AutoCalibrator(["none", "ts"]).fit(logits, labels)
    calibrant.save(chooser, tmp_path / "cal.safetensors")
    again = calibrant.load(tmp_path / "cal.safetensors")
    assert np.array_equal(again.transform(logits), chooser.transform(logits))
    assert again.reason_ == chooser.reason_


def biased(n, seed=0):
    """One score with a constant bias: 80% negatives, most of them on the wrong side of zero."""
    generator = np.random.default_rng(seed)
    labels = (generator.random(n) < 0.2).astype(int)
    return generator.normal(size=n) + 2 * labels + 1, labels


def test_a_constant_bias_does_not_defeat_the_default():
    scores, labels = biased(4000)
    fresh, truth = biased(4000, seed=1)
    chooser = AutoCalibrator().fit(np.column_stack([np.zeros(4000), scores]), labels)
    logits = np.column_stack([np.zeros(4000), fresh])
    assert (logits.argmax(axis=1) == truth).mean() < 0.35
    assert (chooser.predict(logits) == truth).mean() > 0.87
    assert "held-out accuracy +5" in chooser.reason_


@pytest.mark.parametrize("seed", range(3))
def test_two_columns_are_the_binary_problem(seed):
    scores, labels = biased(500, seed)
    base = np.random.default_rng(seed).normal(size=500)
    logits = np.column_stack([base, base + scores])
    scores = logits[:, 1] - logits[:, 0]
    one = AutoCalibrator().fit(scores, labels).predict_proba(scores)
    np.testing.assert_allclose(AutoCalibrator().fit(logits, labels).predict_proba(logits), one, atol=1e-9)


def test_keeping_predictions_has_its_price_named():
    scores, labels = biased(2000)
    chooser = AutoCalibrator(keep_predictions=True).fit(scores, labels)
    assert (chooser.predict(scores) == (scores > 0)).all()
    assert "Keeping predictions costs 0." in chooser.reason_
    assert "points of accuracy: bend would reach" in chooser.reason_


def test_a_method_that_loses_accuracy_is_refused():
    class Swapped(Padded):
        """Far better in likelihood, and every tenth prediction is wrong."""

        def _transform(self, logits):
            calibrated = self.inner_.transform(logits)
            swapped = np.abs(logits[:, 0] * 1e3).astype(int) % 10 == 0
            calibrated[swapped] = calibrated[swapped][:, ::-1]
            return calibrated

    logits, labels = blobs(1000, 0, scale=9.0)
    chooser = AutoCalibrator(["none", Swapped()]).fit(logits, labels)
    assert chooser.chosen_ == "none"
    assert "Swapped was refused: it lowers held-out accuracy by" in chooser.reason_


def test_classes_that_are_never_true_are_learned():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 4, 1500)
    logits = 2 * np.eye(6)[labels] + generator.normal(size=(1500, 6)) + np.array([0, 0, 0, 0, 1.5, 1.5])
    chooser = AutoCalibrator().fit(logits[:1000], labels[:1000])
    assert "joint+shape+top" in chooser.chosen_
    calibrated = chooser.predict_proba(logits[1000:])
    assert calibrated[:, 4:].mean() < 0.01
    assert calibrated.min() > 0
    gain = (calibrated.argmax(axis=1) == labels[1000:]).mean() - (logits[1000:].argmax(axis=1) == labels[1000:]).mean()
    assert gain > 0.1


def test_the_default_averages_by_held_out_likelihood():
    logits, labels = blobs(400, 0)
    logits = logits * np.where(np.arange(400) % 3 == 0, 3.0, 1.0)[:, None]
    chooser = AutoCalibrator().fit(logits, labels)
    assert isinstance(chooser.calibrator_, calibrant.LinearPool)
    shares = [float(part.split()[0]) for part in chooser.chosen_.split(" + ")]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1, abs=0.03)
    np.testing.assert_allclose(sorted(chooser.calibrator_.weights_, reverse=True), shares, atol=0.006)
    alone = min(score for name, score in chooser.scores_.items() if name != chooser.chosen_)
    assert chooser.scores_[chooser.chosen_] < alone + 0.01
    assert f"of {len(chooser.scores_) - 1} methods alone" in chooser.reason_
    picked = AutoCalibrator(average=False).fit(logits, labels)
    assert picked.chosen_ in default_candidates(4)
    named = AutoCalibrator(["none", "ts"], average=True).fit(logits, labels)
    assert set(named.scores_) - {"none", "ts"} in ({named.chosen_}, set())


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
def test_the_average_insures_where_every_fit_row_is_right():
    # the likelihood of a temperature has no maximum there: at its limit the first error would cost tens of nats
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 120)
    logits = 6 * np.eye(3)[labels] + generator.normal(size=(120, 3))
    assert (logits.argmax(axis=1) == labels).all()
    wrong = np.array([[3.0, 2.0, 0.0]])
    for calibrator in (AutoCalibrator(), calibrant.TemperatureScaling()):
        assert -np.log(calibrator.fit(logits, labels).predict_proba(wrong)[0, 1]) < 5


def test_the_average_is_scored_on_held_out_rows():
    logits, labels = blobs(300, 5)
    chooser = AutoCalibrator(["ts", "iso"], average=True).fit(logits, labels)
    fold = content_folds(Rows(logits, labels), 5, seed=0)
    weights = dict(zip(["ts", "iso"], chooser.calibrator_.weights_, strict=True))
    own = np.zeros(300)
    for part in range(5):
        out = fold == part
        for name, weight in weights.items():
            fitted = calibrant.get(name).fit(logits[~out], labels[~out])
            own[out] += weight * fitted.predict_proba(logits[out])[np.arange(out.sum()), labels[out]]
    assert chooser.scores_[chooser.chosen_] == pytest.approx(-np.log(own).mean(), abs=1e-6)


def test_the_average_keeps_predictions_and_travels(tmp_path):
    logits, labels = blobs(400, 0)
    chooser = AutoCalibrator(keep_predictions=True).fit(logits, labels)
    assert isinstance(chooser.calibrator_, calibrant.LinearPool)
    assert chooser.calibrator_.keeps_prediction
    assert (chooser.predict(logits) == logits.argmax(axis=1)).all()
    assert "Keeping predictions costs" in chooser.reason_
    calibrant.save(chooser, tmp_path / "cal.safetensors")
    again = calibrant.load(tmp_path / "cal.safetensors")
    assert np.array_equal(again.predict_proba(logits), chooser.predict_proba(logits))


@pytest.mark.parametrize("n_classes", [2, 3, 40, 41, 1000])
def test_default_candidates_exist_for_every_size(n_classes):
    assert all(calibrant.get(name) is not None for name in default_candidates(n_classes))
    assert all(calibrant.get(name).keeps_prediction for name in default_candidates(n_classes, True))
