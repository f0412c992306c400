"""Results of a study: tables, claims, measurements and the data of its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from studies.measuring import Estimate
from verdicts import Claim, claims_markdown


@dataclass(frozen=True)
class Table:
    """A table as it is printed: `rows` pairs a name with one text a column."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    note: str = ""

    def to_markdown(self) -> str:
        """Title, table, note."""
        lines = [f"### {self.title}", "", "| | " + " | ".join(self.columns) + " |"]
        lines.append("| --- |" + " ---: |" * len(self.columns))
        lines += ["| " + " | ".join([name, *cells]) + " |" for name, cells in self.rows]
        return "\n".join([*lines, "", *([self.note, ""] if self.note else [])])

    def to_dict(self) -> dict[str, Any]:
        """The printed texts without marks, by row and column."""
        rows = {name: dict(zip(self.columns, map(_plain, cells), strict=True)) for name, cells in self.rows}
        return {"title": self.title, "rows": rows}


@dataclass(frozen=True)
class Study:
    """The tables and claims of a study.

    figures : the data from which figures are drawn, by name
    measurements : the estimates from which claims are computed, by name
    """

    name: str
    tables: tuple[Table, ...]
    claims: tuple[Claim, ...]
    figures: dict[str, Any] = field(default_factory=dict)
    measurements: Mapping[str, Estimate] = field(default_factory=dict)

    def tables_markdown(self) -> str:
        """All tables."""
        return "\n".join(table.to_markdown() for table in self.tables)

    def claims_markdown(self) -> str:
        """The claims as a table for each kind."""
        return claims_markdown(self.claims)

    def to_dict(self) -> dict[str, Any]:
        """Tables and claims as plain data."""
        return {
            "study": self.name,
            "tables": [table.to_dict() for table in self.tables],
            "claims": [claim.to_dict() for claim in self.claims],
        }


def marked(columns: Sequence[Sequence[float]], texts: Sequence[Sequence[str]]) -> list[list[str]]:
    """The texts (columns of cells) with the lowest value of each column **bold** and the second <u>underlined</u>.

    Values are compared as printed with two places: what reads the same is marked the same.
    """
    result = []
    for values, words in zip(columns, texts, strict=True):
        printed = np.round(np.asarray(values, dtype=float), 2)
        levels = np.unique(printed[np.isfinite(printed)])
        cells = list(words)
        for place, value in enumerate(printed):
            if len(levels) and value == levels[0]:
                cells[place] = f"**{cells[place]}**"
            elif len(levels) > 1 and value == levels[1]:
                cells[place] = f"<u>{cells[place]}</u>"
        result.append(cells)
    return result


def by_row(names: Sequence[str], columns: Sequence[Sequence[str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Rows of a table from its columns."""
    return tuple((name, tuple(column[place] for column in columns)) for place, name in enumerate(names))


def _plain(text: str) -> str:
    for mark in ("**", "<u>", "</u>"):
        text = text.replace(mark, "")
    return text
