"""`calibrant diff OLD NEW`: what changed between two results, and what of it is more than noise."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from calibrant.cli import options
from calibrant.cli.terminal import BLUE, CHECK_FAILED, GREY, ORANGE, console, say
from calibrant.evaluation.difference import Difference, change_cells
from calibrant.evaluation.difference import diff as run

HEADS = ("method", "metric", "old", "new", "change", "")
LEFT = (0, 1, 5)
"""Columns of words; the others are numbers and stand at the right."""
STYLES = {"better": f"bold {BLUE}", "worse": f"bold {ORANGE}", "within noise": GREY, "no interval": GREY}
OLD = "A report, or the output of compare --json or measure --json."


def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help=OLD)],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The same of a later run.")],
    *,
    everything: Annotated[bool, typer.Option("--all", help="Show every figure, also those within noise.")] = False,
    fail_on_worse: Annotated[
        bool,
        typer.Option(
            "--fail-on-worse", help="Exit 1 when the deciding metric of the best method is worse beyond noise."
        ),
    ] = False,
    markdown: options.Markdown = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare two reports or results: which figures got better or worse by more than their noise.

    The deciding metric of the best method is judged by itself; all other figures are adjusted for their number.
    """
    result = run(old, new)
    if as_json:
        typer.echo(result.to_json())
    elif markdown:
        say(result.to_markdown(everything=everything), nl=False)
    else:
        _show(result, everything)
    if fail_on_worse and result.worse:
        raise typer.Exit(CHECK_FAILED)


def _show(difference: Difference, everything: bool) -> None:
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
