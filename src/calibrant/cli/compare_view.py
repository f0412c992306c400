"""How a comparison looks in a terminal: 80 columns, and intervals beside the main figures where there is room."""

from __future__ import annotations

from rich.text import Text

from calibrant.cli.terminal import BLUE, GREY, ORANGE, console
from calibrant.core.metric_facts import facts
from calibrant.evaluation.model_tables import lines, sizes
from calibrant.evaluation.models import ModelComparison
from calibrant.evaluation.results import Comparison, MethodRow
from calibrant.evaluation.tables import RAISED_WORDS, cell, raised, seconds, share

WIDTHS = {"ece": 6, "adaptive_ece": 6, "sce": 7, "nll": 7, "brier": 7, "accuracy": 6}
"""The metrics of the table, and how wide their columns are."""
INTERVALS = {"ece": 16, "nll": 18}
"""Metrics whose interval is shown in a wide terminal, and its width."""


def show(comparison: Comparison) -> None:
    """Print the verdict, the table and what its marks mean."""
    out = console()
    wide = out.width >= 110
    out.print(Text(comparison.verdict, "bold"))
    kind = f"{comparison.n_classes} {'labels' if comparison.task == 'multilabel' else 'classes'}"
    rows = f"fitted on {comparison.n_val:,} rows, measured on {comparison.n_test:,}"
    out.print(Text(rows if _answers(comparison) else f"{rows}, {kind}", GREY))
    if comparison.noise_floor is not None:
        floor = comparison.noise_floor
        out.print(Text(f"noise floor: a calibrated model would show ECE {100 * floor.mean:.2f}% at this n", GREY))
    out.print()
    width = max(8, *(len(row.method) for row in comparison.rows)) + 1
    header = _header(comparison, width, wide)
    out.print(header)
    out.print(Text("─" * len(header.plain), GREY))
    for row in comparison.rows:
        out.print(_line(comparison, row, width, wide), overflow="ellipsis", no_wrap=True)
    out.print()
    out.print(Text("bold: best; underlined: second; ≈: within noise of the best (paired resamples)", GREY))
    if wide and any(raised(name, row.metrics[name]) for row in comparison.rows for name in INTERVALS if row.metrics):
        out.print(Text(RAISED_WORDS, GREY))
    changed = "" if _answers(comparison) else "chg%: predictions changed; "
    out.print(Text(f"{changed}P: chance of beating the best; fit: seconds", GREY))


def show_models(table: ModelComparison) -> None:
    """Print the verdict over all models and the matrix of the deciding metric."""
    out = console()
    out.print(Text(table.verdict, "bold"))
    out.print(Text(sizes(table), GREY))
    out.print()
    for line in lines(table, out.width):
        head = line.startswith("method ")
        best = table.best is not None and line.startswith(f"{table.best} ")
        out.print(Text(line, "bold" if head else f"bold {BLUE}" if best else ""), overflow="ellipsis", no_wrap=True)
    out.print()
    out.print(Text("*: best of the model; ≈: within noise of it; wins: on how many models either holds", GREY))


def _answers(comparison: Comparison) -> bool:
    """Are these confidences of answers, which no calibration changes?"""
    return comparison.task == "pairs"


def _columns(comparison: Comparison) -> dict[str, int]:
    """Metrics and widths; with one probability per row the classwise ECE is the ECE again."""
    return {name: room for name, room in WIDTHS.items() if name != "sce" or comparison.task == "multiclass"}


def _header(comparison: Comparison, width: int, wide: bool) -> Text:
    text = Text("method".ljust(width))
    for metric, room in _columns(comparison).items():
        title = facts(metric).column + ("%" if facts(metric).percent else "")
        text += f"{title:>{room}} "
        if wide and metric in INTERVALS:
            text += " 95%".ljust(INTERVALS[metric])
    text += (" " if _answers(comparison) else " chg% ") + f"{'P':>4} {'fit':>6}"
    text.stylize("bold")
    return text


def _line(comparison: Comparison, row: MethodRow, width: int, wide: bool) -> Text:
    best = row.method == comparison.best
    text = Text(row.method.ljust(width), f"bold {BLUE}" if best else "")
    if row.error is not None:
        return text + Text("failed: ", ORANGE) + Text(row.error)
    for metric, room in _columns(comparison).items():
        one = cell(comparison, row, metric)
        style = "bold" if one.best else ("underline" if one.second else "")
        text += Text(" " * (room - len(one.value))) + Text(one.value, style)
        text += Text("≈" if one.tie else " ")
        if wide and metric in INTERVALS:
            text += Text((" " + one.interval).ljust(INTERVALS[metric]), GREY)
    beats = "" if best else f"{row.p_beats_best:.2f}"
    changed = " " if _answers(comparison) else f"{share(row.changed_predictions):>5} "
    text += Text(f"{changed}{beats:>4} {seconds(row.fit_seconds):>6}", GREY)
    return text
