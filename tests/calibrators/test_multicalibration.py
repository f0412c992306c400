"""Patches of groups: none where nothing is gained, fewer gaps where groups differ, and a log loss that never rises."""

from __future__ import annotations

import numpy as np
import pytest

import calibrant as cal
from calibrant import metrics
from calibrant.core.errors import FitWarning
from calibrant.shipping.artifact import load, save


def binary(n: int = 3000, seed: int = 0, shift: float = 1.0):
    generator = np.random.default_rng(seed)
    scores = 2 * generator.normal(size=n)
    ward, sex = generator.choice(["a", "b", "c"], n), generator.choice(["f", "m"], n)
    bent = scores + shift * ((ward == "b") & (sex == "f")) - shift * (ward == "c")
    return scores, (generator.random(n) < 1 / (1 + np.exp(-bent))).astype(int), ward, sex


def classes(n: int = 3000, seed: int = 0):
    generator = np.random.default_rng(seed)
    labels, ward = generator.integers(0, 4, n), generator.choice(["a", "b"], n)
    logits = generator.normal(size=(n, 4)) + 2 * np.eye(4)[labels]
    logits[ward == "b"] *= 3
    return logits, labels, ward


def test_groups_that_are_calibrated_are_left_alone():
    left_alone = 0
    for seed in range(12):
        scores, labels, ward, _ = binary(800, seed, shift=0.0)
        fitted = cal.get("ts+multi").fit(scores, labels, groups=ward)
        if not fitted.rounds_:
            left_alone += 1
            inner = cal.get("ts").fit(scores, labels)
            np.testing.assert_allclose(fitted.transform(scores, groups=ward), inner.transform(scores))
    assert left_alone >= 10


def test_intersections_of_two_columns_are_patched():
    fit, new = binary(4000, 0), binary(4000, 1)
    groups, others = {"ward": fit[2], "sex": fit[3]}, {"ward": new[2], "sex": new[3]}
    fitted = cal.get("ts+multi").fit(fit[0], fit[1], groups=groups)
    before = cal.get("ts").fit(*fit[:2]).predict_proba(new[0])[:, 1]
    after = fitted.predict_proba(new[0], groups=others)[:, 1]
    assert metrics.nll(after, new[1]) < metrics.nll(before, new[1]) - 0.02
    worse, better = (metrics.multicalibration_error(p, new[1], others, draws=50).value for p in (before, after))
    assert better < worse / 2
    assert set(fitted.groups_) == {f"{a} & {b}" for a in "abc" for b in "fm"}


def test_the_predicted_class_is_patched_and_kept():
    fit, new = classes(3000, 0), classes(3000, 1)
    fitted = cal.get("ts+multi").fit(*fit[:2], groups=fit[2])
    p, plain = fitted.predict_proba(new[0], groups=new[2]), cal.get("ts").fit(*fit[:2]).predict_proba(new[0])
    assert metrics.nll(p, new[1]) < metrics.nll(plain, new[1]) - 0.005
    assert np.array_equal(p.argmax(axis=1), new[0].argmax(axis=1))
    np.testing.assert_allclose(p.sum(axis=1), 1.0)


def test_an_unseen_group_gets_the_inner_method():
    scores, labels, ward, _ = binary()
    fitted = cal.get("platt+multi").fit(scores, labels, groups=ward)
    assert fitted.rounds_ > 0
    with pytest.warns(FitWarning, match="elsewhere"):
        found = fitted.transform(scores[:2], groups=["elsewhere", "elsewhere"])
    np.testing.assert_allclose(found, cal.get("platt").fit(scores, labels).transform(scores[:2]))


@pytest.mark.parametrize("make", [binary, classes])
def test_an_artifact_holds_the_patches(make, tmp_path):
    logits, labels, ward, *_ = make()
    fitted = cal.get("ts+multi").fit(logits, labels, groups=ward)
    save(fitted, tmp_path / "cal.safetensors")
    found = load(tmp_path / "cal.safetensors").predict_proba(logits, groups=ward)
    np.testing.assert_array_equal(found, fitted.predict_proba(logits, groups=ward))
