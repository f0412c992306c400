"""What the verbs draw in a terminal with: the console, colours that everyone can tell apart, tables of results."""

from __future__ import annotations

import os
import shutil
from typing import Any

from rich.console import Console
from rich.text import Text

from calibrant.cli.terminal import CONTROL, plain
from calibrant.evaluation import rendering
from calibrant.evaluation.table import Table

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "grey50"
"""Okabe & Ito (2008): distinct under every common colour blindness; fills differ too, for terminals without colour."""


class _Output(Console):
    def print(self, *objects: Any, **options: Any) -> None:
        """Print, with control characters spelled out; colours come from styles, never from the text."""
        super().print(*(_plain_object(one) for one in objects), **options)

    def on_broken_pipe(self) -> None:
        """Leave it to the command, for which a reader that has seen enough is no failure; rich would exit with 1."""
        raise BrokenPipeError


def console() -> Console:
    """Standard output; 80 columns wide where nothing says otherwise, never wider than 120."""
    columns = shutil.get_terminal_size((80, 24)).columns
    width = min(max(columns, 60), 120)
    # no markup: a class may be called [/INST]
    no_color = bool(os.environ.get("NO_COLOR")) or None
    return _Output(width=width, highlight=False, soft_wrap=False, markup=False, emoji=False, no_color=no_color)


def _plain_object(one: Any) -> Any:
    if isinstance(one, str):
        return plain(one)
    if isinstance(one, Text) and CONTROL.search(one.plain):
        return Text(plain(one.plain), one.style)
    return one


def show_table(out: Console, table: Table, intervals: rendering.Intervals = False, missing: str = "—") -> None:
    """Print a table of results; the row that is best stands out."""
    style = rendering.TEXT._replace(escape=plain, missing=missing)
    for block in rendering.terminal(table, out.width, intervals=intervals, style=style):
        out.print(block, no_wrap=True, overflow="ellipsis")
