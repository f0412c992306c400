"""Charts of the sections that only some pages have: groups, and the decisions that one probability per row allows."""

from __future__ import annotations

from typing import Any

import altair as alt

from calibrant.report.chart_parts import bin_tooltip, diagonal, parameters, percent, side_marks, with_wilson
from calibrant.report.wording import Wording


def forest(words: Wording, count: int) -> Any:
    """Signed gaps of groups with simultaneous intervals, one line per group."""
    data = alt.Chart(alt.NamedData("groups"))
    chosen = data.transform_filter("datum.method == method")
    before = data.transform_filter("datum.method == before")
    title = f"{words.mean} minus {words.share}"
    axis = alt.Axis(format="+.1~%", tickCount=6)
    x = alt.X("gap:Q", title=title, axis=axis, scale=alt.Scale(zero=True, nice=True, padding=16))
    y = alt.Y("group:N", title=None, sort=None, axis=alt.Axis(labelLimit=150, ticks=False, domain=False))
    color, shape = side_marks(words.sides)
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
    chart = alt.layer(zero, old, rules, points).add_params(*parameters())
    return chart.properties(
        height=max(30 * count, min(330, 70 * count)), description="Signed calibration gap of every group"
    )


def group_diagram(words: Wording) -> Any:
    """Reliability diagram of the group in focus."""
    bins = with_wilson(alt.Chart(alt.NamedData("group_bins")))
    chosen, before = bins.transform_filter("datum.method == method"), bins.transform_filter("datum.method == before")
    x = alt.X(**percent("confidence", words.stated, domain=[0, 1]))
    y = alt.Y(**percent("accuracy", words.seen, domain=[0, 1]))
    size = alt.Size("count:Q", scale=alt.Scale(domain=[1, 60], range=[25, 200], clamp=True), legend=None)
    tooltip = bin_tooltip(words)
    faded = alt.condition("datum.count < 10", alt.value(0.35), alt.value(0.95))
    whiskers = chosen.mark_rule(color="var(--accent)", strokeWidth=1.3)
    whiskers = whiskers.encode(x="confidence:Q", y="low:Q", y2="high:Q", opacity=faded)
    points = chosen.mark_point(filled=True, color="var(--accent)")
    points = points.encode(x=x, y=y, size=size, tooltip=tooltip, opacity=faded)
    old = before.mark_point(color="var(--before)", strokeWidth=1.5, opacity={"expr": "method != before ? 0.9 : 0"})
    old = old.encode(x=x, y=y, size=size, tooltip=tooltip)
    chart = alt.layer(diagonal(), old, whiskers, points).add_params(*parameters())
    return chart.properties(height=330, description="Reliability diagram of the group that is worst served")


def smooth_layers(words: Wording) -> list[Any]:
    """The flexible calibration curve of the chosen method and its 95% band, for a reliability diagram."""
    data = alt.Chart(alt.NamedData("smooth")).transform_filter("datum.method == method")
    x = alt.X("probability:Q", title=words.stated)
    band = data.mark_area(color="var(--accent)", opacity=0.14).encode(
        x=x, y=alt.Y("low:Q", title=words.seen), y2="high:Q"
    )
    line = data.mark_line(color="var(--accent)", strokeWidth=2).encode(x=x, y=alt.Y("observed:Q", title=words.seen))
    return [band, line]


def decision() -> Any:
    """Net benefit over thresholds: of the method, before it, of acting on everyone and on no one."""
    data = alt.Chart(alt.NamedData("thresholds"))
    x = alt.X(**percent("threshold", "threshold: act from this probability on", domain=[0, 1]))
    # treating all falls without bound: the chart ends a little below zero
    y = alt.Y(
        "benefit:Q",
        title="net benefit",
        axis=alt.Axis(format=".2~f", tickCount=6),
        scale=alt.Scale(domain={"expr": "[-0.25 * prevalence, 1.05 * prevalence]"}, nice=False),
    )
    tooltip = [
        alt.Tooltip("method:N"),
        alt.Tooltip("threshold:Q", format=".0%"),
        alt.Tooltip("benefit:Q", title="net benefit", format=".4f"),
    ]
    chosen = data.transform_filter("datum.method == method")
    after = chosen.mark_line(color="var(--accent)", strokeWidth=2.4, clip=True).encode(x=x, y=y, tooltip=tooltip)
    old = data.transform_filter("datum.method == before").mark_line(
        color="var(--before)", strokeWidth=1.6, strokeDash=[4, 3], clip=True,
        opacity={"expr": "method != before ? 1 : 0"},
    ).encode(x=x, y=y, tooltip=tooltip)  # fmt: skip
    everyone = alt.Chart(alt.NamedData("everyone")).mark_line(color="var(--muted)", strokeWidth=1.6, clip=True)
    everyone = everyone.encode(x=x, y=y)
    nobody = alt.Chart(alt.Data(values=[{"benefit": 0}])).mark_rule(color="var(--ink)", strokeWidth=1)
    nobody = nobody.encode(y="benefit:Q")
    rule = chosen.transform_filter("abs(datum.threshold - cut) < 0.005").mark_rule(
        color="var(--ink)", strokeWidth=1, strokeDash=[3, 3]
    )
    chart = alt.layer(everyone, nobody, old, after, rule.encode(x="threshold:Q"))
    chart = chart.add_params(*parameters(cut=0.2, prevalence=0.5))
    return chart.properties(height=300, description="Decision curve: net benefit over the threshold")
