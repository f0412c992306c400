"""`calibrant convert`: formats in, formats out, and nothing written when the input is bad."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from calibrant.cli import app
from calibrant.data import open_parts, open_predictions

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(6, 3)).astype(np.float32)
LABELS = RNG.integers(0, 3, 6)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["calibrant", "convert", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        app.main()
    return int(left.value.code or 0)


@pytest.mark.parametrize("suffix", ["npz", "npy", "parquet", "safetensors", "csv", "csv.gz"])
def test_from_a_pickle_to_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    (tmp_path / "in.p").write_bytes(pickle.dumps((LOGITS, LABELS)))
    assert run(monkeypatch, tmp_path / "in.p", tmp_path / f"out.{suffix}") == 0
    assert "6 rows × 3 classes, logits" in capsys.readouterr().out
    np.testing.assert_array_equal(open_predictions(tmp_path / f"out.{suffix}").logits.astype(np.float32), LOGITS)


def test_both_parts_of_a_published_pickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.p").write_bytes(pickle.dumps(((LOGITS, LABELS), (LOGITS[:2], LABELS[:2]))))
    assert run(monkeypatch, tmp_path / "in.p", tmp_path / "out.npz", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["files"] == [str(tmp_path / "out.npz")]
    assert printed["parts"]["test"] == {"n": 2, "n_classes": 3, "kind": "logits", "dtype": "float32"}
    assert sorted(open_parts(tmp_path / "out.npz")) == ["test", "val"]
    assert run(monkeypatch, tmp_path / "in.p", tmp_path / "out.csv") == 2
    assert "pick one with #test" in capsys.readouterr().err
    assert run(monkeypatch, f"{tmp_path}/in.p#test", tmp_path / "out.csv") == 0


def bad_inputs(folder: Path) -> dict[str, Path]:
    poisoned = LOGITS.copy()
    poisoned[4, 2] = np.inf
    np.savez(folder / "inf.npz", logits=poisoned, labels=LABELS)
    np.savez(folder / "labels.npz", logits=LOGITS, labels=LABELS + 9)
    np.savez(folder / "keys.npz", x=LOGITS)
    (folder / "empty.npz").write_bytes(b"")
    (folder / "code.p").write_bytes(b"cos\nsystem\n(S'touch " + str(folder).encode() + b"/ran'\ntR.")
    (folder / "folder").mkdir()
    names = ("inf.npz", "labels.npz", "keys.npz", "empty.npz", "code.p", "folder", "missing.npz", "cifar10-resnet99")
    return {name: folder / name for name in names}


@pytest.mark.parametrize("suffix", ["npz", "npy", "parquet", "safetensors", "csv", "csv.gz", "pkl", "txt"])
def test_bad_input_is_one_line_exit_two_and_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    for name, path in bad_inputs(tmp_path).items():
        before = sorted(os.listdir(tmp_path))
        assert run(monkeypatch, path, tmp_path / f"out.{suffix}") == 2, name
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        suggestion = error.splitlines()[1:]
        assert len(suggestion) <= 1
        assert all(line.startswith("try: calibrant convert ") for line in suggestion)
        assert "Traceback" not in error
        if suffix not in ("pkl", "txt"):
            assert name in error
        assert sorted(os.listdir(tmp_path)) == before


def test_the_old_file_survives_a_failed_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = bad_inputs(tmp_path)
    np.savez(tmp_path / "out.npz", logits=LOGITS, labels=LABELS)
    before = (tmp_path / "out.npz").read_bytes()
    assert run(monkeypatch, paths["inf.npz"], tmp_path / "out.npz") == 2
    assert (tmp_path / "out.npz").read_bytes() == before


def test_a_file_is_not_rewritten_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "a.npz", logits=LOGITS, labels=LABELS)
    assert run(monkeypatch, tmp_path / "a.npz", tmp_path / "a.npz") == 2
    np.testing.assert_array_equal(open_predictions(tmp_path / "a.npz").logits, LOGITS)


def test_kind_and_labels_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "scores.npy", LOGITS)
    np.save(tmp_path / "y.npy", LABELS)
    arguments = (tmp_path / "scores.npy", tmp_path / "out.npz", "--labels", tmp_path / "y.npy")
    assert run(monkeypatch, *arguments) == 2
    assert run(monkeypatch, *arguments, "--kind", "probabilities") == 2
    assert not (tmp_path / "out.npz").exists()
    assert run(monkeypatch, *arguments, "--kind", "logits") == 0
    np.testing.assert_array_equal(open_predictions(tmp_path / "out.npz").labels, LABELS)
    assert run(monkeypatch, tmp_path / "out.npz", tmp_path / "no" / "out.npz") == 2


def test_no_cell_of_a_spreadsheet_is_a_formula(run, tmp_path):
    rows = "label,site,prob_=1+1,prob_dog\n=1+1,=cmd(),0.75,0.25\ndog,+1,0.5,0.5\ndog,-x,1e-3,0.999\ndog,-2,0.5,0.5\n"
    (tmp_path / "a.csv").write_text(rows)
    saved = tmp_path / "cal.safetensors"
    assert run("fit", tmp_path / "a.csv", "--method", "none", "-o", saved)[0] == 0
    for command in (["convert", tmp_path / "a.csv", tmp_path / "b.csv"],
                    ["apply", saved, tmp_path / "a.csv", "-o", tmp_path / "c.csv"]):  # fmt: skip
        assert run(*command, "--spreadsheet-safe")[0] == 0
        cells = [cell for line in (command[-1]).read_text().splitlines() for cell in line.split(",")]
        assert "'=cmd()" in cells
        assert "-2" in cells
        assert not [cell for cell in cells if cell[0] in "=+@" or cell == "-x"]
        assert run(*command)[0] == 0
        assert "=cmd()" in command[-1].read_text().replace(",", "\n").splitlines()
    code, _, err = run("convert", tmp_path / "a.csv", tmp_path / "b.npz", "--spreadsheet-safe")
    assert (code, err.count("\n")) == (2, 1)
