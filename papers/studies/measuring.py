"""Fit, measure, and compare two methods on the same resamples of the test rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
from scipy.stats import t as student

from calibrant.core import progress
from calibrant.core.errors import FitWarning
from calibrant.evaluation.bootstrap import Resamples, percentile_interval
from calibrant.evaluation.scoring import chosen_metrics, column_rows, estimated
from calibrant.kernels.rows import scan
from studies.networks import Network
from verdicts import Evidence


@dataclass(frozen=True)
class Figure:
    """A figure and its draws (R,) over the resamples, recentred on it: a resampled ECE is biased upwards."""

    value: float
    draws: np.ndarray
    df: float | None = None

    @property
    def spread(self) -> float:
        """Standard deviation over the resamples."""
        return float(self.draws.std())

    @property
    def interval(self) -> tuple[float, float]:
        """The central 95% of the draws; of a Student interval, its ends."""
        if self.df is not None:
            return float(self.draws[0]), float(self.draws[-1])
        return percentile_interval(self.draws, self.value)

    def __sub__(self, other: Figure) -> Figure:
        return Figure(self.value - other.value, self.draws - other.draws)


@dataclass(frozen=True)
class Measured:
    """One fitted calibrator on the test rows; `settled` is False where the fit warned that it had not converged."""

    calibrator: Any
    ece: Figure
    adaptive_ece: Figure
    accuracy: Figure
    confidence: np.ndarray
    prediction: np.ndarray
    correct: np.ndarray
    nll: np.ndarray
    settled: bool
    mean_nll: Figure


def mean(figures: Sequence[Figure]) -> Figure:
    """Mean over networks, resample by resample."""
    return Figure(float(np.mean([one.value for one in figures])), np.mean([one.draws for one in figures], axis=0))


def fit_and_measure(calibrator: Any, network: Network, resamples: Resamples, *, n_bins: int = 15) -> Measured:
    """Fit on val, measure on test."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        calibrator.fit(network.val_logits, network.val_labels)
    settled = not any(issubclass(one.category, FitWarning) for one in caught)
    columns = scan(calibrator.transform(network.test_logits), network.test_labels, from_logits=True, columns="scores")
    confidence, correct = columns.confidence, columns.correct
    rows = column_rows(columns, resamples, None, task="binary", of_logits=False)
    chosen = chosen_metrics(("ece", "adaptive_ece"), "binary")
    figures, draws, _ = estimated(chosen, rows, resamples, n_bins, paired=True)
    accuracy = float(correct.mean())
    hits = correct[resamples.rows].astype(np.float64)[:, None]
    return Measured(
        calibrator,
        ece=_error(figures["ece"].value, draws["ece"]),
        adaptive_ece=_error(figures["adaptive_ece"].value, draws["adaptive_ece"]),
        accuracy=Figure(accuracy, accuracy + resamples.mean_draws(hits, np.ones(len(hits)))[:, 0]),
        confidence=confidence,
        prediction=columns.prediction,
        correct=correct,
        nll=columns.nll,
        settled=settled,
        mean_nll=_mean_figure(columns.nll, resamples),
    )


def _mean_figure(column: np.ndarray, resamples: Resamples) -> Figure:
    value = float(column.mean())
    draws = resamples.mean_draws(
        column[resamples.rows].astype(np.float64)[:, None], np.ones(len(column[resamples.rows]))
    )
    return Figure(value, value + draws[:, 0])


def _error(value: float, draws: np.ndarray) -> Figure:
    return Figure(value, value + draws - draws.mean())


def percent(value: float) -> str:
    """A fraction as percent with two places."""
    return f"{100 * value:.2f}"


def signed(figure: Figure, *, scale: float = 100.0, places: int = 2) -> str:
    """A difference in points with its interval: −0.41 [−0.60, −0.22]."""
    return str(evidence(figure, "below", scale=scale, places=places))


def with_spread(figure: Figure) -> str:
    """A figure in percent and its spread over the resamples."""
    return f"{percent(figure.value)} ± {percent(figure.spread)}"


def evidence(
    figure: Figure, side: str, margin: float = 0.0, *, scale: float = 100.0, places: int = 2, cases: str = ""
) -> Evidence:
    """A figure as what a claim is judged by, in printed units; the margin is in the figure's own."""
    low, high = figure.interval
    ends = (scale * one for one in (figure.value, low, high))
    return Evidence(*ends, side=side, margin=scale * margin, places=places, df=figure.df, cases=cases)


def below_zero(figure: Figure, margin: float = 0.0, **printed: Any) -> Evidence:
    """Judges "it is below the margin" (0 unless given)."""
    return evidence(figure, "below", margin, **printed)


def above_zero(figure: Figure, margin: float = 0.0, **printed: Any) -> Evidence:
    """Judges "it is above the margin"."""
    return evidence(figure, "above", margin, **printed)


def exactly(condition: bool) -> bool:
    """What judges something counted without error."""
    return bool(condition)


Differences = Sequence[Figure] | Sequence[Sequence[Figure]]
"""One of each network, or several of each."""


def pooled(differences: Differences) -> Figure:
    """Mean over networks; from three networks on, its interval is at least Student's over them.

    Networks vary more than resamples of the test rows of one network do, and a claim is about networks.
    """
    networks = [one if isinstance(one, Figure) else mean(one) for one in differences]
    fixed = mean(networks)
    if len(networks) < 3:
        return fixed
    varied = over_cases(np.array([one.value for one in networks]))
    return varied if np.ptp(varied.interval) >= np.ptp(fixed.interval) else fixed


def lower(differences: Differences, **printed: Any) -> tuple[str, Evidence]:
    """How often and by how much the first of two methods is lower, and what judges "it is lower on average"."""
    return _counted(differences, "below", "lower", printed)


def higher(differences: Differences, **printed: Any) -> tuple[str, Evidence]:
    """How often and by how much the first of two methods is higher, and what judges "it is higher on average"."""
    return _counted(differences, "above", "higher", printed)


def _counted(differences: Differences, side: str, word: str, printed: dict[str, Any]) -> tuple[str, Evidence]:
    every = [one for some in differences for one in ([some] if isinstance(some, Figure) else some)]
    count = sum(one.value < 0 if side == "below" else one.value > 0 for one in every)
    judged = evidence(pooled(differences), side, cases=f"{count} of {len(every)}", **printed)
    return f"{judged.cases} {word}; mean {judged}", judged


def over_cases(values: np.ndarray) -> Figure:
    """The mean of independent cases (repeats, networks) whose interval is Student's t."""
    value = float(values.mean())
    if len(values) < 2:
        return Figure(value, np.array([-np.inf, value, np.inf]), df=1)
    error = values.std(ddof=1) / np.sqrt(len(values))
    reach = float(error * student.ppf(0.975, len(values) - 1))
    return Figure(value, np.array([value - reach, value, value + reach]), df=len(values) - 1)


def mostly(count: int, total: int) -> tuple[str, Evidence]:
    """A share of cases with its Wilson 95% interval, which judges "in more than half of all such cases"."""
    z, share = 1.96, count / total
    centre = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    reach = z / (1 + z**2 / total) * np.sqrt(share * (1 - share) / total + z**2 / (4 * total**2))
    low, high = max(0.0, centre - reach), min(1.0, centre + reach)
    judged = Evidence(100 * share, 100 * low, 100 * high, "above", 50, places=0, cases=f"{count} of {total}")
    return f"{count} of {total}, {100 * share:.0f}% [{100 * low:.0f}, {100 * high:.0f}]", judged


def each(work: Callable[..., Any], networks: Sequence[Network], workers: int, *parameters: Any) -> list[Any]:
    """`work(network, *parameters)` of every network, in their order; more than one worker means processes."""
    results = []
    if workers <= 1 or len(networks) <= 1:
        for place, network in enumerate(networks):
            progress.step("fitting networks", place, len(networks), network.name)
            results.append(work(network, *parameters))
        return results
    # fresh processes: a forked copy of a process with threads may hang
    with ProcessPoolExecutor(min(workers, len(networks)), mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(work, network, *parameters) for network in networks]
        for place, future in enumerate(futures):
            progress.step("fitting networks", place, len(networks), networks[place].name)
            results.append(future.result())
    return results
