"""The paper's claims beside what the runs here say; each is judged by a 95% interval over seeds.

Two rows are compared by Welch's t interval of the difference of their means over seeds; what is measured twice on the
same networks (before and after scaling) by the t interval of the differences within a network. A row of one seed
decides nothing.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.stats import t as student

sys.path.insert(0, str(Path(__file__).parents[1]))

from verdicts import Claim, Evidence

Runs = dict[str, list[dict[str, Any]]]
CE, FOCAL, BRIER = "cross_entropy+none", "focal+none", "brier+none"
SOFT_ECE, SOFT_AVUC = "focal+soft_ece", "focal+soft_avuc"
INTERLEAVED = "cross_entropy+soft_ece (interleaved)"


Judged = tuple[str, Evidence | bool | None]


class MissingRowError(Exception):
    """A row this claim needs has not been run."""


@dataclass(frozen=True)
class Difference:
    """A difference in points with its 95% interval; infinite where it cannot be estimated."""

    value: float
    reach: float
    df: float | None = None

    def __str__(self) -> str:
        return str(self.below())

    def below(self, margin: float = 0.0, cases: str = "") -> Evidence:
        """Judges "it is below the margin"."""
        return self._judged("below", margin, cases)

    def above(self, margin: float = 0.0, cases: str = "") -> Evidence:
        """Judges "it is above the margin"."""
        return self._judged("above", margin, cases)

    def _judged(self, side: str, margin: float, cases: str) -> Evidence:
        ends = self.value - self.reach, self.value + self.reach
        return Evidence(self.value, *ends, side=side, margin=margin, df=self.df, cases=cases)


def pick(rows: Runs, row: str, *path: str) -> list[float]:
    """One figure of every seed of a row, in percent."""
    if row not in rows:
        raise MissingRowError(row)
    values = []
    for run in rows[row]:
        value: Any = run
        for key in path:
            value = value[key]
        values.append(100 * float(value))
    return values


def ece2(rows: Runs, row: str, scaling: str = "none") -> list[float]:
    """Equal-mass ECE₂ of every seed."""
    return pick(rows, row, "test", scaling, "mass_ece")


def severity(rows: Runs, row: str, level: int, scaling: str = "none") -> list[float]:
    """Equal-mass ECE₂ of every seed at a severity, mean over corruptions."""
    if row not in rows:
        raise MissingRowError(row)
    kinds = sorted({name.rsplit("-", 1)[0] for name in rows[row][0]["shift"]})
    by_kind = [pick(rows, row, "shift", f"{kind}-{level}", scaling, "mass_ece") for kind in kinds]
    return [statistics.mean(values) for values in zip(*by_kind, strict=True)]


def between(first: Sequence[float], second: Sequence[float]) -> Difference:
    """second − first over seeds of two rows (Welch)."""
    value = statistics.mean(second) - statistics.mean(first)
    if min(len(first), len(second)) < 2:
        return Difference(value, math.inf)
    parts = [statistics.variance(some) / len(some) for some in (first, second)]
    error = math.sqrt(sum(parts))
    if error == 0:
        return Difference(value, 0.0)
    sizes = [len(first) - 1, len(second) - 1]
    degrees = sum(parts) ** 2 / sum(part**2 / size for part, size in zip(parts, sizes, strict=True))
    return Difference(value, float(student.ppf(0.975, degrees)) * error, degrees)


def within(first: Sequence[float], second: Sequence[float]) -> Difference:
    """second − first of the same networks."""
    gaps = [b - a for a, b in zip(first, second, strict=True)]
    value = statistics.mean(gaps)
    if len(gaps) < 2:
        return Difference(value, math.inf)
    degrees = len(gaps) - 1
    return Difference(
        value, float(student.ppf(0.975, degrees)) * statistics.stdev(gaps) / math.sqrt(len(gaps)), degrees
    )


def arrow(first: Sequence[float], second: Sequence[float], difference: Difference, places: int = 2) -> str:
    """mean → mean, difference."""
    before, after = statistics.mean(first), statistics.mean(second)
    return f"{before:.{places}f} → {after:.{places}f}: {difference}"


def falls(rows: Runs, before: str, after: str) -> Judged:
    """Is ECE₂ of the second row lower?"""
    first, second = ece2(rows, before), ece2(rows, after)
    difference = between(first, second)
    return arrow(first, second, difference), difference.below()


def rises(rows: Runs, before: str, after: str) -> Judged:
    """Is ECE₂ of the second row higher?"""
    words, _ = falls(rows, before, after)
    return words, between(ece2(rows, before), ece2(rows, after)).above()


def accuracy_cost(rows: Runs, row: str, margin: float = -1.0) -> Judged:
    """Accuracy within one point (or as given) of cross entropy's."""
    first, second = (pick(rows, one, "test", "none", "accuracy") for one in (CE, row))
    difference = between(first, second)
    return arrow(first, second, difference), difference.above(margin)


def below_scaled(rows: Runs, row: str) -> Judged:
    """Cross entropy after TS against a soft row without."""
    first, second = ece2(rows, CE, "ts"), ece2(rows, row)
    difference = between(first, second)
    return arrow(first, second, difference), difference.below()


def soft_scaling(rows: Runs, row: str, level: int) -> Judged:
    """TS against TS-SB-ECE on the same networks; level 0 is the test set."""
    if level == 0:
        first, second = ece2(rows, row, "ts"), ece2(rows, row, "ts-soft")
    else:
        first, second = severity(rows, row, level, "ts"), severity(rows, row, level, "ts-soft")
    difference = within(first, second)
    return arrow(first, second, difference), difference.below()


def soft_scaling_everywhere(rows: Runs, row: str) -> Judged:
    """TS against TS-SB-ECE at severities 1 to 5: the verdict of the mean, the differences of each."""
    parts = [within(severity(rows, row, level, "ts"), severity(rows, row, level, "ts-soft")) for level in range(1, 6)]
    first = [
        statistics.mean(values) for values in zip(*(severity(rows, row, n, "ts") for n in range(1, 6)), strict=True)
    ]
    second = [
        statistics.mean(values)
        for values in zip(*(severity(rows, row, n, "ts-soft") for n in range(1, 6)), strict=True)
    ]
    overall = within(first, second)
    words = ", ".join(f"{part.value:+.2f}" for part in parts).replace("-", "−")
    return f"severities 1–5: {words}; mean {overall}", overall.below()


def under_shift(rows: Runs, row: str) -> Judged:
    """Cross entropy + TS against a row without TS at severity 5."""
    first, second = severity(rows, CE, 5, "ts"), severity(rows, row, 5)
    difference = between(first, second)
    return arrow(first, second, difference), difference.below()


def scaling_hurts(rows: Runs, row: str) -> Judged:
    """A row before and after TS."""
    first, second = ece2(rows, row), ece2(rows, row, "ts")
    difference = within(first, second)
    return arrow(first, second, difference), difference.above()


def scaling_helps(rows: Runs, row: str) -> Judged:
    """The same, where the paper has TS improve the row."""
    words, _ = scaling_hurts(rows, row)
    return words, within(ece2(rows, row), ece2(rows, row, "ts")).below()


def marginal(rows: Runs, row: str) -> Judged:
    """Marginal ECE₂ as a sum over the 100 classes, the scale of the paper's figures."""
    first, second = ([10 * value for value in pick(rows, one, "test", "none", "marginal_ece")] for one in (CE, row))
    difference = between(first, second)
    return arrow(first, second, difference), difference.below()


def strongest(rows: Runs, primary: str) -> Judged:
    """Soft AvUC against the best of the other secondary losses (figure 1)."""
    names = ("mmce", "avuc", "avuc_gs", "soft_ece")
    others = {name: ece2(rows, f"{primary}+{name}") for name in names if f"{primary}+{name}" in rows}
    best = min(others, key=lambda name: statistics.mean(others[name]))
    first, second = others[best], ece2(rows, f"{primary}+soft_avuc")
    difference = between(first, second)
    return f"best other is {best}: {arrow(first, second, difference)}", difference.below()


def hard_scaling(rows: Runs) -> Judged:
    """TS-SB-ECE against TS-HB-ECE on all networks that have both."""
    # a run may stand in the table and in the matched rows
    every = {id(run): run for runs in rows.values() for run in runs}
    found = [run for run in every.values() if "ts-hard" in run["test"]]
    if not found:
        raise MissingRowError("TS-HB-ECE")
    first = [100 * run["test"]["ts-hard"]["mass_ece"] for run in found]
    second = [100 * run["test"]["ts-soft"]["mass_ece"] for run in found]
    difference = within(first, second)
    wins = sum(b < a for a, b in zip(first, second, strict=True))
    words = f"{len(found)} networks: {arrow(first, second, difference)}"
    return words, difference.below(cases=f"{wins} of {len(found)}")


Check = Callable[[Runs], Judged]


PRINTED = {"cross_entropy": ("9.10", "11.4", "6.21"), "focal": ("4.66", "5.68", "3.38")}
"""ECE₂ of the paper's table 2: the primary loss alone, with AvUC, with AvUC-GS; each at its own tuned β."""


def _matched(primary: str, weight: str) -> list[tuple[str, str, Check]]:
    """AvUC and AvUC-GS at one β; the rows are those of `matched_rows` in tables.py."""
    plain, avuc, stopped = f"{primary}+none", f"{primary}+avuc β={weight}", f"{primary}+avuc_gs β={weight}"
    name, (alone, with_it, with_stop) = primary.replace("_", " "), PRINTED[primary]
    return [
        (f"AvUC makes {name} worse, β = {weight}", f"{alone} → {with_it}", lambda r: rises(r, plain, avuc)),
        (
            f"Stopping the gradient through c lowers ECE₂ of {name} + AvUC, β = {weight}",
            f"{with_it} → {with_stop}",
            lambda r: falls(r, avuc, stopped),
        ),
        (
            f"{name} + AvUC-GS improves on {name} alone, β = {weight}",
            f"{alone} → {with_stop}",
            lambda r: falls(r, plain, stopped),
        ),
    ]


CLAIMS: list[tuple[str, str, Check]] = [
    ("Focal + soft AvUC lowers ECE₂ below cross entropy's", "9.10 → 1.57", lambda r: falls(r, CE, SOFT_AVUC)),
    ("Focal + soft ECE does too", "9.10 → 2.30", lambda r: falls(r, CE, SOFT_ECE)),
    ("Soft AvUC improves on focal alone", "4.66 → 1.57", lambda r: falls(r, FOCAL, SOFT_AVUC)),
    ("Soft ECE improves on focal alone", "4.66 → 2.30", lambda r: falls(r, FOCAL, SOFT_ECE)),
    ("Focal + soft ECE costs less than 1 point of accuracy", "78.7 → 78.6", lambda r: accuracy_cost(r, SOFT_ECE)),
    ("Focal + soft AvUC costs less than 1 point of accuracy", "78.7 → 78.1", lambda r: accuracy_cost(r, SOFT_AVUC)),
    ("Focal + soft ECE without TS beats cross entropy with TS", "5.36 → 2.30", lambda r: below_scaled(r, SOFT_ECE)),
    ("Focal + soft AvUC without TS beats cross entropy with TS", "5.36 → 1.57", lambda r: below_scaled(r, SOFT_AVUC)),
    ("Interleaved soft ECE improves cross entropy", "9.10 → 6.86", lambda r: falls(r, CE, INTERLEAVED)),
    ("MMCE improves cross entropy", "9.10 → 4.77", lambda r: falls(r, CE, "cross_entropy+mmce")),
    ("MMCE makes focal worse (table 2)", "4.66 → 5.07", lambda r: rises(r, FOCAL, "focal+mmce")),
    *_matched("cross_entropy", "0.1"),
    *_matched("cross_entropy", "1"),
    *_matched("focal", "0.1"),
    ("TS-SB-ECE beats TS after cross entropy", "5.36 → 4.69", lambda r: soft_scaling(r, CE, 0)),
    ("… and under shift (figure 2)", "every severity", lambda r: soft_scaling_everywhere(r, CE)),
    ("… and under shift after focal (figure 9)", "lower", lambda r: soft_scaling_everywhere(r, FOCAL)),
    ("Ours: TS-SB-ECE has a lower ECE₂ than TS-HB-ECE, its hard-binned form in ℓ₂", "not studied", hard_scaling),
    ("Focal beats cross entropy + TS at severity 5", "figure 7", lambda r: under_shift(r, FOCAL)),
    ("Focal + soft ECE does too", "figure 7", lambda r: under_shift(r, SOFT_ECE)),
    ("Focal + soft AvUC does too", "figure 7", lambda r: under_shift(r, SOFT_AVUC)),
    ("TS makes focal worse", "4.66 → 6.47", lambda r: scaling_hurts(r, FOCAL)),
    ("Marginal ECE₂ falls with focal + soft ECE", "3.78 → 3.05", lambda r: marginal(r, SOFT_ECE)),
    ("Marginal ECE₂ falls with focal + soft AvUC", "3.78 → 2.72", lambda r: marginal(r, SOFT_AVUC)),
    ("Soft AvUC is the strongest secondary loss with focal (figure 1)", "largest d", lambda r: strongest(r, "focal")),
]


NAMES = {"cross_entropy": "cross entropy", "focal": "focal", "brier": "Brier"}
SHORT = {
    "mmce": "MMCE", "avuc": "AvUC", "avuc_gs": "AvUC-GS", "soft_avuc": "soft AvUC", "soft_ece": "soft ECE",
    "mmce_weighted": "reweighted MMCE",
}  # fmt: skip
CIFAR10_PRINTED: dict[str, tuple[float, dict[str, float]]] = {
    "cross_entropy": (5.59, {"mmce": 1.55, "avuc": 5.27, "avuc_gs": 4.94, "soft_avuc": 5.87, "soft_ece": 5.84}),
    "focal": (5.45, {"mmce": 8.74, "avuc": 1.34, "avuc_gs": 1.39, "soft_avuc": 1.58, "soft_ece": 1.19}),
    "brier": (6.58, {"mmce": 2.82, "avuc": 3.64, "avuc_gs": 5.44, "soft_avuc": 3.40, "soft_ece": 4.37}),
}
"""ECE₂ of the paper's table 2 on CIFAR-10: the primary loss alone, and with each secondary loss."""


def _cifar10_cells() -> list[tuple[str, str, Check]]:
    """Every cell against its primary loss alone, on the side that print has it."""
    found: list[tuple[str, str, Check]] = []
    for primary, (alone, cells) in CIFAR10_PRINTED.items():
        name, plain = NAMES[primary], f"{primary}+none"
        # print does not say which form of MMCE it trains
        for secondary, value in {**cells, "mmce_weighted": cells["mmce"]}.items():
            row, lower = f"{primary}+{secondary}", value < alone
            words = "improves on" if lower else "is worse than"
            claim = f"CIFAR-10: {name} + {SHORT[secondary]} {words} {name} alone (table 2)"
            check = (lambda r, a=plain, b=row: falls(r, a, b)) if lower else (lambda r, a=plain, b=row: rises(r, a, b))
            found.append((claim, f"{alone:.2f} → {value:.2f}", check))  # type: ignore[arg-type]
    return found


CIFAR10_CLAIMS: list[tuple[str, str, Check]] = [
    ("CIFAR-10: focal + soft AvUC lowers ECE₂ below cross entropy's", "5.59 → 1.58", lambda r: falls(r, CE, SOFT_AVUC)),
    ("CIFAR-10: focal + soft ECE does too", "5.59 → 1.19", lambda r: falls(r, CE, SOFT_ECE)),
    *_cifar10_cells(),
    (
        "CIFAR-10: focal + soft ECE costs less than 1 point of accuracy",
        "95.5 → 95.1",
        lambda r: accuracy_cost(r, SOFT_ECE),
    ),
    (
        "CIFAR-10: focal + soft AvUC costs less than 1.5 points of accuracy",
        "95.5 → 94.4",
        lambda r: accuracy_cost(r, SOFT_AVUC, -1.5),
    ),
    (
        "CIFAR-10: focal + soft ECE without TS beats cross entropy with TS",
        "1.95 → 1.19",
        lambda r: below_scaled(r, SOFT_ECE),
    ),
    ("CIFAR-10: TS-SB-ECE beats TS after cross entropy", "1.95 → 1.16", lambda r: soft_scaling(r, CE, 0)),
    ("CIFAR-10: … and under shift (figure 2)", "every severity", lambda r: soft_scaling_everywhere(r, CE)),
    ("CIFAR-10: TS improves focal", "5.45 → 2.69", lambda r: scaling_helps(r, FOCAL)),
    ("CIFAR-10: focal beats cross entropy + TS at severity 5", "figure 7", lambda r: under_shift(r, FOCAL)),
]
"""On the cells of `cells.py`, each with its own β; the figures of print are those of the paper's CIFAR-10."""


def claim_rows(rows: Runs, claims: Sequence[tuple[str, str, Check]]) -> list[Claim]:
    """Every claim with what judges it."""
    found = []
    for claim, paper, check in claims:
        try:
            words, judged = check(rows)
        except MissingRowError as missing:
            words, judged = f"{missing} not run", None
        found.append(Claim(claim, paper, words, judged))
    return found
