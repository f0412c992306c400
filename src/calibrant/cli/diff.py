"""`calibrant diff OLD NEW`: what changed between two results, and what of it is more than noise."""

import typer
from rich.text import Text

import calibrant as cal
from calibrant.cli.drawing import GREY, Output
from calibrant.cli.verbs import plain, verb


@verb
def diff(
    old: str,
    new: str,
    *,
    pair: str | None = None,
    everything: bool = False,
    fail_on_worse: bool = False,
    markdown: bool = False,
    as_json: bool = False,
) -> bool:
    """Compare two reports or results: which figures got better or worse by more than their noise.

    The deciding metric of the best method is judged by itself; all other figures are adjusted for their number.

    Parameters
    ----------
    old : A report, the output of compare --json or measure --json, or a file of predictions.
    new : The same of a later run; two files of predictions are compared row by row.
    pair : Column of identifiers of predictions, or order.
    everything : Show every figure, also those within noise.
    fail_on_worse : Exit 1 when the deciding metric of the best method is worse beyond noise.
    """
    result = cal.diff(old, new, pair=pair)
    if as_json:
        typer.echo(result.to_json())
    elif markdown:
        typer.echo(plain(result.to_markdown(everything=everything)), nl=False)
    else:
        out, table = Output(), result.table(everything=everything)
        for place, line in enumerate(result.summary()):
            out.print(Text(line, "bold" if place < len(result.headlines) else GREY), soft_wrap=True)
        if table.rows:
            out.print()
            out.table(table)
        left = len(result.changes) - len(table.rows)
        if left:
            out.note(f"\n{left} figures within noise are not shown: --all shows them")
    return fail_on_worse and result.worse
