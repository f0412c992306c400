"""What counts as a change: known differences are found, noise alone is not, and wrong pairs are refused."""

from __future__ import annotations

import json
from importlib.resources import files

import jsonschema
import numpy as np
import pytest
from scipy import stats

import calibrant as cal


def halves(seed: int, scale: float, n: int = 1200):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, n)
    logits = scale * (generator.normal(size=(n, 3)) + np.eye(3)[labels])
    return (logits[: n // 2], labels[: n // 2]), (logits[n // 2 :], labels[n // 2 :])


@pytest.fixture(scope="module")
def results():
    return {scale: cal.compare(*halves(0, scale), ["none", "ts"], resamples=100) for scale in (2.0, 6.0)}


def by_key(difference):
    return {(one.method, one.metric): one for one in difference.changes}


def test_a_real_change_is_found_and_its_mending_is_not(results):
    found = by_key(cal.diff(results[2.0], results[6.0]))
    assert found["none", "nll"].verdict == "worse"
    assert found["none", "ece"].verdict == "worse"
    assert found["none", "over_confidence"].verdict == "changed"
    # a temperature undoes the scale, and no scale changes a prediction
    assert found["ts", "nll"].verdict == "within noise"
    assert found["none", "accuracy"].change == 0
    back = by_key(cal.diff(results[6.0], results[2.0]))
    assert back["none", "nll"].verdict == "better"
    assert back["none", "nll"].change == -found["none", "nll"].change


def test_p_values_are_those_of_two_independent_intervals(results):
    one = by_key(cal.diff(results[2.0], results[6.0]))["none", "nll"]
    spreads = [(e.high - e.low) / (2 * stats.norm.ppf(0.975)) for e in (one.old, one.new)]
    z = (one.new.value - one.old.value) / np.sqrt(spreads[0] ** 2 + spreads[1] ** 2)
    assert one.p_value == pytest.approx(2 * stats.norm.sf(abs(z)))
    assert one.noise == pytest.approx(1.959964 * np.hypot(*spreads), rel=1e-6)


@pytest.mark.parametrize("change", [-0.3, 0.1, 0.3])
def test_the_p_value_of_a_small_change_is_two_sided(change):
    half = stats.norm.ppf(0.975)  # both standard errors are 1
    old, new = ({"metrics": {"nll": {"value": x, "low": x - half, "high": x + half}}} for x in (1.0, 1.0 + change))
    (one,) = cal.diff(old, new).changes
    assert one.p_value == pytest.approx(2 * stats.norm.sf(abs(change) / np.sqrt(2)))


def test_noise_alone_is_rarely_a_change():
    generator = np.random.default_rng(0)
    flagged = 0
    for _ in range(200):
        metrics = [
            {f"m{k}": {"value": x, "low": x - 1.96, "high": x + 1.96} for k, x in enumerate(generator.normal(size=10))}
            for _ in range(2)
        ]
        found = cal.diff(*({"metrics": one} for one in metrics))
        flagged += any(one.verdict != "within noise" for one in found.changes)
    # Benjamini and Hochberg hold the chance of any false finding at 5% where all is noise
    assert flagged <= stats.binom.ppf(0.999, 200, 0.05)


def test_headline_is_about_the_best_of_each(results):
    difference = cal.diff(results[2.0], results[6.0])
    assert [one.metric for one in difference.headlines] == ["nll"]
    assert difference.headlines[0].old == results[2.0].row(results[2.0].best).metrics["nll"]
    assert not difference.worse
    worse = json.loads(results[6.0].to_json())
    worse["best"] = "none"
    assert cal.diff(results[2.0], worse).worse
    assert any("same labels" in note for note in difference.notes)


def test_json_follows_the_schema_and_text_fits_a_screen(results):
    difference = cal.diff(results[2.0], results[6.0])
    schema = json.loads((files("calibrant") / "schemas" / "diff.json").read_text())
    jsonschema.validate(json.loads(difference.to_json()), schema)
    assert len(repr(difference).splitlines()) <= 25
    assert "worse" in difference.to_markdown()
    assert difference._repr_html_().count("<tr>") == 1 + len(difference.shown())
    assert len(difference.shown()) < len(difference.shown(everything=True)) == len(difference.changes)


def test_reports_and_json_files_give_the_same_difference(results, tmp_path):
    wanted = cal.diff(results[2.0], results[6.0]).to_dict()
    paths = []
    for scale, result in results.items():
        cal.write_report(result, tmp_path / f"{scale}.html")
        (tmp_path / f"{scale}.json").write_text(result.to_json())
        paths.append(tmp_path / f"{scale}")
    for suffix in (".html", ".json"):
        assert cal.diff(*(f"{path}{suffix}" for path in paths)).to_dict() == wanted


def test_models_are_matched_by_name():
    tables = [cal.compare_models({n: halves(1, s) for n, s in m}, ["none", "ts"], resamples=30)
              for m in ((("a", 2.0), ("b", 3.0)), (("b", 3.0), ("c", 2.0)))]  # fmt: skip
    difference = cal.diff(*tables)
    assert {one.model for one in difference.changes} == {"b"}
    assert difference.added == ("model c",)
    assert difference.removed == ("model a",)
    assert all(one.change == 0 for one in difference.changes)


def test_measurements_too():
    (val, test) = halves(0, 3.0)
    difference = cal.diff(cal.measure(val, resamples=30), cal.measure(test, resamples=30))
    assert {one.method for one in difference.changes} == {"measured"}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ({"task": "binary", "metrics": {}}, {"task": "pairs", "metrics": {}}, "is a binary task, but .* is pairs"),
        ({"n_classes": 3, "rows": []}, {"n_classes": 4, "rows": []}, "has 3 classes, but .* has 4: give"),
        (
            {"rows": [{"method": "ts", "metrics": {"nll": {"value": 1}}}], "best": "ts"},
            {"rows": [{"method": "vs", "metrics": {"nll": {"value": 1}}}], "best": "vs"},
            "ts, but .* vs: no method is in both",
        ),
        ({"models": {"a": {}}}, {"models": {"b": {}}}, "of a: , but .* of b: : no method is in both"),
        (3, 4, "got int"),
    ],
)
def test_what_cannot_be_compared_is_one_line(old, new, words):
    with pytest.raises(cal.InputError, match=words):
        cal.diff(old, new)


@pytest.mark.parametrize(
    ("text", "words"),
    [("<html>", "carries no result"), ("{", "not JSON"), ("[]", "not a result"), ("\xff", "not JSON")],
)
def test_files_of_another_kind_are_one_line(tmp_path, text, words):
    path = tmp_path / "x.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(cal.InputError, match=words):
        cal.diff(path, path)


def test_results_of_other_classes_are_refused():
    """The same names in another order are the same problem; other names, or another positive class, are not."""
    named = {
        names: cal.measure(
            cal.Predictions.from_arrays(logits=logits, labels=labels, class_names=tuple(names)),
            resamples=20,
            decompose=False,
        ).to_dict()
        for names, (logits, labels) in zip(("abc", "cab", "abd"), (halves(0, 2.0)[1],) * 3, strict=True)
    }
    assert named["abc"]["class_names"] == ["a", "b", "c"]
    assert cal.diff(named["abc"], named["cab"]).notes == ()
    with pytest.raises(cal.InputError, match="has the classes a, b, c, but the new result has a, b, d"):
        cal.diff(named["abc"], named["abd"])
    unnamed = {**named["abd"], "class_names": None}
    assert any("known on one side only" in note for note in cal.diff(named["abc"], unnamed).notes)
    risk = {"task": "binary", "n_classes": 2, "metrics": named["abc"]["metrics"]}
    with pytest.raises(cal.InputError, match=r"positive class 'ill', but .* 'well'"):
        cal.diff({**risk, "class_names": ["well", "ill"]}, {**risk, "class_names": ["ill", "well"]})
