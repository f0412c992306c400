"""`calibrant diff OLD NEW`: what changed between two results, and what of it is more than noise."""

from __future__ import annotations

import typer

from calibrant.cli.plain import say

CHECK_FAILED = 1


def diff(
    old: str = typer.Argument(..., metavar="OLD", help="A report, or the output of compare --json or measure --json."),
    new: str = typer.Argument(..., metavar="NEW", help="The same of a later run."),
    *,
    everything: bool = typer.Option(False, "--all", help="Show every figure, also those within noise."),
    fail_on_worse: bool = typer.Option(
        False, "--fail-on-worse", help="Exit 1 when the deciding metric of the best method is worse beyond noise."
    ),
    markdown: bool = typer.Option(False, "--markdown", help="Print the table as Markdown."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Compare two reports or results: which figures got better or worse by more than their noise.

    The deciding metric of the best method is judged by itself; all other figures are adjusted for their number.
    """
    from calibrant.evaluation.difference import diff as run

    result = run(old, new)
    if as_json:
        typer.echo(result.to_json())
    elif markdown:
        say(result.to_markdown(everything=everything), nl=False)
    else:
        from calibrant.cli.diff_view import show

        show(result, everything=everything)
    if fail_on_worse and result.worse:
        raise typer.Exit(CHECK_FAILED)
