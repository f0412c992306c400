"""What the verbs share that read many parts: the options `--engine` and `--skip-bad-parts`, and their report."""

from __future__ import annotations

from typing import Any

import typer

ENGINE = typer.Option(
    "local", "--engine", help="Where passes run: local, dask, or the address of a scheduler (tcp://…)."
)
SKIP_BAD_PARTS = typer.Option(
    False, "--skip-bad-parts", help="Leave out parts of a folder or pattern that cannot be read; they are reported."
)


def skipped_words(predictions: Any) -> str:
    """How many parts were left out and why; empty if none were."""
    skipped = predictions.skipped
    if not skipped:
        return ""
    return f"{len(skipped)} bad part{'s' if len(skipped) > 1 else ''} left out: " + "; ".join(skipped)
