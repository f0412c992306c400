"""Every table of results as text: one grid of marked cells, for a terminal, in Markdown, LaTeX or a notebook's HTML."""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from calibrant.evaluation.table import Cell, Estimate, Row, Table
from calibrant.metrics.record import facts, number
from calibrant.metrics.reliability import Reliability

RAISED = "‡"
RAISED_WORDS = (
    "‡ at the upper end of its interval: chance alone raises the estimate of a gap, the true one is likely lower"
)
MOST_ROWS = 14
SCREEN = 78
"""Rows and columns of one screen of text."""
WIDEST_HEADING = 14
FEW = 10
"""Bins with fewer rows are faint."""

Intervals = bool | Collection[str]
"""Intervals in all columns, in none, or in those that are named."""


def raised(metric: str, estimate: Estimate) -> bool:
    """Does a calibration error stand in the last fiftieth of its own interval, or beyond it?"""
    if not facts(metric).absolute or not np.isfinite(estimate.high):
        return False
    width = estimate.high - estimate.low
    return bool(width > 0 and estimate.high - estimate.value < width / 50)


def any_raised(table: Table) -> bool:
    """Does any figure of the table need the explanation?"""
    return any(raised(one.metric, one.estimate) for row in table.rows for one in row.cells.values())


def figure(metric: str, value: float) -> str:
    """A figure with its unit, for sentences and for tables whose headings do not name it."""
    return number(metric, value) + "%" * bool(facts(metric).percent and np.isfinite(value))


def bounds(metric: str, estimate: Estimate, shown: Callable[[str, float], str] = number) -> str:
    """The interval as text, with a double dagger where the estimate stands at its end; empty where there is none."""
    if not np.isfinite(estimate.low):
        return ""
    mark = RAISED if raised(metric, estimate) else ""
    return f"[{shown(metric, estimate.low)}, {shown(metric, estimate.high)}]{mark}"


class Style(NamedTuple):
    """How a format writes names, numbers and marks; {} stands for what is marked."""

    escape: Callable[[str], str]
    best: str
    second: str
    tie: str
    interval: str = " {}"
    missing: str = "—"


def _latex(text: str) -> str:
    """Text with the characters that LaTeX reads as commands, or does not know, spelled out."""
    special = {
        "\\": r"\textbackslash{}", "%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
        "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "—": "--", "±": r"$\pm$",
        RAISED: r"$^{\ddagger}$",
    }  # fmt: skip
    return "".join(special.get(character, character) for character in text)


def _markdown(text: str) -> str:
    return text.replace("|", "\\|")


TEXT = Style(str, "{}*", "{}", "≈")
MARKDOWN = Style(_markdown, "**{}**", "<u>{}</u>", " ≈")
LATEX = Style(_latex, r"\textbf{{{}}}", r"\underline{{{}}}", r"$^{\approx}$", r" {{\scriptsize {}}}")
HTML = Style(html.escape, "<b>{}</b>", "{}", " ≈", " <small>{}</small>")


def cell_text(cell: Cell | None, style: Style, interval: bool = False) -> str:
    """A figure in its metric's unit, with its marks, its spread over seeds and, where asked for, its interval."""
    if cell is None:
        return style.escape(style.missing)
    value = number(cell.metric, cell.estimate.value)
    if np.isfinite(cell.estimate.spread):
        value += f" ± {number(cell.metric, cell.estimate.spread)}"
    mark = style.best if cell.best else style.second if cell.second else "{}"
    text = mark.format(style.escape(value)) + style.tie * cell.tie
    ends = bounds(cell.metric, cell.estimate) if interval else ""
    return text + (style.interval.format(style.escape(ends)) if ends else "")


def heads(table: Table, style: Style) -> list[str]:
    """The headings of all columns."""
    return [style.escape(text) for text in (table.axis, *table.columns.values(), *table.texts)]


def cells(table: Table, row: Row, style: Style, intervals: Intervals = False) -> list[str]:
    """The name of a row and its cells; of one that failed the name and the reason."""
    name = style.best.format(style.escape(row.name)) if row.best else style.escape(row.name)
    if row.error is not None:
        return [name, style.escape(f"failed: {row.error}")]
    shown = intervals if isinstance(intervals, Collection) else table.columns if intervals else ()
    figures = [cell_text(row.cells.get(column), style, column in shown) for column in table.columns]
    return [name, *figures, *(style.escape(words.get(row.name, "")) for words in table.texts.values())]


def markdown(table: Table, *, intervals: Intervals = False, style: Style = MARKDOWN) -> str:
    """A Markdown table with the caption below it."""
    titles = heads(table, style)
    lines = [titles, ["---", *["---:"] * len(table.columns), *["---"] * len(table.texts)]]
    for row in table.rows:
        line = cells(table, row, style, intervals)
        lines.append(line + [""] * (len(titles) - len(line)))
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{text}\n\n{table.caption}\n" if table.caption else f"{text}\n"


def latex(table: Table, *, intervals: Intervals = False, style: Style = LATEX) -> str:
    """A booktabs tabular; the caption stands in a comment."""
    titles = heads(table, style)
    lines = [titles]
    for row in table.rows:
        line = cells(table, row, style, intervals)
        if row.error is not None:
            line[1] = rf"\multicolumn{{{len(titles) - 1}}}{{l}}{{{line[1]}}}"
        lines.append(line)
    first, *body = (" & ".join(line) + r" \\" for line in lines)
    columns = "l" + "r" * len(table.columns) + "l" * len(table.texts)
    frame = [f"% {table.caption}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", first, r"\midrule", *body]
    return "\n".join([*frame, r"\bottomrule", r"\end{tabular}"]) + "\n"


def terminal(table: Table, width: int, *, intervals: Intervals = False, style: Style = TEXT) -> Iterator[Any]:
    """The table as renderables of rich: blocks of as many columns as a line holds, then the rows that failed."""
    lines = [heads(table, style), *(cells(table, row, style, intervals) for row in table.rows if row.error is None)]
    widths = [2 + max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    start = 1
    while start < len(widths):
        stop, used = start + 1, widths[0] + widths[start]
        while stop < len(widths) and used + widths[stop] <= width + 2:
            used, stop = used + widths[stop], stop + 1
        block = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for place in (0, *range(start, stop)):
            words = place == 0 or place > len(table.columns)
            block.add_column(Text(lines[0][place]), justify="left" if words else "right", no_wrap=True)
        for row, line in zip((row for row in table.rows if row.error is None), lines[1:], strict=True):
            looks = [_look(row, column) for column in (None, *list(table.columns)[start - 1 : stop - 1])]
            texts = [line[0], *line[start:stop]]
            block.add_row(*(Text(text, look) for text, look in zip(texts, looks + [""] * len(texts), strict=False)))
        yield block
        start = stop
    for row in table.rows:
        if row.error is not None:
            yield Text("  ".join(cells(table, row, style)))


def _look(row: Row, column: str | None) -> str:
    if column is None:
        return "bold" if row.best else ""
    cell = row.cells.get(column)
    return "" if cell is None else "bold" if cell.best else "underline" if cell.second else ""


def text(
    table: Table, *, said: Iterable[str] = (), notes: Iterable[str] = (), intervals: Intervals = False,
    style: Style = TEXT, width: int = SCREEN,
) -> str:  # fmt: skip
    """One screen of text: sentences, the table and notes."""
    shown = screen(table)
    left = len(table.rows) - len(shown.rows)
    # in a notebook rich would display the table instead of writing it to the text
    out = Console(
        file=io.StringIO(), width=width, color_system=None, markup=False, emoji=False, highlight=False,
        force_jupyter=False,
    )  # fmt: skip
    for block in terminal(shown, width, intervals=intervals, style=style):
        out.print(block)
    lines = [line.rstrip() for line in out.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    more = [f"… and {left} more {table.axis}s: to_frame() has all"] if left else []
    return "\n".join([*said, *lines, *more, *notes])


def screen(table: Table, most: int = MOST_ROWS) -> Table:
    """The first rows, as many as one screen holds."""
    return replace(table, rows=table.rows[:most])


def shortened(name: str, most: int = WIDEST_HEADING) -> str:
    """A model's name as a column can hold it: the end tells more than the start."""
    return name if len(name) <= most else "…" + name[1 - most :]


def notebook(
    table: Table, *, said: str, notes: Iterable[str] = (), intervals: Intervals = False, style: Style = HTML,
    diagrams: Iterable[dict[str, Any]] = (),
) -> str:  # fmt: skip
    """The table for a notebook, with reliability diagrams below it."""
    shown = screen(table)
    left = len(table.rows) - len(shown.rows)
    more = [f"… and {left} more {table.axis}s: to_frame() has all"] if left else []
    rows = [cells(shown, row, style, intervals) for row in shown.rows]
    context = {"said": said, "heads": heads(shown, style), "rows": rows, "notes": [*more, *notes]}
    return templates().get_template("notebook.html").render(**context, diagrams=list(diagrams))


@cache
def templates() -> Any:
    """The templates of pages and notebooks; what they are given is text, escaped where it is put."""
    import jinja2

    return jinja2.Environment(
        autoescape=True,
        loader=jinja2.PackageLoader("calibrant"),
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def diagram(bins: Reliability, title: str = "", before: Reliability | None = None) -> dict[str, Any]:
    """A reliability diagram as the templates draw it, with hollow marks of another one before."""
    return {
        "label": f"reliability diagram, {title}",
        "title": title,
        "ece": f"ECE {bins.ece:.2%}",
        "before": [] if before is None else _marks(before),
        "after": _marks(bins),
        "stated": "confidence",
        "seen": "accuracy",
    }


def _marks(bins: Reliability) -> list[dict[str, float]]:
    places = {"confidence": "confidence", "accuracy": "accuracy", "low": "accuracy_low", "high": "accuracy_high"}
    columns = {name: getattr(bins, field)[bins.filled].round(4).tolist() for name, field in places.items()}
    columns["opacity"] = np.where(bins.count[bins.filled] < FEW, 0.35, 1.0).tolist()
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
