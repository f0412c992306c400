"""`calibrant models`, `compare` of one file and `calibrant diff` as their user meets them."""

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
    given = ("models", folder / "small.npz", folder / "large.npz", "--pair", "none", *OPTIONS)
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


def test_options_that_read_a_file_hold_for_one_that_is_divided(run, tmp_path):
    generator = np.random.default_rng(0)
    risk = generator.random(200)
    died = (generator.random(200) < risk**2).astype(int)
    for name in ("a", "b"):
        rows = "".join(f"{stated},{outcome}\n" for stated, outcome in zip(risk, died, strict=True))
        (tmp_path / f"{name}.csv").write_text(f"risk,died\n{rows}")
    said = ("--scores", "risk", "--labels", "died", "--kind", "probabilities", *OPTIONS)
    for given in (("compare", tmp_path / "a.csv", "--cv", 3), ("models", tmp_path / "a.csv", tmp_path / "b.csv")):
        code, _, err = run(*given, *said)
        assert code == 0, err


def test_one_file_with_parts_equals_two_files(run, folder):
    whole = json.loads(run("models", folder / "small.npz", *OPTIONS, "--json")[1])
    pair = f"small={folder / 'small-val.npz'},{folder / 'small-test.npz'}"
    apart = json.loads(run("models", pair, *OPTIONS, "--json")[1])
    for first, second in zip(whole["models"]["small"]["rows"], apart["models"]["small"]["rows"], strict=True):
        assert first["metrics"] == second["metrics"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compare", "small.npz", "small.npz", "small.npz"), "VAL and TEST, or one file, but got 3"),
        (("compare", "small.npz", "--cv", "3"), "cv and split divide one set of rows"),
        (("compare", "small-val.npz", "--cv", "3", "--split", "0.5"), "give one of them"),
        (("compare", "small-val.npz", "--split", "1.5"), "cannot be divided"),
        (("models", "small.npz", "binary.npz"), "differ in task (multiclass and binary)"),
        (("models", "small.npz", "large.npz"), "small and large differ in labels: they must be the same rows"),
        (("models", "small.npz", "small.npz"), "two models are called the same"),
        (("models", "a=b,c,d"), "is not a model"),
        (("models", "small-val.npz", "--table", "x", "--latex", "-m", "none"), "there is no table 'x'"),
        (("diff", "small.npz", "large.npz"), "differ in labels: they must be the same rows"),
        (("diff", "small.npz", "large.npz", "--pair", "none"), "pairs their rows"),
        (("diff", "small.npz", "absent.json"), "not JSON"),
        (("diff", "absent.json", "absent.json"), "No such file"),
    ],
)
def test_wrong_requests_are_one_line(run, folder, monkeypatch, arguments, words):
    monkeypatch.chdir(folder)
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


@pytest.fixture
def jsonl(tmp_path):
    """Three models of the same rows, in files of their own and in an order of their own."""
    shared = np.random.default_rng(5)
    labels, weights = shared.integers(0, 3, 500), shared.integers(1, 4, 500)
    signal = np.eye(3)[labels] + shared.normal(size=(500, 3))
    for seed, name in enumerate("abc"):
        generator = np.random.default_rng(seed)
        logits = (2 + seed) * (signal + (0.2 + seed) * generator.normal(size=(500, 3)))
        lines = (
            {"id": f"q{row}", "logits": logits[row].tolist(), "label": int(labels[row]), "ward": "uv"[row % 2],
             "weight": int(weights[row])}
            for row in generator.permutation(500)
        )  # fmt: skip
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return [tmp_path / f"{name}.jsonl" for name in "abc"]


def test_models_of_one_file_each(run, jsonl, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    given = ("models", *jsonl, "--by", "ward", *OPTIONS)
    code, out, err = run(*given, "--report", tmp_path / "models.html")
    assert code == 0, err
    flat = " ".join(out.split())
    for words in (
        "cross-fitted in 5 folds, seed 0",
        "500 rows paired by id",
        "weights sum to",
        "models after ts: a is",
    ):
        assert words in flat
    assert max(len(line) for line in out.splitlines() if str(tmp_path) not in line) <= 80
    assert [line.split()[0] for line in out.splitlines() if line.startswith(("a*", "b ", "c "))] == ["a*", "b", "c"]
    assert any(line.startswith("ward u ") for line in out.splitlines())
    page = (tmp_path / "models.html").read_text()
    assert "Models on the same rows" in page
    assert f"calibrant fit {jsonl[1]} --method ts -o b.safetensors" in page
    split = " ".join(run(*given, "--split", "0.5", "--seed", "3")[1].split())
    assert "fitted on 250 rows, measured on 250" in split
    assert "split at random, seed 3" in split
    assert run(*given, "--latex", "--columns", "nll,difference")[1].count(" & ") == 2 * 4
    assert "±" in run(*given, "--table", "seeds", "--markdown")[1]


def test_help_of_models_fits_a_narrow_terminal(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, run("models", "--help")[1].splitlines())) <= 80


def test_one_file_is_divided(run, jsonl, folder):
    code, out, err = run("compare", jsonl[0], *OPTIONS)
    assert code == 0, err
    assert "measured on 500, weights sum to" in " ".join(out.split())
    assert "(cross-fitted in 5 folds, seed 0)" in " ".join(out.split())
    assert f"calibrant fit {jsonl[0]} --method ts" in " ".join(out.split())
    document = json.loads(run("compare", jsonl[0], "--split", "0.5", *OPTIONS, "--json")[1])
    jsonschema.validate(document, schema("compare"))
    assert (document["n_val"], document["n_test"]) == (250, 250)
    assert document["division"] == "split at random, seed 0"
    assert document["warnings"] == []
    # a file with both parts needs no division
    parts = json.loads(run("compare", folder / "small.npz", *OPTIONS, "--json")[1])
    two = json.loads(run("compare", folder / "small.npz#val", folder / "small.npz#test", *OPTIONS, "--json")[1])
    for one in (parts, two):
        for row in one["rows"]:
            row.pop("fit_seconds")
    assert parts == two


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


def test_select_keeps_clusters_together_and_says_the_seed(run, folder, tmp_path):
    generator = np.random.default_rng(1)
    labels, patient = generator.integers(0, 3, 300), np.arange(300) // 3
    logits = 3 * (np.eye(3)[labels] + generator.normal(size=(100, 3))[patient])
    np.savez(tmp_path / "rows.npz", logits=logits, labels=labels, patient=patient)
    given = ("select", tmp_path / "rows.npz", "--candidates", "ts,vs", "--cv", 4, "-o", tmp_path / "cal.safetensors")
    code, out, err = run(*given, "--cluster", "patient", "--seed", 3)
    assert code == 0, err
    assert "4 folds of 300 rows, seed 3" in out
    with_clusters, without = (json.loads(run(*given, *more, "--json")[1]) for more in (("--cluster", "patient"), ()))
    assert with_clusters["scores"] != without["scores"]


def test_diff_pairs_the_rows_of_two_files_of_predictions(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 600)
    logits = 2 * (np.eye(3)[labels] + rng.normal(size=(600, 3)))
    order = rng.permutation(600)
    np.savez("old.npz", logits=logits, labels=labels, id=np.arange(600))
    np.savez("new.npz", logits=1.2 * logits[order], labels=labels[order], id=order)
    for name in ("old", "new"):
        Path(f"{name}.json").write_text(run("measure", f"{name}.npz", "--json")[1])
    assert run("diff", "old.json", "new.json", "--fail-on-worse")[0] == 0  # small compared with the noise of both
    code, out, _ = run("diff", "old.npz", "new.npz", "--fail-on-worse", "--json")
    found = json.loads(out)
    jsonschema.validate(found, schema("diff"))
    assert (code, found["worse"], found["notes"]) == (1, True, ["600 rows paired by id"])
    pairs = json.loads(run("models", "old.npz", "new.npz", "--methods", "none", "--json")[1])
    row = next(row for row in pairs["compared"]["none"]["rows"] if row["method"] == "new")
    expected = row["difference"]["nll"]
    headline = found["headlines"][0]
    assert headline["change"] == pytest.approx(expected["value"])
    assert 2 * headline["noise"] == pytest.approx(expected["high"] - expected["low"])
    assert run("diff", "new.npz", "old.npz", "--fail-on-worse")[0] == 0
