"""Griffe extension: parameters of a type that documents itself are listed in every function that takes them."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import griffe

MODULE = Path(__file__).parents[2] / "src" / "calibrant" / "metrics" / "inputs.py"
HEADING = "Parameters\n----------\n"
NEXT_SECTION = re.compile(r"^(?=\w+\n-{3,}$)", re.M)


def documented_types() -> dict[str, str]:
    """The aliases of the module by name, with the string below each."""
    body = ast.parse(MODULE.read_text(encoding="utf-8")).body
    return {
        alias.target.id: text.value.value
        for alias, text in pairwise(body)
        if isinstance(alias, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


class SharedParameters(griffe.Extension):
    """List the parameters whose types are documented once in `metrics/inputs.py`."""

    def __init__(self) -> None:
        self.types = documented_types()

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if not isinstance(obj, griffe.Function) or obj.docstring is None:
            return
        shared = {
            one.name: self.types[str(one.annotation)] for one in obj.parameters if str(one.annotation) in self.types
        }
        entries = []
        for name, text in shared.items():
            shape, _, meaning = text.partition(": ")
            entries.append(f"{name} : {shape[0].lower()}{shape[1:]}\n    {meaning[0].upper()}{meaning[1:]}\n")
        said = obj.docstring.value
        if entries and HEADING in said:
            obj.docstring.value = said.replace(HEADING, HEADING + "".join(entries), 1)
        elif entries:
            section = HEADING + "".join(entries) + "\n"
            place = NEXT_SECTION.search(said)
            at = len(said) if place is None else place.start()
            obj.docstring.value = said[:at] + section + said[at:]
