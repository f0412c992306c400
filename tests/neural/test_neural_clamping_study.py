"""The Neural Clamping study in small, and the shared checkpoints in full agreement with their stored logits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")
torch.set_num_threads(1)
STUDY = Path(__file__).resolve().parents[2] / "papers" / "neural_clamping"


def test_tiny_study_runs(tmp_path) -> None:
    command = [sys.executable, str(STUDY / "run.py"), "--tiny", "--out", str(tmp_path)]
    subprocess.run(command, capture_output=True, text=True, check=True, env={"OMP_NUM_THREADS": "1"})
    result = json.loads((tmp_path / "tiny.json").read_text())
    assert {run["start"] for run in result["runs"]} == {"data-driven", "normal"}
    assert len(result["scores"]) == 9 + 4
    assert set(result["runs"][0]) >= {"joint", "input_only", "output_only", "temperature", "delta_norm"}


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
