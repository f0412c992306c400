"""`calibrant diff OLD NEW`: what changed between two results, and what of it is more than noise."""

from __future__ import annotations

import typer
from rich.text import Text

from calibrant.cli import options
from calibrant.cli.drawing import GREY, Output
from calibrant.cli.terminal import CHECK_FAILED, say
from calibrant.evaluation.difference import Difference
from calibrant.evaluation.difference import diff as run


@options.verb
def diff(
    old: str,
    new: str,
    *,
    everything: bool = False,
    fail_on_worse: bool = False,
    markdown: bool = False,
    as_json: bool = False,
) -> None:
    """Compare two reports or results: which figures got better or worse by more than their noise.

    The deciding metric of the best method is judged by itself; all other figures are adjusted for their number.

    Parameters
    ----------
    old : A report, or the output of compare --json or measure --json.
    new : The same of a later run.
    everything : Show every figure, also those within noise.
    fail_on_worse : Exit 1 when the deciding metric of the best method is worse beyond noise.
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
    out, table = Output(), difference.table(everything=everything)
    for place, line in enumerate(difference.summary()):
        out.print(Text(line, "bold" if place < len(difference.headlines) else GREY), soft_wrap=True)
    if table.rows:
        out.print()
        out.table(table)
    left = len(difference.changes) - len(table.rows)
    if left:
        out.note(f"\n{left} figures within noise are not shown: --all shows them")
