"""What a service counts, in Prometheus' text format."""

from __future__ import annotations

import bisect
import threading
from collections import Counter

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper edges of the latency histogram, in seconds."""


class ServiceMetrics:
    """Counters of one process; memory does not grow with traffic, because labels come from fixed sets."""

    def __init__(self, info: dict[str, str]) -> None:
        self._info = info
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._latency = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0
        self._rows = 0

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        with self._lock:
            self._requests[route, status] += 1
            if route == "/calibrate":
                self._latency[bisect.bisect_left(BUCKETS, seconds)] += 1
                self._seconds += seconds

    def rows(self, count: int) -> None:
        """Count calibrated rows."""
        with self._lock:
            self._rows += count

    def text(self) -> str:
        """All figures, one a line."""
        with self._lock:
            requests, latency = dict(self._requests), list(self._latency)
            seconds, rows = self._seconds, self._rows
        lines = ["# HELP calibrant_info What this process serves.", "# TYPE calibrant_info gauge"]
        lines.append(f"calibrant_info{{{_labels(self._info)}}} 1")
        lines += ["# HELP calibrant_requests_total Answered requests.", "# TYPE calibrant_requests_total counter"]
        for (route, status), count in sorted(requests.items()):
            lines.append(f"calibrant_requests_total{{{_labels({'route': route, 'status': str(status)})}}} {count}")
        lines += ["# HELP calibrant_rows_total Calibrated rows.", "# TYPE calibrant_rows_total counter"]
        lines.append(f"calibrant_rows_total {rows}")
        name = "calibrant_request_seconds"
        lines += [f"# HELP {name} Time to answer a calibration request.", f"# TYPE {name} histogram"]
        reached = 0
        for edge, count in zip((*map(str, BUCKETS), "+Inf"), latency, strict=True):
            reached += count
            lines.append(f'{name}_bucket{{le="{edge}"}} {reached}')
        lines += [f"{name}_sum {seconds:.6f}", f"{name}_count {reached}"]
        return "\n".join(lines) + "\n"


def _labels(values: dict[str, str]) -> str:
    return ",".join(f'{name}="{_escape(value)}"' for name, value in values.items())


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
