"""`calibrant compare --models` and `calibrant diff` as their user meets them."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import calibrant as cal


def schema(name: str) -> dict:
    return json.loads((files("calibrant") / "schemas" / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    generator = np.random.default_rng(0)
    for name, scale in (("small", 2.0), ("large", 5.0)):
        parts = {}
        for part in ("val", "test"):
            labels = generator.integers(0, 4, 400)
            logits = scale * (np.eye(4)[labels] + generator.normal(size=(400, 4)))
            parts |= {f"{part}_logits": logits, f"{part}_labels": labels}
            np.savez(path / f"{name}-{part}.npz", logits=logits, labels=labels)
        np.savez(path / f"{name}.npz", **parts)
    score = generator.normal(size=200)
    labels = (score > 0).astype(int)
    np.savez(path / "binary.npz", val_probability=1 / (1 + np.exp(-score)), val_labels=labels,
             test_probability=1 / (1 + np.exp(-score)), test_labels=labels)  # fmt: skip
    confidence = generator.beta(5, 2, 300)
    np.savez(path / "pairs.npz", confidence=confidence, correct=generator.random(300) < confidence**2)
    return path


OPTIONS = ("-m", "none,ts", "--resamples", 40)


def test_matrix_of_models_and_its_report(run, folder, tmp_path):
    given = ("compare", "--models", folder / "small.npz", folder / "large.npz", *OPTIONS)
    code, out, err = run(*given, "--report", tmp_path / "models.html")
    assert code == 0, err
    assert "lowest mean rank" in out
    assert any(line.split()[:3] == ["method", "small", "large"] for line in out.splitlines())
    page = (tmp_path / "models.html").read_text()
    assert page.count('role="img"') == 2
    code, out, _ = run(*given, "--json")
    document = json.loads(out)
    jsonschema.validate(document, schema("models"))
    assert list(document["models"]) == ["small", "large"]
    assert run(*given, "--markdown")[1].startswith("| method | small | large | mean rank |")
    assert r"\begin{tabular}" in run(*given, "--latex")[1]


def test_one_file_with_parts_equals_two_files(run, folder):
    whole = json.loads(run("compare", "--models", folder / "small.npz", *OPTIONS, "--json")[1])
    pair = f"small={folder / 'small-val.npz'},{folder / 'small-test.npz'}"
    apart = json.loads(run("compare", "--models", pair, *OPTIONS, "--json")[1])
    for first, second in zip(whole["models"]["small"]["rows"], apart["models"]["small"]["rows"], strict=True):
        assert first["metrics"] == second["metrics"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compare", "small.npz"), "two files, VAL and TEST, but got 1"),
        (("compare", "--models", "small.npz", "binary.npz"), "multiclass task, but binary is binary"),
        (("compare", "--models", "small-val.npz"), "needs the parts val and test"),
        (("compare", "--models", "small.npz", "small.npz"), "two models are called small"),
        (("compare", "--models", "a=b,c,d"), "is not a model"),
        (("compare", "--models", "small.npz", "--shift", "x_1.npz", "--report", "r.html"), "about one model"),
        (("diff", "small.npz", "small.npz"), "not JSON"),
        (("diff", "absent.json", "absent.json"), "No such file"),
    ],
)
def test_wrong_requests_are_one_line(run, folder, monkeypatch, arguments, words):
    monkeypatch.chdir(folder)
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_diff_of_reports_shows_what_is_beyond_noise(run, folder, tmp_path):
    for name in ("small", "large"):
        code, _, err = run("compare", folder / f"{name}-val.npz", folder / f"{name}-test.npz", *OPTIONS,
                           "--report", tmp_path / f"{name}.html")  # fmt: skip
        assert code == 0, err
    given = ("diff", tmp_path / "small.html", tmp_path / "large.html")
    code, out, _ = run(*given, "--fail-on-worse")
    assert code == 0
    assert out.startswith("NLL of the best method (ts)")
    assert "worse" in out
    assert "--all shows them" in out
    assert len(run(*given, "--all")[1].splitlines()) > len(out.splitlines())
    code, out, _ = run(*given, "--json")
    jsonschema.validate(json.loads(out), schema("diff"))
    assert "| none, " in run(*given, "--markdown")[1]


def test_diff_can_fail_a_build(run, folder, tmp_path):
    paths = []
    for method in ("ts", "none"):
        table = cal.compare(folder / "large-val.npz", folder / "large-test.npz", [method], resamples=40)
        paths.append(tmp_path / f"{method}.json")
        paths[-1].write_text(table.to_json())
    document = json.loads(paths[1].read_text())
    document["rows"][0]["method"] = document["best"] = "ts"
    paths[1].write_text(json.dumps(document))
    assert run("diff", *paths, "--fail-on-worse")[0] == 1
    assert run("diff", *paths)[0] == 0
    assert run("diff", *reversed(paths), "--fail-on-worse")[0] == 0


def test_pairs_have_no_column_of_changed_answers(run, folder):
    given = ("compare", folder / "pairs.npz", folder / "pairs.npz", "-m", "none,platt", "--resamples", 20)
    assert "chg%" not in run(*given)[1]
    assert "chg%" in run("compare", folder / "small-val.npz", folder / "small-test.npz", *OPTIONS)[1]
