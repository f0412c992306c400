"""The page's charts as Vega-Lite, built with Altair; data, method and class arrive from the page by name.

Colours are CSS variables of the page, so that light, dark and paper need no second set of charts. Where a layer could
be empty it is hidden, not filtered away: a layer without rows has no extent, which Vega warns about.
"""

from functools import cache
from typing import Any

import altair as alt

from calibrant.metrics.record import Figure
from calibrant.report.wording import PICKED_CLASS, PREDICTED, Wording

Spec = dict[str, Any]
"""A chart, or a part of one, as Vega-Lite reads it."""

CONFIG = {
    "background": "transparent",
    "font": 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif',
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
CHOICES = {
    "method": "", "before": "none", "chosen": 0, "share": 0.2, "cut": 0.2, "prevalence": 0.5, "show_before": True,
}  # fmt: skip
"""What the page sets: the methods, the class, the share deferred, the threshold, the share of positives, a switch."""
NOT_ALONE = {"expr": "method != before ? 1 : 0"}
"""What was before calibration is not drawn over itself."""
PICKED = "datum.index == chosen"
SIDES = {"color": ["var(--over)", "var(--ok)", "var(--under)"], "shape": ["triangle-down", "circle", "triangle-up"]}
DASHED: Spec = {"color": "var(--muted)", "strokeDash": [4, 4]}
CUT: Spec = {"color": "var(--ink)", "strokeWidth": 1, "strokeDash": [3, 3]}


@cache
def charts(words: Wording, groups: int, decisions: bool) -> dict[str, Spec]:
    """The page's charts by the id of the place each is drawn in, but that of a shift; `groups` is how many there are.

    Altair checks every chart against its schema, which takes far longer than the rest of a page: kept for the next one.
    """
    found = {
        "reliability": _reliability(words, decisions),
        "histogram": _histogram(words),
        "class-scatter": _class_scatter(),
        "class-diagram": _small_diagram("class_bins", "rows predicted as the picked class", PICKED_CLASS),
        "class-temperature": _class_temperature(),
        "coverage": _coverage(),
    }
    if decisions:
        found["decision"] = _decision()
    if groups:
        found["forest"] = _forest(words, groups)
        found["group-diagram"] = _small_diagram("group_bins", "group that is worst served", words)
    return found


def _finish(height: int, description: str, *layers: Any) -> Spec:
    """Layers as one chart; the page gives the data."""
    chart = alt.layer(*layers).add_params(*(alt.param(name=name, value=value) for name, value in CHOICES.items()))
    fit = {"type": "fit-x", "contains": "padding"}
    chart = chart.properties(height=height, description=description, width="container", autosize=fit)
    return chart.to_dict() | {"config": CONFIG}


def _tips(*fields: str) -> list[Any]:
    """What is shown of fields when pointed at, each as `field:format:title`; without a format it is a name."""
    split = (given.split(":", 2) for given in fields)
    return [
        alt.Tooltip(f"{field}:{'Q' if form else 'N'}", title=title, format=form or alt.Undefined)
        for field, form, title in split
    ]


def _axis(field: str, title: str, form: str = ".1~%", **scale: Any) -> Any:
    """An axis of numbers, by default of shares."""
    return {
        "shorthand": f"{field}:Q", "title": title, "scale": scale, "axis": {"format": form, "tickCount": 6}
    }  # fmt: skip


def _data(name: str, only: str | None = None) -> Any:
    chart = alt.Chart(alt.NamedData(name))
    return chart if only is None else chart.transform_filter(only)


def _constant(**values: Any) -> Any:
    """Data of one row."""
    return alt.Chart(alt.Data(values=[values]))


def _sides(names: list[str]) -> Spec:
    """Colour and shape of too high, within chance and too low, or of the outer two; the page holds the legend."""
    return {
        channel: {"shorthand": "side:N", "scale": {"domain": names, "range": looks[:: 4 - len(names)]}, "legend": None}
        for channel, looks in SIDES.items()
    }


def _when(test: str, yes: float, no: float) -> Any:
    return alt.condition(test, alt.value(yes), alt.value(no))


def _bin_axes(words: Wording) -> Spec:
    """The axes of a reliability diagram, and what a bin says when pointed at."""
    return {
        "x": _axis("confidence", words.stated, domain=[0, 1]),
        "y": _axis("accuracy", words.seen, domain=[0, 1]),
        "tooltip": _tips(
            "method::method",
            f"confidence:.1%:{words.mean}",
            f"accuracy:.1%:{words.share}",
            "accuracy_low:.1%:interval from",
            "accuracy_high:.1%:to",
            "count:,.0f:rows",
        ),
    }


def _diagonal() -> Any:
    """The line on which what is stated is what is seen."""
    line = _constant(confidence=0, accuracy=0, end=1).mark_rule(**DASHED, strokeWidth=1, opacity=0.8)
    return line.encode(x="confidence:Q", y="accuracy:Q", x2="end:Q", y2="end:Q")


def _reliability(words: Wording, smooth: bool) -> Spec:
    high, middle, low = (f"'{side}'" for side in words.sides)
    chosen = _data("reliability", CHOSEN).transform_calculate(
        side=f"datum.accuracy < datum.noise_low ? {high} : datum.accuracy > datum.noise_high ? {low} : {middle}",
        zero="0",
        top="0.13 * datum.height",
        centre="(datum.lower + datum.upper) / 2",
        words="datum.count < 1000 ? format(datum.count, 'd') : format(datum.count, '.2~s')",
    )
    axes, marks, faded = _bin_axes(words), _sides(words.sides), _when("datum.count < 10", 0.35, 1)
    bars = chosen.encode(x="lower:Q", x2="upper:Q", tooltip=axes["tooltip"])
    old = _data("reliability", f"show_before && {BEFORE} && method != before").encode(**axes)
    curve = []
    if smooth:
        # the flexible calibration curve with its 95% band
        data = _data("smooth", CHOSEN).encode(x=alt.X("probability:Q", title=words.stated))
        area = data.mark_area(color="var(--accent)", opacity=0.14)
        line = data.mark_line(color="var(--accent)", strokeWidth=2).encode(y=alt.Y("observed:Q", title=words.seen))
        curve = [area.encode(y=alt.Y("low:Q", title=words.seen), y2="high:Q"), line]
    return _finish(
        430,
        "Reliability diagram: accuracy against confidence in bins",
        # what chance alone explains
        bars.mark_rect(color="var(--muted)", opacity=0.16).encode(y="noise_low:Q", y2="noise_high:Q"),
        _diagonal(),
        *curve,
        # the rows of each bin, as a bar and in numbers; on a phone those of neighbours would run into each other
        bars.mark_rect(color="var(--accent)", opacity=0.22).encode(y="zero:Q", y2="top:Q"),
        chosen.mark_text(dy=-6, fontSize=9, color="var(--muted)", opacity={"expr": "width < 400 ? 0 : 1"}).encode(
            x="centre:Q", y="top:Q", text="words:N"
        ),
        old.mark_line(color="var(--before)", strokeWidth=1.5, strokeDash=[2, 3]),
        old.mark_point(color="var(--before)", size=38, strokeWidth=1.5, fill="var(--card)", opacity=1),
        chosen.mark_rule(strokeWidth=1.6).encode(**WHISKER, color=marks["color"], opacity=faded),
        chosen.mark_point(filled=True, size=75).encode(**axes, **marks, opacity=faded),
    )


WHISKER: Any = {"x": "confidence:Q", "y": "accuracy_low:Q", "y2": "accuracy_high:Q"}
WILSON_CENTRE = "(datum.accuracy + 1.9207 / datum.count) / (1 + 3.8415 / datum.count)"
WILSON_HALF = (
    "1.95996 / (1 + 3.8415 / datum.count) * "
    "sqrt(datum.accuracy * (1 - datum.accuracy) / datum.count + 0.9604 / (datum.count * datum.count))"
)


def _small_diagram(data: str, about: str, words: Wording) -> Spec:
    """Bins of a part of the rows with the Wilson interval of their share, which `accuracy` and `count` give."""
    bins = _data(data).transform_calculate(
        accuracy_low=f"max(0, {WILSON_CENTRE} - {WILSON_HALF})",
        accuracy_high=f"min(1, {WILSON_CENTRE} + {WILSON_HALF})",
    )
    size = alt.Size("count:Q", scale={"domain": [1, 60], "range": [25, 220], "clamp": True}, legend=None)
    axes, faded = _bin_axes(words) | {"size": size}, _when("datum.count < 10", 0.35, 0.95)
    now, old = bins.transform_filter(CHOSEN), bins.transform_filter(BEFORE)
    return _finish(
        330,
        f"Reliability diagram of the {about}",
        _diagonal(),
        old.mark_point(color="var(--before)", strokeWidth=1.5, opacity=NOT_ALONE).encode(**axes),
        now.mark_rule(color="var(--accent)", strokeWidth=1.3).encode(**WHISKER, opacity=faded),
        now.mark_point(filled=True, color="var(--accent)").encode(**axes, opacity=faded),
    )


def _histogram(words: Wording) -> Spec:
    stated = words.stated.split(":")[0]
    outcomes = {"domain": [words.yes, words.no], "range": ["var(--under)", "var(--over)"]}
    bars = _data("histogram", CHOSEN).transform_calculate(right_edge="datum.left + 0.025")
    bars = bars.mark_bar(stroke="var(--card)", strokeWidth=0.5).encode(
        x=alt.X("left:Q", title=stated, scale={"domain": [0, 1]}, axis={"format": ".0%"}, bin="binned"),
        x2="right_edge:Q",
        y=alt.Y("rows:Q", title="test rows", stack=True, axis={"format": "~s", "tickCount": 5}),
        color=alt.Color("outcome:N", scale=outcomes, legend=None),
        order=alt.Order("outcome:N", sort="ascending"),
        tooltip=_tips("left:.1%:from", "right_edge:.1%:to", "outcome::outcome", "rows:,:rows"),
    )
    means = _data("means", CHOSEN).encode(x="value:Q")
    rule = means.mark_rule(strokeWidth=1.5, strokeDash=[5, 3], color="var(--ink)").encode(
        tooltip=_tips("what::mean", "value:.1%:value")
    )
    labels = means.mark_text(
        align={"expr": "datum.value < 0.5 ? 'left' : 'right'"},
        dx={"expr": "datum.value < 0.5 ? 4 : -4"},
        fontWeight=600,
    ).encode(y=alt.Y("place:Q", axis=None, scale={"domain": [0, 1]}), text="words:N")
    both = alt.layer(bars, alt.layer(rule, labels)).resolve_scale(y="independent")
    return _finish(420, "Histogram of the stated probability, both outcomes stacked", both)


def _classes(data: Any, faint: float, **look: Any) -> Any:
    """Points of classes over their accuracy, of which one is picked by a click."""
    pick = alt.selection_point(name="pick", fields=["index"], on="click", clear=False, toggle=False)
    return (
        data.mark_point(filled=True, cursor="pointer", **look)
        .encode(x=CLASS_ACCURACY, size=_when(PICKED, 190, 46), opacity=_when(PICKED, 1, faint))
        .add_params(pick)
    )


CLASS_ACCURACY = _axis("accuracy", "class accuracy", zero=False, nice=True)


def _class_scatter() -> Spec:
    data, marks = _data("class_points"), _sides([PREDICTED.high, PREDICTED.low])
    before: Spec = {"x": "old_accuracy:Q", "y": "old_error:Q"}
    picked = data.transform_filter(PICKED)
    place = picked.encode(x="accuracy:Q", y="error:Q")
    label = place.transform_filter("datum.larger").mark_text(dy=-17, fontWeight=600, fontSize=12)
    return _finish(
        378,
        "Calibration error of every class against its accuracy",
        data.mark_rule(strokeWidth=1.2).encode(
            **before, x2="accuracy:Q", y2="error:Q", color=marks["color"], opacity=_when(PICKED, 1, 0.2)
        ),
        _classes(data, 0.55).encode(
            y=_axis("error", "calibration error", zero=True, nice=True),
            **marks,
            tooltip=_tips(
                "name::class",
                "side::side",
                "accuracy:.1%:accuracy",
                "error:.1%:error",
                "old_error:.1%:error before",
                "rows:,:test rows",
            ),
        ),
        picked.mark_point(size=60, strokeWidth=1.6, fill="var(--card)").encode(
            **before, **marks, opacity=_when("datum.joined", 1, 0)
        ),
        place.mark_point(size=330, strokeWidth=1.6, color="var(--ink)", opacity=1),
        label.encode(text="name:N"),
    )


def _class_temperature() -> Spec:
    data = _data("classes", "isValid(datum.temperature)")
    return _finish(
        240,
        "Temperature of every class against its accuracy",
        _constant(temperature=1).mark_rule(**DASHED).encode(y="temperature:Q"),
        _classes(data, 0.6, color="var(--accent)").encode(
            y=alt.Y("temperature:Q", title="temperature", scale={"zero": False, "nice": True}),
            tooltip=_tips("name::class", "accuracy:.1%:accuracy", "temperature:.3~f:temperature"),
        ),
        data.transform_filter(PICKED)
        .mark_text(dy=-14, fontWeight=600, fontSize=12)
        .encode(x="accuracy:Q", y="temperature:Q", text="name:N"),
    )


def _before_and_now(data: str, **encoding: Any) -> list[Any]:
    """The line of the chosen method over that of the one before it."""
    old = _data(data, BEFORE).mark_line(
        color="var(--before)", strokeWidth=1.6, strokeDash=[4, 3], opacity=NOT_ALONE, clip=True
    )
    now = _data(data, CHOSEN).mark_line(color="var(--accent)", strokeWidth=2.3, clip=True)
    return [old.encode(**encoding), now.encode(**encoding)]


def _coverage() -> Spec:
    axes = {
        "x": _axis("deferred", "share of rows deferred to a person", domain=[0, 1]),
        "y": _axis("risk", "errors among the rows kept", zero=True, nice=True),
        "tooltip": _tips(
            "method::method", "deferred:.0%:deferred", "risk:.2%:error among the kept", "threshold:.3f:threshold"
        ),
    }
    chosen = _data("coverage", CHOSEN)
    here = chosen.transform_filter("abs(datum.deferred - share) < 0.005")
    return _finish(
        300,
        "Errors that remain among the kept rows over the share deferred",
        chosen.mark_area(color="var(--accent)", opacity=0.13).encode(**axes, y2="bound:Q"),
        *_before_and_now("coverage", **axes),
        here.mark_rule(**CUT).encode(x="deferred:Q"),
        here.mark_point(filled=True, size=90, color="var(--ink)", opacity=1).encode(**axes),
    )


def _decision() -> Spec:
    """Net benefit over thresholds: of the method, before it, of acting on everyone and on no one."""
    # treating all falls without bound: the chart ends a little below zero
    shown = {"expr": "[-0.25 * prevalence, 1.05 * prevalence]"}
    axes = {
        "x": _axis("threshold", "threshold: act from this probability on", domain=[0, 1]),
        "y": _axis("benefit", "net benefit", ".2~f", domain=shown, nice=False),
    }
    tooltip = _tips("method::method", "threshold:.0%:threshold", "benefit:.4f:net benefit")
    cut = _data("thresholds", CHOSEN).transform_filter("abs(datum.threshold - cut) < 0.005")
    return _finish(
        300,
        "Decision curve: net benefit over the threshold",
        _data("everyone").mark_line(color="var(--muted)", strokeWidth=1.6, clip=True).encode(**axes),
        _constant(benefit=0).mark_rule(color="var(--ink)", strokeWidth=1).encode(y="benefit:Q"),
        *_before_and_now("thresholds", **axes, tooltip=tooltip),
        cut.mark_rule(**CUT).encode(x="threshold:Q"),
    )


def _forest(words: Wording, count: int) -> Spec:
    """Signed gaps of groups with simultaneous intervals, one line per group."""
    marks, faded = _sides(words.sides), _when("datum.few", 0.4, 1)
    y = alt.Y("group:N", title=None, sort=None, axis={"labelLimit": 150, "ticks": False, "domain": False})
    axes = {
        "x": _axis("gap", f"{words.mean} minus {words.share}", "+.1~%", zero=True, nice=True, padding=16),
        "y": y,
        "tooltip": _tips(
            "method::method", "group::group", "rows:,:rows", "gap:+.1%:gap", "low:+.1%:interval from", "high:+.1%:to"
        ),
    }
    chosen, old = _data("groups", CHOSEN), _data("groups", BEFORE)
    rules = chosen.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2)
    return _finish(
        max(30 * count, min(330, 70 * count)),
        "Signed calibration gap of every group",
        _constant(gap=0).mark_rule(**DASHED).encode(x="gap:Q"),
        old.mark_point(color="var(--before)", size=55, strokeWidth=1.5, opacity=NOT_ALONE).encode(**axes),
        rules.encode(x="low:Q", x2="high:Q", y=y, color=marks["color"], opacity=faded),
        chosen.mark_point(filled=True, size=80).encode(**axes, **marks, opacity=faded),
    )


def shift_chart(methods: list[str], look: Figure) -> Spec:
    """The mean of every method over the severities of a shift."""
    data = _data("shift").transform_calculate(low="datum.value - datum.error", high="datum.value + datum.error")
    number, ticks = (".1%", ".0%") if look.percent else (".3f", "~g")
    # the same explicit domain lets Vega-Lite draw one legend for colour and shape
    colors = {"domain": methods, "range": [f"var(--line-{place % 7})" for place in range(len(methods))]}
    legend = {"columns": 4}
    data = data.encode(
        x=alt.X("severity:O", title="severity of the shift (0: none)", axis={"labelAngle": 0}),
        color=alt.Color("method:N", legend=legend, scale=colors),
    )
    y = alt.Y("value:Q", title=look.heading, axis={"format": ticks}, scale={"zero": True})
    return _finish(
        320,
        f"{look.heading} over the severity of the shift",
        data.mark_line().encode(y=y, strokeWidth=_when(CHOSEN, 3, 1.6)),
        data.mark_rule(strokeWidth=1.3).encode(y="low:Q", y2="high:Q"),
        data.mark_point(filled=True, size=60, opacity=1).encode(
            y=y,
            shape=alt.Shape("method:N", legend=legend, scale={"domain": methods}),
            tooltip=_tips(
                "method::method",
                "severity::severity",
                f"value:{number}:{look.heading}",
                f"error:{number}:± standard error",
            ),
        ),
    )
