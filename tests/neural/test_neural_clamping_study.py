"""The Neural Clamping study in small, and the shared checkpoints in full agreement with their stored logits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")
torch.set_num_threads(1)
STUDY = Path(__file__).resolve().parents[2] / "papers" / "neural_clamping"


@pytest.fixture
def study(monkeypatch):
    """Import a file of the study by name, and forget it afterwards: other studies have files of the same names."""
    monkeypatch.syspath_prepend(str(STUDY.parent / "soft_objectives"))
    monkeypatch.syspath_prepend(str(STUDY))
    before = set(sys.modules)
    yield __import__
    for name in set(sys.modules) - before:
        if str(STUDY.parent) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_tiny_study_runs(tmp_path) -> None:
    options = ["--tiny", "--seeds", "2", "--epochs", "2", "--gammas", "0", "0.5", "--out", str(tmp_path)]
    command = [sys.executable, str(STUDY / "clamp.py"), "--network", "tiny", *options]
    subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    result = json.loads((tmp_path / "tiny.json").read_text())
    assert {run["start"] for run in result["runs"]} == {"data-driven", "normal"}
    assert [score["penalty"] for score in result["scores"]] == ["T alone"] * 2 + [0.001] * 2 + [10.0] * 2
    assert set(result["runs"][0]) >= {"joint", "input_only", "output_only", "temperature", "delta_norm"}
    assert len(result["shift"]) == 25
    with np.load(tmp_path / "tiny-logits-1.npz") as file:
        assert file["test"].shape == (64, 4)
    assert {run["start"] for run in result["published"]["runs"]} == {"data-driven", "normal"}


@pytest.mark.parametrize(
    ("gamma", "penalty", "start", "rate"),
    [(0.0, 0.1, "zeros", 0.05), (0.5, 10.0, "normal", 0.05), (0.2, 0.1, "normal", 0.4)],
)
def test_fits_side_by_side_are_those_of_the_library(study, gamma, penalty, start, rate, monkeypatch) -> None:
    import calibrant as cal
    from calibrant.neural import neural_clamping

    monkeypatch.setattr(neural_clamping, "accuracy_loss", lambda *_: "")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5))
    inputs = torch.randn(300, 3, 8, 8) * torch.tensor([1.0, 10.0, 0.1])[:, None, None]
    labels = (4 * net(inputs).detach() + torch.randn(300, 5)).argmax(1)
    options = {"epochs": 8, "batch_size": 64, "patience": 2}
    one = cal.NeuralClamping(gamma, penalty, start, learning_rate=rate, seed=3, **options)
    one.fit(net, [(inputs, labels)])
    batched = study("batched")
    units = batched.input_units(inputs)
    begin = 0.1 * units * torch.randn(units.shape, generator=torch.Generator().manual_seed(3))
    begin = begin if start == "normal" else torch.zeros_like(units)
    temperature = study("clamp").best_temperature(net(inputs).detach(), labels)
    rows = torch.arange(300)
    fits = [batched.Fit(0.3, 0.1, 0 * begin, temperature, rows, 1, rate)]
    fits += [batched.Fit(gamma, penalty, begin, temperature, rows, 3, rate)]
    fits += [batched.Fit(gamma, penalty, 0 * begin, temperature, rows[:100], 3, rate)]
    found = batched.fit_many(net, inputs, labels, fits, **options)[1]
    torch.testing.assert_close(found.delta, one.delta_, atol=1e-4, rtol=1e-4)
    assert found.temperature == pytest.approx(one.temperature_, rel=1e-4)
    assert found.trace == pytest.approx(one.loss_trace_, rel=1e-4)


def test_figures_are_those_of_the_library(study) -> None:
    from calibrant import metrics

    rng = np.random.default_rng(0)
    logits, labels = 2 * rng.normal(size=(500, 6)), rng.integers(0, 6, 500)
    found = study("clamp_figures").figures(torch.from_numpy(logits), torch.from_numpy(labels))
    expected = {
        "accuracy": metrics.accuracy(logits, labels, from_logits=True),
        "ece": metrics.ece(logits, labels, from_logits=True),
        "ace": metrics.adaptive_ece(logits, labels, from_logits=True),
        "nll": metrics.nll(logits, labels, from_logits=True),
        "entropy": metrics.entropy(logits, labels, from_logits=True),
        "sce": np.mean(metrics.classwise_ece(logits, labels, from_logits=True)),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(float(value), abs=1e-6), name


@pytest.mark.parametrize(("checkpoint", "name"), [("c100_resnet20_ce", "cifar100"), ("c10_resnet20_ce", "cifar10")])
def test_checkpoints_give_the_stored_logits(checkpoint: str, name: str, shared_data, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(STUDY))
    import resnet20

    model = resnet20.load_resnet20(shared_data / "zoo" / f"{checkpoint}.safetensors")
    images, labels = resnet20.read_images(shared_data / "cifar", name, "test", 60)
    with np.load(shared_data / "zoo" / f"{checkpoint}.npz") as file:
        stored, truth = file["test_logits"][:60].astype(np.float32), file["test_labels"][:60]
    with torch.no_grad():
        assert float((model(images) - torch.from_numpy(stored)).abs().max()) < 0.05
    np.testing.assert_array_equal(labels.numpy(), truth)
