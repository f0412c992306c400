"""The claims of the paper's figures and smaller tables, with the intervals of `claims.py`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import shapes
from claims import (
    BRIER,
    CE,
    FOCAL,
    HALF,
    SOFT_AVUC,
    SOFT_ECE,
    Check,
    Judged,
    MissingRowError,
    Runs,
    Sample,
    arrow,
    between,
    ece2,
    pick,
    severity,
    soft_scaling_under_shift,
    strongest,
    student_mean,
    within,
)
from scipy.stats import norm

from verdicts import HOLDS, Evidence, share

RESULTS = Path(__file__).parent / "results"
SOFT = ("soft_avuc", "soft_ece")
PRIMARY = ("cross_entropy", "focal", "brier")
SECONDARY = ("none", "mmce_weighted", "avuc", "avuc_gs", *SOFT)

CELLS = tuple(f"{primary}+{secondary}" for primary in PRIMARY for secondary in SECONDARY)
"""The 18 cells of the paper's table 2; interleaved rows and rows with their own λ are not among them."""


def lowest_under_shift(rows: Runs) -> Judged:
    """Soft AvUC against the better of none and soft ECE, all with cross entropy, over all severities (figure 8)."""
    others = {name: severity(rows, f"cross_entropy+{name}", "*") for name in ("none", "soft_ece")}
    best = min(others, key=lambda name: statistics.mean(others[name]))
    second = severity(rows, "cross_entropy+soft_avuc", "*")
    difference = between(others[best], second)
    return f"best other is {best}: {arrow(others[best], second, difference)}", difference.below()


def best_cell(rows: Runs) -> Judged:
    """The best cell with a soft loss against the best without, over all primary losses (figure 5)."""
    errors = {cell: ece2(rows, cell) for cell in CELLS}
    soft = min((cell for cell in CELLS if cell.endswith(SOFT)), key=lambda cell: statistics.mean(errors[cell]))
    hard = min((cell for cell in CELLS if not cell.endswith(SOFT)), key=lambda cell: statistics.mean(errors[cell]))
    difference = between(errors[hard], errors[soft])
    return f"{hard} → {soft}: {arrow(errors[hard], errors[soft], difference)}", difference.below()


def over_confidence(rows: Runs, row: str) -> Sample:
    """Confidence − accuracy of each seed, in points."""
    confidence, accuracy = (pick(rows, row, f"test/none/{key}") for key in ("confidence", "accuracy"))
    values = [a - b for a, b in zip(confidence, accuracy, strict=True)]
    return Sample(values, confidence.source | {"minus": accuracy.source["path"]})


def mean_confidence_gap(rows: Runs, row: str, *, over: bool) -> Judged:
    """Is the row over-confident (under-confident) on average?"""
    difference = within(*(pick(rows, row, f"test/none/{key}") for key in ("accuracy", "confidence")))
    return f"confidence − accuracy {difference}", difference.above() if over else difference.below()


def less_sure(rows: Runs, before: str, after: str) -> Judged:
    """Does the second row have less over-confidence?"""
    first, second = over_confidence(rows, before), over_confidence(rows, after)
    difference = between(first, second)
    return arrow(first, second, difference), difference.below()


def both_signs(rows: Runs) -> Judged:
    """Has Brier both an over-confident and an under-confident bin of confidence (figure 10)?

    The gap of a bin is the mean over the seeds; its standard error is binomial, of the rows of one seed, since all
    seeds have the same test rows. The bins with the lowest and the highest gap in standard errors are judged by 95%
    intervals with Bonferroni's correction for all bins, and the claim by the less certain of both.
    """
    if BRIER not in rows:
        raise MissingRowError(BRIER)
    gap, error = bin_gaps([run["test"]["none"]["reliability"] for run in rows[BRIER]])
    z = norm.ppf(1 - 0.025 / len(gap))
    source = {"interval": "bins", "runs": [run["at"] for run in rows[BRIER]], "path": "test/none/reliability"}
    judged = {}
    for side, place in (("above", int(np.argmax(gap / error))), ("below", int(np.argmin(gap / error)))):
        ends = (100 * float(gap[place] + sign * z * error[place]) for sign in (0, -1, 1))
        judged[side] = Evidence(*ends, side=side, source=source | {"scale": 100.0, "bin": place})
    over, under = (int((sign * gap > z * error).sum()) for sign in (1, -1))
    words = f"beyond chance {over} bins over-confident, {under} under-confident, of {len(gap)}; extremes "
    words += " and ".join(str(one) for one in judged.values())
    return words, judged["below" if judged["above"].verdict == HOLDS else "above"]


def bin_gaps(bins: list[dict[str, list[float]]]) -> tuple[np.ndarray, np.ndarray]:
    """Confidence − accuracy of each bin with rows, over all seeds, and its standard error with the rows of one."""
    count = np.sum([one["count"] for one in bins], axis=0)
    confidence, accuracy = (
        np.sum([np.multiply(one["count"], one[side]) for one in bins], axis=0)[count > 0] / count[count > 0]
        for side in ("confidence", "accuracy")
    )
    return confidence - accuracy, np.sqrt(confidence * (1 - confidence) * len(bins) / count[count > 0])


def lowest_entropy(rows: Runs, row: str) -> Judged:
    """The mean entropy of a row against the lowest other cell (figure 10)."""
    return _entropy_against(rows, row, 0, "below")


def above_median_entropy(rows: Runs, row: str) -> Judged:
    """The mean entropy of a row against the median of the other cells: is it among the highest (figure 10)?"""
    return _entropy_against(rows, row, (len(CELLS) - 1) // 2, "above")


def _entropy_against(rows: Runs, row: str, rank: int, side: str) -> Judged:
    """The mean entropy of a row against that of the other cell of this rank."""
    entropies = {cell: pick(rows, cell, "test/none/entropy", 1.0) for cell in CELLS}
    others = sorted((cell for cell in CELLS if cell != row), key=lambda cell: statistics.mean(entropies[cell]))
    rival = others[rank]
    difference = between(entropies[rival], entropies[row])
    words = f"{'lowest' if rank == 0 else 'median'} of the others is {rival}: "
    words += arrow(entropies[rival], entropies[row], difference)
    return words, difference.above() if side == "above" else difference.below()


def better_and_surer(rows: Runs) -> Judged:
    """No cell has both a lower ECE₂ and a lower mean entropy than cross entropy (figure 10).

    A cell is judged by the difference that speaks more against "both lower", and the claim by the cell of which it
    speaks least.
    """
    judged = {}
    for cell in (one for one in CELLS if one != CE):
        error = between(ece2(rows, CE), ece2(rows, cell))
        spread = between(*(pick(rows, one, "test/none/entropy") for one in (CE, cell)))
        judged[cell] = max((error, spread), key=lambda one: one.value / max(one.reach, 1e-12))
    nearest = min(judged, key=lambda cell: judged[cell].value / max(judged[cell].reach, 1e-12))
    words = f"nearest to it is {nearest}, with the larger of both differences {judged[nearest]}"
    return words, judged[nearest].above()


def effects(rows: Runs, secondary: str, scaling: str) -> list[float]:
    """Cohen's d of a secondary loss on ECE₂ with each primary loss; positive is better."""
    found = []
    for primary in PRIMARY:
        without, with_it = (ece2(rows, f"{primary}+{one}", scaling) for one in ("none", secondary))
        spread = statistics.mean([statistics.variance(without), statistics.variance(with_it)]) ** 0.5
        found.append((statistics.mean(without) - statistics.mean(with_it)) / spread)
    return found


def largest_effect(scaling: str) -> Callable[[Runs], Judged]:
    """Soft AvUC against the best other secondary loss by the mean d over primary losses (figure 1)."""

    def check(rows: Runs) -> Judged:
        by_name = {name: effects(rows, name, scaling) for name in SECONDARY[1:]}
        means = {name: statistics.mean(values) for name, values in by_name.items()}
        best = max((name for name in means if name != "soft_avuc"), key=means.__getitem__)
        gaps = [a - b for a, b in zip(by_name["soft_avuc"], by_name[best], strict=True)]
        difference = student_mean(gaps)
        words = ", ".join(f"{name} {means[name]:+.1f}" for name in sorted(means, key=lambda name: -means[name]))
        words = f"mean d of {len(gaps)} settings: {words}; soft AvUC − {best} {difference}"
        return words.replace("-", "−"), difference.above(cases=f"{sum(gap > 0 for gap in gaps)} of {len(gaps)}")

    return check


def scaling_count(rows: Runs) -> Judged:
    """In how many cells TS-SB-ECE has a lower ECE₂ than TS on average over seeds (table 2)."""
    pairs = [(ece2(rows, cell, "ts"), ece2(rows, cell, "ts-soft")) for cell in CELLS]
    wins = sum(statistics.mean(second) < statistics.mean(first) for first, second in pairs)
    words, judged = share(wins, len(pairs), 50)
    source = {"interval": "wilson", "pairs": [[first.source, second.source] for first, second in pairs]}
    return words, replace(judged, source=source)


def lower_figure(rows: Runs, before: str, after: str, key: str) -> Judged:
    """Is a figure of the test set lower in the second row?"""
    first, second = (pick(rows, one, f"test/none/{key}") for one in (before, after))
    difference = between(first, second)
    return arrow(first, second, difference), difference.below()


def memorizes(rows: Runs, row: str, *, expected: bool = True) -> Judged:
    """Is the ECE-15 of training images below 1%, the paper's sign of memorization (appendix B, table 3)?"""
    train, test = pick(rows, row, "train/ece"), pick(rows, row, "test/none/ece")
    difference = replace(student_mean(train), source={"interval": "single", "first": train.source})
    words = f"{statistics.mean(test):.2f} → {difference}".replace("+", "")
    return words, difference.below(1.0) if expected else difference.above(1.0)


def below_dirichlet(rows: Runs, row: str, scaled: str, dataset: str = "cifar100") -> Judged:
    """A row without scaling against another loss after Dirichlet scaling, on the networks whose logits were kept."""
    found = json.loads((RESULTS / "post-hoc.json").read_text(encoding="utf-8"))
    named = {name: one for name, one in found.items() if name.startswith(f"{dataset} {scaled} seed")}
    if not named:
        raise MissingRowError(f"{scaled} + Dirichlet")
    about = {"file": "post-hoc.json", "networks": list(named), "method": "Dirichlet (ODIR)"}
    first = Sample([float(one["Dirichlet (ODIR)"][1]) for one in named.values()], about)
    second = ece2(rows, row)
    difference = between(first, second)
    return f"{len(first)} and {len(second)} networks: {arrow(first, second, difference)}", difference.below()


def _table_four() -> list[tuple[str, str, Check]]:
    printed = {
        ("ks_error", SOFT_ECE): "4.20 → 0.71",
        ("ks_error", SOFT_AVUC): "4.20 → 0.51",
        ("sweep_ece", SOFT_ECE): "4.57 → 2.21",
        ("sweep_ece", SOFT_AVUC): "4.57 → 1.24",
    }
    names = {"ks_error": "KS error", "sweep_ece": "Sweep ECE₂", SOFT_ECE: "soft ECE", SOFT_AVUC: "soft AvUC"}
    return [
        (
            f"{names[key]} falls below focal's with focal + {names[row]} (table 4)",
            figures,
            lambda r, key=key, row=row: lower_figure(r, FOCAL, row, key),  # type: ignore[misc]
        )
        for (key, row), figures in printed.items()
    ]


CLAIMS: list[tuple[str, str, Check]] = [
    (
        "Soft AvUC is the strongest secondary loss with Brier (figure 1)",
        "3.69, lowest of six",
        lambda r: strongest(r, "brier"),
    ),
    ("Soft AvUC has the largest effect across primary losses (figure 1)", "largest d", largest_effect("none")),
    (
        "Soft AvUC has the largest effect across primary losses after temperature scaling (figure 1)",
        "largest d",
        largest_effect("ts"),
    ),
    ("Soft bins become hard ones as T → 0 (figure 3)", "seen", lambda _: shapes.soft_bins_become_hard()),
    ("κ is the soft threshold, T its sharpness (figure 4)", "seen", lambda _: shapes.threshold_and_sharpness()),
    ("SB-ECE of a calibrated model tends to 0 (Proposition 1)", "→ 0", lambda _: shapes.proposition_one()),
    ("The best cell has a soft loss, over all primary losses (figure 5)", "3.38 → 1.57", best_cell),
    ("Cross entropy is over-confident (figures 6 and 10)", "seen", lambda r: mean_confidence_gap(r, CE, over=True)),
    (
        "Reweighted MMCE makes cross entropy less over-confident (figures 6 and 10)",
        "seen",
        lambda r: less_sure(r, CE, "cross_entropy+mmce_weighted"),
    ),
    ("Focal is under-confident (figures 6 and 10)", "seen", lambda r: mean_confidence_gap(r, FOCAL, over=False)),
    ("Brier is over-confident in some bins and under-confident in others, CIFAR-100 (figure 10)", "seen", both_signs),
    (
        "Cross entropy has the lowest mean entropy (figure 10)",
        "lowest",
        lambda r: lowest_entropy(r, CE),
    ),
    (
        "Focal has a higher mean entropy than the median cell (figure 10)",
        "amongst the highest",
        lambda r: above_median_entropy(r, FOCAL),
    ),
    ("No loss has both a lower ECE₂ and a lower mean entropy than cross entropy", "open challenge", better_and_surer),
    (
        "Soft AvUC has the lowest ECE₂ under shift with cross entropy (figure 8)",
        "lowest (ImageNet)",
        lowest_under_shift,
    ),
    (
        "TS-SB-ECE beats TS at all severities of shift after Brier (figure 9)",
        "all severities",
        lambda r: soft_scaling_under_shift(r, BRIER),
    ),
    ("TS-SB-ECE beats TS in most cells (table 2)", "35 of 42", scaling_count),
    *(
        (
            f"{words}: ECE-15 of training images, CIFAR-100 (table 3)",
            printed,
            lambda r, row=row, low=low: memorizes(r, row, expected=low),
        )
        for words, row, printed, low in (
            ("Cross entropy memorizes", CE, "6.88 → 0.45", True),
            ("Focal does not memorize", FOCAL, "4.21 → 9.18", False),
            ("Brier does not memorize", BRIER, "3.51 → 2.49", False),
        )
    ),
    *_table_four(),
    *(
        (
            f"Focal + soft ECE without scaling beats {name} + Dirichlet (table 5)",
            "not studied",
            lambda r, scaled=scaled: below_dirichlet(r, SOFT_ECE, scaled),  # type: ignore[misc]
        )
        for name, scaled in (("cross entropy", CE), ("Brier", BRIER))
    ),
]

CIFAR10_CLAIMS: list[tuple[str, str, Check]] = [
    (
        f"CIFAR-10: {words}: ECE-15 of training images (table 3)",
        printed,
        lambda r, row=row, low=low: memorizes(r, row, expected=low),  # type: ignore[misc]
    )
    for words, row, printed, low in (
        ("cross entropy memorizes", CE, "2.66 → 0.05", True),
        ("focal does not memorize", FOCAL, "5.28 → 7.13", False),
    )
]

HALF_CLAIMS: list[tuple[str, str, Check]] = [
    (
        f"CIFAR-10 at half resolution: focal + soft ECE without scaling beats {name} + Dirichlet (table 5)",
        f"{HALF}: {printed} → 1.19",
        lambda r, scaled=scaled: below_dirichlet(r, SOFT_ECE, scaled, "cifar10"),  # type: ignore[misc]
    )
    for name, scaled, printed in (("cross entropy", CE, "2.45"), ("Brier", BRIER, "4.69"))
]
HALF_CLAIMS += [
    (
        "CIFAR-10 at half resolution: the best cell has a soft loss, over all primary losses (figure 5)",
        f"{HALF}: 1.34 → 1.19",
        best_cell,
    ),
    (
        "CIFAR-10 at half resolution: TS-SB-ECE beats TS in most cells (table 2)",
        f"{HALF}: 17 of 18",
        scaling_count,
    ),
]
