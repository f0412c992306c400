"""Following a log of labelled answers, one JSON object a line, into a monitor."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.core.softmax import softmax
from calibrant.shipping.monitor import Monitor

BATCH_BYTES = 8 << 20
MAX_LINE_BYTES = 4 << 20
FORMATS = '{"confidence": 0.9, "correct": true}, {"probabilities": […], "label": 3} or {"logits": […], "label": 3}'


@dataclass
class LogWatch:
    """Reads what a log has gained since the last time, and feeds it to a monitor.

    A last line without its newline waits until it is whole. A log that became shorter, or another file of the same
    name, is read from its start. Lines that are not answers are counted and skipped.
    """

    path: str
    monitor: Monitor
    offset: int = 0
    identity: int | None = None
    n_lines: int = 0
    n_bad: int = 0
    first_problem: str | None = field(default=None)

    def read(self) -> int:
        """Feed everything new to the monitor; returns how many answers there were."""
        taken = 0
        for lines in self._batches():
            answers = [answer for line in lines if (answer := self._parse(line)) is not None]
            if answers:
                confidence, correct = zip(*answers, strict=True)
                self.monitor.update_answers(np.array(confidence), np.array(correct))
            taken += len(answers)
        return taken

    def state(self) -> str:
        """Monitor and position as JSON, to continue after a restart."""
        here = {name: getattr(self, name) for name in ("offset", "identity", "n_lines", "n_bad")}
        return json.dumps({"watch": here, "monitor": json.loads(self.monitor.to_json())})

    @classmethod
    def from_state(cls, path: str, text: str) -> LogWatch:
        """The watch that `state` described."""
        try:
            document = json.loads(text)
            here = {name: document["watch"][name] for name in ("offset", "identity", "n_lines", "n_bad")}
            whole = [here["offset"], here["n_lines"], here["n_bad"]]
            if any(type(number) is not int or number < 0 for number in whole):
                raise InputError(f"the state of a watch holds counts that are not whole numbers: {whole}")
            return cls(path, Monitor.from_json(json.dumps(document["monitor"])), **here)
        except InputError:
            raise
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(f"this is not the state of a watch ({type(error).__name__})") from error

    def _batches(self) -> Iterator[list[bytes]]:
        if not os.path.isfile(self.path):
            reason = (
                "a folder: give a log with one JSON answer a line"
                if os.path.isdir(self.path)
                else "there is no such file"
            )
            raise InputError(f"{self.path}: {reason}")
        with open(self.path, "rb") as file:
            about = os.fstat(file.fileno())
            if about.st_size < self.offset or self.identity not in (None, about.st_ino):
                self.offset = 0
            self.identity = about.st_ino
            file.seek(self.offset)
            while chunk := file.read(BATCH_BYTES):
                whole, newline, _ = chunk.rpartition(b"\n")
                if not newline:
                    if len(chunk) >= MAX_LINE_BYTES:
                        raise InputError(f"{self.path}: a line is longer than {MAX_LINE_BYTES} bytes")
                    return
                self.offset += len(whole) + 1
                file.seek(self.offset)
                yield whole.split(b"\n")

    def _parse(self, line: bytes) -> tuple[float, bool] | None:
        self.n_lines += 1
        if not line.strip():
            return None
        try:
            return parse_answer(line)
        except InputError as error:
            self.n_bad += 1
            self.first_problem = self.first_problem or f"line {self.n_lines}: {error}"
            return None


def parse_answer(line: str | bytes) -> tuple[float, bool]:
    """Confidence and correctness of one line.

    >>> parse_answer('{"probabilities": [0.2, 0.8], "label": 1}')
    (0.8, True)
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON; a line is {FORMATS}") from error
    if not isinstance(record, dict):
        raise InputError(f"not an object; a line is {FORMATS}")
    if "confidence" in record:
        return _plain(record)
    for kind in ("probabilities", "logits"):
        if kind in record:
            return _row(record, kind)
    raise InputError(f"no confidence, probabilities or logits; a line is {FORMATS}")


def _plain(record: dict[str, Any]) -> tuple[float, bool]:
    confidence, correct = record["confidence"], record.get("correct")
    if "prediction" in record and "label" in record:
        correct = record["prediction"] == record["label"]
    if type(confidence) not in (int, float) or not 0 <= confidence <= 1:
        raise InputError(f"confidence is {confidence!r}, but must lie in [0, 1]")
    if not isinstance(correct, bool) and correct not in (0, 1):
        raise InputError(f"correct is {correct!r}, but must be true or false")
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
        raise InputError(f"label is {label!r}, but must be a whole number from 0 to {len(values) - 1}")
    if kind == "logits":
        values = softmax(values)
    elif values.min() < 0 or abs(values.sum() - 1) > 1e-3:
        raise InputError(f"probabilities sum to {values.sum():.4g}, but must sum to 1")
    return float(min(values.max(), 1.0)), bool(values.argmax() == label)
