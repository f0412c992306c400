"""What a newcomer sees of the package, and what stays reachable beside it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import calibrant
from calibrant.calibrators.registry import class_names

NEEDS_TORCH = {"CalibratedModule", "NeuralClamping", "ParameterizedTemperatureScaling", "losses", "neural"}
TORCH = importlib.util.find_spec("torch") is not None


def test_the_package_shows_at_most_45_names_and_all_of_them_load() -> None:
    shown = [name for name in dir(calibrant) if not name.startswith("_")]
    assert len(shown) == len(set(shown)) <= 45
    assert {"measure", "compare", "get", "save", "load", "AutoCalibrator", "TemperatureScaling"} <= set(shown)
    for name in shown:
        if TORCH or name not in NEEDS_TORCH:
            assert getattr(calibrant, name) is not None
    assert sorted(calibrant.__all__) == dir(calibrant), "import * gives what dir shows"


@pytest.mark.parametrize("name", sorted(class_names()))
def test_every_calibrator_is_a_name_of_the_package(name: str) -> None:
    if name in NEEDS_TORCH and not TORCH:
        pytest.skip("needs torch")
    assert getattr(calibrant, name).__name__ == name


def test_the_reference_has_every_public_name() -> None:
    pages = (Path(__file__).resolve().parents[2] / "docs" / "reference").glob("*.md")
    entries = {line.rpartition(".")[2] for page in pages for line in page.read_text().splitlines() if "::: " in line}
    names = {*calibrant.__all__, *class_names()} - {"__version__", *calibrant._SUBMODULES}
    assert names <= entries, f"not in docs/reference: {sorted(names - entries)}"


def test_what_is_not_shown_is_imported_all_the_same_and_dir_stays_as_it_is() -> None:
    script = (
        "import calibrant, sys; before = dir(calibrant); from calibrant import WeightScaling, GroupCalibrator; "
        "assert 'WeightScaling' not in before and dir(calibrant) == before; "
        "assert 'numba' not in sys.modules and 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Temperature'"):
        calibrant.Temperature  # noqa: B018
