"""The tutorials run, and show what their kept notebooks show."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "scripts"))
import tutorials

pytest.importorskip("nbconvert")

NEEDS = {"torch": "torch", "own-csv": "pandas"}
NUMBER = re.compile(r"\d+(?:\.\d*)?")
TOLERANCE = {"torch": 0.3}
"""Relative; a network trained on another processor is another network. Elsewhere the last digits may differ."""


def printed(notebook: dict[str, Any]) -> list[str]:
    """What each cell wrote to its streams, warnings too."""
    return [
        "".join("".join(output["text"]) for output in cell.get("outputs", []) if output["output_type"] == "stream")
        for cell in notebook["cells"]
    ]


def displays(notebook: dict[str, Any]) -> list[list[str]]:
    """The kinds that each cell displayed."""
    return [
        [kind for output in cell.get("outputs", []) for kind in sorted(output.get("data", {}))]
        for cell in notebook["cells"]
    ]


@pytest.mark.parametrize("path", sorted(tutorials.FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_tutorial_shows_what_it_keeps(path: Path) -> None:
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem])
    kept, found = json.loads(path.read_text(encoding="utf-8")), tutorials.executed(path)
    for new, old in zip(printed(found), printed(kept), strict=True):
        assert NUMBER.sub("0", new).split() == NUMBER.sub("0", old).split()
        numbers = ([float(one) for one in NUMBER.findall(text)] for text in (new, old))
        assert next(numbers) == pytest.approx(next(numbers), rel=TOLERANCE.get(path.stem, 0.01), abs=0.02)
    assert displays(found) == displays(kept)
    assert {"text/html"} <= {kind for kinds in displays(kept) for kind in kinds}


def test_a_page_has_every_output_and_nothing_of_the_machine() -> None:
    for path in tutorials.FOLDER.glob("*.ipynb"):
        text, shown = tutorials.page(path)
        assert text.count('<div class="output"') == len(shown) >= 4
        assert "/home/" not in str(shown)
        assert "/tmp/" not in str(shown)
        assert path.stat().st_size < 200_000
