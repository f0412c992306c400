"""The training examples run to their end on tiny data; one whose framework is absent is skipped by name."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_plain_torch_loop() -> None:
    figures = load("train_torch").main(n=400, epochs=80)
    assert set(figures) == {"cross entropy", "focal + soft ECE", "cross entropy, interleaved soft ECE"}
    plain, trained = figures["cross entropy"], figures["focal + soft ECE"]
    assert trained["before"] < plain["before"]  # what training for calibration gains
    assert plain["after"] < plain["before"] / 2  # what a calibrator of held-out rows gains


def test_lightning() -> None:
    if not any(importlib.util.find_spec(name) for name in ("lightning", "pytorch_lightning")):
        pytest.skip("neither lightning nor pytorch_lightning is installed")
    outcome = load("train_lightning").main(n=400, epochs=20)
    assert outcome["seen"] == {"majority": 100, "held_out": 40}
    assert outcome["after"] < outcome["before"]


def test_hugging_face_trainer() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    outcome = load("train_huggingface").main(n=300, epochs=60)
    assert outcome["epochs"] == 60
    assert outcome["after"] < outcome["before"]
