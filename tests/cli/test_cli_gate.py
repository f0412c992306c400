"""Gates of `calibrant measure`: exit 1 when a figure is beyond its limit."""

from __future__ import annotations

import json
from importlib.resources import files

import jsonschema
import numpy as np
import pytest

from calibrant.cli.measure import MetricLimit, check, words
from calibrant.core.errors import InputError

SCHEMA = json.loads((files("calibrant") / "schemas" / "measure.json").read_text())


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Overconfident predictions with an ECE of about 20%."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 800)
    path = tmp_path_factory.mktemp("gate") / "test.npz"
    np.savez(path, logits=4 * (np.eye(4)[labels] + rng.normal(size=(800, 4))), labels=labels)
    return path


def test_a_bad_model_turns_the_gate_red_and_a_loose_limit_green(run, file):
    code, out, err = run("measure", file, "--resamples", 50, "--max-ece", 0.03, "--min-accuracy", 0.1)
    assert (code, err) == (1, "")
    assert "gate failed: ECE is " in out
    assert "above the limit of 3.00%" in out
    code, out, _ = run("measure", file, "--resamples", 50, "--max-ece", 0.9, "--max-classwise-ece", 0.9)
    assert code == 0
    assert out.rstrip().endswith("gate passed: 2 of 2 checks")


def test_the_gate_is_in_the_document(run, file):
    code, out, _ = run("measure", file, "--resamples", 50, "--json", "--max-nll", 0.01, "--min-accuracy", 0.999)
    document = json.loads(out)
    jsonschema.validate(document, SCHEMA)
    assert code == 1
    assert not document["gate"]["passed"]
    nll, accuracy = document["gate"]["checks"]
    assert (nll["metric"], nll["value"]) == ("nll", document["metrics"]["nll"]["value"])
    assert (accuracy["kind"], accuracy["limit"], accuracy["passed"]) == ("at least", 0.999, False)
    code, out, _ = run("measure", file, "--resamples", 50, "--json")
    assert (code, "gate" in json.loads(out)) == (0, False)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max-ece", "3"],
        ["--max-ece", "-0.1"],
        ["--max-ece", "x"],
        ["--max-ece", "nan"],
        ["--max-nll", "inf"],
        ["--max", "ece=nan"],
        ["--max", "ece=inf"],
        ["--min", "accuracy=-inf"],
        ["--max", "ece"],
        ["--max-group-ece", "nan"],
    ],
)
def test_limits_that_mean_nothing_are_refused(run, file, arguments):
    code, _, err = run("measure", file, *arguments)
    assert (code, err.count("\n")) == (2, 1)


@pytest.mark.parametrize("strict", [["--max-ece", "0.001"], ["--max", "ece=0.001"], ["--min", "accuracy=0.999"]])
@pytest.mark.parametrize("loose", [["--max-ece", "0.9"], ["--max", "ece=0.9"], ["--min", "accuracy=0.001"]])
def test_all_stated_limits_apply_in_any_order(run, file, strict, loose):
    for limits in ([*strict, *loose], [*loose, *strict]):
        code, out, _ = run("measure", file, "--resamples", 20, "--json", *limits)
        gate = json.loads(out)["gate"]
        assert (code, gate["passed"], len(gate["checks"])) == (1, False, 2)
        assert sorted(one["passed"] for one in gate["checks"]) == [False, True]


def test_every_metric_can_be_limited_from_both_sides(run, file):
    code, out, _ = run("measure", file, "--resamples", 20, "--json")
    metrics = {name: one["value"] for name, one in json.loads(out)["metrics"].items() if one["value"] is not None}
    limits = []
    for name, value in metrics.items():
        limits += ["--max", f"{name}={value + 1}", "--min", f"{name}={value - 1}"]
    code, out, _ = run("measure", file, "--resamples", 20, "--json", *limits)
    assert (code, len(json.loads(out)["gate"]["checks"])) == (0, 2 * len(metrics))


def test_groups_below_the_smallest_size_are_left_out():
    groups = [
        {"by": {"site": "a"}, "n": 900, "metrics": {"ece": {"value": 0.02}}},
        {"by": {"site": "b\x1b"}, "n": 800, "metrics": {"ece": {"value": 0.08}}},
        {"by": {"site": "c"}, "n": 20, "metrics": {"ece": {"value": 0.5}}},
    ]
    document = {"metrics": {"ece": {"value": 0.03}}, "groups": groups}
    gate = check(document, [MetricLimit("at most", "ece", 0.05)], [MetricLimit("at most", "ece", 0.06)], min_rows=500)
    assert [one["passed"] for one in gate["checks"]] == [True, True, False]
    assert words(gate) == "gate failed: ECE of site=b? is 8.00%, above the limit of 6.00%"
    both = words(
        check(document, [MetricLimit("at most", "ece", 0.02)], [MetricLimit("at most", "ece", 0.06)], min_rows=500)
    ).splitlines()
    assert [line.split(" is ")[0] for line in both] == ["gate failed: ECE", "  ECE of site=b?"]
    assert check(document, []) == {"passed": True, "checks": []}
    with pytest.raises(InputError, match="lower --min-rows"):
        check(document, [], [MetricLimit("at most", "ece", 0.06)], min_rows=1000)
    with pytest.raises(InputError, match="--by"):
        check({"metrics": {}}, [], [MetricLimit("at most", "ece", 0.06)])
    with pytest.raises(InputError, match="there is no sce"):
        check(document, [MetricLimit("at most", "sce", 0.1)])
    assert not check({"metrics": {"ece": {"value": float("nan")}}}, [MetricLimit("at most", "ece", 0.5)])["passed"]
