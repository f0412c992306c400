"""`measure --by`, `fit --groups` and `apply --groups`: the command line gives what the library gives."""

from __future__ import annotations

import json

import numpy as np
import pytest

import calibrant as cal
from calibrant.shipping.artifact import load


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    generator = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("groups")
    made = {}
    for name in ("val", "test"):
        labels, ward = generator.integers(0, 3, 900), generator.choice(["a", "b"], 900)
        logits = 2 * generator.normal(size=(900, 3)) + 4 * np.eye(3)[labels]
        logits[ward == "b"] *= 3
        path = folder / f"{name}.npz"
        np.savez(path, logits=logits, labels=labels, ward=ward)
        made[name] = path, logits, labels, ward
    return folder, made


def test_fit_and_apply_by_group(table, run):
    folder, made = table
    path, logits, labels, ward = made["val"]
    code, _, error = run("fit", path, "--method", "ts", "--groups", "ward", "-o", folder / "cal.safetensors", "--json")
    assert code == 0, error
    fitted = load(folder / "cal.safetensors")
    expected = cal.get("ts+group").fit(logits, labels, groups=ward)
    np.testing.assert_allclose(fitted.shares_, expected.shares_)
    path, logits, labels, ward = made["test"]
    code, _, error = run("apply", folder / "cal.safetensors", path, "--groups", "ward", "-o", folder / "out.npz")
    assert code == 0, error
    with np.load(folder / "out.npz") as written:
        np.testing.assert_allclose(written["logits"], expected.transform(logits, groups=ward), rtol=1e-6)


def test_apply_says_which_column_is_missing(table, run):
    folder, made = table
    run("fit", made["val"][0], "--groups", "ward", "-o", folder / "two.safetensors")
    np.savez(folder / "bare.npz", logits=made["test"][1], labels=made["test"][2])
    code, _, error = run("apply", folder / "two.safetensors", folder / "bare.npz", "-o", folder / "out2.npz")
    assert code == 2
    assert "fitted by ward" in error
    code, _, error = run("fit", made["val"][0], "--method", "ts+group", "-o", folder / "x.safetensors")
    assert code == 2
    assert "needs one or two columns of groups" in error


def test_measure_shows_groups_with_interval_and_direction(table, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    path = table[1]["test"][0]
    _, text, _ = run("measure", path, "--by", "ward", "--resamples", "200")
    lines = text.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("group"))
    found = {group.name: group.metrics["gap"] for group in cal.measure(path, by="ward", resamples=200).groups.groups}
    for line in lines[start + 1 : start + 3]:
        gap = found[" ".join(line.split()[:2])]
        mark = "*" * (gap.low > 0 or gap.high < 0)
        assert f"{100 * gap.value:.2f}{mark} [{100 * gap.low:.2f}, {100 * gap.high:.2f}]" in line
    assert "above 0 overconfident" in lines[start + 3]
    assert max(map(len, lines[1:])) <= 80


def test_measure_by_group(table, run):
    _, made = table
    path, logits, labels, ward = made["test"]
    code, text, error = run("measure", path, "--by", "ward", "--json", "--resamples", "200")
    assert code == 0, error
    found = json.loads(text)
    assert [group["by"] for group in found["groups"]] == [{"ward": "a"}, {"ward": "b"}]
    assert found["groups"][1]["n"] == int((ward == "b").sum())
    expected = cal.metrics.ece(logits[ward == "b"], labels[ward == "b"], from_logits=True)
    assert found["groups"][1]["metrics"]["ece"]["value"] == pytest.approx(expected)
    assert "worst served: ward b" in found["groups_verdict"]
