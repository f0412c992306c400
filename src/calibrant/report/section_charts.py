"""Charts of the sections that only some pages have: groups, and the decisions that one probability per row allows."""

from __future__ import annotations

from typing import Any

from calibrant.report.chart_parts import SIDE_COLORS, SIDE_SHAPES, diagonal, percent, with_wilson
from calibrant.report.wording import Wording


def forest(words: Wording, count: int) -> Any:
    """Signed gaps of groups with simultaneous intervals, one line per group."""
    import altair as alt

    data = alt.Chart(alt.NamedData("groups"))
    chosen = data.transform_filter("datum.method == method")
    before = data.transform_filter("datum.method == before")
    title = f"{words.mean} minus {words.share}"
    axis = alt.Axis(format="+.1~%", tickCount=6)
    x = alt.X("gap:Q", title=title, axis=axis, scale=alt.Scale(zero=True, nice=True))
    y = alt.Y("group:N", title=None, sort=None, axis=alt.Axis(labelLimit=150, ticks=False, domain=False))
    color = alt.Color("side:N", scale=alt.Scale(domain=words.sides, range=SIDE_COLORS), legend=None)
    shape = alt.Shape("side:N", scale=alt.Scale(domain=words.sides, range=SIDE_SHAPES), legend=None)
    faded = alt.condition("datum.few", alt.value(0.4), alt.value(1))
    tooltip = [
        alt.Tooltip("method:N"),
        alt.Tooltip("group:N"),
        alt.Tooltip("rows:Q", format=","),
        alt.Tooltip("gap:Q", format="+.1%"),
        alt.Tooltip("low:Q", title="interval from", format="+.1%"),
        alt.Tooltip("high:Q", title="to", format="+.1%"),
    ]
    zero = alt.Chart(alt.Data(values=[{"gap": 0}])).mark_rule(color="var(--muted)", strokeDash=[4, 4]).encode(x="gap:Q")
    whole = chosen.transform_filter("isValid(datum.low)")
    rules = whole.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q", y=y, color=color, opacity=faded)
    points = chosen.mark_point(filled=True, size=80).encode(
        x=x, y=y, color=color, shape=shape, opacity=faded, tooltip=tooltip
    )
    old = before.mark_point(
        color="var(--before)", size=55, strokeWidth=1.5, opacity={"expr": "method != before ? 1 : 0"}
    ).encode(x=x, y=y, tooltip=tooltip)
    parameters = [alt.param(name="method", value=""), alt.param(name="before", value="none")]
    chart = alt.layer(zero, old, rules, points).add_params(*parameters)
    return chart.properties(height=max(110, 30 * count), description="Signed calibration gap of every group")


def group_diagram(words: Wording) -> Any:
    """Reliability diagram of the group in focus."""
    import altair as alt

    bins = with_wilson(alt.Chart(alt.NamedData("group_bins")))
    chosen, before = bins.transform_filter("datum.method == method"), bins.transform_filter("datum.method == before")
    x = alt.X(**percent("confidence", words.stated, domain=[0, 1]))
    y = alt.Y(**percent("accuracy", words.seen, domain=[0, 1]))
    size = alt.Size("count:Q", scale=alt.Scale(domain=[1, 60], range=[25, 200], clamp=True), legend=None)
    tooltip = [
        alt.Tooltip("method:N"),
        alt.Tooltip("confidence:Q", title=words.mean, format=".1%"),
        alt.Tooltip("accuracy:Q", title=words.share, format=".1%"),
        alt.Tooltip("count:Q", title="rows", format=",.0f"),
    ]
    faded = alt.condition("datum.count < 10", alt.value(0.35), alt.value(0.95))
    whiskers = chosen.mark_rule(color="var(--accent)", strokeWidth=1.3)
    whiskers = whiskers.encode(x="confidence:Q", y="low:Q", y2="high:Q", opacity=faded)
    points = chosen.mark_point(filled=True, color="var(--accent)")
    points = points.encode(x=x, y=y, size=size, tooltip=tooltip, opacity=faded)
    old = before.mark_point(color="var(--before)", strokeWidth=1.5, opacity={"expr": "method != before ? 0.9 : 0"})
    old = old.encode(x=x, y=y, size=size, tooltip=tooltip)
    parameters = [alt.param(name="method", value=""), alt.param(name="before", value="none")]
    chart = alt.layer(diagonal(alt), old, whiskers, points).add_params(*parameters)
    return chart.properties(height=330, description="Reliability diagram of the group that is worst served")
