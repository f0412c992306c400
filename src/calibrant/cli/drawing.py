"""What the verbs draw in a terminal with: the console, colours that everyone can tell apart, tables of results."""

import shutil
from typing import Any

from rich.console import Console
from rich.text import Text

from calibrant.cli.verbs import CONTROL, plain
from calibrant.evaluation import tables
from calibrant.evaluation.tables import Table

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "grey50"
"""Okabe & Ito (2008): distinct under every common colour blindness; fills differ too, for terminals without colour."""


class Output(Console):
    """Standard output; 80 columns wide where nothing says otherwise, between 60 and 120."""

    def __init__(self) -> None:
        width = min(max(shutil.get_terminal_size().columns, 60), 120)
        # no markup: a class may be called [/INST]
        super().__init__(width=width, highlight=False, markup=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, with control characters spelled out; colours come from styles, never from the text."""
        safe = []
        for one in objects:
            if isinstance(one, Text) and CONTROL.search(one.plain):
                one = Text(plain(one.plain), one.style)  # noqa: PLW2901
            safe.append(plain(one) if isinstance(one, str) else one)
        super().print(*safe, **options)

    def note(self, *lines: str) -> None:
        """Print lines of lesser weight."""
        for line in lines:
            self.print(Text(line, GREY))

    def table(self, table: Table) -> None:
        """Print a table of results; the row that is best stands out."""
        for block in tables.terminal(table, self.width, tables.TEXT._replace(escape=plain)):
            self.print(block, no_wrap=True, overflow="ellipsis")
