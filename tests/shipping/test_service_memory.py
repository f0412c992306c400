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

from calibrant.shipping.artifact import Artifact
from calibrant.shipping.http_codec import ARROW, JSON, NPY, decode_rows, encode, estimate_memory
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
