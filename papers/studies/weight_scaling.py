"""Weight scaling (Frenkel & Goldberger 2022): tables 1–2, figures 1–2, and the paper's claims."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibrant.calibrators.bin_temperature import BinTemperatureScaling
from calibrant.calibrators.confidence_weight import ConfidenceWeightScaling
from calibrant.calibrators.registry import get
from calibrant.evaluation.bootstrap import Resamples, draw
from calibrant.metrics.ranking import rank_changes
from studies.measuring import (
    Figure,
    Measured,
    each,
    fit_and_measure,
    mean,
    percent,
    signed,
    with_spread,
)
from studies.networks import Network, read_networks
from studies.study import Claim, Study, Table, by_row, marked

N_BINS = 10
PUBLISHED_BINS = {"resnet50": 11, "densenet121": 12}
"""The number of bins behind the paper's tables, by network; any other network takes the number chosen from its val."""

GRID = np.arange(1, 101) / 10
"""Temperatures that the paper's tables try in every bin."""

TABLE = ("Uncalibrated", "TS", "VS", "MS", "WS", "CTS", "CWS")
EXTRA = ("TS by likelihood", "CWS, bins chosen", "WS, exact")
PAPER_ECE = {
    "resnet50": (2.14, 2.14, 2.00, 3.67, 2.13, 1.81, 1.67),
    "densenet121": (4.18, 4.18, 2.99, 3.49, 3.65, 3.20, 2.75),
}
PAPER_ADAPTIVE = {"resnet50": (2.15, 2.14, 1.95, 3.81, 2.12, 1.99, 1.69)}
KEEPING = ("TS", "WS", "CTS", "CWS")
"""Methods that the paper says cannot change a prediction."""

Fits = Mapping[str, Measured]


@dataclass(frozen=True)
class Gaps:
    """Mean confidence − accuracy of each class (K,), before and after CWS; NaN for a class without rows.

    change : the mean over classes of |after| − |before|.
    """

    before: np.ndarray
    after: np.ndarray
    change: Figure


@dataclass(frozen=True)
class Ranks:
    """Share of test pairs whose order of confidence each method reverses; confidences before, after TS, after WS."""

    share: dict[str, float]
    before: np.ndarray
    temperature: np.ndarray
    weight: np.ndarray


def run(folder: str | os.PathLike[str], *, resamples: int, seed: int, workers: int = 1) -> Study:
    """Fit every method on every network of the folder."""
    networks = read_networks(folder, "chestxray14")
    fits = dict(zip([one.name for one in networks], each(_fit, networks, workers, resamples, seed), strict=True))
    ranks = {name: ranks_of(fit) for name, fit in fits.items()}
    gaps = {}
    for network in networks:
        fit, drawn = fits[network.name], draw(len(network.test_labels), resamples, seed)
        for word, groups in (("label", network.test_labels), ("prediction", fit["Uncalibrated"].prediction)):
            gaps[f"{network.name} by {word}"] = gaps_of(groups, network.n_classes, fit, drawn)
    tables = (
        _error_table("Table 1: ECE in %, 10 bins", fits, "ece", PAPER_ECE),
        _error_table("Table 2: adaptive ECE in %, 10 bins", fits, "adaptive_ece", PAPER_ADAPTIVE),
        _rank_table(ranks),
    )
    claims = (*_table_claims(fits), *_error_claims(fits), *_rank_claims(ranks), *_gap_claims(gaps))
    return Study("weight_scaling", tables=tables, claims=claims, figures={"ranks": ranks, "gaps": gaps})


def methods(network: str) -> dict[str, Any]:
    """The columns of the paper's tables, and three rows of our own."""
    n_bins: Any = PUBLISHED_BINS.get(network, "auto")
    chosen = ConfidenceWeightScaling(n_bins="auto")
    return {
        "Uncalibrated": get("none"),
        "TS": get("ts-ece", n_bins=N_BINS),
        "VS": get("vs"),
        "MS": get("ms", penalty_off_diagonal=0.0, penalty_bias=0.0),
        "WS": get("ws"),
        "CTS": BinTemperatureScaling("gap", n_bins=15 if n_bins == "auto" else n_bins, grid=GRID),
        "CWS": ConfidenceWeightScaling(n_bins=n_bins),
        "TS by likelihood": get("ts"),
        "CWS, bins chosen": chosen,
        "WS, exact": get("ws", objective="adaptive_ece_l1"),
    }


def _fit(network: Network, resamples: int, seed: int) -> dict[str, Measured]:
    drawn = draw(len(network.test_labels), resamples, seed)
    # rounding to float32 alone reverses a few of 60 million pairs
    network = replace(network, test_logits=network.test_logits.astype(np.float64))
    chosen = methods(network.name)
    return {name: fit_and_measure(one, network, drawn, n_bins=N_BINS) for name, one in chosen.items()}


def ranks_of(fit: Fits) -> Ranks:
    """Reversed pairs of every method against the uncalibrated order."""
    before = fit["Uncalibrated"].confidence
    share = {name: rank_changes(before, one.confidence) for name, one in fit.items() if name != "Uncalibrated"}
    return Ranks(share, before, fit["TS by likelihood"].confidence, fit["WS"].confidence)


def gaps_of(groups: np.ndarray, n_classes: int, fit: Fits, drawn: Resamples) -> Gaps:
    """Confidence − accuracy of every class, before and after CWS, the rows grouped by label or by prediction."""
    seen = np.bincount(groups, minlength=n_classes) > 0
    onehot = np.eye(n_classes, dtype=np.float32)[drawn.take(groups)]
    weight = np.maximum(drawn.sums(onehot), 1.0)
    gaps, draws = [], []
    for name in ("Uncalibrated", "CWS"):
        column = fit[name].confidence - fit[name].correct
        sums, count = (np.bincount(groups, part, minlength=n_classes) for part in (column, np.ones(len(groups))))
        gaps.append(np.where(seen, sums / np.maximum(count, 1), np.nan))
        resampled = drawn.sums(onehot * drawn.take(column)[:, None].astype(np.float32)) / weight
        draws.append(np.abs(resampled[:, seen]).mean(axis=1))
    value = float(np.abs(gaps[1][seen]).mean() - np.abs(gaps[0][seen]).mean())
    difference = draws[1] - draws[0]
    return Gaps(gaps[0], gaps[1], Figure(value, value + difference - difference.mean()))


def _error_table(title: str, fits: Mapping[str, Fits], metric: str, paper: Mapping[str, tuple[float, ...]]) -> Table:
    names = (*TABLE, *EXTRA)
    columns, texts, values = [], [], []
    for name, fit in fits.items():
        columns.append(name)
        texts.append([with_spread(getattr(fit[one], metric)) for one in names] + [percent(fit["TS"].accuracy.value)])
        # only the paper's own methods compete for the marks
        values.append([100 * getattr(fit[one], metric).value for one in TABLE] + [float("nan")] * (len(EXTRA) + 1))
        if name in paper:
            columns.append(f"{name}, paper")
            texts.append([f"{value:.2f}" for value in paper[name]] + ["—"] * (len(EXTRA) + 1))
            values.append([*paper[name]] + [float("nan")] * (len(EXTRA) + 1))
    note = (
        "± standard deviation over bootstrap resamples of the test rows. **Lowest**, <u>second</u> among the paper's "
        "methods. CTS is here one temperature a confidence bin. The last three methods are not in the paper: the "
        "temperature of the best likelihood, the number of bins chosen on held-out rows, the exact minimiser of eq. 8."
    )
    return Table(title, tuple(columns), by_row([*names, "accuracy"], marked(values, texts)), note)


def _rank_table(ranks: Mapping[str, Ranks]) -> Table:
    names = list(next(iter(ranks.values())).share)
    columns = [[percent(one.share[name]) for name in names] for one in ranks.values()]
    note = "Test pairs whose order of confidence is not what it was before calibration, in % of all pairs."
    return Table("Figure 1: pairs put in another order", tuple(ranks), by_row(names, columns), note)


def _table_claims(fits: Mapping[str, Fits]) -> list[Claim]:
    claims = []
    for title, metric, paper in (("1", "ece", PAPER_ECE), ("2", "adaptive_ece", PAPER_ADAPTIVE)):
        for network in (name for name in paper if name in fits):
            ours = [round(100 * getattr(fits[network][one], metric).value, 2) for one in TABLE]
            off = {name: round(b - a, 2) for name, a, b in zip(TABLE, paper[network], ours, strict=True)}
            exact = [name for name, value in off.items() if abs(value) <= 0.02]
            other = ", ".join(f"{name} {value:+.2f}" for name, value in off.items() if abs(value) > 0.02)
            words = f"{len(exact)} of {len(off)} cells within 0.02" + (f"; off: {other}" if other else "")
            verdict = "holds" if len(exact) == len(off) else ("partly" if exact else "does not hold")
            claims.append(Claim(f"Table {title}, {network}: the printed figures", "printed", _minus(words), verdict))
    return claims


def _error_claims(fits: Mapping[str, Fits]) -> list[Claim]:
    best = [min(TABLE, key=lambda name: fit[name].ece.value) == "CWS" for fit in fits.values()]
    rivals = "; ".join(
        f"{signed(mean([fit['CWS'].ece - fit[name].ece for fit in fits.values()]))} to {name}" for name in TABLE[1:-1]
    )
    verdict = "holds" if all(best) else ("partly" if any(best) else "does not hold")
    words = f"lowest on {sum(best)} of {len(best)}; {rivals}"
    claims = [Claim("CWS has the lowest ECE (table 1)", "8 of 9", words, verdict)]
    difference = mean([fit["WS"].ece - fit["TS"].ece for fit in fits.values()])
    below = sum(fit["WS"].ece.value < fit["TS"].ece.value for fit in fits.values())
    verdict = "holds" if difference.interval[1] < 0 else ("partly" if difference.value < 0 else "does not hold")
    words = f"{below} of {len(fits)} lower; mean {signed(difference)}"
    claims.append(
        Claim(
            "WS has a lower ECE than TS in more than half of the cases", "5 of 9; ChestX-ray14 3 of 3", words, verdict
        )
    )
    temperatures = [fit["TS"].calibrator.temperature_ for fit in fits.values()]
    likely = [fit["TS by likelihood"].calibrator.temperature_ for fit in fits.values()]
    words = f"T = {_list(temperatures)}; by likelihood {_list(likely)}"
    verdict = "holds" if all(one == 1 for one in temperatures) else "does not hold"
    claim = "The temperature of lowest ECE is 1: TS does not calibrate at all"
    claims.append(Claim(claim, "T = 1 on ChestX-ray14", words, verdict))
    changed = {
        name: sum(int((fit[name].prediction != fit["Uncalibrated"].prediction).sum()) for fit in fits.values())
        for name in KEEPING
    }
    words = "predictions changed: " + ", ".join(f"{name} {count}" for name, count in changed.items())
    verdict = "does not hold" if any(changed.values()) else "holds"
    claims.append(Claim("TS, WS, CTS and CWS keep every prediction", "guaranteed", words, verdict))
    return [*claims, Claim("VS and MS change predictions, and may cost accuracy", "may", *_moved(fits))]


def _moved(fits: Mapping[str, Fits]) -> tuple[str, str]:
    words, moving = [], []
    for name in ("VS", "MS"):
        pairs = [(fit[name], fit["Uncalibrated"]) for fit in fits.values()]
        share = np.mean([(after.prediction != before.prediction).mean() for after, before in pairs])
        change = mean([after.accuracy - before.accuracy for after, before in pairs])
        words.append(f"{name} {percent(float(share))}% of predictions, accuracy {signed(change)} points")
        moving.append(share > 0)
    return "; ".join(words), "holds" if all(moving) else ("partly" if any(moving) else "does not hold")


def _rank_claims(ranks: Mapping[str, Ranks]) -> list[Claim]:
    def shares(name: str) -> str:
        return ", ".join(percent(one.share[name]) for one in ranks.values())

    still = all(one.share["WS"] == 0 for one in ranks.values())
    turned = [one.share["TS by likelihood"] > 0 for one in ranks.values()]
    return [
        Claim(
            "WS keeps the order of confidences between patients (figure 1)",
            "0% of pairs",
            f"WS {shares('WS')}%; CWS, whose weight changes from bin to bin, {shares('CWS')}%",
            "holds" if still else "does not hold",
        ),
        Claim(
            "TS reverses the order of some pairs (figure 1)",
            "3% of pairs (HAM10000)",
            f"{shares('TS by likelihood')}% by likelihood; {shares('TS')}% at the paper's own temperature",
            "holds" if all(turned) else ("partly" if any(turned) else "does not hold"),
        ),
    ]


def _gap_claims(gaps: Mapping[str, Gaps]) -> list[Claim]:
    claims = []
    for name, gap in gaps.items():
        seen = np.isfinite(gap.before)
        closer = seen & (np.abs(gap.after) < np.abs(gap.before))
        worse = seen & (np.abs(gap.after) > np.abs(gap.before))
        lowered = int((gap.after[worse] < gap.before[worse]).sum())
        words = (
            f"{closer.sum()} of {seen.sum()} closer; mean absolute gap {signed(gap.change)} points; "
            f"confidence lowered in {lowered} of the {worse.sum()} others"
        )
        most, down = 2 * closer.sum() > seen.sum(), lowered == worse.sum()
        clear = gap.change.interval[1] < 0
        verdict = "holds" if most and down and clear else ("partly" if most or down else "does not hold")
        claim = f"CWS improves most classes and lowers the confidence of the few others (figure 2): {name}"
        claims.append(Claim(claim, "most", words, verdict))
    return claims


def _list(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _minus(text: str) -> str:
    return text.replace("-", "−")
