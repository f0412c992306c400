"""What surrounds every request: an id, a count, a line in the access log."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

from calibrant.shipping.service import Service

MAX_ID = 128


class Observed:
    """Counts and logs every answered request; pure ASGI, so bodies are never held."""

    def __init__(self, app: Any, service: Service, routes: frozenset[str]) -> None:
        self.app, self.service, self.routes = app, service, routes
        self._prefix, self._numbers = os.urandom(4).hex(), itertools.count(1)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, and note how it went."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        status, sent = 500, 0
        name = self._id(scope["headers"])

        async def observe(message: Any) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], (b"x-request-id", name)]}
            else:
                sent += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, observe)
        finally:
            seconds = time.perf_counter() - started
            path = scope["path"]
            self.service.metrics.request(path if path in self.routes else "other", status, seconds)
            if self.service.log is not None:
                self.service.log.request(**_line(scope, name, status, sent, seconds))

    def _id(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """The client's own id where it is short and plain, else a new one."""
        for key, value in headers:
            if key == b"x-request-id" and 0 < len(value) <= MAX_ID and value.isascii() and value.decode().isprintable():
                return value
        return f"{self._prefix}-{next(self._numbers)}".encode()


def _line(scope: Any, name: bytes, status: int, sent: int, seconds: float) -> dict[str, Any]:
    """The fields of a line in the access log."""
    client = scope.get("client")
    about = scope.get("calibrant", {})
    return {
        "method": scope["method"],
        "path": scope["path"][:200],
        "status": status,
        "ms": round(1000 * seconds, 3),
        "bytes_in": about.get("bytes", 0),
        "bytes_out": sent,
        "rows": about.get("rows", 0),
        "client": client[0] if client else None,
        "request_id": name.decode(),
    }
