"""Verdicts on claims: one rule from intervals, one rounding, Holm's correction within a paper, and their tables.

A claim is judged by a 95% interval in the units and to the places that are printed: *holds* when both ends, so rounded,
lie on the claimed side of the margin, *does not hold* when both lie on the other, *not decided* otherwise. What is
counted without error is a bool.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import t as student

HOLDS, FAILS, OPEN = "holds", "does not hold", "not decided"
LEVEL = 0.05
KINDS = {
    "paper": "Claims of the paper",
    "beyond": "What the paper does not study or say",
    "ours": "Claims of ours",
}
"""Kinds of claims and the titles of their tables."""


@dataclass(frozen=True)
class Evidence:
    """A figure with its 95% interval, in printed units, and the side of the margin on which it is claimed to lie.

    df : degrees of freedom of a Student interval; None for one from resamples.
    cases : "4 of 7" where the figure is a mean over cases.
    """

    value: float
    low: float
    high: float
    side: str = "below"
    margin: float = 0.0
    places: int = 2
    df: float | None = None
    cases: str = ""

    @property
    def printed(self) -> tuple[float, float, float]:
        """Value and ends as they are printed; what rounds to zero is zero."""
        value, low, high = (round(one, self.places) + 0.0 for one in (self.value, self.low, self.high))
        return value, low, high

    @property
    def verdict(self) -> str:
        """The only place where an interval becomes a verdict."""
        _, low, high = self.printed
        if math.isnan(low) or math.isnan(high):
            return OPEN
        beyond, short = (high < self.margin, low > self.margin)
        if self.side == "above":
            beyond, short = short, beyond
        return HOLDS if beyond else (FAILS if short else OPEN)

    @property
    def p(self) -> float:
        """Two-sided p-value of "it lies at the margin", from the half of the printed interval that points there."""
        value, low, high = self.printed
        gap = value - self.margin
        reach = value - low if gap > 0 else high - value
        if not math.isfinite(reach) or math.isnan(gap):
            return 1.0
        if reach <= 0:
            return 1.0 if gap == 0 else 0.0
        df = math.inf if self.df is None else round(self.df, 2)
        return float(2 * student.sf(abs(gap) / reach * student.ppf(0.975, df), df))

    def __str__(self) -> str:
        words = (f"{one:+.{self.places}f}" for one in self.printed)
        value, low, high = (word.replace("-", "−") for word in words)
        return f"{value} [{low}, {high}]" if math.isfinite(self.high - self.low) else f"{value} (one seed)"

    def to_dict(self) -> dict[str, Any]:
        """As plain data: the figures as printed, which are all that a verdict reads."""
        numbers = dict(zip(("value", "low", "high"), self.printed, strict=True))
        df = None if self.df is None else round(self.df, 2)
        kept = {key: value if math.isfinite(value) else None for key, value in numbers.items()}
        about = {"side": self.side, "margin": round(self.margin, self.places), "places": self.places, "df": df}
        return {**kept, **about, "cases": self.cases}


@dataclass(frozen=True)
class Claim:
    """A sentence, the paper's figure, ours in words, and what it is judged by: an interval, a count, or nothing."""

    claim: str
    paper: str
    ours: str
    judged: Evidence | bool | None

    @property
    def kind(self) -> str:
        """Of the paper, beyond it, or ours."""
        if self.claim.startswith("Ours:"):
            return "ours"
        return "beyond" if self.paper in ("not studied", "not said") else "paper"

    @property
    def verdict(self) -> str:
        """Holds, does not hold, not decided."""
        if self.judged is None:
            return OPEN
        if isinstance(self.judged, bool):
            return HOLDS if self.judged else FAILS
        return self.judged.verdict

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        judged = self.judged.to_dict() if isinstance(self.judged, Evidence) else self.judged
        return {
            "claim": self.claim,
            "paper": self.paper,
            "ours": self.ours,
            "kind": self.kind,
            "holds": self.verdict,
            "judged": judged,
        }


def holm(claims: Sequence[Claim]) -> dict[int, str]:
    """Verdicts by place among the paper's claims that have intervals, so that all of them err with at most 5%."""
    places = [place for place, one in enumerate(claims) if one.kind == "paper" and isinstance(one.judged, Evidence)]
    values = {place: claims[place].judged.p for place in places}  # type: ignore[union-attr]
    verdicts, rejected = {}, True
    for rank, place in enumerate(sorted(places, key=values.__getitem__)):
        rejected = rejected and values[place] <= LEVEL / (len(places) - rank)
        verdicts[place] = claims[place].verdict if rejected else OPEN
    return verdicts


def claims_markdown(claims: Sequence[Claim]) -> str:
    """A table for each kind of claim that occurs; the paper's own also after Holm."""
    corrected = holm(claims)
    parts = []
    for kind, title in KINDS.items():
        chosen = [(place, one) for place, one in enumerate(claims) if one.kind == kind]
        if not chosen:
            continue
        columns = ("claim", "paper", "ours", "verdict", *(["after Holm"] if kind == "paper" else []))
        lines = [f"### {title}", "", "| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
        for place, one in chosen:
            cells = [one.claim, one.paper, one.ours, verdict_words(one)]
            if kind == "paper":
                cells.append(corrected.get(place, "counted"))
            lines.append("| " + " | ".join(cells) + " |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def verdict_words(claim: Claim) -> str:
    """The verdict; of a mean over cases, in how many of them."""
    cases = claim.judged.cases if isinstance(claim.judged, Evidence) else ""
    return f"{claim.verdict} ({cases})" if cases else claim.verdict
