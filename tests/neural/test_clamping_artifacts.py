"""A clamped network's artifact where only maps of logits are of use: one line that says so."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import calibrant as cal
from calibrant.cli.app import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("clamping")
    torch.manual_seed(0)
    inputs = torch.randn(120, 5)
    network = torch.nn.Linear(5, 3)
    labels = (network(inputs) + torch.randn(120, 3)).argmax(1).detach()
    clamping = cal.NeuralClamping(epochs=1, gamma=1.0, penalty=0.1, init="zeros")
    clamping.fit(network, [(inputs[:60], labels[:60]), (inputs[60:], labels[60:])])
    cal.save(clamping, path / "clamping.safetensors")
    logits = network(inputs).detach().numpy()
    for name in ("val", "test", "fog_1"):
        np.savez(path / f"{name}.npz", logits=logits + 0.1 * len(name), labels=labels.numpy())
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ("export", "clamping.safetensors", "--onnx", "out.onnx"),
        ("apply", "clamping.safetensors", "test.npz", "-o", "out.npz"),
        ("shift", "clamping.safetensors", "fog_1.npz"),
        ("compare", "val.npz", "test.npz", "-m", "none,neural-clamping"),
        ("fit", "val.npz", "--method", "neural-clamping", "-o", "out.safetensors"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_verbs_answer_in_one_line(folder, monkeypatch, capsys, arguments):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["calibrant", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "network" in err
    assert not list(folder.glob("out.*"))


def test_python_says_the_same(folder):
    clamping = cal.load(folder / "clamping.safetensors")
    table = cal.compare(folder / "val.npz", folder / "test.npz", {"none": cal.Identity(), "nc": clamping}, resamples=10)
    assert "part of a network" in table.row("nc").error
    with pytest.raises(cal.InputError, match="attach"):
        cal.CalibratedModule(torch.nn.Linear(5, 3), clamping)
