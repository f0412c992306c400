"""`calibrant compare VAL TEST`: every method fitted on one file, measured on the other; `--models` does several."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from calibrant.cli import inputs
from calibrant.cli.bar import progress_bar
from calibrant.cli.plain import say
from calibrant.core.atomic import check_target
from calibrant.core.errors import InputError

if TYPE_CHECKING:
    from calibrant.evaluation.results import Comparison
    from calibrant.evaluation.shift import ShiftCurves, Shifted

CHECK_FAILED = 1

FILES = typer.Argument(
    ..., metavar="VAL TEST", help="Predictions to fit on and to measure on; file#part picks one part."
)
MODELS = typer.Option(
    False, "--models", help="The files are models with the parts val and test each, or NAME=VAL,TEST: one matrix."
)
SHIFTED = typer.Option(None, "--shift", help="Shifted predictions for the report, as `calibrant shift` reads them.")


@inputs.reads_predictions
def compare(
    files: list[str] = FILES,
    *,
    models: bool = MODELS,
    methods: str = typer.Option("all", "--methods", "-m", help="all, or short names: none,ts,cts,sms+top"),
    criterion: str = typer.Option("nll", "--criterion", help="The metric that decides which method is best."),
    said: dict[str, Any],
    by: str = inputs.BY,
    cluster: str = inputs.CLUSTER,
    n_bins: int = typer.Option(15, "--n-bins", help="Bins of the calibration errors."),
    resamples: int = typer.Option(1000, "--resamples", help="Paired bootstrap resamples of the test rows."),
    seed: int = typer.Option(0, "--seed", min=0, help="Seed of the resamples."),
    report: str = typer.Option(None, "--report", help="Write a self-contained HTML report to this path."),
    shifted: list[str] | None = SHIFTED,
    markdown: bool = typer.Option(False, "--markdown", help="Print the table as Markdown."),
    latex: bool = typer.Option(False, "--latex", help="Print the table as LaTeX."),
    intervals: bool = typer.Option(False, "--intervals", help="With 95% intervals in Markdown and LaTeX."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Fit every method on VAL and measure it on TEST, with paired 95% intervals; the best and its ties are marked.

    With --models: `calibrant compare --models a.npz b.npz` does so for each model and ranks the methods over all.
    """
    from calibrant.evaluation.shift import open_shift

    if report is not None:
        check_target(report)
    elif shifted:
        raise InputError("--shift adds a section to the report: give --report as well")
    if shifted and models:
        raise InputError("--shift is about one model: leave out --models")
    conditions = open_shift(shifted) if shifted else None  # before the work: a wrong path must not cost it
    how = {"by": by, "cluster": cluster, "criterion": criterion, "resamples": resamples, "seed": seed, "n_bins": n_bins}
    result = _run(files, methods, said, how, models=models, quiet=as_json)
    if report is not None:
        _write(result, report, files, conditions)
    if as_json:
        typer.echo(result.to_json())
    elif markdown or latex:
        options = {} if models else {"intervals": intervals}
        say(result.to_markdown(**options) if markdown else result.to_latex(**options), nl=False)
    else:
        _show(result, report)
    if result.best is None:
        raise typer.Exit(CHECK_FAILED)


def _run(
    files: list[str], methods: str, said: dict[str, Any], how: dict[str, Any], *, models: bool, quiet: bool
) -> Any:
    """The comparison of two files, or of several models."""
    from calibrant.data import open_predictions
    from calibrant.evaluation.compare import compare as run
    from calibrant.evaluation.models import compare_models

    with progress_bar(quiet=quiet):
        if models:
            return compare_models(_opened(files, said), methods, **how)
        if len(files) != 2:
            raise InputError(
                f"compare takes two files, VAL and TEST, but got {len(files)}: give both (--models takes more)"
            )
        return run(open_predictions(files[0], **said), open_predictions(files[1], **said), methods, **how)


def _opened(files: list[str], said: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The rows to fit on and to measure on of every model, by its name."""
    from calibrant.data import open_parts, open_predictions
    from calibrant.evaluation.models import short_names
    from calibrant.report.usage import split_model

    found: dict[str, tuple[Any, Any]] = {}
    split_up = [split_model(given) for given in files]
    names = [name for name, _ in split_up]
    if names == [Path(given).stem for given in files]:
        names = short_names(names)  # names that the user chose stay
    for name, (_, both) in zip(names, split_up, strict=True):
        if name in found:
            raise InputError(f"two models are called {name}: give NAME=FILE with names that differ")
        if len(both) == 2:
            found[name] = (open_predictions(both[0], **said), open_predictions(both[1], **said))
            continue
        parts = open_parts(both[0], **said)
        if not {"val", "test"} <= set(parts):
            there = ", ".join(parts) if "" not in parts else "one part"
            raise InputError(
                f"{both[0]} holds {there}, but a model needs the parts val and test: give {name}=VAL_FILE,TEST_FILE"
            )
        found[name] = parts["val"], parts["test"]
    return found


def _write(result: Any, report: str, files: list[str], conditions: Shifted | None) -> None:
    from calibrant.evaluation.results import Comparison
    from calibrant.report.page import write_report

    command = shlex.join(["calibrant", *sys.argv[1:]])
    shift = _curves(result, conditions) if isinstance(result, Comparison) else None
    write_report(result, report, shift=shift, sources=files, command=command)


def _show(result: Any, report: str | None) -> None:
    """The table on a terminal, and what the fits warned of."""
    from calibrant.cli.compare_view import show, show_models
    from calibrant.evaluation.results import Comparison

    one = isinstance(result, Comparison)
    (show if one else show_models)(result)
    for name, comparison in ({"": result} if one else result.comparisons).items():
        where = f"{name}: " if name else ""
        for row in comparison.rows:
            for warning in row.warnings:
                say(f"warning: {where}{row.method}: {warning}", err=True)
        for warning in comparison.warnings:
            say(f"WARNING: {where}{warning}", err=True)
    if report is not None:
        say(f"\nreport: {report}")


def _curves(result: Comparison, shifted: Shifted | None) -> ShiftCurves | None:
    """ECE of the uncalibrated scores, the best and the second over the severities."""
    if shifted is None or result.best is None:
        return None
    from calibrant.evaluation.shift import shift

    names = [name for name in dict.fromkeys((result.best, result.second)) if name not in (None, "none")]
    calibrators = {"none": None, **{name: result.row(name).calibrator for name in names if name is not None}}
    return shift(calibrators, shifted, metric_options={"n_bins": result.n_bins})
