"""Comparison: figures are the metrics', pairs are paired, a failing method is a row, tables mark what they should."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files

import jsonschema
import numpy as np
import pytest

import calibrant
from calibrant import metrics
from calibrant.calibrators.base import Calibrator
from calibrant.core.errors import InputError
from calibrant.data import Predictions
from calibrant.evaluation.compare import compare
from calibrant.report.answers import answers

SCHEMA = json.loads((files("calibrant") / "schemas" / "compare.json").read_text())


def blobs(n: int, seed: int, scale: float = 3.0) -> Predictions:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 4, n)
    logits = scale * (np.eye(4)[labels] + generator.normal(size=(n, 4)))
    return Predictions.from_arrays(logits=logits, labels=labels)


class Broken(Calibrator):
    def _fit(self, rows):
        raise RuntimeError("it\nbroke")


class Swapped(Calibrator):
    """Exchanges two classes: every prediction of them changes."""

    n_parameters_ = 0

    def _fit(self, rows):
        """Nothing to learn."""

    def _transform(self, logits):
        return logits[:, [1, 0, 2, 3]]


@pytest.fixture(scope="module")
def halves():
    return blobs(500, 0), blobs(800, 1)


@pytest.fixture(scope="module")
def table():
    methods = {"none": calibrant.get("none"), "broken": Broken(), "ts": calibrant.get("ts"), "swap": Swapped()}
    return compare(blobs(500, 0), blobs(800, 1), methods, resamples=300, seed=1)


def test_values_are_those_of_the_metrics(table):
    test = blobs(800, 1)
    for name in ("none", "ts"):
        row = table.row(name)
        p = row.calibrator.predict_proba(test.logits)
        for metric in ("ece", "adaptive_ece", "nll", "brier", "accuracy"):
            expected = getattr(metrics, metric)(p, test.labels)
            assert row.metrics[metric].value == pytest.approx(expected, rel=1e-6), metric
        assert row.metrics["classwise_ece"].value == pytest.approx(metrics.sce(p, test.labels), rel=1e-5)
        split = metrics.over_under_confidence(p, test.labels)
        assert row.metrics["over_confidence"].value == pytest.approx(split.over)
        assert row.metrics["under_confidence"].value == pytest.approx(split.under)
        for estimate in row.metrics.values():
            assert estimate.low <= estimate.value <= estimate.high


def test_a_failing_method_is_a_row(table):
    row = table.row("broken")
    assert row.error == "it broke"
    assert row.metrics == {}
    assert table.best == "ts"
    assert table.second == "none"


def test_changes_are_counted(table):
    test = blobs(800, 1)
    moved = np.isin(test.logits.argmax(axis=1), [0, 1]).mean()
    assert table.row("swap").changed_predictions == pytest.approx(moved)
    assert table.row("none").changed_predictions == table.row("none").changed_rankings == 0
    before, after = test.probabilities, table.row("ts").calibrator.predict_proba(test.logits)
    assert table.row("ts").changed_rankings == pytest.approx(metrics.rank_changes(before, after))


def test_chances_and_ties(table):
    assert table.row("ts").p_beats_best == 0.5
    assert table.row("ts").ties_best
    assert table.row("swap").p_beats_best == 0
    assert not table.row("swap").ties_best
    # accuracy cannot tell none from ts
    assert {"accuracy"} <= set(table.row("none").ties) & set(table.row("ts").ties)


def test_twins_tie_exactly():
    methods = {"a": calibrant.get("ts"), "b": calibrant.get("ts")}
    table = compare(blobs(300, 0), blobs(300, 1), methods, resamples=100)
    assert table.row("b").p_beats_best == 0.5
    assert table.row("b").ties_best


def test_noise_floor_and_classes(table):
    row = table.row("ts")
    assert table.noise_floor == table.row("none").noise_floor
    assert table.noise_floor.p_value < 0.01 < row.noise_floor.p_value
    assert row.classes.over + row.classes.under == pytest.approx(row.classes.ece)
    assert row.classes.ece.mean() == pytest.approx(row.metrics["classwise_ece"].value)
    assert row.classes.count.sum() == row.classes.predicted.sum() == 800
    assert (row.columns.correct == (row.columns.prediction == table.labels)).all()


def test_json_validates(table):
    document = json.loads(table.to_json())
    jsonschema.validate(document, SCHEMA)
    assert document["best"] == "ts"
    assert document["rows"][1] == {**document["rows"][1], "method": "broken", "error": "it broke", "metrics": {}}


def test_tables(table):
    frame = table.to_frame()
    assert frame.loc["ts", "nll"] == table.row("ts").metrics["nll"].value
    assert np.isnan(frame.loc["broken", "nll"])
    text = table.to_markdown()
    assert "failed: it broke" in text
    assert f"**{table.row('ts').metrics['nll'].value:.4f}**" in text
    assert f"<u>{table.row('none').metrics['nll'].value:.4f}</u>" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    latex = table.to_latex()
    assert f"\\textbf{{{table.row('ts').metrics['nll'].value:.4f}}}" in latex
    assert latex.count(r"\\") == len(table.rows) + 1
    assert "%" not in latex.replace(r"\%", "").split("\n", 1)[1]


def test_same_seed_same_table():
    one, two = (compare(blobs(200, 0), blobs(200, 1), "none,ts", resamples=50, seed=4) for _ in range(2))
    strip = [{**row.to_dict(), "fit_seconds": 0} for row in one.rows]
    assert strip == [{**row.to_dict(), "fit_seconds": 0} for row in two.rows]


def test_weight_two_is_the_row_twice():
    val, test = blobs(300, 0), blobs(200, 1)
    weights = np.where(np.arange(200) < 50, 2.0, 1.0)
    weighted = Predictions.from_arrays(logits=test.logits, labels=test.labels, weights=weights)
    index = np.concatenate([np.arange(200), np.arange(50)])
    one = compare(val, weighted, ["ts"], resamples=20).rows[0].metrics
    two = compare(val, test[index], ["ts"], resamples=20).rows[0].metrics
    assert {name: e.value for name, e in one.items()} == pytest.approx({name: e.value for name, e in two.items()})


def test_every_method_failing_leaves_a_table():
    table = compare(blobs(50, 0), blobs(50, 1), [Broken(), Broken()], resamples=20)
    assert [row.method for row in table.rows] == ["Broken", "Broken 2"]
    assert table.best is None
    jsonschema.validate(json.loads(table.to_json()), SCHEMA)
    assert "failed" in table.to_markdown()


def test_bad_requests():
    val = blobs(50, 0)
    with pytest.raises(InputError, match="no method is called 'tss'"):
        compare(val, val, "ts,tss")
    with pytest.raises(InputError, match="val has 4 classes, but test has 3"):
        compare(val, (np.zeros((5, 3)), np.zeros(5, dtype=int)), "ts")
    with pytest.raises(InputError, match="no metric 'eec'"):
        compare(val, val, "ts", criterion="eec")
    with pytest.raises(InputError, match="methods is empty"):
        compare(val, val, [])
    with pytest.raises(InputError, match="float"):
        compare(1.5, val)


def test_real_networks_are_overconfident_until_calibrated():
    table = compare("cifar100-resnet18#val", "cifar100-resnet18#test", ["none", "ts"], resamples=200)
    assert table.best == "ts"
    assert table.row("none").metrics["ece"].value == pytest.approx(0.095, abs=0.002)
    assert table.row("ts").metrics["ece"].high < table.row("none").metrics["ece"].low
    assert "9.48% → " in table.verdict


def test_the_callers_calibrator_is_not_fitted(halves):
    val, test = halves
    mine = calibrant.TemperatureScaling()
    table = compare(val, test, {"mine": mine}, resamples=50)
    assert not hasattr(mine, "temperature_")
    assert table.row("mine").calibrator.temperature_ > 0


def test_a_file_read_chunk_by_chunk_gives_the_figures_of_the_arrays(halves, tmp_path, monkeypatch):
    """Both sets are cut into many chunks, and the fit rows count as too large for memory."""
    from calibrant.data import chunks
    from calibrant.data.write import write_predictions

    paths = [str(tmp_path / name) for name in ("val.parquet", "test.parquet")]
    for path, part in zip(paths, halves, strict=True):
        write_predictions(part, path)
    whole = compare(*halves, ["none", "ts", "vs"], resamples=100)
    monkeypatch.setattr("calibrant.evaluation.compare.SPILL_BYTES", 0)
    cut = chunks.cut
    monkeypatch.setattr(chunks, "cut", lambda given, *floor: cut(given, *floor, elements=2_000))
    streamed = compare(*paths, ["none", "ts", "vs"], resamples=100)
    for row in whole.rows:
        other = streamed.row(row.method)
        for name, estimate in row.metrics.items():
            assert other.metrics[name].value == pytest.approx(estimate.value, abs=1e-6), name
            assert other.metrics[name].low == pytest.approx(estimate.low, abs=1e-4), name
    assert streamed.best == whole.best


def test_an_earlier_name_finds_the_same_figure(halves):
    row = compare(*halves, ["none"], resamples=50, criterion="classwise_ece").rows[0]
    assert row.metrics["classwise_ece"] is row.metrics["sce"]
    assert row.to_dict()["metrics"]["classwise_ece"] == row.to_dict()["metrics"]["sce"]


def test_a_function_of_the_user_is_a_metric():
    def doubt(probabilities, labels, sample_weight=None):
        return float(np.average(1 - probabilities[np.arange(len(labels)), labels], weights=sample_weight))

    val, test = blobs(300, 0), blobs(300, 1)
    table = compare(val, test, ["none", "ts", "vs"], metrics={"doubt": doubt}, criterion="doubt", resamples=200)
    assert table.criterion == "doubt"
    best = min(table.rows, key=lambda row: row.metrics["doubt"].value)
    assert table.best == best.method
    assert {"ece", "nll", "doubt"} <= set(best.metrics)
    figure = table.row("none").metrics["doubt"]
    assert figure.low < figure.value < figure.high
    assert figure.value == pytest.approx(doubt(test.probabilities, test.labels), abs=1e-9)
    assert 0 <= table.row("none").p_beats_best <= 1
    assert "doubt" in table.to_latex(columns=["doubt", "nll"])
    with pytest.raises(InputError, match="there is a metric 'nll'"):
        compare(val, test, ["ts"], metrics={"nll": doubt})
    only = compare(val, test, ["none", "ts"], metrics=["mce", "brier"], criterion="mmce", resamples=20)
    assert set(only.rows[0].metrics) == {"mce", "brier", "mmce"}


def grouped_rows(task: str, seed: int, n: int = 600, scale: float = 3.0) -> Predictions:
    generator = np.random.default_rng(seed)
    ward = np.resize(["a", "b"], n)
    if task == "multiclass":
        labels = generator.integers(0, 3, n)
        logits = scale * (np.eye(3)[labels] + generator.normal(size=(n, 3)))
        return Predictions.from_arrays(logits=logits, labels=labels, groups={"ward": ward})
    shape = (n, 2) if task == "multilabel" else n
    logits = generator.normal(size=shape)
    labels = generator.random(shape) < 1 / (1 + np.exp(-logits / scale))
    return Predictions(logits=logits, labels=labels, task=task, groups={"ward": ward})


@pytest.mark.parametrize(
    ("task", "grouped"),
    [("multiclass", "ts+group shape+group"), ("binary", "ts+group bend+group"), ("pairs", "ts+group bend+group")],
)
def test_eight_methods_by_default(task, grouped):
    val, test = (grouped_rows(task, seed) for seed in (0, 1))
    few, by_group = (compare(val, test, resamples=20, by=by) for by in (None, "ward"))
    for found in (few, by_group):
        assert len(found.rows) == 8
        assert {"none", "ts", "auto"} <= set(found.by_method)
        assert not [row.error for row in found.rows if row.error]
    assert set(grouped.split()) == set(by_group.by_method) - set(few.by_method)
    # groups that only the test rows have cannot be calibrated by
    alone = compare((val.logits, val.labels), test, resamples=20, by="ward", task=task, kind="logits")
    assert list(alone.by_method) == list(few.by_method)


def test_the_default_is_a_part_of_all():
    from calibrant.calibrators.prepare import default_names, task_names
    from calibrant.evaluation.compare import resolve_methods

    for task in ("multiclass", "binary", "pairs", "multilabel"):
        every = resolve_methods("all", task, 3, grouped=True)
        assert set(task_names(task)) | set(default_names(task, grouped=True)) == set(every)


def test_the_recommendation():
    val, test = (grouped_rows("multiclass", seed) for seed in (0, 1))
    table = compare(val, test, ["none", "ts", "vs", "auto"], resamples=100, by="ward")
    assert table.row("auto").ties_best
    assert not table.row("none").ties_best
    assert (table.recommended, table.to_dict()["recommended"]) == ("auto", "auto")
    assert table.advice[0].startswith("ship auto: ")
    assert f"{100 * table.row('auto').changed_predictions:.2f}% of the decisions" in table.advice[1]
    assert table.advice[2] == "0 of 2 groups get worse beyond noise"
    assert table.advice[0] in repr(table)
    table = replace(table, best="ts")  # which ties
    assert table.advice[0] == "ship auto: the default, within noise of the best (ts)"
    _, choice, sure = answers(table)
    assert choice.short.endswith("`auto`")
    assert f"test rows `{table.best}`'s NLL is lower" in sure.detail
    assert "`auto`" in sure.detail.split("Within noise of it")[1]
    assert f"`{table.best}`" not in sure.detail.split("Within noise of it")[1]
    without = compare(val, test, ["none", "ts", "cws"], resamples=100)
    assert without.recommended == without.best == "ts"
    assert without.advice == ["ship ts: best by NLL", "it changes 0.00% of the decisions"]


def test_nothing_is_recommended_within_noise():
    val, test = (grouped_rows("multiclass", seed, 60, 1.0) for seed in (0, 1))
    table = compare(val, test, ["none", "ts", "auto"], resamples=100)
    assert table.row("none").ties_best
    assert table.recommended == "none"
    assert "as they are" in table.advice[0]


def test_groups_that_get_worse_are_named():
    def rows(seed):
        one = grouped_rows("multiclass", seed, 2000)
        ward = one.groups["ward"]
        logits = np.where((ward == "a")[:, None], one.logits / 3, 3 * one.logits)
        return Predictions.from_arrays(logits=logits, labels=one.labels, groups={"ward": ward})

    table = compare(rows(0), rows(1), ["none", "ts"], resamples=50, by="ward")
    old, new = (table.row(name).groups.group(ward="a").metrics["nll"].value for name in ("none", "ts"))
    assert new > old
    assert table.advice[2] == f"1 of 2 groups get worse beyond noise: ward a ({old:.4f} → {new:.4f})"


class Remembers(Calibrator):
    """Keeps the clusters that its folds would keep together."""

    n_parameters_ = 0

    def _fit(self, rows):
        self.kept = rows.clusters

    def _transform(self, logits):
        return logits


@pytest.mark.parametrize("divided", [False, True])
def test_clusters_of_the_fit_rows_reach_the_fits(divided):
    patients, halves = np.arange(60) // 3, (blobs(60, 0), blobs(60, 1))
    val, test = (one.like(groups={"patient": patients + 7}) for one in halves)
    found = compare(val, None if divided else test, {"it": Remembers()}, cluster="patient", resamples=20)
    np.testing.assert_array_equal(found.row("it").calibrator.kept, patients)


def test_groups_of_kept_rows_stand_beside_ignored_ones(tmp_path):
    rows, ward = blobs(300, 0), np.repeat(["a", "b", "c"], 100)
    labels = np.where(np.arange(300) % 7 == 0, -100, rows.labels)
    kept = labels >= 0
    np.savez(tmp_path / "all.npz", logits=rows.logits, labels=labels, ward=ward)
    np.savez(tmp_path / "kept.npz", logits=rows.logits[kept], labels=labels[kept], ward=ward[kept])
    asked_later = calibrant.open_predictions(tmp_path / "all.npz", ignore_index=-100)
    opened = calibrant.open_predictions(tmp_path / "all.npz", by=["ward"], ignore_index=-100)
    assert (asked_later.column("ward") == opened.groups["ward"]).all()
    every = calibrant.measure(opened, by="ward", resamples=20)
    some = calibrant.measure(tmp_path / "kept.npz", by="ward", resamples=20)
    assert every.groups.to_frame().equals(some.groups.to_frame())


def test_a_criterion_without_a_direction_ranks_the_lowest_first():
    table = compare(blobs(300, 0), blobs(300, 1), ["none", "ts"], criterion="over_confidence", resamples=10)
    values = {row.method: row.metrics["over_confidence"].value for row in table.rows}
    assert values["ts"] < values["none"]
    assert table.best == "ts"


def test_methods_may_map_names_to_short_names():
    rows = blobs(80, 0)
    table = calibrant.compare(rows, blobs(80, 1), methods={"a": "ts", "b": calibrant.VectorScaling()})
    assert [row.method for row in table.rows] == ["a", "b"]
    assert not any(row.error for row in table.rows)


@pytest.mark.parametrize("methods", [{"a": 3}, {"a": None}, [3], 3, None, [calibrant.get("ts"), 2.0]])
def test_methods_of_another_type_are_refused(methods):
    with pytest.raises(InputError, match="methods must be short names or calibrators, got"):
        calibrant.compare(blobs(80, 0), blobs(80, 1), methods=methods)
