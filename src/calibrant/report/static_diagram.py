"""A reliability diagram as plain SVG, for pages and places without a chart library."""

from __future__ import annotations

from html import escape

import numpy as np

from calibrant.metrics.reliability import Reliability
from calibrant.report.wording import Wording

SIDE, LEFT, TOP, BOTTOM = 300, 44, 8, 40
INNER = SIDE - LEFT - 8
FEW = 10
"""Bins with fewer rows are faint."""


def static_diagram(before: Reliability, after: Reliability | None, words: Wording, label: str) -> str:
    """Bins before (hollow) and after calibration (filled, with intervals) against the diagonal."""
    height = TOP + INNER + BOTTOM
    parts = [_frame(words)]
    parts.append(f'<g fill="none" stroke="var(--before)" stroke-width="1.5">{_marks(before)}</g>')
    if after is not None:
        parts.append(f'<g stroke="var(--accent)" stroke-width="1.3">{_whiskers(after)}</g>')
        parts.append(f'<g fill="var(--accent)">{_marks(after)}</g>')
    return (
        f'<svg class="diagram" viewBox="0 0 {SIDE} {height}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def _x(value: float) -> float:
    return LEFT + INNER * float(value)


def _y(value: float) -> float:
    return TOP + INNER * (1 - float(value))


def _frame(words: Wording) -> str:
    ticks = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        ticks.append(f'<path d="M{_x(share):.1f} {TOP}V{TOP + INNER}M{LEFT} {_y(share):.1f}H{LEFT + INNER}"/>')
    numbers = []
    for share in (0.0, 0.5, 1.0):
        anchor = "end" if share == 1 else "middle"
        numbers.append(f'<text x="{_x(share):.1f}" y="{TOP + INNER + 15}" text-anchor="{anchor}">{share:.0%}</text>')
        numbers.append(f'<text x="{LEFT - 6}" y="{_y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    middle, centre = LEFT + INNER / 2, TOP + INNER / 2
    stated, seen = (escape(text.split(":")[0]) for text in (words.stated, words.seen))
    return (
        f'<g stroke="var(--grid)">{"".join(ticks)}</g>'
        f'<path d="M{LEFT} {TOP + INNER}L{LEFT + INNER} {TOP}" stroke="var(--muted)" stroke-dasharray="4 4"/>'
        f'{"".join(numbers)}<text x="{middle:.0f}" y="{TOP + INNER + 33}" text-anchor="middle">{stated}</text>'
        f'<text x="11" y="{centre:.0f}" text-anchor="middle" transform="rotate(-90 11 {centre:.0f})">{seen}</text>'
    )


def _filled(bins: Reliability) -> np.ndarray:
    return np.flatnonzero(bins.filled)


def _faint(bins: Reliability, place: int) -> str:
    return ' opacity="0.35"' if bins.count[place] < FEW else ""


def _marks(bins: Reliability) -> str:
    return "".join(
        f'<circle r="4" cx="{_x(bins.confidence[place]):.1f}" '
        f'cy="{_y(bins.accuracy[place]):.1f}"{_faint(bins, place)}/>'
        for place in _filled(bins)
    )


def _whiskers(bins: Reliability) -> str:
    return "".join(
        f'<path d="M{_x(bins.confidence[place]):.1f} {_y(bins.accuracy_low[place]):.1f}'
        f'V{_y(bins.accuracy_high[place]):.1f}"{_faint(bins, place)}/>'
        for place in _filled(bins)
    )
