"""`calibrant compare VAL TEST`: every method fitted on one file, measured on the other; or one file, divided."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import typer
from rich.text import Text

import calibrant as cal
from calibrant.cli.drawing import Output
from calibrant.cli.verbs import Fields, plain, progress_bar, reading_lines, verb, warn
from calibrant.core.errors import InputError
from calibrant.evaluation.compare import open_halves
from calibrant.evaluation.results import Comparison
from calibrant.evaluation.shift import ShiftCurves, open_shift, shift
from calibrant.evaluation.tables import raised_words
from calibrant.metrics.record import facts
from calibrant.report.usage import usage

COLUMNS = (
    "ece", "adaptive_ece", "sce", "nll", "brier", "accuracy", "changed_predictions", "p_beats_best", "fit_seconds",
)  # fmt: skip
INTERVALS = ("ece", "nll")
"""Metrics whose interval is shown in a wide terminal."""
WIDE = 110


@verb
def compare(
    files: Annotated[list[str], typer.Argument(metavar="VAL TEST")],
    *,
    compared: Fields,
    said: Fields,
    how: Fields,
    shifted: list[str] | None = None,
    printed: Fields,
) -> bool:
    """Fit methods on VAL and measure them on TEST, with paired 95% intervals; says which to ship, and why.

    One file is enough: its parts val and test are used, or its rows are divided, clusters being kept together.

    Parameters
    ----------
    files : Predictions to fit on and to measure on; file#part picks one part.
    cv : Of one file: folds of a cross-fit, 5 unless --split is given.
    split : Of one file: share of rows to fit on; the others are measured on.
    methods : default (eight, by task), all, or short names: none,ts,cts,sms+top
    report : Write a self-contained HTML report to this path.
    shifted : Shifted predictions for the report, as `calibrant shift` reads them.
    latex : Print the table as LaTeX.
    columns : Metrics of the Markdown or LaTeX table, in order: nll,ece
    intervals : With 95% intervals in Markdown and LaTeX.
    """
    if shifted and printed["report"] is None:
        raise InputError("--shift adds a section to the report: give --report as well")
    conditions = open_shift(shifted) if shifted else None  # before the work: a wrong path must not cost it
    with progress_bar(printed["as_json"]):
        if len(files) > 2:
            raise InputError(f"compare takes VAL and TEST, or one file, but got {len(files)}: see calibrant models")
        val, test = open_halves(files[0] if len(files) == 1 else files, said)
        result = cal.compare(val, test, **compared, **how)
    if test is not None:
        files = [val.name, test.name]
    curves = None
    if conditions and result.fitted_methods:
        # ECE of the uncalibrated scores and, if there are any, of the best and the second over the severities
        two = (result.row(name) for name in (result.best, result.second) if name and name != "none")
        calibrators = {"none": None} | {row.method: row.calibrator for row in two}
        curves = shift(calibrators, conditions, metric_options={"n_bins": result.n_bins})
    screen = partial(show, result, files, read=reading_lines(val))
    return finish(result, {"": result}, files, screen, shift=curves, **printed)


def finish(
    result: Any,
    comparisons: Mapping[str, Comparison],
    sources: Sequence[str],
    screen: Callable[[str], None],
    *,
    report: str | None,
    markdown: bool,
    latex: bool,
    as_json: bool,
    columns: str | None,
    shift: ShiftCurves | None = None,
    **options: Any,
) -> bool:
    """Write the report; print JSON, Markdown, LaTeX or, given the command, the screen; say whether all methods failed.

    Below what is shown stands what the fits warned of, by the name of the model where there are several.
    """
    command = shlex.join(["calibrant", *sys.argv[1:]])
    if report is not None:
        cal.write_report(result, report, shift=shift, sources=sources, command=command)
    if as_json:
        typer.echo(result.to_json())
    elif markdown or latex:
        write = result.to_markdown if markdown else result.to_latex
        wanted = None if columns is None else columns.replace(" ", "").split(",")
        typer.echo(plain(write(columns=wanted, **options)), nl=False)
    else:
        screen(command)
        for name, one in comparisons.items():
            where = f"{name}: " if name else ""
            warn(f"{where}{who}: {text}" for who, text in one.fit_warnings)
            warn((f"{where}{text}" for text in one.warnings), "WARNING" if one.shares_rows else "note")
        if report is not None:
            typer.echo(plain(f"\nreport: {report}"))
    return not result.fitted_methods


def show(comparison: Comparison, sources: Sequence[str] = (), command: str = "", read: Sequence[str] = ()) -> None:
    """Print the verdict, the table and what its marks mean; of a command that read files, how to fit what to ship."""
    out, task, floor = Output(), comparison.task, comparison.noise_floor
    wide = out.width >= WIDE
    out.print(Text(comparison.verdict, "bold"))
    kind = "" if task == "pairs" else f", {comparison.n_classes} {'labels' if task == 'multilabel' else 'classes'}"
    out.note(f"{comparison.fitted}{kind}", *read)
    if floor is not None:
        out.note(f"noise floor: a calibrated model would show ECE {100 * floor.mean:.2f}% at this n")
    few = bool(comparison.too_few_rows)
    # of one probability per row the classwise ECE is the ECE again; answers never change
    untold = {
        "sce": task != "multiclass",
        "changed_predictions": task == "pairs",
        "p_beats_best": few,
        "adaptive_ece": task == "multiclass" and not wide,  # nine columns are more than a line holds
    }
    table = comparison.table().pick(name for name in COLUMNS if not untold.get(name))
    columns = {name: facts(name).column + "%" * facts(name).percent for name in table.columns}
    out.print()
    out.table(replace(table, columns=columns, intervals=INTERVALS if wide else False))
    out.note("", *([] if few else ["*: best; underlined: second; ≈: within noise of the best (paired resamples)"]))
    if wide and (words := raised_words(table.pick(INTERVALS))):
        out.note(words)
    changed = "" if task == "pairs" else "chg%: predictions changed; "
    out.note(f"{changed}{'' if few else 'P: chance of beating the best; '}fit: seconds", "")
    for line in comparison.conclusions:
        out.print(Text(line, "bold" * line.startswith("ship")))
    for title, text in usage(comparison.recommended, task, sources, command) if command else ():
        if title == "Command line":
            typer.echo(plain(f"  {text.splitlines()[0]}"))  # one line, to be copied
