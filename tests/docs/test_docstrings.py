"""The examples in docstrings, carried out: what they print is what they promise."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import calibrant
from calibrant.calibrators import registry

SOURCE = Path(calibrant.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if ">>>" in path.read_text(encoding="utf-8")
)


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "METHODS", dict(registry.METHODS))  # an example registers a method
    result = doctest.testmod(importlib.import_module(name))
    registry._tasks.cache_clear()
    assert result.attempted > 0
    assert result.failed == 0
