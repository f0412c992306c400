"""Gates: limits on measured figures that turn a measurement into a check for continuous integration.

A gate compares the estimate (not the end of its interval) with the limit. It reads the JSON document of a measurement,
so that a gate on a stored document gives the same answer.
"""

from __future__ import annotations

import math
from typing import Any

from calibrant.cli.terminal import printable
from calibrant.core.errors import InputError
from calibrant.metrics.record import facts, known_name


def check(
    document: dict[str, Any],
    *,
    at_most: dict[str, float | None],
    at_least: dict[str, float | None] | None = None,
    groups_at_most: dict[str, float | None] | None = None,
    min_rows: int = 500,
) -> dict[str, Any] | None:
    """The field `gate` of a measurement's document: {"passed", "checks"}; None where no limit was given.

    >>> check({"metrics": {"ece": {"value": 0.05}}}, at_most={"ece": 0.03})["passed"]
    False
    """
    checks = [
        _compare(_value(document["metrics"], name), name, limit, least=least)
        for limits, least in ((at_most, False), (at_least or {}, True))
        for name, limit in limits.items()
        if limit is not None
    ]
    for name, limit in (groups_at_most or {}).items():
        if limit is not None:
            checks += _group_checks(document, name, limit, min_rows)
    if not checks:
        return None
    return {"passed": all(one["passed"] for one in checks), "checks": checks}


def words(gate: dict[str, Any]) -> str:
    """The gate in one line for people."""
    failed = [one for one in gate["checks"] if not one["passed"]]
    if not failed:
        return f"gate passed: {len(gate['checks'])} of {len(gate['checks'])} checks"
    texts = []
    for one in failed:
        of = (
            " of " + ", ".join(f"{key}={printable(value)}" for key, value in one["group"].items())
            if "group" in one
            else ""
        )
        sign = "below" if one["kind"] == "at least" else "above"
        label = facts(one["metric"]).label
        shown = "unknown" if one["value"] is None else _shown(one["metric"], one["value"])
        texts.append(f"{label}{of} is {shown}, {sign} the limit of {_shown(one['metric'], one['limit'])}")
    return "gate failed: " + "; ".join(texts)


def _group_checks(document: dict[str, Any], name: str, limit: float, min_rows: int) -> list[dict[str, Any]]:
    if "groups" not in document:
        raise InputError(f"--max-group-{name.replace('_', '-')} needs groups: name their column with --by")
    large = [group for group in document["groups"] if group["n"] >= min_rows]
    if not large:
        raise InputError(f"no group has {min_rows} rows, so there is nothing to check: lower --min-rows")
    return [
        {**_compare(_value(group["metrics"], name), name, limit, least=False), "group": group["by"], "n": group["n"]}
        for group in large
    ]


def _compare(value: float | None, name: str, limit: float, *, least: bool) -> dict[str, Any]:
    passed = value is not None and (value >= limit if least else value <= limit)
    kind = "at least" if least else "at most"
    return {"metric": name, "kind": kind, "value": value, "limit": limit, "passed": passed}


def _value(metrics: dict[str, Any], name: str) -> float | None:
    """The figure of a metric; None where it could not be computed."""
    found = metrics.get(name, metrics.get(known_name(name)))
    if found is None:
        raise InputError(f"there is no {name} in this measurement: it has {', '.join(sorted(metrics))}")
    value = found["value"] if isinstance(found, dict) else found
    return float(value) if value is not None and math.isfinite(value) else None


def _shown(name: str, value: float) -> str:
    return f"{100 * value:.2f}%" if facts(name).percent else f"{value:.4f}"
