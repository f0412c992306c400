"""A checkpoint of a fit that makes many passes: the sums of every finished pass, and of the pass under way.

A fit is a function of the sums it asked for. Handing it the recorded ones again brings any optimiser back to where it
was, bit for bit, without knowing what kind it is. The file is lines of JSON that are only ever appended: a line torn by
a crash is dropped, and everything before it counts.
"""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core.errors import InputError

FORMAT = 1
PARTIAL_SECONDS = 30.0
"""How often the sums of a pass under way are written."""


class Checkpoint:
    """The passes of one fit, on disk.

    Parameters
    ----------
    path : where the lines are kept; made if absent.
    identity : what is fitted on what, as JSON data; a file of another identity is refused.
    """

    def __init__(self, path: str | os.PathLike[str], identity: dict[str, Any]) -> None:
        self.path = Path(path)
        self._header = {"calibrant checkpoint": FORMAT, **identity}
        self._passes: list[dict[str, Any]] = []
        self._partial: dict[str, Any] | None = None
        self._next = 0
        self._wrote = time.monotonic()
        if self.path.exists() and self.path.stat().st_size:
            self._read()
        else:
            self._append(self._header)

    def recall(self, statistic: str) -> tuple[Any, ...] | None:
        """The sums of the pass that is due, if they were recorded; None from there on."""
        if self._next >= len(self._passes):
            return None
        entry = self._passes[self._next]
        if entry["pass"] != statistic:
            raise InputError(
                f"{self.path} records pass {self._next + 1} as {entry['pass']}, but this fit makes {statistic}: "
                "it was written by another version; delete it to start anew"
            )
        self._next += 1
        return tuple(_decode(item) for item in entry["sums"])

    def recall_partial(self, statistic: str) -> tuple[int, tuple[Any, ...]] | None:
        """How many chunks of the pass that is due were summed, and their sums."""
        entry, self._partial = self._partial, None
        if entry is None or entry["part of"] != statistic or entry["number"] != self._next:
            return None
        return int(entry["chunks"]), tuple(_decode(item) for item in entry["sums"])

    def record(self, statistic: str, sums: tuple[Any, ...]) -> None:
        """A pass is finished."""
        self._append({"pass": statistic, "sums": [_encode(item) for item in sums]})
        self._next += 1
        self._passes.append({})

    def record_partial(self, statistic: str, chunks: int, sums: tuple[Any, ...]) -> None:
        """So many chunks are summed; written at most every half minute."""
        if time.monotonic() - self._wrote >= PARTIAL_SECONDS:
            entry = {"part of": statistic, "number": self._next, "chunks": chunks}
            self._append({**entry, "sums": [_encode(item) for item in sums]})

    def remove(self) -> None:
        """The fit is finished."""
        self.path.unlink(missing_ok=True)

    def _append(self, entry: dict[str, Any]) -> None:
        try:
            with self.path.open("ab") as file:
                file.write(json.dumps(entry).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"cannot write the checkpoint {self.path}: {error.strerror}") from error
        self._wrote = time.monotonic()

    def _read(self) -> None:
        whole, good = self.path.read_bytes(), 0
        for number, line in enumerate(whole.splitlines(keepends=True)):
            try:
                entry = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                entry = None
            if number == 0:
                self._check_header(entry)
            elif not isinstance(entry, dict) or "sums" not in entry:
                break
            elif "pass" in entry:
                self._passes.append(entry)
            else:
                self._partial = entry
            good += len(line)
        if good < len(whole):
            # what a crash tore is cut off, so that the next line begins a line
            with self.path.open("r+b") as file:
                file.truncate(good)

    def _check_header(self, entry: Any) -> None:
        if not isinstance(entry, dict) or "calibrant checkpoint" not in entry:
            raise InputError(f"{self.path} is not a checkpoint of a fit: choose another path")
        known = json.loads(json.dumps(self._header))
        for name in known:
            if entry.get(name) != known[name]:
                raise InputError(
                    f"{self.path} is the checkpoint of another fit: its {name} is {str(entry.get(name))[:60]}, here it "
                    f"is {str(known[name])[:60]}; delete it, or give another path"
                )


def _encode(item: Any) -> Any:
    if isinstance(item, np.ndarray):
        data = base64.b64encode(np.ascontiguousarray(item).tobytes()).decode()
        return {"dtype": item.dtype.str, "shape": list(item.shape), "data": data}
    if isinstance(item, np.generic):
        return item.item()
    return item


def _decode(item: Any) -> Any:
    if isinstance(item, dict):
        data = np.frombuffer(base64.b64decode(item["data"]), np.dtype(item["dtype"]))
        return data.reshape(item["shape"]).copy()
    return item
