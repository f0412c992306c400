"""`calibrant --version` answers without a verb."""

from __future__ import annotations

from typer.testing import CliRunner

import calibrant
from calibrant.cli.app import build


def test_version_needs_no_verb() -> None:
    result = CliRunner().invoke(build(), ["--version"])
    assert result.exit_code == 0
    assert result.output.strip() == calibrant.__version__
