"""`calibrant measure` as its user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import numpy as np
import pytest

from calibrant.cli import main

SCHEMA = json.loads((files("calibrant") / "schemas" / "measure.json").read_text())


@pytest.fixture
def calibrant(capsys, monkeypatch):
    """Run the command in this process: (exit code, standard output, standard error)."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: object) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["calibrant", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=left.value.code or 0, stdout=out, stderr=err)

    return run


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 5, 600)
    logits = 3 * (np.eye(5)[labels] + generator.normal(size=(600, 5)))
    path = tmp_path_factory.mktemp("data") / "val.npz"
    np.savez(path, logits=logits, labels=labels)
    return path


def test_view_fits_80_columns_and_says_the_verdict(calibrant, file):
    result = calibrant("measure", file, "--all")
    assert result.returncode == 0, result.stderr
    assert "overconfident by" in result.stdout
    assert "a calibrated model would show" in result.stdout
    assert "worst classes" in result.stdout
    assert "beyond chance" in result.stdout
    assert max(map(len, result.stdout.splitlines()[1:])) <= 80
    assert result.stderr == ""
    assert "\x1b" not in result.stdout  # no colours into a pipe


def test_a_first_look_is_the_verdict_and_eight_figures(calibrant, file):
    lines = calibrant("measure", file).stdout.splitlines()
    assert len(lines) <= 23  # a long path takes two
    assert any("overconfident by" in line for line in lines[1:5])
    start = next(place for place, line in enumerate(lines) if "95% interval" in line)
    assert sum(line.count("[") for line in lines[start + 1 :]) == 8
    assert lines[-1].startswith("--all shows")


def test_the_words_of_the_diagram_follow_the_task(run, tmp_path):
    rng = np.random.default_rng(0)
    p = rng.random(300)
    np.savez(tmp_path / "risk.npz", probability=p, labels=(rng.random(300) < p**2).astype(int))
    _, out, _ = run("measure", tmp_path / "risk.npz", "--all", "--resamples", 20)
    start, diagram, *_ = out.split("\n\n")[1:]
    assert "too high ▓" in start
    assert "█ observed  ▓ too high  ▒ too low" in diagram
    assert "confiden" not in start + diagram


@pytest.mark.parametrize("verb", ["", "measure", "compare", "fit", "serve", "monitor"])
def test_help_has_whole_names_and_no_types(calibrant, verb):
    text = calibrant(*filter(None, [verb]), "--help").stdout
    assert not [noise for noise in ("<str>", "<bool>", "<int", "<float", "list[") if noise in text]
    assert max(map(len, text.splitlines())) <= 80
    assert not [line for line in text.splitlines() if line.strip().startswith("--") and "…" in line.split("  ")[1]]
    if verb == "measure":
        assert "--max-classwise-ece N" in text
    if not verb:
        assert "..." not in text.split("Commands:")[1]


def test_view_says_what_a_map_can_mend(calibrant, file):
    words = " ".join(calibrant("measure", file).stdout.split())
    assert "nats are miscalibration, which a map can fix; the rest is the model's (cross-validated: vs" in words
    assert "which a map can fix" not in calibrant("measure", file, "--no-decompose").stdout


def test_json_validates(calibrant, file):
    result = calibrant("measure", file, "--json", "--resamples", 100, "--n-bins", 10)
    document = json.loads(result.stdout)
    jsonschema.validate(document, SCHEMA)
    assert (document["n"], document["n_classes"], document["n_bins"]) == (600, 5, 10)
    assert document["p_value"] < 0.05
    again = calibrant("measure", file, "--json", "--resamples", 100, "--n-bins", 10)
    assert again.stdout == result.stdout


def test_small_input_loads_no_heavy_package(file):
    code = (
        "import sys; sys.argv = ['calibrant', 'measure', sys.argv[1], '--json']\n"
        "from calibrant.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'numba', 'torch', 'matplotlib', 'altair', 'dask'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True, timeout=120, check=True)
    assert result.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.npz"], "missing.npz"),
        (["{file}", "--n-bins", "0"], "n_bins must be a whole number of at least 1, got 0"),
        (["{file}", "--resamples", "0"], "resamples must be a whole number of at least 1, got 0"),
        (["{file}", "--kind", "probabilities"], "logits"),
    ],
)
def test_bad_requests_are_one_line_and_exit_2(calibrant, file, arguments, words):
    result = calibrant("measure", *(argument.format(file=file) for argument in arguments))
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    error, *rest = result.stderr.strip().splitlines()
    assert words in error
    # a command that reads the file may follow, to be copied
    assert all(line.startswith("try: calibrant measure ") for line in rest)
    assert len(rest) <= 1


def test_embedded_data(calibrant):
    result = calibrant("measure", "cifar100-resnet18#test", "--json", "--resamples", 50)
    document = json.loads(result.stdout)
    assert document["verdict"] == "overconfident by 9.4 points"
    assert document["metrics"]["ece"]["value"] == pytest.approx(0.0948, abs=2e-4)


def test_warnings_are_lines_without_a_place_in_the_code(file, tmp_path):
    with np.load(file) as given:
        np.savez(tmp_path / "kilos.npz", **given, weights=np.full(600, 70.0))
    command = [sys.executable, "-m", "calibrant", "measure", "kilos.npz", "--resamples", "10", "--no-decompose"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    (line,) = result.stderr.splitlines()
    assert line.startswith("warning: weights has a mean of 70")
