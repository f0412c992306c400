"""What several charts of the page are made of."""

from __future__ import annotations

from typing import Any

import altair as alt

from calibrant.report.wording import PREDICTED, Wording

SIDE_COLORS = ["var(--over)", "var(--ok)", "var(--under)"]
SIDE_SHAPES = ["triangle-down", "circle", "triangle-up"]


def percent(field: str, title: str, **scale: Any) -> dict[str, Any]:
    """An axis of shares."""
    return {
        "shorthand": f"{field}:Q",
        "title": title,
        "scale": alt.Scale(**scale),
        "axis": alt.Axis(format=".1~%", tickCount=6),
    }


def bin_tooltip(words: Wording = PREDICTED) -> list[Any]:
    """What a bin says when pointed at."""
    return [
        alt.Tooltip("method:N", title="method"),
        alt.Tooltip("confidence:Q", title=words.mean, format=".1%"),
        alt.Tooltip("accuracy:Q", title=words.share, format=".1%"),
        alt.Tooltip("low:Q", title="interval from", format=".1%"),
        alt.Tooltip("high:Q", title="to", format=".1%"),
        alt.Tooltip("count:Q", title="rows", format=",.0f"),
    ]


def parameters(**values: Any) -> list[Any]:
    """What the page tells a chart: the chosen method, the one before it, and other values that it starts with."""
    return [alt.param(name=name, value=value) for name, value in {"method": "", "before": "none", **values}.items()]


def side_marks(names: list[str]) -> tuple[Any, Any]:
    """Colour and shape of too high, within chance and too low, or of the outer two; the page holds the legend."""
    step = 4 - len(names)
    color = alt.Color("side:N", scale=alt.Scale(domain=names, range=SIDE_COLORS[::step]), legend=None)
    shape = alt.Shape("side:N", scale=alt.Scale(domain=names, range=SIDE_SHAPES[::step]), legend=None)
    return color, shape


def diagonal() -> Any:
    """The line on which what is stated is what is seen."""
    ends = alt.Data(values=[{"confidence": 0, "accuracy": 0}, {"confidence": 1, "accuracy": 1}])
    line = alt.Chart(ends).mark_line(color="var(--muted)", strokeWidth=1, strokeDash=[4, 4], opacity=0.8)
    return line.encode(x="confidence:Q", y="accuracy:Q")


WILSON_CENTRE = "(datum.accuracy + 1.9207 / datum.count) / (1 + 3.8415 / datum.count)"
WILSON_HALF = (
    "1.95996 / (1 + 3.8415 / datum.count) * "
    "sqrt(datum.accuracy * (1 - datum.accuracy) / datum.count + 0.9604 / (datum.count * datum.count))"
)


def with_wilson(chart: Any) -> Any:
    """Bins with the Wilson interval of their share, from `accuracy` and `count`."""
    return chart.transform_calculate(
        low=f"max(0, {WILSON_CENTRE} - {WILSON_HALF})", high=f"min(1, {WILSON_CENTRE} + {WILSON_HALF})"
    )
