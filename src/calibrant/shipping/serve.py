"""A small HTTP service around one calibrator: POST logits, get calibrated probabilities."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.core.errors import InputError, MissingExtraError
from calibrant.shipping.artifact import Artifact
from calibrant.shipping.http_codec import FORMATS, MalformedBodyError, decode, encode
from calibrant.shipping.service_docs import PAGE, openapi
from calibrant.shipping.service_metrics import ServiceMetrics

try:
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route
except ImportError as error:
    raise MissingExtraError("starlette", "serve") from error

log = logging.getLogger("calibrant.serve")

INLINE_ELEMENTS = 20_000
"""Below this a request is computed at once: handing it to a thread would take longer."""

PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; frame-ancestors 'none'"
}


@dataclass(frozen=True)
class Limits:
    """What one request may ask for."""

    body_bytes: int = 64 << 20
    rows: int = 65_536
    body_seconds: float = 30.0
    compute_seconds: float = 60.0
    connections: int = 512
    stop_seconds: float = 10.0


class Service:
    """The endpoints, bound to one artifact."""

    def __init__(self, artifact: Artifact, limits: Limits) -> None:
        from calibrant import __version__

        if artifact.n_classes is None:
            raise InputError(f"{artifact.method} is part of a network and cannot be served over logits")
        self.artifact = artifact
        self.n_classes = artifact.n_classes
        self.limits = limits
        self.version = __version__
        about = {"method": artifact.method, "n_classes": str(artifact.n_classes), "version": __version__}
        self.metrics = ServiceMetrics(about)

    async def calibrate(self, request: Request) -> Response:
        """POST /calibrate."""
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if kind not in FORMATS:
            raise HTTPException(415, f"content type {kind[:60]!r} is not served: send one of {', '.join(FORMATS)}")
        body = await self._body(request)
        answer_kind = _accepted(request.headers.get("accept", ""), kind)
        if len(body) < 8 * INLINE_ELEMENTS:
            content = self._compute(body, kind, answer_kind)
        else:
            work = run_in_threadpool(self._compute, body, kind, answer_kind)
            try:
                content = await asyncio.wait_for(work, self.limits.compute_seconds)
            except (TimeoutError, asyncio.TimeoutError) as error:
                raise HTTPException(503, f"no answer within {self.limits.compute_seconds:g} s: send less") from error
        return Response(content, media_type=answer_kind)

    def _compute(self, body: bytes, kind: str, answer_kind: str) -> bytes:
        logits = decode(body, kind, n_classes=self.n_classes, max_rows=self.limits.rows)
        with np.errstate(all="ignore"):
            probabilities = self.artifact.calibrator.predict_proba(logits)
        if not np.isfinite(probabilities).all():
            raise InputError("these logits lead to values that are not finite: send logits of a smaller size")
        self.metrics.rows(len(logits))
        return encode(probabilities, answer_kind)

    async def _body(self, request: Request) -> bytes:
        limit = self.limits.body_bytes
        claimed = request.headers.get("content-length", "")
        if claimed.isdigit() and int(claimed) > limit:
            raise HTTPException(413, f"the body has {claimed} bytes, but at most {limit} are taken: split the batch")
        try:
            return await asyncio.wait_for(_read(request, limit), self.limits.body_seconds)
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise HTTPException(408, f"the body did not arrive within {self.limits.body_seconds:g} s") from error

    async def health(self, _request: Request) -> Response:
        """GET /health."""
        return JSONResponse({"status": "ok"})

    async def about(self, _request: Request) -> Response:
        """GET /calibrator."""
        artifact = self.artifact
        return JSONResponse(
            {
                "method": artifact.method,
                "n_classes": artifact.n_classes,
                "class_names": artifact.class_names,
                "fit": {
                    "n": artifact.n,
                    "fingerprint": artifact.fingerprint,
                    "before": artifact.before,
                    "after": artifact.after,
                },
                "library": artifact.library,
            }
        )

    async def figures(self, _request: Request) -> Response:
        """GET /metrics."""
        return PlainTextResponse(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def description(self, _request: Request) -> Response:
        """GET /openapi.json."""
        return JSONResponse(openapi(self.version, self.n_classes, self.limits.rows))

    async def page(self, _request: Request) -> Response:
        """GET /: a page for people."""
        return HTMLResponse(PAGE, headers=PAGE_HEADERS)


class _Counted:
    """Counts every answered request by route and status; pure ASGI, so bodies are never held."""

    def __init__(self, app: Any, metrics: ServiceMetrics, routes: frozenset[str]) -> None:
        self.app, self.metrics, self.routes = app, metrics, routes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def watch(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            route = scope["path"] if scope["path"] in self.routes else "other"
            self.metrics.request(route, status, time.perf_counter() - started)


def create_app(artifact: Artifact, limits: Limits | None = None) -> Any:
    """The ASGI application that serves one artifact; run it with uvicorn or any other ASGI server."""
    service = Service(artifact, limits or Limits())
    routes = [
        Route("/", service.page),
        Route("/calibrate", service.calibrate, methods=["POST"]),
        Route("/calibrator", service.about),
        Route("/health", service.health),
        Route("/metrics", service.figures),
        Route("/openapi.json", service.description),
    ]
    handlers: dict[Any, Any] = {
        HTTPException: _http_problem,
        MalformedBodyError: _malformed,
        InputError: _unfit,
        ClientDisconnect: _gone,
        Exception: _unexpected,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    return _Counted(app, service.metrics, frozenset(route.path for route in routes))


def serve(
    artifact: Artifact,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    limits: Limits | None = None,
    announce: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve until SIGINT or SIGTERM; requests in flight are finished first.

    `announce` is told the address once the port is ours; port 0 takes any that is free.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtraError("uvicorn", "serve") from error
    limits = limits or Limits()
    config = uvicorn.Config(
        create_app(artifact, limits),
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=int(limits.stop_seconds),
        lifespan="off",
    )
    with _listen(host, port) as listener, contextlib.suppress(KeyboardInterrupt):
        name = f"[{host}]" if ":" in host else host
        announce(f"http://{name}:{listener.getsockname()[1]}")
        uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"cannot listen on {host} port {port}: {reason}; choose others with --host, --port") from error


async def _read(request: Request, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise HTTPException(413, f"the body has more than {limit} bytes, the most that is taken: split the batch")
        parts.append(part)
    return b"".join(parts)


def _accepted(accept: str, otherwise: str) -> str:
    """The first of our formats that Accept names; the request's own where it names none."""
    for part in accept.split(","):
        kind = part.split(";")[0].strip().lower()
        if kind in FORMATS:
            return kind
    return otherwise


async def _http_problem(_request: Request, error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


async def _malformed(_request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400)


async def _unfit(_request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 422)


async def _gone(_request: Request, _error: Exception) -> Response:
    return JSONResponse({"error": "the client went away"}, 400)


async def _unexpected(_request: Request, error: Exception) -> Response:
    log.error("unexpected error: %r", error)
    return JSONResponse({"error": "internal error: the service's log has more"}, 500)
