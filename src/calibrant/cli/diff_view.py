"""How a difference looks in a terminal: verdicts first, then one line per figure."""

from __future__ import annotations

from rich.text import Text

from calibrant.cli.terminal import BLUE, GREY, ORANGE, console
from calibrant.evaluation.difference import Difference, change_cells

HEADS = ("method", "metric", "old", "new", "change", "")
LEFT = (0, 1, 5)
"""Columns of words; the others are numbers and stand at the right."""
STYLES = {"better": f"bold {BLUE}", "worse": f"bold {ORANGE}", "within noise": GREY, "no interval": GREY}


def show(difference: Difference, *, everything: bool = False) -> None:
    """Print the sentences and the table."""
    out = console()
    headline, rest = len(difference.headlines), difference.summary()
    for place, line in enumerate(rest):
        out.print(Text(line, "bold" if place < headline else GREY), soft_wrap=True)
    rows = [change_cells(one) for one in difference.shown(everything=everything)]
    if not rows:
        return
    widths = [max(len(line[place]) for line in [HEADS, *rows]) for place in range(len(HEADS))]
    out.print()
    out.print(Text(_line(list(HEADS), widths), "bold"), soft_wrap=True)
    for row in rows:
        out.print(Text(_line(row[:-1], widths) + "  ") + Text(row[-1], STYLES.get(row[-1], "")), soft_wrap=True)
    left = len(difference.changes) - len(rows)
    if left:
        out.print(Text(f"\n{left} figures within noise are not shown: --all shows them", GREY))


def _line(cells: list[str], widths: list[int]) -> str:
    texts = [
        text.ljust(width) if place in LEFT else text.rjust(width)
        for place, (text, width) in enumerate(zip(cells, widths, strict=False))
    ]
    return "  ".join(texts)
