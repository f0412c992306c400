"""Outcomes that come back to a service: answers into a sequential monitor, and the monitor into Prometheus."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from calibrant.core.atomic import atomic_write, check_target
from calibrant.core.errors import InputError
from calibrant.shipping.group_monitor import GroupMonitor
from calibrant.shipping.monitor import Monitor
from calibrant.shipping.watch import Feed, dump_state, parse_state

MAX_PROMETHEUS_GROUPS = 50
FIGURES = {
    "evidence": "Wealth of the bet against calibration; the alarm rises at 1/rate.",
    "ece": "ECE of the latest answers.",
    "noise_floor_95": "ECE that 95 in 100 calibrated models stay below on these answers.",
    "confidence": "Mean confidence of the latest answers.",
    "accuracy": "Accuracy of the latest answers.",
}


class FeedbackDesk:
    """Takes answers with their outcomes; safe to call from several threads.

    An answer is a record as `calibrant monitor` reads it. An `id` makes one that is sent twice count once, and
    `artifact` (from the header `x-calibrant-artifact` of the service's answer) keeps outcomes of an earlier artifact
    out of the monitor of the present one.
    """

    def __init__(
        self,
        monitor: Monitor | GroupMonitor,
        *,
        batch: str | None = None,
        by: str | None = None,
        state: str | os.PathLike[str] | None = None,
        artifact: str = "",
    ) -> None:
        self._lock = threading.Lock()
        self._path = None if state is None else Path(state)
        self._feed = Feed(monitor, batch, by, "id", id_is_optional=True)
        self._artifact = artifact
        self._report: tuple[int, dict[str, Any]] | None = None
        self.n_stale = 0
        self.n_resets = 0
        self.unsaved = False
        if self._path is not None:
            check_target(self._path)
            self._resume(self._path)

    @property
    def alarm(self) -> bool:
        """Whether the alarm has risen."""
        return self._feed.monitor.alarm

    def take(self, records: list[Any]) -> dict[str, Any]:
        """Give outcomes to the monitor: all of them, or none where one is unsound."""
        current = []
        for index, record in enumerate(records):
            try:
                self._feed.check(record)
                named = record.get("artifact", self._artifact)
                if not isinstance(named, str):
                    raise InputError(f"artifact is {str(named)[:40]!r}, but must be a text")
                if named == self._artifact:
                    current.append(record)
            except InputError as error:
                raise InputError(f"answer {index}: {error}") from error
        with self._lock:
            before = self._feed.n_duplicates
            taken = self._feed.take(answer for record in current if (answer := self._feed.parse(record)) is not None)
            self.n_stale += len(records) - len(current)
            self.unsaved |= taken > 0
            monitor = self._feed.monitor
            return {
                "taken": taken,
                "duplicates": self._feed.n_duplicates - before,
                "stale": len(records) - len(current),
                "n": monitor.n,
                "alarm": monitor.alarm,
            }

    def renew(self, artifact: str) -> None:
        """Start anew for another artifact: what was learned about the last one says nothing about it."""
        with self._lock:
            self._feed.monitor.reset()
            self._artifact, self._report = artifact, None
            self.n_resets += 1
            self.unsaved = True

    def report(self) -> dict[str, Any]:
        """The monitor's report; `n` alone before the first answer."""
        with self._lock:
            monitor = self._feed.monitor
            if monitor.n == 0:
                return {"n": 0, "alarm": False}
            if self._report is None or self._report[0] != monitor.n:
                report = monitor.report()
                self._report = (monitor.n, report if isinstance(report, dict) else report.to_dict())
            return self._report[1]

    def save(self) -> None:
        """Write the state, if there is a file for it and something new."""
        if self._path is None or not self.unsaved:
            return
        with self._lock:
            text = dump_state({"feed": self._feed.state(), "artifact": self._artifact})
            self.unsaved = False
        with atomic_write(self._path) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def _resume(self, path: Path) -> None:
        if not path.exists():
            return
        try:
            content = parse_state(path.read_text(encoding="utf-8"))
            feed = Feed.from_state(content["feed"])
        except (ValueError, KeyError, TypeError) as error:
            reason = error if isinstance(error, InputError) else "it is not the state of a monitor"
            raise InputError(f"{path}: {reason}; move it away to start anew") from error
        fresh = self._feed
        if (feed.batch, feed.by, feed.monitor.settings) != (fresh.batch, fresh.by, fresh.monitor.settings):
            raise InputError(f"{path} was kept with other monitor options: use the same, or move it away")
        if content["artifact"] == self._artifact:
            self._feed = feed

    def collect(self) -> Iterator[Any]:
        """The monitor for Prometheus, as of now."""
        report = self.report()
        monitor, name = self._feed.monitor, "calibrant_monitor"

        def by_group(figure: str, words: str) -> GaugeMetricFamily:
            family = GaugeMetricFamily(f"{name}_{figure}", words, labels=["group"])
            family.add_metric([""], float(report[figure]))
            for group in report.get("groups", [])[:MAX_PROMETHEUS_GROUPS]:
                family.add_metric([group["group"]], float(group[figure]))
            return family

        yield GaugeMetricFamily(f"{name}_answers", "Answers with an outcome since the monitor began.", monitor.n)
        yield by_group("alarm", "1 from the moment calibration broke.")
        yield CounterMetricFamily(f"{name}_duplicates", "Answers that came twice.", value=self._feed.n_duplicates)
        yield CounterMetricFamily(f"{name}_stale", "Answers about an earlier artifact.", value=self.n_stale)
        yield CounterMetricFamily(f"{name}_resets", "New beginnings after a new artifact.", value=self.n_resets)
        for figure, words in FIGURES.items():
            if figure in report:
                yield by_group(figure, words)
