"""Gates: limits on measured figures that turn a measurement into a check for continuous integration.

A gate compares the estimate (not the end of its interval) with the limit. It reads the JSON document of a measurement,
so that a gate on a stored document gives the same answer.
"""

from __future__ import annotations

import math
from typing import Any

from calibrant.cli.terminal import printable
from calibrant.core.errors import InputError
from calibrant.evaluation.rendering import figure
from calibrant.metrics.record import facts, known_name


def limits(given: list[str] | None) -> dict[str, float | None]:
    """Limits by metric from options such as `mce=0.2`.

    >>> limits(["mce=0.2"])
    {'mce': 0.2}
    """
    found: dict[str, float | None] = {}
    for text in given or ():
        name, _, limit = text.partition("=")
        try:
            found[name] = float(limit)
        except ValueError as error:
            raise InputError(f"a limit is NAME=NUMBER, such as mce=0.2, got {text!r}") from error
    return found


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
    wanted = [("at most", at_most), ("at least", at_least or {})]
    asked = [(kind, name, limit) for kind, limits in wanted for name, limit in limits.items() if limit is not None]
    checks = [_compare(document["metrics"], *one) for one in asked]
    for name, limit in (groups_at_most or {}).items():
        if limit is not None:
            for group in _large(document, name, min_rows):
                found = _compare(group["metrics"], "at most", name, limit)
                checks.append({**found, "group": group["by"], "n": group["n"]})
    return {"passed": all(one["passed"] for one in checks), "checks": checks} if checks else None


def words(gate: dict[str, Any]) -> str:
    """The gate in one line for people."""
    failed = [one for one in gate["checks"] if not one["passed"]]
    if not failed:
        return f"gate passed: {len(gate['checks'])} of {len(gate['checks'])} checks"
    texts = []
    for one in failed:
        group = ", ".join(f"{key}={printable(value)}" for key, value in one.get("group", {}).items())
        name, side = one["metric"], "below" if one["kind"] == "at least" else "above"
        value = "unknown" if one["value"] is None else figure(name, one["value"])
        label = facts(name).label + (f" of {group}" if group else "")
        texts.append(f"{label} is {value}, {side} the limit of {figure(name, one['limit'])}")
    return "gate failed: " + "; ".join(texts)


def _large(document: dict[str, Any], name: str, min_rows: int) -> list[dict[str, Any]]:
    """The groups that are large enough to be checked."""
    if "groups" not in document:
        raise InputError(f"--max-group-{name.replace('_', '-')} needs groups: name their column with --by")
    large = [group for group in document["groups"] if group["n"] >= min_rows]
    if not large:
        raise InputError(f"no group has {min_rows} rows, so there is nothing to check: lower --min-rows")
    return large


def _compare(metrics: dict[str, Any], kind: str, name: str, limit: float) -> dict[str, Any]:
    """One check; a figure that could not be computed fails it."""
    found = metrics.get(name, metrics.get(known_name(name)))
    if found is None:
        raise InputError(f"there is no {name} in this measurement: it has {', '.join(sorted(metrics))}")
    value = found["value"] if isinstance(found, dict) else found
    value = None if value is None or not math.isfinite(value) else float(value)
    passed = value is not None and (value >= limit if kind == "at least" else value <= limit)
    return {"metric": name, "kind": kind, "value": value, "limit": limit, "passed": passed}
