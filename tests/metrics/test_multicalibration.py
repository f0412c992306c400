"""`multicalibration_error` against its definition, its p-value under truth, and groups that overlap or cannot vary."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant.core.errors import InputError
from calibrant.metrics import multicalibration, multicalibration_error


def literal(p, y, w):
    order = np.argsort(p, kind="stable")
    path, total = [0.0], 0.0
    for value in np.unique(p[order]):
        total += (w * (y - p))[p == value].sum()
        path.append(total)
    return (max(path) - min(path)) / np.sqrt((w**2 * p * (1 - p)).sum())


def problem(n, seed, digits=2):
    generator = np.random.default_rng(seed)
    p = generator.beta(2, 3, n).round(digits)
    return p, (generator.random(n) < p).astype(int), generator


@pytest.mark.parametrize("weighted", [False, True])
def test_values_are_the_definition_in_every_group(weighted):
    p, y, generator = problem(400, 0)
    ward, sex = generator.choice(list("abc"), 400), generator.choice(["f", "m"], 400)
    w = generator.integers(1, 4, 400).astype(float) if weighted else np.ones(400)
    found = multicalibration_error(p, y, {"ward": ward, "sex": sex}, sample_weight=w if weighted else None, draws=50)
    assert len(found.by_group) == 3 + 2 + 6
    for name, value in found.by_group.items():
        rows = np.ones(400, dtype=bool)
        for part in name.split(" & "):
            column, level = part.split(" ")
            rows &= (ward if column == "ward" else sex) == level
        assert value == pytest.approx(literal(p[rows], y[rows], w[rows])), name
    assert found.value == max(found.by_group.values()) == float(found)
    rows = np.array([f"ward {a}" == found.worst or f"sex {b}" == found.worst or f"ward {a} & sex {b}" == found.worst
                     for a, b in zip(ward, sex, strict=True)])  # fmt: skip
    spread = np.sqrt((w**2 * p * (1 - p))[rows].sum())
    assert found.points == pytest.approx(found.value * spread / w[rows].sum())


def test_p_values_are_uniform_under_truth():
    values = []
    for seed in range(200):
        p, y, generator = problem(300, seed)
        values.append(multicalibration_error(p, y, generator.integers(0, 4, 300), draws=99, seed=seed).p_value)
    assert np.mean(np.array(values) <= 0.05) == pytest.approx(0.05, abs=0.04)
    assert np.mean(values) == pytest.approx(0.5, abs=0.06)


def test_the_normal_limit_agrees_with_the_simulation(monkeypatch):
    p, y, generator = problem(4000, 5, digits=12)
    y = np.where(generator.random(4000) < 0.03, 1, y)
    group = generator.integers(0, 3, 4000)
    exact = multicalibration_error(p, y, group, draws=2000)
    monkeypatch.setattr(multicalibration, "ROW_DRAWS", 0)
    limit = multicalibration_error(p, y, group, draws=2000)
    assert limit.value == exact.value
    assert limit.p_value == pytest.approx(exact.p_value, abs=0.04)


def test_masks_may_overlap_and_groups_that_cannot_vary_are_named():
    p, y, _ = problem(300, 1)
    found = multicalibration_error(p, y, [p < 0.5, p > 0.2], draws=50)
    assert set(found.by_group) == {"mask 0", "mask 1"}
    sure = np.concatenate([p, [1.0, 0.0, 1.0]]), np.concatenate([y, [1, 0, 1]])
    found = multicalibration_error(*sure, ["a"] * 300 + ["sure"] * 3, draws=50)
    assert found.left_out == ("sure",)
    assert list(found.by_group) == ["a"]
    with pytest.raises(InputError, match="nothing to test"):
        multicalibration_error([1.0, 0.0], [1, 0], ["a", "b"])
    with pytest.raises(InputError, match=r"3.*2 rows"):
        multicalibration_error([0.5, 0.5], [1, 0], ["a", "b", "c"])


def test_a_hidden_group_is_found():
    p, y, generator = problem(3000, 2, digits=6)
    group = generator.choice(["small", "large"], 3000, p=[0.1, 0.9])
    y = np.where((group == "small") & (generator.random(3000) < 0.3), 1, y)
    found = multicalibration_error(p, y, group)
    assert found.worst == "small"
    assert found.p_value == pytest.approx(1 / 1001)


def test_the_predicted_class_of_a_matrix():
    generator = np.random.default_rng(0)
    p = generator.dirichlet(np.ones(4), 200)
    labels, group = generator.integers(0, 4, 200), generator.integers(0, 2, 200)
    left = multicalibration_error(p, labels, group, draws=50)
    right = multicalibration_error(p.max(axis=1), (p.argmax(axis=1) == labels).astype(int), group, draws=50)
    assert left == right


def test_p_values_of_the_normal_limit_are_uniform_under_truth(monkeypatch):
    monkeypatch.setattr(multicalibration, "ROW_DRAWS", 0)
    values = []
    for seed in range(100):
        p, y, generator = problem(1500, seed, digits=12)
        values.append(multicalibration_error(p, y, generator.integers(0, 4, 1500), draws=99, seed=seed).p_value)
    # standard errors: 0.029 of the mean, 0.022 of the share
    assert np.mean(values) == pytest.approx(0.5, abs=0.09)
    assert np.mean(np.array(values) <= 0.05) <= 0.12
