"""Memory of requests: estimated before it is taken, shared by all requests, and released when responses are sent."""

from __future__ import annotations

import asyncio
import io
import json
import tracemalloc

import httpx
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc
from starlette.testclient import TestClient

from calibrant.core.errors import InputError
from calibrant.shipping.artifact import Artifact
from calibrant.shipping.http_codec import (
    ARROW,
    JSON,
    JSON_BLOCK_BYTES,
    NPY,
    Wanted,
    _parse_blocks,
    decode_rows,
    encode,
    estimate_memory,
)
from calibrant.shipping.serve import Limits, create_app
from calibrant.shipping.service import Served

K = 5


@pytest.fixture(scope="module")
def artifact(fitted):
    return Artifact(fitted("ts"), K)


def bodies(rows: np.ndarray) -> dict[str, tuple[str, bytes]]:
    # digits would count twenty times: the parser allocates by length, but uses little of it
    found = {"JSON": (JSON, json.dumps({"logits": rows.round().astype(int).tolist()}).encode())}
    for dtype in ("i1", "f2", "f4", "f8"):
        buffer, sink = io.BytesIO(), io.BytesIO()
        np.save(buffer, rows.astype(dtype))
        found[f"npy {dtype}"] = NPY, buffer.getvalue()
        column = pa.FixedSizeListArray.from_arrays(pa.array(rows.astype(dtype).ravel()), K)
        batch = pa.record_batch([column], names=["logits"])
        with ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        found[f"Arrow {dtype}"] = ARROW, sink.getvalue()
    return found


@pytest.mark.parametrize("method", ["ts", "vs", "auto", "conf"])
def test_the_estimate_covers_the_memory_of_any_body(fitted, method):
    served = Served(Artifact(fitted(method), K))
    for name, (kind, body) in bodies(3 * np.random.default_rng(0).normal(size=(6_000, K))).items():
        for answer_type in (kind, JSON):
            estimate = estimate_memory(body, kind, answer_type, K)
            tracemalloc.start()
            logits, _ = decode_rows(body, kind, served.schema)
            values, predictions, _ = served.answer(logits, "probabilities")
            encode(values, answer_type, predictions)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < estimate, (name, answer_type, peak / (6_000 * K))


def test_a_request_above_all_memory_is_refused_before_it_is_decoded(artifact):
    with TestClient(create_app(artifact, Limits(memory_bytes=4 << 20))) as client:
        for kind, body in bodies(np.zeros((20_000, K))).values():
            answer = client.post("/calibrate", content=body, headers={"content-type": kind})
            assert (answer.status_code, "split the batch" in answer.json()["error"]) == (413, True)
        small = client.post("/calibrate", json={"logits": [[0.5] * K] * 1000})
        assert small.status_code == 200
        outcomes = {"answers": [{"confidence": 0.9, "correct": True}] * 10_000}
        assert client.post("/feedback", json=outcomes).status_code == 413
        assert client.post("/feedback", json={"answers": outcomes["answers"][:1000]}).json()["taken"] == 1000


def test_large_requests_wait_for_each_other_and_small_ones_pass(artifact):
    large, small = {"logits": [[0.25] * K] * 20_000}, {"logits": [[0.25] * K]}
    limit = estimate_memory(json.dumps(large).encode(), JSON, JSON, K)  # for one of the large ones
    service = create_app(artifact, Limits(memory_bytes=limit))
    reserved, reserve = [], service._reserve

    def watched(scope, amount):
        reserve(scope, amount)
        reserved.append(service._n_reserved)

    service._reserve = watched

    async def ask():
        transport = httpx.ASGITransport(service)
        async with httpx.AsyncClient(transport=transport, base_url="http://service", timeout=60) as client:
            return await asyncio.gather(*(client.post("/calibrate", json=large) for _ in range(5)),
                                        client.post("/calibrate", json=small))  # fmt: skip

    for answer in asyncio.run(ask()):
        assert answer.status_code == 200
        assert int(answer.headers["content-length"]) == len(answer.content)
    assert 0 < max(reserved) <= limit
    assert service._n_reserved == 0


def test_a_request_that_waits_too_long_may_come_again(artifact):
    service = create_app(artifact, Limits(compute_seconds=0.05))
    service._reserve({}, service.limits.memory_bytes)
    with TestClient(service) as client:
        answer = client.post("/calibrate", json={"logits": [[0.25] * K] * 2000})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert client.post("/calibrate", json={"logits": [[0.25] * K]}).status_code == 200


def test_large_bodies_wait_for_room_instead_of_being_refused(artifact):
    body, part = json.dumps({"logits": [[0.25] * K] * 4000}).encode(), 20_000
    service = create_app(artifact, Limits(waiting_bytes=len(body)))
    most, statuses = 0, []

    async def ask() -> None:
        parts = [body[start : start + part] for start in range(0, len(body), part)]

        async def receive():
            nonlocal most
            await asyncio.sleep(0)  # all bodies grow at the same rate: they are equally long
            most = max(most, service._n_bytes)
            return {"type": "http.request", "body": parts.pop(0) if parts else b"", "more_body": bool(parts)}

        async def send(message):
            statuses.append(message.get("status"))

        headers = [(b"content-type", JSON.encode())]
        scope = {"type": "http", "method": "POST", "path": "/calibrate", "query_string": b"", "headers": headers}
        await service(scope, receive, send)

    async def ask_many() -> None:
        await asyncio.gather(*(ask() for _ in range(12)))

    asyncio.run(ask_many())
    assert [status for status in statuses if status] == [200] * 12
    assert most <= 2 * len(body) + 12 * part
    assert (service._n_bytes, service._n_paused, service._bodies) == (0, 0, [])


def test_long_json_is_parsed_and_written_in_blocks_with_the_same_numbers():
    wanted = Wanted("multiclass", "logits", K, max_rows=100_000)
    rows = np.random.default_rng(0).normal(size=(12_000, K))
    for indent in (None, 1):
        body = json.dumps({"logits": rows.tolist()}, indent=indent).encode()
        assert len(body) > JSON_BLOCK_BYTES
        np.testing.assert_array_equal(_parse_blocks(body)[1], rows)
        np.testing.assert_array_equal(decode_rows(body, JSON, wanted)[0], rows)
    body = json.dumps({"logits": rows.tolist()}).encode()
    middle = body.index(b"]", JSON_BLOCK_BYTES)  # the end of the first block
    separators = b"] [", b"],, [", b"], 1, [", b", 0.5], [", b"], [], [", b"],\x0b ["
    ends = b"],]}", b"]]", b"]}", b"]]}x", b'], ["2"]]}', b"], [true]]}"
    for old, new in (*((b"], [", one) for one in separators), *((b"]]}", one) for one in ends)):
        changed = body[:middle] + body[middle:].replace(old, new, 1)
        assert changed != body
        with pytest.raises(InputError):
            decode_rows(changed, JSON, wanted)
    for n in (1, 2, 12_000):
        values = np.repeat(rows[:n], 2 if n > 2 else 40_000, axis=1)
        predictions = np.arange(n)
        document = json.loads(encode(values, JSON, predictions))
        assert document == {"probabilities": values.tolist(), "predictions": predictions.tolist()}
    flat = np.repeat(rows.ravel(), 2)
    assert json.loads(encode(flat, JSON, flat > 0))["probabilities"] == flat.tolist()
