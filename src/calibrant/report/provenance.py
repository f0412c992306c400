"""Where a page comes from: files and their hashes, versions, date and command."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

import numpy as np
import scipy
import sklearn

import calibrant
from calibrant.evaluation.models import ModelComparison
from calibrant.evaluation.results import Comparison
from calibrant.report.snippets import model_files, without_queries

LARGEST_HASHED = 2_000_000_000
"""Bytes up to which a file is read for its hash."""


def provenance(comparison: Comparison, sources: Sequence[str], command: str | None) -> str:
    """The lines of the page's last table."""
    roles = ("Fitted on", "Measured on") if len(sources) == 2 else ["File"] * len(sources)
    lines = [(role, described(source)) for role, source in zip(roles, sources, strict=True)]
    lines.append(("Rows", f"{comparison.n_val:,} to fit on, {comparison.n_test:,} to measure on"))
    return _listed([*lines, *_made(command)])


def model_provenance(table: ModelComparison, sources: Sequence[str], command: str | None) -> str:
    """The same for several models: files by model."""
    lines = []
    for source in sources:
        name, val, test = model_files(source)
        files = dict.fromkeys(described(one.removesuffix("#val").removesuffix("#test")) for one in (val, test))
        lines.append((f"Model {name}", "; ".join(files)))
    for name, one in table.comparisons.items():
        lines.append((f"Rows of {name}", f"{one.n_val:,} to fit on, {one.n_test:,} to measure on"))
    return _listed([*lines, *_made(command)])


def _made(command: str | None) -> list[tuple[str, str]]:
    lines = [
        ("Made", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")),
        ("Versions", f"calibrant {calibrant.__version__}, Python {platform.python_version()}, numpy {np.__version__}, "
         f"scipy {scipy.__version__}, scikit-learn {sklearn.__version__}"),
    ]  # fmt: skip
    return [*lines, ("Command", without_queries(command))] if command else lines


def _listed(lines: list[tuple[str, str]]) -> str:
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in lines)


def described(source: str) -> str:
    """An address with size and SHA-256 where it is a file on this machine."""
    path = Path(source if Path(source).exists() else source.partition("#")[0])
    if not path.is_file() or path.stat().st_size > LARGEST_HASHED:
        return without_queries(source)
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return f"{source} ({path.stat().st_size:,} bytes, SHA-256 {digest.hexdigest()[:16]}…)"
