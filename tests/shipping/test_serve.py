"""The service: formats, limits, descriptions, and a stop that finishes what it began."""

from __future__ import annotations

import io
import json
import signal
import socket
import subprocess
import sys
import time

import httpx
import jsonschema
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import ipc
from starlette.testclient import TestClient

from calibrant.core.errors import InputError
from calibrant.shipping.artifact import Artifact, save
from calibrant.shipping.http_codec import ARROW, JSON, NPY, Wanted, decode_rows
from calibrant.shipping.serve import Limits, create_app

K = 5


@pytest.fixture(scope="module")
def artifact(fitted):
    return Artifact(fitted("ts"), K, class_names=tuple("abcde"), n=400)


@pytest.fixture(scope="module")
def client(artifact):
    return TestClient(create_app(artifact, Limits(body_bytes=100_000, rows=100)), raise_server_exceptions=True)


def npy(array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npy_header(descr: str, shape: tuple[int, ...]) -> bytes:
    """An npy file that claims data and has none."""
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def arrow(array, *, name="logits", fixed=True, compression=None) -> bytes:
    kind = pa.list_(pa.from_numpy_dtype(array.dtype), array.shape[1] if fixed else -1)
    batch = pa.record_batch([pa.array(list(array), type=kind)], names=[name])
    sink = io.BytesIO()
    with ipc.new_stream(sink, batch.schema, options=ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch)
    return sink.getvalue()


def post(client, body, kind, **headers):
    return client.post("/calibrate", content=body, headers={"content-type": kind, **headers})


def test_json_in_json_out(client, artifact):
    logits = np.random.default_rng(0).normal(size=(3, K))
    answer = post(client, json.dumps({"logits": logits.tolist()}), JSON + "; charset=utf-8")
    assert answer.status_code == 200
    expected = artifact.calibrator.predict_proba(logits)
    np.testing.assert_array_equal(answer.json()["probabilities"], expected)
    assert answer.json()["predictions"] == expected.argmax(axis=1).tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", ">f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_in_npy_out(dtype, order, client, artifact):
    logits = np.asarray(np.random.default_rng(0).normal(size=(7, K)) * 3, dtype=dtype, order=order)
    answer = post(client, npy(logits), NPY)
    assert answer.headers["content-type"] == NPY
    np.testing.assert_array_equal(np.load(io.BytesIO(answer.content)), artifact.calibrator.predict_proba(logits))


@pytest.mark.parametrize("fixed", [True, False])
def test_arrow_in_arrow_out(fixed, client, artifact):
    logits = np.random.default_rng(0).normal(size=(4, K)).astype(np.float32)
    answer = post(client, arrow(logits, fixed=fixed), ARROW)
    table = ipc.open_stream(answer.content).read_all()
    expected = artifact.calibrator.predict_proba(np.concatenate([logits, logits]))
    np.testing.assert_array_equal(np.stack(table["probabilities"].to_numpy()), expected)
    assert table["prediction"].to_pylist() == expected.argmax(axis=1).tolist()


def test_accept_chooses_the_format_of_the_answer(client):
    answer = post(client, npy(np.zeros((1, K))), NPY, accept="text/html, application/json;q=0.9")
    np.testing.assert_allclose(answer.json()["probabilities"], [[0.2] * K])


@pytest.mark.parametrize(
    ("body", "kind", "status", "words"),
    [
        (b"{", JSON, 400, "not JSON"),
        (b"[" * 90_000, JSON, 400, "not JSON"),
        (b"\xff\xfe", JSON, 400, "not JSON"),
        (b"[]", JSON, 422, "and nothing else"),
        (b'{"logits": [[[1],[2],[3],[4],[5]]]}', JSON, 422, "must be numbers"),
        (b'{"logits": [[1,2,3,4,null]]}', JSON, 422, "must be numbers"),
        (npy_header("<f8", (-1, -1)), NPY, 400, "claims the shape"),
        (npy_header("<f8", (True, 5)) + bytes(40), NPY, 400, "claims the shape"),
        (npy_header("<f8", (10**50, 10**50)), NPY, 400, "claims the shape"),
        (npy_header("<f8", (1, 1, 5)) + bytes(40), NPY, 422, "2 dimensions"),
        (b'{"logits": [[1,2,3,4,5]], "x": 1}', JSON, 422, "and nothing else"),
        (b'{"logits": []}', JSON, 422, "0 sample"),
        (b'{"logits": [[]]}', JSON, 422, "0 feature"),
        (b'{"logits": [[1,2,3,4]]}', JSON, 422, "4 columns, but the calibrator knows 5"),
        (b'{"logits": [[1,2,3,4,5],[1]]}', JSON, 422, "different lengths"),
        (b'{"logits": [[1,2,3,4,true]]}', JSON, 422, "must be numbers"),
        (b'{"logits": [[1,2,3,4,"5"]]}', JSON, 422, "must be numbers"),
        (b'{"logits": [[1,2,3,4,NaN]]}', JSON, 400, "NaN"),
        (b'{"logits": [[1,2,3,4,1e999]]}', JSON, 400, "not JSON"),
        (b'{"logits": [[1,2,3,4,1e9]]}', JSON, 422, "at most 1e+06"),
        (b'{"logits": [[1,2,3,4,1' + b"0" * 400 + b"]]}", JSON, 400, "not JSON"),
        (b'{"logits": ' + json.dumps([[0] * K] * 101).encode() + b"}", JSON, 422, "101 rows"),
        (b"x" * 100_001, JSON, 413, "at most 100000"),
        (npy(np.zeros((101, K))), NPY, 422, "101 rows"),
        (npy(np.zeros(K)), NPY, 422, "2 dimensions"),
        (npy(np.full((1, K), np.inf)), NPY, 422, "Inf"),
        (npy(np.zeros((1, K)))[:-8], NPY, 400, "claims 40 bytes of data, but 32 follow"),
        (npy(np.zeros((1, K), dtype=complex)), NPY, 400, "complex128"),
        (npy_header("<f8", (10**12, 5)), NPY, 400, "claims 40000000000000 bytes"),
        (npy_header("|O", (1, 5)), NPY, 400, "object"),
        (b"PK\x03\x04", NPY, 400, "not an npy"),
        (b"\x93NUMPY\x01\x00\xff\xff", NPY, 400, "not an npy"),
        (b"ARROW1", ARROW, 400, "not an Arrow stream"),
        (arrow(np.zeros((60, K))), ARROW, 422, "more than 100 rows"),
        (arrow(np.zeros((1, 4))), ARROW, 422, "4"),
        (arrow(np.zeros((1, K)), name="x"), ARROW, 422, "needs one called 'logits'"),
        (arrow(np.zeros((50, K)), compression="zstd"), ARROW, 422, "compressed"),
        (arrow(np.zeros((50, K)), compression="lz4"), ARROW, 422, "compressed"),
        (b"1,2", "text/csv", 415, "text/csv"),
    ],
)  # fmt: skip
def test_bad_bodies_are_told_apart(body, kind, status, words, client):
    answer = post(client, body, kind)
    assert answer.status_code == status
    assert words in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_object_arrays_are_never_unpickled(client):
    evil = io.BytesIO()
    np.save(evil, np.array([["x"]], dtype=object), allow_pickle=True)
    assert post(client, evil.getvalue(), NPY).status_code == 400


@settings(max_examples=150)
@given(seed=st.integers(0, 10**6), place=st.floats(0, 1), noise=st.binary(min_size=1, max_size=8), cut=st.booleans())
def test_mutated_bodies_never_escape(seed, place, noise, cut):
    logits = np.random.default_rng(seed).normal(size=(2, K))
    kind, body = [(JSON, json.dumps({"logits": logits.tolist()}).encode()), (NPY, npy(logits)), (ARROW, arrow(logits))][
        seed % 3
    ]
    at = int(place * (len(body) - 1))
    body = body[:at] if cut else body[:at] + noise + body[at + len(noise) :]
    try:
        matrix, _ = decode_rows(body, kind, Wanted("multiclass", "logits", K, max_rows=100))
    except InputError:
        return
    assert matrix.shape[1] == K
    assert np.isfinite(matrix).all()


def test_a_body_without_a_length_is_limited_too(client):
    def endless():
        for _ in range(1000):
            yield b"x" * 1000

    assert post(client, endless(), JSON).status_code == 413


def test_health_metrics_and_description(client):
    assert client.get("/health").json() == {"status": "ok"}
    about = client.get("/calibrator").json()
    assert (about["method"], about["n_classes"], about["class_names"]) == ("TemperatureScaling", K, list("abcde"))
    post(client, npy(np.zeros((3, K))), NPY)
    client.get("/nowhere")
    figures = client.get("/metrics")
    assert figures.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in figures.text.splitlines() if not line.startswith("#")]
    values = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}
    assert values["calibrant_rows_total"] >= 3
    assert values['calibrant_requests_total{route="other",status="404"}'] >= 1
    assert values['calibrant_request_seconds_bucket{le="+Inf"}'] == values["calibrant_request_seconds_count"]
    assert client.put("/calibrate").status_code == 405
    assert client.put("/calibrate").headers["allow"] == "POST"


def test_the_page_needs_nothing_from_outside(client):
    page = client.get("/")
    assert page.status_code == 200
    assert "://" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_answers_follow_the_described_schema(client):
    api = client.get("/openapi.json").json()
    operation = api["paths"]["/calibrate"]["post"]
    example = operation["requestBody"]["content"][JSON]["example"]
    jsonschema.validate(example, operation["requestBody"]["content"][JSON]["schema"])
    answer = post(client, json.dumps(example), JSON)
    jsonschema.validate(answer.json(), operation["responses"]["200"]["content"][JSON]["schema"])


def test_schemathesis_finds_no_server_error(artifact):
    schemathesis = pytest.importorskip("schemathesis")
    schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(artifact, Limits(rows=100)))
    modes = schemathesis.GenerationMode
    operations = {result.ok().label: result.ok() for result in schema.get_all_operations()}
    pairs = [(operation, modes.POSITIVE) for operation in operations.values()]
    statuses = []
    for operation, mode in [*pairs, (operations["POST /calibrate"], modes.NEGATIVE)]:

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=25)
        def check(case):
            response = case.call()
            statuses.append(response.status_code)
            # that probabilities sum to 1 is a rule which no schema can state
            unstated = isinstance(case.body, dict) and "probabilities" in case.body and response.status_code == 422
            accepted = schemathesis.checks.CHECKS.get_one("positive_data_acceptance")
            case.validate_response(response, excluded_checks=[accepted] if unstated else [])

        check()
    assert len(statuses) > 40
    assert {200, 422} <= set(statuses)
    assert max(statuses) < 500


def test_the_command_serves_on_loopback_and_stops_gracefully(fitted, tmp_path):
    save(fitted("ts"), tmp_path / "cal.safetensors")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = [sys.executable, "-c", "from calibrant.cli import main; main()", "serve", str(tmp_path / "cal.safetensors")]
    command = [*run, "--port", str(port), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert json.loads(server.stdout.readline())["address"] == f"http://127.0.0.1:{port}"
            answer = _patiently(f"http://127.0.0.1:{port}/calibrate", {"logits": [[0.0] * K]})
            assert np.isclose(answer.json()["probabilities"][0][0], 1 / K)
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=120)
            assert server.returncode == 0
        finally:
            server.kill()


def test_the_command_takes_a_free_port_and_refuses_a_taken_one_in_one_line(fitted, tmp_path):
    save(fitted("ts"), tmp_path / "cal.safetensors")
    run = [sys.executable, "-m", "calibrant", "serve", str(tmp_path / "cal.safetensors"), "--json", "--port"]
    with subprocess.Popen([*run, "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            port = json.loads(server.stdout.readline())["address"].rpartition(":")[2]
            assert int(port) > 0
            second = subprocess.run([*run, port], capture_output=True, text=True, check=False)
            assert (second.returncode, second.stdout, second.stderr.count("\n")) == (2, "", 1)
            assert f"port {port}" in second.stderr
            server.send_signal(signal.SIGINT)
            server.wait(timeout=120)
            assert (server.returncode, server.stderr.read()) == (0, "")
        finally:
            server.kill()


def _patiently(url: str, body: dict) -> httpx.Response:
    """The first answer of a server that is still starting."""
    deadline = time.monotonic() + 300
    transport = httpx.HTTPTransport(retries=0)
    with httpx.Client(transport=transport, trust_env=False) as client:
        while True:
            try:
                return client.post(url, json=body)
            except httpx.ConnectError:
                if time.monotonic() > deadline:
                    raise


@pytest.mark.parametrize("kind", [JSON, NPY, ARROW])
def test_a_body_of_exactly_the_allowed_rows_is_read(kind):
    rows = np.random.default_rng(0).normal(size=(8, K))
    write = {
        JSON: lambda z: json.dumps({"logits": z.tolist()}).encode(),
        NPY: npy,
        ARROW: lambda z: arrow(z[: len(z) // 2]),
    }
    wanted = Wanted("multiclass", "logits", K, max_rows=8)
    assert decode_rows(write[kind](rows), kind, wanted)[0].shape == (8, K)
    with pytest.raises(InputError, match="rows"):
        decode_rows(write[kind](np.tile(rows, (2, 1))), kind, wanted)
    with pytest.raises(InputError, match="rows"):
        decode_rows(write[kind](rows), kind, Wanted("multiclass", "logits", K, max_rows=7))
