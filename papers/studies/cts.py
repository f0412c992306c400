"""Class-wise temperature scaling (Frenkel & Goldberger 2021): tables I–III, figures 1–3, and the paper's claims."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibrant.calibrators.registry import get
from calibrant.core.bins import width_index
from calibrant.core.softmax import softmax
from calibrant.evaluation.bootstrap import draw
from studies.measuring import (
    ALMOST_ALL,
    Estimate,
    Measured,
    above_zero,
    below_zero,
    each,
    fit_and_measure,
    lower,
    lower_in,
    mean,
    measurements_of,
    mostly,
    name_all,
    percent,
    pooled,
    signed,
    with_spread,
)
from studies.networks import Network, one_of_most_classes, read_network, read_networks
from studies.study import Study, Table, by_row, marked
from verdicts import Claim, Count

TABLE_ONE = {"Uncalibrated": "none", "TS": "ts-ece", "CTS": "cts", "U-CTS": "u-cts"}
TABLE_THREE = {
    "Uncalibrated": "none", "TS": "ts-ece", "Vector scaling": "vs", "MS-ODIR": "ms", "Dir-ODIR": "dir", "CTS": "cts",
}  # fmt: skip
TABLE_FOUR = {
    "TS": ("ts-ece", {}), "TS by likelihood": ("ts", {}), "CTS": ("cts", {}), "CTS by likelihood": ("cts-nll", {}),
    "CTS, tolerance 0.2%": ("cts", {"accuracy_tolerance": 0.002}),
    "CTS, tolerance 0.5%": ("cts", {"accuracy_tolerance": 0.005}),
    "U-CTS": ("u-cts", {}), "Shrunken CTS": ("cts-shrunk", {}),
}  # fmt: skip
"""What lies between TS, CTS and U-CTS; not in the paper."""

CHOSEN = {"penalty_off_diagonal": "cv", "penalty_bias": "cv"}
"""Penalties of MS-ODIR and Dir-ODIR by cross-validation on the fit rows, as in the paper."""

BRIER = Path(__file__).parents[1] / "cts" / "networks"
"""Three seeds of a network trained with the Brier score in the soft-objectives study; they count as one network."""

CROSS_ENTROPY = "_ce"
"""End of the names of networks trained with cross entropy."""

BY_ECE = ("ts-ece", "cts", "u-cts")
"""Methods that minimise the ECE itself: over as many bins as the table counts."""

Fits = Mapping[str, Mapping[str, Measured]]
"""Fits by network and method."""

WIDE_BINS = 25


@dataclass(frozen=True)
class ClassFigures:
    """What figures 1–3 show of one network: test probabilities (n, K) before, after TS and after CTS."""

    network: str
    labels: np.ndarray
    probabilities: dict[str, np.ndarray]
    temperatures: np.ndarray
    single_temperature: float


def run(folder: str | os.PathLike[str], *, resamples: int, seed: int, workers: int = 1) -> Study:
    """Fit every method on every network of the folder."""
    networks = read_networks(folder, "zoo")
    if (Path(folder) / "zoo").is_dir():
        networks += [read_network(path) for path in sorted(BRIER.glob("*.npz"))]
    fits = dict(zip([one.name for one in networks], each(_fit, networks, workers, resamples, seed), strict=True))
    narrow = {name: fit[0] for name, fit in fits.items()}
    wide = {name: fit[1] for name, fit in fits.items()}
    ours = {name: fit[2] for name, fit in fits.items()}
    balanced = [network.name for network in networks if not network.long_tailed]
    shown = one_of_most_classes(networks)
    figures = _class_figures(shown, narrow[shown.name])
    claims = (
        *_claims(narrow, ours, balanced or list(narrow)),
        *_wide_claims(wide, balanced or list(wide)),
        *_class_claims(figures, resamples, seed),
        *_shrunken_claims(ours),
    )
    return Study(
        "cts",
        tables=(table_one(narrow), table_two(narrow), table_three(wide), table_four(ours)),
        claims=claims,
        figures={"classes": figures},
        measurements=measurements_of(claims),
    )


def _fit(network: Network, resamples: int, seed: int) -> tuple[dict[str, Measured], ...]:
    drawn = draw(len(network.test_labels), resamples, seed)
    narrow = {name: fit_and_measure(get(short), network, drawn) for name, short in TABLE_ONE.items()}
    narrow, wide = name_all(narrow, network.name), {}
    for name, short in TABLE_THREE.items():
        options = {"n_bins": WIDE_BINS} if short in BY_ECE else (CHOSEN if short in ("ms", "dir") else {})
        wide[name] = fit_and_measure(get(short, **options), network, drawn, n_bins=WIDE_BINS)
    ours = {
        name: narrow[name] if name in narrow else fit_and_measure(get(short, **options), network, drawn)
        for name, (short, options) in TABLE_FOUR.items()
    }
    added = {name: fit for name, fit in ours.items() if name not in narrow}
    wide = name_all(wide, f"{network.name}, {WIDE_BINS} bins")
    return narrow, wide, ours | name_all(added, network.name)


def by_network(
    fits: Fits, names: Iterable[str], value: Callable[[Mapping[str, Measured]], Estimate]
) -> dict[str, Estimate]:
    """One estimate per network, by name; the seeds of a network are averaged."""
    groups: dict[str, list[Estimate]] = {}
    seeds = {path.stem for path in BRIER.glob("*.npz")}
    for name in names:
        groups.setdefault("c10_resnet18h_brier" if name in seeds else name, []).append(value(fits[name]))
    return {name: mean(group) for name, group in groups.items()}


def over_networks(
    fits: Fits, names: Iterable[str], value: Callable[[Mapping[str, Measured]], Estimate]
) -> list[Estimate]:
    """One estimate per network."""
    return list(by_network(fits, names, value).values())


def table_one(fits: Fits) -> Table:
    """ECE before, after one temperature, after one a class."""
    names = ["Uncalibrated", "TS", "CTS"]
    values = [[100 * fit[name].ece.value for name in names] for fit in fits.values()]
    texts = [[with_spread(fit[name].ece) for name in names] for fit in fits.values()]
    for column, fit in zip(texts, fits.values(), strict=True):
        column[1] += f" (T = {fit['TS'].calibrator.temperature_:.1f})"
    return Table(
        "Table I: ECE in %, 15 bins",
        tuple(fits),
        by_row(names, marked(values, texts)),
        "± standard deviation over bootstrap resamples of the test rows. **Lowest**, <u>second</u> of each network.",
    )


def table_two(fits: Fits) -> Table:
    """CTS with and without its accuracy constraint."""
    names = ["CTS", "U-CTS"]
    values = [[100 * fit[name].ece.value for name in names] for fit in fits.values()]
    columns = marked(values, [[with_spread(fit[name].ece) for name in names] for fit in fits.values()])
    for column, fit in zip(columns, fits.values(), strict=True):
        before = fit["Uncalibrated"].accuracy
        column += [signed(fit[name].accuracy - before) for name in names]
    rows = ("CTS, ECE", "U-CTS, ECE", "CTS, accuracy difference", "U-CTS, accuracy difference")
    note = "ECE in %, test accuracy difference to the uncalibrated network in points with its paired 95% interval."
    return Table("Table II: with and without the accuracy constraint", tuple(fits), by_row(rows, columns), note)


def table_three(fits: Fits) -> Table:
    """CTS beside vector, matrix and Dirichlet scaling."""
    values = [[100 * fit[name].ece.value for name in TABLE_THREE] for fit in fits.values()]
    texts = [[with_spread(fit[name].ece) for name in TABLE_THREE] for fit in fits.values()]
    return Table(
        f"Table III: ECE in %, {WIDE_BINS} bins",
        tuple(fits),
        by_row(list(TABLE_THREE), marked(values, texts)),
        f"TS and CTS minimise the ECE over {WIDE_BINS} bins; the penalties of MS-ODIR and Dir-ODIR are chosen by "
        "cross-validation. **Lowest**, <u>second</u> of each network.",
    )


def table_four(fits: Fits) -> Table:
    """ECE, log loss and accuracy of what lies between TS, CTS and U-CTS, with the mean over networks."""
    columns = []
    for fit in fits.values():
        texts = [
            f"{percent(one.ece.value)} / {one.mean_nll.value:.4f} / {percent(one.accuracy.value)}"
            for one in (fit[name] for name in TABLE_FOUR)
        ]
        columns.append(marked([[100 * fit[name].ece.value for name in TABLE_FOUR]], [texts])[0])
    average = []
    for name in TABLE_FOUR:
        parts = [
            mean(over_networks(fits, fits, lambda fit, part=part, name=name: getattr(fit[name], part))).value
            for part in ("ece", "mean_nll", "accuracy")
        ]
        average.append(f"{percent(parts[0])} / {parts[1]:.4f} / {percent(parts[2])}")
    note = (
        "ECE in % / mean log loss / accuracy in %. A tolerance is the share of fit accuracy that the search may give "
        "away. Shrunken CTS: `cts-shrunk`, its rule chosen by cross-validation on the val sets. **Lowest**, "
        "<u>second</u> ECE."
    )
    names = (*fits, "mean")
    return Table("Between TS, CTS and U-CTS", names, by_row(list(TABLE_FOUR), [*columns, average]), note)


def _temperature_claims(fits: Fits, balanced: Sequence[str]) -> list[Claim]:
    """Section III writes of the temperature of the best likelihood, before other losses than cross entropy occur."""
    plain = [name for name in balanced if name.endswith(CROSS_ENTROPY)] or list(balanced)
    claims = []
    for names, about, paper in (
        (plain, "networks trained with cross entropy", "1.5–3 (section III)"),
        (balanced, "networks of all losses", "not claimed"),
    ):
        temperatures = by_network(
            fits, names, lambda fit: Estimate(float(fit["TS by likelihood"].calibrator.temperature_), np.zeros(1))
        )
        values = {name: round(one.value, 2) for name, one in temperatures.items()}
        words, judged = mostly(values, 1.5, 3.0)
        span = f"{min(values.values()):.2f}–{max(values.values()):.2f}; inside: {words}"
        claims.append(Claim(f"The likelihood temperature usually is between 1.5 and 3: {about}", paper, span, judged))
    return claims


def _claims(fits: Fits, ours: Fits, balanced: Sequence[str]) -> list[Claim]:
    def differences(names: Sequence[str], first: str, second: str, part: str = "ece") -> list[Estimate]:
        return over_networks(fits, names, lambda fit: getattr(fit[first], part) - getattr(fit[second], part))

    tailed = [name for name in fits if name not in balanced]
    gaps = by_network(fits, balanced, lambda fit: fit["CTS"].ece - fit["TS"].ece)
    claims = [
        Claim(
            "CTS has a lower ECE than TS in almost all cases (table I)", "33 of 36", *lower_in(gaps, ALMOST_ALL)
        ),
        Claim(
            "CTS has a lower ECE than TS on average over networks (section V)",
            "consistently better; mean of table I −1.15",
            *lower(list(gaps.values())),
        ),
    ]  # fmt: skip
    if tailed:
        claim = "CTS has a lower ECE than TS on networks fitted on a long-tailed val, tested balanced"
        claims.append(Claim(claim, "not studied", *lower(differences(tailed, "CTS", "TS"))))
    steps = {name: float(np.diff(fit["CTS"].calibrator.accuracy_trace_).min()) for name, fit in fits.items()}
    judged = Count(steps, least=0.0)
    words = f"never falls in {judged.within} of {len(steps)} fits"
    claims.append(Claim("CTS keeps the accuracy of the validation set", "guaranteed", words, judged))
    change = pooled(differences(balanced, "CTS", "Uncalibrated", "accuracy"))
    claim = "The test accuracy of CTS falls by less than a tenth of a point (margin of ours)"
    claims.append(Claim(claim, "not claimed", f"{signed(change)} points on average", above_zero(change, -0.001)))
    claims += _temperature_claims(ours, balanced)
    words, judged_mean = lower(differences(balanced, "U-CTS", "CTS"))
    claims.append(
        Claim("Without the constraint the ECE falls further (table II)", "22 of 36 lower", words, judged_mean)
    )
    loss = pooled(differences(balanced, "U-CTS", "Uncalibrated", "accuracy"))
    paper = "−2.1 points on average, −10.3 at worst"
    claims.append(
        Claim(
            "Without the constraint the test accuracy falls (table II)",
            paper,
            f"{signed(loss)} points",
            below_zero(loss),
        )
    )
    traces = {name: fit["CTS"].calibrator.ece_trace_ for name, fit in fits.items()}
    falls = {name: 100 * float(one[-2] - one[-1]) if len(one) > 5 else 0.0 for name, one in traces.items()}
    settled = Count(falls, most=1e-10)
    most = max(falls.values())
    words = f"{settled.within} of {len(falls)} settled; the 5th sweep lowers the fit ECE by ≤ {most:.3f} points"
    return [*claims, Claim("Five sweeps are enough", "all experiments", words, settled)]


def _wide_claims(fits: Fits, balanced: Sequence[str]) -> list[Claim]:
    claims = []
    for rival in ("TS", "Vector scaling", "MS-ODIR", "Dir-ODIR"):
        differences = over_networks(fits, balanced, lambda fit, rival=rival: fit["CTS"].ece - fit[rival].ece)
        claim = f"With 25 bins, CTS has a lower ECE than {rival} (table III, here CIFAR)"
        paper = "not on these data: lower on " + ("2 of 3, on a par on 1" if rival == "TS" else "3 of 3")
        claims.append(Claim(claim, paper, *lower(differences)))
    differences = over_networks(fits, balanced, lambda fit: fit["TS"].ece - fit["Vector scaling"].ece)
    claim = "With 25 bins, TS has a lower ECE than vector scaling (table III, here CIFAR)"
    return [*claims, Claim(claim, "not on these data: lower on 2 of 3", *lower(differences))]


def _shrunken_claims(fits: Fits) -> list[Claim]:
    """This project's method between TS and CTS, over all networks."""
    claims = []
    for rival in ("TS", "TS by likelihood", "CTS", "CTS by likelihood"):
        for word, part in (("ECE", "ece"), ("log loss", "mean_nll")):
            differences = over_networks(
                fits,
                fits,
                lambda fit, part=part, rival=rival: getattr(fit["Shrunken CTS"], part) - getattr(fit[rival], part),
            )
            printed = {} if part == "ece" else {"scale": 1.0, "places": 4}
            claim = f"Ours: shrunken CTS has a lower {word} than {rival}"
            claims.append(Claim(claim, "not studied", *lower(differences, **printed)))
    return claims


def _class_figures(network: Network, fit: dict[str, Measured]) -> ClassFigures:
    probabilities = {
        name: softmax(fit[name].calibrator.transform(network.test_logits)) for name in ("Uncalibrated", "TS", "CTS")
    }
    return ClassFigures(
        network.name,
        network.test_labels,
        probabilities,
        fit["CTS"].calibrator.temperatures_,
        float(fit["TS"].calibrator.temperature_),
    )


def _class_claims(figures: ClassFigures, resamples: int, seed: int) -> list[Claim]:
    """Figures 1 and 3 in numbers; intervals over resamples of the test rows."""
    probabilities, labels = figures.probabilities["Uncalibrated"], figures.labels
    whole = class_errors(probabilities, labels)
    generator = np.random.default_rng([seed, 11])
    picks = [generator.integers(0, len(labels), len(labels)) for _ in range(resamples)]
    drawn = [class_errors(probabilities[pick], labels[pick]) for pick in picks]

    def estimate(word: str, statistic: Callable[[ClassErrors], float]) -> tuple[Estimate, str]:
        value, draws = statistic(whole), np.array([statistic(one) for one in drawn])
        found = Estimate(value, value + np.round(draws - draws.mean(), 6)).named(f"{figures.network}/{word}")
        return found, "{:.2f} [{:.2f}, {:.2f}]".format(value, *found.interval).replace("-", "−")

    downhill, downhill_text = estimate("class accuracy and ECE", lambda one: _correlation(one.accuracy, one.ece))
    lowest, lowest_text = estimate("share of the lowest bin", lambda one: one.lowest_share)
    seen, name = "seen in the figure", figures.network
    return [
        Claim(
            "The higher the accuracy of a class, the lower its ECE (figure 1a)",
            seen,
            f"{name}: correlation {downhill_text}",
            below_zero(downhill, scale=1.0),
        ),
        Claim(
            "Under-confidence sits mainly in the lowest bin (figure 1d)",
            seen,
            f"{name}: {lowest_text} of it lies there; over all classes it equals the over-confidence by construction, "
            "as probabilities add up to 1",
            above_zero(lowest, 0.5, scale=1.0),
        ),
    ]


@dataclass(frozen=True)
class ClassErrors:
    """Accuracy and ECE of each class (K,), and the lowest bin's share of all under-confidence."""

    accuracy: np.ndarray
    ece: np.ndarray
    lowest_share: float


def class_errors(probabilities: np.ndarray, labels: np.ndarray, n_bins: int = 15) -> ClassErrors:
    """Σ_b |Σ(p_j − 1{y=j})|/n over the bins of each class (eq. 2–4 with n for n_j)."""
    n, n_classes = probabilities.shape
    cell = width_index(probabilities.ravel(), n_bins) + n_bins * np.tile(np.arange(n_classes), n)
    gaps = np.bincount(cell, probabilities.ravel(), minlength=n_classes * n_bins)
    own = width_index(probabilities[np.arange(n), labels], n_bins) + n_bins * labels
    gaps = ((gaps - np.bincount(own, minlength=n_classes * n_bins)) / n).reshape(n_classes, n_bins)
    count = np.bincount(labels, minlength=n_classes)
    hits = np.bincount(labels, probabilities.argmax(axis=1) == labels, minlength=n_classes)
    under = np.maximum(-gaps, 0)
    share = float(under[:, 0].sum() / max(under.sum(), 1e-300))
    return ClassErrors(hits / np.maximum(count, 1), np.abs(gaps).sum(axis=1), share)


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])
