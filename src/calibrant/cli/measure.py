"""`calibrant measure FILE`: every metric with its interval, and a reliability diagram in the terminal."""

from __future__ import annotations

import json
import os
import sys

import typer

from calibrant.cli.scale import ENGINE, SKIP_BAD_PARTS, skipped_words


def measure(
    source: str = typer.Argument(..., metavar="FILE", help="File, folder or embedded name; file#part picks one part."),
    *,
    kind: str = typer.Option(None, "--kind", help="What the values are: logits or probabilities."),
    labels: str = typer.Option(None, "--labels", help="An .npy file of labels, if FILE has none."),
    n_bins: int = typer.Option(15, "--n-bins", help="Bins of the calibration errors."),
    resamples: int = typer.Option(1000, "--resamples", help="Bootstrap resamples behind the intervals."),
    seed: int = typer.Option(0, "--seed", min=0, help="Seed of the resamples."),
    engine: str = ENGINE,
    skip_bad_parts: bool = SKIP_BAD_PARTS,
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Measure calibration: all metrics with 95% intervals, a verdict, a reliability diagram, the worst classes."""
    _keep_blas_serial()
    from calibrant.cli.bar import progress_bar
    from calibrant.data import open_predictions
    from calibrant.engines.engine import opened
    from calibrant.evaluation.measurement import measure as run

    with progress_bar(quiet=as_json), opened(engine) as running:
        predictions = open_predictions(source, kind=kind, labels=labels, skip_bad_parts=skip_bad_parts, engine=running)
        result = run(predictions, n_bins=n_bins, resamples=resamples, seed=seed, engine=running)
    skipped = {"skipped_parts": list(predictions.skipped)} if skip_bad_parts else {}
    if as_json:
        typer.echo(json.dumps({**result.to_dict(), **skipped}, allow_nan=False))
        return
    if predictions.skipped:
        typer.echo(f"warning: {skipped_words(predictions)}", err=True)
    from calibrant.cli.measure_view import show

    show(result, predictions.name or source, predictions.kind)


def _keep_blas_serial() -> None:
    """One BLAS thread, unless the user chose: the products are thin, and waiting threads cost more than they add."""
    if "numpy" not in sys.modules:  # afterwards it is too late, and the setting would only leak into children
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
