"""Labelled answers as JSON objects into a monitor, from a log or over HTTP, and what is kept of it between runs.

A log may be written, rotated, truncated and copied by others while it is followed.
"""

import contextlib
import copy
import glob
import gzip
import json
import math
import os
import threading
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

import numpy as np

from calibrant.core.arrays import Json
from calibrant.core.atomic import check_source
from calibrant.core.errors import InputError
from calibrant.core.schema import OUTCOMES, Schema, class_key, identifier, listed
from calibrant.shipping.monitor import MAX_GROUPS, OTHER, DamagedStateError, GroupMonitor, Kept, Monitor, is_new, stated
from calibrant.shipping.state import StateFile

FORMATS = '{"confidence": 0.9, "correct": true}, {"probabilities": […], "label": 3} or {"logits": […], "label": 3}'
ID_WINDOW = 100_000
"""Default number of latest ids that are remembered, of about 100 bytes each."""
MAX_NAME_LENGTH = 100
"""Default length of group names: each one is in all reports and metrics."""
MAX_PROMETHEUS_GROUPS = 50
FIGURES = {
    "alarm": "1 from the moment calibration broke.",
    "evidence": "Wealth of the bet against calibration; the alarm rises at 1/rate.",
    "ece": "ECE of the latest answers.",
    "noise_floor_95": "ECE that 95 in 100 calibrated models stay below on these answers.",
    "confidence": "Mean confidence of the latest answers.",
    "accuracy": "Accuracy of the latest answers.",
}
NO_ANSWERS: Json = {"n": 0, "alarm": False}
"""The report before the first answer."""

Answer = tuple[Any, ...]
"""Reading, confidence, correctness, batch, group and id; "" for a name that is not used."""
MAX_WAITING = 1 << 16
"""Answers of a log that are given to the monitor at once."""
MAX_LINE_BYTES = 4 << 20
SAMPLE_BYTES = 4096


class Feed(Kept):
    """Answers into a monitor of its own.

    Parameters
    ----------
    batch : a number of answers per bet, or the field that names the batch of an answer.
    by : the field that names the group of an answer; the monitor is a `GroupMonitor` then. "hospital=north,south" lists
        the groups: any other name counts as `other`.
    id : the field that names an answer: one that comes twice counts once.
    id_window : number of latest ids that are remembered; an older answer that comes again counts again.
    max_groups, max_name_length : limits of group names that are not listed; names above them count as `other`.
    state : a file for the state between runs. One monitor at a time may use it, until `close`.
    settings : further parameters of `Monitor`.
    """

    STATE: ClassVar[tuple[str, ...]] = ("n_duplicates", "n_pending", "seen", "monitor")
    id_is_optional = False
    """Whether answers without the field `id` are taken."""
    schema: Schema | None = None
    """What the numbers of an answer mean, where that is known."""

    def __init__(
        self,
        *,
        batch: Any = None,
        by: str | None = None,
        id: str | None = None,
        id_window: int = ID_WINDOW,
        max_groups: int = MAX_GROUPS,
        max_name_length: int = MAX_NAME_LENGTH,
        state: Any = None,
        **settings: Any,
    ) -> None:
        size = int(batch) if str(batch).isdigit() else None
        field, _, listed = (by or "").partition("=")
        self.monitor = (GroupMonitor if field else Monitor)(batch=size, **settings)
        self.batch, self.id = None if size else batch, id
        self.by, self.known = field or None, listed.split(",") if listed else None
        self.id_window, self.max_groups, self.max_name_length = id_window, max_groups, max_name_length
        self.settings = {**self.monitor.settings, "batch": size or batch, "by": by, "id": id}
        self.note: str | None = None
        """A sentence for the user."""
        self._clear()
        self._file = None if state is None else StateFile(state)
        if self._file is not None:
            try:
                self._load(self._file)
            except BaseException:
                self._file.close()
                raise

    def _clear(self) -> None:
        """Set the state at the beginning."""
        self.monitor.reset()
        self.seen: dict[str, bool] = {}
        self.n_duplicates = self.n_pending = 0

    def _load(self, file: StateFile) -> None:
        """Take over the state on the disk; set a damaged one aside."""
        text = file.read()
        try:
            if text is not None:
                self.from_json(text, self)
        except DamagedStateError as error:
            self._clear()
            self.note = (
                f"{file.path}: {error}; it was renamed to {file.set_aside()}, and the monitor starts without answers"
            )
        except InputError as error:
            raise InputError(f"{file.path}: {error}; move it away, or give another file for the state") from error

    def check(self, record: Any) -> Answer | None:
        """Return a record as an answer, or None if its outcome is not known yet; nothing is remembered."""
        outcome = read_outcome(record, self.schema)
        if outcome is None:
            return None
        unnamed = self.id_is_optional and self.id not in record
        fields = (self.batch, self.by, None if unnamed else self.id)
        batch, group, name = ("" if field is None else _field(record, field) for field in fields)
        return (
            outcome.reading,
            outcome.confidence,
            outcome.correct,
            batch,
            group if len(group) <= self.max_name_length or group in (self.known or ()) else OTHER,
            name,
        )

    def count(self, answers: Iterable[Answer]) -> int:
        """Give answers to the monitor, without those whose id was counted before; returns how many there were."""
        given = list(answers)
        rows = [answer for answer in given if not answer[-1] or is_new(self.seen, answer[-1], self.id_window)]
        self.n_duplicates += len(given) - len(rows)
        if rows:
            _, confidence, correct, batches, groups, _ = map(list, zip(*rows, strict=True))
            more = () if self.by is None else ([*self._bounded(groups)],)
            names = None if self.batch is None else batches
            self.monitor.update_answers(np.array(confidence), np.array(correct), *more, batches=names)
        return len(rows)

    def _bounded(self, groups: Iterable[str]) -> Iterator[str]:
        """Yield the groups in which answers count: `other` for names that are not listed, or one too many."""
        names = {*(self.known or getattr(self.monitor, "groups", {}))}
        for group in groups:
            if self.known is None and len(names - {OTHER}) < self.max_groups:
                names.add(group)
            yield group if group in names else OTHER

    def save(self) -> None:
        """Write the state, if there is a file for it."""
        if self._file is not None:
            self._file.write(self.to_json())

    def close(self) -> None:
        """Let another monitor use the file of the state."""
        if self._file is not None:
            self._file.close()


def parse_record(line: str | bytes) -> Any:
    """The JSON of one line."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON; a line is {FORMATS}") from error


class Outcome(NamedTuple):
    """A confidence, whether the answer was correct, and how the record was read."""

    confidence: float
    correct: bool
    reading: str


def read_outcome(record: Any, schema: Schema | None = None) -> Outcome | None:
    """Read the outcome of one record, or None if it is not known yet. With two classes it is that of the second one.

    `correct` decides; without it, `label` is compared with `prediction`, or with the class of highest probability. As
    in `measure`, labels are matched to class names first.

    >>> read_outcome({"probabilities": [0.2, 0.5, 0.3], "label": 1})
    Outcome(confidence=0.5, correct=True, reading='label by position')
    >>> read_outcome({"confidence": 0.9, "prediction": "b", "label": "a"})
    Outcome(confidence=0.9, correct=False, reading='prediction and label')
    """
    if not isinstance(record, dict):
        raise InputError(f"an answer is not a JSON object; it is {FORMATS}")
    correct, label = _read_correct(record.get("correct")), record.get("label")
    kind = next((kind for kind in ("confidence", "probabilities", "logits") if kind in record), "")
    if not kind:
        raise InputError(f"no confidence, probabilities or logits; give {FORMATS}")
    is_pending = correct is None and _is_unknown(label)
    if kind == "confidence":
        confidence = record["confidence"]
        if type(confidence) not in (int, float) or not 0 <= confidence <= 1:
            raise InputError(f"confidence is {str(confidence)[:40]!r}, but must lie in [0, 1]")
        if is_pending:
            return None
        if correct is not None:
            return Outcome(float(confidence), correct, "correct")
        if _is_unknown(record.get("prediction")):
            raise InputError(f"confidence needs correct, or prediction and label; give {FORMATS}")
        return Outcome(float(confidence), class_key(record["prediction"]) == class_key(label), "prediction and label")
    values, schema = _read_scores(record[kind], kind, schema)
    if is_pending:
        return None
    if correct is None:
        place, reading = int(schema.labels([label], "label")[0]), "label by position"
        if schema.class_names is not None:
            reading = f"label by class name ({listed(schema.class_names, 6)})"
    else:
        prediction = (
            int(np.argmax(values)) if np.ndim(values) else int(values >= (0.5 if kind == "probabilities" else 0))
        )
        place, reading = (prediction if correct else (prediction + 1) % schema.n_classes), "correct"
    sure, right = stated([values], [place], from_logits=kind == "logits")
    return Outcome(float(min(sure[0], 1.0)), bool(right[0]), reading)


def _read_scores(values: Any, kind: str, schema: Schema | None) -> tuple[Any, Schema]:
    """Return the scores of one record in the order of the schema, and the schema; from the record if there is none."""
    names = tuple(values) if isinstance(values, dict) else None
    values = np.asarray(list(values.values()) if names else values)
    if values.dtype.kind not in "iuf" or values.ndim > 1:
        raise InputError(f"{kind} is {str(values)[:40]!r}, but must be a list of numbers")
    width = values.size
    if schema is not None:
        widths = () if schema.task == "multilabel" else (schema.n_classes, 1)[: 1 + schema.flat]
        if width not in widths:
            served = f"the calibrator has {schema.n_classes} classes of the task {schema.task}"
            raise InputError(f"{width} {kind} with one label, but {served}: give confidence and correct")
    if width < 2 and schema is None:
        raise InputError(f"{width} {kind} with one label: give those of all classes, or confidence and correct")
    own = Schema("binary" if width == 1 else "multiclass", kind, max(width, 2), names)
    if schema is None or width == 1:
        return values.reshape(-1)[0] if width == 1 else values, schema or own
    schema = replace(schema, task="multiclass")
    order = None if names is None else schema.align(own, "the calibrator", "the record").order
    return values if order is None else values[order], schema


def _read_correct(value: Any) -> bool | None:
    """Return the value of `correct`, in any word for an outcome; None if it is not known."""
    if _is_unknown(value):
        return None
    outcome = OUTCOMES.get(class_key(value).lower())
    if outcome is None:
        raise InputError(f"correct is {str(value)[:40]!r}, but must be true or false")
    return bool(outcome)


def _is_unknown(label: Any) -> bool:
    return label is None or label == "" or (isinstance(label, float) and math.isnan(label))


def _field(record: Json, name: Any) -> str:
    value = record.get(name)
    if type(value) not in (str, int, float):
        raise InputError(f"field {name!r} is {str(value)[:40]!r}, but must be a text or a number")
    return identifier(value)


class FeedbackDesk(Feed):
    """Takes answers with their outcomes for a service; safe to call from several threads.

    An answer is a record as `calibrant monitor` reads it. An `id` makes one that is sent twice count once, and
    `artifact` (from the header `x-calibrant-artifact` of the service's answer) keeps outcomes of an earlier artifact
    out of the monitor of the present one. `state` is a file that keeps the monitor between runs; `choices` are those of
    `Feed`.
    """

    STATE = (*Feed.STATE, "artifact")
    id_is_optional = True

    def __init__(self, *, artifact: str = "", **choices: Any) -> None:
        self._lock = threading.Lock()
        self.artifact = artifact
        self._report = NO_ANSWERS
        self.n_stale = self.n_resets = self.n_unsaved = 0
        super().__init__(id="id", **choices)
        with contextlib.suppress(InputError, OSError):  # a full disk: the service reports it and tries again
            self.save()

    def _load(self, file: StateFile) -> None:
        text = file.read()
        super()._load(file)
        if self.note is None:
            for artifact, pending, answers in file.entries(text):
                if artifact == self.artifact:
                    self.count(map(tuple, answers))
                    self.n_pending += pending

    def take(self, records: list[Any]) -> Json:
        """Give outcomes to the monitor: all of them, or none where one is unsound."""
        current, pending, stale = list[Answer](), 0, 0
        for index, record in enumerate(records):
            try:
                checked = self.check(record)
                named = record.get("artifact", self.artifact)
                if not isinstance(named, str):
                    raise InputError(f"artifact is {str(named)[:40]!r}, but must be a text")
                if named != self.artifact:
                    stale += 1
                elif checked is None:
                    pending += 1
                else:
                    current.append(checked)
            except InputError as error:
                raise InputError(f"answer {index}: {error}") from error
        with self._lock:
            taken = self.count(current)
            self.n_stale += stale
            self.n_pending += pending
            saved = {}
            if self._file is not None:
                saved["saved"] = self._file.append([self.artifact, pending, current])
                self.n_unsaved += 0 if saved["saved"] else len(current)
            return {
                "taken": taken,
                "duplicates": len(current) - taken,
                "stale": stale,
                "pending": pending,
                "read_as": list(dict.fromkeys(reading for reading, *_ in current)),
                "n": self.monitor.n,
                "alarm": self.monitor.alarm,
                **saved,
            }

    def renew(self, artifact: str) -> None:
        """Start anew for another artifact: what was learned about the last one says nothing about it."""
        with self._lock:
            self.monitor.reset()
            self.artifact, self._report = artifact, NO_ANSWERS
            self.n_resets += 1
            if self._file is not None:
                self._file.is_current = False
                with contextlib.suppress(InputError, OSError):  # `save` tries again and reports it
                    super().save()  # before an outcome of the new artifact is acknowledged
                    self.n_unsaved = 0

    def report(self) -> Json:
        """The monitor's report; `n` alone before the first answer."""
        with self._lock:
            if self._report["n"] == self.monitor.n:
                return self._report
            monitor, resets = copy.deepcopy(self.monitor), self.n_resets
        report = monitor.report().to_dict()  # of a copy: answers are taken meanwhile
        with self._lock:
            if resets == self.n_resets:
                self._report = report
        return report

    def restore(self, state: Any) -> None:
        """Go on, unless the state is about another artifact."""
        if state["artifact"] == self.artifact:
            super().restore(state)

    @property
    def has_file(self) -> bool:
        """Whether the state is written to a file."""
        return self._file is not None

    @property
    def is_saved(self) -> bool:
        """Whether a crash of the process would lose no answer; without a file there is none to lose."""
        return self._file is None or self._file.is_current

    def save(self) -> None:
        """Write the journal to the disk, and the state if the journal does not continue it."""
        if self._file is not None and not self._file.sync():
            with self._lock:  # answers that come meanwhile belong to the new journal
                super().save()
                self.n_unsaved = 0

    def collect(self) -> Iterator[Any]:
        """The monitor for Prometheus, as of now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        report, name = self.report(), "calibrant_monitor"
        yield GaugeMetricFamily(f"{name}_answers", "Answers with an outcome since the monitor began.", report["n"])
        yield CounterMetricFamily(f"{name}_duplicates", "Answers that came twice.", value=self.n_duplicates)
        yield CounterMetricFamily(f"{name}_stale", "Answers about an earlier artifact.", value=self.n_stale)
        yield CounterMetricFamily(f"{name}_pending", "Records whose outcome was not known yet.", value=self.n_pending)
        yield CounterMetricFamily(f"{name}_resets", "New beginnings after a new artifact.", value=self.n_resets)
        unsaved = GaugeMetricFamily(f"{name}_unsaved", "Answers that a crash would lose: the disk is full or gone.")
        unsaved.add_metric([], self.n_unsaved)
        yield unsaved
        for figure, words in FIGURES.items():
            if figure in report:
                family = GaugeMetricFamily(f"{name}_{figure}", words, labels=["group"])
                for part in ({**report, "group": ""}, *report.get("groups", [])[:MAX_PROMETHEUS_GROUPS]):
                    family.add_metric([part["group"]], float(part[figure]))
                yield family


class LogFollower(Feed):
    """Reads what a log has gained since the last time, and feeds it to a monitor; takes the parameters of `Feed`.

    A log is known by its first bytes, not by its name: a rotated log is read to its end under its new name, a log that
    was copied back goes on where it was left, and a log with a new beginning is read from its start; the rest of the
    old one is read from its compressed copy (`.gz`) next to the log, or reported as missing. A missing file is
    waited for once it has been seen. A last line without its newline waits until it is whole. Lines that are not
    answers, and those above 4 MiB, are counted and skipped.
    """

    STATE = (*Feed.STATE, "offset", "inode", "head", "skipping", "n_lines", "n_bad", "first_problem", "n_resets")

    def __init__(self, path: str, **choices: Any) -> None:
        self.path = path
        super().__init__(**choices)

    def _clear(self) -> None:
        super()._clear()
        self.offset = self.inode = 0
        """How far the log has been read, and its file; 0 before the first look."""
        self.head = ""
        """The first bytes that were read, as text that JSON can hold."""
        self.skipping = False
        """Whether the line at the offset is the rest of one that is too long."""
        self.n_lines = self.n_bad = self.n_resets = 0
        self.first_problem: str | None = None

    def read(self) -> int:
        """Feed everything new to the monitor; returns how many answers there were."""
        if self.inode and not os.path.exists(self.path):
            return self._read_renamed() or 0
        check_source(self.path)
        with open(self.path, "rb") as file:
            about = os.fstat(file.fileno())
            gained, is_moved = 0, self.inode not in (0, about.st_ino)
            if is_moved or not self._begins_alike(file):
                rest = self._read_renamed()
                if rest is None and not self._begins_alike(file):
                    rest = self._read_compressed()
                    if rest is None and is_moved:
                        self.note = (
                            f"{self.path} is a new log, and the old one is not next to it: its lines after byte "
                            f"{self.offset} are missing, if there were any"
                        )
                gained = rest or 0
            if not self._begins_alike(file):
                self.offset, self.skipping = 0, False
            if about.st_size >= self.offset:
                return gained + self._read(file)
            if about.st_size:  # an emptied log may be new, or an old one on its way back
                self.note = (
                    f"{self.path} has {about.st_size} bytes, but {self.offset} were read before and it begins alike: "
                    f"it is taken for a copy, and its lines count from byte {self.offset} on"
                )
            return gained

    def reset(self) -> None:
        """Begin a new period: all lines that are in the log by now count no more, but their ids are remembered."""
        self.read()
        self.monitor.reset()
        self.n_duplicates = self.n_pending = self.n_lines = self.n_bad = 0
        self.first_problem = None
        self.n_resets += 1

    def _begins_alike(self, file: IO[bytes]) -> bool:
        file.seek(0)
        return self.head.startswith(file.read(len(self.head) // 2).hex())

    def _read(self, file: IO[bytes] | gzip.GzipFile) -> int:
        """Count the answers in the lines behind the offset."""
        file.seek(self.offset)
        gained, answers = 0, list[Answer]()
        while line := file.readline(MAX_LINE_BYTES + 1):
            whole = line.endswith(b"\n")
            if not (whole or self.skipping or len(line) > MAX_LINE_BYTES):
                break  # its end is still to come
            if whole:
                self.n_lines += 1
                try:
                    if self.skipping:
                        raise InputError(f"longer than {MAX_LINE_BYTES} bytes")
                    if line.strip():
                        checked = self.check(parse_record(line))
                        self.n_pending += checked is None
                        answers += [] if checked is None else [checked]
                except InputError as error:
                    self.n_bad += 1
                    self.first_problem = self.first_problem or f"line {self.n_lines}: {error}"[:300]
            self.skipping = not whole
            self.offset += len(line)
            if len(answers) >= MAX_WAITING:
                gained, answers = gained + self.count(answers), []
        self.inode = os.fstat(file.fileno()).st_ino
        file.seek(0)
        self.head = file.read(min(self.offset, SAMPLE_BYTES)).hex()
        return gained + self.count(answers)

    def _read_renamed(self) -> int | None:
        """Count the new answers of the last file after it was renamed; None if it is not next to the log."""
        log = Path(self.path).absolute()
        for other in log.parent.glob(f"{glob.escape(log.name)}?*"):
            if other.is_file() and other.lstat().st_ino == self.inode:
                with other.open("rb") as file:
                    if self._begins_alike(file):
                        return self._read(file)
        return None

    def _read_compressed(self) -> int | None:
        """Count the new answers of the last file in its compressed copy; None if there is none next to the log."""
        log, offset = Path(self.path).absolute(), self.offset
        for other in log.parent.glob(f"{glob.escape(log.name)}*.gz"):
            try:
                with gzip.open(other) as file:
                    if self.head and file.read(len(self.head) // 2).hex() == self.head:
                        return self._read(file)
            except (OSError, EOFError, zlib.error):  # damaged, or still being written
                self.offset = offset
        return None
