"""Weight scaling (Frenkel & Goldberger 2022): tables 1–2, figures 1–2, and the paper's claims."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibrant.calibrators.binning import BinTemperatureScaling, ConfidenceWeightScaling
from calibrant.calibrators.registry import get
from calibrant.core.errors import FitWarning
from calibrant.evaluation.bootstrap import Resamples, draw
from calibrant.metrics import ece
from calibrant.metrics.selective import rank_changes
from studies.measuring import (
    ALMOST_ALL,
    MOST,
    Estimate,
    Measured,
    above_zero,
    below_zero,
    count_measured,
    each,
    fit_and_measure,
    lower,
    lower_in,
    mean,
    measurements_of,
    mostly,
    name_all,
    over_cases,
    percent,
    signed,
    with_spread,
)
from studies.networks import Network, read_networks
from studies.study import Study, Table, by_row, marked
from verdicts import FAILS, HOLDS, Claim, Count

N_BINS = 10
PUBLISHED_BINS = {"resnet50": 11, "densenet121": 12}
"""The number of bins behind the paper's tables, by network; any other network takes the number chosen from its val."""

GRID = np.arange(1, 101) / 10
"""Temperatures that the paper's tables try in every bin."""

TABLE = ("Uncalibrated", "TS", "VS", "MS", "WS", "CTS", "CWS")
EXTRA = ("BTS", "TS by likelihood", "CWS, bins chosen", "CWS, rising weights", "WS, exact")
PAPER_ECE = {
    "resnet50": (2.14, 2.14, 2.00, 3.67, 2.13, 1.81, 1.67),
    "densenet121": (4.18, 4.18, 2.99, 3.49, 3.65, 3.20, 2.75),
}
PAPER_ADAPTIVE = {"resnet50": (2.15, 2.14, 1.95, 3.81, 2.12, 1.99, 1.69)}
PAPER_ACCURACY = {"resnet50": 52.7, "densenet121": 52.3}
BIN_NUMBERS = tuple(range(2, 41))
FEW_ROWS, REPEATS = (100, 200, 500, 1000, 2000), 5
FEW_METHODS = ("none", "TS by likelihood", "VS", "MS", "WS", "CWS", "CWS, bins chosen")
RIDGE = 1e-3
"""Of MS on few rows: without it the optimum lies at infinity, and the last bit of a logit decides where a fit stops."""
CLOSE = 0.02
"""Points within which a printed ECE comes out: one row of 11,212 in another bin changes an ECE by up to 0.02."""

FIGURE_2 = "resnet50"
"""The network of the paper's figure 2."""

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
    change: Estimate


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
    results = dict(zip([one.name for one in networks], each(_fit, networks, workers, resamples, seed), strict=True))
    fits, by_bins, few = ({name: result[place] for name, result in results.items()} for place in range(3))
    ranks = {name: ranks_of(fit) for name, fit in fits.items()}
    gaps = {}
    for network in networks:
        fit, drawn = fits[network.name], draw(len(network.test_labels), resamples, seed)
        for word, groups in (("label", network.test_labels), ("prediction", fit["Uncalibrated"].prediction)):
            name = f"{network.name} by {word}"
            gaps[name] = gaps_of(name, groups, network.n_classes, fit, drawn)
    tables = (
        _error_table("Table 1: ECE in %, 10 bins", fits, "ece", PAPER_ECE),
        _error_table("Table 2: adaptive ECE in %, 10 bins", fits, "adaptive_ece", PAPER_ADAPTIVE),
        _bins_table(by_bins),
        _few_rows_table(few),
        _rank_table(ranks),
    )
    claims = (
        *_table_claims(fits),
        *_error_claims(fits),
        *_bins_claims(fits, by_bins),
        *_few_rows_claims(few),
        *_rank_claims(ranks),
        *_gap_claims(gaps),
    )
    figures = {"ranks": ranks, "gaps": gaps}
    return Study("weight_scaling", tables, claims, figures=figures, measurements=measurements_of(claims))


def methods(network: str) -> dict[str, Any]:
    """The columns of the paper's tables, and four rows of our own."""
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
        "BTS": BinTemperatureScaling("nll", n_bins=15 if n_bins == "auto" else n_bins),
        "TS by likelihood": get("ts"),
        "CWS, bins chosen": chosen,
        "CWS, rising weights": ConfidenceWeightScaling(n_bins=15 if n_bins == "auto" else n_bins, monotone=True),
        "WS, exact": get("ws", objective="adaptive_ece_l1"),
    }


def _fit(network: Network, resamples: int, seed: int) -> tuple[Any, Any, Any]:
    drawn = draw(len(network.test_labels), resamples, seed)
    # rounding to float32 alone reverses a few of 60 million pairs
    network = replace(network, test_logits=network.test_logits.astype(np.float64))
    chosen = methods(network.name)
    fits = {name: fit_and_measure(one, network, drawn, n_bins=N_BINS) for name, one in chosen.items()}
    fits = name_all(fits, network.name)
    by_bins = {n_bins: _fit_bins(network, drawn, n_bins) for n_bins in BIN_NUMBERS}
    return fits, by_bins, few_rows(network, seed)


def _fit_bins(network: Network, drawn: Resamples, n_bins: int) -> dict[str, Measured]:
    """The methods of table 1 that have bins, with this many."""
    given = {
        "CWS": ConfidenceWeightScaling(n_bins=n_bins),
        "CWS, rising": ConfidenceWeightScaling(n_bins=n_bins, monotone=True),
        "CTS": BinTemperatureScaling("gap", n_bins=n_bins, grid=GRID),
    }
    fits = {name: fit_and_measure(one, network, drawn, n_bins=N_BINS) for name, one in given.items()}
    return name_all(fits, f"{network.name}, M = {n_bins}")


def few_rows(network: Network, seed: int) -> dict[int, dict[str, np.ndarray]]:
    """Test ECE (repeats,) of each method fitted on n random val rows, for several n."""
    generator = np.random.default_rng([seed, 5])
    found: dict[int, dict[str, np.ndarray]] = {}
    for n in (one for one in FEW_ROWS if one <= len(network.val_labels)):
        errors: dict[str, list[float]] = {name: [] for name in FEW_METHODS}
        for _ in range(REPEATS):
            pick = generator.choice(len(network.val_labels), n, replace=False)
            for name in FEW_METHODS:
                errors[name].append(_error_of(name, network, pick))
        found[n] = {name: np.array(values) for name, values in errors.items()}
    return found


def _error_of(name: str, network: Network, pick: np.ndarray) -> float:
    calibrator = {
        "none": lambda: get("none"),
        "TS by likelihood": lambda: get("ts"),
        "VS": lambda: get("vs"),
        "MS": lambda: get("ms", penalty_off_diagonal=RIDGE, penalty_bias=RIDGE),
        "WS": lambda: get("ws"),
        "CWS": lambda: ConfidenceWeightScaling(n_bins=N_BINS),
        "CWS, bins chosen": lambda: ConfidenceWeightScaling(n_bins="auto"),
    }[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        calibrator.fit(network.val_logits[pick], network.val_labels[pick])
    probabilities = calibrator.predict_proba(network.test_logits)
    return float(ece(probabilities, network.test_labels, n_bins=N_BINS))


def ranks_of(fit: Fits) -> Ranks:
    """Reversed pairs of every method against the uncalibrated order."""
    before = fit["Uncalibrated"].confidence
    share = {name: rank_changes(before, one.confidence) for name, one in fit.items() if name != "Uncalibrated"}
    return Ranks(share, before, fit["TS by likelihood"].confidence, fit["WS"].confidence)


def gaps_of(name: str, groups: np.ndarray, n_classes: int, fit: Fits, drawn: Resamples) -> Gaps:
    """Confidence − accuracy of every class, before and after CWS, the rows grouped by label or by prediction."""
    seen = np.bincount(groups, minlength=n_classes) > 0
    onehot = np.eye(n_classes, dtype=np.float32)[groups[drawn.rows]]
    weight = np.maximum(drawn.sums(onehot), 1.0)
    gaps, draws = [], []
    for method in ("Uncalibrated", "CWS"):
        column = fit[method].confidence - fit[method].correct
        sums, count = (np.bincount(groups, part, minlength=n_classes) for part in (column, np.ones(len(groups))))
        gaps.append(np.where(seen, sums / np.maximum(count, 1), np.nan))
        resampled = drawn.sums(onehot * column[drawn.rows][:, None].astype(np.float32)) / weight
        draws.append(np.abs(resampled[:, seen]).mean(axis=1))
    value = float(np.abs(gaps[1][seen]).mean() - np.abs(gaps[0][seen]).mean())
    difference = draws[1] - draws[0]
    change = Estimate(value, value + np.round(difference - difference.mean(), 6))
    return Gaps(gaps[0], gaps[1], change.named(f"{name}/class gap"))


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
            accuracy = f"{PAPER_ACCURACY[name]:.1f}" if name in PAPER_ACCURACY else "—"
            texts.append([f"{value:.2f}" for value in paper[name]] + ["—"] * len(EXTRA) + [accuracy])
            values.append([*paper[name]] + [float("nan")] * (len(EXTRA) + 1))
    note = (
        "± standard deviation over bootstrap resamples of the test rows. **Lowest**, <u>second</u> among the paper's "
        "methods. CTS is here one temperature per confidence bin. BTS is the same by "
        "likelihood (Ji et al. 2019). The last four methods are not in the paper: the "
        "temperature of the best likelihood, the number of bins chosen on held-out rows, weights that never fall from "
        "bin to bin, the exact minimiser of eq. 8."
    )
    return Table(title, tuple(columns), by_row([*names, "accuracy"], marked(values, texts)), note)


def _rank_table(ranks: Mapping[str, Ranks]) -> Table:
    names = list(next(iter(ranks.values())).share)
    columns = [[percent(one.share[name]) for name in names] for one in ranks.values()]
    note = "Test pairs whose order of confidence is not what it was before calibration, in % of all pairs."
    return Table("Figure 1: pairs put in another order", tuple(ranks), by_row(names, columns), note)


def _bins_table(by_bins: Mapping[str, Mapping[int, Fits]]) -> Table:
    columns, texts = [], []
    for network, fits in by_bins.items():
        for name in next(iter(fits.values())):
            columns.append(f"{network}, {name}")
            texts.append(
                [f"{percent(one[name].ece.value)} / {percent(one[name].adaptive_ece.value)}" for one in fits.values()]
            )
    rows = [f"M = {n_bins}" for n_bins in next(iter(by_bins.values()))]
    note = (
        "ECE / adaptive ECE in %, 10 bins, of the methods that have bins, over the number M of their bins. The paper "
        "does not say its M. The printed figures are 1.67 and 2.75 (CWS), 1.81 and 3.20 (CTS)."
    )
    return Table("Over the number of bins", tuple(columns), by_row(rows, texts), note)


def _few_rows_table(few: Mapping[str, Mapping[int, Mapping[str, np.ndarray]]]) -> Table:
    columns, texts = [], []
    for network, sizes in few.items():
        for n, errors in sizes.items():
            columns.append(f"{network}, n = {n}")
            texts.append(
                [f"{percent(errors[name].mean())} ± {percent(errors[name].std(ddof=1))}" for name in FEW_METHODS]
            )
            texts[-1] = marked([[100 * float(errors[name].mean()) for name in FEW_METHODS]], [texts[-1]])[0]
    note = (
        f"Test ECE in %, mean ± standard deviation over {REPEATS} random subsets of n val rows. MS with a ridge of "
        f"{RIDGE:g}: without one its optimum lies at infinity for few rows, and its figures depend on where the fit "
        "stops."
    )
    return Table("Fitted on few rows", tuple(columns), by_row(list(FEW_METHODS), texts), note)


def _table_claims(fits: Mapping[str, Fits]) -> list[Claim]:
    claims = []
    for title, metric, paper in (("1", "ece", PAPER_ECE), ("2", "adaptive_ece", PAPER_ADAPTIVE)):
        for network in (name for name in paper if name in fits):
            ours = {name: getattr(fits[network][name], metric) for name in TABLE}
            printed = dict(zip(TABLE, paper[network], strict=True))
            judged = count_measured(ours, -CLOSE, CLOSE, printed=printed)
            other = ", ".join(f"{name} {value:+.2f}" for name, value in judged.values.items() if abs(value) > CLOSE)
            words = f"{judged.within} of {len(ours)} cells within {CLOSE}" + (f"; off: {other}" if other else "")
            claim = f"Table {title}, {network}: all printed values come out within {CLOSE} points"
            claims.append(Claim(claim, "printed", _minus(words), judged))
    known = [name for name in PAPER_ACCURACY if name in fits]
    if known:
        accuracies = {name: fits[name]["Uncalibrated"].accuracy for name in known}
        words = ", ".join(
            f"{name} {percent(one.value)} (printed {PAPER_ACCURACY[name]})" for name, one in accuracies.items()
        )
        # no fit is involved, so that the printed decimal has to be equal
        judged = count_measured(accuracies, 0, 0, printed=PAPER_ACCURACY, places=1)
        claims.append(Claim("Table 1: the accuracies come out to the printed decimal", "52.7, 52.3", words, judged))
    return claims


def _error_claims(fits: Mapping[str, Fits]) -> list[Claim]:
    best = {name: min((fit[one] for one in TABLE[:-1]), key=lambda one: one.ece.value) for name, fit in fits.items()}
    gaps = {name: fit["CWS"].ece - best[name].ece for name, fit in fits.items()}
    claim = "CWS has the lowest ECE of all methods in almost all cases (table 1)"
    claims = [Claim(claim, "8 of 9", *lower_in(gaps, ALMOST_ALL))]
    for name in TABLE[1:-1]:
        words, verdict = lower([fit["CWS"].ece - fit[name].ece for fit in fits.values()])
        claims.append(Claim(f"CWS has a lower ECE than {name} (table 1)", "lowest on 8 of 9", words, verdict))
    words, verdict = lower([fit["CTS"].ece - fit["BTS"].ece for fit in fits.values()])
    claims.append(Claim("CTS has a lower ECE than BTS (section 3)", "consistently better, no values", words, verdict))
    paper, gaps = "5 of 9; ChestX-ray14 3 of 3", {name: fit["WS"].ece - fit["TS"].ece for name, fit in fits.items()}
    claims.append(Claim("WS has a lower ECE than TS in more than half of the cases", paper, *lower_in(gaps, MOST)))
    claim = "WS has a lower ECE than TS on average over the networks"
    claims.append(Claim(claim, f"not claimed: {paper}", *lower(list(gaps.values()))))
    temperatures = [fit["TS"].calibrator.temperature_ for fit in fits.values()]
    likely = [fit["TS by likelihood"].calibrator.temperature_ for fit in fits.values()]
    changes = {name: fit["TS"].ece - fit["Uncalibrated"].ece for name, fit in fits.items()}
    judged = count_measured(changes, 0, 0, printed=dict.fromkeys(fits, 0.0), places=4)
    words = f"T = {_list(temperatures)}; ECE changes by {_list(list(judged.values.values()))}"
    words += f"; by likelihood T = {_list(likely)}"
    claim = "TS by the ECE does not calibrate at all, its temperature is 1"
    claims.append(Claim(claim, "T = 1 on ChestX-ray14", words, judged))
    changed = {
        name: sum(int((fit[name].prediction != fit["Uncalibrated"].prediction).sum()) for fit in fits.values())
        for name in KEEPING
    }
    words = "predictions changed: " + ", ".join(f"{name} {count}" for name, count in changed.items())
    claims.append(Claim("TS, WS, CTS and CWS keep all predictions", "guaranteed", words, Count(changed, 0, 0)))
    for name in ("VS", "MS"):
        pairs = [(fit[name], fit["Uncalibrated"]) for fit in fits.values()]
        share = np.mean([(after.prediction != before.prediction).mean() for after, before in pairs])
        change = mean([after.accuracy - before.accuracy for after, before in pairs])
        words = f"{percent(float(share))}% of predictions changed; accuracy {signed(change)} points"
        claims.append(Claim(f"{name} costs accuracy", "not claimed", words, below_zero(change)))
    return claims


def _bins_claims(fits: Mapping[str, Fits], by_bins: Mapping[str, Mapping[int, Fits]]) -> list[Claim]:
    """Whether the order of table 1 depends on the number of bins, which the paper does not print."""
    claims = []
    for rival in ("TS", "WS", "CTS"):
        parts = []
        for n_bins in BIN_NUMBERS:
            others = {name: by_bins[name][n_bins]["CTS"] if rival == "CTS" else fits[name][rival] for name in fits}
            parts.append(mean([by_bins[name][n_bins]["CWS"].ece - others[name].ece for name in fits]))
        sure = sum(below_zero(one).verdict == HOLDS for one in parts)
        best = min(parts, key=lambda one: one.value)
        worst = max(parts, key=lambda one: one.value)
        words = f"lower beyond noise for {sure} of {len(parts)} M; from {signed(best)} to {signed(worst)}"
        # for every M: the least favourable one decides, and only where even the best is worse does it fail
        judged = below_zero(best if below_zero(best).verdict == FAILS else worst)
        judged = replace(judged, cases=f"{sure} of {len(parts)}")
        claims.append(Claim(f"CWS has a lower ECE than {rival}, whatever M (2 to 40)", "not claimed", words, judged))
    return claims


def _few_rows_claims(few: Mapping[str, Mapping[int, Mapping[str, np.ndarray]]]) -> list[Claim]:
    claims = []
    for name in ("VS", "MS", "CWS"):
        for n in (min(FEW_ROWS), max(FEW_ROWS)):
            pairs = [sizes[n][name] - sizes[n]["WS"] for sizes in few.values() if n in sizes]
            if not pairs:
                continue
            figure = over_cases(np.mean(pairs, axis=0))
            words = f"{name} − WS: {signed(figure)}"
            claim = f"Ours: with {n} fit rows WS has a lower ECE than {name}"
            claims.append(Claim(claim, "not studied", words, above_zero(figure)))
    return claims


def _rank_claims(ranks: Mapping[str, Ranks]) -> list[Claim]:
    def shares(name: str) -> str:
        return ", ".join(percent(one.share[name]) for one in ranks.values())

    def count(name: str) -> Count:
        return Count({network: one.share[name] for network, one in ranks.items()}, 0, 0)

    claim = "WS keeps the order of confidences between patients (figure 1)"
    return [
        Claim(claim, "0% of pairs", f"{shares('WS')}% of pairs reversed", count("WS")),
        Claim(
            "CWS keeps the order of confidences between patients",
            "not claimed",
            f"{shares('CWS')}% of pairs reversed",
            count("CWS"),
        ),
        Claim(
            "Ours: CWS with rising weights keeps the order of confidences between patients",
            "not studied",
            f"{shares('CWS, rising weights')}% of pairs reversed",
            count("CWS, rising weights"),
        ),
    ]


def _gap_claims(gaps: Mapping[str, Gaps]) -> list[Claim]:
    claims = []
    for name, gap in gaps.items():
        seen = np.isfinite(gap.before)
        change = 100 * (np.abs(gap.after) - np.abs(gap.before))
        cases = {f"class {place}": round(float(change[place]), 3) for place in np.flatnonzero(seen)}
        words, judged = mostly(cases, -100.0, -0.001)
        words = f"{words} closer; mean absolute gap {signed(gap.change)} points"
        paper = "most of 15" if name.startswith(FIGURE_2) else "not on this network: most of 15 (ResNet-50)"
        claim = f"CWS brings most classes closer to their accuracy (figure 2): {name}"
        claims.append(Claim(claim, paper, words, judged))
    return claims


def _list(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _minus(text: str) -> str:
    return text.replace("-", "−")
