"""`calibrant shift cal.safetensors FILES...`: a metric over the severities of a shift."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from calibrant.cli.bar import progress_bar

if TYPE_CHECKING:
    from calibrant.evaluation.shift import ShiftCurves

FILES = typer.Argument(..., metavar="FILES...", help="A bundle with shift_* arrays, or files such as fog_3.npz.")
OTHERS = typer.Option(None, "--with", help="Another artifact to draw beside the first; any number.")


def shift(
    artifact: str = typer.Argument(..., metavar="CALIBRATOR", help="Artifact, such as cal.safetensors."),
    files: list[str] = FILES,
    *,
    others: list[str] | None = OTHERS,
    metric: str = typer.Option("ece", "--metric", help="Any metric of calibrant.metrics that returns a number."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Measure a saved calibrator, and the scores without it, over the severities of several corruptions."""
    from calibrant.evaluation.shift import open_shift
    from calibrant.evaluation.shift import shift as run
    from calibrant.shipping.artifact import read_artifact

    calibrators, schemas = {"none": None}, {}
    for path in (artifact, *(others or ())):
        name = Path(path).stem
        while name in calibrators:
            name += "'"
        found = read_artifact(path)
        calibrators[name], schemas[name] = found.calibrator, found.schema
    with progress_bar(quiet=as_json):
        curves = run(calibrators, open_shift(files), metric=metric, schemas=schemas)
    if as_json:
        typer.echo(json.dumps(curves.to_dict(), allow_nan=False))
        return
    _show(curves)


def _show(curves: ShiftCurves) -> None:
    from rich.text import Text

    from calibrant.cli.terminal import console

    out = console()
    widths = [max(17, len(method) + 2) for method in curves.methods]
    first = max(10, len(curves.metric))
    header = curves.metric.ljust(first) + "".join(
        f"  {m}".ljust(w) for m, w in zip(curves.methods, widths, strict=True)
    )
    out.print(Text(header, "bold"))
    for place, severity in enumerate(curves.severities):
        line = f"severity {severity}".ljust(first)
        for row, width in enumerate(widths):
            half = curves.half_width[row, place]
            spread = f" ± {half:.4f}" if half >= 0.00005 else ""
            line += f"  {curves.mean[row, place]:.4f}{spread}".ljust(width)
        out.print(line)
    kinds = ", ".join(curves.corruptions)
    out.print(f"mean over {len(curves.corruptions)} corruptions ({kinds})", style="grey50")
    out.print("± 95% within-subject interval: differences between corruptions are taken out", style="grey50")
