"""The three questions a page answers first: is it calibrated, what should I use, how sure is that?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrant.evaluation.models import ModelComparison
from calibrant.evaluation.rendering import figure
from calibrant.evaluation.results import Comparison, MethodRow
from calibrant.evaluation.verdicts import SIGNIFICANCE, too_few_to_tell
from calibrant.metrics.record import facts as metric_facts
from calibrant.report.chart_data import baseline
from calibrant.report.methods import full_name
from calibrant.report.wording import wording

NEARLY_ALWAYS, MOSTLY = 0.005, 0.025
"""Shares of resamples in which the old model may be better, for two degrees of certainty."""


@dataclass(frozen=True)
class Answer:
    """A question, its answer in a few words, and the figures behind it; `code` and **bold** are marked."""

    question: str
    short: str
    detail: str
    kind: str = ""
    """`good`, `bad` or `open`: how the answer is marked beside its words."""


def answers(comparison: Comparison) -> list[Answer]:
    """The three answers of a comparison."""
    if comparison.best is None:
        reason = "Every method failed; the reasons are listed below."
        return [Answer("Is it calibrated?", "Unknown", reason, "open")]
    best = comparison.row(comparison.best)
    before = comparison.row(baseline(comparison))
    return [_calibrated(comparison, before), _choice(comparison, before, best), _sureness(comparison, before, best)]


def _calibrated(comparison: Comparison, before: MethodRow) -> Answer:
    question, words = "Is it calibrated?", wording(comparison)
    gap, floor = 100 * before.metrics["ece"].value, before.noise_floor
    over, under = before.metrics["over_confidence"].value, before.metrics["under_confidence"].value
    positive = words.about == "positive class"
    subject = "probabilities miss the share of positives" if positive else "confidence misses accuracy"
    detail = f"On average {subject} by {gap:.2f} points"
    if before.method != "none":  # the uncalibrated scores were not compared
        detail = f"After `{before.method}`, {detail[:1].lower()}{detail[1:]}"
    chance = "" if floor is None else f" chance alone would show about {100 * floor.mean:.2f}"
    columns = before.columns
    few = columns is not None and too_few_to_tell(
        np.asarray(columns.confidence), np.asarray(columns.correct), comparison.weights, comparison.task
    )
    if few:
        return Answer(question, "Too few rows to tell", f"{detail};{chance}.", "open")
    if floor is not None and floor.p_value >= SIGNIFICANCE:
        rows = f"as far as {comparison.n_test:,} rows can tell"
        return Answer(question, f"Yes, {rows}", f"{detail}, no more than chance explains.", "good")
    side = words.high if over > 2 * under else words.low if under > 2 * over else "off in both directions"
    return Answer(
        question,
        f"No, {'probabilities are' if positive else 'it is'} {side}",
        f"{detail};{chance}." if chance else f"{detail}.",
        "bad",
    )


def _choice(comparison: Comparison, before: MethodRow, best: MethodRow) -> Answer:
    question, look = "What should I use?", metric_facts(comparison.criterion)
    value = figure(comparison.criterion, best.metrics[comparison.criterion].value)
    if best is before:
        tried = sum(row.error is None for row in comparison.rows) - 1
        detail = f"None of {tried} other methods has a better {look.label} than {value}."
        return Answer(question, "The model as it is", detail, "good")
    start = figure(comparison.criterion, before.metrics[comparison.criterion].value)
    detail = f"It brings {look.label} from {start} to **{value}**"
    if comparison.criterion != "ece":
        detail += f" and the gap to {100 * best.metrics['ece'].value:.2f} points{_rest(best)}"
    name = full_name(best.method, best.calibrator)
    detail += f"{_cost(comparison, best)}.{_mended(comparison, before, best)}"
    return Answer(question, f"{name} `{best.method}`", detail, "good")


def _mended(comparison: Comparison, before: MethodRow, best: MethodRow) -> str:
    """Which part of the log loss was miscalibration, where held-out rows show it beyond noise."""
    if comparison.criterion != "nll" or comparison.warnings or not before.p_beats_best < MOSTLY:
        return ""
    loss, rest = before.metrics["nll"].value, best.metrics["nll"].value
    return (
        f" {loss - rest:.3f} of the {loss:.3f} nats are miscalibration, which a map can mend; the rest is the model's."
    )


def _sureness(comparison: Comparison, before: MethodRow, best: MethodRow) -> Answer:
    question, look = "How sure is that?", metric_facts(comparison.criterion)
    if comparison.warnings:
        return Answer(question, "Not at all", "The test rows are not independent of the fit: see the warning.", "bad")
    tied = [row.method for row in comparison.rows if row.ties_best and row is not best]
    names = ", ".join(f"`{name}`" for name in tied[:4])
    names += f" and {len(tied) - 4} more" if len(tied) > 4 else ""
    others = f" Within noise of it: {names}." if tied else " No other method is within noise of it."
    if best is before:
        short = "No gain can be shown" if tied else "Very"
        return Answer(question, short, f"{comparison.n_test:,} test rows.{others}", "open" if tied else "good")
    worse = before.p_beats_best
    short = "Very" if worse < NEARLY_ALWAYS else "Fairly" if worse < MOSTLY else "Not very: the gain may be chance"
    direction = "higher" if look.better > 0 else "lower"
    earlier = "before" if before.method == "none" else f"that of `{before.method}`"
    detail = (
        f"In {_share(1 - worse)} of {comparison.resamples:,} resamples of {comparison.n_test:,} test rows its "
        f"{look.label} is {direction} than {earlier}.{others}"
    )
    return Answer(question, short, detail, "good" if worse < MOSTLY else "open")


def _share(value: float) -> str:
    """A share of resamples; almost all is not all."""
    if not np.isfinite(value):
        return "–"
    return "more than 99.9%" if 0.9995 <= value < 1 else f"{100 * value:.1f}%".replace(".0%", "%")


def _rest(row: MethodRow) -> str:
    if row.noise_floor is None:
        return ""
    if row.noise_floor.p_value >= SIGNIFICANCE:
        return ", which chance alone explains"
    return f", where chance alone would leave about {100 * row.noise_floor.mean:.2f}"


def _cost(comparison: Comparison, row: MethodRow) -> str:
    if comparison.task == "pairs":
        return ""  # an answer stays what it is, whatever its confidence
    if not row.changed_predictions > 0:
        return ", and changes no prediction"
    what = "decisions at 50%" if wording(comparison).about == "positive class" else "predictions"
    return f", and changes {figure('changed_predictions', row.changed_predictions)} of the {what}"


def model_answers(table: ModelComparison) -> list[Answer]:
    """The three questions, asked of all models together."""
    first = {name: answers(one)[0] for name, one in table.comparisons.items()}
    bad = [name for name, one in first.items() if one.kind == "bad"]
    total = len(table.models)
    said = "All of them" if not bad and all(one.kind == "good" for one in first.values()) else ""
    said = said or (f"{len(bad)} of {total} are not" if bad else "Too few rows to tell for some")
    named = "; ".join(f"{name}: {one.short[:1].lower()}{one.short[1:]}" for name, one in first.items())
    found = [Answer("Are they calibrated?", said, f"{named}.", "bad" if bad else "good")]
    if table.best is None:
        return [*found, Answer("What should I use?", "Unknown", "Every method failed on every model.", "open")]
    wins, ranks, best = table.wins()[table.best], table.mean_ranks(), table.best
    choice = f"Lowest mean rank by {metric_facts(table.criterion).label}: {ranks[best]:.2f} of {len(ranks)} methods."
    found.append(Answer("What should I use?", f"{full_name(best)} `{best}`", choice, "good"))
    rival = next((row.name for row in table.table().rows if row.name != best), None)
    close = "" if rival is None else f" Next is `{rival}` with mean rank {ranks[rival]:.2f}."
    sure = wins == total
    short = "It is never clearly beaten" if sure else f"It is beaten on {total - wins} of {total}"
    detail = f"Best or within noise of the best on {wins} of {total} models.{close}"
    return [*found, Answer("How sure is that?", short, detail, "good" if sure else "open")]
