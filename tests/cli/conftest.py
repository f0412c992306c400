"""What tests of the command line share."""

from __future__ import annotations

import pytest

from calibrant.cli.app import main


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a command in this process; returns exit code, stdout and stderr."""

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["calibrant", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
