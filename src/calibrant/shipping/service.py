"""The endpoints of the HTTP service, bound to one artifact and one monitor."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from calibrant.core.errors import InputError, MissingExtraError
from calibrant.shipping.access_log import AccessLog
from calibrant.shipping.feedback import FeedbackDesk
from calibrant.shipping.http_codec import FORMATS, JSON, KINDS, NDJSON, MalformedBodyError, decode_rows, encode
from calibrant.shipping.served import ArtifactFile, Served
from calibrant.shipping.service_docs import PAGE, openapi
from calibrant.shipping.service_metrics import ServiceMetrics
from calibrant.shipping.watch import parse_record

try:
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
except ImportError as error:
    raise MissingExtraError("starlette", "serve") from error

INLINE_ELEMENTS = 20_000
"""Below this a request is computed at once: handing it to a thread would take longer."""
INLINE_ANSWERS = 500
FEEDBACK_BYTES = 8 << 20
LOOK_SECONDS = 1.0
"""Between looks at the artifact's file, and between writes of the monitor's state."""

PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; frame-ancestors 'none'"
}


@dataclass(frozen=True)
class Limits:
    """What one request, and all of them together, may ask for."""

    body_bytes: int = 64 << 20
    rows: int = 65_536
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    read_seconds: float = 30.0
    compute_seconds: float = 60.0
    connections: int = 2048
    requests: int = 512
    waiting_bytes: int = 256 << 20
    stop_seconds: float = 10.0
    drain_seconds: float = 0.0


class Service:
    """The endpoints."""

    def __init__(
        self,
        served: Served,
        limits: Limits,
        desk: FeedbackDesk,
        file: ArtifactFile | None = None,
        log: AccessLog | None = None,
    ) -> None:
        from calibrant import __version__

        self.served, self.limits, self.desk, self.log = served, limits, desk, log
        self.version = __version__
        self.stopping = False
        self._file = file
        self._n_requests = 0
        self._n_bytes = 0
        # as many large requests at once as there are processors: more would only take memory
        self._threads = ThreadPoolExecutor(max_workers=max(1, min(8, os.cpu_count() or 1)))
        self._loop: asyncio.AbstractEventLoop | None = None
        self.metrics = ServiceMetrics(self._info)
        self.metrics.add(desk.families)

    def _info(self) -> dict[str, str]:
        served = self.served
        about = {"method": served.artifact.method, "n_classes": str(served.n_classes), "version": self.version}
        return {**about, "artifact": served.digest}

    async def calibrate(self, request: Request) -> Response:
        """POST /calibrate."""
        ask, served = _ask(request), self.served
        async with self._body(request) as body:
            if len(body) < 8 * INLINE_ELEMENTS:
                content, rows, pooled = self._compute(served, body, ask)
            else:
                content, rows, pooled = await self._in_thread(lambda: self._compute(served, body, ask))
        self.metrics.rows(rows)
        request.scope["calibrant"]["rows"] = rows
        headers = {"x-calibrant-artifact": served.digest}
        if served.groups is not None:
            headers["x-calibrant-pooled"] = str(pooled)
        return Response(content, media_type=ask.answer_type, headers=headers)

    def _compute(self, served: Served, body: bytes, ask: _Ask) -> tuple[bytes, int, int]:
        """The answer, its rows, and how many of them were calibrated without their group."""
        logits, groups = decode_rows(body, ask.content_type, served.wanted(self.limits.rows), ask.kind)
        if served.groups is not None and groups is None and not ask.pooled:
            raise InputError(
                'this calibrator was fitted per group: send "groups" with one name per row (JSON or Arrow), or '
                "?groups=pooled for the fit of all groups together"
            )
        names = None if groups is None else [str(name) for name in groups]
        values, predictions = served.answer(logits, ask.output, names)
        return (
            encode(values, ask.answer_type, predictions, ask.output),
            len(logits),
            served.n_pooled(names, len(logits)),
        )

    async def feedback(self, request: Request) -> Response:
        """POST /feedback."""
        kind = _content_type(request)
        if kind not in (JSON, NDJSON):
            raise HTTPException(415, f"content type {kind[:60]!r} is not served: send one of {JSON}, {NDJSON}")
        async with self._body(request, FEEDBACK_BYTES) as body:
            records = _records(body, kind, self.limits.rows)
            was = self.desk.alarm
            work = self.desk.take
            taken = work(records) if len(records) < INLINE_ANSWERS else await self._in_thread(lambda: work(records))
        if taken["alarm"] and not was:
            self.note("calibration alarm", "warning", n=taken["n"])
        return JSONResponse(taken)

    async def monitor(self, _request: Request) -> Response:
        """GET /monitor."""
        return JSONResponse(await self._in_thread(self.desk.report))

    async def health(self, _request: Request) -> Response:
        """GET /health: the process answers."""
        return JSONResponse({"status": "ok"})

    async def ready(self, _request: Request) -> Response:
        """GET /readyz: new requests are accepted."""
        if self.stopping:
            return JSONResponse({"status": "stopping"}, 503)
        if self._n_requests >= self.limits.requests or self._n_bytes >= self.limits.waiting_bytes:
            return JSONResponse({"status": "overloaded"}, 503)
        return JSONResponse({"status": "ready", "artifact": self.served.digest})

    async def about(self, _request: Request) -> Response:
        """GET /calibrator."""
        return JSONResponse(self.served.about())

    async def figures(self, request: Request) -> Response:
        """GET /metrics."""
        accept = request.headers.get("accept", "")
        content, content_type = await self._in_thread(lambda: self.metrics.exposition(accept))
        return Response(content, headers={"content-type": content_type})

    async def description(self, _request: Request) -> Response:
        """GET /openapi.json."""
        return JSONResponse(openapi(self.version, self.served.wanted(self.limits.rows)))

    async def page(self, _request: Request) -> Response:
        """GET /: a page for people."""
        return HTMLResponse(PAGE, headers=PAGE_HEADERS)

    async def unexpected(self, request: Request, error: Exception) -> Response:
        """A 500 that says nothing about the inside; the log says more."""
        self.note("unexpected error", "error", path=request.url.path[:200], error=repr(error)[:500])
        return JSONResponse({"error": "internal error: the service's log has more"}, 500)

    def note(self, event: str, level: str = "info", **fields: Any) -> None:
        """Write an event to the log, where there is one."""
        if self.log is not None:
            self.log.event(event, level, **fields)

    def after(self, seconds: float, work: Callable[[], None]) -> None:
        """Do something later on the service's loop."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.call_later, seconds, work)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The service's own tasks: looking at the artifact's file and keeping the monitor's state."""
        self._loop = asyncio.get_running_loop()
        hurry = asyncio.Event()
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError, AttributeError):
            self._loop.add_signal_handler(signal.SIGHUP, hurry.set)
        task = asyncio.create_task(self._look(hurry))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            self._save()
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _look(self, hurry: asyncio.Event) -> None:
        while True:
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(hurry.wait(), LOOK_SECONDS)
            hurry.clear()
            await asyncio.to_thread(self._save)
            if self._file is not None and self._file.changed():
                await asyncio.to_thread(self._reload)

    def _reload(self) -> None:
        assert self._file is not None  # noqa: S101
        try:
            new = self._file.replacement(self.served)
        except (InputError, MissingExtraError, OSError, MemoryError) as error:
            self.metrics.reload("failed")
            self.note("artifact refused", "error", error=str(error)[:500])
            return
        if new is not None:
            self.served = new  # one assignment: a request sees the old one or the new one
            self.desk.renew(new.digest)
            self.metrics.reload("ok")
            self.note("artifact replaced", artifact=new.digest, method=new.artifact.method)

    def _save(self) -> None:
        try:
            self.desk.save()
        except (InputError, OSError) as error:
            self.note("monitor state not written", "error", error=str(error)[:500])

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        try:
            return await asyncio.wait_for(loop.run_in_executor(self._threads, work), self.limits.compute_seconds)
        except TimeoutError as error:
            raise HTTPException(503, f"no answer within {self.limits.compute_seconds:g} s: send less") from error

    @contextlib.asynccontextmanager
    async def _body(self, request: Request, most: int | None = None) -> AsyncIterator[bytes]:
        """The whole body; it counts against the limits of the service until the block ends."""
        limit, held = min(self.limits.body_bytes, most or self.limits.body_bytes), 0
        claimed = request.headers.get("content-length", "")
        if claimed.isdigit() and len(claimed) < 20 and int(claimed) > limit:
            raise HTTPException(413, f"the body has {claimed} bytes, but at most {limit} are taken: split the batch")
        parts: list[bytes] = []

        async def read() -> None:
            nonlocal held
            async for part in request.stream():
                held += len(part)
                self._n_bytes += len(part)
                if held > limit:
                    raise HTTPException(413, f"the body has more than {limit} bytes, the most taken: split the batch")
                if self._n_bytes > max(self.limits.waiting_bytes, limit):
                    raise HTTPException(503, "too many large requests at once: try again", {"retry-after": "1"})
                parts.append(part)

        try:
            await self._in_time(read())
            request.scope["calibrant"] = {"bytes": held}
            # only now: a client that sends slowly takes no place from others
            if self._n_requests >= self.limits.requests:
                raise HTTPException(503, f"{self._n_requests} requests are being answered", {"retry-after": "1"})
            self._n_requests += 1
            try:
                yield parts[0] if len(parts) == 1 else b"".join(parts)
            finally:
                self._n_requests -= 1
        finally:
            self._n_bytes -= held

    async def _in_time(self, reading: Coroutine[Any, Any, None]) -> None:
        try:
            await asyncio.wait_for(reading, self.limits.body_seconds)
        except TimeoutError as error:
            words = f"the body did not arrive within {self.limits.body_seconds:g} s"
            raise HTTPException(408, words, {"connection": "close"}) from error


@dataclass(frozen=True)
class _Ask:
    """What a calibration request says beside its body."""

    content_type: str
    answer_type: str
    kind: str
    output: str
    pooled: bool


def _ask(request: Request) -> _Ask:
    content_type = _content_type(request)
    if content_type not in FORMATS:
        words = f"content type {content_type[:60]!r} is not served: send one of {', '.join(FORMATS)}"
        raise HTTPException(415, words)
    accepted = (part.split(";")[0].strip().lower() for part in request.headers.get("accept", "").split(","))
    answer_type = next((part for part in accepted if part in FORMATS), content_type)
    query = request.query_params if request.scope["query_string"] else {}
    kind, output = query.get("kind", "logits"), query.get("output", "probabilities")
    if kind not in KINDS or output not in KINDS:
        found = f"{kind[:30]!r} and {output[:30]!r}"
        raise HTTPException(422, f"kind and output must be one of {', '.join(KINDS)}, got {found}")
    return _Ask(content_type, answer_type, kind, output, query.get("groups") == "pooled")


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").split(";")[0].strip().lower()


def _records(body: bytes, kind: str, limit: int) -> list[Any]:
    """The answers of a feedback body: one object, {"answers": […]}, or one object per line."""
    if kind == NDJSON:
        lines = [line for line in body.split(b"\n") if line.strip()]
        if len(lines) > limit:
            raise InputError(f"there are {len(lines)} answers, but one request may bring {limit}: send fewer")
        return [parse_record(line) for line in lines]
    if body.count(b"{") > limit + 1 or body.count(b"[") > 2 * limit + 1:
        raise InputError(f"there are more than {limit} answers, the most that one request may bring: send fewer")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedBodyError(f"the body is not JSON ({str(error)[:100]})") from error
    records = document.get("answers") if isinstance(document, dict) and "answers" in document else [document]
    if not isinstance(records, list):
        raise InputError('the body must be {"answers": [{…}, …]} or one answer')
    return records


async def bytes_problem(_request: Request, error: Exception) -> Response:
    """A problem in one line: 400 for what is malformed, 422 for what does not fit, or the status of the exception."""
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)
    return JSONResponse({"error": str(error)}, 400 if isinstance(error, MalformedBodyError) else 422)


async def went_away(_request: Request, _error: Exception) -> Response:
    """An answer that only the log sees."""
    return JSONResponse({"error": "the client went away"}, 400)
