"""The recorded outputs come out again: see `record.py`, which also writes them anew."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def load_record() -> ModuleType:
    spec = importlib.util.spec_from_file_location("record", Path(__file__).parent / "record.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


record = load_record()


# The recorded values have nine significant digits, so that rounding moves a value by up to 1e-8 of itself.
#
# The order of summation changes a float64 sum of m terms by at most m·2^-53·Σ|x|. The files have m ≤ 10,000 rows and
# mean |x| ≤ 5, which gives 6e-12 in a mean. `compare` stores losses as float32, and a loss that is rounded to its other
# neighbor changes a mean over n ≥ 600 rows by 2^-24·5/600 = 5e-10. The absolute tolerance covers two such losses.
RELATIVE_TOLERANCE = 1e-8
ABSOLUTE_TOLERANCE = 1e-9


def differences(found: Any, kept: Any, where: str = "") -> list[str]:
    """Where two JSON values differ by more than rounding."""
    if isinstance(found, dict) and isinstance(kept, dict):
        names = [f"{where}: has {sorted(found)}, not {sorted(kept)}"] if found.keys() != kept.keys() else []
        return names + [
            text
            for name in found.keys() & kept.keys()
            for text in differences(found[name], kept[name], f"{where}/{name}")
        ]
    if isinstance(found, list) and isinstance(kept, list) and len(found) == len(kept):
        return [
            text for place in range(len(kept)) for text in differences(found[place], kept[place], f"{where}/{place}")
        ]
    if isinstance(found, float | int) and isinstance(kept, float | int):
        same = math.isclose(found, kept, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE) or (
            found != found and kept != kept
        )
        return [] if same else [f"{where}: {found} instead of {kept}"]
    if isinstance(found, str) and isinstance(kept, str):
        return [f"{where}: {text}" for text in text_differences(found, kept)]
    return [] if found == kept else [f"{where}: {found} instead of {kept}"]


def text_differences(found: str, kept: str) -> list[str]:
    """Lines that differ by more than spaces and one unit of a number's last printed digit."""
    mine, theirs = ([" ".join(line.split()) for line in text.splitlines()] for text in (found, kept))
    if len(mine) != len(theirs):
        return [f"{len(mine)} lines instead of {len(theirs)}"]
    return [f"{a!r} instead of {b!r}" for a, b in zip(mine, theirs, strict=True) if not same_line(a, b)]


def same_line(found: str, kept: str) -> bool:
    words = [record.NUMBER.split(text) for text in (found, kept)]
    numbers = [record.NUMBER.findall(text) for text in (found, kept)]
    return [w.strip() for w in words[0]] == [w.strip() for w in words[1]] and all(map(same_number, *numbers))


def same_number(found: str, kept: str) -> bool:
    a, b = (float(text.replace(",", "").replace("−", "-")) for text in (found, kept))
    places = len(kept.partition("e")[0].partition(".")[2])
    unit = 10.0**-places * (10.0 ** int(kept.partition("e")[2]) if "e" in kept else 1.0)
    whole = "." not in kept and "e" not in kept
    return a == b if whole and abs(b) < 100 else abs(a - b) <= 1.01 * unit


@pytest.mark.parametrize("case", record.cases())
def test_outputs_are_as_recorded(case: str) -> None:
    outputs: dict[str, str] = {}
    record.make([case], outputs.__setitem__)
    for name, found in outputs.items():
        kept = (record.OUTPUTS / name).read_text(encoding="utf-8")
        if name.endswith(".json"):
            changed = differences(json.loads(found), json.loads(kept))
        else:
            changed = text_differences(found, kept)
        assert not changed, f"{name}: {len(changed)} differ, such as:\n" + "\n".join(changed[:8])
