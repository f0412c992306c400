"""What a service counts, for Prometheus.

Requests are counted in plain integers, which costs well under a microsecond; prometheus_client turns them into families
when a scraper asks, in the format it asks for, and adds the figures of the process (memory, CPU, open files).
"""

from __future__ import annotations

import bisect
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from calibrant.core.errors import MissingExtraError

try:
    from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector, CollectorRegistry
except ImportError as error:
    raise MissingExtraError("prometheus_client", "serve") from error

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper edges of the latency histogram, in seconds."""

Families = Callable[[], Iterable[Any]]


class ServiceMetrics(Collector):
    """Counters of one process; memory does not grow with traffic, because labels come from fixed sets."""

    def __init__(self, info: Callable[[], dict[str, str]]) -> None:
        self._info = info
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._latency = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0
        self._rows = 0
        self._reloads: Counter[str] = Counter({"ok": 0, "failed": 0})
        self._more: list[Families] = []
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def add(self, families: Families) -> None:
        """Ask this function for further families at every scrape."""
        self._more.append(families)

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

    def reload(self, outcome: str) -> None:
        """Count a look at a new artifact: `ok` or `failed`."""
        with self._lock:
            self._reloads[outcome] += 1

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """All figures and their content type, in the format that the scraper accepts."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self._registry), content_type

    def describe(self) -> list[Any]:
        """No names ahead: they depend on what was added."""
        return []

    def collect(self) -> Iterator[Any]:
        """The families of this service."""
        with self._lock:
            requests, latency, reloads = dict(self._requests), list(self._latency), dict(self._reloads)
            seconds, rows = self._seconds, self._rows
        info = self._info()
        served = GaugeMetricFamily("calibrant_info", "What this process serves.", labels=list(info))
        served.add_metric(list(info.values()), 1)
        yield served
        answered = CounterMetricFamily("calibrant_requests", "Answered requests.", labels=["route", "status"])
        for (route, status), count in sorted(requests.items()):
            answered.add_metric([route, str(status)], count)
        yield answered
        yield CounterMetricFamily("calibrant_rows", "Calibrated rows.", value=rows)
        reloaded = CounterMetricFamily("calibrant_reloads", "New artifacts found at the path.", labels=["outcome"])
        for outcome, count in reloads.items():
            reloaded.add_metric([outcome], count)
        yield reloaded
        buckets, reached = [], 0
        for edge, count in zip((*map(str, BUCKETS), "+Inf"), latency, strict=True):
            reached += count
            buckets.append((edge, reached))
        histogram = HistogramMetricFamily("calibrant_request_seconds", "Time to answer a calibration request.")
        histogram.add_metric([], buckets, seconds)
        yield histogram
        for families in self._more:
            yield from families()
