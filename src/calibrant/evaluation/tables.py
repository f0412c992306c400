"""A comparison as a table: which figures, in which unit, and which of them to mark; then pandas, Markdown, LaTeX."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from calibrant.core.metric_facts import ABSOLUTE, facts, known_name, number

if TYPE_CHECKING:
    from calibrant.evaluation.results import Comparison, MethodRow
    from calibrant.evaluation.table import Estimate


@dataclass(frozen=True)
class Cell:
    """One figure as text in the column's unit, its interval as text, and how it stands in its column."""

    value: str
    interval: str
    best: bool = False
    second: bool = False
    tie: bool = False


def cell(comparison: Comparison, row: MethodRow, metric: str) -> Cell:
    """The figure of a method in one column; best and second by value, ties by the paired resamples."""
    if metric not in row.metrics:
        return Cell("—", "")
    estimate = row.metrics[metric]
    interval = bounds(metric, estimate)
    if facts(metric).better == 0:  # a low value by itself is not good
        return Cell(number(metric, estimate.value), interval)
    order = comparison.ranking(metric)
    best = order[0] == row.method
    tie = metric in row.ties and not best
    # within noise of the best is a tie, not a second place
    second = len(order) > 1 and order[1] == row.method and not tie
    return Cell(number(metric, estimate.value), interval, best, second, tie)


RAISED = "‡"
RAISED_WORDS = (
    "‡ at the upper end of its interval: chance alone raises the estimate of a gap, the true one is likely lower"
)


def raised(metric: str, estimate: Estimate) -> bool:
    """Does a calibration error stand in the last fiftieth of its own interval, or beyond it?"""
    if known_name(metric) not in ABSOLUTE or not np.isfinite(estimate.high):
        return False
    width = estimate.high - estimate.low
    return width > 0 and estimate.high - estimate.value < width / 50


def bounds(metric: str, estimate: Estimate, places: int = 4) -> str:
    """The interval as text, with a double dagger where the estimate stands at its end; empty where there is none."""
    if not np.isfinite(estimate.low):
        return ""
    mark = RAISED if raised(metric, estimate) else ""
    return f"[{number(metric, estimate.low, places)}, {number(metric, estimate.high, places)}]{mark}"


def any_raised(comparison: Comparison) -> bool:
    """Does any figure of the table need the explanation?"""
    return any(raised(name, one) for row in comparison.rows for name, one in row.metrics.items())


def share(value: float) -> str:
    """A share in percent, a dash where there is none; what is not zero never reads as zero."""
    if not np.isfinite(value):
        return "—"
    return "<0.01" if 0 < value < 5e-5 else f"{100 * value:.2f}"


def seconds(value: float) -> str:
    """Fit time."""
    return "—" if not np.isfinite(value) else (f"{value:.2f}" if value < 100 else f"{value:.0f}")


def markdown_lines(head: Sequence[str], rows: Iterable[Sequence[str]], rule: str = "") -> list[str]:
    """The lines of a Markdown table; `rule` aligns the columns, the first to the left and the others to the right."""
    rule = rule or "| --- |" + " ---: |" * (len(head) - 1)
    return ["| " + " | ".join(head) + " |", rule, *("| " + " | ".join(row) + " |" for row in rows)]


def booktabs(comment: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A LaTeX tabular of cells that are LaTeX already, below a comment."""
    frame = [f"% {comment}", r"\begin{tabular}{l" + "r" * (len(head) - 1) + "}", r"\toprule"]
    body = [" & ".join(row) + r" \\" for row in rows]
    return "\n".join([*frame, " & ".join(head) + r" \\", r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]) + "\n"


def html_table(said: str, head: Iterable[str], rows: Iterable[str], after: str = "") -> str:
    """A table for a notebook: paragraphs above, plain texts as head, rows and what follows as HTML."""
    heads = "".join(f"<th>{escape(text)}</th>" for text in head)
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f"<div style='overflow-x: auto'>{said}{table}{after}</div>"


def model_card(comparison: Comparison) -> str:
    """A section of a model card: the method, the figures before and after on rows it never saw, and how to load it."""
    best = comparison.best or comparison.rows[0].method
    names = [name for name in ("ece", "nll", "brier", "accuracy") if name in comparison.metric_names]
    rows = []
    known = [row.method for row in comparison.rows]
    for name in names:
        texts = []
        for method in ("none", best):
            one = cell(comparison, comparison.row(method), name) if method in known else Cell("—", "")
            texts.append(f"{one.value} {one.interval}".strip())
        rows.append([facts(name).title, *texts])
    return "\n".join(
        [
            "## Calibration",
            "",
            f"Calibrated with `{best}` on {comparison.n_val:,} held-out rows, measured on {comparison.n_test:,} other "
            f"rows ({comparison.n_classes} classes; 95% intervals from {comparison.resamples:,} resamples). "
            f"{comparison.verdict}",
            "",
            *markdown_lines(("metric", "uncalibrated", "calibrated"), rows),
            "",
            "```python",
            "import calibrant as cal",
            "",
            'probabilities = cal.load("calibrator.safetensors").predict_proba(logits)',
            "```",
            "",
        ]
    )


def _header(comparison: Comparison) -> list[str]:
    metrics = [facts(name).title for name in comparison.metric_names]
    return ["method", *metrics, "changed predictions %", "changed rankings %", "P(beats best)", "fit s"]


def _tail(row: MethodRow) -> list[str]:
    beats = "—" if not np.isfinite(row.p_beats_best) else f"{row.p_beats_best:.2f}"
    return [share(row.changed_predictions), share(row.changed_rankings), beats, seconds(row.fit_seconds)]


def _caption(comparison: Comparison, intervals: bool) -> str:
    how = f"{comparison.resamples:,} paired bootstrap resamples"
    sizes = f"Fitted on {comparison.n_val:,} rows, measured on {comparison.n_test:,}; {comparison.n_classes} classes. "
    if not intervals:
        return f"{sizes}Differences judged by {how}. "
    return f"{sizes}95% intervals from {how}. " + (f"{RAISED_WORDS}. " if any_raised(comparison) else "")


def markdown(comparison: Comparison, *, intervals: bool = False) -> str:
    """Markdown: **best**, <u>second</u>, ≈ for a tie with the best within noise; intervals where asked for."""

    def text(one: Cell) -> str:
        value = f"**{one.value}**" if one.best else (f"<u>{one.value}</u>" if one.second else one.value)
        return value + (" ≈" if one.tie else "") + (f" {one.interval}" if intervals and one.interval else "")

    header, rows = _header(comparison), []
    for row in comparison.rows:
        method = row.method.replace("|", "\\|")
        name = f"**{method}**" if row.method == comparison.best else method
        if row.error is not None:
            cells = ["failed: " + row.error.replace("|", "\\|"), *[""] * (len(header) - 2)]
        else:
            cells = [text(cell(comparison, row, metric)) for metric in comparison.metric_names] + _tail(row)
        rows.append([name, *cells])
    marks = "**Best**, <u>second</u>, ≈ within noise of the best of the column."
    return "\n".join([*markdown_lines(header, rows), "", _caption(comparison, intervals) + marks]) + "\n"


def latex(comparison: Comparison, *, intervals: bool = False) -> str:
    """A booktabs tabular with the figures and marks of the Markdown table; its caption stands in a comment."""

    dagger = r"$^{\ddagger}$"

    def text(one: Cell) -> str:
        value = one.value.replace("—", "--")
        value = f"\\textbf{{{value}}}" if one.best else (f"\\underline{{{value}}}" if one.second else value)
        interval = rf" {{\scriptsize {one.interval.replace(RAISED, dagger)}}}" if intervals and one.interval else ""
        return value + (r"$^{\approx}$" if one.tie else "") + interval

    header, rows = [escaped_latex(title) for title in _header(comparison)], []
    for row in comparison.rows:
        method = escaped_latex(row.method)
        name = rf"\textbf{{{method}}}" if row.method == comparison.best else method
        if row.error is not None:
            reason = escaped_latex(f"failed: {row.error}")
            rows.append([name, rf"\multicolumn{{{len(header) - 1}}}{{l}}{{{reason}}}"])
            continue
        cells = [text(cell(comparison, row, metric)) for metric in comparison.metric_names]
        tail = [escaped_latex(value.replace("—", "--")) for value in _tail(row)]
        rows.append([name, *cells, *tail])
    marks = "Bold: best; underlined: second; approx: within noise of the best."
    return booktabs(_caption(comparison, intervals) + marks, header, rows)


def escaped_latex(text: str) -> str:
    """Text with the characters that LaTeX reads as commands spelled out."""
    special = {
        "\\": r"\textbackslash{}", "%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{",
        "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$",
    }  # fmt: skip
    return "".join(special.get(character, character) for character in text)
