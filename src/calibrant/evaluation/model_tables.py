"""The matrix of methods and models as text, pandas, Markdown, LaTeX and a notebook's table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from calibrant.core.metric_facts import facts, number
from calibrant.evaluation.display import diagram
from calibrant.evaluation.reliability import reliability_bins
from calibrant.evaluation.tables import booktabs, escaped_latex, html_table, markdown_lines

if TYPE_CHECKING:
    from calibrant.evaluation.models import ModelComparison

MOST_ROWS = 14
WIDEST_NAME = 14
SCREEN = 78
"""Characters a line of text may have; more models go into a second block."""


@dataclass(frozen=True)
class MatrixCell:
    """The deciding metric of one method on one model, as text, and how it stands among the methods."""

    value: str
    best: bool = False
    tie: bool = False


def matrix_cell(table: ModelComparison, method: str, model: str) -> MatrixCell:
    """One cell: best of the model, or within noise of the best by the paired resamples."""
    comparison = table.comparisons[model]
    row = next((row for row in comparison.rows if row.method == method), None)
    if row is None or table.criterion not in row.metrics:
        return MatrixCell("failed" if row is not None and row.error is not None else "—")
    best = comparison.best == method
    value = number(table.criterion, row.metrics[table.criterion].value)
    return MatrixCell(value, best, row.ties_best and not best)


def by_rank(table: ModelComparison) -> list[str]:
    """Methods, the lowest mean rank first."""
    ranks = table.mean_ranks()
    return sorted(ranks, key=lambda name: ranks[name])


def heading(table: ModelComparison) -> str:
    """The deciding metric with its unit and direction."""
    look = facts(table.criterion)
    return look.title + (", higher is better" if look.better > 0 else "")


def sizes(table: ModelComparison) -> str:
    """How much was compared."""
    return f"{len(table.methods)} methods on {len(table.models)} models; {table.task}; {heading(table)}"


def text(table: ModelComparison) -> str:
    """One screen: the matrix, the best of each model starred."""
    return "\n".join([sizes(table), *lines(table, SCREEN, MOST_ROWS), "* best of the model, ≈ within noise of it",
                      table.verdict])  # fmt: skip


def lines(table: ModelComparison, screen: int, most: int | None = None) -> list[str]:
    """The matrix in blocks of as many models as a line holds."""
    order = by_rank(table)
    shown = order if most is None else order[:most]
    ranks, wins = table.mean_ranks(), table.wins()
    first = max(len("method"), *(len(name) for name in shown)) + 1
    titles = {model: shortened(model) for model in table.models}
    width = max(8, *(len(title) for title in titles.values())) + 2
    room = max(1, (screen - first - 17) // width)
    found = []
    for start in range(0, len(table.models), room):
        block = table.models[start : start + room]
        head = "method".ljust(first) + "".join(f"{titles[model]:>{width - 1}} " for model in block)
        found.append(head + f"{'mean rank':>10}{'wins':>6}")
        for method in shown:
            line = method.ljust(first)
            for model in block:
                one = matrix_cell(table, method, model)
                line += f"{one.value:>{width - 1}}" + ("*" if one.best else "≈" if one.tie else " ")
            found.append(line + f"{ranks[method]:>10.2f}{wins[method]:>6d}")
    left = len(order) - len(shown)
    return [*found, f"… and {left} more methods: to_frame() has all"] if left else found


def shortened(name: str) -> str:
    """A model's name as a column can hold it: the end tells more than the start."""
    return name if len(name) <= WIDEST_NAME else "…" + name[1 - WIDEST_NAME :]


def _head(table: ModelComparison) -> list[str]:
    return ["method", *table.models, "mean rank", "best or tied"]


def _rows(
    table: ModelComparison, text: Callable[[str, bool], str], tie: str, most: int | None = None
) -> list[list[str]]:
    """Name, cells, mean rank and wins of each method; `text` writes a name or a figure, in bold where it is best."""
    ranks, wins, rows = table.mean_ranks(), table.wins(), []
    for method in by_rank(table)[:most]:
        cells = [matrix_cell(table, method, model) for model in table.models]
        texts = [text(one.value, one.best) + tie * one.tie for one in cells]
        rows.append([text(method, method == table.best), *texts, f"{ranks[method]:.2f}", str(wins[method])])
    return rows


def markdown(table: ModelComparison) -> str:
    """Markdown: **best** of each model, ≈ within noise of it."""
    rows = _rows(table, lambda text, best: f"**{text}**" if best else text, " ≈")
    lines = markdown_lines([text.replace("|", "\\|") for text in _head(table)], rows)
    return "\n".join([*lines, "", f"{sizes(table)}. **Best** of each model, ≈ within noise of it."]) + "\n"


def latex(table: ModelComparison) -> str:
    """A booktabs tabular with the figures and marks of the Markdown table."""

    def text(plain: str, best: bool) -> str:
        escaped = escaped_latex(plain.replace("—", "--"))
        return rf"\textbf{{{escaped}}}" if best else escaped

    head = [escaped_latex(one) for one in _head(table)]
    return booktabs(escaped_latex(sizes(table)), head, _rows(table, text, r"$^{\approx}$"))


MOST_DIAGRAMS = 4


def _diagrams(table: ModelComparison) -> str:
    """Reliability of the best method of the first models."""
    found = []
    for model, one in list(table.comparisons.items())[:MOST_DIAGRAMS]:
        columns = None if one.best is None else one.row(one.best).columns
        if columns is not None:
            bins = reliability_bins(columns.confidence, columns.correct, n_bins=one.n_bins, weights=one.weights)
            found.append(diagram(bins, f"{shortened(model)}, {one.best}"))
    return "".join(found)


def notebook(table: ModelComparison) -> str:
    """The matrix for a notebook, with the reliability diagram of each model's best method."""
    rows = _rows(table, lambda text, best: f"<b>{escape(text)}</b>" if best else escape(text), " ≈", MOST_ROWS)
    left = len(table.methods) - len(rows)
    more = f"<p>… and {left} more methods: to_frame() has all</p>" if left else ""
    body = ("".join(f"<td>{text}</td>" for text in row) for row in rows)
    said = f"<p>{escape(sizes(table))}. {escape(table.verdict)}.</p>"
    return html_table(said, _head(table), (f"<tr>{row}</tr>" for row in body), more + _diagrams(table))
