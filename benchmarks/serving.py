"""A bounded load test on loopback: throughput and latency of 1,000-class rows beside the same work in-process.

python benchmarks/serving.py --seconds 8
python benchmarks/serving.py --schemathesis
python benchmarks/serving.py --starlette --seconds 2   # next to a small Starlette app with onnxruntime
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import io
import json
import multiprocessing
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import onnxruntime
import orjson
import psutil
import pyarrow as pa
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

import calibrant
from calibrant.shipping.http_codec import ARROW, JSON, NPY

COMMAND = [sys.executable, "-c", "from calibrant.cli import main; main()", "serve"]


def fitted(n_classes: int) -> calibrant.TemperatureScaling:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, n_classes, 2000)
    logits = 3 * rng.normal(size=(2000, n_classes)) + 8 * np.eye(n_classes)[labels]
    return calibrant.TemperatureScaling().fit(logits, labels)


def find_free_port() -> int:
    """Return a free port on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def server(calibrator, *options):
    """A running service as (port, process)."""
    port = find_free_port()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cal.safetensors"
        calibrant.save(calibrator, path)
        command = [*COMMAND, str(path), "--port", str(port), *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait(port)
            yield port, process
        finally:
            process.terminate()
            process.wait(timeout=30)


def _wait(port: int) -> None:
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the service did not start")


def body(logits: np.ndarray, kind: str) -> bytes:
    if kind == JSON:
        return json.dumps({"logits": logits.tolist()}).encode()
    buffer = io.BytesIO()
    if kind == ARROW:
        column = pa.FixedSizeListArray.from_arrays(pa.array(logits.ravel()), logits.shape[1])
        batch = pa.record_batch([column], names=["logits"])
        with pa.ipc.new_stream(buffer, batch.schema) as writer:
            writer.write_batch(batch)
    else:
        np.save(buffer, logits)
    return buffer.getvalue()


def load(port: int, content: bytes, kind: str, seconds: float, clients: int) -> tuple[list[float], int]:
    """Latencies in seconds and the number of errors, over keep-alive connections that never pause."""
    latencies: list[list[float]] = [[] for _ in range(clients)]
    errors = [0] * clients
    end = time.perf_counter() + seconds

    def work(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        while time.perf_counter() < end:
            started = time.perf_counter()
            try:
                connection.request("POST", "/calibrate", content, {"content-type": kind})
                response = connection.getresponse()
                response.read()
                errors[number] += response.status != 200
            except OSError:
                errors[number] += 1
                connection.close()
            latencies[number].append(time.perf_counter() - started)
        connection.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [seconds for part in latencies for seconds in part], sum(errors)


def in_process(calibrator, logits: np.ndarray, seconds: float) -> list[float]:
    end, spent = time.perf_counter() + seconds, []
    while time.perf_counter() < end:
        started = time.perf_counter()
        calibrator.predict_proba(logits)
        spent.append(time.perf_counter() - started)
    return spent


def memory_mb(process: subprocess.Popen) -> float:
    return psutil.Process(process.pid).memory_info().rss / 2**20


def cpu_seconds(process: subprocess.Popen) -> float:
    times = psutil.Process(process.pid).cpu_times()
    return times.user + times.system


def load_test(seconds: float, clients: int, n_classes: int) -> bool:
    calibrator = fitted(n_classes)
    rng = np.random.default_rng(1)
    fine = True
    print(f"{n_classes} classes, float32 rows, {clients} clients, {seconds:g} s a line")
    print(f"{'body':>6}{'rows':>6}{'req/s':>9}{'rows/s':>10}{'p50 ms':>9}{'p99 ms':>9}{'CPU ms/req':>12}"
          f"{'in-process p50':>16}{'rows/s':>11}{'errors':>8}{'RSS MB':>16}")  # fmt: skip
    with server(calibrator) as (port, process):
        for kind, rows in ((NPY, 1), (NPY, 64), (NPY, 1024), (JSON, 1), (JSON, 64)):
            logits = (3 * rng.normal(size=(rows, n_classes))).astype(np.float32)
            content = body(logits, kind)
            load(port, content, kind, min(1.0, seconds), clients)
            before, spent = memory_mb(process), cpu_seconds(process)
            latencies, errors = load(port, content, kind, seconds, clients)
            after, spent = memory_mb(process), cpu_seconds(process) - spent
            direct = in_process(calibrator, logits, min(2.0, seconds))
            p50, p99 = np.quantile(latencies, (0.5, 0.99)) * 1000
            rate = len(latencies) / seconds
            name = "json" if kind == JSON else "npy"
            print(f"{name:>6}{rows:>6}{rate:>9.0f}{rate * rows:>10.0f}{p50:>9.2f}{p99:>9.2f}"
                  f"{spent / len(latencies) * 1000:>12.2f}{np.median(direct) * 1000:>13.3f} ms"
                  f"{rows / np.median(direct):>11.0f}{errors:>8}"
                  f"{before:>9.0f} → {after:.0f}")  # fmt: skip
            fine &= errors == 0 and after < before + 30
    return fine


def schemathesis(examples: int) -> bool:
    with server(fitted(3)) as (port, _process):
        command = [Path(sys.executable).parent / "schemathesis", "run", f"http://127.0.0.1:{port}/openapi.json"]
        # that probabilities sum to 1 is a rule which no schema can state
        options = ["--max-examples", str(examples), "--no-color", "--exclude-checks", "positive_data_acceptance"]
        return subprocess.run([*command, *options], check=False).returncode == 0


def run_starlette(path: str, port: int) -> None:
    """The app that one would write without this library."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options)

    async def calibrate(request):
        content, kind = await request.body(), request.headers["content-type"]
        if kind == JSON:
            logits = np.array(orjson.loads(content)["logits"], dtype=np.float32)
        else:
            logits = np.load(io.BytesIO(content)).astype(np.float32, copy=False)
        probabilities, prediction = session.run(["probabilities", "prediction"], {"logits": logits})
        if kind == JSON:
            document = {"probabilities": probabilities, "predictions": prediction}
            return Response(orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY), media_type=JSON)
        buffer = io.BytesIO()
        np.save(buffer, probabilities)
        return Response(buffer.getvalue(), media_type=NPY)

    app = Starlette(routes=[Route("/calibrate", calibrate, methods=["POST"])])
    uvicorn.run(app, port=port, access_log=False, log_level="critical")


@contextmanager
def starlette_server(calibrator):
    """A running Starlette app as (port, process)."""
    port = find_free_port()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cal.onnx"
        calibrant.export_onnx(calibrator, path)
        process = multiprocessing.get_context("spawn").Process(target=run_starlette, args=(str(path), port))
        process.start()
        try:
            _wait(port)
            yield port, process
        finally:
            process.terminate()
            process.join()


class Client(asyncio.Protocol):
    """A connection that sends the same request again and again, and notes the times."""

    LENGTH = re.compile(rb"content-length: (\d+)")

    def __init__(self, request: bytes, end: float, latencies: list[float]) -> None:
        self.request, self.end, self.latencies = request, end, latencies
        self.is_done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport) -> None:
        self.transport = transport
        self._send()

    def _send(self) -> None:
        self.head, self.missing, self.started = b"", 0, time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if self.missing:
            self.missing -= len(data)
        else:
            self.head += data
            head, found, rest = self.head.partition(b"\r\n\r\n")
            if not found:
                return
            if not head.startswith(b"HTTP/1.1 200"):
                self.is_done.set_exception(RuntimeError(self.head[:300].decode()))
                self.transport.close()
                return
            self.missing = int(self.LENGTH.search(head)[1]) - len(rest)
        if not self.missing:
            now = time.perf_counter()
            self.latencies.append(now - self.started)
            if now < self.end:
                self._send()
            else:
                self.transport.close()

    def connection_lost(self, error) -> None:
        if not self.is_done.done():
            self.is_done.set_result(None)


def send_many(port: int, content: bytes, kind: str, seconds: float, connections: int) -> tuple[list[float], float]:
    """Latencies in seconds, and the seconds until the last response."""
    head = f"POST /calibrate HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {len(content)}"
    request, latencies, started = head.encode() + b"\r\n\r\n" + content, [], time.perf_counter()

    async def work() -> None:
        loop, clients = asyncio.get_running_loop(), []
        for _ in range(connections):
            make = lambda: Client(request, started + seconds, latencies)  # noqa: E731
            clients.append((await loop.create_connection(make, "127.0.0.1", port))[1])
        await asyncio.gather(*(one.is_done for one in clients))

    uvloop.run(work())
    return latencies, time.perf_counter() - started


def compare_with_starlette(seconds: float, classes: list[int], rows: list[int], connections: list[int]) -> None:
    """Print requests/s and latencies of both, measured in turns, and the share of a processor that the client used."""
    print("| K | rows | body | connections | requests/s | p50 ms | p99 ms | p99.9 ms | client CPU |")
    print("| ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for n_classes in classes:
        calibrator, rng = fitted(n_classes), np.random.default_rng(1)
        with ExitStack() as stack:
            servers = server(calibrator, "--no-access-log"), starlette_server(calibrator)
            ports = [stack.enter_context(one)[0] for one in servers]
            for n_rows in rows:
                logits = (3 * rng.normal(size=(n_rows, n_classes))).astype(np.float32)
                for kind, name in ((JSON, "JSON"), (NPY, "npy"), (ARROW, "Arrow")):
                    content = body(logits, kind)
                    if len(content) > 64 << 20:
                        continue  # above the limit of a request
                    for count in connections:
                        _print_cell(
                            f"| {n_classes} | {n_rows} | {name} | {count} |", content, kind, ports, seconds, count
                        )


def _print_cell(name: str, content: bytes, kind: str, ports: list[int], seconds: float, connections: int) -> None:
    ports = ports[: 1 + (kind != ARROW)]
    latencies, spent, used = [[] for _ in ports], [0.0 for _ in ports], [0.0 for _ in ports]
    for turn in range(3):  # the first one warms up
        for which, port in enumerate(ports):
            before = time.process_time()
            found, elapsed = send_many(port, content, kind, seconds / 2 if turn else 0.1, connections)
            if turn:
                latencies[which] += found
                spent[which] += elapsed
                used[which] += time.process_time() - before
    values = [(len(one) / s, *(1000 * np.quantile(one, (0.5, 0.99, 0.999))), u / s)
              for one, s, u in zip(latencies, spent, used, strict=True)]  # fmt: skip
    texts = ("{:,.0f}", "{:.3g}", "{:.3g}", "{:.3g}", "{:.0%}")
    cells = [" / ".join(text.format(value) for value in pair)
             for text, pair in zip(texts, zip(*values, strict=True), strict=True)]  # fmt: skip
    print(name, " | ".join(cells), "|", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--schemathesis", action="store_true")
    parser.add_argument("--starlette", action="store_true")
    parser.add_argument("--table-classes", type=int, nargs="*", default=[2, 10, 1000])
    parser.add_argument("--table-rows", type=int, nargs="*", default=[1, 100, 10_000])
    parser.add_argument("--table-connections", type=int, nargs="*", default=[1, 16, 64])
    parser.add_argument("--examples", type=int, default=1000)
    arguments = parser.parse_args()
    if arguments.starlette:
        tables = arguments.table_classes, arguments.table_rows, arguments.table_connections
        compare_with_starlette(arguments.seconds, *tables)
        return
    if arguments.schemathesis:
        fine = schemathesis(arguments.examples)
    else:
        fine = load_test(arguments.seconds, arguments.clients, arguments.classes)
    raise SystemExit(not fine)


if __name__ == "__main__":
    main()
