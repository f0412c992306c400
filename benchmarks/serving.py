"""A bounded load test on loopback: throughput and latency of 1,000-class rows beside the same work in-process.

python benchmarks/serving.py --seconds 8
python benchmarks/serving.py --schemathesis
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil

import calibrant
from calibrant.shipping.http_codec import JSON, NPY

COMMAND = [sys.executable, "-c", "from calibrant.cli import main; main()", "serve"]


def fitted(n_classes: int) -> calibrant.TemperatureScaling:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, n_classes, 2000)
    logits = 3 * rng.normal(size=(2000, n_classes)) + 8 * np.eye(n_classes)[labels]
    return calibrant.TemperatureScaling().fit(logits, labels)


@contextmanager
def server(calibrator):
    """A running service as (port, process)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cal.safetensors"
        calibrant.save(calibrator, path)
        process = subprocess.Popen([*COMMAND, str(path), "--port", str(port)], stdout=subprocess.DEVNULL)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--schemathesis", action="store_true")
    parser.add_argument("--examples", type=int, default=1000)
    arguments = parser.parse_args()
    if arguments.schemathesis:
        fine = schemathesis(arguments.examples)
    else:
        fine = load_test(arguments.seconds, arguments.clients, arguments.classes)
    raise SystemExit(not fine)


if __name__ == "__main__":
    main()
