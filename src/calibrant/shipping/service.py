"""The HTTP service around one calibrator, as an ASGI application: endpoints, limits, figures and the access log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import re
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.errors import FitWarning, InputError, MissingExtraError
from calibrant.core.schema import check_kind, identifier
from calibrant.shipping.artifact import Artifact, PathName, read_artifact
from calibrant.shipping.feed import FeedbackDesk
from calibrant.shipping.http_codec import (
    FORMATS,
    JSON,
    NDJSON,
    MalformedBodyError,
    Wanted,
    check_signs,
    decode_rows,
    encode,
    estimate_memory,
    openapi,
    parse_json,
)

try:
    from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.exposition import choose_encoder
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route
except ImportError as error:
    raise MissingExtraError("starlette and prometheus-client", "serve") from error

EVENTS = logging.getLogger("calibrant.service")
"""Reloads, alarms and errors; `extra={"fields": {…}}` holds the details."""
ACCESS = logging.getLogger("calibrant.service.access")
"""One record per answered request."""

INLINE_BYTES = 320_000
"""Below this a request is computed at once: handing it to a thread would take longer."""
UNRESERVED_BYTES = 16_384
"""Requests up to this size take no place in the line for memory."""
MAX_PAUSED = 256
"""Bodies that may wait for room; the server buffers up to 320 kB of each."""
PIECE_BYTES = 1 << 18
"""Longer responses are sent in pieces: the buffer of a connection with a slow reader stays small."""
FEEDBACK_GROWTH = 32
"""Largest ratio of the memory of parsed outcomes to the size of their body."""
KEPT_BYTES = 16 << 20
"""Arrays up to this size are allocated from memory that the process keeps."""
FEEDBACK_BYTES = 8 << 20
LOOK_SECONDS = 1.0
"""Between looks at the artifact's file, and between attempts to write the monitor's state."""
SAVE_SECONDS = 0.05
"""Between writes of new outcomes to the disk: a power failure loses at most those of this time and of one write."""
OVERLOADED = "too many large requests at once: try again"
RETRY = {"retry-after": "1", "connection": "close"}
PLAIN_ID = re.compile(rb"[ -~]{1,128}")
"""Ids of requests that are taken over from the client: short, and ASCII that can be printed."""
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper edges of the latency histogram, in seconds."""
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>calibrant</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
  h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
  code, pre, textarea { font: 14px/1.4 ui-monospace, monospace }
  textarea { width: 100%; height: 6rem; box-sizing: border-box }
  pre { background: #f4f4f4; padding: .8rem; overflow: auto; max-height: 20rem; white-space: pre-wrap }
  table { border-collapse: collapse } td { padding: .2rem .8rem .2rem 0; vertical-align: top }
  @media (prefers-color-scheme: dark) {
    body { background: #181818; color: #ddd } pre, textarea { background: #262626; color: #ddd }
  }
</style>
<h1>calibrant</h1>
<p id="what">Logits in, calibrated probabilities out.</p>
<h2>Paths</h2>
<table id="paths"></table>
<h2>Try it</h2>
<label for="body">POST /calibrate</label>
<textarea id="body" spellcheck="false"></textarea>
<p><button id="send">Send</button></p>
<pre id="answer" aria-live="polite"></pre>
<p><a href="openapi.json">openapi.json</a></p>
<script>
  const get = id => document.getElementById(id);
  fetch("openapi.json").then(r => r.json()).then(api => {
    for (const [path, methods] of Object.entries(api.paths))
      for (const [method, about] of Object.entries(methods)) {
        const row = get("paths").insertRow();
        row.insertCell().appendChild(document.createElement("code")).textContent = method.toUpperCase() + " " + path;
        row.insertCell().textContent = about.summary;
      }
    const example = api.paths["/calibrate"].post.requestBody.content["application/json"].example;
    get("body").value = JSON.stringify(example);
  });
  fetch("calibrator").then(r => r.json()).then(c => {
    get("what").textContent = c.method + " for " + c.n_classes + " classes: logits in, calibrated probabilities out.";
  });
  get("send").onclick = async () => {
    const r = await fetch("calibrate",
      { method: "POST", headers: { "content-type": "application/json" }, body: get("body").value });
    get("answer").textContent = r.status + "\\n" + await r.text();
  };
</script>
"""
"""For people; like the description it needs nothing from the network."""
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
    idle_seconds: float = 15.0
    compute_seconds: float = 60.0
    connections: int = 2048
    requests: int = 512
    waiting_bytes: int = 64 << 20
    memory_bytes: int = 448 << 20
    stop_seconds: float = 10.0
    drain_seconds: float = 0.0


class Served:
    """One artifact, ready to answer; a request keeps the one it began with."""

    groups: frozenset[str] | None = None
    """Names of the groups that a calibrator per group knows; None for any other calibrator."""

    def __init__(self, artifact: Artifact, max_rows: int = Limits.rows) -> None:
        schema, calibrator = artifact.schema, artifact.calibrator
        if schema is None:
            raise InputError(f"{artifact.method} is part of a network and cannot be served over logits")
        self.artifact = artifact
        self.schema = Wanted(**vars(schema), max_rows=max_rows, grouped=calibrator.takes_groups)
        """What a request must bring."""
        self.digest = artifact.digest[:12]
        """A short name of the artifact's content."""
        if calibrator.takes_groups:
            self.groups = frozenset(identifier(name) for name in calibrator.groups_)
            # answers say how many rows got the pooled fit; a warning per request would only fill the log
            warnings.filterwarnings("ignore", message=".*group", category=FitWarning)

    def answer(
        self, logits: Array, output: str, groups: list[Any] | None = None, pooled: bool = True
    ) -> tuple[Array, Array, int]:
        """Probabilities (n×K) or calibrated logits, the predictions, and how many rows got the fit of all groups.

        Predictions are (n,), or n×L of 0 and 1 for many labels.
        """
        calibrator, options, n_pooled = self.artifact.calibrator, {}, 0
        if self.groups is not None and groups is not None:
            names = [identifier(name) for name in groups]
            options, n_pooled = {"groups": np.array(names)}, sum(name not in self.groups for name in names)
        elif self.groups is not None:
            n_pooled = len(logits)
            if not pooled:
                raise InputError(
                    'this calibrator was fitted per group: send "groups" with one name per row (JSON or Arrow), or '
                    "?groups=pooled for the fit of all groups together"
                )
        work = calibrator.predict_proba if output == "probabilities" else calibrator.transform
        with np.errstate(all="ignore"):
            values = work(logits, **options)
        if not np.isfinite(values).all():
            raise InputError("these logits lead to values that are not finite: send logits of a smaller size")
        if self.schema.task == "multilabel":
            predictions = values >= (0.5 if output == "probabilities" else 0.0)
        else:  # by the classes, or by the logit of the positive class
            predictions = values.argmax(axis=1) if values.ndim == 2 else values > 0
        return values, predictions.astype(np.int64), n_pooled


class Service:
    """The ASGI application that serves one artifact; run it with uvicorn or any other ASGI server.

    Requests are logged by the logger `calibrant.service.access`, everything else by `calibrant.service`.

    Parameters
    ----------
    artifact : an artifact, or the path of one, which is looked at every second and read again when it changes.
    limits : what one request may ask for.
    feedback : where outcomes go; a monitor of its own by default.
    """

    hosts: re.Pattern[str] | None = None
    """What the header Host may say, if anything but this is refused."""

    def __init__(
        self, artifact: Artifact | PathName, limits: Limits | None = None, *, feedback: FeedbackDesk | None = None
    ) -> None:
        self.limits, self.stopping = limits or Limits(), False
        self._path: PathName | None = None
        if not isinstance(artifact, Artifact):
            self._path, self._seen = artifact, _signature(artifact)
            artifact = read_artifact(artifact)
        self.served = Served(artifact, self.limits.rows)
        self.desk = desk = feedback or FeedbackDesk(artifact=self.served.digest)
        desk.schema = self.served.schema
        if desk.artifact != self.served.digest:  # the file has changed meanwhile
            desk.renew(self.served.digest)
        # glibc returns freed memory to the system beyond a threshold that follows the largest array freed so far;
        # mapping the same pages again for every request took a quarter of the time of 64 rows
        np.empty(KEPT_BYTES, np.uint8)
        self._n_requests = self._n_bytes = self._n_reserved = self._n_paused = 0
        self._bodies: list[bytearray] = []
        self._line, self._released = asyncio.Lock(), asyncio.Event()
        self._save_error = ""
        self._waiting: dict[Any, list[tuple[Array, Any]]] = {}
        # as many large requests at once as there are processors: more would only take memory
        self._threads = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(desk)
        registry.register(self)
        self._requests = Counter("calibrant_requests", "Answered requests.", ["route", "status"], registry=registry)
        self._rows = Counter("calibrant_rows", "Calibrated rows.", registry=registry)
        self._reloads = Counter("calibrant_reloads", "New artifacts at the path.", ["outcome"], registry=registry)
        for outcome in ("ok", "failed"):
            self._reloads.labels(outcome)  # 0 from the start, so that a rise is seen
        self._seconds = Histogram(
            "calibrant_request_seconds", "Time to answer a calibration request.", buckets=BUCKETS, registry=registry
        )
        routes = [
            Route("/calibrate", self.calibrate, methods=["POST"]),  # first, since routes are tried in this order
            Route("/", HTMLResponse(PAGE, headers=PAGE_HEADERS), methods=["GET"]),
            Route("/calibrator", self.about),
            Route("/feedback", self.feedback, methods=["POST"]),
            Route("/monitor", self.monitor),
            Route("/health", JSONResponse({"status": "ok"}), methods=["GET"]),  # the process answers
            Route("/readyz", self.ready),
            Route("/metrics", self.figures),
            Route("/openapi.json", self.description),
        ]
        self.paths = {route.path for route in routes}
        self.app = Starlette(
            routes=routes,
            exception_handlers=dict.fromkeys((HTTPException, InputError, ClientDisconnect, Exception), problem),
            lifespan=lambda _app: self.running(),
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, then count and log it; bodies are never held."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, sent = time.perf_counter(), 500, 0
        app: Any = self.app
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"localhost").decode("latin-1")
        if self.hosts and not self.hosts.fullmatch(host):
            error = f"Host is {host[:60]!r}: this service answers its own machine only"
            app, scope["calibrant"] = JSONResponse({"error": error}, 421), {"error": error}
        name = headers.get(b"x-request-id", b"")
        name = name if PLAIN_ID.fullmatch(name) else os.urandom(8).hex().encode()

        async def observe(message: Any) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                closing = [(b"connection", b"close")] * self.stopping  # the next request finds another service
                message["headers"] = [*message["headers"], (b"x-request-id", name), *closing]
            body = memoryview(message.get("body", b""))
            sent += len(body)
            while len(body) > PIECE_BYTES:
                await send({**message, "body": bytes(body[:PIECE_BYTES]), "more_body": True})
                body = body[PIECE_BYTES:]
            if "body" in message:
                message["body"] = bytes(body)
            await send(message)

        try:
            await app(scope, receive, observe)
        finally:
            self._reserve(scope, 0)
            seconds, path = time.perf_counter() - started, scope["path"]
            route = path.removeprefix(scope.get("root_path", ""))
            self._requests.labels(route if route in self.paths else "other", status).inc()
            if route == "/calibrate":
                self._seconds.observe(seconds)
            fields = {
                "method": scope["method"],
                "path": path[:200],
                "status": status,
                "ms": round(1000 * seconds, 3),
                "bytes_out": sent,
                "client": (scope.get("client") or [None])[0],
                "request_id": name.decode(),
                "bytes_in": 0,
                "rows": 0,
                **scope.get("calibrant", {}),
            }
            ACCESS.info("request", extra={"fields": fields})

    async def calibrate(self, request: Request) -> Response:
        """POST /calibrate."""
        served, content_type = self.served, _content_type(request, FORMATS)
        accepted = (part.split(";")[0].strip().lower() for part in request.headers.get("accept", "").split(","))
        answer_type = next((part for part in accepted if part in FORMATS), content_type)
        query = request.query_params if request.scope["query_string"] else {}  # reading none takes 15 µs
        kind, output, pool = query.get("kind"), query.get("output", "probabilities"), query.get("groups") == "pooled"
        check_kind(kind)
        check_kind(output)

        def answer(logits: Array, groups: Any, found: Any = None) -> Response:
            values, predictions, pooled = found or served.answer(logits, output, groups, pool)
            self._rows.inc(len(logits))
            request.scope["calibrant"]["rows"] = len(logits)
            headers = {"x-calibrant-artifact": served.digest}
            if served.groups is not None:
                headers["x-calibrant-pooled"] = str(pooled)
            return Response(encode(values, answer_type, predictions, output), media_type=answer_type, headers=headers)

        async with self._body(request) as body:
            if len(body) > UNRESERVED_BYTES:
                needed = estimate_memory(body, content_type, answer_type, served.schema.width)
                await self._wait_for_memory(request.scope, needed)
            decode = partial(decode_rows, body, content_type, served.schema, kind)
            if len(body) >= INLINE_BYTES:
                response = await self._in_thread(lambda: answer(*decode()))
                self._reserve(request.scope, len(response.body))
                return response
            logits, groups = decode()
            found = await self._together(served, output, logits) if served.groups is None else None
            return answer(logits, groups, found)

    def _together(self, served: Served, output: str, logits: Array) -> asyncio.Future[Any]:
        """What `Served.answer` gives; small requests that arrive at the same time are computed in one call.

        A call for one row takes nearly as long as a call for ten.
        """
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._answer_waiting)  # after the requests that have arrived by now
        found = loop.create_future()
        self._waiting.setdefault((served, output, logits.dtype), []).append((logits, found))
        return found

    def _answer_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for (served, output, _), requests in waiting.items():
            answers, stop = None, 0
            with contextlib.suppress(Exception):  # where one of them is unsound, each is answered by itself
                answers = served.answer(np.concatenate([logits for logits, _ in requests]), output)
            for logits, found in requests:
                start, stop = stop, stop + len(logits)
                if not found.done():  # its client may have gone away
                    found.set_result(answers and (answers[0][start:stop], answers[1][start:stop], 0))

    async def feedback(self, request: Request) -> Response:
        """POST /feedback."""
        kind = _content_type(request, (JSON, NDJSON))
        async with self._body(request, FEEDBACK_BYTES) as body:
            if len(body) > UNRESERVED_BYTES:
                await self._wait_for_memory(request.scope, FEEDBACK_GROWTH * len(body))
            records = _records(body, kind, self.limits.rows)
            was = self.desk.monitor.alarm
            taken = await self._in_thread(partial(self.desk.take, records))  # which may wait for others
        if taken["alarm"] and not was:
            EVENTS.warning("calibration alarm", extra={"fields": {"n": taken["n"]}})
        return JSONResponse(taken)

    def monitor(self, _request: Request) -> Response:
        """GET /monitor; Starlette calls it in a thread, since it may take long."""
        return JSONResponse(self.desk.report())

    def collect(self) -> Iterator[Any]:
        """The served artifact for Prometheus."""
        artifact = self.served.artifact
        labels = {"digest": self.served.digest, "method": artifact.method, "version": artifact.library}
        family = GaugeMetricFamily("calibrant_artifact", "The served artifact.", labels=list(labels))
        family.add_metric(list(labels.values()), 1)
        yield family

    async def ready(self, _request: Request) -> Response:
        """GET /readyz: new requests are accepted."""
        if self.stopping or self._n_requests >= self.limits.requests or self._n_paused >= MAX_PAUSED:
            return JSONResponse({"status": "stopping" if self.stopping else "overloaded"}, 503)
        unsaved = {} if self.desk.is_saved else {"monitor": "not saved"}
        return JSONResponse({"status": "ready", "artifact": self.served.digest, **unsaved})

    async def about(self, _request: Request) -> Response:
        """GET /calibrator."""
        served, artifact = self.served, self.served.artifact
        fit = {name: getattr(artifact, name) for name in ("n", "fingerprint", "before", "after", "created", "source")}
        about = {
            "method": artifact.method,
            "task": served.schema.task,
            "kind": artifact.kind,
            "n_classes": artifact.n_classes,
            "groups": None if served.groups is None else sorted(served.groups),
            "class_names": artifact.class_names,
            "fit": fit,
            "library": artifact.library,
            "artifact": served.digest,
        }
        return JSONResponse(about)

    def figures(self, request: Request) -> Response:
        """GET /metrics, in the format that the scraper accepts; in a thread too."""
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encoder(self.registry), media_type=content_type)

    async def description(self, _request: Request) -> Response:
        """GET /openapi.json."""
        return JSONResponse(openapi(self.served.schema))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The service's own task: looking at the artifact's file and keeping the monitor's state."""

        async def look() -> None:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                if self._path is not None and _signature(self._path) not in (None, self._seen):
                    await asyncio.to_thread(self._reload, self._path)

        async def save() -> None:
            while True:
                await asyncio.to_thread(self._save)
                await asyncio.sleep(SAVE_SECONDS if self.desk.is_saved else LOOK_SECONDS)

        self._save()
        tasks = [asyncio.create_task(work()) for work in (look, save)[: 1 + self.desk.has_file]]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._save()
            self.desk.close()
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _reload(self, path: PathName) -> None:
        try:
            self._seen = _signature(path)
            new = Served(read_artifact(path), self.limits.rows)
            if new.digest == self.served.digest:
                return
            moved = self.served.schema.align(new.schema, "the service", str(path)).order is not None
            if moved or new.schema.kind != self.served.schema.kind:
                raise InputError(f"{path} takes other columns or another kind of numbers: restart the service")
        except (InputError, MissingExtraError, OSError, MemoryError) as error:
            self._reloads.labels("failed").inc()
            EVENTS.error("artifact refused", extra={"fields": {"error": str(error)[:500]}})
            return
        self.served = new  # one assignment: a request sees the old one or the new one
        self.desk.renew(new.digest)
        self._save()
        self._reloads.labels("ok").inc()
        EVENTS.info("artifact replaced", extra={"fields": {"artifact": new.digest, "method": new.artifact.method}})

    def _save(self) -> None:
        try:
            self.desk.save()
        except (InputError, OSError) as error:
            if str(error) != self._save_error:  # once, not at each attempt
                EVENTS.error("monitor state not written", extra={"fields": {"error": str(error)[:500]}})
            self._save_error = str(error)
        else:
            if self._save_error:
                EVENTS.info("monitor state written")
            self._save_error = ""

    async def _wait_for_memory(self, scope: Any, needed: int) -> None:
        """Reserve memory for a request, in the order of arrival; it is released when the response is sent."""
        limits = self.limits
        if needed > limits.memory_bytes:
            words = (
                f"this request needs about {needed >> 20} MB of memory, at most {limits.memory_bytes >> 20} are given"
            )
            raise HTTPException(413, f"{words}: split the batch")
        async with self._patience(), self._line:
            while self._n_reserved + needed > limits.memory_bytes:
                self._released.clear()
                await self._released.wait()
            self._reserve(scope, needed)

    @contextlib.asynccontextmanager
    async def _patience(self) -> AsyncIterator[None]:
        """Refuse a request that waits for others too long."""
        try:
            async with asyncio.timeout(self.limits.compute_seconds):
                yield
        except TimeoutError as error:
            raise HTTPException(503, OVERLOADED, RETRY) from error

    async def _wait_for_room(self, body: bytearray) -> None:
        """Read no more of a body until others are done; the longest one never waits, so that one is always answered."""
        if self._n_paused >= MAX_PAUSED:
            raise HTTPException(503, OVERLOADED, RETRY)
        self._n_paused += 1
        try:
            async with self._patience():
                while self._n_bytes > self.limits.waiting_bytes and max(self._bodies, key=len) is not body:
                    self._released.clear()
                    await self._released.wait()
        finally:
            self._n_paused -= 1

    def _reserve(self, scope: Any, amount: int) -> None:
        """Set the memory that is reserved for a request."""
        self._n_reserved += amount - scope.get("calibrant.reserved", 0)
        scope["calibrant.reserved"] = amount
        self._released.set()

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        seconds, answer = self.limits.compute_seconds, asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError as error:
            raise HTTPException(503, f"no answer within {seconds:g} s: send less") from error

    @contextlib.asynccontextmanager
    async def _body(self, request: Request, most: float = math.inf) -> AsyncIterator[Any]:
        """The whole body; it counts against the limits of the service until the block ends.

        The server gives up connections that are too slow.
        """
        limits, body = self.limits, bytearray()
        limit = min(limits.body_bytes, most)
        claimed = int(request.headers.get("content-length", 0))
        self._bodies.append(body)
        try:
            async for part in request.stream():
                body += part
                self._n_bytes += len(part)
                if max(claimed, len(body)) > limit:
                    words = f"the body is too large, at most {limit} bytes are taken: split the batch"
                    raise HTTPException(413, words, {"connection": "close"})
                if self._n_bytes > limits.waiting_bytes and len(body) > UNRESERVED_BYTES:
                    await self._wait_for_room(body)
            request.scope["calibrant"] = {"bytes_in": len(body)}
            # only now: a client that sends slowly takes no place from others
            if self._n_requests >= limits.requests:
                raise HTTPException(503, f"{self._n_requests} requests are being answered", {"retry-after": "1"})
            self._n_requests += 1
            try:
                yield body  # as it is: a copy would hold large ones twice
            finally:
                self._n_requests -= 1
        finally:
            self._n_bytes -= len(body)
            self._bodies = [one for one in self._bodies if one is not body]
            self._released.set()


create_app = Service


def _signature(path: PathName) -> tuple[int, ...] | None:
    """What changes when another file takes the place of this one; None for a missing file, which is waited for."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_ino, about.st_mtime_ns, about.st_size


def _content_type(request: Request, served: tuple[str, ...]) -> str:
    found = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if found not in served:
        raise HTTPException(415, f"content type {found[:60]!r} is not served: send one of {', '.join(served)}")
    return found


def _records(body: bytes, kind: str, limit: int) -> list[Any]:
    """The answers of a feedback body: one object, {"answers": […]}, or one object per line."""
    # before anything is built: an answer is an object in a line or in a list
    lines = kind == NDJSON
    check_signs(body, {b"{": limit + (not lines), b"\n" if lines else b"[": 2 * limit + 1}, f"{limit} answers")
    if lines:
        return [parse_json(line) for line in body.split(b"\n") if line.strip()]
    document = parse_json(body)
    records = document["answers"] if isinstance(document, dict) and "answers" in document else [document]
    if not isinstance(records, list):
        raise InputError('the body must be {"answers": [{…}, …]} or one answer')
    return records


async def problem(request: Request, error: Exception) -> Response:
    """A problem in one line: 400 for what is malformed, 422 for what does not fit, or the status of the exception.

    Any other error is a 500 that says nothing about the inside; the log says more.
    """
    status, words, headers = 422, str(error), None
    if isinstance(error, HTTPException):
        status, words, headers = error.status_code, error.detail, error.headers
    elif isinstance(error, ClientDisconnect):
        # only the log sees these
        status, words = 400, "the client went away"
        if request.scope.get("calibrant", {}).get("error"):
            status, words = 408, request.scope["calibrant"]["error"]
    elif isinstance(error, MalformedBodyError):
        status = 400
    elif not isinstance(error, InputError):
        fields = {"path": request.url.path[:200], "error": repr(error)[:500]}
        EVENTS.error("unexpected error", extra={"fields": fields})
        status, words = 500, "internal error: the service's log has more"
    request.scope["calibrant"] = {**request.scope.get("calibrant", {}), "error": words[:500]}
    return JSONResponse({"error": words}, status, headers)
