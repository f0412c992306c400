"""The three questions a page answers first: is it calibrated, what should I use, how sure is that?"""

from typing import NamedTuple

from calibrant.evaluation.consistency import direction
from calibrant.evaluation.models import ModelComparison
from calibrant.evaluation.results import LITTLE_CHANGE, Comparison, MethodRow
from calibrant.evaluation.tables import figure
from calibrant.evaluation.verdict import CALIBRATED
from calibrant.metrics.record import facts as metric_facts
from calibrant.report.page_data import baseline, shown_method
from calibrant.report.wording import POSITIVE, full_name, wording

NEARLY_ALWAYS, MOSTLY = 0.005, 0.025
"""Shares of resamples in which the old model may be better, for two degrees of certainty."""


TOO_FEW = "Too few rows to tell"


class Answer(NamedTuple):
    """A question, its answer in a few words, and the figures behind it; `code` and **bold** are marked.

    kind : `good`, `bad` or `open`: how the answer is marked beside its words.
    """

    question: str
    short: str
    detail: str
    kind: str


def answers(comparison: Comparison) -> list[Answer]:
    """The three answers of a comparison."""
    if not comparison.fitted_methods:
        return [Answer("Is it calibrated?", "Unknown", "Every method failed; the reasons are listed below.", "open")]
    before, best = comparison.row(baseline(comparison)), comparison.row(shown_method(comparison))
    if comparison.too_few_rows:
        short = TOO_FEW if comparison.best is None else f"{full_name(best.method, best.calibrator)} `{best.method}`"
        choice, sureness = (short, f"`auto` {LITTLE_CHANGE}.", "open"), (TOO_FEW, f"{comparison.verdict}.", "open")
    else:
        choice, sureness = _choice(comparison, before, best), _sureness(comparison, before, best)
    precision = comparison.precision
    if precision is not None:
        sureness = sureness[0], f"{sureness[1]} {precision.text}.", sureness[2]
    return [
        Answer("Is it calibrated?", *_calibrated(comparison, before)),
        Answer("What should I use?", *choice),
        Answer("How sure is that?", *sureness),
    ]


Said = tuple[str, str, str]
"""What is said in a few words, the figures behind it, and its kind."""


def _calibrated(comparison: Comparison, before: MethodRow) -> Said:
    words, floor, columns = wording(comparison), before.noise_floor, before.columns
    ece, over, under = (before.metrics[name].value for name in ("ece", "over_confidence", "under_confidence"))
    positive = words is POSITIVE
    subject = "probabilities miss the share of positives" if positive else "confidence misses accuracy"
    # without "none" the uncalibrated scores were not compared
    start = "On average" if before.method == "none" else f"After `{before.method}`, on average"
    detail = f"{start} {subject} by {100 * ece:.2f} points"
    chance = "" if floor is None else f"; chance alone would show about {100 * floor.mean:.2f}"
    undecided = columns and comparison.count_evidence(columns, stated=columns.confidence).undecided
    if undecided:
        return f"{undecided[:1].upper()}{undecided[1:]}", f"{detail}{chance}.", "open"
    if floor is not None and not floor.significant:
        if _mends(comparison, before):
            detail += f", no more than chance explains, but `{comparison.best}` takes more than chance off the log loss"
            return "No, though bins show no gap", f"{detail}.", "bad"
        if before.calibration not in ("", CALIBRATED):
            return "No, though bins show no gap", f"{detail}, but it is {before.calibration}.", "bad"
        seen = f"{comparison.n_test:,} rows" if comparison.n_clusters is None else f"{comparison.n_clusters:,} clusters"
        short = f"Yes, as far as {seen} can tell"
        return short, f"{detail}, no more than chance explains.", "good"
    side = ("off in both directions", words.high, words.low)[direction(over, under)]
    return f"No, {'probabilities are' if positive else 'it is'} {side}", f"{detail}{chance}.", "bad"


def _mends(comparison: Comparison, before: MethodRow) -> bool:
    """Does the best method take more than chance off the log loss of held-out rows?"""
    return comparison.criterion == "nll" and not comparison.shares_rows and before.p_beats_best < MOSTLY


def _choice(comparison: Comparison, before: MethodRow, best: MethodRow) -> Said:
    name, floor = comparison.criterion, best.noise_floor
    label, value = metric_facts(name).label, figure(name, best.metrics[name].value)
    if best is before:
        tried = sum(row.error is None for row in comparison.rows) - 1
        return (
            "The model as it is",
            f"None of {tried} other methods has a better {label} than {value} beyond noise.",
            "good",
        )
    detail = f"It brings {label} from {figure(name, before.metrics[name].value)} to **{value}**"
    if name != "ece":
        detail += f" and the gap to {100 * best.metrics['ece'].value:.2f} points"
        if floor is not None:
            rest = f"where chance alone would leave about {100 * floor.mean:.2f}"
            detail += f", {rest if floor.significant else 'which chance alone explains'}"
    if comparison.task != "pairs":  # an answer stays what it is, whatever its confidence
        what = "decisions at 50%" if wording(comparison) is POSITIVE else "predictions"
        share = figure("changed_predictions", best.changed_predictions)
        detail += f", and changes {f'{share} of the {what}' if best.changed_predictions > 0 else 'no prediction'}"
    # which part of the log loss was miscalibration, where held-out rows show it beyond noise
    if _mends(comparison, before):
        loss, rest_loss = before.metrics["nll"].value, best.metrics["nll"].value
        mendable = f"{loss - rest_loss:.3f} of the {loss:.3f} nats are miscalibration, which a map can fix"
        detail += f". {mendable}; the rest is the model's"
    return f"{full_name(best.method, best.calibrator)} `{best.method}`", f"{detail}.", "good"


def _sureness(comparison: Comparison, before: MethodRow, best: MethodRow) -> Said:
    if comparison.shares_rows:
        return "Not at all", "The test rows are not independent of the fit: see the warning.", "bad"
    it = best.method if best is before else comparison.best
    tied = [f"`{row.method}`" for row in comparison.rows if row.ties_best and row.method != it]
    names = ", ".join(tied[:4]) + (f" and {len(tied) - 4} more" if len(tied) > 4 else "")
    others = f" Within noise of it: {names}." if tied else " No other method is within noise of it."
    if best is before:
        rows = f"{comparison.n_test:,} test rows.{others}"
        return ("No gain can be shown", rows, "open") if tied else ("Very", rows, "good")
    worse, look = before.p_beats_best, metric_facts(comparison.criterion)
    short = "Very" if worse < NEARLY_ALWAYS else "Fairly" if worse < MOSTLY else "Not very: the gain may be chance"
    whose = "its" if best.method == comparison.best else f"`{comparison.best}`'s"
    direction = "higher" if look.better > 0 else "lower"
    earlier = "before" if before.method == "none" else f"that of `{before.method}`"
    share = f"{100 * (1 - worse):.1f}%".replace(".0%", "%").replace("nan%", "–")
    if 0 < worse <= 0.0005:
        share = "more than 99.9%"  # almost all is not all
    detail = (
        f"In {share} of {comparison.resamples:,} resamples of {comparison.n_test:,} test rows {whose} "
        f"{look.label} is {direction} than {earlier}.{others}"
    )
    return short, detail, "good" if worse < MOSTLY else "open"


def model_answers(table: ModelComparison) -> list[Answer]:
    """The three questions, asked of all models together."""
    first = {name: answers(one)[0] for name, one in table.comparisons.items()}
    kinds = [one.kind for one in first.values()]
    bad, total = kinds.count("bad"), len(kinds)
    said = f"{bad} of {total} are not" if bad else f"{TOO_FEW} for some"
    if kinds.count("good") == total:
        said = "All of them"
    named = "; ".join(f"{name}: {one.short[:1].lower()}{one.short[1:]}" for name, one in first.items())
    found = [Answer("Are they calibrated?", said, f"{named}.", "bad" if bad else "good")]
    if not table.fitted_methods:
        return [*found, Answer("What should I use?", "Unknown", "Every method failed on every model.", "open")]
    if table.best is None or table.too_few_rows:
        short = TOO_FEW if table.best is None else f"{full_name(table.best)} `{table.best}`"
        found.append(Answer("What should I use?", short, f"`auto` {LITTLE_CHANGE}.", "open"))
        return [*found, Answer("How sure is that?", TOO_FEW, f"{table.verdict}.", "open")]
    best, ranks, total = table.best, table.mean_ranks(), table.n_ranked
    wins = table.wins()[best]
    choice = f"Lowest mean rank by {metric_facts(table.criterion).label}: {ranks[best]:.2f} of {len(ranks)} methods."
    found.append(Answer("What should I use?", f"{full_name(best)} `{best}`", choice, "good"))
    rival = next((row.name for row in table.table("methods").rows if row.name != best), None)
    close = "" if rival is None else f" Next is `{rival}` with mean rank {ranks[rival]:.2f}."
    sure = wins == total
    short = "It is never clearly beaten" if sure else f"It is beaten on {total - wins} of {total}"
    few = f" Too few rows to compare methods on {len(kinds) - total} more." if total < len(kinds) else ""
    detail = f"Best or within noise of the best on {wins} of {total} models.{close}{few}"
    return [*found, Answer("How sure is that?", short, detail, "good" if sure else "open")]
