"""Several models at once: each is compared as by itself, and ranks are those of a plain count."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import calibrant as cal
from calibrant.evaluation import rendering

METHODS = ["none", "ts", "hb"]


def halves(seed: int, scale: float, n_classes: int = 3) -> tuple:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, n_classes, 600)
    logits = scale * (generator.normal(size=(600, n_classes)) + np.eye(n_classes)[labels])
    return (logits[:300], labels[:300]), (logits[300:], labels[300:])


@pytest.fixture(scope="module")
def table() -> cal.evaluation.models.ModelComparison:
    given = {"a": halves(0, 4.0), "b": halves(1, 1.0), "c": halves(2, 6.0, n_classes=5)}
    return cal.compare_models(given, METHODS, resamples=60)


def test_each_model_is_the_comparison_by_itself(table):
    alone = cal.compare(*halves(1, 1.0), METHODS, resamples=60)
    for row in alone.rows:
        assert table.comparisons["b"].row(row.method).metrics == row.metrics
    assert table.models == ("a", "b", "c")
    assert table.methods == tuple(METHODS)


def test_ranks_and_wins_are_counts(table):
    for column, model in enumerate(table.models):
        values = {method: table.estimate(method, model).value for method in METHODS}
        for place, method in enumerate(METHODS):
            assert table.ranks()[place, column] == 1 + sum(other < values[method] for other in values.values())
    assert table.best == min(METHODS, key=lambda name: table.mean_ranks()[name])
    for method in METHODS:
        wins = sum(method == one.best or one.row(method).ties_best for one in table.comparisons.values())
        assert table.wins()[method] == wins


def test_a_method_that_fails_on_one_model_comes_last_there():
    class Picky(cal.Identity):
        def fit(self, logits, y, sample_weight=None):
            if np.shape(logits)[1] == 5:
                raise ValueError("not for five classes")
            return super().fit(logits, y, sample_weight)

    given = {"a": halves(0, 4.0), "c": halves(2, 6.0, n_classes=5)}
    found = cal.compare_models(given, {"picky": Picky(), "ts": cal.TemperatureScaling()}, resamples=20)
    assert found.ranks().tolist()[0][1] == 2
    assert found.estimate("picky", "c") is None
    assert "failed" in found.to_markdown()
    json.loads(found.to_json())


def test_json_follows_the_schemas(table):
    schemas = files("calibrant") / "schemas"
    document = json.loads(table.to_json())
    jsonschema.validate(document, json.loads((schemas / "models.json").read_text()))
    for one in document["models"].values():
        jsonschema.validate(one, json.loads((schemas / "compare.json").read_text()))


def test_tables_show_the_same_figures(table):
    frame = table.to_frame()
    assert list(frame.columns) == ["a", "b", "c", "mean_rank", "best_or_tied"]
    assert frame.loc["ts", "a"] == table.estimate("ts", "a").value
    texts = table.to_markdown(), table.to_latex(), repr(table), table._repr_html_()
    for method in METHODS:
        for model in table.models:
            value = f"{table.estimate(method, model).value:.4f}"
            assert all(value in text for text in texts)
    assert texts[-1].count("<svg") == len(table.models)
    assert len(repr(table).splitlines()) <= 25
    assert max(map(len, repr(table).splitlines()[1:-1])) <= 80


def test_many_models_stay_within_the_screen():
    given = {f"a model with a long name {k}": halves(k, 2.0) for k in range(9)}
    lines = repr(cal.compare_models(given, ["none", "ts"], resamples=10)).splitlines()
    assert max(map(len, lines[:-1])) <= 80
    assert len(lines) <= 25


def test_files_with_both_parts(tmp_path: Path):
    (val, labels), (test, test_labels) = halves(0, 4.0)
    path = tmp_path / "net.npz"
    np.savez(path, val_logits=val, val_labels=labels, test_logits=test, test_labels=test_labels)
    found = cal.compare_models([path], ["ts"], resamples=10)
    assert found.models == ("net",)
    alone = cal.compare_models({"net": {"val": (val, labels), "test": (test, test_labels)}}, ["ts"], resamples=10)
    assert found.estimate("ts", "net") == alone.estimate("ts", "net")


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ({}, "models is empty"),
        ("a.npz", "got one path"),
        ({"a": 3}, "model a must be a pair"),
        ([halves(0, 1.0)], "give a mapping"),
        (["x.npz", "x.npz"], "given twice"),
        ({"a": ((np.zeros((3, 2)), [0, 1]), (np.zeros((2, 2)), [0, 1]))}, "model a: .*3"),
    ],
)
def test_wrong_models_are_one_line(models, words):
    with pytest.raises(cal.InputError, match=words) as caught:
        cal.compare_models(models, ["ts"], resamples=10)
    assert "\n" not in str(caught.value)


def test_tasks_must_agree():
    score = np.random.default_rng(0).normal(size=60)
    binary = cal.Predictions(score, (score > 0).astype(int), kind="logits", task="binary")
    with pytest.raises(cal.InputError, match="a is a multiclass task, but b is binary"):
        cal.compare_models({"a": halves(0, 1.0), "b": (binary, binary)}, ["none"], resamples=10)


def test_models_of_several_seeds_give_mean_and_spread():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 400)
    seeds = {}
    for seed in range(3):
        logits = 4 * np.eye(3)[labels] + 4 * np.random.default_rng(seed).normal(size=(400, 3))
        seeds[str(seed)] = (logits[:200], labels[:200]), (logits[200:], labels[200:])
    found = cal.compare_models(seeds, ["none", "ts"], resamples=20)
    table = found.over_seeds()
    values = [one.row("ts").metrics["nll"].value for one in found.comparisons.values()]
    cell = table.rows[1].cells["nll"]
    assert cell.best
    assert cell.estimate.value == pytest.approx(np.mean(values))
    assert cell.estimate.spread == pytest.approx(np.std(values, ddof=1))
    assert f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}" in rendering.markdown(table)
    assert table.to_frame().loc["ts", "nll_spread"] == pytest.approx(np.std(values, ddof=1))
