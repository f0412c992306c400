"""Following a log of labelled answers, one JSON object per line, into a monitor."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.core.softmax import softmax
from calibrant.shipping.group_monitor import GroupMonitor
from calibrant.shipping.log_file import MAX_LINE_BYTES, LogFile
from calibrant.shipping.monitor import Monitor

STATE_FORMAT = 2
FORMATS = '{"confidence": 0.9, "correct": true}, {"probabilities": […], "label": 3} or {"logits": […], "label": 3}'


class DamagedStateError(InputError):
    """The state of a watch that was cut off or altered."""


class SeenIds:
    """The latest `limit` ids, as 64-bit digests.

    >>> seen = SeenIds(limit=2)
    >>> [seen.is_new(name) for name in ("a", "b", "a", "c", "a")]
    [True, True, False, True, True]
    """

    def __init__(self, limit: int = 100_000) -> None:
        self.limit = limit
        self._digests: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._digests)

    def is_new(self, name: Any) -> bool:
        """Whether this id is not among the latest; it is from now on."""
        text = f"{type(name).__name__}:{name}".encode("utf-8", "surrogatepass")
        digest = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
        if digest in self._digests:
            return False
        self._digests[digest] = None
        if len(self._digests) > self.limit:
            del self._digests[next(iter(self._digests))]  # a dict keeps the order of insertion
        return True

    def state(self) -> str:
        """The digests as text, oldest first."""
        return base64.b64encode(np.array(list(self._digests), dtype="<u8").tobytes()).decode()

    @classmethod
    def from_state(cls, text: Any, limit: int) -> SeenIds:
        """The ids that `state` described."""
        data = base64.b64decode(text, validate=True)
        if len(data) % 8 or len(data) > 8 * limit:
            raise InputError(f"the state of a watch holds {len(data)} bytes of ids, but at most {8 * limit} are kept")
        seen = cls(limit)
        seen._digests = dict.fromkeys(np.frombuffer(data, dtype="<u8").tolist())
        return seen


@dataclass
class Feed:
    """Answers as JSON objects into a monitor; the fields to read batch, group and id from are optional."""

    monitor: Monitor | GroupMonitor
    batch: str | None = None
    by: str | None = None
    id: str | None = None
    seen: SeenIds = field(default_factory=SeenIds)
    n_duplicates: int = 0
    id_is_optional: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.monitor, GroupMonitor) != (self.by is not None):
            raise InputError("a field for groups needs a GroupMonitor, and a GroupMonitor needs a field for groups")

    def check(self, record: Any) -> tuple[float, bool, str, str, Any]:
        """Confidence, correctness, batch, group and id of a record; nothing is remembered."""
        confidence, correct = answer_of(record)
        batch, group = (None if key is None else _field(record, key) for key in (self.batch, self.by))
        name = None
        if self.id is not None and not (self.id_is_optional and self.id not in record):
            name = _field(record, self.id)
        return confidence, correct, str(batch), str(group), name

    def parse(self, record: Any) -> tuple[float, bool, str, str] | None:
        """Confidence, correctness, batch and group of a record; None where its id has been counted before."""
        confidence, correct, batch, group, name = self.check(record)
        if name is not None and not self.seen.is_new(name):
            self.n_duplicates += 1
            return None
        return confidence, correct, batch, group

    def take(self, answers: Iterable[tuple[float, bool, str, str]]) -> int:
        """Give parsed answers to the monitor; returns how many there were."""
        rows = list(answers)
        if not rows:
            return 0
        confidence, correct, batches, groups = zip(*rows, strict=True)
        names = None if self.batch is None else list(batches)
        if isinstance(self.monitor, GroupMonitor):
            self.monitor.update_answers(np.array(confidence), np.array(correct), list(groups), batches=names)
        else:
            self.monitor.update_answers(np.array(confidence), np.array(correct), batches=names)
        return len(rows)

    def state(self) -> dict[str, Any]:
        """Monitor and ids as plain values for JSON."""
        options = {name: getattr(self, name) for name in ("batch", "by", "id", "n_duplicates", "id_is_optional")}
        return {**options, "seen": self.seen.state(), "monitor": json.loads(self.monitor.to_json())}

    @classmethod
    def from_state(cls, state: Any) -> Feed:
        """The feed that `state` described."""
        kind = Monitor if state["by"] is None else GroupMonitor
        fields = {name: state[name] for name in ("batch", "by", "id")}
        if any(value is not None and not isinstance(value, str) for value in fields.values()):
            raise InputError(f"the state of a watch names fields that are not texts: {fields}")
        seen = SeenIds.from_state(state["seen"], SeenIds().limit)
        feed = cls(kind.from_json(json.dumps(state["monitor"])), fields["batch"], fields["by"], fields["id"], seen)
        feed.n_duplicates, feed.id_is_optional = int(state["n_duplicates"]), bool(state["id_is_optional"])
        return feed


class LogWatch:
    """Reads what a log has gained since the last time, and feeds it to a monitor.

    A last line without its newline waits until it is whole. Lines that are not answers are counted and skipped. See
    `LogFile` for rotated, missing and copied logs.
    """

    def __init__(
        self,
        path: str,
        monitor: Monitor | GroupMonitor,
        *,
        batch: str | None = None,
        by: str | None = None,
        id: str | None = None,
    ) -> None:
        self.feed = Feed(monitor, batch, by, id)
        self.file = LogFile(path)
        self.n_lines = 0
        self.n_bad = 0
        self.first_problem: str | None = None

    @property
    def path(self) -> str:
        """Where the log is."""
        return self.file.path

    @property
    def monitor(self) -> Monitor | GroupMonitor:
        """The monitor that is fed."""
        return self.feed.monitor

    def read(self) -> int:
        """Feed everything new to the monitor; returns how many answers there were."""
        taken = 0
        for lines in self.file.blocks():
            taken += self.feed.take(answer for line in lines if (answer := self._parse(line)) is not None)
        return taken

    def state(self) -> str:
        """Monitor and position as JSON with a checksum, to continue after a restart."""
        counts = {"n_lines": self.n_lines, "n_bad": self.n_bad, "first_problem": self.first_problem}
        content = {"file": self.file.state(), "feed": self.feed.state(), **counts}
        return dump_state(content)

    @classmethod
    def from_state(cls, path: str, text: str) -> LogWatch:
        """The watch that `state` described; a damaged state raises DamagedStateError, anything else InputError."""
        content = parse_state(text)
        try:
            feed = Feed.from_state(content["feed"])
            watch = cls(path, feed.monitor, batch=feed.batch, by=feed.by, id=feed.id)
            watch.feed, watch.file = feed, LogFile.from_state(path, content["file"])
            watch.n_lines, watch.n_bad = int(content["n_lines"]), int(content["n_bad"])
            watch.first_problem = content["first_problem"]
        except InputError:
            raise
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(f"this is not the state of a watch ({type(error).__name__})") from error
        return watch

    def _parse(self, line: bytes | None) -> tuple[float, bool, str, str] | None:
        self.n_lines += 1
        try:
            if line is None:
                raise InputError(f"longer than {MAX_LINE_BYTES} bytes")
            return self.feed.parse(parse_record(line)) if line.strip() else None
        except InputError as error:
            self.n_bad += 1
            self.first_problem = self.first_problem or f"line {self.n_lines}: {error}"[:300]
            return None


def dump_state(content: dict[str, Any]) -> str:
    """Plain values as JSON with a checksum."""
    return json.dumps({"watch_state": STATE_FORMAT, "checksum": _checksum(content), "content": content})


def parse_state(text: str) -> dict[str, Any]:
    """The content that `dump_state` wrote; DamagedStateError where it was cut off or altered."""
    try:
        document = json.loads(text)
        if document["watch_state"] != STATE_FORMAT:
            found = document["watch_state"]
            raise InputError(f"the state of a watch has format {found!r}, but this calibrant reads {STATE_FORMAT}")
        if document["checksum"] != _checksum(document["content"]):
            raise DamagedStateError("the state is damaged (altered)")
        return document["content"]
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        if not text.strip("\0 \n") or text.startswith('{"watch_state"'):
            raise DamagedStateError("the state is damaged (cut off or altered)") from error
        raise InputError(f"this is not the state of a watch ({type(error).__name__})") from error


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
        return _plain(record)
    for kind in ("probabilities", "logits"):
        if kind in record:
            return _row(record, kind)
    raise InputError(f"no confidence, probabilities or logits; a line is {FORMATS}")


def _checksum(content: Any) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def _field(record: dict[str, Any], name: str) -> Any:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"field {name!r} is {str(value)[:40]!r}, but must be a text or a number")
    return value


def _plain(record: dict[str, Any]) -> tuple[float, bool]:
    confidence, correct = record["confidence"], record.get("correct")
    if "prediction" in record and "label" in record:
        correct = record["prediction"] == record["label"]
    if type(confidence) not in (int, float) or not 0 <= confidence <= 1:
        raise InputError(f"confidence is {str(confidence)[:40]!r}, but must lie in [0, 1]")
    if not isinstance(correct, bool) and correct not in (0, 1):
        raise InputError(f"correct is {str(correct)[:40]!r}, but must be true or false")
    return float(confidence), bool(correct)


def _row(record: dict[str, Any], kind: str) -> tuple[float, bool]:
    label = record.get("label")
    try:
        values = np.array(record[kind], dtype=np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{kind} must be a list of numbers") from error
    if values.ndim != 1 or len(values) < 2 or not np.isfinite(values).all():
        raise InputError(f"{kind} must be a list of at least 2 finite numbers")
    if type(label) is not int or not 0 <= label < len(values):
        raise InputError(f"label is {str(label)[:40]!r}, but must be a whole number from 0 to {len(values) - 1}")
    if kind == "logits":
        values = softmax(values)
    elif values.min() < 0 or values.max() > 1.001 or abs(values.sum() - 1) > 1e-3:
        raise InputError("probabilities must lie in [0, 1] and sum to 1")
    return float(min(values.max(), 1.0)), bool(values.argmax() == label)
