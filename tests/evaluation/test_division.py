"""One set of rows divided into rows to fit on and rows to measure on; what shipping changes in groups."""

from __future__ import annotations

import json
from importlib.resources import files
from types import SimpleNamespace

import jsonschema
import numpy as np
import pytest

import calibrant as cal
from calibrant.evaluation.compare import FOLD, divided
from calibrant.evaluation.groups import group_differences, make_grouping


def rows(task: str = "multiclass", n: int = 300, **more) -> cal.Predictions:
    generator = np.random.default_rng(3)
    groups = {"ward": generator.choice(["a", "b"], n), "patient": generator.integers(0, 60, n)}
    if task == "multiclass":
        labels = generator.integers(0, 3, n)
        logits = 3 * (np.eye(3)[labels] + generator.normal(size=(n, 3)))
        return cal.Predictions(logits=logits, labels=labels, groups=groups, **more)
    shape = (n, 4) if task == "multilabel" else n
    logits = 3 * generator.normal(size=shape)
    labels = (generator.random(shape) < 1 / (1 + np.exp(-logits / 3))).astype(int)
    return cal.Predictions(logits, labels, kind="logits", task=task, groups=groups, **more)


def test_every_row_is_measured_by_a_fit_on_the_other_folds():
    one = rows()
    table = cal.compare(one, methods=["none", "vs"], resamples=20, cv=4, seed=2)
    assert table.division == "cross-fitted in 4 folds, seed 2"
    fold = divided(one, cv=4, seed=2)[0].groups[FOLD]
    assert np.bincount(fold).tolist() == [75] * 4
    for part in range(4):
        own = fold == part
        fitted = cal.get("vs").fit(one.logits[~own], one.labels[~own])
        expected = -np.log(fitted.predict_proba(one.logits[own]))[np.arange(own.sum()), one.labels[own]]
        np.testing.assert_allclose(table.row("vs").columns.nll[own], expected, rtol=1e-4, atol=1e-6)
    # what would be shipped is fitted on all rows, and the rows as they are need no fit
    np.testing.assert_allclose(
        table.row("vs").calibrator.scale_, cal.get("vs").fit(one.logits, one.labels).scale_, rtol=1e-6
    )
    assert table.row("none").metrics["nll"].value == pytest.approx(cal.metrics.nll(one.probabilities, one.labels))


@pytest.mark.parametrize("task", ["multiclass", "binary", "pairs", "multilabel"])
def test_every_task_is_divided(task):
    one = rows(task)
    for options in ({}, {"split": 0.5}):
        table = cal.compare(one, methods=["none", "ts" if task == "multiclass" else "platt"], resamples=10, **options)
        assert not [row.error for row in table.rows if row.error]
        assert table.row(table.best).metrics["nll"].value < table.row("none").metrics["nll"].value


def test_groups_weights_and_shares_go_along():
    one = rows()
    table = cal.compare(one, methods=["none", "ts", "ts+group"], by="ward", resamples=20)
    assert not [row.error for row in table.rows if row.error]
    assert set(table.group_changes) == {"ward a", "ward b"}
    by_array = cal.compare(one.like(groups={}), methods=["none", "ts"], by=one.groups["ward"], resamples=20, split=0.5)
    assert [group.name for group in by_array.row("ts").groups.groups] == ["group a", "group b"]
    counts = np.random.default_rng(0).integers(1, 4, one.n).astype(float)
    copies = cal.compare(rows(weights=counts), methods=["none", "ts"], resamples=20, weights_are="counts")
    assert copies.n_test == counts.sum()
    assert copies.row("ts").error is None
    shares = np.random.default_rng(0).dirichlet(np.ones(3), one.n).round(2)
    shares /= shares.sum(axis=1, keepdims=True)
    shared = cal.Predictions(logits=one.logits, label_shares=shares)
    assert cal.compare(shared, methods=["none", "ts"], resamples=20).row("ts").error is None


@pytest.mark.parametrize("options", [{"cv": 5}, {"split": 0.5}])
def test_clusters_stay_together(options):
    one = rows().like(clusters=rows().groups["patient"])
    val, test, _ = divided(one, **options)
    if "split" in options:
        assert not set(val.clusters) & set(test.clusters)
        assert abs(val.n - 150) < 10
    else:
        folds = [set(test.clusters[test.groups[FOLD] == part]) for part in range(5)]
        assert sum(map(len, folds)) == len(set(one.clusters))
    by_column, by_array = (
        cal.compare(rows(), methods=["ts"], resamples=20, cluster=cluster, **options).row("ts").metrics
        for cluster in ("patient", rows().groups["patient"])
    )
    assert by_column == by_array


def test_a_seed_decides_the_division():
    first, again, other = (divided(rows(), split=0.5, seed=seed)[0].labels for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cv": 5, "split": 0.5}, "give one of them"),
        ({"cv": 1}, "at least 2"),
        ({"split": 0.0}, "cannot be divided"),
        ({"split": 2.0}, "cannot be divided"),
        ({"cv": 400}, "300 rows or clusters cannot be divided"),
    ],
)
def test_wrong_divisions_are_refused(options, words):
    with pytest.raises(cal.InputError, match=words):
        cal.compare(rows(), methods=["none"], **options)


def test_two_sets_are_not_divided():
    with pytest.raises(cal.InputError, match="but there are two"):
        cal.compare(rows(), rows(), ["none"], cv=5)


def test_groups_within_noise_do_not_get_worse():
    generator = np.random.default_rng(1)
    n = 3000
    ward = np.where(np.arange(n) < 2600, "large", generator.choice(list("bcdefghi"), n))
    labels = generator.integers(0, 3, n)
    scale = np.where(ward == "large", 2.0, 1.3)[:, None]  # overconfident, the others little so
    logits = scale * (np.eye(3)[labels] + generator.normal(size=(n, 3)))
    one = cal.Predictions(logits=logits, labels=labels, groups={"ward": ward})
    table = cal.compare(one, methods=["none", "ts"], by="ward", resamples=50)
    assert table.recommended == "ts"
    before, after = (table.row(name).groups.groups for name in ("none", "ts"))
    told = [(old, new) for old, new in zip(before, after, strict=True) if not new.too_few]
    worse = [new.name for old, new in told if new.metrics["nll"].value > old.metrics["nll"].value]
    assert len(worse) >= 2  # by their estimates
    for name in worse:
        change = table.group_changes[name]
        assert change.low < 0 < change.value < change.high
    assert table.advice[-1] == f"0 of {len(told)} groups get worse beyond noise"
    by_ece = cal.compare(one, methods=["none", "ts"], by="ward", resamples=50, criterion="ece")
    assert by_ece.advice[-1] == f"0 of {len(told)} groups get worse by NLL beyond noise"


@pytest.mark.parametrize("clustered", [False, True])
def test_intervals_of_groups_hold_for_all_at_once(clustered):
    generator, missed, n = np.random.default_rng(0), 0, 800
    for _ in range(200):
        clusters = generator.integers(0, 200, n)
        grouping = make_grouping({"ward": generator.integers(0, 8, n)}, n)
        made = SimpleNamespace(loss="nll", grouping=grouping, weights=None, clusters=clusters if clustered else None)
        # two models of equal skill, whose losses of one cluster go together: every difference between them is noise
        models = []
        for _ in range(2):
            loss = generator.exponential(size=n) + clustered * generator.exponential(size=200)[clusters]
            columns = SimpleNamespace(confidence=np.full(n, 0.9), correct=np.ones(n), nll=loss)
            models.append(SimpleNamespace(columns=columns))
        missed += any(one.low > 0 or one.high < 0 for one in group_differences(*models, made).values())
    assert missed <= 18  # of 200 at 5%: the 99.5% quantile


def test_json_of_a_divided_comparison_follows_the_schema():
    table = cal.compare(rows(), methods=["none", "ts"], by="ward", resamples=10)
    schema = json.loads((files("calibrant") / "schemas" / "compare.json").read_text())
    document = json.loads(table.to_json())
    jsonschema.validate(document, schema)
    found = {row["method"]: row["difference"] for row in document["rows"]}
    assert found["ts"] == {}
    assert found["none"]["nll"]["low"] > 0
    assert table.to_frame().loc["none", "difference_low"] == found["none"]["nll"]["low"]
