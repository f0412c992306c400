"""What every page is made of: the files beside this one, data inside a script element, and the policy's hashes."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from typing import Any


def embedded_json(value: Any) -> str:
    """JSON that may stand inside a script element: no text of the data can close it or open a comment."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str) -> str:
    """A file of this folder as text."""
    return files("calibrant.report").joinpath(name).read_text(encoding="utf-8")


def script_hash(script: str) -> str:
    """A script as a content security policy names it."""
    # a browser reads CR LF as LF before it hashes; none of our scripts holds a CR
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
