"""`calibrant measure FILE`: every metric with its interval, and a reliability diagram in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from calibrant.cli import gate as gates
from calibrant.cli import options
from calibrant.cli.drawing import BLUE, GREEN, GREY, ORANGE, console, show_table
from calibrant.cli.terminal import CHECK_FAILED, answer, progress_bar, skipped_words, warn
from calibrant.data import open_predictions
from calibrant.engines.engine import opened
from calibrant.evaluation.measure import measure as run
from calibrant.evaluation.measurement import Measurement
from calibrant.evaluation.rendering import RAISED_WORDS, any_raised, bounds
from calibrant.evaluation.table import Estimate, Row, Table, figure_cells
from calibrant.evaluation.verdicts import SIGNIFICANCE, TOO_FEW
from calibrant.metrics.record import facts, number

BAR = 40
SHOWN_GROUPS, SHOWN_LABELS = 12, 5
CLASS_COLUMNS = {
    "sce": "class ECE %", "over_confidence": "over", "under_confidence": "under", "accuracy": "accuracy %", "n": "rows",
}  # fmt: skip
NAME = 34
"""Characters of a group's or label's name."""


Limit = Annotated[float | None, typer.Option(min=0.0, help="Gate: exit 1 when the figure is above this.")]
Share = Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Gate: exit 1 when it is above this fraction.")]


@options.reads_predictions
def measure(
    source: options.Source,
    *,
    said: dict[str, Any],
    by: options.By = None,
    cluster: options.Cluster = None,
    n_bins: options.NBins = 15,
    resamples: options.Resamples = 1000,
    seed: options.Seed = 0,
    decompose: Annotated[
        bool | None,
        typer.Option(
            "--decompose/--no-decompose", help="How much of the loss a map can mend; by default where it is quick."
        ),
    ] = None,
    engine: options.Engine = "local",
    skip_bad_parts: options.SkipBadParts = False,
    max_ece: Share = None,
    max_classwise_ece: Share = None,
    max_nll: Limit = None,
    max_brier: Limit = None,
    min_accuracy: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Gate: exit 1 below this accuracy.")
    ] = None,
    max_group_ece: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Gate on the ECE of every group of --by.")
    ] = None,
    at_most: Annotated[
        list[str] | None, typer.Option("--max", metavar="NAME=LIMIT", help="Gate on any metric; may be repeated.")
    ] = None,
    at_least: Annotated[
        list[str] | None, typer.Option("--min", metavar="NAME=LIMIT", help="Gate: exit 1 below the limit.")
    ] = None,
    min_rows: Annotated[int, typer.Option(min=1, help="Groups with fewer rows are left out of group gates.")] = 500,
    as_json: options.AsJson = False,
) -> None:
    """Measure calibration: all metrics with 95% intervals, a verdict, a reliability diagram, the worst classes.

    With a limit (--max-ece …) the measurement is a gate: exit code 1 means that a figure is beyond its limit.
    """
    how = {"by": by, "cluster": cluster, "n_bins": n_bins, "resamples": resamples, "seed": seed, "decompose": decompose}
    with progress_bar(quiet=as_json), opened(engine) as running:
        predictions = open_predictions(source, skip_bad_parts=skip_bad_parts, engine=running, **said)
        result = run(predictions, engine=running, **how)  # type: ignore[arg-type]
    skipped = {"skipped_parts": list(predictions.skipped)} if skip_bad_parts else {}
    document = {**result.to_dict(), **skipped}
    gate = gates.check(
        document,
        at_most={"ece": max_ece, "sce": max_classwise_ece, "nll": max_nll, "brier": max_brier} | gates.limits(at_most),
        at_least={"accuracy": min_accuracy} | gates.limits(at_least),
        groups_at_most={"ece": max_group_ece},
        min_rows=min_rows,
    )
    if not as_json:
        warn(skipped_words(predictions.skipped))
        warn(result.warnings, "note")
        show(result, predictions.name or source, predictions.kind)
    gated = {} if gate is None else {"gate": gate}
    answer(as_json, {**document, **gated}, [f"\n{gates.words(one)}" for one in gated.values()])
    if gate is not None and not gate["passed"]:
        raise typer.Exit(CHECK_FAILED)


def show(result: Measurement, name: str, kind: str) -> None:
    """Print verdict, diagram, figures and worst classes."""
    out = console()
    out.print(Text(f"{name}  ", style="bold") + Text(f"{result.n:,} rows, {_task(result)}, {kind}", GREY))
    out.print()
    _verdict(out, result)
    out.print()
    _diagram(out, result)
    out.print()
    _figures(out, result)
    if result.task == "multiclass":
        out.print()
        _worst(out, result)
    if result.labels:
        out.print()
        _largest(out, result.label_table(), ("ece", "nll", "n_positive"), SHOWN_LABELS)
    if result.groups is not None:
        out.print()
        out.print(Text(result.groups.verdict, "bold"))
        _largest(out, result.groups.table(), ("n", "ece"), SHOWN_GROUPS)


def _task(result: Measurement) -> str:
    if result.task == "multiclass":
        return f"{result.n_classes} classes"
    many = f"{result.n_classes} labels" if result.task == "multilabel" else result.task
    return many if result.task == "pairs" else f"{many}, about the positive class"


def _largest(out: Console, table: Table, columns: Sequence[str], most: int) -> None:
    """The rows of largest calibration error."""
    rows = sorted(table.rows, key=lambda row: -row.cells["ece"].estimate.value)[:most]
    rows = [replace(row, name=row.name[:NAME], best=False) for row in rows]
    show_table(out, replace(table.pick(columns), rows=tuple(rows)))
    if len(table.rows) > most:
        out.print(Text(f"and {len(table.rows) - most} more (--json lists all)", GREY))


def _verdict(out: Console, result: Measurement) -> None:
    floor, ece = result.noise_floor, result.metrics["ece"]
    sound = floor.p_value >= SIGNIFICANCE
    mark = Text("✓ ", f"bold {GREEN}") if sound else Text("! ", f"bold {ORANGE}")
    if result.verdict == TOO_FEW:
        mark = Text("? ", f"bold {GREY}")
    out.print(mark + Text(result.verdict, style="bold"))
    out.print(f"  ECE {number('ece', ece.value)}% {bounds('ece', ece)}")
    out.print(
        f"  a calibrated model would show {100 * floor.mean:.2f}% at this n "
        f"[{100 * floor.low:.2f}, {100 * floor.high:.2f}], p {_p_value(floor.p_value)}"
    )
    if result.mendable:
        text, how = result.mendable.rsplit(" (", maxsplit=1)
        how = f"(cross-validated: {how.removesuffix(')')}; ± is one standard error)"
        for line in (Text(text), Text(how, GREY)):
            out.print(Padding(line, (0, 0, 0, 2)))
    over, under = (result.metrics[name].value for name in ("over_confidence", "under_confidence"))
    whole = max(over + under, 1e-12)
    line = Text("  overconfident ") + Text("▓" * round(20 * over / whole), ORANGE)
    line += Text("░" * (20 - round(20 * over / whole)), GREEN) + Text(" underconfident")
    out.print(line + Text(f"   {100 * over:.2f} + {100 * under:.2f} points", GREY))


def _diagram(out: Console, result: Measurement) -> None:
    bins = result.bins
    scale = "0" + " " * (BAR // 2 - 3) + "50" + " " * (BAR // 2 - 4) + "100"
    out.print(Text(" confidence  ", "bold") + Text(scale, GREY) + Text("     gap      rows", "bold"))
    for b in range(len(bins.count)):
        edges = f"{100 * bins.lower[b]:4.0f}–{100 * bins.upper[b]:3.0f}%  "
        if bins.count[b] == 0:
            out.print(Text(f" {edges} ", GREY) + Text("·", GREY))
            continue
        accuracy, confidence = float(bins.accuracy[b]), float(bins.confidence[b])
        chance = bins.noise_low[b] - 1e-12 <= accuracy <= bins.noise_high[b] + 1e-12
        gap = 100 * (confidence - accuracy)
        style = GREY if chance else (ORANGE if gap > 0 else GREEN)
        line = Text(f" {edges} ") + _bin_bar(accuracy, confidence)
        line += Text(f" {gap:+6.1f}{' ' if chance else '*'}", style) + Text(f"{int(bins.count[b]):>10,}", GREY)
        out.print(line)
    legend = Text("             ") + Text("█", BLUE) + Text(" accuracy  ", GREY) + Text("▓", ORANGE)
    legend += Text(" overconfident  ", GREY) + Text("▒", GREEN) + Text(" underconfident  ", GREY)
    out.print(legend + Text("* beyond chance", GREY))


def _bin_bar(accuracy: float, confidence: float) -> Text:
    """Accuracy as a full bar, and what is missing to, or what exceeds, the stated confidence."""
    stated, true = round(confidence * BAR), round(accuracy * BAR)
    if true <= stated:
        text = Text("█" * true, BLUE) + Text("▓" * (stated - true), ORANGE)
    else:
        text = Text("█" * stated, BLUE) + Text("▒" * (true - stated), GREEN)
    text.pad_right(BAR + 1 - len(text))
    return text


def _figures(out: Console, result: Measurement) -> None:
    out.print(Text(" figures with 95% intervals", "bold") + Text("  in %, except where marked †", GREY))
    cells = [_figure(name, estimate) for name, estimate in result.metrics.items()]
    rows = math.ceil(len(cells) / 2)
    for row in range(rows):
        right = cells[row + rows] if row + rows < len(cells) else Text("")
        out.print(Text(" ") + cells[row] + right)
    if any_raised(result.table()):
        out.print(Text(f" {RAISED_WORDS}", GREY))
    for reason in dict.fromkeys(result.left_out.values()):
        names = ", ".join(facts(name).label for name, why in result.left_out.items() if why == reason)
        out.print(Text(f" {names}: {reason}", GREY))


def _figure(name: str, estimate: Estimate) -> Text:
    mark = " " if facts(name).percent else "†"
    text = Text(f"{facts(name).label + mark:<18}") + Text(f"{_three_places(name, estimate.value):>6} ", "bold")
    text += Text(f"{bounds(name, estimate, _three_places):<15}", GREY)
    return text


def _worst(out: Console, result: Measurement) -> None:
    """The classes of largest classwise error."""
    classes, rows = result.classes, []
    for place in result.worst_classes():
        figures = [getattr(classes, name)[place] for name in ("ece", "over", "under", "accuracy", "count")]
        estimates = {name: Estimate(float(one)) for name, one in zip(CLASS_COLUMNS, figures, strict=True)}
        rows.append(Row(result.class_name(place)[:NAME], figure_cells(estimates)))
    show_table(out, Table("worst classes", CLASS_COLUMNS, tuple(rows)))


def _three_places(name: str, value: float) -> str:
    return number(name, value, 3)


def _p_value(value: float) -> str:
    return f"≤ {value:.3f}" if value <= 0.001 else f"= {value:.3f}"
