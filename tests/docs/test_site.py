"""The site builds without a warning, and the generated tables are current."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    built = run("-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path))
    assert built.returncode == 0, built.stdout + built.stderr
    assert "WARNING" not in built.stdout + built.stderr
    home = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "fonts.googleapis" not in home, "the site asks another machine for fonts"
    assert (tmp_path / "reference" / "metrics" / "index.html").read_text(encoding="utf-8").count("doc-heading") > 30


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the table lists pts, which needs torch")
def test_generated_tables_are_current() -> None:
    checked = run("docs/scripts/tables.py", "--check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_method_has_a_page_and_a_picture() -> None:
    from calibrant.calibrators.registry import METHODS, SUFFIXES

    for method in [*METHODS.values(), *SUFFIXES.values()]:
        page = method.module.rsplit(".", 1)[1].replace("_", "-")
        assert (ROOT / "docs" / "methods" / f"{page}.md").exists(), f"no page for {method.class_name}"
        assert (ROOT / "docs" / "images" / "methods" / f"{page}.png").exists(), f"no picture for {method.class_name}"


def test_one_version_everywhere() -> None:
    import calibrant

    version = calibrant.__version__
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f"version: {version}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
