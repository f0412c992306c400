"""`calibrant compare`, `select`, `shift` and `demo` as their user meets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import numpy as np
import pytest

import calibrant as library
from calibrant.cli import main


def schema(name: str) -> dict:
    return json.loads((files("calibrant") / "schemas" / f"{name}.json").read_text())


def command(*arguments: object) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-c", "from calibrant.cli import main; main()", *map(str, arguments)], {
        **os.environ,
        "COLUMNS": "80",
        "OPENBLAS_NUM_THREADS": "1",
    }


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
def folder(tmp_path_factory) -> Path:
    generator = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data")
    for name in ("val", "test", "fog_1", "fog_2", "snow_1", "snow_2", "clean_0"):
        labels = generator.integers(0, 5, 300)
        logits = 3 * (np.eye(5)[labels] + generator.normal(size=(300, 5)))
        np.savez(path / f"{name}.npz", logits=logits, labels=labels)
    return path


def test_table(calibrant, folder):
    result = calibrant("compare", folder / "val.npz", folder / "test.npz", "-m", "none,ts,vs", "--resamples", 100)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert max(map(len, lines[1:-1])) <= 80  # the last line is a command with paths
    assert " is best by NLL (" in lines[0]
    assert len([line for line in lines if line.startswith("method ")]) == 1  # one block of columns
    names = [line.split()[0].rstrip("*") for line in lines if line.strip()]
    assert [name for name in names if name in ("none", "ts", "vs")][-3:] == ["none", "ts", "vs"]


def test_the_last_lines_are_a_command_that_works(calibrant, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = (folder / "val.npz", folder / "test.npz", "--resamples", 50)
    last = calibrant("compare", *given).stdout.splitlines()[-5:]
    assert last[0] == ""
    assert last[1:3] == ["ship ts: best by NLL", "it changes 0.00% of the decisions"]
    assert last[3] == "300 rows determine the log loss to ±0.08; 2,000 rows would give ±0.03"
    words = last[4].split()
    assert words[:2] == ["calibrant", "fit"]
    assert calibrant(*words[1:]).returncode == 0
    assert isinstance(library.load(tmp_path / "calibrator.safetensors"), library.TemperatureScaling)
    assert json.loads(calibrant("compare", *given, "--json").stdout)["recommended"] == "ts"


@pytest.fixture(scope="module")
def few_errors(tmp_path_factory) -> Path:
    """200 rows to fit on, and sets of 40 rows with few wrong predictions."""
    generator = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("few")
    for name, n, errors in (("val", 200, 30), ("none", 40, 0), ("one", 40, 1), ("fog_1", 40, 9)):
        labels = generator.integers(0, 3, n)
        logits = 0.5 * generator.normal(size=(n, 3)) + 4 * np.eye(3)[(labels + (np.arange(n) < errors)) % 3]
        np.savez(path / f"{name}.npz", logits=logits, labels=labels)
    return path


@pytest.mark.parametrize("methods", ["none,ts,cts", "none,ts,auto"])
def test_too_few_rows_recommend_the_default_or_no_method(calibrant, few_errors, tmp_path, methods):
    val, test, page = few_errors / "val.npz", few_errors / "none.npz", tmp_path / "report.html"
    shifted = ("--shift", few_errors / "fog_1.npz") if methods.endswith("cts") else ()
    result = calibrant("compare", val, test, "-m", methods, "--resamples", 50, "--report", page, *shifted)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "0 of 40 predictions are wrong: too few to compare methods"
    assert not any(mark in result.stdout for mark in ("*", "≈", "ship", "best", "P:", " P "))
    place = lines.index("auto changes little until there is evidence")
    assert lines[place + 1].startswith("40 rows without a wrong prediction limit its share to 8.8%")
    default = methods.endswith("auto")
    assert ("--method auto" in result.stdout) == default == ("calibrant fit" in result.stdout)
    assert page.read_text().count("40 rows without a wrong prediction limit its share") == 2  # the page and its data
    printed = json.loads(calibrant("compare", val, test, "-m", methods, "--resamples", 50, "--json").stdout)
    jsonschema.validate(printed, schema("compare"))
    assert printed["too_few_rows"] == "0 of 40 predictions are wrong"
    assert (printed["best"], printed["recommended"]) == (("auto",) * 2 if default else (None, None))


def test_select_ranks_no_candidates_on_too_few_rows(calibrant, few_errors, tmp_path):
    output = tmp_path / "chosen.safetensors"
    given = ("select", few_errors / "one.npz", "--candidates", "vs,none,ts", "-o", output)
    lines = calibrant(*given).stdout.splitlines()
    assert lines[0] == "1 of 40 predictions is wrong: too few to compare methods"
    assert [line.split()[0] for line in lines[2:5]] == ["vs", "none", "ts"]
    assert not any("→" in line or "±" in line or "best" in line for line in lines)
    assert lines[5] == "read: logits logits, labels labels"
    assert lines[6].startswith("wrote ")
    printed = json.loads(calibrant(*given, "--json").stdout)
    jsonschema.validate(printed, schema("select"))
    assert printed["too_few_rows"] == "1 of 40 predictions is wrong"


def test_fit_states_the_precision_of_its_rows(calibrant, few_errors, tmp_path):
    given = ("fit", few_errors / "val.npz", "--method", "ts", "-o", tmp_path / "ts.safetensors")
    rows = np.load(few_errors / "val.npz")
    z = rows["logits"]
    losses = np.log(np.exp(z).sum(axis=1)) - z[np.arange(200), rows["labels"]]
    expected = 1.959964 * losses.std(ddof=1) / np.sqrt(200)
    precision = json.loads(calibrant(*given, "--json").stdout)["precision"]
    assert precision["half_width"] == pytest.approx(expected, rel=1e-6)
    assert f"{precision['text']}." in calibrant(*given).stdout.splitlines()
    assert precision["text"].startswith(f"200 rows determine the log loss to ±{float(f'{expected:.1g}')}; 2,000 rows")


def test_a_warning_of_many_methods_is_one_line(calibrant, folder, tmp_path):
    for name in ("val", "test"):
        rows = np.load(folder / f"{name}.npz")
        p = np.exp(rows["logits"])
        p = np.where(p < p.max() * 1e-6, 0, p)
        np.savez(tmp_path / f"{name}.npz", probabilities=p / p.sum(axis=1, keepdims=True), labels=rows["labels"])
    given = ("compare", tmp_path / "val.npz", tmp_path / "test.npz", "--resamples", 20)
    result = calibrant(*given, "--report", tmp_path / "report.html")
    lines = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    zeros = [line for line in lines if "hold a probability of 0" in line]
    assert len(zeros) == 1
    assert zeros[0].startswith("warning: 7 methods: ")
    assert "warning: svs, cts: made for logits, fitted on logarithms of probabilities" in lines
    page = (tmp_path / "report.html").read_text()
    assert page.count("<li><code>7 methods</code>") == 1


def test_fit_without_a_method_takes_the_default(calibrant, folder, tmp_path):
    for name, method in (("auto", ["-m", "auto"]), ("none", [])):
        assert calibrant("fit", folder / "val.npz", *method, "-o", tmp_path / name).returncode == 0
    logits = np.load(folder / "test.npz")["logits"]
    np.testing.assert_array_equal(*(library.load(tmp_path / name).predict_proba(logits) for name in ("auto", "none")))


def test_json_markdown_latex(calibrant, folder):
    given = ("compare", folder / "val.npz", folder / "test.npz", "-m", "none,ts", "--resamples", 50)
    document = json.loads(calibrant(*given, "--json").stdout)
    jsonschema.validate(document, schema("compare"))
    assert document["best"] == "ts"
    assert calibrant(*given, "--markdown").stdout.startswith("| method |")
    assert r"\begin{tabular}" in calibrant(*given, "--latex").stdout


def test_report_and_its_folder(calibrant, folder, tmp_path):
    given = ("compare", folder / "val.npz", folder / "test.npz", "-m", "none,ts", "--resamples", 50)
    result = calibrant(*given, "--report", tmp_path / "report.html")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "report.html").stat().st_size > 10_000
    shifted = (option for name in ("clean_0", "fog_1", "snow_1") for option in ("--shift", folder / f"{name}.npz"))
    assert calibrant(*given, "--report", tmp_path / "shift.html", *shifted).returncode == 0
    assert "severity" in (tmp_path / "shift.html").read_text().lower()
    assert "give --report" in calibrant(*given, "--shift", folder / "fog_1.npz").stderr
    wrong = calibrant(*given, "--report", tmp_path / "wrong.html", "--shift", folder / "absent_1.npz")
    assert (wrong.returncode, wrong.stdout, (tmp_path / "wrong.html").exists()) == (2, "", False)
    missing = calibrant(*given, "--report", tmp_path / "absent" / "report.html")
    assert missing.returncode == 2
    assert missing.stderr.count("\n") == 1
    assert "does not exist" in missing.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line(folder):
    line, settings = command(
        "compare", folder / "val.npz", folder / "test.npz", "-m", "none", "--resamples", 20, "--json"
    )
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            line, stdout=full, stderr=subprocess.PIPE, text=True, env=settings, timeout=120, check=False
        )
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_bad_requests(calibrant, folder):
    for arguments, words in (
        (("-m", "tss"), "no method is called 'tss'"),
        (("--criterion", "eec"), "no metric 'eec'"),
        (("-m", ""), "methods is empty"),
    ):
        result = calibrant("compare", folder / "val.npz", folder / "test.npz", *arguments)
        assert result.returncode == 2
        assert words in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1


def test_select_saves_what_it_chose(calibrant, folder, tmp_path):
    output = tmp_path / "cal.safetensors"
    given = ("select", folder / "val.npz", "--candidates", "none,ts")
    result = calibrant(*given, "-o", output)
    assert result.returncode == 0, result.stderr
    assert "→ ts" in result.stdout
    assert library.load(output).temperature_ > 1
    document = json.loads(calibrant(*given, "-o", output, "--json").stdout)
    jsonschema.validate(document, schema("select"))
    assert document["chosen"] == "ts"
    assert document["reason"].endswith(".")


def test_what_is_selected_on_one_score_applies_to_one_score(calibrant, tmp_path):
    score, file, output = np.random.default_rng(0).normal(size=400), tmp_path / "one.npz", tmp_path / "cal.safetensors"
    np.savez(file, probability=1 / (1 + np.exp(-2 * score)), labels=(score > np.roll(score, 1)).astype(int))
    assert calibrant("select", file, "-o", output).returncode == 0
    assert calibrant("apply", output, file, "-o", tmp_path / "out.npz").returncode == 0


def test_compare_tells_what_the_fits_warned_of(calibrant, tmp_path):
    np.savez(tmp_path / "one.npz", logits=np.random.default_rng(0).normal(size=(40, 3)), labels=np.zeros(40, dtype=int))
    result = calibrant("compare", tmp_path / "one.npz", tmp_path / "one.npz", "-m", "none,ts", "--resamples", 5)
    assert result.returncode == 0
    assert result.stderr.startswith("warning: ts: ")


def test_select_tells_warnings_in_its_own_words(calibrant, tmp_path):
    logits = np.random.default_rng(0).normal(size=(40, 3))
    np.savez(tmp_path / "one.npz", logits=logits, labels=np.zeros(40, dtype=int))
    given = ("select", tmp_path / "one.npz", "--candidates", "none,ts", "-o", tmp_path / "cal.safetensors")
    result = calibrant(*given)
    assert result.returncode == 0
    assert result.stderr.splitlines()
    assert all(line.startswith("warning: ") for line in result.stderr.splitlines())
    machine = calibrant(*given, "--json")
    assert machine.stderr == ""
    assert json.loads(machine.stdout)["warnings"]


def test_shift_over_files_and_artifacts(calibrant, folder, tmp_path):
    output = tmp_path / "cal.safetensors"
    assert calibrant("select", folder / "val.npz", "--candidates", "ts", "-o", output).returncode == 0
    names = ("clean_0", "fog_1", "fog_2", "snow_1", "snow_2")
    given = ("shift", output, *(folder / f"{name}.npz" for name in names))
    result = calibrant(*given)
    assert result.returncode == 0, result.stderr
    assert "severity 2" in result.stdout
    document = json.loads(calibrant(*given, "--json", "--metric", "nll", "--with", output).stdout)
    jsonschema.validate(document, schema("shift"))
    assert document["methods"] == ["none", "cal", "cal'"]
    assert document["mean"][1][0] < document["mean"][0][0]


def test_demo_ends_with_the_report(calibrant, tmp_path):
    result = calibrant("demo", "--out", tmp_path / "out", "--resamples", 50)
    assert result.returncode == 0, result.stderr
    report = Path(result.stdout.splitlines()[-1])
    assert report.name == "report.html"
    assert report.is_file()
    fitted = library.load(tmp_path / "out" / "cal.safetensors")
    test = library.open_predictions("cifar100-resnet18#test")
    before = library.metrics.ece(test.probabilities, test.labels)
    assert library.metrics.ece(fitted.predict_proba(test.logits), test.labels) < before / 2
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["cal.safetensors", "report.html"]


def test_demo_into_a_file_is_refused_with_a_remedy(calibrant, tmp_path):
    target = tmp_path / "out"
    target.write_text("kept")
    result = calibrant("demo", "--out", target, "--resamples", 50)
    assert result.returncode == 2
    assert f"{target} is not a folder; choose another one" in result.stderr
    assert target.read_text() == "kept"


def test_killed_half_way_nothing_is_half_written(tmp_path):
    line, settings = command("demo", "--out", tmp_path / "out", "--resamples", 50)
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=settings)
    deadline = time.monotonic() + 300
    while not (tmp_path / "out").is_dir() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert list((tmp_path / "out").glob("[!.]*")) == []


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root and Windows ignore the mode of a folder")
def test_unwritable_folder_is_one_line(calibrant, folder, tmp_path):
    tmp_path.chmod(0o500)
    result = calibrant("select", folder / "val.npz", "-o", tmp_path / "cal.safetensors", "--candidates", "ts")
    tmp_path.chmod(0o700)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1


def test_select_columns_align(calibrant, folder, tmp_path):
    output = tmp_path / "cal.safetensors"
    out = calibrant("select", folder / "val.npz", "--candidates", "none,ts,conf+shape+keep", "-o", output).stdout
    rows = [line for line in out.splitlines() if "±" in line]
    assert len(rows) == 3
    assert len({line.index("±") for line in rows}) == 1
    assert len({line.rindex(".", 0, line.index("±")) for line in rows}) == 1


def test_select_shows_the_average_in_short_and_names_the_fit_data(calibrant, folder, tmp_path):
    output = tmp_path / "cal.safetensors"
    out = calibrant("select", folder / "val.npz", "-o", output).stdout
    rows = [line for line in out.splitlines() if "difference to the best" in line]
    assert any("→ their average " in line for line in rows)
    assert len({line.index("±") for line in rows}) == 1
    assert max(map(len, rows)) <= 80
    assert "unknown number of rows" not in calibrant("info", output).stdout
