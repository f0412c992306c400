"""Few clusters: means have t intervals, other metrics none, and below 6 clusters there is no verdict.

Rows without a cluster id count one by one, and no sentence, interval or test contradicts another one.
"""

from __future__ import annotations

import json
import warnings
from importlib.resources import files

import jsonschema
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import calibrant as cal
from calibrant.cli.measure import MetricLimit, check
from calibrant.core.few_clusters import mean_error
from calibrant.evaluation.deferral import threshold_for_error
from calibrant.evaluation.difference import diff
from calibrant.evaluation.scoring import evaluate_evidence
from calibrant.report.answers import answers

SCHEMAS = {
    name: json.loads((files("calibrant") / "schemas" / f"{name}.json").read_text()) for name in ("measure", "compare")
}
MEANS = {"nll", "brier", "accuracy", "confidence", "entropy"}
"""Metrics that are means of a column of the rows."""
CALIBRATED = "indistinguishable from calibrated"


def problem(task: str, n: int, seed: int = 0, error: float = 1.0, **more) -> cal.Predictions:
    """Rows of a task whose true log-odds are the stated ones times `error`."""
    rng = np.random.default_rng([seed, n])
    if task == "multiclass":
        logits = rng.normal(size=(n, 3))
        labels = (error * logits + rng.gumbel(size=(n, 3))).argmax(axis=1)
        return cal.Predictions(logits=logits, labels=labels, **more)
    logits = rng.normal(size=(n, 3) if task == "multilabel" else n)
    labels = (rng.random(logits.shape) < 1 / (1 + np.exp(-error * logits))).astype(int)
    return cal.Predictions(logits=logits, labels=labels, task=task, **more)


@pytest.mark.parametrize("n_clusters", [2, 3, 6, 8, 15, 19])
@pytest.mark.parametrize("task", ["multiclass", "binary", "pairs"])
def test_means_over_few_clusters_have_t_intervals_and_other_metrics_none(task, n_clusters):
    clusters = np.arange(20 * n_clusters) % n_clusters
    given = problem(task, len(clusters), clusters=clusters)
    found = cal.measure(given, resamples=20)
    p = given.probabilities
    if task == "multiclass":
        losses = {"nll": -np.log(p[np.arange(given.n), given.labels]), "confidence": p.max(axis=1)}
    else:
        losses = {"nll": -np.log(np.where(given.labels == 1, p, 1 - p)), "brier": (p - given.labels) ** 2}
    for name, column in losses.items():
        means = [column[clusters == one].mean() for one in range(n_clusters)]
        low, high = stats.t.interval(0.95, n_clusters - 1, np.mean(means), stats.sem(means))
        one = found.metrics[name]
        assert (one.low, one.high) == pytest.approx((max(low, 0), high), rel=1e-6), name
    for name, one in found.metrics.items():
        assert np.isfinite([one.low, one.high]).all() == (name in MEANS), name
    assert any(note.startswith(f"{n_clusters} clusters: means have t intervals") for note in found.warnings)
    document = json.loads(found.to_json())
    jsonschema.validate(document, SCHEMAS["measure"])
    assert document["n_clusters"] == n_clusters
    assert document["metrics"]["ece"]["low"] is None
    assert f"note: {n_clusters} clusters" in repr(found)
    assert f"note: {n_clusters} clusters" in found._repr_html_()


@pytest.mark.parametrize("task", ["multiclass", "binary", "pairs", "multilabel"])
def test_metrics_over_20_clusters_have_intervals(task):
    given = problem(task, 400)
    found, plain = (cal.measure(one, resamples=20) for one in (given.like(clusters=np.arange(400) % 20), given))
    for name, one in found.metrics.items():
        assert np.isfinite(one.low) == np.isfinite(plain.metrics[name].low), name
    assert not any("t intervals" in note for note in found.warnings)


@pytest.mark.parametrize("sizes", ["equal", "unequal"])
@pytest.mark.parametrize("n_clusters", [3, 6, 8, 15])
def test_t_intervals_over_few_clusters_cover(n_clusters, sizes):
    """Of 400 intervals 380 are to hold the mean; fewer than 362 happen once in a thousand times."""
    rng, held = np.random.default_rng(n_clusters), 0
    for _ in range(400):
        counts = np.full(n_clusters, 20) if sizes == "equal" else rng.integers(2, 60, n_clusters)
        clusters = np.repeat(np.arange(n_clusters), counts)
        x = rng.normal(size=n_clusters)[clusters] + rng.normal(size=len(clusters))
        error, freedom = mean_error(x - x.mean(), np.ones(len(x)), clusters)
        held += abs(x.mean()) <= stats.t.ppf(0.975, freedom) * error
    assert held >= 362


def test_an_accuracy_without_errors_over_few_clusters_is_uncertain():
    p = np.full(200, 0.97)
    given = cal.Predictions(probabilities=p, labels=np.ones(200, int), task="pairs", clusters=np.arange(200) % 4)
    accuracy = cal.measure(given, resamples=20).metrics["accuracy"]
    assert accuracy.low < 0.6
    assert accuracy.high == 1


@pytest.mark.parametrize("task", ["multiclass", "binary", "pairs", "multilabel"])
@pytest.mark.parametrize("n_clusters", [2, 3, 5])
def test_fewer_than_6_clusters_allow_no_verdict(task, n_clusters, tmp_path):
    test = problem(task, 300, 1, clusters=np.arange(300) % n_clusters, groups={"ward": np.arange(300) % 7})
    words = f"{n_clusters} clusters are too few to tell"
    found = cal.measure(test, resamples=20, by="ward")
    assert found.verdict == words
    assert found.to_dict()["too_few_rows"] == f"{n_clusters} clusters"
    assert found.calibration_loss is None
    assert all(one.too_few for one in found.groups.groups)
    assert "beyond chance" not in found.groups.verdict
    compared = cal.compare(problem(task, 300), test, ["none"], resamples=20)
    document = json.loads(compared.to_json())
    jsonschema.validate(document, SCHEMAS["compare"])
    assert document["calibration"] == words
    assert answers(compared)[0].short == words
    assert words in cal.write_report(compared, tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_large_error_in_three_hospitals_is_not_called_calibrated():
    rng = np.random.default_rng(0)
    hospital = np.repeat(["A", "B", "C"], 200)
    p = rng.uniform(0.6, 0.95, 600)
    right = rng.random(600) < p - 0.16
    found = cal.measure(cal.Predictions(probabilities=p, labels=right.astype(int), task="pairs"), cluster=hospital)
    assert 0.13 < found.metrics["ece"].value < 0.19
    assert "calibrated" not in found.verdict
    assert np.isnan(found.metrics["ece"].low)


def test_six_clusters_allow_a_verdict():
    """A gap of 20 points in each of eight clusters is found; calibrated rows in six clusters pass."""
    given = problem("binary", 600, clusters=np.arange(600) % 6)
    assert cal.measure(given, resamples=20).verdict == CALIBRATED
    rng = np.random.default_rng(0)
    p = rng.uniform(0.6, 0.9, 800)
    right = (rng.random(800) < p - 0.2).astype(int)
    off = cal.Predictions(probabilities=p, labels=right, task="pairs", clusters=np.arange(800) % 8)
    assert cal.measure(off, resamples=20).verdict.startswith("overconfident by")


@pytest.mark.parametrize("n_clusters", [3, 6, 8, 15])
def test_the_test_of_calibration_holds_its_level_over_few_clusters(n_clusters):
    """At a level of 5%, more than 15 of 150 calibrated data sets are rejected once in a hundred times."""
    rejected = 0
    for seed in range(150):
        rng = np.random.default_rng([seed, n_clusters])
        clusters = np.repeat(np.arange(n_clusters), 40)
        p, shared = rng.beta(6, 2, len(clusters)), rng.normal(size=n_clusters)[clusters]
        right = stats.norm.cdf(0.4 * shared + np.sqrt(0.84) * rng.normal(size=len(p))) < p
        test = cal.evaluation.consistency.consistency_test(p, right, clusters=clusters, draws=100, seed=seed)
        rejected += test.significant
    assert rejected <= 15


def test_groups_of_few_clusters_have_t_intervals():
    clusters, ward = np.arange(600) % 16, np.arange(600) % 16 // 8
    given = problem("binary", 600, clusters=clusters, groups={"ward": ward})
    found = cal.measure(given, by="ward", resamples=20).groups
    loss = -np.log(np.where(given.labels == 1, given.probabilities, 1 - given.probabilities))
    for one in found.groups:
        own = [loss[clusters == place] for place in np.unique(clusters[ward == int(one.by["ward"])])]
        rows, code = np.concatenate(own), np.repeat(np.arange(8), list(map(len, own)))
        error, freedom = mean_error(rows - rows.mean(), np.ones(len(rows)), code)
        half = stats.t.ppf(0.975, freedom) * error
        nll = one.metrics["nll"]
        assert (nll.low, nll.high) == pytest.approx((rows.mean() - half, rows.mean() + half))
        assert np.isfinite([one.metrics["gap"].low, one.metrics["gap"].high]).all()
        for name in ("calibration_slope", "observed_expected"):
            assert np.isnan([one.metrics[name].low, one.metrics[name].high]).all(), name


def test_clusters_are_drawn_for_single_labels():
    rows = problem("multilabel", 200)
    copied = cal.Predictions(
        logits=np.repeat(rows.logits, 4, axis=0),
        labels=np.repeat(rows.labels, 4, axis=0),
        task="multilabel",
        clusters=np.repeat(np.arange(200), 4),
    )
    once, fourfold = (cal.measure(one, resamples=200, decompose=False).labels for one in (rows, copied))
    for left, right in zip(once, fourfold, strict=True):
        width = [one.metrics["nll"].high - one.metrics["nll"].low for one in (left, right)]
        assert width[1] == pytest.approx(width[0], rel=1e-6)


def test_a_gate_compares_the_estimate_if_there_is_no_interval():
    document = cal.measure(problem("binary", 300, clusters=np.arange(300) % 4), resamples=20).to_dict()
    value = document["metrics"]["ece"]["value"]
    for limit, passed in ((value + 0.01, True), (value - 0.01, False)):
        assert check(document, [MetricLimit("at most", "ece", limit)])["passed"] == passed


def test_changes_over_few_clusters_are_judged_by_t():
    results = [
        {"task": "binary", "n_clusters": 4, "metrics": {"nll": {"value": one, "low": one - 0.1, "high": one + 0.1}}}
        for one in (0.5, 0.9)
    ]
    few = diff(*results).changes[0]
    assert few.noise == pytest.approx(0.1 * np.sqrt(2))
    assert few.p_value == pytest.approx(2 * stats.t.sf(0.4 / few.noise * stats.t.ppf(0.975, 3), 3))
    many = diff(*(one | {"n_clusters": None} for one in results)).changes[0]
    assert many.p_value < few.p_value
    results[1]["metrics"]["nll"] |= {"low": None, "high": None}
    assert diff(*results).changes[0].verdict == "no interval"


def test_promises_and_bands_over_few_clusters():
    rng = np.random.default_rng(0)
    p = rng.uniform(0.5, 1, 2000)
    right = (rng.random(2000) < p).astype(int)
    found = [threshold_for_error(p, right, 0.15, clusters=np.arange(2000) % count) for count in (4, 400)]
    assert found[0].threshold > found[1].threshold
    with pytest.warns(cal.FitWarning, match="8 clusters are too few"):
        curve = cal.metrics.flexible_calibration(p, right, clusters=np.arange(2000) % 8)
    assert np.isnan([curve.low, curve.high]).all()


def test_one_cluster_determines_no_precision():
    evidence, precision = evaluate_evidence(problem("binary", 100, clusters=np.zeros(100, int)))
    assert evidence.shortage == "1 cluster"
    assert precision is None
    evidence, precision = evaluate_evidence(problem("binary", 100, clusters=np.arange(100) % 4))
    assert precision.half_width > 0
    given = problem("binary", 100)
    p = given.probabilities
    loss = -np.log(np.where(given.labels == 1, p, 1 - p)).reshape(-1, 4).mean(axis=0)
    assert precision.half_width == pytest.approx(stats.t.ppf(0.975, 3) * stats.sem(loss), rel=1e-5)


MISSING = {
    "None": lambda ids: np.array([None if one == "" else one for one in ids], object),
    "NaN": lambda ids: np.array([np.nan if one == "" else float(one) for one in ids]),
    "blank": lambda ids: ids,
    "NA": lambda ids: pd.array([pd.NA if one == "" else int(one) for one in ids], "Int64"),
    "masked": lambda ids: np.ma.masked_array([int(one or 7) for one in ids], ids == ""),
}


def incomplete(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Cluster ids as text, 30% of them blank; and the same with a fresh id in place of each blank."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 25, n).astype(str)
    ids[rng.random(n) < 0.3] = ""
    fresh = np.where(ids == "", 1000 + rng.permutation(n), np.where(ids == "", "0", ids).astype(int)).astype(str)
    return ids, fresh


def everything(given: cal.Predictions, clusters: object) -> list[object]:
    """Results of all that draws, divides or counts clusters, without the notes on missing ids."""
    measured = cal.measure(given, cluster=clusters, by="ward", resamples=20).to_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cal.FitWarning)
        options = {"cluster": clusters, "by": "ward", "resamples": 20}
        compared = cal.compare(given, methods=["none", "platt"], cv=3, **options).to_dict()
        fitted = cal.AutoCalibrator(["platt", "beta"]).fit(given.logits, given.labels, clusters=clusters).scores_
        p = given.probabilities
        promise = threshold_for_error(p, given.labels, 0.4, clusters=clusters)
        curve = cal.metrics.flexible_calibration(p, given.labels, clusters=clusters).low
        loss = cal.calibration_loss(given.like(clusters=np.ma.asarray(clusters)), "platt")
    for row in compared["rows"]:
        del row["fit_seconds"], row["warnings"]
    del measured["warnings"], compared["warnings"]
    return json.loads(json.dumps([measured, compared, fitted, str(promise), curve.tolist(), str(loss)]))


@pytest.mark.parametrize("form", MISSING)
def test_76_fresh_ids_for_missing_cluster_ids_change_no_result(form):
    given = problem("binary", 240, groups={"ward": np.arange(240) % 3})
    for seed in range(2):
        ids, fresh = incomplete(given.n, seed)
        assert everything(given, MISSING[form](ids)) == everything(given, fresh), seed


@pytest.mark.parametrize("form", MISSING)
def test_outputs_state_the_number_of_rows_without_a_cluster_id(form):
    given = problem("binary", 240)
    ids, _ = incomplete(given.n, 0)
    note = f"{(ids == '').sum()} of 240 rows have no cluster id"
    ids = MISSING[form](ids)
    assert any(one.startswith(note) for one in cal.measure(given, cluster=ids, resamples=20).warnings)
    assert any(one.startswith(note) for one in cal.compare(given, given, ["none"], cluster=ids, resamples=20).warnings)
    with pytest.warns(cal.FitWarning, match=note):
        cal.AutoCalibrator(["platt"]).fit(given.logits, given.labels, clusters=ids)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
@pytest.mark.parametrize("text", [True, False])
def test_missing_ids_of_files_count_one_by_one_and_missing_groups_form_a_group(suffix, text, tmp_path):
    given = problem("binary", 240)
    ids, fresh = incomplete(given.n, 1)
    spelled = [None if one == "" else f"p{one}" if text else int(one) for one in ids]
    path = tmp_path / f"rows.{suffix}"
    frame = pd.DataFrame({"probability": given.probabilities, "label": given.labels})
    frame["patient"] = frame["ward"] = pd.array(spelled, "string" if text else "Int64")
    write = {"csv": frame.to_csv, "parquet": frame.to_parquet, "jsonl": frame.to_json}[suffix]
    write(path, **({"orient": "records", "lines": True} if suffix == "jsonl" else {"index": False}))
    options = {"task": "binary", "kind": "probabilities", "resamples": 20}
    found = cal.measure(path, by="ward", cluster="patient", **options)
    assert found.groups.group(ward="missing").n == (ids == "").sum()
    expected = cal.measure((given.probabilities, given.labels), cluster=fresh, **options)
    assert found.n_clusters == expected.n_clusters
    for name, one in expected.metrics.items():
        ends = [found.metrics[name].value, found.metrics[name].low, found.metrics[name].high]
        np.testing.assert_allclose(ends, [one.value, one.low, one.high], rtol=1e-4, atol=1e-6, err_msg=name)


def test_models_with_missing_ids_are_paired():
    ids, _ = incomplete(240, 0)
    rows = problem("binary", 240, clusters=np.array([np.nan if one == "" else float(one) for one in ids]))
    models = {name: rows.like(notes=()) for name in "ab"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cal.FitWarning)
        assert cal.compare_models(models, methods=["none"], resamples=20).pairing


def rows_of_shares(clusters: object) -> float:
    """The calibration loss of rows with several annotators each."""
    rng = np.random.default_rng(0)
    shares = rng.dirichlet([1, 1, 1], 60).round(2)
    shares /= shares.sum(axis=1, keepdims=True)
    given = cal.Predictions(logits=rng.normal(size=(60, 3)), label_shares=shares, clusters=clusters)
    return float(cal.calibration_loss(given, "ts"))


def test_76_copies_of_a_row_without_an_id_stay_together():
    ids, fresh = incomplete(60, 0)
    assert rows_of_shares(MISSING["None"](ids)) == rows_of_shares(fresh)


def contradictions(found: cal.Measurement) -> list[str]:
    """Pairs of statements of one measurement that cannot both be read as true."""
    verdict, ece, loss = found.verdict, found.metrics["ece"], found.mendable
    good, known = verdict == CALIBRATED, np.isfinite(ece.low)
    other = "too few", "miscalibrated by class", "miscalibrated: a map"
    by_gap = not good and not any(words in verdict for words in other)
    pairs = {
        "calibrated, but the ECE starts above 0": good and known and ece.low > 0,
        "calibrated, but the classwise ECE starts above 0": good and known and found.metrics["sce"].low > 0,
        "calibrated, but p < 0.05": good and found.noise_floor.p_value < 0.05,
        "calibrated, but a map can fix the loss": good and "can fix" in loss,
        "a gap, but the ECE starts at 0": by_gap and known and ece.low <= 0,
        "a gap, but p ≥ 0.05": by_gap and found.noise_floor.p_value >= 0.05,
        "miscalibrated, but no miscalibration beyond noise": not good and "no miscalibration beyond noise" in loss,
        "miscalibrated by class, but the classwise ECE starts at 0": verdict.startswith("miscalibrated by class")
        and known
        and found.metrics["sce"].low <= 0,
        "an interval without its estimate": known and not ece.low <= ece.value <= ece.high,
    }
    return [words for words, both in pairs.items() if both]


@pytest.mark.parametrize("task", ["multiclass", "binary", "pairs", "multilabel"])
def test_verdict_interval_test_and_sentence_never_contradict_each_other(task):
    seen = set()
    for seed in range(24):
        rng = np.random.default_rng([seed, 5])
        n, error = int(rng.integers(40, 250)), float(rng.choice([1.0, 0.8, 0.6, 0.4, 1.6]))
        clusters = None if seed % 3 else rng.integers(0, rng.integers(2, 60), n)
        found = cal.measure(problem(task, n, seed, error, clusters=clusters), resamples=40)
        assert not contradictions(found), (seed, found.verdict, found.metrics["ece"], found.mendable)
        seen.add(found.verdict.split()[0])
    assert len(seen) >= 3


@pytest.mark.parametrize("task", ["multiclass", "binary", "pairs"])
def test_measure_and_the_report_give_one_verdict(task):
    for seed in range(12):
        rng = np.random.default_rng([seed, 6])
        given = problem(task, int(rng.integers(40, 250)), seed, float(rng.choice([1.0, 0.7, 0.4])))
        measured = cal.measure(given, resamples=40, decompose=False)
        compared = cal.compare(problem(task, 100), given, ["none"], resamples=40)
        assert compared.calibration == measured.verdict
        row = compared.row("none")
        assert row.noise_floor == measured.noise_floor
        assert (row.metrics["ece"].low > 0) == (measured.metrics["ece"].low > 0)
        kind = "good" if measured.verdict == CALIBRATED else "open" if "too few" in measured.verdict else "bad"
        assert answers(compared)[0].kind == kind, (seed, measured.verdict)
