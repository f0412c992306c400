"""The paper's claims on CIFAR-100 beside what the runs here say; each verdict is computed from the results."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

Runs = dict[str, list[dict[str, Any]]]
CE, FOCAL = "cross_entropy+none", "focal+none"
SOFT_ECE, SOFT_AVUC = "focal+soft_ece", "focal+soft_avuc"
INTERLEAVED = "cross_entropy+soft_ece (interleaved)"


class MissingRowError(Exception):
    """A row this claim needs has not been run."""


def mean(rows: Runs, row: str, *path: str) -> float:
    """Mean over seeds of one figure, in percent."""
    if row not in rows:
        raise MissingRowError(row)
    values = []
    for run in rows[row]:
        value: Any = run
        for key in path:
            value = value[key]
        values.append(100 * float(value))
    return statistics.mean(values)


def ece2(rows: Runs, row: str, scaling: str = "none") -> float:
    """Equal-mass ECE₂ of a row."""
    return mean(rows, row, "test", scaling, "mass_ece")


def severity(rows: Runs, row: str, level: int, scaling: str = "none") -> float:
    """Equal-mass ECE₂ at a severity, mean over corruptions."""
    if row not in rows:
        raise MissingRowError(row)
    kinds = sorted({name.rsplit("-", 1)[0] for name in rows[row][0]["shift"]})
    return statistics.mean(mean(rows, row, "shift", f"{kind}-{level}", scaling, "mass_ece") for kind in kinds)


def falls(before: float, after: float) -> tuple[str, bool]:
    """The two figures and whether the second is lower."""
    return f"{before:.2f} → {after:.2f}", after < before


Check = Callable[[Runs], tuple[str, bool]]


def accuracy_cost(rows: Runs) -> tuple[str, bool]:
    """Accuracy of cross entropy and of the two soft rows."""
    plain = mean(rows, CE, "test", "none", "accuracy")
    soft = [mean(rows, row, "test", "none", "accuracy") for row in (SOFT_ECE, SOFT_AVUC)]
    return f"{plain:.2f} → {soft[0]:.2f}, {soft[1]:.2f}", min(soft) > plain - 1


def below_scaled(rows: Runs) -> tuple[str, bool]:
    """Cross entropy after TS against the two soft rows without."""
    scaled, soft = ece2(rows, CE, "ts"), [ece2(rows, row) for row in (SOFT_ECE, SOFT_AVUC)]
    return f"{scaled:.2f} against {soft[0]:.2f}, {soft[1]:.2f}", max(soft) < scaled


def gradient_stop(rows: Runs) -> tuple[str, bool]:
    """AvUC against AvUC-GS under both primary losses."""
    pairs = [(ece2(rows, f"{one}+avuc"), ece2(rows, f"{one}+avuc_gs")) for one in ("cross_entropy", "focal")]
    words = ", ".join(f"{before:.2f} → {after:.2f}" for before, after in pairs)
    return words, all(after < before for before, after in pairs)


def soft_scaling_under_shift(rows: Runs) -> tuple[str, bool]:
    """TS against TS-SB-ECE for cross entropy at severities 1 to 5."""
    pairs = [(severity(rows, CE, level, "ts"), severity(rows, CE, level, "ts-soft")) for level in range(1, 6)]
    words = ", ".join(f"{before:.1f} → {after:.1f}" for before, after in pairs)
    return words, all(after < before for before, after in pairs)


def focal_under_shift(rows: Runs) -> tuple[str, bool]:
    """Cross entropy + TS against focal at severity 5."""
    scaled, trained = severity(rows, CE, 5, "ts"), severity(rows, FOCAL, 5)
    return f"{scaled:.1f} against {trained:.1f}", trained < scaled


def soft_under_shift(rows: Runs) -> tuple[str, bool]:
    """Cross entropy + TS against focal + soft ECE and focal + soft AvUC at severity 5."""
    scaled, trained = severity(rows, CE, 5, "ts"), [severity(rows, row, 5) for row in (SOFT_ECE, SOFT_AVUC)]
    return f"{scaled:.1f} against {', '.join(f'{one:.1f}' for one in trained)}", max(trained) < scaled


def scaling_hurts_focal(rows: Runs) -> tuple[str, bool]:
    """Focal before and after TS."""
    before, after = ece2(rows, FOCAL), ece2(rows, FOCAL, "ts")
    return f"{before:.2f} → {after:.2f}", after > before


def avuc_hurts(rows: Runs) -> tuple[str, bool]:
    """Cross entropy without and with AvUC."""
    before, after = ece2(rows, CE), ece2(rows, "cross_entropy+avuc")
    return f"{before:.2f} → {after:.2f}", after > before


def marginal(rows: Runs) -> tuple[str, bool]:
    """Marginal ECE₂ of cross entropy and of the two soft rows."""
    plain = mean(rows, CE, "test", "none", "marginal_ece")
    soft = [mean(rows, row, "test", "none", "marginal_ece") for row in (SOFT_ECE, SOFT_AVUC)]
    return f"{plain:.3f} → {soft[0]:.3f}, {soft[1]:.3f}", max(soft) < plain


CLAIMS: list[tuple[str, str, Check]] = [
    (
        "Focal + soft AvUC lowers ECE₂ below cross entropy's",
        "9.10 → 1.57",
        lambda r: falls(ece2(r, CE), ece2(r, SOFT_AVUC)),
    ),
    ("Focal + soft ECE does too", "9.10 → 2.30", lambda r: falls(ece2(r, CE), ece2(r, SOFT_ECE))),
    ("Soft AvUC improves on focal alone", "4.66 → 1.57", lambda r: falls(ece2(r, FOCAL), ece2(r, SOFT_AVUC))),
    ("Soft ECE improves on focal alone", "4.66 → 2.30", lambda r: falls(ece2(r, FOCAL), ece2(r, SOFT_ECE))),
    ("It costs less than 1 point of accuracy", "78.7 → 78.6, 78.1", accuracy_cost),
    ("Soft rows without TS beat cross entropy with TS", "5.36 against 2.30, 1.57", below_scaled),
    ("Interleaved soft ECE improves cross entropy", "9.10 → 6.86", lambda r: falls(ece2(r, CE), ece2(r, INTERLEAVED))),
    ("MMCE improves cross entropy", "9.10 → 4.77", lambda r: falls(ece2(r, CE), ece2(r, "cross_entropy+mmce"))),
    ("AvUC makes cross entropy worse", "9.10 → 11.4", avuc_hurts),
    ("Stopping the gradient through c repairs AvUC", "11.4 → 6.21, 5.68 → 3.38", gradient_stop),
    (
        "TS-SB-ECE beats TS after cross entropy",
        "5.36 → 4.69",
        lambda r: falls(ece2(r, CE, "ts"), ece2(r, CE, "ts-soft")),
    ),
    ("… and at every severity of shift", "figure 2", soft_scaling_under_shift),
    ("Focal beats cross entropy + TS at severity 5", "figure 7", focal_under_shift),
    ("Focal with a soft loss does too", "figure 7", soft_under_shift),
    ("TS makes focal worse", "4.66 → 6.47", scaling_hurts_focal),
    ("Marginal ECE₂ falls as well", "3.78 → 3.05, 2.72", marginal),
]


def claims_table(rows: Runs) -> str:
    """claim | paper | here | holds?"""
    lines = ["| claim | paper, % | here, % | holds here? |", "| --- | --- | --- | --- |"]
    for claim, paper, check in CLAIMS:
        try:
            words, holds = check(rows)
            lines.append(f"| {claim} | {paper} | {words} | {'yes' if holds else '**no**'} |")
        except MissingRowError as missing:
            lines.append(f"| {claim} | {paper} | {missing} not run | open |")
    return "\n".join(lines)
