"""How a comparison looks in a terminal: 80 columns, and intervals beside the main figures where there is room."""

from __future__ import annotations

from rich.text import Text

from calibrant.cli.terminal import BLUE, GREY, ORANGE, console
from calibrant.core.metric_facts import facts
from calibrant.evaluation.results import Comparison, MethodRow
from calibrant.evaluation.tables import cell, seconds, share

WIDTHS = {"ece": 6, "adaptive_ece": 6, "sce": 7, "nll": 7, "brier": 7, "accuracy": 6}
"""The metrics of the table, and how wide their columns are."""
INTERVALS = {"ece": 16, "nll": 18}
"""Metrics whose interval is shown in a wide terminal, and its width."""


def show(comparison: Comparison) -> None:
    """Print the verdict, the table and what its marks mean."""
    out = console()
    wide = out.width >= 110
    out.print(Text(comparison.verdict, "bold"))
    sizes = f"fitted on {comparison.n_val:,} rows, measured on {comparison.n_test:,}, {comparison.n_classes} classes"
    out.print(Text(sizes, GREY))
    if comparison.noise_floor is not None:
        floor = comparison.noise_floor
        out.print(Text(f"noise floor: a calibrated model would show ECE {100 * floor.mean:.2f}% at this n", GREY))
    out.print()
    width = max(8, *(len(row.method) for row in comparison.rows)) + 1
    out.print(_header(width, wide))
    out.print(Text("─" * (width + 62 + (sum(INTERVALS.values()) if wide else 0)), GREY))
    for row in comparison.rows:
        out.print(_line(comparison, row, width, wide), overflow="ellipsis", no_wrap=True)
    out.print()
    out.print(Text("bold: best; underlined: second; ≈: within noise of the best (paired resamples)", GREY))
    out.print(Text("chg%: predictions changed; P: chance of beating the best; fit: seconds", GREY))


def _header(width: int, wide: bool) -> Text:
    text = Text("method".ljust(width))
    for metric, room in WIDTHS.items():
        title = facts(metric).column + ("%" if facts(metric).percent else "")
        text += f"{title:>{room}} "
        if wide and metric in INTERVALS:
            text += " 95%".ljust(INTERVALS[metric])
    text += f"{'chg%':>5} {'P':>4} {'fit':>6}"
    text.stylize("bold")
    return text


def _line(comparison: Comparison, row: MethodRow, width: int, wide: bool) -> Text:
    best = row.method == comparison.best
    text = Text(row.method.ljust(width), f"bold {BLUE}" if best else "")
    if row.error is not None:
        return text + Text("failed: ", ORANGE) + Text(row.error)
    for metric, room in WIDTHS.items():
        one = cell(comparison, row, metric)
        style = "bold" if one.best else ("underline" if one.second else "")
        text += Text(" " * (room - len(one.value))) + Text(one.value, style)
        text += Text("≈" if one.tie else " ")
        if wide and metric in INTERVALS:
            text += Text((" " + one.interval).ljust(INTERVALS[metric]), GREY)
    beats = "" if best else f"{row.p_beats_best:.2f}"
    text += Text(f"{share(row.changed_predictions):>5} {beats:>4} {seconds(row.fit_seconds):>6}", GREY)
    return text
