"""The section on decisions: what one probability per row is good for, in the words and figures of clinical papers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from html import escape
from typing import Any

import numpy as np

from calibrant.core.errors import FitWarning
from calibrant.evaluation.bootstrap import draw
from calibrant.evaluation.clinical import clinical_estimates, exact_log_odds
from calibrant.evaluation.results import Comparison, Estimate, TestColumns
from calibrant.metrics.decision import THRESHOLDS, decision_curve, threshold_metrics
from calibrant.metrics.flexible import flexible_calibration
from calibrant.report.aggregate import Table, baseline, finished, rounded
from calibrant.report.labels import two_decimals, with_interval

MOST_FITTED = 2_000_000
"""Rows through which smooth curves are fitted, over all methods; the uncalibrated and the best come first."""
LARGEST_LOSS = 700.0
"""Log losses from here on come of probabilities of exactly 0 or 1, not of logits."""
TABLE_THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)


def has_decisions(comparison: Comparison) -> bool:
    """Is this one probability per row, of which both outcomes were seen?"""
    return comparison.task == "binary" and bool(finished(comparison)) and len(np.unique(comparison.labels)) == 2


def decision_tables(comparison: Comparison) -> dict[str, Any] | None:
    """Smooth curves, net benefit and what thresholds do, for every method; None for other tasks."""
    if not has_decisions(comparison):
        return None
    thresholds: Table = {name: [] for name in ("method", "threshold", "benefit", *THRESHOLD_FIGURES)}
    everyone: Table = {}
    for row, columns in finished(comparison):
        given = columns.confidence, np.asarray(columns.correct, dtype=int)
        curve = decision_curve(*given, THRESHOLDS, sample_weight=comparison.weights)
        figures = threshold_metrics(*given, THRESHOLDS, sample_weight=comparison.weights)
        thresholds["method"] += [row.method] * len(THRESHOLDS)
        thresholds["threshold"] += rounded(THRESHOLDS, 2)
        thresholds["benefit"] += rounded(curve.model, 5)
        for name in THRESHOLD_FIGURES:
            thresholds[name] += rounded(getattr(figures, name))
        everyone = {"threshold": rounded(THRESHOLDS, 2), "benefit": rounded(curve.treat_all, 5)}
    return {
        "thresholds": thresholds,
        "everyone": everyone,
        "table": list(TABLE_THRESHOLDS),
        "prevalence": rounded([np.average(comparison.labels, weights=comparison.weights)])[0],
    }


THRESHOLD_FIGURES = ("sensitivity", "specificity", "ppv", "npv", "flagged")


def smooth_table(comparison: Comparison) -> Table:
    """The flexible calibration curve of the methods with its 95% band, as far as there is time for the fits."""
    table: Table = {name: [] for name in ("method", "probability", "observed", "low", "high")}
    if not has_decisions(comparison):
        return table
    order = [baseline(comparison), comparison.best]
    rows = {row.method: columns for row, columns in finished(comparison)}
    chosen = list(dict.fromkeys(name for name in (*order, *rows) if name in rows))
    fitted = max(2, MOST_FITTED // max(1, comparison.n_test))
    for name in chosen[:fitted]:
        columns = rows[name or ""]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            curve = flexible_calibration(
                columns.confidence, np.asarray(columns.correct, dtype=int), sample_weight=comparison.weights
            )
        every = slice(None, None, 2)
        table["method"] += [name] * len(curve.probability[every])
        for field in ("probability", "observed", "low", "high"):
            table[field] += rounded(getattr(curve, field)[every])
    return table


def clinical_figures(comparison: Comparison, columns: TestColumns) -> dict[str, Estimate]:
    """Slope, intercept, O:E and the rest with bootstrap intervals over rows."""
    loss = np.asarray(columns.nll, dtype=float)
    score = exact_log_odds(columns.confidence, columns.correct, loss, bool(loss.max(initial=0.0) < LARGEST_LOSS))
    resamples = draw(len(score), comparison.resamples, comparison.seed)
    return clinical_estimates(score, np.asarray(columns.correct, dtype=bool), comparison.weights, resamples)


def clinical_table(comparison: Comparison) -> str:
    """Each figure before and after the best method, and what it says in words."""
    if not has_decisions(comparison):
        return ""
    columns = {row.method: columns for row, columns in finished(comparison)}
    before, best = baseline(comparison) or "", comparison.best or ""
    old = clinical_figures(comparison, columns[before])
    new = old if best == before else clinical_figures(comparison, columns[best])
    lines = []
    for name, label, ideal, words in CLINICAL_WORDS:
        both = "".join(f"<td>{with_interval(one[name], two_decimals)}</td>" for one in (old, new))
        lines.append(
            f'<tr><th scope="row">{label}</th>{both}'
            f'<td class="text">{"" if ideal is None else f"Ideal {ideal:g}. "}{escape(words(new[name]))}</td></tr>'
        )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Clinical figures"><table class="small">'
        '<caption class="hidden">Calibration in clinical terms, before and after</caption>'
        '<thead><tr><th scope="col">Figure</th><th scope="col">Before</th>'
        f'<th scope="col">After <code>{escape(best)}</code></th>'
        '<th scope="col" class="text">In words, after</th></tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _holds(estimate: Estimate, ideal: float) -> bool:
    return bool(estimate.low <= ideal <= estimate.high)


def _ratio_words(one: Estimate) -> str:
    seen = f"For every 100 events expected, {100 * one.value:.0f} were seen"
    if _holds(one, 1.0):
        return f"{seen}: no more than chance explains."
    return f"{seen}: risk is {'under' if one.value > 1 else 'over'}estimated on average."


def _intercept_words(one: Estimate) -> str:
    if _holds(one, 0.0):
        return "The average risk is right, as far as these rows can tell."
    side = "low" if one.value > 0 else "high"
    return f"Risks are too {side} on average; their odds should be multiplied by {np.exp(one.value):.2f}."


def _slope_words(one: Estimate) -> str:
    if _holds(one, 1.0):
        return "Risks are neither too extreme nor too timid, as far as these rows can tell."
    if one.value < 1:
        return "Risks are too extreme: high ones too high, low ones too low."
    return "Risks are too timid: high ones too low, low ones too high."


def _ici_words(one: Estimate) -> str:
    return f"On average a stated risk is {100 * one.value:.1f} points from the smooth curve."


def _auc_words(one: Estimate) -> str:
    return f"In {100 * one.value:.0f} of 100 pairs of a positive and a negative, the positive has the higher risk."


Words = Callable[[Estimate], str]
CLINICAL_WORDS: tuple[tuple[str, str, float | None, Words], ...] = (
    ("observed_expected", "Observed : expected events", 1.0, _ratio_words),
    ("calibration_intercept", "Calibration in the large (intercept)", 0.0, _intercept_words),
    ("calibration_slope", "Calibration slope", 1.0, _slope_words),
    ("integrated_calibration_index", "Mean distance of the curve (ICI)", 0.0, _ici_words),
    ("roc_auc", "Discrimination (ROC AUC)", None, _auc_words),
)
