"""`calibrant diff OLD NEW`: what changed between two results, and what of it is more than noise."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from calibrant.cli import options
from calibrant.cli.drawing import GREY, console, show_table
from calibrant.cli.terminal import CHECK_FAILED, say
from calibrant.evaluation.difference import CHANGE, Difference
from calibrant.evaluation.difference import diff as run

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
    headline, table = len(difference.headlines), difference.table(everything=everything)
    for place, line in enumerate(difference.summary()):
        out.print(Text(line, "bold" if place < headline else GREY), soft_wrap=True)
    if table.rows:
        out.print()
        show_table(out, table, CHANGE)
    left = len(difference.changes) - len(table.rows)
    if left:
        out.print(Text(f"\n{left} figures within noise are not shown: --all shows them", GREY))
