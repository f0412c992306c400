"""Files as people's tools write them are measured right; the script in benchmarks writes them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "realistic_files.py"


def test_realistic_files_are_measured_right(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("realistic_files", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules["realistic_files"] = script
    spec.loader.exec_module(script)
    found = script.run(tmp_path)
    assert len(found) >= 40
    assert {name: verdict for name, verdict in found.items() if verdict != "right"} == {}
