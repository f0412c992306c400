"""Labelled answers as JSON objects into a monitor, from a log or over HTTP."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.core.schema import identifier
from calibrant.shipping.monitor import GroupMonitor, Monitor, top_answers
from calibrant.shipping.state import StateFile, Stateful

FORMATS = '{"confidence": 0.9, "correct": true}, {"probabilities": […], "label": 3} or {"logits": […], "label": 3}'
SEEN_IDS = 100_000
MAX_PROMETHEUS_GROUPS = 50
FIGURES = {
    "evidence": "Wealth of the bet against calibration; the alarm rises at 1/rate.",
    "ece": "ECE of the latest answers.",
    "noise_floor_95": "ECE that 95 in 100 calibrated models stay below on these answers.",
    "confidence": "Mean confidence of the latest answers.",
    "accuracy": "Accuracy of the latest answers.",
}

Answer = tuple[float, bool, str, str]
"""Confidence, correctness, batch and group."""


class Feed(Stateful):
    """Answers into a monitor of its own.

    Parameters
    ----------
    batch : a number of answers per bet, or the field that names the batch of an answer.
    by : the field that names the group of an answer; the monitor is a `GroupMonitor` then.
    id : the field that names an answer: one that comes twice counts once.
    state_file : a file that keeps what is known between runs; `notes` has what there is to say about it.
    settings : further parameters of `Monitor`.
    """

    STATE = ("n_duplicates", "monitor")
    id_is_optional = False
    """Whether answers without the field `id` are taken."""

    def __init__(
        self,
        *,
        batch: Any = None,
        by: str | None = None,
        id: str | None = None,
        state_file: Any = None,
        **settings: Any,
    ) -> None:
        size = int(batch) if batch is not None and str(batch).isdigit() else None
        self.monitor = (Monitor if by is None else GroupMonitor)(batch=size, **settings)
        self.batch, self.by, self.id = None if size else batch, by, id
        chosen = {name: value for name, value in self.monitor.settings.items() if name != "seed"}
        self.choices = {**chosen, "batch": size or batch, "by": by, "id": id}
        self.seen: dict[int, None] = {}
        """Digests of the latest ids, oldest first."""
        self.n_duplicates = 0
        self._file = None if state_file is None else StateFile(state_file)
        self.notes = [] if self._file is None else self._file.load(self.restore)

    def check(self, record: Any) -> tuple[Answer, str | None]:
        """A record as an answer, and its id; nothing is remembered."""
        confidence, correct = answer_of(record)
        batch, group = ("" if key is None else _field(record, key) for key in (self.batch, self.by))
        unnamed = self.id is None or (self.id_is_optional and self.id not in record)
        return (confidence, correct, batch, group), None if unnamed else _field(record, self.id)

    def count(self, checked: Iterable[tuple[Answer, str | None]]) -> int:
        """Give answers to the monitor, without those whose id was counted before; returns how many there were."""
        rows = [answer for answer, name in checked if name is None or self._is_new(name)]
        if rows:
            confidence, correct, batches, groups = map(list, zip(*rows, strict=True))
            more = () if self.by is None else (groups,)
            names = None if self.batch is None else batches
            self.monitor.update_answers(np.array(confidence), np.array(correct), *more, batches=names)
        return len(rows)

    def _is_new(self, name: str) -> bool:
        """Whether this id is not among the latest; it is from now on."""
        text = name.encode("utf-8", "surrogatepass")
        digest = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
        if digest in self.seen:
            self.n_duplicates += 1
            return False
        self.seen[digest] = None
        if len(self.seen) > SEEN_IDS:
            del self.seen[next(iter(self.seen))]  # a dict keeps the order of insertion
        return True

    def state(self) -> dict[str, Any]:
        """Choices, ids and monitor as plain values for JSON."""
        return {**super().state(), "choices": self.choices, "seen": list(self.seen)}

    def restore(self, state: Any) -> None:
        """Go on from a state that was kept with the same choices."""
        odd = [name for name in self.choices if self.choices[name] != state["choices"][name]]
        if odd:
            before, now = ({name: one[name] for name in odd} for one in (state["choices"], self.choices))
            raise InputError(f"it was kept with other monitor options, {before}, but {now} is asked for: use the same")
        self.seen = dict.fromkeys(int(digest) for digest in state["seen"][-SEEN_IDS:])
        super().restore(state)

    def save(self) -> None:
        """Write the state, if there is a file for it."""
        if self._file is not None:
            self._file.save(self.state())


def parse_record(line: str | bytes) -> dict[str, Any]:
    """The JSON object of one line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON; a line is {FORMATS}") from error
    if not isinstance(record, dict):
        raise InputError(f"not an object; a line is {FORMATS}")
    return record


def answer_of(record: Any) -> tuple[float, bool]:
    """Confidence and correctness of one record.

    >>> answer_of({"probabilities": [0.2, 0.8], "label": 1})
    (0.8, True)
    """
    if not isinstance(record, dict):
        raise InputError(f"an answer is no object; it is {FORMATS}")
    if "confidence" in record:
        confidence, correct = record["confidence"], record.get("correct")
        if "prediction" in record and "label" in record:
            correct = record["prediction"] == record["label"]
        if type(confidence) not in (int, float) or not 0 <= confidence <= 1:
            raise InputError(f"confidence is {str(confidence)[:40]!r}, but must lie in [0, 1]")
        if not isinstance(correct, bool) and correct not in (0, 1):
            raise InputError(f"correct is {str(correct)[:40]!r}, but must be true or false")
        return float(confidence), bool(correct)
    kind = next((kind for kind in ("probabilities", "logits") if kind in record), "")
    label = record.get("label")
    if not kind or type(label) is not int:
        raise InputError(f"no confidence, or no probabilities or logits with a whole number as label; give {FORMATS}")
    sure, right = top_answers([record[kind]], [label], from_logits=kind == "logits")
    return float(min(sure[0], 1.0)), bool(right[0])


def _field(record: dict[str, Any], name: Any) -> str:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"field {name!r} is {str(value)[:40]!r}, but must be a text or a number")
    return identifier(value)


class FeedbackDesk(Feed):
    """Takes answers with their outcomes for a service; safe to call from several threads.

    An answer is a record as `calibrant monitor` reads it. An `id` makes one that is sent twice count once, and
    `artifact` (from the header `x-calibrant-artifact` of the service's answer) keeps outcomes of an earlier artifact
    out of the monitor of the present one. `state` is a file that keeps the monitor between runs; `choices` are those of
    `Feed`.
    """

    id_is_optional = True

    def __init__(self, *, state: Any = None, artifact: str = "", **choices: Any) -> None:
        self._lock = threading.Lock()
        self.artifact = artifact
        self._report: tuple[int, dict[str, Any]] | None = None
        self._unsaved = False
        self.n_stale = self.n_resets = 0
        super().__init__(id="id", state_file=state, **choices)

    def take(self, records: list[Any]) -> dict[str, Any]:
        """Give outcomes to the monitor: all of them, or none where one is unsound."""
        current = []
        for index, record in enumerate(records):
            try:
                checked = self.check(record)
                named = record.get("artifact", self.artifact)
                if not isinstance(named, str):
                    raise InputError(f"artifact is {str(named)[:40]!r}, but must be a text")
                if named == self.artifact:
                    current.append(checked)
            except InputError as error:
                raise InputError(f"answer {index}: {error}") from error
        stale = len(records) - len(current)
        with self._lock:
            taken = self.count(current)
            self.n_stale += stale
            self._unsaved |= taken > 0
            counts = {"taken": taken, "duplicates": len(current) - taken, "stale": stale}
            return {**counts, "n": self.monitor.n, "alarm": self.monitor.alarm}

    def renew(self, artifact: str) -> None:
        """Start anew for another artifact: what was learned about the last one says nothing about it."""
        with self._lock:
            self.monitor.reset()
            self.artifact, self._report = artifact, None
            self.n_resets += 1
            self._unsaved = True

    def report(self) -> dict[str, Any]:
        """The monitor's report; `n` alone before the first answer."""
        with self._lock:
            n = self.monitor.n
            if n == 0:
                return {"n": 0, "alarm": False}
            if self._report is None or self._report[0] != n:
                self._report = (n, self.monitor.report().to_dict())
            return self._report[1]

    def state(self) -> dict[str, Any]:
        """The feed's, and the artifact that it is about."""
        with self._lock:
            self._unsaved = False
            return {"feed": super().state(), "artifact": self.artifact}

    def restore(self, state: Any) -> None:
        """Go on, unless the state is about another artifact."""
        if state["artifact"] == self.artifact:
            super().restore(state["feed"])

    def save(self) -> None:
        """Write the state, if there is a file for it and something new."""
        if self._unsaved:
            super().save()

    def collect(self) -> Iterator[Any]:
        """The monitor for Prometheus, as of now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        report, name = self.report(), "calibrant_monitor"

        def by_group(figure: str, words: str) -> GaugeMetricFamily:
            family = GaugeMetricFamily(f"{name}_{figure}", words, labels=["group"])
            family.add_metric([""], float(report[figure]))
            for group in report.get("groups", [])[:MAX_PROMETHEUS_GROUPS]:
                family.add_metric([group["group"]], float(group[figure]))
            return family

        yield GaugeMetricFamily(f"{name}_answers", "Answers with an outcome since the monitor began.", report["n"])
        yield by_group("alarm", "1 from the moment calibration broke.")
        yield CounterMetricFamily(f"{name}_duplicates", "Answers that came twice.", value=self.n_duplicates)
        yield CounterMetricFamily(f"{name}_stale", "Answers about an earlier artifact.", value=self.n_stale)
        yield CounterMetricFamily(f"{name}_resets", "New beginnings after a new artifact.", value=self.n_resets)
        for figure, words in FIGURES.items():
            if figure in report:
                yield by_group(figure, words)
