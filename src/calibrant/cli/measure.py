"""`calibrant measure FILE`: every metric with its interval, and a reliability diagram in the terminal."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import typer

from calibrant.cli import gate as gates
from calibrant.cli import inputs
from calibrant.cli.bar import progress_bar
from calibrant.cli.plain import say


@inputs.reads_predictions
def measure(
    source: str = typer.Argument(..., metavar="FILE", help="File, folder or embedded name; file#part picks one part."),
    *,
    said: dict[str, Any],
    by: str = inputs.BY,
    cluster: str = inputs.CLUSTER,
    n_bins: int = typer.Option(15, "--n-bins", help="Bins of the calibration errors."),
    resamples: int = typer.Option(1000, "--resamples", help="Bootstrap resamples behind the intervals."),
    seed: int = typer.Option(0, "--seed", min=0, help="Seed of the resamples."),
    decompose: bool = typer.Option(
        None, "--decompose/--no-decompose", help="How much of the loss a map can mend; by default where it is quick."
    ),
    engine: str = inputs.ENGINE,
    skip_bad_parts: bool = inputs.SKIP_BAD_PARTS,
    max_ece: float = gates.MAX_ECE,
    max_classwise_ece: float = gates.MAX_CLASSWISE_ECE,
    max_nll: float = gates.MAX_NLL,
    max_brier: float = gates.MAX_BRIER,
    min_accuracy: float = gates.MIN_ACCURACY,
    max_group_ece: float = gates.MAX_GROUP_ECE,
    min_rows: int = gates.MIN_ROWS,
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Measure calibration: all metrics with 95% intervals, a verdict, a reliability diagram, the worst classes.

    With a limit (--max-ece …) the measurement is a gate: exit code 1 means that a figure is beyond its limit.
    """
    _keep_blas_serial()
    from calibrant.data import open_predictions
    from calibrant.engines.engine import opened
    from calibrant.evaluation.measure import measure as run

    with progress_bar(quiet=as_json), opened(engine) as running:
        predictions = open_predictions(source, skip_bad_parts=skip_bad_parts, engine=running, **said)
        result = run(
            predictions,
            by=by,
            cluster=cluster,
            n_bins=n_bins,
            resamples=resamples,
            seed=seed,
            decompose=decompose,
            engine=running,
        )
    skipped = {"skipped_parts": list(predictions.skipped)} if skip_bad_parts else {}
    document = {**result.to_dict(), **skipped}
    gate = gates.check(
        document,
        at_most={"ece": max_ece, "sce": max_classwise_ece, "nll": max_nll, "brier": max_brier},
        at_least={"accuracy": min_accuracy},
        groups_at_most={"ece": max_group_ece},
        min_rows=min_rows,
    )
    if as_json:
        typer.echo(json.dumps({**document, **({} if gate is None else {"gate": gate})}, allow_nan=False))
    else:
        if predictions.skipped:
            say(f"warning: {inputs.skipped_words(predictions)}", err=True)
        for warning in result.warnings:
            say(f"note: {warning}", err=True)
        from calibrant.cli.measure_view import show

        show(result, predictions.name or source, predictions.kind)
        if gate is not None:
            say(f"\n{gates.words(gate)}")
    if gate is not None and not gate["passed"]:
        raise typer.Exit(1)


def _keep_blas_serial() -> None:
    """One BLAS thread, unless the user chose: the products are thin, and waiting threads cost more than they add."""
    if "numpy" not in sys.modules:  # afterwards it is too late, and the setting would only leak into children
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
