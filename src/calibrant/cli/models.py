"""`calibrant models A B C`: models on the same rows, before and after calibration; and methods over all of them."""

from rich.text import Text

import calibrant as cal
from calibrant.cli.compare import finish
from calibrant.cli.drawing import Output
from calibrant.cli.verbs import Fields, progress_bar, verb
from calibrant.evaluation.models import open_models


@verb
def models(
    files: list[str],
    *,
    compared: Fields,
    pair: str | None = None,
    said: Fields,
    how: Fields,
    table: str = "",
    printed: Fields,
) -> bool:
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
    with progress_bar(printed["as_json"]):
        opened = open_models(files, **said)
        result = cal.compare_models(opened, pair=pair, **compared, **how)

    def shown(_: str) -> None:
        out = Output()
        out.note(result.sizes)
        tables = [table] if table else ["models", "groups", "methods"] if result.pairing else ["methods"]
        for one in map(result.short_table, tables):
            if one.rows:
                out.print(Text(f"\n{one.caption}", "bold"))
                out.table(one)
        if result.mark_legend:
            out.note("", result.mark_legend)

    sources = [f"{name}={','.join(part.name for part in halves if part)}" for name, halves in opened.items()]
    return finish(result, result.comparisons, sources, shown, show=table, **printed)
