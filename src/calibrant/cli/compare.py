"""`calibrant compare VAL TEST`: every method fitted on one file, measured on the other."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import typer

from calibrant.cli import inputs
from calibrant.cli.plain import say

if TYPE_CHECKING:
    from calibrant.evaluation.results import Comparison
    from calibrant.evaluation.shift import ShiftCurves, Shifted

CHECK_FAILED = 1

SHIFTED = typer.Option(None, "--shift", help="Shifted predictions for the report, as `calibrant shift` reads them.")


def compare(
    val: str = typer.Argument(..., metavar="VAL", help="Predictions to fit on; file#part picks one part."),
    test: str = typer.Argument(..., metavar="TEST", help="Predictions to measure on."),
    *,
    methods: str = typer.Option("all", "--methods", "-m", help="all, or short names: none,ts,cts,sms+top"),
    criterion: str = typer.Option("nll", "--criterion", help="The metric that decides which method is best."),
    kind: str = inputs.KIND,
    task: str = inputs.TASK,
    scores: str = inputs.SCORES,
    labels: str = inputs.LABELS,
    weights: str = inputs.WEIGHTS,
    class_names: str = inputs.CLASS_NAMES,
    ignore_index: int = inputs.IGNORE_INDEX,
    by: str = inputs.BY,
    cluster: str = inputs.CLUSTER,
    n_bins: int = typer.Option(15, "--n-bins", help="Bins of the calibration errors."),
    resamples: int = typer.Option(1000, "--resamples", help="Paired bootstrap resamples of the test rows."),
    seed: int = typer.Option(0, "--seed", min=0, help="Seed of the resamples."),
    report: str = typer.Option(None, "--report", help="Write a self-contained HTML report to this path."),
    shifted: list[str] | None = SHIFTED,
    markdown: bool = typer.Option(False, "--markdown", help="Print the table as Markdown."),
    latex: bool = typer.Option(False, "--latex", help="Print the table as LaTeX."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Fit every method on VAL and measure it on TEST, with paired 95% intervals; the best and its ties are marked."""
    from calibrant.cli.bar import progress_bar
    from calibrant.core.atomic import check_target
    from calibrant.core.errors import InputError
    from calibrant.data import open_predictions
    from calibrant.evaluation.compare import compare as run
    from calibrant.evaluation.shift import open_shift

    if report is not None:
        check_target(report)
    elif shifted:
        raise InputError("--shift adds a section to the report: give --report as well")
    conditions = open_shift(shifted) if shifted else None  # before the work: a wrong path must not cost it
    said = inputs.described(kind, task, scores, labels, weights, class_names, ignore_index)
    with progress_bar(quiet=as_json):
        result = run(
            open_predictions(val, **said),
            open_predictions(test, **said),
            methods,
            by=by,
            cluster=cluster,
            criterion=criterion,
            resamples=resamples,
            seed=seed,
            n_bins=n_bins,
        )
    if report is not None:
        from calibrant.report.page import write_report

        command = shlex.join(["calibrant", *sys.argv[1:]])
        write_report(result, report, shift=_curves(result, conditions), sources=(val, test), command=command)
    if as_json:
        typer.echo(result.to_json())
    elif markdown or latex:
        say(result.to_markdown() if markdown else result.to_latex(), nl=False)
    else:
        from calibrant.cli.compare_view import show

        show(result)
        for row in result.rows:
            for warning in row.warnings:
                say(f"warning: {row.method}: {warning}", err=True)
        for warning in result.warnings:
            say(f"WARNING: {warning}", err=True)
        if report is not None:
            say(f"\nreport: {report}")
    if result.best is None:
        raise typer.Exit(CHECK_FAILED)


def _curves(result: Comparison, shifted: Shifted | None) -> ShiftCurves | None:
    """ECE of the uncalibrated scores, the best and the second over the severities."""
    if shifted is None or result.best is None:
        return None
    from calibrant.evaluation.shift import shift

    names = [name for name in dict.fromkeys((result.best, result.second)) if name not in (None, "none")]
    calibrators = {"none": None, **{name: result.row(name).calibrator for name in names if name is not None}}
    return shift(calibrators, shifted, metric_options={"n_bins": result.n_bins})
