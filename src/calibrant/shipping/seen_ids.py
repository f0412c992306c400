"""Which answers have been counted: the latest ids, in bounded memory."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import numpy as np

from calibrant.core.errors import InputError


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
