"""Results for people: one screen of text in a console, a table and a diagram in a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from calibrant.core.metric_facts import facts, number
from calibrant.evaluation.reliability import reliability_bins
from calibrant.evaluation.tables import RAISED_WORDS, bounds, cell, html_table, raised, seconds

if TYPE_CHECKING:
    from calibrant.evaluation.measurement import Measurement
    from calibrant.evaluation.results import Comparison, MethodRow
    from calibrant.evaluation.table import Estimate
    from calibrant.metrics.reliability import Reliability

SHOWN = ("nll", "brier", "ece", "accuracy", "calibration_slope", "observed_expected", "roc_auc")
"""The figures of a short table, those of them that a result has."""

MOST_ROWS = 14
SIDE = 240
"""Pixels of a diagram."""


def comparison_text(comparison: Comparison) -> str:
    """A table of the main figures, at most one screen."""
    names = _shown(comparison.metric_names)
    head = ["method", *(facts(name).title for name in names), "fit s"]
    rows = []
    for row in _best_rows(comparison):
        mark = "*" if row.method == comparison.best else ""
        if row.error is not None:
            rows.append([row.method, f"failed: {row.error[:60]}"])
            continue
        values = [number(name, row.metrics[name].value) if name in row.metrics else "—" for name in names]
        rows.append([row.method + mark, *values, seconds(row.fit_seconds)])
    widths = [max(len(line[place]) for line in [head, *rows] if place < len(line)) for place in range(len(head))]
    lines = [_aligned(line, widths) for line in [head, *rows]]
    left = len(comparison.rows) - len(rows)
    more = [f"… and {left} more methods: to_frame() has all"] if left > 0 else []
    return "\n".join([_sizes(comparison), *lines, *more, f"* best by {comparison.criterion}. {comparison.verdict}"])


def comparison_html(comparison: Comparison) -> str:
    """A table of the main figures with intervals, and the diagrams before and after."""
    names = _shown(comparison.metric_names)
    head = ["method", *(facts(name).title for name in names), "fit s"]
    body = [_html_row(comparison, row, names) for row in _best_rows(comparison)]
    diagrams = "".join(
        diagram(reliability_bins(row.columns.confidence, row.columns.correct), row.method)
        for row in comparison.rows
        if row.method in ("none", comparison.best) and row.columns is not None
    )
    marked = any(raised(name, row.metrics[name]) for row in comparison.rows for name in names if name in row.metrics)
    note = f"<p><small>{RAISED_WORDS}</small></p>" if marked else ""
    said = f"<p>{escape(_sizes(comparison))}. {escape(comparison.verdict)}</p>"
    return html_table(said, head, body, note + diagrams)


def measurement_text(measurement: Measurement) -> str:
    """The verdict and the main figures with their intervals."""
    lines = [f"{measurement.n:,} rows, {_what(measurement)}", measurement.verdict]
    names = _shown(list(measurement.metrics))
    width = max((len(facts(name).title) for name in names), default=0)
    for name in names:
        lines.append(f"{facts(name).title:<{width}}  {_with_interval(name, measurement.metrics[name])}")
    floor = measurement.noise_floor
    lines.append(f"noise floor of the ECE {100 * floor.mean:.2f} %, p-value {floor.p_value:.3g}")
    lines += [measurement.mendable] if measurement.mendable else []
    notes = [f"note: {warning}" for warning in measurement.warnings]
    if any(raised(name, measurement.metrics[name]) for name in names):
        notes.insert(0, RAISED_WORDS)
    return "\n".join([*lines, *notes])


def measurement_html(measurement: Measurement) -> str:
    """The same as a table beside the reliability diagram."""
    names = _shown(list(measurement.metrics))
    cells = [(facts(name).title, _with_interval(name, measurement.metrics[name])) for name in names]
    rows = [f"<tr><td>{escape(title)}</td><td>{escape(text)}</td></tr>" for title, text in cells]
    floor = measurement.noise_floor
    marked = any(raised(name, one) for name, one in measurement.metrics.items() if name in SHOWN)
    note = f"<p><small>{RAISED_WORDS}</small></p>" if marked else ""
    note += f"<p>{escape(measurement.mendable)}</p>" if measurement.mendable else ""
    rows.append(f"<tr><td>noise floor of the ECE</td><td>{100 * floor.mean:.2f} (p = {floor.p_value:.3g})</td></tr>")
    said = f"<p>{measurement.n:,} rows, {escape(_what(measurement))}. {escape(measurement.verdict)}</p>"
    after = note + diagram(measurement.bins, measurement.about)
    return html_table(said, ("metric", "value [95% interval]"), rows, after)


def diagram(bins: Reliability, title: str) -> str:
    """A reliability diagram as SVG in the colours of the page it stands in."""
    inner = SIDE - 40
    full = bins.weight > 0
    bars, dots = [], []
    most = float(bins.weight.max()) if full.any() else 1.0
    for place in np.flatnonzero(full):
        left, width = 30 + inner * bins.lower[place], inner * (bins.upper[place] - bins.lower[place])
        height = inner * 0.2 * float(bins.weight[place]) / most
        bars.append(f'<rect x="{left:.1f}" y="{10 + inner - height:.1f}" width="{width:.1f}" height="{height:.1f}"/>')
        x, y = 30 + inner * bins.confidence[place], 10 + inner * (1 - bins.accuracy[place])
        dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')
    return (
        f'<svg width="{SIDE}" height="{SIDE + 20}" viewBox="0 0 {SIDE} {SIDE + 20}" role="img" '
        f'aria-label="reliability diagram, {escape(title)}" font-size="11" fill="currentColor">'
        f'<rect x="30" y="10" width="{inner}" height="{inner}" fill="none" stroke="currentColor" stroke-opacity="0.4"/>'
        f'<g fill-opacity="0.25">{"".join(bars)}</g>'
        f'<line x1="30" y1="{10 + inner}" x2="{30 + inner}" y2="10" stroke="currentColor" stroke-dasharray="4 3"/>'
        f'<g fill="#0072B2">{"".join(dots)}</g>'
        f'<text x="30" y="{inner + 24}">0</text><text x="{22 + inner}" y="{inner + 24}">1</text>'
        f'<text x="{30 + inner / 2:.0f}" y="{inner + 24}" text-anchor="middle">confidence</text>'
        f'<text x="14" y="{10 + inner / 2:.0f}" transform="rotate(-90 14 {10 + inner / 2:.0f})" text-anchor="middle">'
        f'accuracy</text><text x="36" y="24">{escape(title)}</text><text x="36" y="38">ECE {bins.ece:.2%}</text></svg>'
    )


def _html_row(comparison: Comparison, row: MethodRow, names: list[str]) -> str:
    name = f"<b>{escape(row.method)}</b>" if row.method == comparison.best else escape(row.method)
    if row.error is not None:
        return f'<tr><td>{name}</td><td colspan="{len(names) + 1}">failed: {escape(row.error)}</td></tr>'
    cells = []
    for metric in names:
        one = cell(comparison, row, metric)
        value = f"<b>{escape(one.value)}</b>" if one.best else escape(one.value)
        cells.append(f"<td>{value}{' ≈' if one.tie else ''} <small>{escape(one.interval)}</small></td>")
    return f"<tr><td>{name}</td>{''.join(cells)}<td>{seconds(row.fit_seconds)}</td></tr>"


def _best_rows(comparison: Comparison) -> list[MethodRow]:
    """All rows in their order, or the first by the criterion where one screen cannot hold all."""
    if len(comparison.rows) <= MOST_ROWS:
        return list(comparison.rows)
    kept = {*comparison.ranking(comparison.criterion)[: MOST_ROWS - 1], "none"}
    return [row for row in comparison.rows if row.method in kept]


def _shown(names: list[str]) -> list[str]:
    return [name for name in SHOWN if name in names]


def _with_interval(name: str, estimate: Estimate) -> str:
    return f"{number(name, estimate.value)} {bounds(name, estimate)}".rstrip()


def _sizes(comparison: Comparison) -> str:
    return (
        f"{len(comparison.rows)} methods fitted on {comparison.n_val:,} rows, measured on {comparison.n_test:,}; "
        f"{comparison.task}, {comparison.n_classes} classes"
    )


def _what(measurement: Measurement) -> str:
    return f"{measurement.task}, {measurement.n_classes} classes, about the {measurement.about}"


def _aligned(line: list[str], widths: list[int]) -> str:
    first, *rest = line
    return "  ".join(
        [f"{first:<{widths[0]}}", *(f"{text:>{width}}" for text, width in zip(rest, widths[1:], strict=False))]
    )
