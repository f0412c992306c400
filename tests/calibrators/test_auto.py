"""AutoCalibrator: folds, the one-standard-error rule, the reason, and that it is a calibrator like any other."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone

import calibrant
from calibrant import metrics
from calibrant.calibrators.auto import AutoCalibrator, stratified_folds
from calibrant.calibrators.base import Calibrator
from calibrant.core.errors import InputError


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


@pytest.mark.parametrize("n_folds", [2, 5])
def test_folds_are_balanced_within_every_class(rng, n_folds):
    labels = rng.integers(0, 7, 200)
    folds = stratified_folds(labels, n_folds, seed=0)
    for j in range(7):
        counts = np.bincount(folds[labels == j], minlength=n_folds)
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
    confirmed = AutoCalibrator(["ts", biased], cv=stratified_folds(labels, 5, seed=0)).fit(logits, labels).scores_
    assert confirmed["ConfusionScaling"] < confirmed["ts"]


def test_scores_are_out_of_fold():
    logits, labels = blobs(300, 1)
    chooser = AutoCalibrator(["ts"], cv=3, seed=2).fit(logits, labels)
    folds = stratified_folds(logits.argmax(axis=1), 3, seed=2)
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
        ({"criterion": "eec"}, "^criterion 'eec' is no metric"),
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
