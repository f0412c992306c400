"""A user's script under `mypy --strict`: public names have types, and none of ten is `Any`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")
ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import numpy as np

import calibrant as cal
import calibrant.datasets

logits, labels = np.zeros((4, 2)), np.array([0, 1, 0, 1])
fitted = cal.TemperatureScaling(objective="nll").fit(logits, labels)
reveal_type(cal.TemperatureScaling)
reveal_type(fitted)
reveal_type(fitted.predict_proba(logits))
reveal_type(cal.get("ts").fit(logits, labels))
reveal_type(cal.AutoCalibrator().fit(logits, labels))
reveal_type(cal.TopLabelMap(cal.VectorScaling()).fit(logits, labels))
reveal_type(cal.open_predictions("val.npz"))
reveal_type(cal.compare((logits, labels), (logits, labels)))
reveal_type(cal.measure((logits, labels)))
reveal_type(cal.methods())
reveal_type(cal.InputError("one line"))
reveal_type(calibrant.datasets.load("cifar10-resnet18"))
cal.register("mine", cal.TemperatureScaling)
cal.save(fitted, "cal.safetensors")
"""

HEAVY = ("torch", "sklearn", "scipy", "pandas", "matplotlib", "altair", "dask", "onnx", "pyarrow", "numba", "polars")
"""Left unread, which saves most of the time; none of the names above is theirs."""


def test_a_strict_script_sees_types(tmp_path: Path) -> None:
    script, settings = tmp_path / "user.py", tmp_path / "mypy.ini"
    script.write_text(SCRIPT, encoding="utf-8")
    skipped = "".join(f"[mypy-{name}.*]\nfollow_imports = skip\nignore_missing_imports = true\n" for name in HEAVY)
    settings.write_text(f"[mypy]\nfollow_imports = silent\nignore_missing_imports = true\n{skipped}", encoding="utf-8")
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src"), "PYTHONPATH": ""}
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(settings), str(script)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    revealed = re.findall(r'Revealed type is "(.*)"', done.stdout)
    assert len(revealed) == SCRIPT.count("reveal_type"), done.stdout + done.stderr
    assert len(revealed) >= 10
    for one in revealed:
        # numpy writes the shape and dtype of any array as Any
        assert "Any" not in one.replace("numpy.ndarray[tuple[Any, ...], numpy.dtype[Any]]", "array"), one
    assert done.returncode == 0, done.stdout
