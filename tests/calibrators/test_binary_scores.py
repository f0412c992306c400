"""One score per row: every method's answer is that of the matrix [0, z], in shapes that suit a column."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import calibrant as cal
from calibrant.calibrators.base import BinaryCalibrator
from calibrant.calibrators.learned import Learned
from calibrant.calibrators.registry import names
from calibrant.core.errors import InputError
from calibrant.core.rows import Rows
from calibrant.shipping.artifact import from_bytes, to_bytes

pytestmark = pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")


def problem(n=300, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    return 3 * (rng.normal(size=n) + 1.5 * labels - 0.5), labels


class Halved(BinaryCalibrator):
    """z / 2 and a constant: a binary form of its own."""

    learns = {"shift_": Learned(())}

    @property
    def n_parameters_(self):
        return 1

    def _fit_binary(self, rows):
        self.shift_ = float(rows.labels.mean())

    def _map_binary(self, xp, scores, learned):
        return scores / 2 + xp.astype(learned.shift_, scores.dtype)


@pytest.mark.parametrize("name", names("binary"))
def test_one_score_per_row(name):
    scores, labels = problem()
    weights = np.random.default_rng(1).integers(1, 3, len(scores)).astype(float)
    fitted = cal.get(name).fit(scores, labels, sample_weight=weights)
    assert (fitted.task_, fitted.n_features_in_, fitted.classes_.tolist()) == ("binary", 1, [0, 1])
    fresh = problem(200, seed=1)[0]
    for dtype in (np.float64, np.float32):
        given = fresh.astype(dtype)
        calibrated, chances = fitted.transform(given), fitted.predict_proba(given)
        assert calibrated.shape == given.shape
        assert calibrated.dtype == chances.dtype == dtype
        assert chances.shape == (200, 2)
        np.testing.assert_allclose(chances[:, 1], 1 / (1 + np.exp(-calibrated.astype(float))), atol=1e-5)
        assert (fitted.predict(given) == chances.argmax(axis=1)).all()
        np.testing.assert_array_equal(fitted.transform(given[:, None])[:, 0], calibrated)
    if fitted.keeps_prediction and not fitted.maps_one_score():
        assert (fitted.predict(fresh) == (fresh > 0)).all()
    loaded = from_bytes(to_bytes(fitted)).calibrator
    np.testing.assert_array_equal(loaded.predict_proba(fresh), fitted.predict_proba(fresh))
    assert loaded.task_ == "binary"
    assert fitted.n_parameters_ >= 0
    if "binary" in fitted.tasks and not fitted.maps_one_score():
        matrix = cal.get(name).fit(np.stack([0 * scores, scores], axis=1), labels, sample_weight=weights)
        expected = matrix.predict_proba(np.stack([0 * fresh, fresh], axis=1))
        np.testing.assert_allclose(fitted.predict_proba(fresh), expected, atol=1e-12)


def test_a_column_a_frame_and_booleans_mean_the_same():
    scores, labels = problem()
    expected = cal.TemperatureScaling().fit(scores, labels)
    for given in (scores[:, None], pd.DataFrame({"score": scores}), scores.tolist(), pd.Series(scores)):
        fitted = cal.TemperatureScaling().fit(given, labels.astype(bool))
        assert fitted.temperature_ == expected.temperature_
        np.testing.assert_array_equal(fitted.predict_proba(given), expected.predict_proba(scores))
    assert expected.predict([0.0]).tolist() == [0]


def test_bad_scores_are_named():
    scores, labels = problem()
    fitted = cal.get("ts").fit(scores, labels)
    scores[7] = np.nan
    for use in (fitted.transform, fitted.predict_proba, fitted.predict, lambda x: cal.get("ts").fit(x, labels)):
        with pytest.raises(InputError, match=r"scores contains .* in row 7"):
            use(scores)


@pytest.mark.parametrize("certain", [np.inf, -np.inf])
def test_certain_scores_have_a_finite_meaning(certain):
    scores, labels = problem()
    scores[7] = certain
    fitted = cal.get("ts").fit(scores, labels)
    assert np.isfinite(fitted.transform(scores)).all()
    assert fitted.predict(scores)[7] == (certain > 0)


def test_labels_and_widths_are_checked():
    scores, labels = problem()
    with pytest.raises(InputError, match="but outcomes are 0 or 1: scores has 1 feature"):
        cal.get("ts").fit(scores, labels + 1)
    with pytest.raises(InputError, match="X has 2 features, but TemperatureScaling is expecting 1 features"):
        cal.get("ts").fit(scores, labels).transform(np.zeros((3, 2)))
    with pytest.raises(InputError, match="must have 2 dimensions"):
        cal.get("ts").fit(np.stack([scores, -scores], axis=1), labels).transform(scores)


def test_held_out_answers_of_binary_rows():
    scores, labels = problem()
    fold = np.arange(len(scores)) % 3
    for calibrator in (cal.VectorScaling(), Halved()):
        answers = calibrator.fit_held_out(Rows(scores, labels), fold)
        kept = fold != 1
        other = type(calibrator)().fit(scores[kept], labels[kept])
        np.testing.assert_allclose(answers[fold == 1], other.transform(scores[fold == 1]), atol=1e-9)


def test_a_binary_method_takes_two_columns_and_refuses_more():
    scores, labels = problem()
    fitted = Halved().fit(scores, labels)
    matrix = np.stack([1 + 0 * scores, 1 + scores], axis=1)
    two = Halved().fit(matrix, labels)
    np.testing.assert_allclose(two.transform(matrix)[:, 1], fitted.transform(scores))
    assert (two.transform(matrix)[:, 0] == 0).all()
    with pytest.raises(InputError, match="Halved calibrates one score per row or two columns, but the logits have 3"):
        Halved().fit(np.zeros((4, 3)), [0, 1, 2, 0])


def test_a_method_for_matrices_only_says_so():
    class Wide(cal.Identity):
        tasks = ("multiclass",)

    with pytest.raises(InputError, match="Wide calibrates a matrix"):
        Wide().fit(*problem())
