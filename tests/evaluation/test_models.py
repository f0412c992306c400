"""Several models at once: each is compared as by itself, and ranks are those of a plain count."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import calibrant as cal
from calibrant.evaluation.models import short_names

METHODS = ["none", "ts", "hb"]


def halves(seed: int, scale: float, n_classes: int = 3) -> tuple:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, n_classes, 600)
    logits = scale * (generator.normal(size=(600, n_classes)) + np.eye(n_classes)[labels])
    return (logits[:300], labels[:300]), (logits[300:], labels[300:])


@pytest.fixture(scope="module")
def table() -> cal.evaluation.models.ModelComparison:
    given = {"a": halves(0, 4.0), "b": halves(1, 1.0), "c": halves(2, 6.0, n_classes=5)}
    return cal.compare_models(given, METHODS, resamples=60, pair="none")


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
    found = cal.compare_models(given, {"picky": Picky(), "ts": cal.TemperatureScaling()}, resamples=20, pair="none")
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
    assert [name for name in frame.columns if not name.endswith(("_low", "_high"))] == [
        "a", "b", "c", "mean_rank", "best_or_tied",
    ]  # fmt: skip
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
    lines = repr(cal.compare_models(given, ["none", "ts"], resamples=10, pair="none")).splitlines()
    assert max(map(len, lines[:-1])) <= 80
    assert len(lines) <= 25


def test_a_short_table_has_the_criterion_the_difference_and_the_main_metrics():
    (logits, labels), test = halves(0, 2.0)
    given = {"a": ((logits, labels), test), "b": ((3 * logits, labels), (3 * test[0], test[1]))}
    table = cal.compare_models(given, ["none", "ts"], resamples=10, criterion="over_confidence").short_table()
    assert list(table.columns) == ["over_confidence", "difference", "ece", "nll", "brier", "accuracy"]


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["a_x_1", "b_x_2"], ["a_x_1", "b_x_2"]),
        (["run", "run_2"], ["run", "run_2"]),
        (["net_a_1", "net_a_2"], ["1", "2"]),
    ],
)
def test_only_words_that_begin_all_names_are_left_out(names, short):
    assert short_names(names) == short


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
        ("a.npz", "must be a mapping"),
        ({"a": 3}, "model a: val must be"),
        ([halves(0, 1.0)], "must be a mapping"),
        (["x.npz", "x.npz"], "called the same"),
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
    with pytest.raises(cal.InputError, match="a and b differ in task \\(multiclass and binary"):
        cal.compare_models({"a": halves(0, 1.0), "b": (binary, binary)}, ["none"], resamples=10)


def test_models_of_several_seeds_give_mean_and_spread():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 400)
    seeds = {}
    for seed in range(3):
        logits = 4 * np.eye(3)[labels] + 4 * np.random.default_rng(seed).normal(size=(400, 3))
        seeds[str(seed)] = (logits[:200], labels[:200]), (logits[200:], labels[200:])
    found = cal.compare_models(seeds, ["none", "ts"], resamples=20)
    table = found.table("seeds")
    values = [one.row("ts").metrics["nll"].value for one in found.comparisons.values()]
    cell = table.rows[1].cells["nll"]
    assert cell.best
    assert cell.estimate.value == pytest.approx(np.mean(values))
    assert cell.estimate.spread == pytest.approx(np.std(values, ddof=1))
    assert f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}" in found.to_markdown("seeds")
    assert found.to_frame("seeds").loc["ts", "nll_spread"] == pytest.approx(np.std(values, ddof=1))
    lines = found.to_latex("seeds", columns=["nll", "ece"]).splitlines()
    assert lines[0].endswith("over 3 seeds.")
    assert lines[1:4] == [r"\begin{tabular}{lrr}", r"\toprule", r"method & NLL & ECE \% \\"]
    assert rf"\textbf{{{np.mean(values):.4f} $\pm$ {np.std(values, ddof=1):.4f}}}" in lines[6]


def rows(seed: int = 0, scale: float = 3.0, noise: float = 0.5, n: int = 900, **more) -> cal.Predictions:
    """A model of rows that all seeds share: equal labels, groups and clusters, its own noise."""
    shared, own = np.random.default_rng(9), np.random.default_rng(seed)
    labels, ward, patient = shared.integers(0, 3, n), shared.choice(["a", "b"], n), shared.integers(0, 150, n)
    logits = scale * (np.eye(3)[labels] + shared.normal(size=(n, 3)) + noise * own.normal(size=(n, 3)))
    given = {"groups": {"ward": ward}, "clusters": patient, "class_names": ["x", "y", "z"]} | more
    return cal.Predictions(logits=logits, labels=labels, **given)


def test_models_are_compared_on_the_same_rows():
    models = {"a": rows(0), "b": rows(1, 6.0), "c": rows(2, 3.0, 3.0)}
    found = cal.compare_models(models, ["none", "ts"], resamples=400, by="ward")
    assert found.pairing == "900 rows paired by order"
    beside = found.beside()
    assert beside.best in ("a", "b")
    worse = beside.row("c")
    assert not worse.ties_best
    # the interval is that of the rows' own differences, far narrower than two intervals side by side
    nll = {name: one.row("ts").columns.nll for name, one in found.comparisons.items()}
    change = (nll["c"] - nll[beside.best]).astype(float)
    estimate = worse.difference["nll"]
    assert estimate.value == pytest.approx(change.mean(), abs=1e-6)
    sums = np.bincount(rows().clusters, change - change.mean())
    assert (estimate.high - estimate.low) / 3.92 == pytest.approx(np.sqrt((sums**2).sum()) / 900, rel=0.15)
    # every figure has a difference, and groups have theirs
    assert set(worse.difference) == set(worse.metrics)
    for ward in "ab":
        own = found.group_differences()["c"][f"ward {ward}"]
        assert own.value == pytest.approx(change[rows().groups["ward"] == ward].mean(), abs=1e-6)
        assert own.low > 0
    document = json.loads(found.to_json())
    jsonschema.validate(document, json.loads((files("calibrant") / "schemas" / "models.json").read_text()))
    jsonschema.validate(
        document["compared"]["none"], json.loads((files("calibrant") / "schemas" / "compare.json").read_text())
    )
    assert found.to_frame("groups").loc["ward a", "c_low"] > 0
    for text in (found.to_markdown(), found.to_latex(), repr(found), found._repr_html_()):
        assert f"{estimate.value:.4f} " in text


def test_a_scaled_copy_of_a_model_is_no_other_model():
    one = rows()
    twice = cal.Predictions(logits=2 * one.logits, labels=one.labels, clusters=one.clusters)
    found = cal.compare_models({"a": one.like(groups={}), "b": twice}, ["none", "ts"], resamples=50)
    assert all(row.ties_best for row in found.beside().rows)
    (row,) = (row for row in found.beside().rows if row.difference)
    assert row.difference["nll"].low <= 0 <= row.difference["nll"].high


def as_dict(one: cal.Predictions, order: np.ndarray, **more) -> dict:
    """The rows in another order, with their identifiers."""
    table = {"logits": one.logits[order], "labels": one.labels[order], "ward": one.groups["ward"][order]}
    return table | {"id": order, "patient": one.clusters[order]} | more


def test_identifiers_pair_rows_in_any_order():
    order = np.random.default_rng(0).permutation(900)
    plain = {"a": as_dict(rows(0), np.arange(900)), "b": as_dict(rows(1), np.arange(900))}
    options = {"resamples": 50, "by": "ward", "cluster": "patient"}
    expected = cal.compare_models(plain, ["none", "ts"], **options)
    found = cal.compare_models(plain | {"b": as_dict(rows(1), order)}, ["none", "ts"], **options)
    assert found.pairing == "900 rows paired by id"
    for own, other in zip(found.beside().rows, expected.beside().rows, strict=True):
        assert (own.metrics, own.difference) == (other.metrics, other.difference)
    assert found.group_differences() == expected.group_differences()
    text = as_dict(rows(1), order, id=order.astype(str))
    assert cal.compare_models(plain | {"b": text}, ["none"], resamples=5).pairing == "900 rows paired by id"
    other = as_dict(rows(1), order, id=order + 1)
    with pytest.raises(cal.InputError, match="not the same by id"):
        cal.compare_models(plain | {"b": other}, ["none"], resamples=5)
    twice = as_dict(rows(1), order, id=order // 2)
    with pytest.raises(cal.InputError, match="not the same by id"):
        cal.compare_models({"a": twice, "b": twice}, ["none"], resamples=5)


def test_columns_are_matched_by_name_before_rows_are_paired():
    one = rows(1)
    turned = cal.Predictions(
        logits=one.logits[:, [2, 0, 1]], labels=np.array([1, 2, 0])[one.labels], class_names=["z", "x", "y"],
        groups=one.groups, clusters=one.clusters,
    )  # fmt: skip
    expected, found = (
        cal.compare_models({"a": rows(0), "b": other}, ["none", "vs"], resamples=20) for other in (one, turned)
    )
    for method in ("none", "vs"):
        assert found.estimate(method, "b").value == pytest.approx(expected.estimate(method, "b").value, abs=1e-6)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (rows(1, n=800), "800 rows, a 900, and they are not the same by order"),
        (rows(1).like(_labels=np.roll(rows(1).labels, 1)), 'a and b differ in labels: .*pair="none"'),
        (rows(1, weights=np.arange(900.0) + 1), "a and b differ in weights"),
        (rows(1, groups={"ward": np.repeat(["a", "b"], 450)}), "a and b differ in ward"),
        ((rows(1), rows(2)), "differ in having rows to fit on"),
    ],
)
def test_other_rows_are_refused(other, words):
    with pytest.raises(cal.InputError, match=words):
        cal.compare_models({"a": rows(0), "b": other}, ["none"], resamples=5)


def test_right_and_wrong_answers_need_identifiers_or_a_word():
    generator = np.random.default_rng(0)
    pairs = [
        cal.Predictions(confidence=generator.beta(4, 2, 300), correct=generator.random(300) < 0.6) for _ in range(2)
    ]
    with pytest.raises(cal.InputError, match='give every file a column id, or say pair="order"'):
        cal.compare_models(dict(zip("ab", pairs, strict=True)), ["none"], resamples=5)
    found = cal.compare_models(dict(zip("ab", pairs, strict=True)), ["none", "platt"], pair="order", resamples=5)
    assert found.pairing == "300 rows paired by order"
