"""Where a page comes from: files and their hashes, versions, date and command."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from html import escape
from pathlib import Path

import numpy as np
import scipy
import sklearn

import calibrant
from calibrant.evaluation.results import Comparison

LARGEST_HASHED = 2_000_000_000
"""Bytes up to which a file is read for its hash."""


def provenance(comparison: Comparison, sources: Sequence[str], command: str | None) -> str:
    """The lines of the page's last table."""
    lines = [(_role(place, sources), described(source)) for place, source in enumerate(sources)]
    lines += [
        ("Rows", f"{comparison.n_val:,} to fit on, {comparison.n_test:,} to measure on"),
        ("Made", datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")),
        ("Versions", f"calibrant {calibrant.__version__}, Python {platform.python_version()}, numpy {np.__version__}, "
         f"scipy {scipy.__version__}, scikit-learn {sklearn.__version__}"),
    ]  # fmt: skip
    if command:
        lines.append(("Command", without_queries(command)))
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in lines)


def _role(place: int, sources: Sequence[str]) -> str:
    return ("Fitted on", "Measured on")[place] if len(sources) == 2 else "File"


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


def without_queries(text: str) -> str:
    """Addresses lose what follows the question mark: signed ones hold a secret there."""
    return " ".join(word.partition("?")[0] if "://" in word else word for word in text.split(" "))
