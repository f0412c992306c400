"""The service in operation: abuse, logs, readiness, reloads, feedback, binary artifacts."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import httpx
import numpy as np
import psutil
import pytest
from starlette.testclient import TestClient

import calibrant
from calibrant.core.errors import InputError
from calibrant.shipping.artifact import Artifact, save
from calibrant.shipping.feed import FeedbackDesk
from calibrant.shipping.http_codec import ARROW, JSON, NDJSON, NPY, Wanted, decode_rows
from calibrant.shipping.serve import MAX_WAITING, Limits, create_app, json_log
from calibrant.shipping.service import EVENTS

K = 5


@pytest.fixture(scope="module")
def artifact(fitted):
    return Artifact(fitted("ts"), K)


@pytest.fixture
def started(tmp_path, fitted):
    """Start the command with further options; gives its port and process."""
    running = []

    def start(*options, path=tmp_path / "cal.safetensors", **more):
        if not path.exists():
            save(fitted("ts"), path)
        command = [sys.executable, "-m", "calibrant", "serve", str(path), "--port", "0", "--json", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
        running.append(process)
        return int(json.loads(process.stdout.readline())["address"].rpartition(":")[2]), process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def answers(n: int, gap: float = 0.0, seed: int = 0) -> list[dict]:
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.6, 0.95, n)
    right = rng.random(n) < confidence - gap
    return [{"confidence": c, "correct": r} for c, r in zip(confidence.tolist(), right.tolist(), strict=True)]


def figures(client) -> dict[str, float]:
    lines = client.get("/metrics").text.splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def test_slow_connections_are_given_up_and_never_block_a_normal_client(started):
    port, _ = started("--header-timeout", "1", "--timeout", "1", "--max-connections", "40")
    head = b"POST /calibrate HTTP/1.1\r\nhost: localhost\r\n"
    body = b"content-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
    slow = []
    for number in range(120):  # three times as many as there are places
        one = socket.create_connection(("127.0.0.1", port), timeout=120)
        one.sendall(head + (body if number % 2 else b""))
        slow.append(one)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=120) as client:
        for _ in range(20):
            assert client.post("/calibrate", json={"logits": [[0.0] * K]}).status_code == 200
        replies = [_drain(one) for one in slow]
        assert all(reply[:12] in (b"", b"HTTP/1.1 408") for reply in replies)
        assert sum(reply.startswith(b"HTTP/1.1 408") for reply in replies) >= 20
        found = figures(client)
    # which of the two comes first depends on the machine; half of the connections never end their headers
    reasons = (
        'calibrant_connections_closed_total{reason="full"}',
        'calibrant_connections_closed_total{reason="headers"}',
    )
    assert sum(found.get(reason, 0) for reason in reasons) >= 60
    assert found["calibrant_connections"] == 1


def test_a_body_that_does_not_arrive_is_given_up(started):
    port, process = started("--timeout", "1")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=120) as client:
        for kind, status in ((b"application/json", 408), (b"text/plain", 415)):  # the second is answered before
            with socket.create_connection(("127.0.0.1", port), timeout=120) as slow:
                head = b"POST /calibrate HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\ncontent-type: %b\r\n\r\n{"
                slow.sendall(head % kind)
                reply = _drain(slow)
            assert reply.startswith(b"HTTP/1.1 %d" % status)
            assert reply.count(b"HTTP/1.1") == 1
        found = figures(client)
    assert found['calibrant_connections_closed_total{reason="body"}'] == 2
    assert found['calibrant_requests_total{route="/calibrate",status="408"}'] == 1
    process.terminate()
    lines = [json.loads(line) for line in process.communicate(timeout=60)[1].splitlines()]
    (late,) = [line for line in lines if line["status"] == 408]
    assert (late["path"], late["error"]) == ("/calibrate", "the body did not arrive in time")


def _drain(one: socket.socket) -> bytes:
    reply = b""
    try:
        while part := one.recv(4096):
            reply += part
    except ConnectionError:
        pass
    one.close()
    return reply


def test_long_headers_are_refused_before_they_are_read(started):
    port, process = started()
    with socket.create_connection(("127.0.0.1", port), timeout=120) as one:
        one.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 66_000 + b"\r\n\r\n")
        assert _drain(one).startswith(b"HTTP/1.1 431")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=120) as client:
        assert client.get("/health", headers={"x": "y" * 60_000}).status_code == 200
        assert figures(client)['calibrant_requests_total{route="/health",status="200"}'] == 1
    process.terminate()
    lines = [json.loads(line) for line in process.communicate(timeout=60)[1].splitlines()]
    assert [line["error"] for line in lines if line["status"] == 431] == ["overhead: Request Header Fields Too Large"]


def test_endless_headers_are_cut(started):
    port, _ = started()
    with socket.create_connection(("127.0.0.1", port), timeout=120) as one:
        one.sendall(b"GET / HTTP/1.1\r\nx: ")
        try:
            for _ in range(100):
                one.sendall(b"y" * 4096)
        except ConnectionError:
            return
        assert _drain(one).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("trailer", [b"x: " + b"y" * 4000 + b"\r\n", b"y" * 4096])
def test_endless_trailers_are_cut(started, trailer):
    port, process = started()
    head = b"POST /calibrate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += b"transfer-encoding: chunked\r\n\r\n"
    before = psutil.Process(process.pid).memory_info().rss
    with socket.create_connection(("127.0.0.1", port), timeout=20) as one:
        one.sendall(head + b"2\r\n[]\r\n0\r\nx: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(5000):  # 20 MB
                one.sendall(trailer)
            assert _drain(one).startswith(b"HTTP/1.1 431")
    assert psutil.Process(process.pid).memory_info().rss < before + (10 << 20)


def test_a_body_in_small_chunks_is_no_overhead(started):
    port, _ = started()
    body = json.dumps({"logits": [[0.25] * K] * 5000}).encode()

    def pieces():
        for start in range(0, len(body), 50):
            yield body[start : start + 50]

    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=20) as client:
        answer = client.post("/calibrate", content=pieces(), headers={"content-type": JSON})
    assert (answer.status_code, len(answer.json()["predictions"])) == (200, 5000)


def test_structures_that_are_no_matrix_are_refused_before_they_are_built():
    wanted = Wanted("multiclass", "logits", K, max_rows=1000)
    size = 3 << 20
    for part in (b"[],", b"{},", b'"",', b"0,"):
        body = b'{"logits": [[' + part * (size // len(part)) + b"0]]}"
        with pytest.raises(InputError, match="at most"):
            decode_rows(body, JSON, wanted)
    rows = np.random.default_rng(0).normal(size=(40_000, K)).round(9)  # a large honest body
    body = json.dumps({"logits": rows.tolist()}).encode()
    assert len(body) > 1 << 20
    np.testing.assert_array_equal(decode_rows(body, JSON, Wanted("multiclass", "logits", K, max_rows=40_000))[0], rows)


def test_a_full_service_says_so(artifact):
    with TestClient(create_app(artifact, Limits(requests=0))) as client:
        answer = client.post("/calibrate", json={"logits": [[0.0] * K]})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert (client.get("/readyz").status_code, client.get("/health").status_code) == (503, 200)
    with TestClient(create_app(artifact, Limits(waiting_bytes=10, body_bytes=100))) as client:
        assert client.post("/calibrate", json={"logits": [[0.125] * K] * 2}).status_code == 200
        assert client.get("/readyz").json()["status"] == "ready"


def test_probabilities_in_and_logits_out(artifact):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(6, K))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = artifact.calibrator.predict_proba(np.log(probabilities))
    with TestClient(create_app(artifact)) as client:
        named = client.post("/calibrate", json={"probabilities": probabilities.tolist()}).json()
        np.testing.assert_allclose(named["probabilities"], expected, rtol=1e-12)
        buffer = io.BytesIO()
        np.save(buffer, probabilities)
        raw = client.post("/calibrate?kind=probabilities&output=logits", content=buffer.getvalue(),
                          headers={"content-type": NPY})  # fmt: skip
        back = np.load(io.BytesIO(raw.content))
        np.testing.assert_allclose(back, artifact.calibrator.transform(np.log(probabilities)), rtol=1e-12)
        answer = client.post("/calibrate?output=logits", json={"logits": logits.tolist()}).json()
        np.testing.assert_allclose(answer["logits"], artifact.calibrator.transform(logits))
        assert answer["predictions"] == logits.argmax(axis=1).tolist()
        for body in ({"probabilities": [[0.5] * K]}, {"probabilities": [[1.5, -0.5, 0, 0, 0]]}):
            assert client.post("/calibrate", json=body).status_code == 422
        sure = np.array([[1.0, 0, 0, 0, 0]])
        certain = client.post("/calibrate", json={"probabilities": sure.tolist()}).json()["probabilities"]
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(certain, artifact.calibrator.predict_proba(np.log(sure)))
        assert client.post("/calibrate?kind=odds", json={"logits": [[0] * K]}).status_code == 422


def test_requests_that_arrive_together_get_their_own_answers(artifact):
    service = create_app(artifact)
    rows = np.random.default_rng(0).normal(size=(9, K))
    bodies = [json.dumps({"logits": rows[: n + 1].tolist()}) for n in range(9)] + ['{"logits": [[0]]}']

    async def answers():
        transport = httpx.ASGITransport(service)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            sent = (client.post("/calibrate", content=body, headers={"content-type": JSON}) for body in bodies)
            return await asyncio.gather(*sent)

    *found, bad = asyncio.run(answers())
    assert bad.status_code == 422
    for n, answer in enumerate(found):
        np.testing.assert_array_equal(answer.json()["probabilities"], artifact.calibrator.predict_proba(rows[: n + 1]))


def test_a_binary_artifact_is_served(tmp_path):
    import pyarrow as pa
    from pyarrow import ipc

    rng = np.random.default_rng(0)
    scores = rng.normal(size=400) * 3
    calibrator = calibrant.get("ts").fit(scores, (rng.random(400) < 1 / (1 + np.exp(-scores / 2))).astype(int))
    save(calibrator, tmp_path / "cal.safetensors")
    z = np.array([-2.0, 0.5, 3.0])
    expected = calibrator.predict_proba(z)
    sink = io.BytesIO()
    batch = pa.record_batch([pa.array(z)], names=["logits"])
    with ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with TestClient(create_app(tmp_path / "cal.safetensors")) as client:
        assert client.get("/calibrator").json()["task"] == "binary"
        for rows in (z.tolist(), z[:, None].tolist()):
            answer = client.post("/calibrate", json={"logits": rows}).json()
            np.testing.assert_allclose(answer["probabilities"], expected)
            assert answer["predictions"] == [0, 1, 1]
        chances = (1 / (1 + np.exp(-z))).tolist()
        again = client.post("/calibrate", json={"probabilities": chances}).json()
        np.testing.assert_allclose(again["probabilities"], expected, rtol=1e-9)
        stream = client.post("/calibrate", content=sink.getvalue(), headers={"content-type": ARROW})
        table = ipc.open_stream(stream.content).read_all()
        np.testing.assert_allclose(np.stack(table["probabilities"].to_numpy()), expected)
        logits = client.post("/calibrate?output=logits", json={"logits": z.tolist()}).json()
        np.testing.assert_allclose(logits["logits"], calibrator.transform(z))
        for body in ({"logits": [[1, 2]]}, {"probabilities": [1.5]}, {"logits": [[1], 2]}):
            assert client.post("/calibrate", json=body).status_code == 422


def test_a_calibrator_per_group_is_served_with_its_groups():
    rng = np.random.default_rng(0)
    labels, group = rng.integers(0, 4, 900), rng.choice(["a", "b"], 900)
    logits = np.where(group == "a", 1, 4)[:, None] * (rng.normal(size=(900, 4)) + 2 * np.eye(4)[labels])
    calibrator = calibrant.get("ts+group").fit(logits, labels, groups=group)
    rows, names = logits[:3], ["a", "b", "elsewhere"]
    with TestClient(create_app(Artifact(calibrator, 4))) as client:
        assert client.get("/calibrator").json()["groups"] == ["a", "b"]
        answer = client.post("/calibrate", json={"logits": rows.tolist(), "groups": names})
        expected = calibrator.predict_proba(rows, groups=np.array(names))
        np.testing.assert_allclose(answer.json()["probabilities"], expected)
        assert answer.headers["x-calibrant-pooled"] == "1"
        missing = client.post("/calibrate", json={"logits": rows.tolist()})
        assert (missing.status_code, "groups" in missing.json()["error"]) == (422, True)
        pooled = client.post("/calibrate?groups=pooled", json={"logits": rows.tolist()})
        np.testing.assert_allclose(pooled.json()["probabilities"][2], expected[2])
        assert pooled.headers["x-calibrant-pooled"] == "3"
        for bad in (["a"], "ab", [{}] * 3, [None] * 3):
            assert client.post("/calibrate", json={"logits": rows.tolist(), "groups": bad}).status_code == 422
    with TestClient(create_app(Artifact(calibrant.Identity().fit(logits, labels), 4))) as client:
        assert client.post("/calibrate", json={"logits": rows.tolist(), "groups": names}).status_code == 422


def test_many_labels_are_served_each_with_its_own_prediction():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(500, 3)) * 2
    labels = (rng.random((500, 3)) < 1 / (1 + np.exp(-logits / 2))).astype(int)
    calibrator = calibrant.MultilabelCalibrator("platt").fit(logits, labels)
    chances = 1 / (1 + np.exp(-logits[:4]))
    with TestClient(create_app(Artifact(calibrator, 3))) as client:
        answer = client.post("/calibrate", json={"logits": logits[:4].tolist()}).json()
        np.testing.assert_allclose(answer["probabilities"], calibrator.predict_proba(logits[:4]))
        assert answer["predictions"] == calibrator.predict(logits[:4]).tolist()
        again = client.post("/calibrate?output=logits", json={"probabilities": chances.tolist()}).json()
        np.testing.assert_allclose(again["logits"], calibrator.transform(logits[:4]), rtol=1e-9)
        assert again["predictions"] == answer["predictions"]


def test_every_request_is_a_line_of_json(artifact, capfd):
    with json_log(), TestClient(create_app(artifact)) as client:
        mine = client.post("/calibrate", json={"logits": [[0.0] * K] * 3}, headers={"x-request-id": "order 17"})
        assert mine.headers["x-request-id"] == "order 17"
        other = client.get("/nowhere%1b[31m", headers={"x-request-id": "x" * 500})
        assert len(other.headers["x-request-id"]) < 40
    text = capfd.readouterr().err
    lines = [json.loads(line) for line in text.splitlines()]
    first, second = (line for line in lines if line["event"] == "request")
    assert {name: first[name] for name in ("method", "path", "status", "rows", "request_id")} == {
        "method": "POST", "path": "/calibrate", "status": 200, "rows": 3, "request_id": "order 17"}  # fmt: skip
    assert first["bytes_in"] > 10
    assert first["bytes_out"] == len(mine.content)
    assert first["ms"] > 0
    assert second["status"] == 404
    assert "\x1b" not in text


def test_refused_requests_are_logged_with_their_reason(artifact, capfd):
    with json_log(), TestClient(create_app(artifact)) as client:
        client.get("/nowhere")
        client.get("/calibrate")
        refused = client.post("/calibrate", json={"logits": [[0.0]]})
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["status"] for line in lines] == [404, 405, 422]
    assert [line["error"] for line in lines] == ["Not Found", "Method Not Allowed", refused.json()["error"]]


def test_metrics_name_the_artifact_and_routes_behind_a_prefix(artifact):
    with TestClient(create_app(artifact), root_path="/prefix") as client:
        assert client.post("/prefix/calibrate", json={"logits": [[0.0] * K]}).status_code == 200
        lines = client.get("/prefix/metrics").text.splitlines()
    assert 'calibrant_requests_total{route="/calibrate",status="200"} 1.0' in lines
    assert "calibrant_request_seconds_count 1.0" in lines
    assert 'calibrant_artifact{digest="",method="TemperatureScaling",version=""} 1.0' in lines


@pytest.mark.parametrize("trusted", [False, True])
def test_a_unix_socket_is_served_and_only_a_trusted_proxy_names_the_client(trusted, tmp_path, fitted):
    path, address = tmp_path / "cal.safetensors", tmp_path / "s"
    save(fitted("ts"), path)
    left = socket.socket(socket.AF_UNIX)  # of a service that was killed
    left.bind(str(address))
    left.close()
    command = [sys.executable, "-m", "calibrant", "serve", str(path), "--host", f"unix:{address}", "--json"]
    command += ["--trust-proxy", "*"] * trusted
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert json.loads(process.stdout.readline())["address"] == f"unix:{address}"
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(address)), base_url="http://any.name") as client:
            answer = client.post("/calibrate", json={"logits": [[0.0] * K]}, headers={"x-forwarded-for": "192.0.2.7"})
            assert answer.status_code == 200
        process.terminate()
        line = json.loads(process.stderr.readline())
    assert line["client"] == ("192.0.2.7" if trusted else None)


def test_a_log_that_nobody_reads_costs_lines_but_no_request(monkeypatch):
    reader, writer = os.pipe()
    with os.fdopen(reader) as read, os.fdopen(writer, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        with json_log():
            EVENTS.info("test", extra={"fields": {"more": "than a pipe holds" * 65_536}})
            _until(lambda: not EVENTS.handlers[0].lines)  # it is being written
            for _ in range(MAX_WAITING + 100):
                EVENTS.info("test")
            lines = [json.loads(read.readline()) for _ in range(MAX_WAITING + 1)]
            EVENTS.info("test")
            last = json.loads(read.readline())
    assert not any("lines_dropped" in line for line in lines)
    assert last["lines_dropped"] == 100


def test_a_service_whose_log_nobody_reads_still_stops(started):
    port, process = started()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=20) as client:
        for _ in range(600):  # more lines than a pipe holds
            assert client.get("/health").status_code == 200
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0


@pytest.mark.parametrize("change", [{"class_names": list("edcba")}, {"kind": "probabilities"}])
def test_an_artifact_of_other_columns_or_another_kind_does_not_replace_the_served_one(
    tmp_path, fitted, monkeypatch, change
):
    monkeypatch.setattr("calibrant.shipping.service.LOOK_SECONDS", 0.02)
    path, given = tmp_path / "cal.safetensors", {"class_names": list("abcde"), "kind": "logits"}
    save(fitted("ts"), path, **given)
    with TestClient(create_app(path)) as client:
        save(fitted("vs"), path, **{**given, **change})
        _until(lambda: any(n for name, n in figures(client).items() if name.startswith("calibrant_reloads_total")))
        assert client.get("/calibrator").json()["method"] == "TemperatureScaling"


def test_an_artifact_is_replaced_between_two_requests(tmp_path, fitted, monkeypatch):
    monkeypatch.setattr("calibrant.shipping.service.LOOK_SECONDS", 0.02)
    path = tmp_path / "cal.safetensors"
    save(fitted("ts"), path)
    row = [[0.0, 1.0, 2.0, 3.0, 4.0]]
    expected = {name: fitted(name).predict_proba(np.array(row)) for name in ("ts", "vs")}
    with TestClient(create_app(path)) as client:
        before = client.post("/calibrate", json={"logits": row})
        client.post("/feedback", json={"answers": answers(50)})
        np.testing.assert_allclose(before.json()["probabilities"], expected["ts"])
        path.write_bytes(b"half an artifact")  # not renamed into place: seen while it is written
        _until(lambda: figures(client)['calibrant_reloads_total{outcome="failed"}'] >= 1)
        np.testing.assert_allclose(client.post("/calibrate", json={"logits": row}).json()["probabilities"],
                                   expected["ts"])  # fmt: skip
        save(calibrant.Identity().fit(2 * np.eye(3), [0, 1, 2]), path)  # another number of classes
        _until(lambda: figures(client)['calibrant_reloads_total{outcome="failed"}'] >= 2)
        save(fitted("vs"), path)
        _until(lambda: client.get("/calibrator").json()["method"] == "VectorScaling")
        after = client.post("/calibrate", json={"logits": row})
        np.testing.assert_allclose(after.json()["probabilities"], expected["vs"])
        old, new = (answer.headers["x-calibrant-artifact"] for answer in (before, after))
        assert old != new == client.get("/readyz").json()["artifact"]
        assert client.get("/monitor").json() == {"n": 0, "alarm": False}  # a new artifact, a new monitor
        taken = client.post("/feedback", json={"answers": [{**one, "artifact": old} for one in answers(5)]}).json()
        assert (taken["taken"], taken["stale"]) == (0, 5)
        path.unlink()
        assert client.post("/calibrate", json={"logits": row}).status_code == 200


def _until(condition) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_feedback_matches_labels_to_class_names(tmp_path):
    """Labels 2, 0, 1 are names, not positions: a calibrated stream raised an alarm."""
    rng = np.random.default_rng(0)
    names, scores = ["2", "0", "1"], rng.dirichlet(np.ones(3), 900)
    places = np.array([rng.choice(3, p=row) for row in scores])
    save(calibrant.Identity().fit(np.log(scores), places), tmp_path / "cal.safetensors", class_names=names)
    outcomes = [
        {"probabilities": row.tolist(), "label": int(names[place])} for row, place in zip(scores, places, strict=True)
    ]
    outcomes.append({"probabilities": scores[0].tolist(), "label": None})
    with TestClient(create_app(tmp_path / "cal.safetensors")) as client:
        taken = client.post("/feedback", json={"answers": outcomes}).json()
        assert (taken["taken"], taken["pending"], taken["alarm"]) == (900, 1, False)
        assert taken["read_as"] == ["label by class name (2, 0, 1)"]
        right = float((scores.argmax(axis=1) == places).mean())
        assert client.get("/monitor").json()["accuracy"] == pytest.approx(right)


def test_an_alarm_is_in_the_next_scrape(artifact, capfd):
    with json_log(access=False), TestClient(create_app(artifact)) as client:
        assert client.get("/monitor").json() == {"n": 0, "alarm": False}
        client.post("/feedback", json={"answers": answers(300)})
        assert figures(client)['calibrant_monitor_alarm{group=""}'] == 0
        body = "\n".join(json.dumps(one) for one in answers(600, gap=0.3, seed=1))
        taken = client.post("/feedback", content=body, headers={"content-type": NDJSON}).json()
        counts = {"taken": 600, "duplicates": 0, "stale": 0, "pending": 0, "n": 900, "alarm": True}
        assert taken == counts | {"read_as": ["correct"]}
        found = figures(client)
        assert found['calibrant_monitor_alarm{group=""}'] == 1
        assert found["calibrant_monitor_answers"] == 900
        assert found['calibrant_monitor_evidence{group=""}'] > 100
        assert "too high" in client.get("/monitor").json()["suspect"]
        open_metrics = client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
        assert open_metrics.text.endswith("# EOF\n")
    # the alarm is logged although the lines of requests are not
    assert [json.loads(line)["event"] for line in capfd.readouterr().err.splitlines()] == ["calibration alarm"]


def test_feedback_is_taken_whole_or_not_at_all(artifact):
    with TestClient(create_app(artifact, Limits(rows=100))) as client:
        good = {"probabilities": [0.1, 0.9, 0, 0, 0], "label": 1, "id": "a"}
        assert client.post("/feedback", json=good).json()["taken"] == 1
        assert client.post("/feedback", json={"answers": [good, {**good, "id": 7}]}).json()["duplicates"] == 1
        for bad in (
            {"answers": [{**good, "artifact": {}}]},
            {"answers": [good, {"confidence": 2}]},
            {"answers": 3},
            [1],
            {"answers": [[]]},
            {},
        ):
            answer = client.post("/feedback", json=bad)
            assert (answer.status_code, "\n" in answer.json()["error"]) == (422, False)
        for odd in ([0.2, 0.8], [0.25, 0.25, 0.25, 0.25], 0.8):
            refused = client.post("/feedback", json={"probabilities": odd, "label": 1})
            assert refused.status_code == 422
            assert f"{np.size(odd)} probabilities with one label, but the calibrator has" in refused.json()["error"]
        assert client.post("/feedback", json={"answers": answers(101)}).status_code == 422
        assert client.post("/feedback", content=b"{", headers={"content-type": JSON}).status_code == 400
        assert client.post("/feedback", content=b"x", headers={"content-type": NPY}).status_code == 415
        assert client.post("/feedback", json={**good, "id": "b"}).json()["taken"] == 1  # not remembered from above
        assert client.get("/monitor").json()["n"] == 3


def test_one_id_counts_once_however_it_is_written(artifact):
    with TestClient(create_app(artifact)) as client:
        same = [{"probabilities": [0.1, 0.9, 0, 0, 0], "label": 1, "id": one} for one in (1, "1", 1.0)]
        taken = client.post("/feedback", json={"answers": same}).json()
    assert (taken["taken"], taken["duplicates"]) == (1, 2)


def test_listed_groups_are_not_crowded_out_by_other_names(artifact):
    desk = FeedbackDesk(by="site=north,south 7")
    with TestClient(create_app(artifact, feedback=desk)) as client:
        forged = [{**one, "site": f"forged {i}"} for i, one in enumerate(answers(300))]
        assert client.post("/feedback", json={"answers": forged}).json()["taken"] == 300
        sites = [{**one, "site": "south 7"} for one in answers(300, 0.4)]
        assert client.post("/feedback", json={"answers": sites}).json()["alarm"]
        report = client.get("/monitor").json()
    assert {part["group"]: part["n"] for part in report["groups"]} == {"other": 300, "south 7": 300}
    assert report["alarms"] == ["south 7"]


def test_invented_group_names_cannot_make_a_scrape_large(artifact):
    with TestClient(create_app(artifact, feedback=FeedbackDesk(by="site"))) as client:
        for number in range(50):
            row = {"confidence": 0.9, "correct": True, "site": f"{number}" + "x" * 150_000}
            assert client.post("/feedback", json=row).json()["taken"] == 1
        rows = [{**one, "site": f"{number:x<100}"} for number, one in enumerate(answers(300))]
        client.post("/feedback", json={"answers": rows})
        assert len(client.get("/metrics").content) < 100_000
        assert len(client.get("/monitor").content) < 200_000


def test_a_busy_monitor_blocks_no_other_request(artifact):
    desk = FeedbackDesk()
    service = create_app(artifact, feedback=desk)

    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(service), base_url="http://service") as client:
            sent = asyncio.create_task(client.post("/feedback", json=answers(1)[0]))
            await asyncio.sleep(0.1)
            assert (await client.get("/calibrator")).status_code == 200
            assert not sent.done()
            desk._lock.release()
            assert (await sent).json()["taken"] == 1

    desk._lock.acquire()
    ended = threading.Timer(60, desk._lock.release)  # a service that waits for the lock would never end
    ended.start()
    asyncio.run(ask())
    ended.cancel()


def test_a_service_on_loopback_answers_to_its_own_names_only(started):
    port, _ = started()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:
        for host in (f"localhost:{port}", "LOCALHOST", "127.0.0.1", f"[::1]:{port}", None):
            headers = {} if host is None else {"host": host}
            assert client.get("/calibrator", headers=headers).status_code == 200
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example", "::1"):
            refused = client.post("/calibrate", json={"logits": [[0.0] * K]}, headers={"host": host})
            assert (refused.status_code, "own machine" in refused.json()["error"]) == (421, True)
        assert figures(client)['calibrant_requests_total{route="/calibrate",status="421"}'] == 5


def test_feedback_by_group_and_batch_survives_a_restart(artifact, tmp_path):
    state = tmp_path / "monitor.json"

    def desk():
        return FeedbackDesk(batch="day", by="site", state=state)

    rows = [{**one, "site": "n" if i % 2 else 's"\n', "day": i // 10} for i, one in enumerate(answers(400, 0.4))]
    with TestClient(create_app(artifact, feedback=desk())) as client:
        assert client.post("/feedback", json={"answers": rows[:200]}).json()["taken"] == 200
        assert client.post("/feedback", json={"answers": answers(1)}).status_code == 422
    with TestClient(create_app(artifact, feedback=desk())) as client:
        assert client.post("/feedback", json={"answers": rows[200:]}).json()["n"] == 400
        assert figures(client)['calibrant_monitor_alarm{group="n"}'] == 1
    with pytest.raises(InputError, match="other monitor options"):
        FeedbackDesk(state=state)
    state.write_text("{}")
    with pytest.raises(InputError, match="move it away"):
        desk()


def test_readiness_ends_before_service_does(started):
    port, process = started("--drain", "2")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=120) as client:
        _until(lambda: _status(client, "/readyz") == 200)
        process.send_signal(signal.SIGTERM)
        _until(lambda: client.get("/readyz").status_code == 503)
        last = client.post("/calibrate", json={"logits": [[0.0] * K]})
        assert (last.status_code, last.headers["connection"]) == (200, "close")
    _, errors = process.communicate(timeout=120)
    assert {json.loads(line)["status"] for line in errors.splitlines()} == {200, 503}


def _status(client, path) -> int:
    try:
        return client.get(path).status_code
    except httpx.ConnectError:
        return 0


def test_a_stranger_without_a_home_serves_from_a_read_only_file_system(benchmark_script, capsys):
    script = benchmark_script("service_abuse")
    seconds = script.container(200, 10, 2)
    assert len(seconds) == 2
    with tempfile.TemporaryDirectory() as root:
        possible = bool(script.as_stranger(root))
    uid = 65534 if possible else os.geteuid()
    assert f"uid of the service: {uid}" in capsys.readouterr().out


def test_an_artifact_around_a_network_is_not_served():
    clamping = calibrant.neural.NeuralClamping()
    with pytest.raises(InputError, match="NeuralClamping is part of a network and cannot be served over logits"):
        create_app(Artifact(clamping, None))


def test_idle_connections_make_room_for_new_ones_and_are_closed(tmp_path, fitted):
    save(fitted("ts"), tmp_path / "cal.safetensors")
    code = (
        "import sys; from calibrant.shipping.serve import Limits, serve\n"
        "limits = Limits(connections=16, idle_seconds=float(sys.argv[2]))\n"
        "serve(sys.argv[1], port=0, limits=limits, announce=lambda text: print(text, flush=True))\n"
    )
    for seconds, reason in (("600", "full"), ("0.5", "idle")):
        command = [sys.executable, "-c", code, str(tmp_path / "cal.safetensors"), seconds]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
            try:
                port = int(server.stdout.readline().rpartition(":")[2])
                idle = []
                for _ in range(40 if reason == "full" else 4):
                    one = socket.create_connection(("127.0.0.1", port), timeout=120)
                    one.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
                    assert one.recv(1 << 16).startswith(b"HTTP/1.1 200")
                    idle.append(one)
                closed = 24 if reason == "full" else 4
                assert all(b"HTTP/1.1" not in _drain(one) for one in idle[:closed])
                with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=120) as client:
                    found = figures(client)
                assert found[f'calibrant_connections_closed_total{{reason="{reason}"}}'] >= closed
            finally:
                server.kill()


def test_a_client_that_is_refused_while_it_sends_reads_the_reason_and_the_connection_closes(started):
    port, _ = started("--max-megabytes", "1")
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        head = b"POST /calibrate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        one.sendall(head + b"content-length: %d\r\n\r\n" % (20 << 20))
        one.sendall(b" " * (20 << 20))  # no reset although the service parses no more than 1 MB of it
        answer = http.client.HTTPResponse(one)
        answer.begin()
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert "split the batch" in json.load(answer)["error"]
