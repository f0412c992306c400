"""`calibrant compare VAL TEST`: every method fitted on one file, measured on the other; `--models` does several."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

import calibrant as cal
from calibrant.cli import options
from calibrant.cli.drawing import Output
from calibrant.cli.terminal import CHECK_FAILED, progress_bar, say, warn
from calibrant.core.atomic import check_target
from calibrant.core.errors import InputError
from calibrant.data import open_predictions
from calibrant.evaluation.compare import compare as run
from calibrant.evaluation.models import NEEDS_PARTS, ModelComparison, compare_models, short_names
from calibrant.evaluation.rendering import raised_words
from calibrant.evaluation.results import Comparison
from calibrant.evaluation.shift import ShiftCurves, Shifted, open_shift, shift
from calibrant.metrics.record import facts
from calibrant.report.usage import model_files

COLUMNS = (
    "ece", "adaptive_ece", "sce", "nll", "brier", "accuracy", "changed_predictions", "p_beats_best", "fit_seconds",
)  # fmt: skip
UNTOLD = {"pairs": ("sce", "changed_predictions"), "binary": ("sce",), "multilabel": ("sce",)}
"""Columns that say nothing new: of one probability per row the classwise ECE is the ECE again, answers never change."""
INTERVALS = ("ece", "nll")
"""Metrics whose interval is shown in a wide terminal."""
WIDE = 110


@options.verb
def compare(
    files: Annotated[list[str], typer.Argument(metavar="VAL TEST")],
    *,
    models: bool = False,
    methods: str = "all",
    criterion: str = "nll",
    said: dict[str, Any],
    how: dict[str, Any],
    report: str | None = None,
    shifted: list[str] | None = None,
    markdown: bool = False,
    latex: bool = False,
    intervals: bool = False,
    as_json: bool = False,
) -> None:
    """Fit every method on VAL and measure it on TEST, with paired 95% intervals; the best and its ties are marked.

    With --models: `calibrant compare --models a.npz b.npz` does so for each model and ranks the methods over all.

    Parameters
    ----------
    files : Predictions to fit on and to measure on; file#part picks one part.
    models : The files are models with the parts val and test each, or NAME=VAL,TEST: one matrix.
    methods : all, or short names: none,ts,cts,sms+top
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
    result: Comparison | ModelComparison
    with progress_bar(quiet=as_json):
        if models:
            result = compare_models(_opened(files, said), methods, criterion=criterion, **how)
        elif len(files) != 2:
            raise InputError(
                f"compare takes two files, VAL and TEST, but got {len(files)}: give both (--models takes more)"
            )
        else:
            val, test = (open_predictions(file, **said) for file in files)
            result = run(val, test, methods, criterion=criterion, **how)
    if report is not None:
        command = shlex.join(["calibrant", *sys.argv[1:]])
        cal.write_report(result, report, shift=_curves(result, conditions), sources=files, command=command)
    if as_json:
        typer.echo(result.to_json())
    elif markdown or latex:
        write = result.to_markdown if markdown else result.to_latex
        say(write(intervals=intervals), nl=False)
    else:
        _show(result, report)
    if result.best is None:
        raise typer.Exit(CHECK_FAILED)


def _opened(files: list[str], said: dict[str, Any]) -> dict[str, Any]:
    """The rows to fit on and to measure on of every model, by its name."""
    found: dict[str, Any] = {}
    models = [model_files(given) for given in files]
    names = [name for name, *_ in models]
    if names == [Path(given).stem for given in files]:
        names = short_names(names)  # names that the user chose stay
    for name, (_, *parts) in zip(names, models, strict=True):
        if name in found:
            raise InputError(f"two models are called {name}: give NAME=FILE with names that differ")
        try:
            found[name] = [open_predictions(part, **said) for part in parts]
        except InputError as error:
            raise InputError(f"{error}; {NEEDS_PARTS}") from error
    return found


def _curves(result: Comparison | ModelComparison, shifted: Shifted | None) -> ShiftCurves | None:
    """ECE of the uncalibrated scores, the best and the second over the severities."""
    if shifted is None or isinstance(result, ModelComparison) or result.best is None:
        return None
    chosen = [name for name in (result.best, result.second) if name and name != "none"]
    calibrators = {"none": None} | {name: result.row(name).calibrator for name in chosen}
    return shift(calibrators, shifted, metric_options={"n_bins": result.n_bins})


def _show(result: Comparison | ModelComparison, report: str | None) -> None:
    """The table on a terminal, and what the fits warned of."""
    if isinstance(result, Comparison):
        show(result)
        comparisons = {"": result}
    else:
        out, comparisons = Output(), result.comparisons
        out.print(Text(result.verdict, "bold"))
        out.note(result.sizes, "")
        out.table(result.short_table())
        out.note("", "*: best of the model; ≈: within noise of it; best or tied: on how many models either holds")
    for name, comparison in comparisons.items():
        where = f"{name}: " if name else ""
        warn(f"{where}{row.method}: {text}" for row in comparison.rows for text in row.warnings)
        warn((f"{where}{text}" for text in comparison.warnings), "WARNING")
    if report is not None:
        say(f"\nreport: {report}")


def show(comparison: Comparison) -> None:
    """Print the verdict, the table and what its marks mean."""
    out, task, floor = Output(), comparison.task, comparison.noise_floor
    wide = out.width >= WIDE
    out.print(Text(comparison.verdict, "bold"))
    kind = f", {comparison.n_classes} {'labels' if task == 'multilabel' else 'classes'}"
    out.note(f"fitted on {comparison.n_val:,} rows, measured on {comparison.n_test:,}{'' if task == 'pairs' else kind}")
    if floor is not None:
        out.note(f"noise floor: a calibrated model would show ECE {100 * floor.mean:.2f}% at this n")
    table = comparison.table().pick(name for name in COLUMNS if name not in UNTOLD.get(task, ()))
    columns = {name: facts(name).column + "%" * facts(name).percent for name in table.columns}
    out.print()
    out.table(replace(table, columns=columns, intervals=INTERVALS if wide else False))
    out.note("", "*: best; underlined: second; ≈: within noise of the best (paired resamples)")
    if wide and (words := raised_words(table.pick(INTERVALS))):
        out.note(words)
    changed = "" if task == "pairs" else "chg%: predictions changed; "
    out.note(f"{changed}P: chance of beating the best; fit: seconds")
