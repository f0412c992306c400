"""Shift: reading, measuring, and within-subject intervals against the textbook's arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant.calibrators.registry import get
from calibrant.core.errors import InputError
from calibrant.data import Predictions, open_predictions
from calibrant.evaluation.shift import open_shift, shift, within_subject_interval
from calibrant.metrics import ece


def test_interval_ignores_how_hard_a_subject_is(rng):
    table = rng.normal(size=(6, 3))
    harder = table + 10 * rng.normal(size=(6, 1))
    assert within_subject_interval(harder) == pytest.approx(within_subject_interval(table))


def test_interval_is_that_of_a_two_way_anova(rng):
    table = rng.normal(size=(5, 3))
    grand = table.mean()
    total = ((table - grand) ** 2).sum()
    subjects = 3 * ((table.mean(axis=1) - grand) ** 2).sum()
    conditions = 5 * ((table.mean(axis=0) - grand) ** 2).sum()
    mean_square = (total - subjects - conditions) / 8
    sem, half_width = within_subject_interval(table)
    assert sem == pytest.approx(np.sqrt(mean_square / 5))
    assert half_width == pytest.approx(sem * 2.306004, rel=1e-6)  # t with 8 degrees of freedom


def test_two_conditions_give_the_paired_t_test(rng):
    table = rng.normal(size=(8, 2))
    difference = table[:, 0] - table[:, 1]
    assert within_subject_interval(table)[0] == pytest.approx(difference.std(ddof=1) / np.sqrt(8) / np.sqrt(2))


def test_one_subject_has_no_interval():
    assert np.isnan(within_subject_interval(np.ones((1, 3)))[0])


def make_bundle(path, rng, n=60):
    labels = np.repeat(np.arange(3), n // 3)
    arrays = {
        "test_logits": 2 * np.eye(3)[labels] + rng.normal(size=(n, 3)),
        "test_labels": labels,
        "shift_labels": labels[::2],
    }
    for corruption in ("fog", "motion_blur"):
        for severity in (1, 2):
            arrays[f"shift_{corruption}_{severity}"] = (1 + severity) * rng.normal(size=(n // 2, 3))
    np.savez(path, **arrays)
    return arrays


def test_bundle(tmp_path, rng):
    arrays = make_bundle(tmp_path / "zoo.npz", rng)
    shifted = open_shift([tmp_path / "zoo.npz"])
    assert set(shifted) == {("clean", 0), ("fog", 1), ("fog", 2), ("motion_blur", 1), ("motion_blur", 2)}
    assert np.array_equal(shifted["clean", 0].logits, arrays["test_logits"][::2])
    warm = get("ts").fit(arrays["test_logits"], arrays["test_labels"])
    curves = shift({"none": None, "ts": warm}, shifted, metric_options={"n_bins": 10})
    assert curves.severities == (0, 1, 2)
    assert curves.corruptions == ("fog", "motion_blur")
    expected = ece(arrays["shift_fog_2"], arrays["shift_labels"], n_bins=10, from_logits=True)
    assert curves.values[0, 0, 2] == pytest.approx(expected)
    assert curves.mean == pytest.approx(curves.values.mean(axis=1))
    assert np.ptp(curves.values[:, :, 0], axis=1) == pytest.approx(0)
    assert curves.to_dict()["values"][0][0][2] == pytest.approx(expected)


def test_single_files(tmp_path, rng):
    for name in ("fog_1", "fog_2", "clean_0"):
        np.savez(tmp_path / f"{name}.npz", logits=rng.normal(size=(9, 3)), labels=np.arange(9) % 3)
    shifted = open_shift([tmp_path / f"{name}.npz" for name in ("clean_0", "fog_1", "fog_2")])
    curves = shift({"none": None}, shifted, metric="nll")
    assert curves.severities == (0, 1, 2)
    assert np.isfinite(curves.mean).all()
    assert np.isnan(curves.half_width).all()  # one corruption only


def test_messages(tmp_path, rng):
    np.savez(tmp_path / "plain.npz", logits=rng.normal(size=(9, 3)), labels=np.arange(9) % 3)
    with pytest.raises(InputError, match=r"fog_3\.npz"):
        open_shift([tmp_path / "plain.npz"])
    np.savez(tmp_path / "half.npz", shift_fog_1=rng.normal(size=(9, 3)))
    with pytest.raises(InputError, match="no shift_labels"):
        open_shift([tmp_path / "half.npz"])
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 truncated")
    with pytest.raises(InputError, match="broken"):
        open_shift([tmp_path / "broken.npz"])
    predictions = {("fog", 1): Predictions.from_arrays(logits=rng.normal(size=(9, 3)), labels=np.arange(9) % 3)}
    for name in ("eec", "rank_changes"):
        with pytest.raises(InputError, match="no metric"):
            shift({"none": None}, predictions, metric=name)
    with pytest.raises(InputError, match="over_under_confidence is a OverUnderConfidence, not one number"):
        shift({"none": None}, predictions, metric="over_under_confidence")
    with pytest.raises(InputError, match="has 3 classes, but ts was fitted on 4"):
        shift({"ts": get("ts").fit(rng.normal(size=(9, 4)), np.arange(9) % 4)}, predictions)
    with pytest.raises(InputError, match=r"absent\.npz .*there is no such file"):
        open_shift([tmp_path / "absent.npz"])
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(InputError, match="is not a whole npz archive"):
        open_shift([tmp_path / "text.npz"])


def test_calibration_helps_less_as_the_shift_grows(shared_data):
    shifted = open_shift([shared_data / "zoo" / "c100_resnet18_ce.npz"])
    assert len(shifted) == 26
    assert shifted["clean", 0].n == 1000
    val = np.load(shared_data / "zoo" / "c100_resnet18_ce.npz")
    warm = get("ts").fit(val["val_logits"], val["val_labels"])
    curves = shift({"none": None, "ts": warm}, shifted)
    assert (curves.mean[1] < curves.mean[0]).all()
    assert (np.diff(curves.mean, axis=1) > 0).all()


def test_labels_of_one_corruption_precede_those_of_all(tmp_path):
    logits = {f"shift_{name}_3": np.zeros((3, 4)) for name in ("fog", "motion_blur")}
    labels = {"shift_labels": [0, 1, 2], "shift_fog_labels": [3, 2, 1]}
    np.savez(tmp_path / "a.npz", **logits, **labels)
    found = {name: open_predictions(f"{tmp_path}/a.npz#{name}", kind="logits").labels.tolist() for name in logits}
    assert found == {"shift_fog_3": [3, 2, 1], "shift_motion_blur_3": [0, 1, 2]}
