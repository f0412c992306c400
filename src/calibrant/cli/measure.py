"""`calibrant measure FILE`: every metric with its interval, a reliability diagram in the terminal, and gates.

A gate is a limit on a figure that turns a measurement into a check for continuous integration. It compares the estimate
(not the end of its interval) with the limit. It reads the JSON document of a measurement, so that a gate on a stored
document gives the same answer.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from rich.padding import Padding
from rich.text import Text

import calibrant as cal
from calibrant.cli.drawing import BLUE, GREEN, GREY, ORANGE, Output
from calibrant.cli.verbs import (
    Count,
    Fields,
    Limit,
    Share,
    answer,
    printable,
    progress_bar,
    skipped_words,
    verb,
    warn,
)
from calibrant.core.errors import InputError
from calibrant.engines.engine import opened
from calibrant.evaluation.measure import Measurement
from calibrant.evaluation.tables import Cell, Estimate, Row, Table, bounds, figure, plain, raised_words
from calibrant.evaluation.verdict import CALIBRATED
from calibrant.metrics.record import facts, number

BAR = 40
TASKS = {
    "multiclass": "{} classes",
    "binary": "binary, about the positive class",
    "multilabel": "{} labels, about the positive class",
    "pairs": "pairs",
}
SHOWN_GROUPS, SHOWN_LABELS = 12, 5
CLASS_COLUMNS = {
    "ece": "class ECE %", "over": "over", "under": "under", "accuracy": "accuracy %", "count": "rows",
}  # fmt: skip
EIGHT = {
    "multiclass": ("ece", "sce", "nll", "brier", "accuracy", "confidence", "confidence_auroc", "aurc"),
    "pairs": ("ece", "adaptive_ece", "nll", "brier", "accuracy", "confidence", "confidence_auroc", "aurc"),
    "positive class": (
        "ece", "calibration_slope", "calibration_intercept", "observed_expected", "nll", "brier", "roc_auc",
        "average_precision",
    ),
}  # fmt: skip
"""The figures that are shown without --all, by task or by what they are about."""
WORDS = {
    "predicted class": ("confidence", "accuracy", "overconfident", "underconfident"),
    "positive class": ("probability", "observed", "too high", "too low"),
}
"""What is stated and seen, and what either side of the diagonal is called."""
SIGNS = {
    "predicted class": "confidence minus accuracy; above 0 overconfident, below underconfident",
    "positive class": "mean probability minus observed share; above 0 too high, below too low",
}
NAME = 34
"""Characters of a group's or label's name."""


@verb
def measure(
    file: str,
    *,
    said: Fields,
    how: Fields,
    decompose: bool | None = None,
    engine: str = "local",
    skip_bad_parts: bool = False,
    max_ece: Share = None,
    max_classwise_ece: Share = None,
    max_nll: Limit = None,
    max_brier: Limit = None,
    min_accuracy: Share = None,
    max_group_ece: Share = None,
    at_most: list[str] | None = None,
    at_least: list[str] | None = None,
    min_rows: Count = 500,
    everything: bool = False,
    as_json: bool = False,
) -> bool:
    """Measure calibration: a verdict, figures with 95% intervals and, with --by, every group with its direction.

    With a limit (--max-ece …) the measurement is a gate: exit code 1 means that a metric exceeds its limit.
    Options for limits may be repeated; all limits apply.

    Parameters
    ----------
    decompose : How much of the loss a map can fix; by default where it is quick.
    max_ece : Gate: exit 1 when it is above this fraction.
    max_classwise_ece : Gate: exit 1 when it is above this fraction.
    max_nll : Gate: exit 1 when the figure is above this.
    max_brier : Gate: exit 1 when the figure is above this.
    min_accuracy : Gate: exit 1 below this accuracy.
    max_group_ece : Gate on the ECE of every group of --by.
    at_most : Gate on any metric; may be repeated.
    at_least : Gate: exit 1 below the limit.
    min_rows : Groups with fewer rows are left out of group gates.
    everything : Show the reliability diagram, every figure, the worst classes and all groups as well.
    """
    upper = {"ece": max_ece, "sce": max_classwise_ece, "nll": max_nll, "brier": max_brier}
    limits = [
        *collect_limits("at most", upper, at_most),
        *collect_limits("at least", {"accuracy": min_accuracy}, at_least),
    ]
    group_limits = collect_limits("at most", {"ece": max_group_ece})
    with progress_bar(as_json), opened(engine) as running:
        predictions = cal.open_predictions(file, skip_bad_parts=skip_bad_parts, engine=running, **said)
        result = cal.measure(predictions, decompose=decompose, engine=running, **how)
    document = result.to_dict()
    if skip_bad_parts:
        document["skipped_parts"] = list(predictions.skipped)
    gate = check(document, limits, group_limits, min_rows)
    if not as_json:
        warn(skipped_words(predictions.skipped))
        warn(result.warnings, "note")
        show(result, predictions.name or file, predictions.kind, everything)
    gated = {"gate": gate} if gate["checks"] else {}
    answer(as_json, document | gated, [f"\n{words(one)}" for one in gated.values()])
    return not gate["passed"]


class MetricLimit(NamedTuple):
    """A limit on a metric: its kind is "at most" or "at least"."""

    kind: str
    metric: str
    limit: float


def collect_limits(
    kind: str, options: Mapping[str, Sequence[float] | None], texts: Sequence[str] | None = None
) -> list[MetricLimit]:
    """Return the limits of the named options, and of texts such as `mce=0.2`.

    >>> collect_limits("at most", {"ece": [0.03]}, ["mce=0.2"])[1]
    MetricLimit(kind='at most', metric='mce', limit=0.2)
    """
    pairs = [(metric, limit) for metric, values in options.items() for limit in values or ()]
    for text in texts or ():
        metric, _, number = text.partition("=")
        try:
            pairs.append((metric, float(number)))
        except ValueError as error:
            raise InputError(f"a limit is NAME=NUMBER, such as mce=0.2, got {text!r}") from error
    for metric, limit in pairs:
        if not math.isfinite(limit):
            raise InputError(f"the limit of {metric} must be a finite number, got {limit}")
    return [MetricLimit(kind, *pair) for pair in pairs]


def check(
    document: Fields,
    limits: Sequence[MetricLimit],
    group_limits: Sequence[MetricLimit] = (),
    min_rows: int = 500,
) -> Fields:
    """Return the field `gate` of a measurement's document, {"passed", "checks"}. All limits apply.

    >>> check({"metrics": {"ece": {"value": 0.05}}}, [MetricLimit("at most", "ece", 0.03)])["passed"]
    False
    """
    tasks = [(document, limit) for limit in limits]
    if group_limits:
        if "groups" not in document:
            raise InputError("--max-group-ece needs groups: name their column with --by")
        large = [group for group in document["groups"] if group["n"] >= min_rows]
        if not large:
            raise InputError(f"no group has {min_rows} rows, so there is nothing to check: lower --min-rows")
        tasks += [(group, limit) for group in large for limit in group_limits]
    checks = []
    for rows, (kind, name, limit) in tasks:
        metrics, group = rows["metrics"], {"group": rows["by"], "n": rows["n"]} if "by" in rows else {}
        if name not in metrics:
            raise InputError(f"there is no {name} in this measurement: it has {', '.join(sorted(metrics))}")
        # a metric that could not be computed fails its check
        value = plain(metrics[name]["value"])
        passed = value is not None and (value >= limit if kind == "at least" else value <= limit)
        checks.append({"metric": name, "kind": kind, "value": value, "limit": limit, "passed": passed, **group})
    return {"passed": all(one["passed"] for one in checks), "checks": checks}


def words(gate: Fields) -> str:
    """The gate for people, a line for each check that failed."""
    failed = [one for one in gate["checks"] if not one["passed"]]
    if not failed:
        return f"gate passed: {len(gate['checks'])} of {len(gate['checks'])} checks"
    texts = []
    for one in failed:
        group = ", ".join(f"{key}={printable(value)}" for key, value in one.get("group", {}).items())
        name, side = one["metric"], "below" if one["kind"] == "at least" else "above"
        value = "unknown" if one["value"] is None else figure(name, one["value"])
        label = facts(name).label + f" of {group}" * bool(group)
        texts.append(f"{label} is {value}, {side} the limit of {figure(name, one['limit'])}")
    return "gate failed: " + ";\n  ".join(texts)


def show(result: Measurement, name: str, kind: str, everything: bool) -> None:
    """Print verdict, main figures and groups; the diagram, the other figures and the worst classes where asked for."""
    out, task = Output(), TASKS[result.task].format(result.n_classes)
    read = "" if result.reading is None else f"read: {result.reading.sentence}\n"
    size = f"{result.n:,} rows{result.weighed}, {task}, {kind}\n"
    out.print(Text.assemble((f"{name}  ", "bold"), (size + read, GREY)))
    _verdict(out, result)
    out.print()
    if everything:
        _diagram(out, result)
        out.print()
    _figures(out, result, list(result.metrics) if everything else EIGHT.get(result.task, EIGHT["positive class"]))
    if result.task == "multiclass" and everything:
        rows = []
        for place in result.worst_classes():
            cells = {
                name: Cell("n" if name == "count" else "ece", Estimate(getattr(result.classes, name)[place]))
                for name in CLASS_COLUMNS
            }
            rows.append(Row(result.class_name(place)[:NAME], cells))
        out.print()
        out.table(Table("worst classes", CLASS_COLUMNS, rows))
    if result.labels:
        out.print()
        _largest(out, result.label_table(), ("ece", "nll", "n_positive"), None if everything else SHOWN_LABELS)
    if result.groups is not None:
        out.print(Text(f"\n{result.groups.verdict}", "bold"))
        _largest(out, result.groups.table(), ("n", "ece", "gap"), None if everything else SHOWN_GROUPS)
        out.note(f"gap: {SIGNS[result.about]}", "*: beyond chance; the intervals hold for all groups at once")
    if not everything:
        out.note("", "--all shows the reliability diagram and every figure as well")


def _largest(out: Output, table: Table, columns: Sequence[str], most: int | None) -> None:
    """The rows of largest calibration error; gaps beyond chance are marked."""
    rows = []
    for row in sorted(table.rows, key=lambda row: -row.cells["ece"].estimate.value)[:most]:
        cells = dict(row.cells)
        if "gap" in cells:
            gap = cells["gap"].estimate
            cells["gap"] = Cell("gap", gap, best=gap.low > 0 or gap.high < 0)
        rows.append(Row(row.name[:NAME], cells))
    out.table(replace(table.pick(columns), rows=rows, intervals=("gap",)))
    if left := len(table.rows) - len(rows):
        out.note(f"and {left} more (--all lists them)")


def _verdict(out: Output, result: Measurement) -> None:
    floor, ece = result.noise_floor, result.metrics["ece"]
    mark, color = ("?", GREY) if result.too_few_rows else ("!", ORANGE)
    if result.verdict == CALIBRATED:
        mark, color = "✓", GREEN
    out.print(Text.assemble((f"{mark} ", f"bold {color}"), (result.verdict, "bold")))
    out.print(
        f"  ECE {number('ece', ece.value)}% {bounds('ece', ece)}\n"
        f"  a calibrated model would show {100 * floor.mean:.2f}% at this n "
        f"[{100 * floor.low:.2f}, {100 * floor.high:.2f}], p {'≤' if floor.p_value <= 0.001 else '='} "
        f"{floor.p_value:.3f}"
    )
    if result.mendable:
        text, how = result.mendable.rsplit(" (", maxsplit=1)
        how = f"(cross-validated: {how.removesuffix(')')}; ± is one standard error)"
        for line in (Text(text), Text(how, GREY)):
            out.print(Padding.indent(line, 2))
    over, under = (result.metrics[name].value for name in ("over_confidence", "under_confidence"))
    *_, high, low = WORDS[result.about]
    part = round(20 * over / max(over + under, 1e-12))
    sides = ("▓" * part, ORANGE), ("░" * (20 - part), GREEN), f" {low}"
    out.print(Text.assemble(f"  {high} ", *sides, (f"   {100 * over:.2f} + {100 * under:.2f} points", GREY)))


def _diagram(out: Output, result: Measurement) -> None:
    """Accuracy of each bin as a full bar, and what is missing to, or what exceeds, the stated confidence."""
    bins, (x, y, high, low) = result.bins, WORDS[result.about]
    scale = f"0{'50':>{BAR // 2 - 1}}{'100':>{BAR // 2 - 1}}"
    out.print(Text.assemble((f" {x:<12}", "bold"), (scale, GREY), ("     gap      rows", "bold")))
    for b, count in enumerate(bins.count):
        edges = f" {100 * bins.lower[b]:4.0f}–{100 * bins.upper[b]:3.0f}%   "
        if count == 0:
            out.note(f"{edges}·")
            continue
        accuracy, confidence = bins.accuracy[b], bins.confidence[b]
        chance = bins.noise_low[b] - 1e-12 <= accuracy <= bins.noise_high[b] + 1e-12
        gap, true, stated = 100 * (confidence - accuracy), round(accuracy * BAR), round(confidence * BAR)
        rest = ("▓" * (stated - true), ORANGE) if true <= stated else ("▒" * (true - stated), GREEN)
        bars = ("█" * min(true, stated), BLUE), rest, " " * (BAR + 1 - max(true, stated))
        color = GREY if chance else ORANGE if gap > 0 else GREEN
        figures = (f" {gap:+6.1f}{' ' if chance else '*'}", color), (f"{int(count):>10,}", GREY)
        out.print(Text.assemble(edges, *bars, *figures))
    marks = ("█", BLUE), (f" {y}  ", GREY), ("▓", ORANGE), (f" {high}  ", GREY), ("▒", GREEN)
    out.print(Text.assemble(" " * 13, *marks, (f" {low}  * beyond chance", GREY)))


def _figures(out: Output, result: Measurement, names: Sequence[str]) -> None:
    """Figures with their intervals; and which were not computed, with the reason."""
    found = {name: result.metrics[name] for name in names if name in result.metrics}
    rows = [Row(facts(name).title, {"value": Cell(name, one)}) for name, one in found.items()]
    ends = {facts(name).title: bounds(name, one) for name, one in found.items()}
    table = Table("figure", {"value": "value"}, rows, texts={"95% interval": ends})
    out.table(table)
    out.note(*filter(None, [raised_words(table)]))
    for reason in dict.fromkeys(result.left_out.values()):
        names = [facts(name).label for name, why in result.left_out.items() if why == reason]
        out.note(f"{', '.join(names)}: {reason}")
