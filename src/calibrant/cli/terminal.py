"""What the verbs share when they draw in a terminal: the console and colours that everyone can tell apart."""

from __future__ import annotations

import os
import shutil
from typing import Any

from rich.console import Console
from rich.text import Text

from calibrant.cli.plain import CONTROL, plain

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "grey50"
"""Okabe & Ito (2008): distinct under every common colour blindness; fills differ too, for terminals without colour."""

EIGHTHS = " ▏▎▍▌▋▊▉█"


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


def bar(share: float, width: int) -> str:
    """A bar of `share` of `width` cells, to an eighth of a cell.

    >>> bar(0.5, 4)
    '██'
    """
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    return EIGHTHS[8] * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")
