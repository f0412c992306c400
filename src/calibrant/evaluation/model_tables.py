"""The matrix of methods and models as text, pandas, Markdown, LaTeX and a notebook's table."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.core.metric_facts import facts, number
from calibrant.evaluation.display import diagram
from calibrant.evaluation.reliability import reliability_bins
from calibrant.evaluation.tables import escaped_latex

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
    return look.label + (" %" if look.percent else "") + (", higher is better" if look.better > 0 else "")


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


def dataframe(table: ModelComparison) -> Any:
    """Methods × models in fractions, with `mean_rank` and `best_or_tied`."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_frame needs pandas: install it with `pip install pandas`") from error

    columns: dict[str, list[Any]] = {}
    for model in table.models:
        found = [table.estimate(method, model) for method in table.methods]
        columns[model] = [np.nan if one is None else one.value for one in found]
    columns["mean_rank"] = list(table.mean_ranks().values())
    columns["best_or_tied"] = list(table.wins().values())
    return pandas.DataFrame(columns, index=pandas.Index(table.methods, name="method"))


def markdown(table: ModelComparison) -> str:
    """Markdown: **best** of each model, ≈ within noise of it."""
    ranks, wins = table.mean_ranks(), table.wins()
    head = ["method", *(model.replace("|", "\\|") for model in table.models), "mean rank", "best or tied"]
    rows = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    for method in by_rank(table):
        cells = [matrix_cell(table, method, model) for model in table.models]
        texts = [(f"**{one.value}**" if one.best else one.value) + (" ≈" if one.tie else "") for one in cells]
        name = f"**{method}**" if method == table.best else method
        rows.append("| " + " | ".join([name, *texts, f"{ranks[method]:.2f}", str(wins[method])]) + " |")
    caption = f"{sizes(table)}. **Best** of each model, ≈ within noise of it."
    return "\n".join([*rows, "", caption]) + "\n"


def latex(table: ModelComparison) -> str:
    """A booktabs tabular with the figures and marks of the Markdown table."""
    ranks, wins = table.mean_ranks(), table.wins()
    head = ["method", *table.models, "mean rank", "best or tied"]
    rows = [
        "% " + escaped_latex(sizes(table)),
        r"\begin{tabular}{l" + "r" * (len(head) - 1) + "}",
        r"\toprule",
        " & ".join(escaped_latex(one) for one in head) + r" \\",
        r"\midrule",
    ]
    for method in by_rank(table):
        cells = []
        for model in table.models:
            one = matrix_cell(table, method, model)
            value = one.value.replace("—", "--")
            cells.append((rf"\textbf{{{value}}}" if one.best else value) + (r"$^{\approx}$" if one.tie else ""))
        name = escaped_latex(method)
        name = rf"\textbf{{{name}}}" if method == table.best else name
        rows.append(" & ".join([name, *cells, f"{ranks[method]:.2f}", str(wins[method])]) + r" \\")
    return "\n".join([*rows, r"\bottomrule", r"\end{tabular}"]) + "\n"


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
    ranks, wins = table.mean_ranks(), table.wins()
    head = "".join(f"<th>{escape(one)}</th>" for one in ["method", *table.models, "mean rank", "best or tied"])
    body = []
    for method in by_rank(table)[:MOST_ROWS]:
        cells = [matrix_cell(table, method, model) for model in table.models]
        texts = [
            f"<td>{'<b>' if one.best else ''}{escape(one.value)}{'</b>' if one.best else ''}{' ≈' * one.tie}</td>"
            for one in cells
        ]
        name = f"<b>{escape(method)}</b>" if method == table.best else escape(method)
        body.append(f"<tr><td>{name}</td>{''.join(texts)}<td>{ranks[method]:.2f}</td><td>{wins[method]}</td></tr>")
    left = len(table.methods) - len(body)
    more = f"<p>… and {left} more methods: to_frame() has all</p>" if left else ""
    return (
        "<div style='overflow-x: auto'>"
        f"<p>{escape(sizes(table))}. {escape(table.verdict)}.</p><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table>{more}{_diagrams(table)}</div>"
    )
