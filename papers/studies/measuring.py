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
from calibrant.core.bin_sums import total_gap
from calibrant.core.errors import FitWarning
from calibrant.evaluation.bootstrap import Resamples, percentile_interval
from calibrant.evaluation.intervals import TopLabelCells
from calibrant.kernels.rows import scan
from calibrant.metrics.top_label import adaptive_ece_of, ece_of
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
    cells = TopLabelCells.build(confidence, correct, None, resamples, n_bins=n_bins, fine=1)
    accuracy = float(correct.mean())
    hits = resamples.take(correct).astype(np.float64)[:, None]
    return Measured(
        calibrator,
        ece=_error(cells, cells.width, ece_of(confidence, correct, None, n_bins=n_bins)),
        adaptive_ece=_error(cells, cells.mass, adaptive_ece_of(confidence, correct, None, n_bins=n_bins)),
        accuracy=Figure(accuracy, accuracy + resamples.mean_draws(hits, np.ones(len(hits)))[:, 0]),
        confidence=confidence,
        prediction=columns.prediction,
        correct=correct,
        nll=columns.nll,
        settled=settled,
    )


def _error(cells: TopLabelCells, index: np.ndarray, value: float) -> Figure:
    residual, noise, _ = cells.binned(index)
    draws = total_gap(residual + noise)
    return Figure(value, value + draws - draws.mean())


def percent(value: float) -> str:
    """A fraction as percent with two places."""
    return f"{100 * value:.2f}"


def signed(figure: Figure, *, scale: float = 100.0) -> str:
    """A difference in points with its interval: −0.41 [−0.60, −0.22]."""
    low, high = figure.interval
    # adding 0 after rounding turns −0.00 into +0.00
    words = (f"{round(scale * value, 2) + 0.0:+.2f}" for value in (figure.value, low, high))
    value, low_text, high_text = (word.replace("-", "−") for word in words)
    return f"{value} [{low_text}, {high_text}]"


def with_spread(figure: Figure) -> str:
    """A figure in percent and its spread over the resamples."""
    return f"{percent(figure.value)} ± {percent(figure.spread)}"


def lower(differences: Sequence[Figure]) -> tuple[str, str]:
    """How often and by how much the first of two methods is lower, and the verdict on "it is lower".

    Holds: the mean difference lies below 0 with its whole interval, and so do more than half of the networks. Does
    not hold: the mean lies above 0, or below it on less than half of the networks. Partly: anything between.
    """
    count = sum(one.value < 0 for one in differences)
    overall = mean(differences)
    words = f"{count} of {len(differences)} lower; mean {signed(overall)}"
    if overall.value > 0 or 2 * count < len(differences):
        return words, "does not hold"
    return words, "holds" if overall.interval[1] < 0 and 2 * count > len(differences) else "partly"


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
