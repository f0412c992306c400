"""The service under abuse, beside a normal client whose latency is measured.

python benchmarks/service_abuse.py slow --connections 1000 --seconds 60
python benchmarks/service_abuse.py idle --connections 1000 --seconds 60
python benchmarks/service_abuse.py memory
python benchmarks/service_abuse.py floods
python benchmarks/service_abuse.py reload --requests 10000 --reloads 20
python benchmarks/service_abuse.py largest --connections 64 --seconds 60   # peak memory below 1 GiB
python benchmarks/service_abuse.py kills --count 200   # kill -9 during feedback and reloads
python benchmarks/service_abuse.py container        # as root: uid 65534, read-only file system, no HOME
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil

import calibrant
from calibrant.shipping.artifact import digest_of
from calibrant.shipping.feed import FeedbackDesk
from calibrant.shipping.http_codec import JSON, NPY
from calibrant.shipping.monitor import is_new

COMMAND = [sys.executable, "-m", "calibrant", "serve"]


def fitted(n_classes: int, temperature: float = 1.0) -> calibrant.TemperatureScaling:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, n_classes, 1000)
    logits = temperature * (rng.normal(size=(1000, n_classes)) + 3 * np.eye(n_classes)[labels])
    return calibrant.TemperatureScaling().fit(logits, labels)


@contextlib.contextmanager
def service(path: Path, *options: str, wrap: list[str] | None = None, env: dict[str, str] | None = None):
    """A running service as (port, process)."""
    command = [*(wrap or []), *COMMAND, str(path), "--port", "0", "--json", "--no-access-log", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    try:
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the service did not start")
        yield int(json.loads(line)["address"].rpartition(":")[2]), process
    finally:
        process.terminate()
        process.wait(timeout=30)


def post(connection: http.client.HTTPConnection, body: bytes, kind: str = JSON) -> tuple[int, bytes]:
    connection.request("POST", "/calibrate", body, {"content-type": kind})
    response = connection.getresponse()
    return response.status, response.read()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


class SlowClients(threading.Thread):
    """Connections that send a byte of a header (or of a body) now and then, and come back when they are closed.

    Idle ones send a whole request and then nothing.
    """

    def __init__(self, port: int, count: int, seconds: float, idle: bool) -> None:
        super().__init__(daemon=True)
        self.idle = idle
        self.port, self.count, self.end = port, count, time.monotonic() + seconds
        self.n_opened = 0
        self.most_open = 0

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            alive: dict[socket.socket, int] = {}
            turn = 0
            while time.monotonic() < self.end:
                while len(alive) < self.count and time.monotonic() < self.end:
                    one = self._open(selector)
                    if one is None:
                        break
                    alive[one] = 0
                self.most_open = max(self.most_open, len(alive))
                turn += 1
                for one in [] if self.idle else list(alive)[turn % 5 :: 5]:  # each sends a byte about once a second
                    self._drip(one, alive, selector)
                for key, _ in selector.select(timeout=0.2):
                    self._read(key.fileobj, alive, selector)
            for one in alive:
                one.close()

    def _open(self, selector: selectors.BaseSelector) -> socket.socket | None:
        try:
            one = socket.create_connection(("127.0.0.1", self.port), timeout=1)
        except OSError:
            return None
        one.setblocking(False)
        start = b"POST /calibrate HTTP/1.1\r\nhost: localhost\r\n"
        if self.idle:
            start = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
        elif self.n_opened % 3 == 0:  # a third is slow with the body instead
            start += b"content-type: application/json\r\ncontent-length: 100000\r\n\r\n"
        one.send(start)
        selector.register(one, selectors.EVENT_READ)
        self.n_opened += 1
        return one

    @staticmethod
    def _drip(one: socket.socket, alive: dict[socket.socket, int], selector: selectors.BaseSelector) -> None:
        try:
            one.send(b"x")
        except OSError:
            SlowClients._drop(one, alive, selector)

    @staticmethod
    def _read(one: socket.socket, alive: dict[socket.socket, int], selector: selectors.BaseSelector) -> None:
        try:
            if one.recv(4096):
                return
        except OSError:
            pass
        SlowClients._drop(one, alive, selector)

    @staticmethod
    def _drop(one: socket.socket, alive: dict[socket.socket, int], selector: selectors.BaseSelector) -> None:
        if alive.pop(one, None) is not None:
            selector.unregister(one)
            one.close()


def slow(connections: int, seconds: float, *options: str, idle: bool = False) -> tuple[list[float], int, SlowClients]:
    """Latencies of a normal client (new connections and kept ones in turn), its errors, and the attackers."""
    body = json.dumps({"logits": [[0.1] * 10]}).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cal.safetensors"
        calibrant.save(fitted(10), path)
        with service(path, *options) as (port, _):
            attack = SlowClients(port, connections, seconds, idle)
            attack.start()
            latencies, errors, kept = [], 0, http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            while attack.is_alive():
                fresh = len(latencies) % 2 == 0
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30) if fresh else kept
                started = time.perf_counter()
                try:
                    status, _ = post(connection, body)
                    errors += status != 200
                except (OSError, http.client.HTTPException):
                    errors += 1
                    connection.close()
                latencies.append(time.perf_counter() - started)
                if fresh:
                    connection.close()
                time.sleep(0.02)
            return latencies, errors, attack


def bombs() -> dict[str, tuple[bytes, str]]:
    """Bodies that ask for far more memory than they have bytes."""
    size = 63 << 20
    return {
        "63 MB of empty lists": (b'{"logits": [' + b"[]," * (size // 3) + b"[]]}", JSON),
        "63 MB of empty objects": (b'{"logits": [' + b"{}," * (size // 3) + b"{}]}", JSON),
        "63 MB of strings": (b'{"logits": [' + b'"",' * (size // 3) + b'""]}', JSON),
        "63 MB of zeros": (b'{"logits": [[' + b"0," * (size // 2) + b"0]]}", JSON),
        "63 MB of open brackets": (b"[" * size, JSON),
        "a huge npy claim": (npy(np.zeros((1, 10))).replace(b"(1, 10)", b"(9999999999, 10)"[:7]), NPY),
    }


def memory() -> dict[str, tuple[int, float]]:
    """Status and growth of the service's peak memory in MB for each bomb."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cal.safetensors"
        calibrant.save(fitted(10), path)
        for name, (body, kind) in bombs().items():
            with service(path) as (port, process):
                post(http.client.HTTPConnection("127.0.0.1", port), b'{"logits": [[0,0,0,0,0,0,0,0,0,0]]}')
                before = psutil.Process(process.pid).memory_info().rss
                peak, done = [before], threading.Event()
                watcher = threading.Thread(target=_watch, args=(process.pid, peak, done))
                watcher.start()
                status, _ = post(http.client.HTTPConnection("127.0.0.1", port, timeout=120), body, kind)
                done.set()
                watcher.join()
                found[name] = (status, (peak[0] - before) / 2**20)
    return found


HEAD = b"POST /calibrate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
CHUNK = HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n"
LINE = b"x: " + b"y" * 60 + b"\r\n"
FLOODS = {
    "endless header lines": (HEAD, LINE),
    "one endless header": (HEAD + b"x: ", b"y" * 64),
    "endless trailer lines": (CHUNK, LINE),
    "one endless trailer": (CHUNK + b"x: ", b"y" * 64),
}
"""What each attack begins with, and what it sends again and again."""


def floods(megabytes: int = 256) -> dict[str, tuple[float, float]]:
    """Growth of the service's peak memory in MB and the longest answer of /health in seconds, for each attack."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cal.safetensors"
        calibrant.save(fitted(10), path)
        for name, (head, line) in FLOODS.items():
            with service(path) as (port, process):
                _get(port, "/health")
                before = psutil.Process(process.pid).memory_info().rss
                peak, done, slowest = [before], threading.Event(), 0.0
                watcher = threading.Thread(target=_watch, args=(process.pid, peak, done))
                sender = threading.Thread(target=_send, args=(port, head, line * (2**20 // len(line)), megabytes))
                watcher.start()
                sender.start()
                while sender.is_alive():
                    started = time.perf_counter()
                    _get(port, "/health")
                    slowest = max(slowest, time.perf_counter() - started)
                done.set()
                watcher.join()
                found[name] = ((peak[0] - before) / 2**20, slowest)
    return found


def largest(connections: int, seconds: float) -> tuple[dict[int, int], float, float]:
    """Statuses, the peak memory in MB, and the slowest /health, while clients send the largest legal requests.

    K is 1,000; half of the clients send 57 MB of JSON, the others 57 MB of npy.
    """
    rng, statuses, slowest = np.random.default_rng(0), {}, 0.0
    logits = rng.normal(size=(2900, 1000))
    contents = [(json.dumps({"logits": logits.tolist()}).encode(), JSON),
                (npy(rng.normal(size=(7400, 1000))), NPY)]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cal.safetensors"
        calibrant.save(fitted(1000), path)
        with service(path) as (port, process):
            peak, done, end = [0], threading.Event(), time.monotonic() + seconds

            def work(number: int) -> None:
                body, kind = contents[number % 2]
                while time.monotonic() < end:
                    try:
                        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
                        status, _ = post(connection, body, kind)
                        connection.close()
                    except (OSError, http.client.HTTPException):
                        status = 0  # refused while it was sent
                    statuses[status] = statuses.get(status, 0) + 1
                    time.sleep(0.5 * (status != 200))

            threads = [threading.Thread(target=work, args=(number,)) for number in range(connections)]
            watcher = threading.Thread(target=_watch, args=(process.pid, peak, done))
            for thread in (*threads, watcher):
                thread.start()
            while time.monotonic() < end:
                started = time.perf_counter()
                _get(port, "/health")
                slowest = max(slowest, time.perf_counter() - started)
                time.sleep(0.1)
            for thread in threads:
                thread.join()
            done.set()
            watcher.join()
            if process.poll() is not None:
                raise SystemExit("the service ended")
    return statuses, peak[0] / 2**20, slowest


def _send(port: int, head: bytes, block: bytes, count: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as one, contextlib.suppress(OSError):
        one.sendall(head)
        for _ in range(count):
            one.sendall(block)


def _watch(pid: int, peak: list[int], done: threading.Event) -> None:
    while not done.wait(0.005):
        peak[0] = max(peak[0], psutil.Process(pid).memory_info().rss)


def reload(requests: int, reloads: int, clients: int = 4) -> tuple[int, int, set[str]]:
    """Requests answered, errors, and the artifacts seen, while the file is replaced again and again."""
    body = npy(np.arange(10.0)[None, :])
    artifacts = [fitted(10, temperature) for temperature in (1.0, 3.0)]
    expected = [one.predict_proba(np.arange(10.0)[None, :]) for one in artifacts]
    seen: set[str] = set()
    errors, answered = [0] * clients, [0] * clients
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cal.safetensors"
        calibrant.save(artifacts[0], path)
        with service(path) as (port, _):

            def work(number: int) -> None:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                while answered[number] < requests // clients or replacing.is_alive():
                    connection.request("POST", "/calibrate", body, {"content-type": NPY})
                    response = connection.getresponse()
                    got = np.load(io.BytesIO(response.read()))
                    # every answer is exactly that of one of the two artifacts
                    right = response.status == 200 and any(np.array_equal(got, one) for one in expected)
                    errors[number] += not right
                    answered[number] += 1
                    seen.add(response.headers["x-calibrant-artifact"])
                    if answered[number] > 20 * requests:
                        return

            def replace() -> None:
                for turn in range(reloads):
                    calibrant.save(artifacts[(turn + 1) % 2], path)
                    want = _digest(path)
                    for _ in range(500):
                        if want in _ready(port):
                            break
                        time.sleep(0.01)
                    else:
                        raise SystemExit("an artifact was not taken over within 5 s")

            replacing = threading.Thread(target=replace)
            threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
            for thread in (replacing, *threads):
                thread.start()
            for thread in (replacing, *threads):
                thread.join()
            figures = _get(port, "/metrics")
    taken = next(line for line in figures.splitlines() if line.startswith('calibrant_reloads_total{outcome="ok"}'))
    print(f"reloads counted by the service: {taken.split()[-1]}")
    return sum(answered), sum(errors), seen


LATEST_SECONDS = 0.1
"""Outcomes that were acknowledged in this time before a kill may be lost if their response had `"saved": false`."""


def kills(count: int, seed: int = 0) -> dict[str, int]:
    """Count lost outcomes and damaged files over many kills of a service during feedback and reloads."""
    rng = np.random.default_rng(seed)
    artifacts = [fitted(10, temperature) for temperature in (1.0, 3.0)]
    names = ("outcomes", "kills after a reload", "lost", "lost of the last 100 ms", "damaged files", "wrong restarts")
    found = dict.fromkeys((*names, "temporary files after kills", "temporary files after starts"), 0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path, state = folder / "cal.safetensors", folder / "state.json"
        calibrant.save(artifacts[0], path)
        stored = {_digest(path): (0, {})}
        for turn in range(count):
            served = _digest(path)
            with service(path, "--monitor-state", str(state)) as (port, process):
                found["temporary files after starts"] += len([*folder.glob(".state.*.json")])
                found["wrong restarts"] += json.loads(_get(port, "/monitor"))["n"] != stored[served][0]
                acknowledged: list[tuple[float, bool, list[str]]] = []
                senders = [threading.Thread(target=_give_feedback, args=(port, f"{turn}-{number}", acknowledged))
                           for number in range(2)]  # fmt: skip
                for sender in senders:
                    sender.start()
                if turn % 2:  # the service looks for a new artifact once per second, and kills surround that moment
                    calibrant.save(artifacts[turn // 2 % 2], path)
                    time.sleep(rng.uniform(0.8, 1.2))
                else:
                    time.sleep(rng.uniform(0, 0.5))
                killed = time.monotonic()
                process.kill()
                process.wait()
                for sender in senders:
                    sender.join()
            found["temporary files after kills"] += len([*folder.glob(".state.*.json")])
            stored = {digest: _stored_outcomes(state, digest) for digest in (served, _digest(path))}
            known = [seen for _, seen in stored.values()]
            found["kills after a reload"] += not stored[served][1]  # the state is about the new artifact
            for at, is_saved, ids in acknowledged:
                is_late = at > killed - LATEST_SECONDS and not is_saved
                lost = sum(all(is_new(seen, one, sys.maxsize) for seen in known) for one in ids)
                found["lost of the last 100 ms" if is_late else "lost"] += lost
                found["outcomes"] += len(ids)
            found["damaged files"] += len([*folder.glob("*.damaged-*")])
    return found


def _give_feedback(port: int, name: str, acknowledged: list[tuple[float, bool, list[str]]]) -> None:
    """Send outcomes until the service ends; note the time, `saved` and the ids of each acknowledged request."""
    connection, number = http.client.HTTPConnection("127.0.0.1", port, timeout=30), 0
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        while True:
            number += 1
            ids = [f"{name}-{number}-{place}" for place in range(1 + number % 20)]
            answers = [{"confidence": 0.9, "correct": number % 10 > 0, "id": one} for one in ids]
            connection.request("POST", "/feedback", json.dumps({"answers": answers}), {"content-type": JSON})
            taken = json.loads(connection.getresponse().read())
            acknowledged.append((time.monotonic(), taken["saved"], ids))


def _stored_outcomes(state: Path, digest: str) -> tuple[int, dict[str, bool]]:
    """Return how many outcomes of an artifact a copy of the state has, and their ids."""
    with tempfile.TemporaryDirectory() as folder:
        for file in state.parent.glob("state.json*"):
            shutil.copy(file, folder)
        desk = FeedbackDesk(state=Path(folder) / state.name, artifact=digest)
        if desk.note:
            raise SystemExit(desk.note)
        desk.close()
        return desk.monitor.n, desk.seen


def _digest(path: Path) -> str:
    return digest_of(path.read_bytes())[:12]


def _get(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    return connection.getresponse().read().decode()


def _ready(port: int) -> str:
    return _get(port, "/readyz")


STRANGER = """
set -e
mount --make-rprivate /
mount --rbind / "$1"
if [ -n "$2" ]; then  # the interpreter lies in a folder that only its owner may enter
  mount -t tmpfs -o mode=755 tmpfs "$1$2"
  mkdir -p "$1$3"
  mount --bind "$3" "$1$3"
  mount -o remount,ro "$1$2"
fi
mount -o remount,bind,ro "$1"
root=$1
shift 3
exec chroot "$root" setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs "$@"
"""
"""Run a command as nobody in a private view of the file system that cannot be written to; needs root."""


def as_stranger(folder: str) -> list[str]:
    """What to put before a command so that it runs as uid 65534 on a read-only file system; [] where that cannot be."""
    if os.name == "nt" or os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv", "chroot", "mount"))):
        return []
    interpreter = Path(sys.executable).resolve()
    closed = next((place for place in reversed(interpreter.parents) if not place.stat().st_mode & 0o001), None)
    inner = None if closed is None else closed / interpreter.relative_to(closed).parts[0]
    wrap = ["unshare", "-m", "sh", "-c", STRANGER, "sh", folder, str(closed or ""), str(inner or "")]
    # a clone or an environment in a folder that only its owner may enter is not for strangers
    tried = subprocess.run([*wrap, sys.executable, "-c", "import calibrant.cli"], capture_output=True, check=False)
    return wrap if tried.returncode == 0 else []


def container(rows: int, n_classes: int, requests: int) -> list[float]:
    """Seconds of each large request to a service as uid 65534 on a read-only file system without HOME."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as root:
        os.chmod(folder, 0o755)
        path = Path(folder) / "cal.safetensors"
        calibrant.save(fitted(n_classes), path)
        os.chmod(path, 0o644)
        env = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH", "LANG")}
        logits = np.random.default_rng(1).normal(size=(rows, n_classes)).astype(np.float32)
        expected = calibrant.load(path).predict_proba(logits)
        seconds = []
        with service(path, wrap=as_stranger(root), env=env) as (port, process):
            print(f"uid of the service: {psutil.Process(process.pid).uids().real}")
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            for _ in range(requests):
                started = time.perf_counter()
                status, content = post(connection, npy(logits), NPY)
                seconds.append(time.perf_counter() - started)
                if status != 200:
                    raise SystemExit(f"status {status}: {content[:200]!r}")
                np.testing.assert_allclose(np.load(io.BytesIO(content)), expected, atol=1e-6)
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["slow", "idle", "memory", "floods", "largest", "reload", "kills", "container"])
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--reloads", type=int, default=20)
    parser.add_argument("--count", type=int, default=200)
    arguments = parser.parse_args()
    if arguments.what in ("slow", "idle"):
        latencies, errors, attack = slow(arguments.connections, arguments.seconds, idle=arguments.what == "idle")
        p50, p99 = np.quantile(latencies, (0.5, 0.99)) * 1000
        print(f"{attack.n_opened} {arguments.what} connections opened, {attack.most_open} at once, "
              f"{arguments.seconds:g} s; a normal client: {len(latencies)} requests, {errors} errors, "
              f"p50 {p50:.1f} ms, p99 {p99:.1f} ms")  # fmt: skip
        raise SystemExit(bool(errors > 0 or p99 > 100))
    if arguments.what == "memory":
        found = memory()
        for name, (status, grown) in found.items():
            print(f"{name}: status {status}, memory +{grown:.0f} MB")
        raise SystemExit(any(status // 100 != 4 or grown > 700 for status, grown in found.values()))
    if arguments.what == "floods":
        grown = floods()
        for name, (megabytes, seconds) in grown.items():
            print(f"{name}, 256 MB: memory +{megabytes:.0f} MB, /health within {seconds * 1000:.0f} ms")
        raise SystemExit(any(megabytes > 50 or seconds > 1 for megabytes, seconds in grown.values()))
    if arguments.what == "largest":
        statuses, megabytes, slowest = largest(arguments.connections, arguments.seconds)
        print(f"{arguments.connections} clients, {arguments.seconds:g} s of the largest requests: statuses "
              f"{statuses}, peak memory {megabytes:.0f} MB, /health within {slowest:.2f} s")  # fmt: skip
        raise SystemExit(megabytes > 1024 or not statuses.get(200))
    if arguments.what == "kills":
        found = kills(arguments.count)
        print(f"{arguments.count} kills: {found}")
        raise SystemExit(any(found[name] for name in ("lost", "damaged files", "wrong restarts")))
    if arguments.what == "reload":
        answered, errors, seen = reload(arguments.requests, arguments.reloads)
        print(f"{answered} requests during {arguments.reloads} reloads: {errors} errors, artifacts seen {sorted(seen)}")
        raise SystemExit(errors > 0 or len(seen) < 2)
    spent = container(30_000, 100, 5)
    print(f"5 requests of 30,000×100 rows answered, the first in {spent[0]:.2f} s, the last in {spent[-1]:.2f} s")


if __name__ == "__main__":
    main()
