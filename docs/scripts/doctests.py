"""Griffe extension: a doctest without a heading gets one, so that the site shows it as code and not as a quotation."""

from __future__ import annotations

import re
from typing import Any

import griffe

HEADED = re.compile(r"^Examples\n-{3,}$", re.M)
FIRST = re.compile(r"^>>> ", re.M)


class Doctests(griffe.Extension):
    """Put `Examples` above the first prompt of a docstring that has no such section."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        text = obj.docstring.value if obj.docstring else ""
        if FIRST.search(text) and not HEADED.search(text):
            obj.docstring.value = FIRST.sub("Examples\n--------\n>>> ", text, count=1)  # type: ignore[union-attr]
