"""No command destroys an input or an unrelated file: an output that would is rejected before any work."""

from __future__ import annotations

import hashlib
import itertools
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import calibrant
from calibrant.cli.app import VERBS
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
        "convert parts/*.npz parts/a.npz",
        "convert d*.npz d.npz",
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


READ = "--resamples 20"
WRITING = {
    "fit": "fit d.npz --method ts -o {}",
    "select": "select vt.npz#val --candidates none,ts -o {}",
    "compare": f"compare d.npz e.npz --methods none,ts {READ} --report {{}}",
    "models": f"models a=d.npz,e.npz b=e.npz,d.npz --methods none,ts {READ} --report {{}}",
    "export": "export cal.safetensors --model net.onnx --onnx {}",
    "apply": "apply cal.safetensors x_logits.npy --labels x_labels.npy -o {}",
    "convert": "convert parts/a.npz {}",
    "monitor": "monitor log.jsonl --once --state {}",
    "serve": "serve cal.safetensors --port {port} --monitor-state {}",
}
"""Commands with an output file."""
READING = {
    "measure": f"measure d.npz {READ} --json",
    "info": "info cal.safetensors",
    "diff": "diff old.json old.json",
    "shift": "shift cal.safetensors fog_1.npz fog_2.npz",
}
PREDICTIONS = [".npz", ".npy", ".jsonl", ".csv"]
OUTPUTS = {
    "fit": [".safetensors"], "select": [".safetensors"], "compare": [".html"], "models": [".html"], "export": [".onnx"],
    "apply": PREDICTIONS, "convert": PREDICTIONS, "monitor": [], "serve": [],
}  # fmt: skip
"""Suffixes of existing files that the output may replace."""


def stored(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()}


@pytest.fixture
def all_inputs(folder, run):
    """The folder with further inputs, a hard link, and a link to the folder itself."""
    for level in (1, 2):
        shutil.copy("d.npz", f"fog_{level}.npz")
    Path("log.jsonl").write_text('{"confidence": 0.9, "correct": true}\n' * 3)
    Path("old.json").write_text(run("measure", "d.npz", "--resamples", 20, "--json")[1])
    Path("table.csv").write_text("logit_a,logit_b,label\n1,2,a\n2,1,b\n")
    Path("page.html").write_text("<p>unrelated</p>")
    Path("hard.npz").hardlink_to("e.npz")
    Path("alias").symlink_to(".")
    return folder


@pytest.mark.parametrize("verb", WRITING)
def test_no_command_changes_a_file_that_is_not_an_earlier_output_of_its_kind(verb, run, all_inputs):
    words = {word.split("#")[0].rpartition("=")[2] for part in WRITING[verb].split() for word in part.split(",")}
    inputs, before = {all_inputs / word for word in words}, stored(all_inputs)
    with socket.socket() as taken:  # a service that accepts its files ends here
        taken.bind(("127.0.0.1", 0))
        spellings = itertools.cycle(["{}", "./{}", "alias/{}", "{folder}/{}"])
        targets = [target for target in (*before, all_inputs / "link.npz") for _ in range(4 if target in inputs else 1)]
        for target, spelling in zip(targets, spellings, strict=False):
            name = spelling.format(target.relative_to(all_inputs), folder=all_inputs)
            command = WRITING[verb].format(name, port=taken.getsockname()[1])
            code, _, err = run(*command.split())
            after = stored(all_inputs)
            changed = {path for path, content in before.items() if after.get(path) != content}
            assert changed <= {target.resolve()} - inputs, (command, changed)
            assert not changed or target.suffix in OUTPUTS[verb], command
            assert code == 0 or (not changed and err.count("\n") == 1), (command, err)
            for path in changed:
                path.write_bytes(before[path])
            for path in after.keys() - before.keys():
                path.unlink()


def test_commands_that_only_read_change_nothing(run, all_inputs):
    before = contents(all_inputs)
    for command in READING.values():
        assert run(*command.split())[0] in (0, 1), command
        assert contents(all_inputs) == before, command


def test_each_command_is_covered():
    # `demo` has no inputs: it writes two files of fixed names to a folder
    assert {*WRITING, *READING, "demo"} == set(VERBS)
