"""Verdicts on claims: one rule for intervals, one for counts, Holm's correction within a paper, and their tables.

A claim with sampling error is judged by a 95% interval in the units and to the places that are printed. It *holds* if
both rounded ends are on the claimed side of the margin, *does not hold* if both are on the other side, and is *not
decided* otherwise. A count has no sampling error: the claim holds if all its values are in the claimed range. Both name
the raw values that they are computed from, so that a reader can compute them again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scipy.stats import t as student

HOLDS, FAILS, OPEN = "holds", "does not hold", "not decided"
LEVEL = 0.05
KINDS = {
    "paper": "Claims of the paper",
    "beyond": "Not claimed by the paper",
    "ours": "Claims of ours",
}
"""Kinds of claims and the titles of their tables."""

MEASURED = "measured"
"""Entry of a source that is stored in a file of measurements instead of with the claim."""

NOT_CLAIMED = (
    "not studied", "not claimed", "not on this network", "not on these data", "not this procedure", "not in print",
)  # fmt: skip
"""Beginnings of the column "paper" that mark a row as no claim of the paper."""


@dataclass(frozen=True)
class Evidence:
    """An estimate with its 95% interval, in printed units, and the side of the margin on which it is claimed to be.

    df : degrees of freedom of a Student interval; None for one from resamples
    cases : "4 of 7" if the estimate is a mean over cases
    source : the raw values and the kind of interval, as papers/README.md describes them
    """

    value: float
    low: float
    high: float
    side: str = "below"
    margin: float = 0.0
    places: int = 2
    df: float | None = None
    cases: str = ""
    source: Mapping[str, Any] = field(default_factory=dict)

    @property
    def printed(self) -> tuple[float, float, float]:
        """Value and ends as they are printed, without negative zeros."""
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
        """Two-sided p-value of "it is at the margin", from the half of the printed interval that points there."""
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
        """Plain data: the printed numbers, which are all that a verdict reads, and their source."""
        numbers = dict(zip(("value", "low", "high"), self.printed, strict=True))
        df = None if self.df is None else round(self.df, 2)
        finite = {key: value if math.isfinite(value) else None for key, value in numbers.items()}
        source = {key: value for key, value in self.source.items() if key != MEASURED}
        about = {"side": self.side, "margin": round(self.margin, self.places), "places": self.places, "df": df}
        return {**finite, **about, "cases": self.cases, "source": source}


@dataclass(frozen=True)
class Count:
    """Values without sampling error, by name; the claim holds if all of them, as stored, are in [least, most].

    source : what the values are computed from, as papers/README.md describes it; empty if that takes the predictions
    """

    values: Mapping[str, float]
    least: float = -math.inf
    most: float = math.inf
    source: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stored(self) -> dict[str, float]:
        """The values with six decimals."""
        return {name: round(float(value), 6) + 0.0 for name, value in self.values.items()}

    @property
    def within(self) -> int:
        """The number of values in the range."""
        return sum(self.least <= value <= self.most for value in self.stored.values())

    @property
    def verdict(self) -> str:
        """Holds if all values are in the range."""
        return HOLDS if self.within == len(self.values) else FAILS

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the values and the range."""
        ends = {key: end if math.isfinite(end) else None for key, end in (("least", self.least), ("most", self.most))}
        source = {key: value for key, value in self.source.items() if key != MEASURED}
        return {"values": self.stored, **ends, "source": source}


@dataclass(frozen=True)
class Claim:
    """A sentence, the paper's numbers, ours in words, and what decides it: an interval, a count, or no data."""

    claim: str
    paper: str
    ours: str
    judged: Evidence | Count | None

    @property
    def kind(self) -> str:
        """One of KINDS."""
        if self.claim.startswith("Ours:"):
            return "ours"
        return "beyond" if self.paper.startswith(NOT_CLAIMED) else "paper"

    @property
    def verdict(self) -> str:
        """Holds, does not hold, not decided."""
        return OPEN if self.judged is None else self.judged.verdict

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "claim": self.claim,
            "paper": self.paper,
            "ours": self.ours,
            "kind": self.kind,
            "holds": self.verdict,
            "judged": None if self.judged is None else self.judged.to_dict(),
        }


def share(count: int, total: int, margin: float) -> tuple[str, Evidence]:
    """A share of cases with its Wilson 95% interval in percent, and the evidence for "it is above the margin"."""
    z, part = 1.959964, count / total
    center = (part + z**2 / (2 * total)) / (1 + z**2 / total)
    reach = z / (1 + z**2 / total) * math.sqrt(part * (1 - part) / total + z**2 / (4 * total**2))
    low, high = (100 * max(0.0, min(1.0, end)) for end in (center - reach, center + reach))
    words = f"{count} of {total}, {100 * part:.0f}% [{low:.0f}, {high:.0f}]"
    return words, Evidence(100 * part, low, high, "above", margin, places=0, cases=f"{count} of {total}")


def holm(claims: Sequence[Claim]) -> dict[int, str]:
    """Verdicts by index of the paper's claims with intervals, corrected so that all of them err with at most 5%."""
    places = [place for place, one in enumerate(claims) if one.kind == "paper" and isinstance(one.judged, Evidence)]
    values = {place: claims[place].judged.p for place in places}  # type: ignore[union-attr]
    verdicts, rejected = {}, True
    for rank, place in enumerate(sorted(places, key=values.__getitem__)):
        rejected = rejected and values[place] <= LEVEL / (len(places) - rank)
        verdicts[place] = claims[place].verdict if rejected else OPEN
    return verdicts


def claims_markdown(claims: Sequence[Claim]) -> str:
    """A table per kind of claim that occurs; that of the paper's claims has a column after Holm."""
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
    """The verdict, with the number of cases on the claimed side if it is a mean over cases."""
    cases = claim.judged.cases if isinstance(claim.judged, Evidence) else ""
    return f"{claim.verdict} ({cases})" if cases else claim.verdict
