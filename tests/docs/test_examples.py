"""The examples run to their end on small data, and what they show is so; one whose package is absent is skipped."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_file_of_many_classes(tmp_path: Path) -> None:
    table = load("imagenet_logits").main(n=2000, n_classes=200, folder=tmp_path)
    assert (tmp_path / "cal.safetensors").exists()
    before, after = (table.row(name).metrics["ece"].value for name in ("none", table.best))
    assert after < before / 2


def test_a_hugging_face_classifier() -> None:
    pytest.importorskip("transformers")
    before, after = load("huggingface_classifier").main()
    assert after < before / 2


def test_gradient_boosting() -> None:
    pytest.importorskip("lightgbm")
    figures = load("lightgbm_sklearn").main(n=3000, n_estimators=60)
    assert figures["ts"][1] < figures["plain"][1]
    assert figures["shape"][1] < figures["plain"][1]


def test_deferral() -> None:
    outcome = load("medical_deferral").main()
    assert all(error <= 0.05 for _, _, error, _ in outcome.values())
    assert abs(outcome["ts+top"][3]) < abs(outcome["none"][3]) / 3  # confidence now means what it says


def test_long_tails() -> None:
    figures = load("long_tailed").main(n=4000)
    assert figures["label shift + ts"][0] > figures["ts"][0] + 0.1
    assert figures["label shift + ts"][1] < figures["ts"][1] / 2


def test_a_cluster() -> None:
    pytest.importorskip("distributed")
    done = subprocess.run(
        [sys.executable, EXAMPLES / "cluster.py"], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "has the bits of the local one: True" in done.stdout


def test_every_example_is_tried_somewhere() -> None:
    tried = Path(__file__).read_text(encoding="utf-8")
    tried += (EXAMPLES.parent / "tests" / "neural" / "test_training_examples.py").read_text(encoding="utf-8")
    for example in EXAMPLES.glob("*.py"):
        assert example.stem in tried, f"{example.name} is run by no test"
        assert example.read_text(encoding="utf-8").startswith('"""'), f"{example.name} does not say what it is"


def test_segmentation() -> None:
    figures = load("segmentation").main(n=24, steps=120)
    before, after = figures["before"], figures["after"]
    assert after["ece"] < before["ece"] / 3
    assert after["nll"] < before["nll"]
    assert after["accuracy"] == before["accuracy"]  # a temperature keeps every predicted class
    # the loop over batches and the whole file say the same
    assert abs(figures["measured"]["ece"] - after["ece"]) < 1e-5
