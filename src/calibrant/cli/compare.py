"""`calibrant compare VAL TEST`: every method fitted on one file, measured on the other; `--models` does several."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

import calibrant as cal
from calibrant.cli.drawing import Output
from calibrant.cli.verbs import CHECK_FAILED, Fields, plain, progress_bar, verb, warn
from calibrant.core.atomic import check_target
from calibrant.core.errors import InputError
from calibrant.evaluation.models import NEEDS_PARTS, ModelComparison, short_names
from calibrant.evaluation.rendering import raised_words
from calibrant.evaluation.results import Comparison
from calibrant.evaluation.shift import open_shift, shift
from calibrant.metrics.record import facts
from calibrant.report.usage import model_files, usage

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
    models: bool = False,
    methods: str = "default",
    criterion: str = "nll",
    said: Fields,
    how: Fields,
    report: str | None = None,
    shifted: list[str] | None = None,
    markdown: bool = False,
    latex: bool = False,
    intervals: bool = False,
    as_json: bool = False,
) -> None:
    """Fit methods on VAL and measure them on TEST, with paired 95% intervals; says which to ship, and why.

    With --models: `calibrant compare --models a.npz b.npz` does so for each model and ranks the methods over all.

    Parameters
    ----------
    files : Predictions to fit on and to measure on; file#part picks one part.
    models : The files are models with the parts val and test each, or NAME=VAL,TEST: one matrix.
    methods : default (eight, by task), all, or short names: none,ts,cts,sms+top
    report : Write a self-contained HTML report to this path.
    shifted : Shifted predictions for the report, as `calibrant shift` reads them.
    latex : Print the table as LaTeX.
    intervals : With 95% intervals in Markdown and LaTeX.
    """
    if report is not None:
        check_target(report)
    elif shifted:
        raise InputError("--shift adds a section to the report: give --report as well")
    if shifted and models:
        raise InputError("--shift is about one model: leave out --models")
    conditions = open_shift(shifted) if shifted else None  # before the work: a wrong path must not cost it
    how["criterion"] = criterion
    result: Comparison | ModelComparison
    with progress_bar(as_json):
        if models:
            result = cal.compare_models(_opened(files, said), methods, **how)
        elif len(files) != 2:
            raise InputError(
                f"compare takes two files, VAL and TEST, but got {len(files)}: give both (--models takes more)"
            )
        else:
            val, test = (cal.open_predictions(file, **said) for file in files)
            result = cal.compare(val, test, methods, **how)
    if report is not None:
        command, curves = shlex.join(["calibrant", *sys.argv[1:]]), None
        if conditions and isinstance(result, Comparison) and result.best:
            # ECE of the uncalibrated scores, the best and the second over the severities
            chosen = [name for name in (result.best, result.second) if name and name != "none"]
            calibrators = {"none": None} | {name: result.row(name).calibrator for name in chosen}
            curves = shift(calibrators, conditions, metric_options={"n_bins": result.n_bins})
        cal.write_report(result, report, shift=curves, sources=files, command=command)
    if as_json:
        typer.echo(result.to_json())
    elif markdown or latex:
        write = result.to_markdown if markdown else result.to_latex
        typer.echo(plain(write(intervals=intervals)), nl=False)
    else:
        _show(result, report, files)
    if result.best is None:
        raise typer.Exit(CHECK_FAILED)


def _opened(files: list[str], said: Fields) -> Fields:
    """The rows to fit on and to measure on of every model, by its name."""
    found: Fields = {}
    models = list(map(model_files, files))
    names = [name for name, *_ in models]
    if names == [Path(given).stem for given in files]:
        names = short_names(names)  # names that the user chose stay
    for name, (_, *parts) in zip(names, models, strict=True):
        if name in found:
            raise InputError(f"two models are called {name}: give NAME=FILE with names that differ")
        try:
            found[name] = [cal.open_predictions(part, **said) for part in parts]
        except InputError as error:
            raise InputError(f"{error}; {NEEDS_PARTS}") from error
    return found


def _show(result: Comparison | ModelComparison, report: str | None, files: list[str]) -> None:
    """The table on a terminal, what to ship, and what the fits warned of."""
    command = shlex.join(["calibrant", *sys.argv[1:]])
    if isinstance(result, Comparison):
        show(result)
        if result.recommended not in (None, "none"):
            snippets = dict(usage(result.recommended, result.task, files, command))
            typer.echo(plain(f"  {snippets['Command line'].splitlines()[0]}"))  # one line, to be copied
        comparisons = {"": result}
    else:
        out, comparisons = Output(), result.comparisons
        out.print(Text(result.verdict, "bold"))
        out.note(result.sizes, "")
        out.table(result.short_table())
        out.note("", "*: best of the model; ≈: within noise of it; best or tied: on how many models either holds")
    for name, comparison in comparisons.items():
        where = f"{name}: " if name else ""
        warn(f"{where}{who}: {text}" for who, text in comparison.fit_warnings)
        warn((f"{where}{text}" for text in comparison.warnings), "WARNING")
    if report is not None:
        typer.echo(plain(f"\nreport: {report}"))


def show(comparison: Comparison) -> None:
    """Print the verdict, the table and what its marks mean."""
    out, task, floor = Output(), comparison.task, comparison.noise_floor
    wide = out.width >= WIDE
    out.print(Text(comparison.verdict, "bold"))
    kind = "" if task == "pairs" else f", {comparison.n_classes} {'labels' if task == 'multilabel' else 'classes'}"
    out.note(f"fitted on {comparison.n_val:,} rows, measured on {comparison.n_test:,}{comparison.weighed}{kind}")
    if floor is not None:
        out.note(f"noise floor: a calibrated model would show ECE {100 * floor.mean:.2f}% at this n")
    # of one probability per row the classwise ECE is the ECE again; answers never change
    untold = {"sce": task != "multiclass", "changed_predictions": task == "pairs"}
    untold["adaptive_ece"] = task == "multiclass" and not wide  # nine columns are more than a line holds
    table = comparison.table().pick(name for name in COLUMNS if not untold.get(name))
    columns = {name: facts(name).column + "%" * facts(name).percent for name in table.columns}
    out.print()
    out.table(replace(table, columns=columns, intervals=INTERVALS if wide else False))
    out.note("", "*: best; underlined: second; ≈: within noise of the best (paired resamples)")
    if wide and (words := raised_words(table.pick(INTERVALS))):
        out.note(words)
    changed = "" if task == "pairs" else "chg%: predictions changed; "
    out.note(f"{changed}P: chance of beating the best; fit: seconds", "")
    for line in comparison.advice:
        out.print(Text(line, "bold" * line.startswith("ship")))
