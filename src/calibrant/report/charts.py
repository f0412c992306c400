"""The page's charts as Vega-Lite, built with Altair; data, method and class arrive from the page by name.

Colours are CSS variables of the page, so that light, dark and paper need no second set of charts.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import altair as alt

from calibrant.evaluation.shift import ShiftCurves
from calibrant.metrics.record import Figure, facts
from calibrant.report.chart_parts import bin_tooltip, diagonal, parameters, percent, side_marks, with_wilson
from calibrant.report.section_charts import decision, forest, group_diagram, smooth_layers
from calibrant.report.wording import PREDICTED, Wording

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif'

CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": FONT,
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--muted)", "titleColor": "var(--muted)", "gridColor": "var(--grid)",
        "domainColor": "var(--line)", "tickColor": "var(--line)", "labelFontSize": 11, "titleFontSize": 12,
        "titleFontWeight": 500, "titlePadding": 10, "labelPadding": 5, "tickSize": 4,
    },
    "legend": {
        "labelColor": "var(--ink)", "titleColor": "var(--muted)", "labelFontSize": 12, "orient": "top", "title": None,
        "symbolStrokeWidth": 1.5, "padding": 0, "offset": 12,
    },
    "text": {"color": "var(--ink)", "fontSize": 11},
}  # fmt: skip


def charts(
    words: Wording = PREDICTED, shift: ShiftCurves | None = None, *, groups: int = 0, decisions: bool = False
) -> dict[str, dict[str, Any]]:
    """Every chart of the page by the id of the place it is drawn in; `groups` is how many there are."""
    found = dict(_always(words, decisions))
    if decisions:
        found["decision"] = _finish(decision())
    if groups:
        found |= {"forest": _finish(forest(words, groups)), "group-diagram": _finish(group_diagram(words))}
    if shift is not None:
        found["shift"] = _finish(_shift(list(shift.methods), facts(shift.metric)))
    return found


@cache
def _always(words: Wording, smooth: bool) -> dict[str, dict[str, Any]]:
    built = {
        "reliability": _reliability(words, smooth),
        "histogram": _histogram(words),
        "class-scatter": _class_scatter(),
        "class-diagram": _class_diagram(),
        "class-temperature": _class_temperature(),
        "coverage": _coverage(),
    }
    return {name: _finish(chart) for name, chart in built.items()}


def _finish(chart: Any) -> dict[str, Any]:
    spec = chart.properties(width="container", autosize={"type": "fit-x", "contains": "padding"}).to_dict()
    spec["config"] = CONFIG
    return spec


ROOM_FOR_NUMBERS: Any = {"expr": "width < 400 ? 0 : 1"}
"""On a phone the counts of neighbouring bins would run into each other."""


def _side_of(words: Wording) -> str:
    high, middle, low = (f"'{side}'" for side in words.sides)
    return f"datum.accuracy < datum.band_low ? {high} : datum.accuracy > datum.band_high ? {low} : {middle}"


def _reliability(words: Wording, smooth: bool) -> Any:
    bins = alt.Chart(alt.NamedData("reliability"))
    chosen = bins.transform_filter("datum.method == method").transform_calculate(side=_side_of(words))
    before = bins.transform_filter("show_before && datum.method == before && method != before")
    x = alt.X(**percent("confidence", words.stated, domain=[0, 1]))
    y = alt.Y(**percent("accuracy", words.seen, domain=[0, 1]))
    color, shape = side_marks(words.sides)
    tooltip = bin_tooltip(words)
    band = chosen.mark_rect(color="var(--muted)", opacity=0.16).encode(
        x="left:Q", x2="right:Q", y="band_low:Q", y2="band_high:Q"
    )
    counts = chosen.transform_calculate(top="0.13 * datum.height").mark_rect(color="var(--accent)", opacity=0.22)
    counts = counts.encode(x="left:Q", x2="right:Q", y=alt.Y("zero:Q"), y2="top:Q", tooltip=tooltip)
    counts = counts.transform_calculate(zero="0")
    numbers = chosen.transform_calculate(
        top="0.13 * datum.height",
        centre="(datum.left + datum.right) / 2",
        words="datum.count < 1000 ? format(datum.count, 'd') : format(datum.count, '.2~s')",
    ).mark_text(dy=-6, fontSize=9, color="var(--muted)", opacity=ROOM_FOR_NUMBERS)
    numbers = numbers.encode(x="centre:Q", y="top:Q", text="words:N")
    old_line = before.mark_line(color="var(--before)", strokeWidth=1.5, strokeDash=[2, 3]).encode(x=x, y=y)
    old_points = before.mark_point(color="var(--before)", size=38, strokeWidth=1.5, fill="var(--card)", opacity=1)
    old_points = old_points.encode(x=x, y=y, tooltip=tooltip)
    faded = alt.condition("datum.count < 10", alt.value(0.35), alt.value(1))
    whiskers = chosen.mark_rule(strokeWidth=1.6)
    whiskers = whiskers.encode(x="confidence:Q", y="low:Q", y2="high:Q", color=color, opacity=faded)
    points = chosen.mark_point(filled=True, size=75).encode(
        x=x, y=y, color=color, shape=shape, opacity=faded, tooltip=tooltip
    )
    curve = smooth_layers(words) if smooth else []
    layers = [band, diagonal(), *curve, counts, numbers, old_line, old_points, whiskers, points]
    chart = alt.layer(*layers).add_params(*parameters(show_before=True))
    return chart.properties(height=430, description="Reliability diagram: accuracy against confidence in bins")


def _histogram(words: Wording) -> Any:
    data = alt.Chart(alt.NamedData("histogram")).transform_filter("datum.method == method")
    data = data.transform_calculate(right_edge="datum.left + 0.025")
    bars = data.mark_bar(stroke="var(--card)", strokeWidth=0.5).encode(
        x=alt.X(
            "left:Q",
            title=words.stated.split(":")[0],
            scale=alt.Scale(domain=[0, 1]),
            axis=alt.Axis(format=".0%"),
            bin="binned",
        ),
        x2="right_edge:Q",
        y=alt.Y("rows:Q", title="test rows", stack=True, axis=alt.Axis(format="~s", tickCount=5)),
        color=alt.Color(
            "outcome:N",
            scale=alt.Scale(domain=[words.yes, words.no], range=["var(--under)", "var(--over)"]),
            legend=None,
        ),
        order=alt.Order("outcome:N", sort="ascending"),
        tooltip=[
            alt.Tooltip("left:Q", title="from", format=".1%"),
            alt.Tooltip("right_edge:Q", title="to", format=".1%"),
            alt.Tooltip("outcome:N", title="outcome"),
            alt.Tooltip("rows:Q", title="rows", format=","),
        ],
    )
    means = alt.Chart(alt.NamedData("means")).transform_filter("datum.method == method")
    rule = means.mark_rule(strokeWidth=1.5, strokeDash=[5, 3], color="var(--ink)").encode(
        x="value:Q", tooltip=[alt.Tooltip("what:N", title="mean"), alt.Tooltip("value:Q", format=".1%")]
    )
    labels = means.mark_text(
        align={"expr": "datum.value < 0.5 ? 'left' : 'right'"},
        dx={"expr": "datum.value < 0.5 ? 4 : -4"},
        fontWeight=600,
        color="var(--ink)",
    ).encode(x="value:Q", y=alt.Y("place:Q", axis=None, scale=alt.Scale(domain=[0, 1])), text="words:N")
    chart = alt.layer(bars, alt.layer(rule, labels)).resolve_scale(y="independent")
    return chart.add_params(alt.param(name="method", value="")).properties(
        height=420, description="Histogram of the stated probability, both outcomes stacked"
    )


def _class_scatter() -> Any:
    pick = alt.selection_point(name="pick", fields=["index"], on="click", clear=False, toggle=False)
    data = alt.Chart(alt.NamedData("class_points"))
    color, shape = side_marks([PREDICTED.high, PREDICTED.low])
    x = alt.X(**percent("accuracy", "class accuracy", zero=False, nice=True))
    y = alt.Y(**percent("error", "calibration error", zero=True, nice=True))
    near = alt.condition("datum.index == chosen", alt.value(1), alt.value(0.2))
    # before calibration a line has no length: a layer without rows has no extent, which Vega warns about
    lines = data.mark_rule(strokeWidth=1.2).encode(
        x="old_accuracy:Q", y="old_error:Q", x2="accuracy:Q", y2="error:Q", color=color, opacity=near
    )
    starts = data.transform_filter("datum.index == chosen").mark_point(size=60, strokeWidth=1.6, fill="var(--card)")
    joined = alt.condition("datum.joined", alt.value(1), alt.value(0))
    starts = starts.encode(x="old_accuracy:Q", y="old_error:Q", color=color, shape=shape, opacity=joined)
    points = data.mark_point(filled=True, cursor="pointer").encode(
        x=x, y=y, color=color, shape=shape,
        size=alt.condition("datum.index == chosen", alt.value(190), alt.value(46)),
        opacity=alt.condition("datum.index == chosen", alt.value(1), alt.value(0.55)),
        tooltip=[
            alt.Tooltip("name:N", title="class"),
            alt.Tooltip("accuracy:Q", format=".1%"),
            alt.Tooltip("side:N", title="side"),
            alt.Tooltip("error:Q", title="error", format=".1%"),
            alt.Tooltip("old_error:Q", title="error before", format=".1%"),
            alt.Tooltip("rows:Q", title="test rows", format=","),
        ],
    )  # fmt: skip
    chosen = data.transform_filter("datum.index == chosen")
    ring = chosen.mark_point(size=330, strokeWidth=1.6, color="var(--ink)", opacity=1)
    ring = ring.encode(x="accuracy:Q", y="error:Q")
    label = chosen.transform_filter("datum.larger").mark_text(
        dy=-17, fontWeight=600, fontSize=12, color="var(--ink)", stroke="var(--card)", strokeWidth=0
    )
    label = label.encode(x="accuracy:Q", y="error:Q", text="name:N")
    chart = alt.layer(lines, points.add_params(pick), starts, ring, label).add_params(alt.param(name="chosen", value=0))
    return chart.properties(height=378, description="Calibration error of every class against its accuracy")


def _class_diagram() -> Any:
    bins = with_wilson(alt.Chart(alt.NamedData("class_bins")))
    chosen, before = bins.transform_filter("datum.when == 'after'"), bins.transform_filter("datum.when == 'before'")
    x = alt.X(**percent("confidence", "confidence when it says this class", domain=[0, 1]))
    y = alt.Y(**percent("accuracy", "how often it is right", domain=[0, 1]))
    size = alt.Size("count:Q", scale=alt.Scale(domain=[1, 60], range=[25, 260], clamp=True), legend=None)
    whiskers = chosen.mark_rule(color="var(--accent)", strokeWidth=1.3, opacity=0.8).encode(
        x="confidence:Q", y="low:Q", y2="high:Q"
    )
    points = chosen.mark_point(filled=True, color="var(--accent)", opacity=0.95)
    points = points.encode(x=x, y=y, size=size, tooltip=bin_tooltip())
    old = before.mark_point(color="var(--before)", strokeWidth=1.5, opacity=0.9)
    old = old.encode(x=x, y=y, size=size, tooltip=bin_tooltip())
    return alt.layer(diagonal(), old, whiskers, points).properties(
        height=330, description="Reliability diagram of the rows predicted as the picked class"
    )


def _class_temperature() -> Any:
    pick = alt.selection_point(name="pick", fields=["index"], on="click", clear=False, toggle=False)
    data = alt.Chart(alt.NamedData("classes")).transform_filter("isValid(datum.temperature)")
    points = data.mark_point(filled=True, color="var(--accent)", cursor="pointer").encode(
        x=alt.X(**percent("accuracy", "class accuracy", zero=False, nice=True)),
        y=alt.Y("temperature:Q", title="temperature", scale=alt.Scale(zero=False, nice=True)),
        size=alt.condition("datum.index == chosen", alt.value(190), alt.value(46)),
        opacity=alt.condition("datum.index == chosen", alt.value(1), alt.value(0.6)),
        tooltip=[
            alt.Tooltip("name:N", title="class"),
            alt.Tooltip("accuracy:Q", format=".1%"),
            alt.Tooltip("temperature:Q", format=".3~f"),
        ],
    )
    one = alt.Chart(alt.Data(values=[{"temperature": 1}])).mark_rule(color="var(--muted)", strokeDash=[4, 4])
    one = one.encode(y="temperature:Q")
    label = data.transform_filter("datum.index == chosen").mark_text(dy=-14, fontWeight=600, fontSize=12)
    label = label.encode(x="accuracy:Q", y="temperature:Q", text="name:N")
    chart = alt.layer(one, points.add_params(pick), label).add_params(alt.param(name="chosen", value=0))
    return chart.properties(height=240, description="Temperature of every class against its accuracy")


def _coverage() -> Any:
    data = alt.Chart(alt.NamedData("coverage"))
    tooltip = [
        alt.Tooltip("method:N"),
        alt.Tooltip("deferred:Q", title="deferred", format=".0%"),
        alt.Tooltip("risk:Q", title="error among the kept", format=".2%"),
        alt.Tooltip("threshold:Q", format=".3f"),
    ]
    x = alt.X(**percent("deferred", "share of rows deferred to a person", domain=[0, 1]))
    y = alt.Y(**percent("risk", "errors among the rows kept", zero=True, nice=True))
    chosen = data.transform_filter("datum.method == method")
    bound = chosen.mark_area(color="var(--accent)", opacity=0.13).encode(x=x, y=y, y2="bound:Q")
    after = chosen.mark_line(color="var(--accent)", strokeWidth=2.2).encode(x=x, y=y, tooltip=tooltip)
    # hidden rather than filtered away: a layer without rows has no extent, which Vega warns about
    old = data.transform_filter("datum.method == before").mark_line(
        color="var(--before)", strokeWidth=1.6, strokeDash=[4, 3], opacity={"expr": "method != before ? 1 : 0"}
    )
    old = old.encode(x=x, y=y, tooltip=tooltip)
    rule = chosen.transform_filter("abs(datum.deferred - share) < 0.005")
    line = rule.mark_rule(color="var(--ink)", strokeWidth=1, strokeDash=[3, 3]).encode(x="deferred:Q")
    dot = rule.mark_point(filled=True, size=90, color="var(--ink)", opacity=1).encode(x=x, y=y, tooltip=tooltip)
    chart = alt.layer(bound, old, after, line, dot).add_params(*parameters(share=0.2))
    return chart.properties(height=300, description="Errors that remain among the kept rows over the share deferred")


def _shift(methods: list[str], look: Figure) -> Any:
    data = alt.Chart(alt.NamedData("shift")).transform_calculate(
        low="datum.value - datum.error", high="datum.value + datum.error", chosen="datum.method == method"
    )
    number = ".1%" if look.percent else ".3f"
    y = alt.Y(
        "value:Q", title=look.heading, axis=alt.Axis(format=".0%" if look.percent else "~g"), scale=alt.Scale(zero=True)
    )
    # the same explicit domain lets Vega-Lite draw one legend for colour and shape
    colors = alt.Scale(domain=methods, range=[f"var(--line-{place % 7})" for place in range(len(methods))])
    color = alt.Color("method:N", legend=alt.Legend(columns=4), scale=colors)
    shape = alt.Shape("method:N", legend=alt.Legend(columns=4), scale=alt.Scale(domain=methods))
    weight = alt.condition("datum.chosen", alt.value(3), alt.value(1.6))
    x = alt.X("severity:O", title="severity of the shift (0: none)", axis=alt.Axis(labelAngle=0))
    tooltip = [
        alt.Tooltip("method:N"),
        alt.Tooltip("severity:O"),
        alt.Tooltip("value:Q", title=look.heading, format=number),
        alt.Tooltip("error:Q", title="± standard error", format=number),
    ]
    lines = data.mark_line().encode(x=x, y=y, color=color, strokeWidth=weight)
    bars = data.mark_rule(strokeWidth=1.3).encode(x=x, y="low:Q", y2="high:Q", color=color)
    points = data.mark_point(filled=True, size=60, opacity=1).encode(
        x=x, y=y, color=color, shape=shape, tooltip=tooltip
    )
    chart = alt.layer(lines, bars, points).add_params(alt.param(name="method", value=""))
    return chart.properties(height=320, description=f"{look.heading} over the severity of the shift")
