"""A small HTTP service around one calibrator: POST logits or probabilities, get calibrated probabilities."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from calibrant.core.errors import InputError, MissingExtraError
from calibrant.shipping.access_log import AccessLog
from calibrant.shipping.artifact import Artifact
from calibrant.shipping.feedback import FeedbackDesk
from calibrant.shipping.monitor import Monitor
from calibrant.shipping.served import ArtifactFile, Served
from calibrant.shipping.service import Limits, Service, bytes_problem, went_away

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from starlette.routing import Route
except ImportError as error:
    raise MissingExtraError("starlette", "serve") from error

__all__ = ["Limits", "create_app", "serve"]

MAX_ID = 128
"""Longest id of a request that is taken over from the client."""


def create_app(
    artifact: Artifact | ArtifactFile,
    limits: Limits | None = None,
    *,
    feedback: FeedbackDesk | None = None,
    access_log: AccessLog | None = None,
) -> Any:
    """The ASGI application that serves one artifact; run it with uvicorn or any other ASGI server.

    Parameters
    ----------
    artifact : an artifact, or an `ArtifactFile`, which is looked at every second and replaced when it changes.
    limits : what one request may ask for.
    feedback : where outcomes go; a monitor of its own by default.
    access_log : where one JSON object per request goes; nowhere by default.
    """
    served = artifact.load() if isinstance(artifact, ArtifactFile) else Served.of(artifact)
    desk = feedback or FeedbackDesk(Monitor(), artifact=served.digest)
    file = artifact if isinstance(artifact, ArtifactFile) else None
    return _observed(Service(served, limits or Limits(), desk, file, access_log))


def _observed(service: Service) -> Observed:
    routes = [
        Route("/", service.page),
        Route("/calibrate", service.calibrate, methods=["POST"]),
        Route("/calibrator", service.about),
        Route("/feedback", service.feedback, methods=["POST"]),
        Route("/monitor", service.monitor),
        Route("/health", service.health),
        Route("/readyz", service.ready),
        Route("/metrics", service.figures),
        Route("/openapi.json", service.description),
    ]
    handlers: dict[Any, Any] = {
        HTTPException: bytes_problem,
        InputError: bytes_problem,
        ClientDisconnect: went_away,
        Exception: service.unexpected,
    }

    @contextlib.asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    return Observed(app, service, frozenset(route.path for route in routes))


def serve(
    artifact: Artifact | str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    limits: Limits | None = None,
    feedback: Callable[[Served], FeedbackDesk] | None = None,
    access_log: AccessLog | None = None,
    announce: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve until SIGINT or SIGTERM; requests in flight are finished first.

    A path is looked at every second (and at SIGHUP), and a new artifact there takes over between two requests.
    `announce` is told the address once the port is ours; port 0 takes any that is free. After SIGTERM `/readyz` says no
    for `limits.drain_seconds` before the service stops taking connections.
    """
    try:
        import uvicorn

        from calibrant.shipping.http_guard import Guard, most_connections
    except ImportError as error:
        raise MissingExtraError("uvicorn", "serve") from error
    limits = limits or Limits()
    file = None if isinstance(artifact, Artifact) else ArtifactFile(artifact)
    served = Served.of(artifact) if isinstance(artifact, Artifact) else file.load()  # type: ignore[union-attr]
    desk = feedback(served) if feedback else FeedbackDesk(Monitor(), artifact=served.digest)
    service = Service(served, limits, desk, file, access_log)
    guard = Guard(replace(limits, connections=most_connections(limits.connections)))
    service.metrics.add(guard.families)

    drain = limits.drain_seconds

    class Server(uvicorn.Server):
        """uvicorn, which says that it is about to stop before it does."""

        def handle_exit(self, sig: int, frame: Any) -> None:
            first, service.stopping = not service.stopping, True
            if first and sig == signal.SIGTERM and drain > 0:
                service.after(drain, lambda: self._stop(sig, frame))
            else:
                self._stop(sig, frame)

        def _stop(self, sig: int, frame: Any) -> None:
            super().handle_exit(sig, frame)
            # uvicorn raises the signal again after it has stopped; a service that stopped as asked exits with 0
            self._captured_signals.clear()

    config = uvicorn.Config(
        _observed(service),
        http=guard.protocol(),
        ws="none",
        log_level="critical",  # the access log says what happened
        access_log=False,
        server_header=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=int(limits.stop_seconds),
        lifespan="on",
    )
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the service runs, and where it serves no file
    with _listen(host, port) as listener, contextlib.suppress(KeyboardInterrupt):
        name = f"[{host}]" if ":" in host else host
        announce(f"http://{name}:{listener.getsockname()[1]}")
        try:
            Server(config).run(sockets=[listener])
        finally:
            if access_log is not None:
                access_log.close()


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


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"cannot listen on {host} port {port}: {reason}; choose others with --host, --port") from error
