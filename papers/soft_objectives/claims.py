"""The paper's claims on training, judged by 95% intervals over seeds.

Two rows are compared by Welch's t interval of the difference of their means over seeds. Two measurements of the same
networks (before and after scaling) are compared by the t interval of the differences within a network. A row of one
seed decides nothing.
"""

from __future__ import annotations

import fnmatch
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scipy.stats import t as student

sys.path.insert(0, str(Path(__file__).parents[1]))

from verdicts import FAILS, Claim, Count, Evidence

Runs = dict[str, list[dict[str, Any]]]
CE, FOCAL, BRIER = "cross_entropy+none", "focal+none", "brier+none"
SOFT_ECE, SOFT_AVUC = "focal+soft_ece", "focal+soft_avuc"
INTERLEAVED = "cross_entropy+soft_ece (interleaved)"


Judged = tuple[str, Evidence | Count | None]


class MissingRowError(Exception):
    """A row this claim needs has not been run."""


class Sample(list[float]):
    """A metric of each run of a row, with its source: the runs as FILE:LINE, the path of the metric, and its unit."""

    def __init__(self, values: Sequence[float], source: dict[str, Any]) -> None:
        super().__init__(values)
        self.source = source


@dataclass(frozen=True)
class Difference:
    """A difference in points with its 95% interval, which is infinite if it cannot be estimated."""

    value: float
    reach: float
    df: float | None = None
    source: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return str(self.below())

    def below(self, margin: float = 0.0, cases: str = "") -> Evidence:
        """Evidence for "it is below the margin"."""
        return self._judged("below", margin, cases)

    def above(self, margin: float = 0.0, cases: str = "") -> Evidence:
        """Evidence for "it is above the margin"."""
        return self._judged("above", margin, cases)

    def _judged(self, side: str, margin: float, cases: str) -> Evidence:
        ends = self.value - self.reach, self.value + self.reach
        return Evidence(self.value, *ends, side=side, margin=margin, df=self.df, cases=cases, source=self.source)


def pick(rows: Runs, row: str, path: str, scale: float = 100.0) -> Sample:
    """A metric of each seed of a row, in percent; * in the path takes the mean over all keys that match."""
    if row not in rows:
        raise MissingRowError(row)
    values = [scale * statistics.mean(_matching(run, path.split("/"))) for run in rows[row]]
    return Sample(values, {"runs": [run["at"] for run in rows[row]], "path": path, "scale": scale})


def _matching(value: Any, keys: Sequence[str]) -> list[float]:
    if not keys:
        return [float(value)]
    found = [one for name in value if fnmatch.fnmatchcase(name, keys[0]) for one in _matching(value[name], keys[1:])]
    if not found:
        raise MissingRowError(f"{'/'.join(keys)} of this row")
    return found


def ece2(rows: Runs, row: str, scaling: str = "none") -> Sample:
    """Equal-mass ECE₂ of each seed."""
    return pick(rows, row, f"test/{scaling}/mass_ece")


def severity(rows: Runs, row: str, level: int | str, scaling: str = "none") -> Sample:
    """Equal-mass ECE₂ of each seed at a severity, mean over corruptions; "*" is the mean over severities too."""
    return pick(rows, row, f"shift/*-{level}/{scaling}/mass_ece")


def between(first: Sample, second: Sample) -> Difference:
    """second − first over seeds of two rows (Welch)."""
    value, source = statistics.mean(second) - statistics.mean(first), _source("welch", first, second)
    if min(len(first), len(second)) < 2:
        return Difference(value, math.inf, source=source)
    parts = [statistics.variance(some) / len(some) for some in (first, second)]
    error = math.sqrt(sum(parts))
    if error == 0:
        return Difference(value, 0.0, source=source)
    sizes = [len(first) - 1, len(second) - 1]
    degrees = sum(parts) ** 2 / sum(part**2 / size for part, size in zip(parts, sizes, strict=True))
    return Difference(value, float(student.ppf(0.975, degrees)) * error, degrees, source)


def within(first: Sample, second: Sample) -> Difference:
    """second − first of the same networks."""
    gaps = [b - a for a, b in zip(first, second, strict=True)]
    return replace(student_mean(gaps), source=_source("paired", first, second))


def student_mean(values: Sequence[float]) -> Difference:
    """The mean of some values with Student's interval."""
    value, degrees = statistics.mean(values), len(values) - 1
    source = {"interval": "student", "values": [round(one, 6) for one in values]}
    if not degrees:
        return Difference(value, math.inf, source=source)
    reach = float(student.ppf(0.975, degrees)) * statistics.stdev(values) / math.sqrt(len(values))
    return Difference(value, reach, degrees, source)


def _source(interval: str, first: Sample, second: Sample) -> dict[str, Any]:
    return {"interval": interval, "first": first.source, "second": second.source}


def arrow(first: Sequence[float], second: Sequence[float], difference: Difference, places: int = 2) -> str:
    """mean → mean, difference."""
    before, after = statistics.mean(first), statistics.mean(second)
    return f"{before:.{places}f} → {after:.{places}f}: {difference}".replace("-", "−")


def falls(rows: Runs, before: str, after: str) -> Judged:
    """Is ECE₂ of the second row lower?"""
    first, second = ece2(rows, before), ece2(rows, after)
    difference = between(first, second)
    return arrow(first, second, difference), difference.below()


def rises(rows: Runs, before: str, after: str) -> Judged:
    """Is ECE₂ of the second row higher?"""
    words, _ = falls(rows, before, after)
    return words, between(ece2(rows, before), ece2(rows, after)).above()


def accuracy_cost(rows: Runs, row: str) -> Judged:
    """Accuracy within one point of that of cross entropy."""
    first, second = (pick(rows, one, "test/none/accuracy") for one in (CE, row))
    difference = between(first, second)
    return arrow(first, second, difference), difference.above(-1.0)


def below_scaled(rows: Runs, row: str) -> Judged:
    """Cross entropy after TS against a soft row without."""
    first, second = ece2(rows, CE, "ts"), ece2(rows, row)
    difference = between(first, second)
    return arrow(first, second, difference), difference.below()


def soft_scaling(rows: Runs, row: str) -> Judged:
    """TS against TS-SB-ECE on the same networks."""
    first, second = ece2(rows, row, "ts"), ece2(rows, row, "ts-soft")
    difference = within(first, second)
    return arrow(first, second, difference), difference.below()


def soft_scaling_under_shift(rows: Runs, row: str) -> Judged:
    """TS against TS-SB-ECE at each of the severities 1 to 5.

    The claim is that it is lower at all severities, so that the one with the highest end of its interval decides, and
    only a severity at which it is higher refutes the claim.
    """
    parts = [within(severity(rows, row, level, "ts"), severity(rows, row, level, "ts-soft")) for level in range(1, 6)]
    worst = max(parts, key=lambda part: (part.below().verdict == FAILS, part.value + part.reach))
    overall = within(severity(rows, row, "*", "ts"), severity(rows, row, "*", "ts-soft"))
    words = ", ".join(f"{part.value:+.2f}" for part in parts).replace("-", "−")
    words = f"severities 1–5: {words}; mean {overall}; least favorable is severity {parts.index(worst) + 1}: {worst}"
    return words, worst.below()


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
    """The same for a row that TS improves in the paper."""
    words, _ = scaling_hurts(rows, row)
    return words, within(ece2(rows, row), ece2(rows, row, "ts")).below()


def marginal(rows: Runs, row: str) -> Judged:
    """Marginal ECE₂ as a sum over the 100 classes, the scale of the paper's table."""
    first, second = (pick(rows, one, "test/none/marginal_ece", 1000.0) for one in (CE, row))
    difference = between(first, second)
    return arrow(first, second, difference), difference.below()


def strongest(rows: Runs, primary: str) -> Judged:
    """Soft AvUC against the best of the other secondary losses (figure 1)."""
    names = ("mmce_weighted", "avuc", "avuc_gs", "soft_ece")
    others = {name: ece2(rows, f"{primary}+{name}") for name in names if f"{primary}+{name}" in rows}
    best = min(others, key=lambda name: statistics.mean(others[name]))
    first, second = others[best], ece2(rows, f"{primary}+soft_avuc")
    difference = between(first, second)
    return f"best other is {best}: {arrow(first, second, difference)}", difference.below()


def hard_scaling(rows: Runs) -> Judged:
    """TS-SB-ECE against TS-HB-ECE on all networks that have both."""
    # a run may be in several rows
    runs = {run["at"]: run for some in rows.values() for run in some if "ts-hard" in run["test"]}
    if not runs:
        raise MissingRowError("TS-HB-ECE")
    first, second = (ece2({"": list(runs.values())}, "", scaling) for scaling in ("ts-hard", "ts-soft"))
    difference = within(first, second)
    wins = sum(b < a for a, b in zip(first, second, strict=True))
    words = f"{len(runs)} networks: {arrow(first, second, difference)}"
    return words, difference.below(cases=f"{wins} of {len(runs)}")


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
    ("Focal + soft ECE lowers ECE₂ below cross entropy's", "9.10 → 2.30", lambda r: falls(r, CE, SOFT_ECE)),
    ("Soft AvUC improves on focal alone", "4.66 → 1.57", lambda r: falls(r, FOCAL, SOFT_AVUC)),
    ("Soft ECE improves on focal alone", "4.66 → 2.30", lambda r: falls(r, FOCAL, SOFT_ECE)),
    ("Focal + soft ECE costs less than 1 point of accuracy", "78.7 → 78.6", lambda r: accuracy_cost(r, SOFT_ECE)),
    ("Focal + soft AvUC costs less than 1 point of accuracy", "78.7 → 78.1", lambda r: accuracy_cost(r, SOFT_AVUC)),
    ("Focal + soft ECE without TS beats cross entropy with TS", "5.36 → 2.30", lambda r: below_scaled(r, SOFT_ECE)),
    ("Focal + soft AvUC without TS beats cross entropy with TS", "5.36 → 1.57", lambda r: below_scaled(r, SOFT_AVUC)),
    ("Interleaved soft ECE improves cross entropy", "9.10 → 6.86", lambda r: falls(r, CE, INTERLEAVED)),
    ("Reweighted MMCE improves cross entropy", "9.10 → 4.77", lambda r: falls(r, CE, "cross_entropy+mmce_weighted")),
    (
        "Reweighted MMCE, β = 0.03, makes focal worse (table 2)",
        "4.66 → 5.07",
        lambda r: rises(r, FOCAL, "focal+mmce_weighted"),
    ),
    (
        "Plain MMCE, β = 0.1, makes focal worse",
        "not in print: 4.66 → 5.07 is the reweighted form",
        lambda r: rises(r, FOCAL, "focal+mmce"),
    ),
    *_matched("cross_entropy", "0.1"),
    *_matched("cross_entropy", "1"),
    *_matched("focal", "0.1"),
    ("TS-SB-ECE beats TS after cross entropy", "5.36 → 4.69", lambda r: soft_scaling(r, CE)),
    (
        "TS-SB-ECE beats TS at all severities of shift after cross entropy (figure 2)",
        "all severities",
        lambda r: soft_scaling_under_shift(r, CE),
    ),
    (
        "TS-SB-ECE beats TS at all severities of shift after focal (figure 9)",
        "all severities",
        lambda r: soft_scaling_under_shift(r, FOCAL),
    ),
    ("Focal beats cross entropy + TS at severity 5 (figure 7)", "lower", lambda r: under_shift(r, FOCAL)),
    ("Focal + soft ECE beats cross entropy + TS at severity 5 (figure 7)", "lower", lambda r: under_shift(r, SOFT_ECE)),
    (
        "Focal + soft AvUC beats cross entropy + TS at severity 5 (figure 7)",
        "lower",
        lambda r: under_shift(r, SOFT_AVUC),
    ),
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


def _half_resolution_cells() -> list[tuple[str, str, Check]]:
    """Each cell of `cells.py` against its primary loss, on the side of the paper's table 2."""
    found: list[tuple[str, str, Check]] = []
    for primary, (plain, cells) in CIFAR10_PRINTED.items():
        for secondary, value in cells.items():
            form = "mmce_weighted" if secondary == "mmce" else secondary
            first, second, lower = f"{primary}+none", f"{primary}+{form}", value < plain
            words = "improves on" if lower else "is worse than"
            claim = f"CIFAR-10 at half resolution: {NAMES[primary]} + {SHORT[form]} {words} {NAMES[primary]} (table 2)"
            check = (
                (lambda r, a=first, b=second: falls(r, a, b))
                if lower
                else (lambda r, a=first, b=second: rises(r, a, b))
            )
            found.append((claim, f"{HALF}: {plain:.2f} → {value:.2f}", check))  # type: ignore[arg-type]
    return found


HALF = "not on this network"
"""The paper's networks classify 94 to 96% of CIFAR-10 correctly, those at half resolution 84 to 88%."""

CIFAR10_CLAIMS: list[tuple[str, str, Check]] = [
    ("CIFAR-10: focal + soft AvUC lowers ECE₂ below cross entropy's", "5.59 → 1.58", lambda r: falls(r, CE, SOFT_AVUC)),
    ("CIFAR-10: focal + soft ECE lowers ECE₂ below cross entropy's", "5.59 → 1.19", lambda r: falls(r, CE, SOFT_ECE)),
    ("CIFAR-10: soft AvUC improves on focal alone", "5.45 → 1.58", lambda r: falls(r, FOCAL, SOFT_AVUC)),
    ("CIFAR-10: soft ECE improves on focal alone", "5.45 → 1.19", lambda r: falls(r, FOCAL, SOFT_ECE)),
    (
        "CIFAR-10: focal + soft ECE costs less than 1 point of accuracy",
        "95.5 → 95.1",
        lambda r: accuracy_cost(r, SOFT_ECE),
    ),
    (
        "CIFAR-10: focal + soft AvUC costs less than 1 point of accuracy",
        "95.5 → 94.4",
        lambda r: accuracy_cost(r, SOFT_AVUC),
    ),
    (
        "CIFAR-10: focal + soft ECE without TS beats cross entropy with TS",
        "1.95 → 1.19",
        lambda r: below_scaled(r, SOFT_ECE),
    ),
    (
        "CIFAR-10: focal + soft AvUC without TS beats cross entropy with TS",
        "1.95 → 1.58",
        lambda r: below_scaled(r, SOFT_AVUC),
    ),
    ("CIFAR-10: TS-SB-ECE beats TS after cross entropy", "1.95 → 1.16", lambda r: soft_scaling(r, CE)),
    (
        "CIFAR-10: TS-SB-ECE beats TS at all severities of shift after cross entropy (figure 2)",
        "all severities",
        lambda r: soft_scaling_under_shift(r, CE),
    ),
    (
        "CIFAR-10: TS-SB-ECE beats TS at all severities of shift after focal (figure 9)",
        "all severities",
        lambda r: soft_scaling_under_shift(r, FOCAL),
    ),
    ("CIFAR-10: TS improves focal", "5.45 → 2.69", lambda r: scaling_helps(r, FOCAL)),
    ("CIFAR-10: focal beats cross entropy + TS at severity 5 (figure 7)", "lower", lambda r: under_shift(r, FOCAL)),
    (
        "CIFAR-10: focal + soft ECE beats cross entropy + TS at severity 5 (figure 7)",
        "lower",
        lambda r: under_shift(r, SOFT_ECE),
    ),
    (
        "CIFAR-10: focal + soft AvUC beats cross entropy + TS at severity 5 (figure 7)",
        "lower",
        lambda r: under_shift(r, SOFT_AVUC),
    ),
]
"""On the ResNet-18 of CIFAR-100, with the parameters that were tuned on CIFAR-100."""

HALF_CLAIMS = _half_resolution_cells()
"""On the cells of `cells.py`, each with its own β."""

OUR_CLAIMS: list[tuple[str, str, Check]] = [
    ("Ours: TS-SB-ECE has a lower ECE₂ than TS-HB-ECE, its hard-binned form in ℓ₂", "not studied", hard_scaling),
]
"""On all networks of both datasets."""


def claim_rows(rows: Runs, claims: Sequence[tuple[str, str, Check]]) -> list[Claim]:
    """Each claim with its evidence."""
    found = []
    for claim, paper, check in claims:
        try:
            words, judged = check(rows)
        except MissingRowError as missing:
            words, judged = f"{missing} not run", None
        found.append(Claim(claim, paper, words, judged))
    return found
