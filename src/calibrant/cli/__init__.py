"""The command line: one file per verb."""

from calibrant.cli.app import main

__all__ = ["main"]
