"""`calibrant models A B C`: models on the same rows, before and after calibration; and methods over all of them."""

import shlex
import sys
from typing import Annotated

import typer
from rich.text import Text

import calibrant as cal
from calibrant.cli.compare import show_warnings, written
from calibrant.cli.drawing import Output
from calibrant.cli.verbs import CHECK_FAILED, Fields, progress_bar, verb
from calibrant.core.atomic import check_target
from calibrant.evaluation.models import MARKS, open_models


@verb
def models(
    files: Annotated[list[str], typer.Argument(metavar="FILES")],
    *,
    methods: str = "default",
    criterion: str = "nll",
    pair: str | None = None,
    cv: int | None = None,
    split: float | None = None,
    said: Fields,
    how: Fields,
    report: str | None = None,
    table: str = "",
    printed: Fields,
) -> None:
    """Compare models on the same rows: paired differences with 95% intervals, by group too, and methods over all.

    Rows are paired by a column of identifiers that all files have, else by order with equal labels.

    Parameters
    ----------
    files : One per model: a file with the parts val and test, or without parts (cross-fitted); or NAME=VAL,TEST.
    methods : default (eight, by task), all, or short names: none,ts,cts,sms+top
    pair : Column of identifiers, order, or none: other rows in each file, so only methods are compared.
    cv : Of files without parts: folds of a cross-fit, 5 unless --split is given.
    split : Of files without parts: share of rows to fit on; the others are measured on.
    report : Write a self-contained HTML report to this path.
    table : models, groups, methods, or seeds (one model trained with several: mean ± standard deviation).
    latex : Print the table as LaTeX.
    columns : Columns of the Markdown or LaTeX table, in order: nll,ece
    intervals : With 95% intervals in Markdown and LaTeX.
    """
    if report is not None:
        check_target(report)
    with progress_bar(printed["as_json"]):
        opened = open_models(files, **said)
        result = cal.compare_models(opened, methods, criterion=criterion, pair=pair, cv=cv, split=split, **how)
    if report is not None:
        sources = [f"{name}={','.join(part.name for part in halves if part)}" for name, halves in opened.items()]
        cal.write_report(result, report, sources=sources, command=shlex.join(["calibrant", *sys.argv[1:]]))
    if not written(result, **printed, show=table):
        out = Output()
        out.note(result.sizes)
        shown = [table] if table else ["models", "groups", "methods"] if result.pairing else ["methods"]
        for one in map(result.short_table, shown):
            if one.rows:
                out.print(Text(f"\n{one.caption}", "bold"))
                out.table(one)
        out.note("", MARKS)
        show_warnings(result.comparisons, report)
    if result.best is None:
        raise typer.Exit(CHECK_FAILED)
