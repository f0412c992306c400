"""No command destroys an input or an unrelated file: an output that would is rejected before any work."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import calibrant
from calibrant.core.errors import InputError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Inputs of all commands in one folder, which is the working directory."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    logits = 2 * (np.eye(3)[labels] + rng.normal(size=(300, 3)))
    monkeypatch.chdir(tmp_path)
    np.savez("d.npz", logits=logits, labels=labels)
    np.savez("e.npz", logits=logits[::-1], labels=labels[::-1])
    np.savez("vt.npz", val_logits=logits, val_labels=labels, test_logits=logits, test_labels=labels)
    np.save("x_logits.npy", logits)
    np.save("x_labels.npy", labels)
    fitted = calibrant.TemperatureScaling().fit(logits, labels)
    calibrant.save(fitted, "cal.safetensors")
    calibrant.export_onnx(fitted, "net.onnx")
    Path("parts").mkdir()
    np.savez("parts/a.npz", logits=logits, labels=labels)
    weights = {"fc.weight": np.ones((3, 3))}
    safetensors.numpy.save_file(weights, "weights.safetensors")
    Path("notes.txt").write_text("unrelated")
    Path("link.npz").symlink_to("d.npz")
    return tmp_path


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize(
    "command",
    [
        "fit d.npz --method ts -o d.npz",
        "fit d.npz --method ts -o link.npz",
        "fit d.npz --method ts -o ./d.npz",
        "fit d.npz --method ts -o e.npz",
        "fit d.npz --method ts -o net.onnx",
        "fit vt.npz#val --method ts -o vt.npz",
        "fit x_logits.npy --labels x_labels.npy --method ts -o x_labels.npy",
        "fit parts --method ts -o parts/a.npz",
        "fit parts/*.npz --method ts -o parts/a.npz",
        "fit d.npz --method ts -o weights.safetensors",
        "select d.npz --candidates none,ts -o d.npz",
        "select d.npz --candidates none,ts -o notes.txt",
        "compare d.npz e.npz --methods none,ts --resamples 20 --report e.npz",
        "compare d.npz e.npz --methods none,ts --resamples 20 --report cal.safetensors",
        "models a=d.npz,e.npz b=e.npz,d.npz --methods none,ts --resamples 20 --report e.npz",
        "export cal.safetensors --onnx cal.safetensors",
        "export cal.safetensors --onnx d.npz",
        "export cal.safetensors --onnx net.onnx --model net.onnx",
        "apply cal.safetensors d.npz -o d.npz",
        "apply cal.safetensors d.npz -o cal.safetensors",
        "apply cal.safetensors d.npz --labels x_labels.npy -o x.npy",
        "apply cal.safetensors x_logits.npy -o x.npy",
        "convert vt.npz#val vt.npz",
        "convert x_logits.npy x.npy",
    ],
)
def test_a_command_that_would_destroy_a_file_is_rejected(run, folder, command):
    before = contents(folder)
    code, out, err = run(*command.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "choose another file to write" in err
    assert contents(folder) == before


def test_outputs_replace_files_of_their_own_kind(run, folder):
    for _ in range(2):
        assert run("fit", "d.npz", "--method", "ts", "-o", "new.safetensors")[0] == 0
        assert run("apply", "new.safetensors", "d.npz", "-o", "out.npz")[0] == 0
        assert run("export", "new.safetensors", "--onnx", "new.onnx")[0] == 0
        assert run("compare", "d.npz", "e.npz", "--methods", "none,ts", "--resamples", 20, "--report", "r.html")[0] == 0
        assert run("convert", "d.npz", "y.npy")[0] == 0


def test_an_artifact_replaces_a_damaged_one(folder):
    fitted = calibrant.load("cal.safetensors")
    Path("cal.safetensors").write_bytes(b"half an artifact")
    calibrant.save(fitted, "cal.safetensors")
    assert calibrant.load("cal.safetensors").temperature_ == fitted.temperature_


def test_a_folder_named_like_a_method_is_no_input(run, folder):
    Path("ts").mkdir()
    for _ in range(2):
        assert run("fit", "d.npz", "--method", "ts", "-o", "ts/cal.safetensors")[0] == 0


def test_python_functions_replace_files_of_their_own_kind_only(folder):
    before = contents(folder)
    fitted = calibrant.load("cal.safetensors")
    comparison = calibrant.compare("d.npz", "e.npz", ["none", "ts"], resamples=20)
    for write in (
        lambda: calibrant.save(fitted, "d.npz"),
        lambda: calibrant.save(fitted, "net.onnx"),
        lambda: calibrant.write_report(comparison, "cal.safetensors"),
        lambda: calibrant.export_onnx(fitted, "cal.safetensors"),
        lambda: calibrant.export_onnx(fitted, "net.onnx", model="net.onnx"),
    ):
        with pytest.raises(InputError, match="choose another file to write"):
            write()
    assert contents(folder) == before
