"""The section "For whom?": signed gaps of every group before and after, and the worst group's reliability diagram."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from calibrant.evaluation.groups import GroupAnalysis, GroupFigures
from calibrant.evaluation.results import Comparison
from calibrant.report.aggregate import Table, baseline, finished, rounded
from calibrant.report.labels import figure, signed_points, two_decimals, with_interval
from calibrant.report.wording import wording

MOST_GROUPS = 40
"""Groups the page shows; of more, those with the largest gaps under the best method."""


def analyses(comparison: Comparison) -> dict[str, GroupAnalysis]:
    """What is known of the groups under each method; empty where none were asked for."""
    return {row.method: row.groups for row, _ in finished(comparison) if row.groups is not None}


def group_tables(comparison: Comparison) -> dict[str, Any] | None:
    """Gaps of the shown groups under every method, the bins of the group in focus, and a sentence per method."""
    found = analyses(comparison)
    if not found:
        return None
    shown, focus = shown_groups(comparison), focus_group(comparison)
    gaps: Table = {name: [] for name in ("method", "group", "rows", "gap", "low", "high", "few", "side")}
    bins: Table = {name: [] for name in ("method", "confidence", "accuracy", "count")}
    for method, analysis in found.items():
        for place in shown:
            _add_gap(gaps, method, analysis.groups[place], comparison)
        sums = analysis.groups[focus].bins
        if sums is not None:
            full = sums.weight > 0
            weight = sums.weight[full]
            bins["method"] += [method] * int(full.sum())
            bins["confidence"] += rounded(sums.confidence[full] / weight)
            bins["accuracy"] += rounded(sums.correct[full] / weight)
            bins["count"] += rounded(weight)
    return {
        "gaps": gaps,
        "bins": bins,
        "focus": next(iter(found.values())).groups[focus].name,
        "sentences": {method: sentence(analysis) for method, analysis in found.items()},
    }


def _add_gap(gaps: Table, method: str, one: GroupFigures, comparison: Comparison) -> None:
    gap, words = one.metrics["gap"], wording(comparison)
    gaps["method"].append(method)
    gaps["group"].append(one.name)
    gaps["rows"].append(one.n)
    for name in ("value", "low", "high"):
        gaps["gap" if name == "value" else name] += rounded([getattr(gap, name)])
    gaps["few"].append(one.too_few)
    gaps["side"].append(words.high if gap.low > 0 else words.low if gap.high < 0 else "within chance")


def shown_groups(comparison: Comparison) -> list[int]:
    """Places of the groups to show, the largest gap under the best method first."""
    found = analyses(comparison)
    chosen = found.get(comparison.best or "") or next(iter(found.values()))
    size = [abs(one.metrics["gap"].value) for one in chosen.groups]
    return [int(place) for place in np.argsort(-np.nan_to_num(size), kind="stable")[:MOST_GROUPS]]


def focus_group(comparison: Comparison) -> int:
    """The group whose diagram is drawn: worst served under the best method, else before it, else the largest gap."""
    found = analyses(comparison)
    for method in (comparison.best, baseline(comparison)):
        worst = found[method].worst if method in found else None
        if worst is not None:
            return worst
    return shown_groups(comparison)[0]


def sentence(analysis: GroupAnalysis) -> str:
    """The verdict with a capital letter and a stop."""
    return f"{analysis.verdict[:1].upper()}{analysis.verdict[1:]}."


def lead(comparison: Comparison) -> str:
    """What the groups are, and how many of them are shown."""
    found = analyses(comparison)
    if not found:
        return ""
    first = next(iter(found.values()))
    columns, count = " and ".join(escape(column) for column in first.columns), len(first.groups)
    more = f" Shown are the {MOST_GROUPS} with the largest gaps." if count > MOST_GROUPS else ""
    return f"An average can be right while everyone it is made of is not. {count} groups by {columns}.{more}"


def table(comparison: Comparison) -> str:
    """Every shown group before and after the best method."""
    found, best, before = analyses(comparison), comparison.best, baseline(comparison)
    if best not in found or before not in found or best is None or before is None:
        return ""
    clinical = "observed_expected" in found[best].groups[0].metrics
    heads = ["Group", "Rows", "Gap before", "Gap after", "ECE after", "by chance"]
    heads += ["O:E after"] if clinical else []
    lines = []
    for place in shown_groups(comparison):
        old, new = found[before].groups[place], found[best].groups[place]
        cells = [f"{new.n:,}", *(with_interval(one.metrics["gap"], signed_points) for one in (old, new))]
        cells += [figure(new.metrics["ece"].value, percent=True), figure(new.noise_floor.mean, percent=True)]
        cells += [with_interval(new.metrics["observed_expected"], two_decimals)] if clinical else []
        few = ' <span class="few" title="too few rows or events to judge">few rows</span>' if new.too_few else ""
        lines.append(
            f'<tr><th scope="row">{escape(new.name)}{few}</th>' + "".join(f"<td>{one}</td>" for one in cells) + "</tr>"
        )
    head = "".join(f'<th scope="col">{one}</th>' for one in heads)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Table of groups"><table class="small">'
        f'<caption class="hidden">Groups before and after {escape(best)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )
