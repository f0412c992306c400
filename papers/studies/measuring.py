"""Fit, measure, and compare two methods on the same resamples of the test rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

from calibrant.core import progress
from calibrant.core.errors import FitWarning
from calibrant.evaluation.bootstrap import Resamples, percentile_interval
from calibrant.evaluation.scoring import column_estimates
from calibrant.kernels.rows import scan
from studies.networks import Network


@dataclass(frozen=True)
class Figure:
    """A figure and its draws (R,) over the resamples, recentred on it: a resampled ECE is biased upwards."""

    value: float
    draws: np.ndarray

    @property
    def spread(self) -> float:
        """Standard deviation over the resamples."""
        return float(self.draws.std())

    @property
    def interval(self) -> tuple[float, float]:
        """The central 95% of the draws."""
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
    figures, draws = column_estimates(("ece", "adaptive_ece"), columns, resamples, n_bins=n_bins)
    accuracy = float(correct.mean())
    hits = resamples.take(correct).astype(np.float64)[:, None]
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
        resamples.take(column).astype(np.float64)[:, None], np.ones(len(resamples.take(column)))
    )
    return Figure(value, value + draws[:, 0])


def _error(value: float, draws: np.ndarray) -> Figure:
    return Figure(value, value + draws - draws.mean())


def percent(value: float) -> str:
    """A fraction as percent with two places."""
    return f"{100 * value:.2f}"


def signed(figure: Figure, *, scale: float = 100.0, places: int = 2) -> str:
    """A difference in points with its interval: −0.41 [−0.60, −0.22]."""
    low, high = figure.interval
    # an end just below zero keeps its sign, since the verdict rests on it; what is zero up to rounding has none
    scaled = (scale * value if abs(scale * value) > ROUNDING else 0.0 for value in (figure.value, low, high))
    words = (f"{value:+.{places}f}" for value in scaled)
    value, low_text, high_text = (word.replace("-", "−") for word in words)
    return f"{value} [{low_text}, {high_text}]"


def with_spread(figure: Figure) -> str:
    """A figure in percent and its spread over the resamples."""
    return f"{percent(figure.value)} ± {percent(figure.spread)}"


ROUNDING = 1e-6
HOLDS, FAILS, OPEN = "holds", "does not hold", "not decided"


def below_zero(figure: Figure, margin: float = 0.0) -> str:
    """Verdict on "it is below the margin" (0 unless given) from the interval."""
    low, high = figure.interval
    return HOLDS if high < margin else (FAILS if low > margin else OPEN)


def above_zero(figure: Figure, margin: float = 0.0) -> str:
    """Verdict on "it is above the margin" from the interval."""
    low, high = figure.interval
    return HOLDS if low > margin else (FAILS if high < margin else OPEN)


def exactly(condition: bool) -> str:
    """Verdict on something counted without error."""
    return HOLDS if condition else FAILS


def lower(differences: Sequence[Figure]) -> tuple[str, str]:
    """How often and by how much the first of two methods is lower, and the verdict on "it is lower on average"."""
    count = sum(one.value < 0 for one in differences)
    overall = mean(differences)
    return f"{count} of {len(differences)} lower; mean {signed(overall)}", below_zero(overall)


def higher(differences: Sequence[Figure]) -> tuple[str, str]:
    """How often and by how much the first of two methods is higher, and the verdict on "it is higher on average"."""
    count = sum(one.value > 0 for one in differences)
    overall = mean(differences)
    return f"{count} of {len(differences)} higher; mean {signed(overall)}", above_zero(overall)


def over_cases(values: np.ndarray) -> Figure:
    """The mean of independent cases (repeats, networks) whose interval is Student's t."""
    from scipy.stats import t

    value = float(values.mean())
    if len(values) < 2:
        return Figure(value, np.array([-np.inf, value, np.inf]))
    error = values.std(ddof=1) / np.sqrt(len(values))
    return Figure(value, value + error * t.ppf(np.linspace(0.0005, 0.9995, 1999), len(values) - 1))


def mostly(count: int, total: int) -> tuple[str, str]:
    """A share of cases with its Wilson 95% interval, and the verdict on "in more than half of all such cases"."""
    z, share = 1.96, count / total
    centre = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    reach = z / (1 + z**2 / total) * np.sqrt(share * (1 - share) / total + z**2 / (4 * total**2))
    low, high = max(0.0, centre - reach), min(1.0, centre + reach)
    verdict = HOLDS if low > 0.5 else (FAILS if high < 0.5 else OPEN)
    return f"{count} of {total}, {100 * share:.0f}% [{100 * low:.0f}, {100 * high:.0f}]", verdict


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
