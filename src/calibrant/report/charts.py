"""The page's charts as Vega-Lite, built with Altair; data, method and class arrive from the page by name.

Colours are CSS variables of the page, so that light, dark and paper need no second set of charts. Where a layer could
be empty it is hidden, not filtered away: a layer without rows has no extent, which Vega warns about.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import altair as alt

from calibrant.evaluation.shift import ShiftCurves
from calibrant.metrics.record import Figure, facts
from calibrant.report.wording import PICKED_CLASS, PREDICTED, Wording

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

CHOSEN, BEFORE = "datum.method == method", "datum.method == before"
NOT_ALONE = "method != before ? 1 : 0"
"""What was before calibration is not drawn over itself."""
PICKED = "datum.index == chosen"
ROOM_FOR_NUMBERS: Any = {"expr": "width < 400 ? 0 : 1"}
"""On a phone the counts of neighbouring bins would run into each other."""
SIDE_COLORS = ["var(--over)", "var(--ok)", "var(--under)"]
SIDE_SHAPES = ["triangle-down", "circle", "triangle-up"]
DASHED: dict[str, Any] = {"color": "var(--muted)", "strokeDash": [4, 4]}
CUT: dict[str, Any] = {"color": "var(--ink)", "strokeWidth": 1, "strokeDash": [3, 3]}


def charts(
    words: Wording = PREDICTED, shift: ShiftCurves | None = None, *, groups: int = 0, decisions: bool = False
) -> dict[str, dict[str, Any]]:
    """Every chart of the page by the id of the place it is drawn in; `groups` is how many there are."""
    when = "datum.when == 'after'", "datum.when == 'before'"
    picked, worst = "rows predicted as the picked class", "group that is worst served"
    found = {
        "reliability": _reliability(words, decisions),
        "histogram": _histogram(words),
        "class-scatter": _class_scatter(),
        "class-diagram": _small_diagram("class_bins", picked, *when, words=PICKED_CLASS, opacity="0.9"),
        "class-temperature": _class_temperature(),
        "coverage": _coverage(),
    }
    if decisions:
        found["decision"] = _decision()
    if groups:
        found["forest"] = _forest(words, groups)
        found["group-diagram"] = _small_diagram("group_bins", worst, CHOSEN, BEFORE, words=words, opacity=NOT_ALONE)
    if shift is not None:
        found["shift"] = _shift(list(shift.methods), facts(shift.metric))
    return found


def _finish(layers: list[Any], height: int, description: str, **values: Any) -> dict[str, Any]:
    """Layers as one chart; the page sets the methods and what `values` names (class, threshold) and gives the data."""
    values = {"method": "", "before": "none", **values}
    chart = alt.layer(*layers).add_params(*(alt.param(name=name, value=value) for name, value in values.items()))
    chart = chart.properties(height=height, description=description, width="container")
    return chart.properties(autosize={"type": "fit-x", "contains": "padding"}).to_dict() | {"config": CONFIG}


def _tips(form: str | None, **titles: str) -> list[Any]:
    """What fields of one format are called when pointed at; those without a format are names."""
    if form is None:
        return [alt.Tooltip(field, type="nominal", title=title) for field, title in titles.items()]
    return [alt.Tooltip(field, type="quantitative", title=title, format=form) for field, title in titles.items()]


METHOD = _tips(None, method="method")


def _share(channel: Any, field: str, title: str, **scale: Any) -> Any:
    """An axis of shares."""
    axis = {"format": ".1~%", "tickCount": 6}
    return channel(f"{field}:Q", title=title, scale=scale, axis=axis)


def _data(name: str, only: str | None = None) -> Any:
    chart = alt.Chart(alt.NamedData(name))
    return chart if only is None else chart.transform_filter(only)


def _constant(**values: Any) -> Any:
    """A rule at one value."""
    return alt.Chart(alt.Data(values=[values]))


def _sides(names: list[str]) -> dict[str, Any]:
    """Colour and shape of too high, within chance and too low, or of the outer two; the page holds the legend."""
    step = 4 - len(names)
    return {
        "color": alt.Color("side:N", scale={"domain": names, "range": SIDE_COLORS[::step]}, legend=None),
        "shape": alt.Shape("side:N", scale={"domain": names, "range": SIDE_SHAPES[::step]}, legend=None),
    }


def _when(test: str, yes: float, no: float) -> Any:
    return alt.condition(test, alt.value(yes), alt.value(no))


def _bin_axes(words: Wording) -> dict[str, Any]:
    """The axes of a reliability diagram, and what a bin says when pointed at."""
    return {
        "x": _share(alt.X, "confidence", words.stated, domain=[0, 1]),
        "y": _share(alt.Y, "accuracy", words.seen, domain=[0, 1]),
        "tooltip": METHOD
        + _tips(".1%", confidence=words.mean, accuracy=words.share, accuracy_low="interval from", accuracy_high="to")
        + _tips(",.0f", count="rows"),
    }


def _diagonal() -> Any:
    """The line on which what is stated is what is seen."""
    ends = alt.Data(values=[{"confidence": 0, "accuracy": 0}, {"confidence": 1, "accuracy": 1}])
    line = alt.Chart(ends).mark_line(**DASHED, strokeWidth=1, opacity=0.8)
    return line.encode(x="confidence:Q", y="accuracy:Q")


@cache
def _reliability(words: Wording, smooth: bool) -> dict[str, Any]:
    high, middle, low = (f"'{side}'" for side in words.sides)
    side = f"datum.accuracy < datum.noise_low ? {high} : datum.accuracy > datum.noise_high ? {low} : {middle}"
    chosen = _data("reliability", CHOSEN).transform_calculate(
        side=side,
        zero="0",
        top="0.13 * datum.height",
        centre="(datum.lower + datum.upper) / 2",
        words="datum.count < 1000 ? format(datum.count, 'd') : format(datum.count, '.2~s')",
    )
    axes, marks, faded = _bin_axes(words), _sides(words.sides), _when("datum.count < 10", 0.35, 1)
    bars = chosen.encode(x="lower:Q", x2="upper:Q", tooltip=axes["tooltip"])
    band = bars.mark_rect(color="var(--muted)", opacity=0.16).encode(y="noise_low:Q", y2="noise_high:Q")
    counts = bars.mark_rect(color="var(--accent)", opacity=0.22).encode(y="zero:Q", y2="top:Q")
    numbers = chosen.mark_text(dy=-6, fontSize=9, color="var(--muted)", opacity=ROOM_FOR_NUMBERS)
    numbers = numbers.encode(x="centre:Q", y="top:Q", text="words:N")
    old = _data("reliability", f"show_before && {BEFORE} && method != before").encode(**axes)
    old_line = old.mark_line(color="var(--before)", strokeWidth=1.5, strokeDash=[2, 3])
    old_points = old.mark_point(color="var(--before)", size=38, strokeWidth=1.5, fill="var(--card)", opacity=1)
    whiskers = chosen.mark_rule(strokeWidth=1.6).encode(
        x="confidence:Q", y="accuracy_low:Q", y2="accuracy_high:Q", color=marks["color"], opacity=faded
    )
    points = chosen.mark_point(filled=True, size=75).encode(**axes, **marks, opacity=faded)
    layers = [band, _diagonal(), counts, numbers, old_line, old_points, whiskers, points]
    if smooth:
        # the flexible calibration curve with its 95% band
        data = _data("smooth", CHOSEN).encode(x=alt.X("probability:Q", title=words.stated))
        area = data.mark_area(color="var(--accent)", opacity=0.14).encode(
            y=alt.Y("low:Q", title=words.seen), y2="high:Q"
        )
        line = data.mark_line(color="var(--accent)", strokeWidth=2).encode(y=alt.Y("observed:Q", title=words.seen))
        layers[2:2] = [area, line]
    description = "Reliability diagram: accuracy against confidence in bins"
    return _finish(layers, 430, description, show_before=True)


WILSON_CENTRE = "(datum.accuracy + 1.9207 / datum.count) / (1 + 3.8415 / datum.count)"
WILSON_HALF = (
    "1.95996 / (1 + 3.8415 / datum.count) * "
    "sqrt(datum.accuracy * (1 - datum.accuracy) / datum.count + 0.9604 / (datum.count * datum.count))"
)


@cache
def _small_diagram(data: str, about: str, chosen: str, before: str, *, words: Wording, opacity: str) -> dict[str, Any]:
    """Bins of a part of the rows with the Wilson interval of their share, which `accuracy` and `count` give."""
    bins = _data(data).transform_calculate(
        accuracy_low=f"max(0, {WILSON_CENTRE} - {WILSON_HALF})",
        accuracy_high=f"min(1, {WILSON_CENTRE} + {WILSON_HALF})",
    )
    size = alt.Size("count:Q", scale={"domain": [1, 60], "range": [25, 220], "clamp": True}, legend=None)
    faded, axes = _when("datum.count < 10", 0.35, 0.95), _bin_axes(words)
    now = bins.transform_filter(chosen)
    whiskers = now.mark_rule(color="var(--accent)", strokeWidth=1.3)
    whiskers = whiskers.encode(x="confidence:Q", y="accuracy_low:Q", y2="accuracy_high:Q", opacity=faded)
    points = now.mark_point(filled=True, color="var(--accent)").encode(**axes, size=size, opacity=faded)
    old = bins.transform_filter(before).mark_point(color="var(--before)", strokeWidth=1.5, opacity={"expr": opacity})
    layers = [_diagonal(), old.encode(**axes, size=size), whiskers, points]
    return _finish(layers, 330, f"Reliability diagram of the {about}")


@cache
def _histogram(words: Wording) -> dict[str, Any]:
    outcomes = alt.Scale(domain=[words.yes, words.no], range=["var(--under)", "var(--over)"])
    stated = words.stated.split(":")[0]
    bars = _data("histogram", CHOSEN).transform_calculate(right_edge="datum.left + 0.025")
    bars = bars.mark_bar(stroke="var(--card)", strokeWidth=0.5).encode(
        x=alt.X("left:Q", title=stated, scale={"domain": [0, 1]}, axis={"format": ".0%"}, bin="binned"),
        x2="right_edge:Q",
        y=alt.Y("rows:Q", title="test rows", stack=True, axis={"format": "~s", "tickCount": 5}),
        color=alt.Color("outcome:N", scale=outcomes, legend=None),
        order=alt.Order("outcome:N", sort="ascending"),
        tooltip=_tips(".1%", left="from", right_edge="to") + _tips(None, outcome="outcome") + _tips(",", rows="rows"),
    )
    means = _data("means", CHOSEN)
    rule = means.mark_rule(strokeWidth=1.5, strokeDash=[5, 3], color="var(--ink)").encode(
        x="value:Q", tooltip=_tips(None, what="mean") + _tips(".1%", value="value")
    )
    labels = means.mark_text(
        align={"expr": "datum.value < 0.5 ? 'left' : 'right'"},
        dx={"expr": "datum.value < 0.5 ? 4 : -4"},
        fontWeight=600,
        color="var(--ink)",
    ).encode(x="value:Q", y=alt.Y("place:Q", axis=None, scale={"domain": [0, 1]}), text="words:N")
    both = alt.layer(bars, alt.layer(rule, labels)).resolve_scale(y="independent")
    return _finish([both], 420, "Histogram of the stated probability, both outcomes stacked")


def _classes(chart: Any, faint: float) -> Any:
    """Points of classes, of which one is picked by a click."""
    pick = alt.selection_point(name="pick", fields=["index"], on="click", clear=False, toggle=False)
    return chart.encode(size=_when(PICKED, 190, 46), opacity=_when(PICKED, 1, faint)).add_params(pick)


@cache
def _class_scatter() -> dict[str, Any]:
    data, marks = _data("class_points"), _sides([PREDICTED.high, PREDICTED.low])
    picked = _data("class_points", PICKED)
    lines = data.mark_rule(strokeWidth=1.2).encode(
        x="old_accuracy:Q", y="old_error:Q", x2="accuracy:Q", y2="error:Q",
        color=marks["color"], opacity=_when(PICKED, 1, 0.2),
    )  # fmt: skip
    starts = picked.mark_point(size=60, strokeWidth=1.6, fill="var(--card)")
    starts = starts.encode(x="old_accuracy:Q", y="old_error:Q", **marks, opacity=_when("datum.joined", 1, 0))
    points = data.mark_point(filled=True, cursor="pointer").encode(
        x=_share(alt.X, "accuracy", "class accuracy", zero=False, nice=True),
        y=_share(alt.Y, "error", "calibration error", zero=True, nice=True),
        **marks,
        tooltip=_tips(None, name="class", side="side")
        + _tips(".1%", accuracy="accuracy", error="error", old_error="error before")
        + _tips(",", rows="test rows"),
    )
    place = picked.encode(x="accuracy:Q", y="error:Q")
    ring = place.mark_point(size=330, strokeWidth=1.6, color="var(--ink)", opacity=1)
    label = place.transform_filter("datum.larger").mark_text(dy=-17, fontWeight=600, fontSize=12, color="var(--ink)")
    layers = [lines, _classes(points, 0.55), starts, ring, label.encode(text="name:N")]
    return _finish(layers, 378, "Calibration error of every class against its accuracy", chosen=0)


@cache
def _class_temperature() -> dict[str, Any]:
    data = _data("classes", "isValid(datum.temperature)")
    points = data.mark_point(filled=True, color="var(--accent)", cursor="pointer").encode(
        x=_share(alt.X, "accuracy", "class accuracy", zero=False, nice=True),
        y=alt.Y("temperature:Q", title="temperature", scale={"zero": False, "nice": True}),
        tooltip=_tips(None, name="class")
        + _tips(".1%", accuracy="accuracy")
        + _tips(".3~f", temperature="temperature"),
    )
    one = _constant(temperature=1).mark_rule(**DASHED).encode(y="temperature:Q")
    label = data.transform_filter(PICKED).mark_text(dy=-14, fontWeight=600, fontSize=12)
    label = label.encode(x="accuracy:Q", y="temperature:Q", text="name:N")
    description = "Temperature of every class against its accuracy"
    return _finish([one, _classes(points, 0.6), label], 240, description, chosen=0)


def _before_and_now(data: str, **encoding: Any) -> list[Any]:
    """The line of the chosen method over that of the one before it."""
    old = _data(data, BEFORE).mark_line(
        color="var(--before)", strokeWidth=1.6, strokeDash=[4, 3], opacity={"expr": NOT_ALONE}, clip=True
    )
    now = _data(data, CHOSEN).mark_line(color="var(--accent)", strokeWidth=2.3, clip=True)
    return [old.encode(**encoding), now.encode(**encoding)]


@cache
def _coverage() -> dict[str, Any]:
    axes: dict[str, Any] = {
        "x": _share(alt.X, "deferred", "share of rows deferred to a person", domain=[0, 1]),
        "y": _share(alt.Y, "risk", "errors among the rows kept", zero=True, nice=True),
        "tooltip": METHOD
        + _tips(".0%", deferred="deferred")
        + _tips(".2%", risk="error among the kept")
        + _tips(".3f", threshold="threshold"),
    }
    chosen = _data("coverage", CHOSEN)
    bound = chosen.mark_area(color="var(--accent)", opacity=0.13).encode(**axes, y2="bound:Q")
    here = chosen.transform_filter("abs(datum.deferred - share) < 0.005")
    dot = here.mark_point(filled=True, size=90, color="var(--ink)", opacity=1).encode(**axes)
    layers = [bound, *_before_and_now("coverage", **axes), here.mark_rule(**CUT).encode(x="deferred:Q"), dot]
    description = "Errors that remain among the kept rows over the share deferred"
    return _finish(layers, 300, description, share=0.2)


@cache
def _decision() -> dict[str, Any]:
    """Net benefit over thresholds: of the method, before it, of acting on everyone and on no one."""
    # treating all falls without bound: the chart ends a little below zero
    range_shown = {"domain": {"expr": "[-0.25 * prevalence, 1.05 * prevalence]"}, "nice": False}
    axes: dict[str, Any] = {
        "x": _share(alt.X, "threshold", "threshold: act from this probability on", domain=[0, 1]),
        "y": alt.Y("benefit:Q", title="net benefit", axis={"format": ".2~f", "tickCount": 6}, scale=range_shown),
    }
    tooltip = METHOD + _tips(".0%", threshold="threshold") + _tips(".4f", benefit="net benefit")
    everyone = _data("everyone").mark_line(color="var(--muted)", strokeWidth=1.6, clip=True).encode(**axes)
    nobody = _constant(benefit=0).mark_rule(color="var(--ink)", strokeWidth=1).encode(y="benefit:Q")
    cut = _data("thresholds", CHOSEN).transform_filter("abs(datum.threshold - cut) < 0.005")
    lines = _before_and_now("thresholds", **axes, tooltip=tooltip)
    layers = [everyone, nobody, *lines, cut.mark_rule(**CUT).encode(x="threshold:Q")]
    description = "Decision curve: net benefit over the threshold"
    return _finish(layers, 300, description, cut=0.2, prevalence=0.5)


def _forest(words: Wording, count: int) -> dict[str, Any]:
    """Signed gaps of groups with simultaneous intervals, one line per group."""
    marks, faded = _sides(words.sides), _when("datum.few", 0.4, 1)
    axis, scale = {"format": "+.1~%", "tickCount": 6}, {"zero": True, "nice": True, "padding": 16}
    y = alt.Y("group:N", title=None, sort=None, axis={"labelLimit": 150, "ticks": False, "domain": False})
    axes: dict[str, Any] = {
        "x": alt.X("gap:Q", title=f"{words.mean} minus {words.share}", axis=axis, scale=scale),
        "y": y,
        "tooltip": METHOD
        + _tips(None, group="group")
        + _tips(",", rows="rows")
        + _tips("+.1%", gap="gap", low="interval from", high="to"),
    }
    chosen = _data("groups", CHOSEN)
    zero = _constant(gap=0).mark_rule(**DASHED).encode(x="gap:Q")
    rules = chosen.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2)
    rules = rules.encode(x="low:Q", x2="high:Q", y=y, color=marks["color"], opacity=faded)
    points = chosen.mark_point(filled=True, size=80).encode(**axes, **marks, opacity=faded)
    old = _data("groups", BEFORE).mark_point(
        color="var(--before)", size=55, strokeWidth=1.5, opacity={"expr": NOT_ALONE}
    )
    height = max(30 * count, min(330, 70 * count))
    description = "Signed calibration gap of every group"
    return _finish([zero, old.encode(**axes), rules, points], height, description)


def _shift(methods: list[str], look: Figure) -> dict[str, Any]:
    data = _data("shift").transform_calculate(
        low="datum.value - datum.error", high="datum.value + datum.error", chosen=CHOSEN
    )
    number = ".1%" if look.percent else ".3f"
    # the same explicit domain lets Vega-Lite draw one legend for colour and shape
    colors = alt.Scale(domain=methods, range=[f"var(--line-{place % 7})" for place in range(len(methods))])
    legend = {"columns": 4}
    axes = {
        "x": alt.X("severity:O", title="severity of the shift (0: none)", axis={"labelAngle": 0}),
        "color": alt.Color("method:N", legend=legend, scale=colors),
    }
    axis = {"format": ".0%" if look.percent else "~g"}
    y = alt.Y("value:Q", title=look.heading, axis=axis, scale={"zero": True})
    lines = data.mark_line().encode(**axes, y=y, strokeWidth=_when("datum.chosen", 3, 1.6))
    bars = data.mark_rule(strokeWidth=1.3).encode(**axes, y="low:Q", y2="high:Q")
    points = data.mark_point(filled=True, size=60, opacity=1).encode(
        **axes,
        y=y,
        shape=alt.Shape("method:N", legend=legend, scale={"domain": methods}),
        tooltip=METHOD + _tips(None, severity="severity") + _tips(number, value=look.heading, error="± standard error"),
    )
    return _finish([lines, bars, points], 320, f"{look.heading} over the severity of the shift")
