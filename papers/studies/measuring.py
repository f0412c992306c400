"""Fit, measure, and compare two methods on the same resamples of the test rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from calibrant.core import progress
from calibrant.core.errors import FitWarning
from calibrant.evaluation.bootstrap import Resamples, percentile_interval
from calibrant.evaluation.scoring import chosen_metrics, column_rows, estimated
from calibrant.kernels.rows import scan
from studies.networks import Network
from verdicts import MEASURED, Claim, Count, Evidence, share

RESOLUTION = 1e-6
"""Of stored draws: 0.0001 points."""


@dataclass(frozen=True)
class Estimate:
    """A value and its draws (R,) over the resamples, recentred on it, since a resampled ECE is biased upwards.

    parts : per network, the weight of each measurement by name; a measurement has itself with weight 1
    measured : the measurements by name
    cases : the values of independent cases, for an interval that is not of measurements
    """

    value: float
    draws: np.ndarray
    df: float | None = None
    parts: tuple[Mapping[str, float], ...] = ()
    measured: Mapping[str, Estimate] = field(default_factory=dict, repr=False)
    cases: tuple[float, ...] = ()

    @property
    def spread(self) -> float:
        """Standard deviation over the resamples."""
        return float(self.draws.std())

    @property
    def interval(self) -> tuple[float, float]:
        """The central 95% of the draws, or the ends of a Student interval."""
        if self.df is not None:
            return float(self.draws[0]), float(self.draws[-1])
        return percentile_interval(self.draws, self.value)

    def named(self, name: str) -> Estimate:
        """The same as a measurement of this name."""
        return replace(self, parts=({name: 1.0},), measured={name: replace(self, parts=(), measured={})})

    def __sub__(self, other: Estimate) -> Estimate:
        return _combined([self, other], [1.0, -1.0])


@dataclass(frozen=True)
class Measured:
    """One fitted calibrator on the test rows; `settled` is False if the fit warned that it had not converged."""

    calibrator: Any
    ece: Estimate
    adaptive_ece: Estimate
    accuracy: Estimate
    confidence: np.ndarray
    prediction: np.ndarray
    correct: np.ndarray
    nll: np.ndarray
    settled: bool
    mean_nll: Estimate

    def named(self, name: str) -> Measured:
        """The same with each estimate named as a measurement."""
        parts = ("ece", "adaptive_ece", "accuracy", "mean_nll")
        return replace(self, **{part: getattr(self, part).named(f"{name}/{part}") for part in parts})


def name_all(fits: Mapping[str, Measured], prefix: str) -> dict[str, Measured]:
    """The fits of a network, named prefix/method."""
    return {name: fit.named(f"{prefix}/{name}") for name, fit in fits.items()}


def mean(estimates: Sequence[Estimate]) -> Estimate:
    """Mean, resample by resample."""
    return _combined(estimates, [1 / len(estimates)] * len(estimates))


def _combined(estimates: Sequence[Estimate], weights: Sequence[float]) -> Estimate:
    """Weighted sum, resample by resample, with its parts."""
    part: dict[str, float] = {}
    measured: dict[str, Estimate] = {}
    for one, weight in zip(estimates, weights, strict=True):
        for name, inner in (item for each_part in one.parts for item in each_part.items()):
            part[name] = part.get(name, 0.0) + weight * inner
        measured |= one.measured
    value = sum(weight * one.value for one, weight in zip(estimates, weights, strict=True))
    draws = sum(weight * one.draws for one, weight in zip(estimates, weights, strict=True))
    return Estimate(float(value), np.asarray(draws), parts=(part,) if part else (), measured=measured)


def fit_and_measure(calibrator: Any, network: Network, resamples: Resamples, *, n_bins: int = 15) -> Measured:
    """Fit on val, measure on test."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        calibrator.fit(network.val_logits, network.val_labels)
    settled = not any(issubclass(one.category, FitWarning) for one in caught)
    return measure(calibrator, network.test_logits, network.test_labels, resamples, n_bins=n_bins, settled=settled)


def measure(
    calibrator: Any, logits: np.ndarray, labels: np.ndarray, resamples: Resamples, *, n_bins: int = 15,
    settled: bool = True,
) -> Measured:  # fmt: skip
    """Measure a fitted calibrator on these rows."""
    columns = scan(calibrator.transform(logits), labels, from_logits=True, columns="scores")
    confidence, correct = columns.confidence, columns.correct
    rows = column_rows(columns, resamples, None, task="binary", of_logits=False)
    chosen = chosen_metrics(("ece", "adaptive_ece"), "binary")
    errors, draws, _ = estimated(chosen, rows, resamples, n_bins, paired=True)
    return Measured(
        calibrator,
        ece=_recentred(errors["ece"].value, draws["ece"]),
        adaptive_ece=_recentred(errors["adaptive_ece"].value, draws["adaptive_ece"]),
        accuracy=_row_mean(correct, resamples),
        confidence=confidence,
        prediction=columns.prediction,
        correct=correct,
        nll=columns.nll,
        settled=settled,
        mean_nll=_row_mean(columns.nll, resamples),
    )


def _row_mean(column: np.ndarray, resamples: Resamples) -> Estimate:
    rows = column[resamples.rows].astype(np.float64)[:, None]
    value = float(column.mean())
    return _rounded(value, resamples.mean_draws(rows, np.ones(len(rows)))[:, 0])


def _recentred(value: float, draws: np.ndarray) -> Estimate:
    return _rounded(value, draws - draws.mean())


def _rounded(value: float, deviations: np.ndarray) -> Estimate:
    """An estimate whose draws deviate from the value by multiples of RESOLUTION, as they are stored."""
    return Estimate(value, value + RESOLUTION * np.rint(deviations / RESOLUTION))


def store(estimates: Mapping[str, Estimate], path: Path) -> None:
    """Write values and draws by name, without dates, so that equal estimates give equal files."""
    names = sorted(estimates)
    values = np.array([estimates[name].value for name in names])
    deviations = np.array([estimates[name].draws - estimates[name].value for name in names])
    np.savez_compressed(
        path,
        names=np.array(names),
        values=np.round(values, 9),
        deviations=np.rint(deviations / RESOLUTION).astype(np.int32),
    )


def read_measurements(path: Path) -> dict[str, Estimate]:
    """The estimates of a file, by name."""
    with np.load(path) as file:
        draws = file["values"][:, None] + RESOLUTION * file["deviations"]
        named = zip(file["names"].tolist(), file["values"].tolist(), draws, strict=True)
        return {name: Estimate(value, drawn) for name, value, drawn in named}


def percent(value: float) -> str:
    """A fraction as percent with two places."""
    return f"{100 * value:.2f}"


def signed(estimate: Estimate, *, scale: float = 100.0, places: int = 2) -> str:
    """A difference in points with its interval: −0.41 [−0.60, −0.22]."""
    return str(evidence(estimate, "below", scale=scale, places=places))


def with_spread(estimate: Estimate) -> str:
    """An estimate in percent and its spread over the resamples."""
    return f"{percent(estimate.value)} ± {percent(estimate.spread)}"


def evidence(
    estimate: Estimate, side: str, margin: float = 0.0, *, scale: float = 100.0, places: int = 2, cases: str = ""
) -> Evidence:
    """The evidence for a claim in printed units; the margin is in units of the estimate.

    Raw values of cases have one more place than the interval, and the interval is computed from these: digits that no
    print shows, in which processors differ, are not stored and decide nothing.
    """
    if estimate.cases and not estimate.measured:
        estimate = over_cases(np.round(scale * np.array(estimate.cases), places + 1) / scale)
    low, high = estimate.interval
    ends = (scale * one for one in (estimate.value, low, high))
    source = _source(estimate, scale, places)
    return Evidence(
        *ends, side=side, margin=scale * margin, places=places, df=estimate.df, cases=cases, source=source
    )  # fmt: skip


def _source(estimate: Estimate, scale: float, places: int) -> dict[str, Any]:
    """The measurements of each network with their weights, or the values of the cases."""
    if estimate.measured:
        parts = [{name: round(weight, 9) for name, weight in part.items()} for part in estimate.parts]
        return {"interval": "networks", "scale": scale, "networks": parts, MEASURED: estimate.measured}
    return {"interval": "student", "values": [round(scale * value, places + 1) for value in estimate.cases]}


def below_zero(estimate: Estimate, margin: float = 0.0, **printed: Any) -> Evidence:
    """Evidence for "it is below the margin" (0 unless given)."""
    return evidence(estimate, "below", margin, **printed)


def above_zero(estimate: Estimate, margin: float = 0.0, **printed: Any) -> Evidence:
    """Evidence for "it is above the margin"."""
    return evidence(estimate, "above", margin, **printed)


Differences = Sequence[Estimate] | Sequence[Sequence[Estimate]]
"""One per network, or several per network."""


def pooled(differences: Differences) -> Estimate:
    """Mean over networks; from three networks on, its interval is at least Student's over them.

    Networks vary more than resamples of the test rows of one network do, and a claim is about networks.
    """
    networks = [one if isinstance(one, Estimate) else mean(one) for one in differences]
    found = replace(mean(networks), parts=tuple(part for one in networks for part in one.parts))
    if len(networks) < 3:
        return found
    varied = over_cases(np.array([one.value for one in networks]))
    wider = varied if np.ptp(varied.interval) >= np.ptp(found.interval) else found
    return replace(wider, parts=found.parts, measured=found.measured)


def lower(differences: Differences, **printed: Any) -> tuple[str, Evidence]:
    """How often and by how much the first of two methods is lower, and the evidence for "it is lower on average"."""
    return _counted(differences, "below", "lower", printed)


def higher(differences: Differences, **printed: Any) -> tuple[str, Evidence]:
    """How often and by how much the first of two methods is higher, and the evidence for "it is higher on average"."""
    return _counted(differences, "above", "higher", printed)


def _counted(differences: Differences, side: str, word: str, printed: dict[str, Any]) -> tuple[str, Evidence]:
    single = [one for some in differences for one in ([some] if isinstance(some, Estimate) else some)]
    count = sum(one.value < 0 if side == "below" else one.value > 0 for one in single)
    judged = evidence(pooled(differences), side, cases=f"{count} of {len(single)}", **printed)
    return f"{judged.cases} {word}; mean {judged}", judged


def over_cases(values: np.ndarray) -> Estimate:
    """The mean of independent cases (repeats, networks) with Student's interval."""
    value = float(values.mean())
    if len(values) < 2:
        return Estimate(value, np.array([-np.inf, value, np.inf]), df=1, cases=tuple(values))
    error = values.std(ddof=1) / np.sqrt(len(values))
    reach = float(error * student.ppf(0.975, len(values) - 1))
    draws = np.array([value - reach, value, value + reach])
    return Estimate(value, draws, df=len(values) - 1, cases=tuple(map(float, values)))


MOST, ALMOST_ALL = 50.0, 89.0
"""Shares in percent above which cases are "most" and "almost all"; both papers that write the latter have 8 of 9 or
more (8 of 9 and 33 of 36)."""


def mostly(cases: Mapping[str, float], low: float, high: float, margin: float = MOST) -> tuple[str, Evidence]:
    """The share of cases in [low, high] with its Wilson interval: evidence for a share above the margin."""
    words, judged = share(sum(low <= value <= high for value in cases.values()), len(cases), margin)
    source = {"interval": "wilson", "values": dict(cases), "least": low, "most": high}
    return words, replace(judged, source=source)


def lower_in(
    differences: Mapping[str, Estimate], margin: float, *, scale: float = 100.0, places: int = 2
) -> tuple[str, Evidence]:
    """The share of cases in which the first of two methods is lower, from measurements of each case."""
    values = {name: round(scale * one.value, places + 1) for name, one in differences.items()}
    words, judged = mostly(values, -scale, -(10.0 ** -(places + 1)), margin)
    parts = {name: _weights(one) for name, one in differences.items()}
    measured = {name: one for some in differences.values() for name, one in some.measured.items()}
    about = {"measurements": parts, "scale": scale, "places": places + 1, MEASURED: measured}
    return words, replace(judged, source=judged.source | about)


def count_measured(
    estimates: Mapping[str, Estimate], least: float, most: float, *, printed: Mapping[str, float], places: int = 2
) -> Count:
    """Measurements in percent, rounded to the printed places, minus the printed values."""
    values = {
        name: round(round(100 * one.value, places) - printed[name], places) + 0.0 for name, one in estimates.items()
    }
    parts = {name: _weights(one) for name, one in estimates.items()}
    measured = {name: one for some in estimates.values() for name, one in some.measured.items()}
    about = {"measurements": parts, "scale": 100.0, "places": places, "printed": dict(printed)}
    return Count(values, least, most, source={**about, MEASURED: measured})


def _weights(estimate: Estimate) -> dict[str, float]:
    """The weight of each measurement in an estimate of one case."""
    (part,) = estimate.parts
    return {name: round(weight, 9) for name, weight in part.items()}


def measurements_of(claims: Sequence[Claim]) -> dict[str, Estimate]:
    """The measurements that claims are computed from, by name."""
    found: dict[str, Estimate] = {}
    for claim in claims:
        if claim.judged is not None:
            found |= claim.judged.source.get(MEASURED, {})
    return found


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
