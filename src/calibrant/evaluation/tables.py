"""Tables, the one form in which every result is shown: estimates in rows and columns, and how they are written.

A row is a method, a metric, a model, a group, a label or a condition; a column holds one figure of each. The cell knows
the name of its figure, which decides label, unit and number format (`metrics.record`), and how it stands in its column.
Numbers are fractions, not percent. One grid of marked cells is written to a terminal, in Markdown, LaTeX or HTML for a
notebook.
"""

import html
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from functools import cache
from operator import methodcaller
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from calibrant.core.errors import InputError
from calibrant.metrics.record import facts, number
from calibrant.metrics.top_label import Reliability

Json = dict[str, Any]
"""Plain values by name."""


class PlainData:
    """A dataclass that gives its fields, or the attributes named in `json_fields`, as plain JSON data."""

    json_fields: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> Json:
        """Plain JSON data by name; None stands for a number that is not finite."""
        names = self.json_fields or (one.name for one in fields(self))  # type: ignore[arg-type]
        return {name: plain(getattr(self, name)) for name in names}

    def to_json(self, indent: int | None = 2) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)


def plain(value: Any) -> Any:
    """A value as JSON can hold it.

    >>> plain((1, float("nan"), np.array([0.5])))
    [1, None, [0.5]]
    """
    if isinstance(value, PlainData):
        return value.to_dict()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


NAN = float("nan")


@dataclass(frozen=True)
class Estimate(PlainData):
    """A figure and its 95% interval, as fractions (not percent); low and high are NaN where none was asked for."""

    value: float
    low: float = NAN
    high: float = NAN
    spread: float = NAN
    """Standard deviation over repetitions (seeds) whose mean is `value`; NaN for a single result."""

    def __eq__(self, other: object) -> bool:
        """Equal numbers; a missing end equals a missing end, which Python up to 3.12 took from their identity."""
        return isinstance(other, Estimate) and np.array_equal(astuple(self), astuple(other), equal_nan=True)

    def __hash__(self) -> int:
        return hash(self.value)

    def to_dict(self) -> Json:
        """Plain JSON data; the spread only where there is one."""
        found = super().to_dict()
        if found["spread"] is None:
            del found["spread"]
        return found


class Figures(dict[str, Estimate], PlainData):
    """Estimates by name; a second name finds the same figure."""

    def __missing__(self, name: str) -> Estimate:
        if (known := facts(name).name) in self:
            return self[known]
        raise KeyError(name)

    def to_dict(self) -> Json:
        """Plain JSON data; of a figure with two names, by both."""
        second = {also: one for name, one in self.items() if (also := facts(name).also)}
        return plain(self | second)


class Cell(NamedTuple):
    """One figure of one row, and how it stands in its column.

    best, second : by value. tie : not the best, but within noise of it by paired resamples.
    """

    metric: str
    estimate: Estimate
    best: bool = False
    second: bool = False
    tie: bool = False


@dataclass(frozen=True)
class Row:
    """The cells of one row by column; where `error` says why there are none, nothing was computed."""

    name: str
    cells: Mapping[str, Cell]
    best: bool = False
    error: str | None = None


@dataclass(frozen=True)
class Table:
    """Rows × columns of estimates.

    axis : what a row is ("method", "metric", "model", "group", "label"), the heading of the first column.
    columns : headings by the name of the column, in order.
    caption : one sentence about all of it.
    """

    axis: str
    columns: Mapping[str, str]
    rows: Sequence[Row]
    caption: str = ""
    texts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Columns of words (a verdict, a reason) by name, each a word by the name of the row."""
    intervals: bool | Collection[str] = False
    """Show intervals in all columns, in none, or in those that are named."""
    missing: str = "—"
    """What stands where a row has no cell."""

    def pick(self, columns: Iterable[str] | None) -> Self:
        """The table with these columns only, in this order; a second name of a metric finds its column."""
        if columns is None:
            return self
        wanted = [name if name in self.columns else facts(name).name for name in columns]
        for name in wanted:
            if name not in self.columns:
                raise InputError(f"the table has no column {name!r}: choose from {', '.join(self.columns)}")
        return replace(self, columns={name: self.columns[name] for name in wanted})

    def to_frame(self) -> Any:
        """A pandas table: one row per row; of every column the value, and `…_low` and `…_high` where intervals are."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_frame needs pandas: install it with `pip install pandas`") from error
        found: Json = {}
        for name in self.columns:
            estimates = [row.cells[name].estimate if name in row.cells else Estimate(NAN) for row in self.rows]
            found[name] = [one.value for one in estimates]
            for end in ("low", "high", "spread"):
                values = [getattr(one, end) for one in estimates]
                if np.isfinite(values).any():
                    found[f"{name}_{end}"] = values
        found |= {name: [words.get(row.name) for row in self.rows] for name, words in self.texts.items()}
        return pandas.DataFrame(found, index=pandas.Index([row.name for row in self.rows], name=self.axis))


def metric_columns(names: Iterable[str]) -> dict[str, str]:
    """Headings of columns that hold one metric each."""
    return {name: facts(name).title for name in names}


def figure_cells(figures: Mapping[str, Estimate]) -> dict[str, Cell]:
    """Cells of figures that are not ranked against others."""
    return {name: Cell(name, one) for name, one in figures.items()}


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


def grid(table: Table, style: Style) -> list[list[str]]:
    """The headings, then the name of each row and its cells; of a row that failed the name and the reason.

    A cell is a figure in its metric's unit, with its marks, its spread over seeds and, where asked for, its interval.
    """
    escape = style.escape
    shown = table.intervals if isinstance(table.intervals, Collection) else table.columns if table.intervals else ()
    lines = [[escape(text) for text in (table.axis, *table.columns.values(), *table.texts)]]
    for row in table.rows:
        line = [style.best.format(escape(row.name)) if row.best else escape(row.name)]
        lines.append(line)
        if row.error is not None:
            line.append(escape(f"failed: {row.error}"))
            continue
        for name in table.columns:
            if (cell := row.cells.get(name)) is None:
                line.append(escape(table.missing))
                continue
            value, ends = number(cell.metric, cell.estimate.value), ""
            if np.isfinite(cell.estimate.spread):
                value += f" ± {number(cell.metric, cell.estimate.spread)}"
            if name in shown:
                ends = bounds(cell.metric, cell.estimate)
            mark = style.best if cell.best else style.second if cell.second else "{}"
            text = mark.format(escape(value)) + style.tie * cell.tie
            line.append(text + (style.interval.format(escape(ends)) if ends else ""))
        line += [escape(words.get(row.name, "")) for words in table.texts.values()]
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
