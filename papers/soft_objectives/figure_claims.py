"""The claims behind the paper's figures and smaller tables, beside what the runs here say.

The intervals are those of `claims.py`: over seeds, Welch's for two rows, of differences within a network otherwise.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import shapes
from claims import (
    BRIER,
    CE,
    FOCAL,
    SOFT_AVUC,
    SOFT_ECE,
    Check,
    Judged,
    MissingRowError,
    Runs,
    arrow,
    between,
    ece2,
    pick,
    severity,
    soft_scaling_everywhere,
    strongest,
    within,
)

from verdicts import HOLDS, Evidence

RESULTS = Path(__file__).parent / "results"
SOFT = ("soft_avuc", "soft_ece")
PRIMARY = ("cross_entropy", "focal", "brier")
SECONDARY = ("none", "mmce", "avuc", "avuc_gs", *SOFT)
SMALL = "cifar10 "
"""Before the names of the cells of CIFAR-10."""

CELLS = tuple(f"{primary}+{secondary}" for primary in PRIMARY for secondary in SECONDARY)
"""The 18 cells of the paper's table 2; interleaved rows and rows with their own λ are not among them."""


def all_shift(rows: Runs, row: str) -> list[float]:
    """ECE₂ of every seed, mean over corruptions and severities."""
    levels = [severity(rows, row, level) for level in range(1, 6)]
    return [statistics.mean(values) for values in zip(*levels, strict=True)]


def lowest_under_shift(rows: Runs) -> Judged:
    """Soft AvUC against the best of plain, MMCE and soft ECE, all with cross entropy, under shift (figure 8)."""
    others = {name: all_shift(rows, f"cross_entropy+{name}") for name in ("none", "mmce", "soft_ece")}
    best = min(others, key=lambda name: statistics.mean(others[name]))
    second = all_shift(rows, "cross_entropy+soft_avuc")
    difference = between(others[best], second)
    return f"best other is {best}: {arrow(others[best], second, difference)}", difference.below()


def best_cell(rows: Runs) -> Judged:
    """The best cell with a soft loss against the best without, over all primary losses (figure 5)."""
    errors = {cell: ece2(rows, cell) for cell in CELLS}
    soft = min((cell for cell in CELLS if cell.endswith(SOFT)), key=lambda cell: statistics.mean(errors[cell]))
    hard = min((cell for cell in CELLS if not cell.endswith(SOFT)), key=lambda cell: statistics.mean(errors[cell]))
    difference = between(errors[hard], errors[soft])
    return f"{hard} → {soft}: {arrow(errors[hard], errors[soft], difference)}", difference.below()


def over_confidence(rows: Runs, row: str) -> list[float]:
    """Confidence − accuracy of every seed, in points."""
    sides = [pick(rows, row, "test", "none", key) for key in ("confidence", "accuracy")]
    return [confidence - accuracy for confidence, accuracy in zip(*sides, strict=True)]


def too_sure(rows: Runs, row: str) -> Judged:
    """Is the row over-confident on average?"""
    gaps = over_confidence(rows, row)
    difference = within([0.0] * len(gaps), gaps)
    return f"confidence − accuracy {difference}", difference.above()


def too_unsure(rows: Runs, row: str) -> Judged:
    """Is the row under-confident on average?"""
    gaps = over_confidence(rows, row)
    difference = within([0.0] * len(gaps), gaps)
    return f"confidence − accuracy {difference}", difference.below()


def less_sure(rows: Runs, before: str, after: str) -> Judged:
    """Does the second row have less over-confidence?"""
    first, second = over_confidence(rows, before), over_confidence(rows, after)
    difference = between(first, second)
    return arrow(first, second, difference), difference.below()


def both_signs(rows: Runs) -> Judged:
    """Bins of the Brier rows that are over- and under-confident beyond two standard errors, all seeds pooled."""
    if BRIER not in rows:
        raise MissingRowError(BRIER)
    bins = [run["test"]["none"]["reliability"] for run in rows[BRIER]]
    count = np.sum([one["count"] for one in bins], axis=0)
    confidence, accuracy = (
        np.sum([np.multiply(one["count"], one[side]) for one in bins], axis=0) / np.maximum(count, 1)
        for side in ("confidence", "accuracy")
    )
    gap, error = confidence - accuracy, np.sqrt(confidence * (1 - confidence) / np.maximum(count, 1))
    over, under = int((gap > 2 * error).sum()), int((gap < -2 * error).sum())
    words = f"{over} bins over-confident, {under} under-confident, of {int((count > 0).sum())}"
    return words, bool(over and under)


def extreme_entropy(rows: Runs, row: str, *, highest: bool) -> Judged:
    """The mean entropy of a row against the nearest other cell (figure 10)."""
    entropies = {cell: [value / 100 for value in pick(rows, cell, "test", "none", "entropy")] for cell in CELLS}
    others = {cell: values for cell, values in entropies.items() if cell != row}
    nearest = (max if highest else min)(others, key=lambda cell: statistics.mean(others[cell]))
    difference = between(others[nearest], entropies[row])
    verdict = difference.above() if highest else difference.below()
    return f"nearest is {nearest}: {arrow(others[nearest], entropies[row], difference)}", verdict


def better_and_surer(rows: Runs) -> Judged:
    """No cell has both a lower ECE₂ and a lower mean entropy than cross entropy, each beyond the noise (figure 10)."""
    found, likely = [], []
    for cell in CELLS:
        if cell == CE:
            continue
        error = between(ece2(rows, CE), ece2(rows, cell))
        spread = between(*(pick(rows, one, "test", "none", "entropy") for one in (CE, cell)))
        if error.value < 0 and spread.value < 0:
            likely.append(cell)
        if error.below().verdict == HOLDS and spread.below().verdict == HOLDS:
            found.append(cell)
    words = f"{len(found)} of {len(CELLS) - 1} cells beyond the noise; by their means {', '.join(likely) or 'none'}"
    return words, False if found else (None if likely else True)


def effects(rows: Runs, secondary: str, scaling: str) -> list[float]:
    """Cohen's d of a secondary loss on ECE₂ with every primary loss; positive is better."""
    found = []
    for primary in PRIMARY:
        without, with_it = (ece2(rows, f"{primary}+{one}", scaling) for one in ("none", secondary))
        spread = statistics.mean([statistics.variance(without), statistics.variance(with_it)]) ** 0.5
        found.append((statistics.mean(without) - statistics.mean(with_it)) / spread)
    return found


def largest_effect(scaling: str) -> Callable[[Runs], Judged]:
    """Soft AvUC against the best other secondary loss by the mean d over primary losses and datasets (figure 1).

    The rows hold CIFAR-100, and the cells of CIFAR-10 under "cifar10 …"; settings are the units of the interval.
    """

    def check(rows: Runs) -> Judged:
        small = {name.removeprefix(SMALL): runs for name, runs in rows.items() if name.startswith(SMALL)}
        names = ("mmce", "avuc", "avuc_gs", "soft_avuc", "soft_ece")
        every = {
            name: effects(rows, name, scaling) + (effects(small, name, scaling) if small else []) for name in names
        }
        means = {name: statistics.mean(values) for name, values in every.items()}
        best = max((name for name in names if name != "soft_avuc"), key=means.__getitem__)
        difference = within(every[best], every["soft_avuc"])
        wins = sum(a > b for a, b in zip(every["soft_avuc"], every[best], strict=True))
        words = ", ".join(f"{name} {means[name]:+.1f}" for name in sorted(names, key=lambda name: -means[name]))
        words = f"mean d of {len(every[best])} settings: {words}; soft AvUC − {best} {difference}"
        return words.replace("-", "−"), difference.above(cases=f"{wins} of {len(every[best])}")

    return check


def scaling_count(rows: Runs) -> Judged:
    """In how many cells TS-SB-ECE has a lower ECE₂ than TS on average over seeds (table 2)."""
    wins = [statistics.mean(ece2(rows, cell, "ts-soft")) < statistics.mean(ece2(rows, cell, "ts")) for cell in CELLS]
    return wilson(sum(wins), len(wins))


def wilson(count: int, total: int) -> Judged:
    """A share of cases with its Wilson 95% interval, and the verdict on "in more than half"."""
    z, share = 1.96, count / total
    centre = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    reach = z / (1 + z**2 / total) * (share * (1 - share) / total + z**2 / (4 * total**2)) ** 0.5
    low, high = centre - reach, centre + reach
    words = f"{count} of {total}, {100 * share:.0f}% [{100 * low:.0f}, {100 * high:.0f}]"
    return words, Evidence(100 * share, 100 * low, 100 * high, "above", 50, places=0, cases=f"{count} of {total}")


def lower_figure(rows: Runs, before: str, after: str, key: str) -> Judged:
    """Is a figure of the test set lower in the second row?"""
    first, second = (pick(rows, one, "test", "none", key) for one in (before, after))
    difference = between(first, second)
    return arrow(first, second, difference), difference.below()


def memorised(rows: Runs, row: str, *, expected: bool) -> Judged:
    """ECE-15 of training images against that of the test set of the same networks (table 3)."""
    seen, unseen = pick(rows, row, "train", "ece"), pick(rows, row, "test", "none", "ece")
    difference = within(unseen, seen)
    return arrow(unseen, seen, difference), difference.below() if expected else difference.above()


def below_dirichlet(rows: Runs, row: str, scaled: str, dataset: str = "cifar100") -> Judged:
    """A row without scaling against another loss after Dirichlet scaling, on the networks whose logits were kept."""
    found = json.loads((RESULTS / "post-hoc.json").read_text(encoding="utf-8"))
    named = {name: one for name, one in found.items() if name.startswith(f"{dataset} {scaled} seed")}
    first = [float(one["Dirichlet (ODIR)"][1]) for one in named.values()]
    if not first:
        raise MissingRowError(f"{scaled} + Dirichlet")
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
    ("… and with Brier", "3.69, lowest of six", lambda r: strongest(r, "brier")),
    ("Soft AvUC has the largest effect across primary losses (figure 1)", "largest d", largest_effect("none")),
    ("… and after temperature scaling", "largest d", largest_effect("ts")),
    ("Soft bins become hard ones as T → 0 (figure 3)", "seen", lambda _: shapes.soft_bins_become_hard()),
    ("κ is the soft threshold, T its sharpness (figure 4)", "seen", lambda _: shapes.threshold_and_sharpness()),
    ("SB-ECE of a calibrated model tends to 0 (Proposition 1)", "→ 0", lambda _: shapes.proposition_one()),
    ("The best cell has a soft loss, over all primary losses (figure 5)", "3.38 → 1.57", best_cell),
    ("Cross entropy is over-confident (figures 6 and 10)", "seen", lambda r: too_sure(r, CE)),
    ("MMCE makes it less so", "seen", lambda r: less_sure(r, CE, "cross_entropy+mmce")),
    ("Focal is under-confident (figures 6 and 10)", "seen", lambda r: too_unsure(r, FOCAL)),
    ("Brier is over-confident in some bins, under-confident in others (figure 10)", "seen", both_signs),
    (
        "Cross entropy has the lowest mean entropy (figure 10)",
        "lowest",
        lambda r: extreme_entropy(r, CE, highest=False),
    ),
    ("Focal has the highest mean entropy (figure 10)", "highest", lambda r: extreme_entropy(r, FOCAL, highest=True)),
    ("No loss has both a lower ECE₂ and a lower mean entropy than cross entropy", "open challenge", better_and_surer),
    (
        "Soft AvUC has the lowest ECE₂ under shift with cross entropy (figure 8)",
        "lowest (ImageNet)",
        lowest_under_shift,
    ),
    ("TS-SB-ECE beats TS under shift after Brier (figure 9)", "lower", lambda r: soft_scaling_everywhere(r, BRIER)),
    ("TS-SB-ECE beats TS in most cells (table 2)", "35 of 42", scaling_count),
    (
        "Cross entropy memorises: ECE-15, test → train (table 3)",
        "6.88 → 0.45",
        lambda r: memorised(r, CE, expected=True),
    ),
    ("Focal does not (table 3)", "4.21 → 9.18", lambda r: memorised(r, FOCAL, expected=False)),
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
        f"CIFAR-10: focal + soft ECE without scaling beats {name} + Dirichlet (table 5)",
        f"{printed} → 1.19",
        lambda r, scaled=scaled: below_dirichlet(r, SOFT_ECE, scaled, "cifar10"),  # type: ignore[misc]
    )
    for name, scaled, printed in (("cross entropy", CE, "2.45"), ("Brier", BRIER, "4.69"))
]
CIFAR10_CLAIMS += [
    ("CIFAR-10: the best cell has a soft loss, over all primary losses (figure 5)", "1.34 → 1.19", best_cell),
    ("CIFAR-10: TS-SB-ECE beats TS in most cells (table 2)", "17 of 18", scaling_count),
    (
        "CIFAR-10: cross entropy memorises: ECE-15, test → train (table 3)",
        "seen",
        lambda r: memorised(r, CE, expected=True),
    ),
]
