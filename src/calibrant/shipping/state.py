"""What a monitor knows, between runs: plain values in JSON with a checksum, the state before beside it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core.atomic import atomic_write, check_target
from calibrant.core.errors import InputError

FORMAT = 3
BAD_VALUES = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError)
"""What reading a state that is none may raise."""


class DamagedStateError(InputError):
    """A state that was cut off or altered."""


class Stateful:
    """Something whose attributes `STATE` are all that it remembers: numbers, texts, arrays, and the same nested."""

    STATE: tuple[str, ...] = ()

    def state(self) -> dict[str, Any]:
        """The attributes as plain values for JSON; arrays as their bytes."""
        return {name: _plain(getattr(self, name)) for name in self.STATE}

    def restore(self, state: Any) -> None:
        """Take over what `state` returned, bit for bit; values of another type or size raise an error."""
        for name in self.STATE:
            setattr(self, name, _like(getattr(self, name), state[name], name))


def _plain(value: Any) -> Any:
    if isinstance(value, Stateful):
        return value.state()
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return base64.b64encode(value.tobytes()).decode() if isinstance(value, np.ndarray) else value


def _like(present: Any, found: Any, name: str) -> Any:
    """The value that `_plain` wrote, if it can take the place of the present one."""
    if isinstance(present, Stateful):
        present.restore(found)
        return present
    if isinstance(present, dict):
        return {key: _like(inner, found[key], key) for key, inner in present.items()}
    if isinstance(present, np.ndarray):
        array = np.frombuffer(base64.b64decode(found, validate=True), dtype=present.dtype)
        if array.size != present.size or np.isnan(array).any():
            raise InputError(f"the state holds {array.size} numbers of {name}, but {present.size} are needed")
        return array.reshape(present.shape).copy()
    kinds = (int, str, bool, type(None)) if present is None else (type(present),)
    if type(found) not in kinds or (type(found) is int and found < 0):
        raise InputError(f"the state holds {str(found)[:40]!r} for {name}")
    return found


def dump_state(content: Any) -> str:
    """Plain values as JSON with a checksum."""
    return json.dumps({"monitor_state": FORMAT, "checksum": _checksum(content), "content": content})


def parse_state(text: str) -> Any:
    """The content that `dump_state` wrote; DamagedStateError where it was cut off or altered, else InputError."""
    try:
        document = json.loads(text)
        found, checksum, content = (document[name] for name in ("monitor_state", "checksum", "content"))
    except BAD_VALUES as error:
        if not text.strip("\0 \n") or text.startswith('{"monitor_state"'):
            raise DamagedStateError("the state is damaged (cut off or altered)") from error
        raise InputError(f"this is not the state of a monitor ({type(error).__name__})") from error
    if found != FORMAT:
        raise InputError(f"the state of a monitor has format {found!r}, but this calibrant reads {FORMAT}")
    if checksum != _checksum(content):
        raise DamagedStateError("the state is damaged (altered)")
    return content


def _checksum(content: Any) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


class StateFile:
    """The file and, beside it, the state before: a damaged file costs nothing that the log still holds."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._last: str | None = None
        check_target(path)

    def load(self, take: Callable[[Any], None]) -> list[str]:
        """Give the content to `take`, or that of the state before; returns what there is to say about it."""
        notes: list[str] = []
        for path in (self.path, f"{self.path}.previous"):
            try:
                text = Path(path).read_text(encoding="utf-8")
                take(parse_state(text))
            except FileNotFoundError:
                if path == self.path:
                    return []
            except DamagedStateError:
                notes.append(f"{path} is damaged")
            except BAD_VALUES as error:
                reason = error if isinstance(error, InputError) else "it is not the state of a monitor"
                raise InputError(f"{path}: {reason}; move it away, or give another file for the state") from error
            else:
                self._last = text
                return notes and [*notes, f"the monitor goes on from {path}, the state before the damaged one"]
        os.replace(self.path, f"{self.path}.damaged")
        return [*notes, f"the monitor starts anew; see {self.path}.damaged"]

    def save(self, content: Any) -> None:
        """Write the state; the one before stays beside it."""
        before, self._last = self._last, dump_state(content)
        for path, text in ((f"{self.path}.previous", before), (self.path, self._last)):
            if text is not None:
                with atomic_write(path) as temporary:
                    temporary.write_text(text, encoding="utf-8")
