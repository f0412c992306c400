"""Every table of results as text: one grid of marked cells, for a terminal, in Markdown, LaTeX or a notebook's HTML."""

import html
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import cache
from operator import methodcaller
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from calibrant.evaluation.table import Cell, Estimate, Json, Table
from calibrant.metrics.record import facts, number
from calibrant.metrics.top_label import Reliability

RAISED = "‡"
RAISED_WORDS = "‡ chance alone raises the estimate of a small gap: the true one is likely lower"
MOST_ROWS = 14
SCREEN = 78
"""Rows and columns of one screen of text."""
WIDEST_HEADING = 14
FEW = 10
"""Bins with fewer rows are faint."""


def raised(metric: str, estimate: Estimate) -> bool:
    """Does a calibration error stand in the last fiftieth of its own interval, or beyond it?"""
    width = estimate.high - estimate.low
    return facts(metric).absolute and width > 0 and estimate.high - estimate.value < width / 50


def raised_words(*tables: Table) -> str:
    """What the double dagger means; empty where no figure of the tables has one."""
    every = (row.cells[name] for table in tables for row in table.rows for name in table.columns if name in row.cells)
    return RAISED_WORDS if any(raised(one.metric, one.estimate) for one in every) else ""


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


LATEX_SPECIAL = methodcaller("translate", str.maketrans({
    "\\": r"\textbackslash{}", "%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "—": "--", "±": r"$\pm$",
    RAISED: r"$^{\ddagger}$",
}))  # fmt: skip
"""Characters that LaTeX reads as commands, or does not know, spelled out."""


TEXT = Style(str, "{}*", "{}", "≈")
MARKDOWN = Style(methodcaller("replace", "|", "\\|"), "**{}**", "<u>{}</u>", " ≈")
LATEX = Style(LATEX_SPECIAL, r"\textbf{{{}}}", r"\underline{{{}}}", r"$^{\approx}$", r" {{\scriptsize {}}}")
HTML = Style(html.escape, "<b>{}</b>", "{}", " ≈", " <small>{}</small>")


def cell_text(cell: Cell, style: Style, interval: bool) -> str:
    """A figure in its metric's unit, with its marks, its spread over seeds and, where asked for, its interval."""
    value = number(cell.metric, cell.estimate.value)
    if np.isfinite(cell.estimate.spread):
        value += f" ± {number(cell.metric, cell.estimate.spread)}"
    mark = style.best if cell.best else style.second if cell.second else "{}"
    text = mark.format(style.escape(value)) + style.tie * cell.tie
    ends = bounds(cell.metric, cell.estimate) if interval else ""
    return text + (style.interval.format(style.escape(ends)) if ends else "")


def grid(table: Table, style: Style) -> list[list[str]]:
    """The headings, then the name of each row and its cells; of a row that failed the name and the reason."""
    escape = style.escape
    shown = table.intervals if isinstance(table.intervals, Collection) else table.columns if table.intervals else ()
    lines = [[escape(text) for text in (table.axis, *table.columns.values(), *table.texts)]]
    for row in table.rows:
        line = [style.best.format(escape(row.name)) if row.best else escape(row.name)]
        if row.error is not None:
            line.append(escape(f"failed: {row.error}"))
        else:
            cells = [(row.cells.get(name), name in shown) for name in table.columns]
            line += [cell_text(one, style, wide) if one else escape(table.missing) for one, wide in cells]
            line += [escape(words.get(row.name, "")) for words in table.texts.values()]
        lines.append(line)
    return lines


def markdown(table: Table) -> str:
    """A Markdown table with the caption below it."""
    heads, *body = grid(table, MARKDOWN)
    rule = ["---", *["---:"] * len(table.columns), *["---"] * len(table.texts)]
    lines = (line + [""] * (len(heads) - len(line)) for line in (heads, rule, *body))
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{text}\n\n{table.caption}\n" if table.caption else f"{text}\n"


def latex(table: Table) -> str:
    """A booktabs tabular; the caption stands in a comment."""
    heads, *body = grid(table, LATEX)
    for line in body:
        if len(line) < len(heads):
            line[1] = rf"\multicolumn{{{len(heads) - 1}}}{{l}}{{{line[1]}}}"
    first, *rest = (" & ".join(line) + r" \\" for line in (heads, *body))
    columns = "l" + "r" * len(table.columns) + "l" * len(table.texts)
    frame = [f"% {table.caption}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", first, r"\midrule", *rest]
    return "\n".join([*frame, r"\bottomrule", r"\end{tabular}", ""])


def terminal(table: Table, width: int, style: Style = TEXT) -> Iterator[Any]:
    """The table as renderables of rich: blocks of as many columns as a line holds, then the rows that failed."""
    done = [row for row in table.rows if row.error is None]
    heads, *lines = grid(replace(table, rows=done), style)
    widths = [2 + max(map(len, column)) for column in zip(heads, *lines, strict=True)]
    plain = [""] * len(table.texts)
    looks = []
    for row in done:
        cells = (row.cells.get(name) for name in table.columns)
        marks = ("" if one is None else "bold" if one.best else "underline" * one.second for one in cells)
        looks.append(["bold" * row.best, *marks, *plain])
    start = 1
    while start < len(widths):
        stop = start + 1
        while stop < len(widths) and widths[0] + sum(widths[start : stop + 1]) <= width + 2:
            stop += 1
        block = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        places = (0, *range(start, stop))
        for place in places:
            figures = 0 < place <= len(table.columns)
            block.add_column(Text(heads[place]), justify="right" if figures else "left", no_wrap=True)
        for line, look in zip(lines, looks, strict=True):
            block.add_row(*(Text(line[place], look[place]) for place in places))
        yield block
        start = stop
    failed = [row for row in table.rows if row.error is not None]
    yield from (Text("  ".join(line)) for line in grid(replace(table, rows=failed), style)[1:])


def text(table: Table, *, said: Iterable[str] = (), notes: Iterable[str] = (), width: int = SCREEN) -> str:
    """One screen of text: sentences, the table and notes."""
    shown, more = screen(table)
    # in a notebook rich would display the table instead of writing it to the text
    out = Console(width=width, color_system=None, force_jupyter=False)
    with out.capture() as written:
        for block in terminal(shown, width):
            out.print(block)
    lines = [line.rstrip() for line in written.get().splitlines()]
    return "\n".join([*said, *lines, *more, *filter(None, notes)])


def screen(table: Table) -> tuple[Table, list[str]]:
    """The first rows, as many as one screen holds, and how many are left out."""
    left = len(table.rows) - MOST_ROWS
    more = [f"… and {left} more {table.axis}s: to_frame() has all"] if left > 0 else []
    return replace(table, rows=table.rows[:MOST_ROWS]), more


def shortened(name: str) -> str:
    """A model's name as a column can hold it: the end tells more than the start."""
    return name if len(name) <= WIDEST_HEADING else "…" + name[1 - WIDEST_HEADING :]


def notebook(
    table: Table, *, said: str, notes: Iterable[str] = (), diagrams: Iterable[Json] = ()
) -> str:  # fmt: skip
    """The table for a notebook, with reliability diagrams below it."""
    shown, more = screen(table)
    heads, *rows = grid(shown, HTML)
    context = {"said": said, "heads": heads, "rows": rows, "notes": [*more, *filter(None, notes)]}
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


def diagram(bins: Reliability, title: str = "", before: Reliability | None = None) -> Json:
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


MARKS = ("confidence", "accuracy", "low", "high", "opacity")


def _marks(bins: Reliability) -> list[dict[str, float]]:
    """What is drawn of every bin that has rows."""
    opacity = np.where(bins.count < FEW, 0.35, 1.0)
    columns = bins.confidence, bins.accuracy, bins.accuracy_low, bins.accuracy_high, opacity
    return [dict(zip(MARKS, row, strict=True)) for row in np.stack(columns, axis=1)[bins.filled].round(4).tolist()]
