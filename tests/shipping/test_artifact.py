"""Artifacts: the same bits after a round trip, a published header, and nothing that runs code."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import numpy as np
import pytest

import calibrant
from calibrant.calibrators import registry
from calibrant.core.errors import InputError
from calibrant.shipping import artifact as module
from calibrant.shipping.apply import calibrate_predictions
from calibrant.shipping.artifact import from_bytes, load, read_artifact, read_header, save, to_bytes
from calibrant.shipping.onnx import export_onnx
from calibrant.shipping.service import create_app

GOLDEN = Path(__file__).parent / "golden"
SCHEMA = json.loads((files("calibrant") / "schemas" / "artifact.schema.json").read_text())


def rewrite(content: bytes, change) -> bytes:
    """The artifact with its JSON header changed in place by `change(header)`."""
    size = int.from_bytes(content[:8], "little")
    outer = json.loads(content[8 : 8 + size])
    header = json.loads(outer["__metadata__"]["calibrant"])
    outer["__metadata__"]["calibrant"] = json.dumps(change(header) or header)
    text = json.dumps(outer).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


@pytest.mark.parametrize("name", registry.names())
def test_every_method_predicts_the_same_bits_after_a_round_trip(name, fitted, data, hard_logits, tmp_path):
    calibrator = fitted(name)
    path = tmp_path / "cal.safetensors"
    save(calibrator, path)
    loaded = load(path)
    assert type(loaded) is type(calibrator)
    assert repr(loaded) == repr(calibrator)
    for logits in (data[0], data[0].astype(np.float32), hard_logits, hard_logits.astype(np.float64)):
        for method in ("transform", "predict_proba", "predict"):
            before, after = getattr(calibrator, method)(logits), getattr(loaded, method)(logits)
            assert before.dtype == after.dtype
            np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("name", registry.names())
def test_headers_follow_the_published_schema(name, fitted):
    content = to_bytes(fitted(name), class_names=list("abcde"), before={"ece": 0.1}, after={"ece": 0.0})
    jsonschema.validate(read_header(content), SCHEMA)


@pytest.mark.parametrize("name", registry.names())
def test_saving_what_was_loaded_gives_the_same_file(name, fitted):
    content = to_bytes(fitted(name))
    assert to_bytes(from_bytes(content).calibrator) == content


def test_a_chosen_calibrator_keeps_its_story(data, tmp_path):
    auto = calibrant.AutoCalibrator(candidates=["ts", calibrant.VectorScaling(penalty_bias=0.1)], cv=2).fit(*data)
    save(auto, tmp_path / "cal")
    loaded = load(tmp_path / "cal")
    for name in ("chosen_", "scores_", "reason_", "failures_"):
        assert getattr(loaded, name) == getattr(auto, name)
    assert repr(loaded) == repr(auto)
    np.testing.assert_array_equal(loaded.predict_proba(data[0]), auto.predict_proba(data[0]))
    by_function = calibrant.AutoCalibrator(candidates=["ts"], cv=2, criterion=calibrant.metrics.brier).fit(*data)
    with pytest.raises(InputError, match=r"criterion is a function.*save `calibrator_` instead"):
        save(by_function, tmp_path / "other")
    save(by_function.calibrator_, tmp_path / "other")


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
def test_parameters_of_every_kind_survive(data, tmp_path):
    grid = np.array([0.5, 1.0, 2.0])
    one = calibrant.TemperatureScaling(objective="ece", grid=grid).fit(*data)
    two = calibrant.TemperatureScaling(objective="ece", grid=tuple(grid.tolist())).fit(*data)
    for calibrator in (one, two):
        save(calibrator, tmp_path / "cal")
        loaded = load(tmp_path / "cal")
        assert type(loaded.grid) is type(calibrator.grid)
        np.testing.assert_array_equal(loaded.grid, grid)


def test_the_clamped_network_is_saved_without_the_network(tmp_path):
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, 4, generator=generator)
    labels = (inputs + torch.randn(64, 4, generator=generator)).argmax(1)
    network = torch.nn.Linear(4, 4)
    torch.nn.init.eye_(network.weight)  # a network of chance weights says nothing true, and δ would be refused
    torch.nn.init.zeros_(network.bias)
    method = calibrant.NeuralClamping(gamma=0.5, penalty=0.1, init="zeros", epochs=2)
    clamped = method.fit(network, [(4 * inputs, labels)])
    save(method, tmp_path / "cal")
    loaded = load(tmp_path / "cal")
    torch.testing.assert_close(loaded.attach(network)(inputs), clamped(inputs), rtol=0, atol=0)
    assert (loaded.gamma_, loaded.penalty_, loaded.loss_trace_) == (method.gamma_, method.penalty_, method.loss_trace_)
    jsonschema.validate(read_header((tmp_path / "cal").read_bytes()), SCHEMA)
    with pytest.raises(InputError, match="delta_"):
        from_bytes(rewrite(to_bytes(method), lambda h: h["calibrator"]["learned"].update(delta_=1.0)))


def test_the_file_tells_its_story(fitted, tmp_path):
    path = tmp_path / "cal.safetensors"
    save(fitted("ts"), path, class_names=list("abcde"), before={"ece": 0.25}, after={"ece": 0.05})
    about = read_artifact(path)
    assert about.method == "TemperatureScaling"
    assert about.n_classes == 5
    assert about.class_names == tuple("abcde")
    assert about.n == 400
    assert about.fingerprint.startswith("sha256:")
    assert (about.before, about.after) == ({"ece": 0.25}, {"ece": 0.05})
    assert about.library == calibrant.__version__
    assert about.format == 2


def test_a_file_of_format_2_loads_forever():
    """Written when format 2 was new, and never again: a reader that cannot load it breaks its users."""
    about = read_artifact(GOLDEN / "format2.safetensors")
    expected = json.loads((GOLDEN / "format2.json").read_text())
    got = about.calibrator.predict_proba(np.array(expected["logits"]))
    np.testing.assert_allclose(got, expected["probabilities"], rtol=1e-12)
    assert about.format == 2
    assert about.class_names == ("ant", "bee", "cat", "dog")


def test_an_unfitted_calibrator_and_a_stranger_are_refused(tmp_path):
    with pytest.raises(Exception, match="not fitted"):
        save(calibrant.TemperatureScaling(), tmp_path / "a")

    class Stranger(calibrant.Identity):
        pass

    with pytest.raises(InputError, match="Stranger is not one of calibrant's"):
        save(Stranger().fit(2 * np.eye(3), [0, 1, 2]), tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_a_calibrator_that_cannot_predict_is_not_written(fitted, tmp_path):
    broken = pickle.loads(pickle.dumps(fitted("vs")))
    broken.scale_ = broken.scale_ * np.nan
    with pytest.raises(InputError, match="scale_"):
        save(broken, tmp_path / "a")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h: {**h, "format": 3}, "format 3, but this calibrant reads 2: save the calibrator again"),
        (lambda h: {**h, "format": True}, "format True, but"),
        (lambda h: {**h, "n_classes": 10**12}, "n_classes is 1000000000000"),
        (lambda h: {**h, "n_classes": 4}, "fitted on 5 classes, but the file says 4"),
        (lambda h: {**h, "class_names": ["a"]}, "1 class names, but 5 classes"),
        (lambda h: h["calibrator"].update({"class": "os.system"}), "not one of calibrant's"),
        (lambda h: h["calibrator"]["parameters"].update(magic=1), r"unexpected keyword argument .magic.\): .*upgrade"),
        (lambda h: h["calibrator"]["parameters"].update(penalty_bias=10**12), "above the limit"),
        (lambda h: h["calibrator"]["parameters"].update(penalty_bias=-(10**12)), "above the limit"),
        (lambda h: h["calibrator"]["learned"].update(transform=1), "cannot have learned a 'transform'"),
        (lambda h: h["calibrator"]["learned"].update(n_parameters_=1), "cannot have learned a 'n_parameters_'"),
        (lambda h: h["calibrator"]["learned"].pop("scale_") and None, "nothing refers to"),
        (lambda h: h["calibrator"]["learned"].update(scale_=[1.0] * 5), "nothing refers to"),
        (lambda h: h["calibrator"]["learned"].update(scale_={"tensor": "no"}), "not in the file"),
        (lambda h: h["calibrator"]["learned"].update(extra_={"code": "x"}), "does not know: upgrade"),
        (lambda h: {**h, "n": -1}, "n is -1"),
        (lambda h: {**h, "kind": "odds"}, "kind must be"),
        (lambda h: {**h, "kind": None}, "kind must be"),
        (lambda h: {**h, "source": 3}, "source is '3', but must be a str"),
        (lambda h: {"format": 2}, "keys are not those of format 2"),
    ],
)
def test_a_tampered_header_is_refused_in_one_line(change, words, fitted):
    with pytest.raises(InputError, match=words) as caught:
        from_bytes(rewrite(to_bytes(fitted("vs")), change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.ones(1), "shape"),
        (np.ones((5, 1)), "shape"),
        (np.full(5, np.nan), "outside"),
        (np.full(5, 1e300), "outside"),
    ],
)
def test_shapes_and_ranges_are_checked_against_the_number_of_classes(values, words, fitted, monkeypatch):
    calibrator = pickle.loads(pickle.dumps(fitted("vs")))
    calibrator.scale_ = values
    # a writer that does not look at what it writes
    monkeypatch.setattr(module, "from_bytes", lambda content: SimpleNamespace(calibrator=None))
    monkeypatch.setattr(module, "_answers", lambda *arguments: [])
    content = to_bytes(calibrator)
    monkeypatch.undo()
    with pytest.raises(InputError, match=f"VectorScaling.scale_ .*{words}"):
        from_bytes(content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "0 bytes"),
        (b"\x80\x04\x95", "too short"),
        (pickle.dumps(np.ones(100)), "header claims"),
        ((10**12).to_bytes(8, "little") + b"{}", "header claims 1000000000000 bytes, but 2 are possible"),
        ((2).to_bytes(8, "little") + b"{}", "not written by calibrant"),
        ((2).to_bytes(8, "little") + b"[]", "not readable"),
        ((200_000).to_bytes(8, "little") + b"[" * 200_000, "not readable"),
    ],
)
def test_other_files_are_refused(content, words, tmp_path):
    path = tmp_path / "cal.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        load(path)
    assert str(caught.value).startswith(str(path))


def test_a_missing_file_and_a_folder_are_said_in_one_line(tmp_path):
    with pytest.raises(InputError, match="there is no such file"):
        load(tmp_path / "absent")
    with pytest.raises(InputError, match="is a folder"):
        load(tmp_path)


def test_loading_needs_neither_torch_nor_pickle(fitted, tmp_path):
    path = tmp_path / "cal.safetensors"
    save(fitted("sctl+ts"), path)
    code = (
        "import sys, pickle, calibrant, calibrant.shipping.artifact\n"
        "def refuse(*a, **k): raise SystemExit('pickle was used')\n"
        "pickle.load = pickle.loads = pickle.Unpickler = refuse\n"
        f"calibrant.load({str(path)!r})\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_fuzzed_artifacts_are_refused_or_valid(benchmark_script):
    result = benchmark_script("fuzz_artifacts").run(1500, seed=1)
    assert result["problems"] == []
    assert result["refused"] > 500
    assert result["valid"] > 50
    assert result["slowest_s"] < 5


def test_kill_during_save_leaves_the_old_or_the_new_file(benchmark_script):
    counts = benchmark_script("save_kill").run(12, trace_length=200_000)
    assert counts["old_or_new"] == 12
    assert counts["broken"] == 0


@pytest.mark.parametrize("name", ["vs", "ts+top", "dir"])
def test_a_calibrator_of_probabilities_takes_probabilities_everywhere(name, data, tmp_path):
    """In `apply`, the service and ONNX; logits are taken for what they are there too."""
    onnxruntime = pytest.importorskip("onnxruntime")
    testclient = pytest.importorskip("starlette.testclient")
    logits, labels = data
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    given = calibrant.Predictions.from_arrays(probabilities=p, labels=labels)
    fitted = calibrant.get(name).fit(given)
    expected = fitted.predict_proba(np.log(p))
    save(fitted, tmp_path / "cal")
    about = read_artifact(tmp_path / "cal")
    assert about.kind == about.schema.kind == "probabilities"
    other = calibrant.Predictions.from_arrays(logits=logits + 3.0, labels=labels)
    for predictions in (given, other):
        applied = calibrate_predictions(about.calibrator, predictions, "probabilities")
        np.testing.assert_allclose(applied.probabilities, expected, atol=1e-9)
    export_onnx(about.calibrator, tmp_path / "cal.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "cal.onnx"))
    got = session.run(["calibrated_probabilities"], {"probabilities": p.astype(np.float32)})[0]
    np.testing.assert_allclose(got, expected, atol=1e-5)
    with testclient.TestClient(create_app(about)) as client:
        assert client.get("/calibrator").json()["kind"] == "probabilities"
        buffer = io.BytesIO()
        np.save(buffer, p)
        raw = client.post("/calibrate", content=buffer.getvalue(), headers={"content-type": "application/x-npy"})
        np.testing.assert_allclose(np.load(io.BytesIO(raw.content)), expected, atol=1e-9)
        for kind, rows in (("probabilities", p), ("logits", logits + 3.0)):
            answer = client.post("/calibrate", json={kind: rows.tolist()}).json()
            np.testing.assert_allclose(answer["probabilities"], expected, atol=1e-9)


def without_arrays(content: bytes) -> bytes:
    """The artifact with its header only."""
    size = int.from_bytes(content[:8], "little")
    outer = json.loads(content[8 : 8 + size])
    text = json.dumps({"__metadata__": outer["__metadata__"]}).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize("name", ["vs", "iso", "conf"])
def test_an_artifact_without_its_arrays_is_refused(name, fitted):
    content = without_arrays(to_bytes(fitted(name)))
    forgotten = rewrite(content, lambda header: header["calibrator"]["learned"].clear())
    for damaged, words in ((content, "not in the file"), (forgotten, "fitted on None classes, but the file says 5")):
        with pytest.raises(InputError, match=words) as caught:
            from_bytes(damaged)
        assert "\n" not in str(caught.value)


def test_identical_fits_write_identical_bytes_at_a_given_time(data, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    for method in ("ts", "ts+group", "conf"):
        options = {"groups": np.arange(len(data[1])) % 2} if "group" in method else {}
        for name in ("a", "b"):
            save(calibrant.get(method).fit(*data, **options), tmp_path / name)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_artifact(tmp_path / "a").created == "2023-11-14T22:13:20+00:00"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(InputError, match="SOURCE_DATE_EPOCH"):
        save(calibrant.get("ts").fit(*data), tmp_path / "c")
