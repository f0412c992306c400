"""ONNX graphs beside numpy in onnxruntime."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import calibrant
from calibrant.calibrators import registry
from calibrant.core.errors import InputError
from calibrant.shipping.onnx import OPSET, export_onnx, to_onnx

K = 5
OPTIONS = onnxruntime.SessionOptions()
OPTIONS.intra_op_num_threads = OPTIONS.inter_op_num_threads = 1


def run(model, **inputs):
    content = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(content, OPTIONS)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def classifier(opset: int = 17, last: str = "Gemm", elem_type: int = TensorProto.FLOAT, extra: bool = False):
    """x (n×3) → logits (n×K), through a Softmax if asked; weights stored in the model."""
    rng = np.random.default_rng(0)
    kind = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16, TensorProto.DOUBLE: np.float64}[elem_type]
    weight = numpy_helper.from_array(rng.normal(size=(3, K)).astype(kind), "weight")
    bias = numpy_helper.from_array(rng.normal(size=K).astype(kind), "bias")
    nodes = [helper.make_node("Gemm", ["x", "weight", "bias"], ["scores"])]
    outputs = ["scores"]
    if last != "Gemm":
        nodes.append(helper.make_node(last, ["scores"], ["chances"], axis=1))
        outputs = ["chances"]
    if extra:
        nodes.append(helper.make_node("Relu", ["scores"], ["calibrated_logits"]))
        outputs.append("calibrated_logits")
    infos = [helper.make_tensor_value_info(name, elem_type, ["n", K]) for name in outputs]
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", elem_type, ["n", 3])], infos, [weight, bias]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    logits_of = lambda x: x.astype(np.float64) @ numpy_helper.to_array(weight) + numpy_helper.to_array(bias)  # noqa: E731
    return model, logits_of


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
@pytest.mark.parametrize("data", ["no confusion", "few rows", "an absent class"])
@pytest.mark.parametrize("name", registry.names())
def test_each_method_is_exported_whatever_its_fit_learned(name, data):
    rng = np.random.default_rng(1)
    n_rows, margin = {"no confusion": (1000, 1.5), "few rows": (40, 3.0), "an absent class": (300, 1.0)}[data]
    labels = rng.integers(0, 3 if data == "an absent class" else 4, n_rows)
    logits = 2 * (margin * np.eye(4)[labels] + rng.normal(size=(n_rows, 4)))
    calibrator = calibrant.get(name).fit(logits, labels)
    single = logits.astype(np.float32)
    got = run(to_onnx(calibrator), logits=single)
    np.testing.assert_allclose(got["probabilities"], calibrator.predict_proba(single), atol=1e-5)


@pytest.mark.parametrize("name", registry.names())
def test_equal_to_numpy_on_random_and_extreme_logits(name, fitted, hard_logits):
    calibrator = fitted(name)
    got = run(to_onnx(calibrator), logits=hard_logits)
    np.testing.assert_allclose(got["probabilities"], calibrator.predict_proba(hard_logits), atol=1e-5)
    wide = hard_logits.astype(np.float64)
    np.testing.assert_allclose(got["probabilities"], calibrator.predict_proba(wide), atol=1e-6)
    np.testing.assert_array_equal(got["prediction"], got["probabilities"].argmax(axis=1))
    np.testing.assert_array_equal(got["prediction"], calibrator.predict(wide))
    expected = calibrator.transform(wide)
    np.testing.assert_allclose(got["calibrated_logits"], expected, rtol=1e-5, atol=1e-4)
    if calibrator.keeps_prediction:
        np.testing.assert_array_equal(got["prediction"], hard_logits.argmax(axis=1))


def test_an_opset_that_does_not_exist_is_refused(fitted):
    with pytest.raises(InputError, match="opset 999 does not exist yet"):
        to_onnx(fitted("ts"), opset=999)


@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("name", ["cts", "dir", "ets", "cws", "pts", "vs+top", "spline"])
def test_every_opset_from_17_on(name, opset, fitted, hard_logits):
    model = to_onnx(fitted(name), opset=opset)
    assert model.opset_import[0].version == opset
    got = run(model, logits=hard_logits)["probabilities"]
    np.testing.assert_allclose(got, fitted(name).predict_proba(hard_logits), atol=1e-5)


@pytest.mark.parametrize("method", [calibrant.HistogramBinning, calibrant.IsotonicCalibration])
def test_one_vs_rest_maps(method, data, hard_logits):
    calibrator = method(mode="one_vs_rest").fit(*data)
    got = run(to_onnx(calibrator), logits=hard_logits)["probabilities"]
    np.testing.assert_allclose(got, calibrator.predict_proba(hard_logits.astype(np.float64)), atol=1e-6)


@pytest.mark.parametrize("n_bins", [1, 2])
def test_few_bins(n_bins, data, hard_logits):
    for method in (calibrant.ConfidenceWeightScaling, calibrant.HistogramBinning):
        calibrator = method(n_bins=n_bins).fit(*data)
        got = run(to_onnx(calibrator), logits=hard_logits)["probabilities"]
        np.testing.assert_allclose(got, calibrator.predict_proba(hard_logits.astype(np.float64)), atol=1e-6)


def test_a_chosen_calibrator_and_two_classes(hard_logits):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 200)
    logits = 3 * (rng.normal(size=(200, 2)) + np.eye(2)[labels])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrator = calibrant.AutoCalibrator(candidates=["ts", "vs+top"], cv=2).fit(logits, labels)
    got = run(to_onnx(calibrator), logits=hard_logits[:, :2])["probabilities"]
    np.testing.assert_allclose(got, calibrator.predict_proba(hard_logits[:, :2].astype(np.float64)), atol=1e-6)


def test_rows_whose_other_classes_are_capped_several_times():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 60, 300)
    logits = rng.normal(size=(300, 60)) * rng.uniform(0.1, 20, size=(300, 1)) + 3 * np.eye(60)[labels]
    calibrator = calibrant.get("ts+top").fit(logits, labels)
    calibrator.map_ = np.array([0.2, 0.05, -3.0])
    rounds = np.float32(np.concatenate([logits, 300 * logits, np.sort(logits, axis=1)]))
    got = run(to_onnx(calibrator), logits=rounds)
    np.testing.assert_allclose(got["probabilities"], calibrator.predict_proba(rounds.astype(float)), atol=1e-6)
    np.testing.assert_array_equal(got["prediction"], rounds.argmax(axis=1))


def test_float32_inside_on_request(fitted, hard_logits):
    model = to_onnx(fitted("ts"), precision="float32")
    assert all(constant.data_type != TensorProto.DOUBLE for constant in model.graph.initializer)
    ordinary = hard_logits[:200]
    got = run(model, logits=ordinary)["probabilities"]
    np.testing.assert_allclose(got, fitted("ts").predict_proba(ordinary), atol=1e-5)


@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize("last", ["Gemm", "Softmax", "LogSoftmax"])
def test_appended_to_a_classifier(last, opset, fitted, tmp_path):
    model, logits_of = classifier(opset, last)
    onnx.save(model, tmp_path / "net.onnx")
    x = np.random.default_rng(1).normal(size=(20, 3)).astype(np.float32)
    before = run(model, x=x)
    done = export_onnx(fitted("vs"), tmp_path / "out.onnx", model=tmp_path / "net.onnx")
    assert done.opset == opset
    got = run(str(tmp_path / "out.onnx"), x=x)
    for name, value in before.items():
        np.testing.assert_array_equal(got[name], value)
    expected = fitted("vs").predict_proba(logits_of(x))
    np.testing.assert_allclose(got["calibrated_probabilities"], expected, atol=1e-5)
    np.testing.assert_array_equal(got["calibrated_prediction"], expected.argmax(axis=1))
    assert onnx.load(tmp_path / "out.onnx").opset_import[0].version == opset


@pytest.mark.parametrize("elem_type", [TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_other_types_of_logits(elem_type, fitted, tmp_path):
    model, _ = classifier(elem_type=elem_type)
    onnx.save(model, tmp_path / "net.onnx")
    export_onnx(fitted("ets"), tmp_path / "out.onnx", model=tmp_path / "net.onnx")
    kind = np.float16 if elem_type == TensorProto.FLOAT16 else np.float64
    got = run(str(tmp_path / "out.onnx"), x=np.random.default_rng(1).normal(size=(20, 3)).astype(kind))
    expected = fitted("ets").predict_proba(got["scores"].astype(np.float64))
    np.testing.assert_allclose(got["calibrated_probabilities"], expected, atol=1e-6)


def test_names_that_are_taken_and_outputs_that_must_be_named(fitted, tmp_path):
    model, _ = classifier(extra=True)
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(InputError, match=r"2 outputs have 5 columns.*--output-name"):
        export_onnx(fitted("ts"), tmp_path / "out.onnx", model=tmp_path / "net.onnx")
    with pytest.raises(InputError, match="no outputs called 'absent' have 5 columns; the outputs are scores"):
        export_onnx(fitted("ts"), tmp_path / "out.onnx", model=tmp_path / "net.onnx", output_name="absent")
    done = export_onnx(fitted("ts"), tmp_path / "out.onnx", model=tmp_path / "net.onnx", output_name="scores")
    assert done.outputs[0] == "calibrated_logits_2"
    again = export_onnx(fitted("ts"), tmp_path / "twice.onnx", model=tmp_path / "out.onnx", output_name="scores")
    assert len(onnx.load(tmp_path / "twice.onnx").graph.output) == 8
    assert set(again.outputs).isdisjoint(done.outputs)


def test_a_model_of_other_classes_and_a_file_that_is_none(fitted, tmp_path, data):
    model, _ = classifier()
    onnx.save(model, tmp_path / "net.onnx")
    three = calibrant.Identity().fit(2 * np.eye(3), [0, 1, 2])
    with pytest.raises(InputError, match=r"no outputs have 3 columns; the outputs are scores \(n, 5\)"):
        export_onnx(three, tmp_path / "out.onnx", model=tmp_path / "net.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"\x80nonsense")
    with pytest.raises(InputError, match="is not an ONNX model"):
        export_onnx(fitted("ts"), tmp_path / "out.onnx", model=tmp_path / "bad.onnx")
    with pytest.raises(InputError, match="no such file"):
        export_onnx(fitted("ts"), tmp_path / "out.onnx", model=tmp_path / "absent.onnx")
    old, _ = classifier(opset=9)
    onnx.save(old, tmp_path / "old.onnx")
    with pytest.raises(InputError, match="opset 9, but at least 17"):
        export_onnx(fitted("ts"), tmp_path / "out.onnx", model=tmp_path / "old.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_external_data_travel_along_and_never_from_outside(fitted, tmp_path):
    model, logits_of = classifier()
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    onnx.save(model, source / "net.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    export_onnx(fitted("ts"), target / "out.onnx", model=source / "net.onnx")
    assert (target / "weights.bin").read_bytes() == (source / "weights.bin").read_bytes()
    x = np.random.default_rng(1).normal(size=(20, 3)).astype(np.float32)
    got = run(str(target / "out.onnx"), x=x)
    np.testing.assert_allclose(got["calibrated_probabilities"], fitted("ts").predict_proba(logits_of(x)), atol=1e-5)
    (tmp_path / "secret").write_bytes(b"x" * 200)
    evil = onnx.load(source / "net.onnx", load_external_data=False)
    for tensor in evil.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../secret"
    (source / "evil.onnx").write_bytes(evil.SerializeToString())
    with pytest.raises(InputError, match="outside its own folder"):
        export_onnx(fitted("ts"), target / "evil.onnx", model=source / "evil.onnx")
    assert sorted(path.name for path in target.iterdir()) == ["out.onnx", "weights.bin"]


def test_what_cannot_be_exported_says_why(fitted):
    class NeuralClamping:
        n_features_in_ = K

    with pytest.raises(InputError, match="changes the network's input"):
        to_onnx(NeuralClamping())
    with pytest.raises(InputError, match="precision must be"):
        to_onnx(fitted("ts"), precision="float8")


def test_constants_agree_with_the_methods():
    from calibrant.calibrators import parameterized_temperature
    from calibrant.calibrators.parameterized_temperature import LOWEST_TEMPERATURE

    assert parameterized_temperature.LOWEST_TEMPERATURE == LOWEST_TEMPERATURE
    assert OPSET == 17


def test_external_data_of_another_model_are_not_overwritten(fitted, tmp_path):
    for name, scale in (("one", 1.0), ("other", 2.0)):
        model, _ = classifier()
        for tensor in model.graph.initializer:
            tensor.CopyFrom(numpy_helper.from_array(scale * numpy_helper.to_array(tensor), tensor.name))
        (tmp_path / name).mkdir()
        onnx.save(
            model, tmp_path / name / "net.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0
        )
    before = (tmp_path / "one" / "weights.bin").read_bytes()
    export_onnx(fitted("ts"), tmp_path / "one" / "a.onnx", model=tmp_path / "one" / "net.onnx")
    with pytest.raises(InputError, match=r"weights.bin exists and is another file"):
        export_onnx(fitted("ts"), tmp_path / "one" / "b.onnx", model=tmp_path / "other" / "net.onnx")
    assert (tmp_path / "one" / "weights.bin").read_bytes() == before
