"""`calibrant shift cal.safetensors FILES...`: a metric over the severities of a shift."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli import options
from calibrant.cli.terminal import answer, progress_bar
from calibrant.evaluation.shift import ShiftCurves, open_shift
from calibrant.evaluation.shift import shift as run
from calibrant.shipping.artifact import read_artifact

FILES = "A bundle with shift_* arrays, or files such as fog_3.npz."


def shift(
    artifact: options.Artifact,
    files: Annotated[list[str], typer.Argument(metavar="FILES...", help=FILES)],
    *,
    others: Annotated[
        list[str] | None, typer.Option("--with", help="Another artifact to draw beside the first; any number.")
    ] = None,
    metric: Annotated[str, typer.Option(help="Any metric of calibrant.metrics that returns a number.")] = "ece",
    as_json: options.AsJson = False,
) -> None:
    """Measure a saved calibrator, and the scores without it, over the severities of several corruptions."""
    calibrators, schemas = {"none": None}, {}
    for path in (artifact, *(others or ())):
        name = Path(path).stem
        while name in calibrators:
            name += "'"
        found = read_artifact(path)
        calibrators[name], schemas[name] = found.calibrator, found.schema
    with progress_bar(quiet=as_json):
        curves = run(calibrators, open_shift(files), metric=metric, schemas=schemas)
    answer(as_json, curves.to_dict(), _lines(curves))


def _lines(curves: ShiftCurves) -> list[str]:
    """A column per method, a line per severity."""
    widths = [max(17, len(method) + 2) for method in curves.methods]
    first = max(10, len(curves.metric))
    lines = [
        curves.metric.ljust(first) + "".join(f"  {m}".ljust(w) for m, w in zip(curves.methods, widths, strict=True))
    ]
    for place, severity in enumerate(curves.severities):
        line = f"severity {severity}".ljust(first)
        for row, width in enumerate(widths):
            half = curves.half_width[row, place]
            spread = f" ± {half:.4f}" if half >= 0.00005 else ""
            line += f"  {curves.mean[row, place]:.4f}{spread}".ljust(width)
        lines.append(line)
    kinds = ", ".join(curves.corruptions)
    lines.append(f"mean over {len(curves.corruptions)} corruptions ({kinds})")
    return [*lines, "± 95% within-subject interval: differences between corruptions are taken out"]
