"""The table of all metrics, from their records."""

from __future__ import annotations

from calibrant.metrics import METRICS

DIRECTION = {-1: "low", 1: "high", 0: "neither"}
ABOUT = {"any": "any", "matrix": "classes", "score": "one score", "confidence": "confidence"}


def metric_table() -> str:
    """A Markdown table: name, meaning, unit, good direction, and the rows that it is asked about."""
    lines = ["| figure | shown as | meaning | good | asked about |", "| --- | --- | --- | --- | --- |"]
    for metric in METRICS.values():
        for one in metric.figures:
            direction, about = DIRECTION[one.better], ABOUT[metric.about]
            lines.append(f"| `{one.name}` | {one.title} | {one.meaning} | {direction} | {about} |")
    return "\n".join(lines) + "\n"
