"""`calibrant demo`: the whole way on the embedded CIFAR-100 predictions."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from calibrant.cli.bar import progress_bar
from calibrant.cli.plain import say
from calibrant.core.atomic import check_target
from calibrant.core.errors import InputError

DATA = "cifar100-resnet18"
METHODS = "none,ts,cts,cws,sctl+ts,ts+top,shape,conf+shape+keep"


def demo(
    everything: bool = typer.Option(False, "--all", help="All methods instead of a short list."),
    out: str = typer.Option("out", "--out", help="Folder for report.html and the saved winner."),
    resamples: int = typer.Option(1000, "--resamples", help="Paired bootstrap resamples of the test rows."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Compare methods on the embedded CIFAR-100 predictions, write the report and save the best method."""
    from calibrant.data import open_predictions
    from calibrant.evaluation.compare import compare
    from calibrant.report.page import write_report
    from calibrant.shipping.artifact import save

    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{out} is a file: give the path of a folder to write to")
    folder.mkdir(parents=True, exist_ok=True)
    report, artifact = folder / "report.html", folder / "cal.safetensors"
    check_target(report)
    with progress_bar(quiet=as_json):
        val, test = open_predictions(f"{DATA}#val"), open_predictions(f"{DATA}#test")
        result = compare(val, test, "all" if everything else METHODS, resamples=resamples)
    if result.best is None:
        say("error: every method failed: " + str(result.rows[0].error), err=True)
        raise typer.Exit(1)
    save(result.row(result.best).calibrator, artifact, class_names=result.class_names)
    write_report(result, report)
    if as_json:
        typer.echo(json.dumps({**result.to_dict(), "report": str(report), "artifact": str(artifact)}))
        return
    from calibrant.cli.compare_view import show

    show(result)
    say(f"\nbest method saved: {artifact}   (calibrant apply {artifact} FILE -o calibrated.npz)")
    say(str(report.resolve()))
