"""One map per method: numpy's fast paths, torch and ONNX give the same answer, and keep the same prediction."""

from __future__ import annotations

import numpy as np
import pytest

import calibrant as cal
from calibrant.calibrators.registry import names
from calibrant.core.errors import InputError

torch = pytest.importorskip("torch")
onnxruntime = pytest.importorskip("onnxruntime")

from calibrant.neural.calibrated_module import LearnedModule  # noqa: E402
from calibrant.shipping.onnx import to_onnx  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
torch.set_num_threads(1)
K = 5
MULTI = [*names(), "hb one_vs_rest", "iso one_vs_rest", "ts+shift", "auto", "pool"]
BINARY = [*names("binary"), "pool"]
_fitted: dict[tuple[str, str], object] = {}


def problem(n=300, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, K, n)
    return 2.5 * (rng.normal(size=(n, K)) + 1.3 * np.eye(K)[labels]), labels


def scores(n=300, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    return 3 * (rng.normal(size=n) + 1.5 * labels - 0.5), labels


def fitted(name, task="multiclass"):
    if (name, task) not in _fitted:
        short, _, mode = name.partition(" ")
        calibrator = cal.get(short, **({"mode": mode} if mode else {}))
        if short == "auto":
            calibrator.set_params(candidates=["ts", "vs+top"], cv=2)
        if short == "pool":
            calibrator.set_params(calibrators=["ts", "iso"])
        _fitted[name, task] = calibrator.fit(*(problem() if task == "multiclass" else scores()))
    return _fitted[name, task]


def hard_rows():
    """Ordinary rows, ties (also of −0.0 and +0.0), near-ties and rows of very different size."""
    rng = np.random.default_rng(7)
    zeros = np.zeros((4, K))
    zeros[1, 0] = zeros[2, 1:] = -0.0
    return np.concatenate(
        [
            problem(120, seed=3)[0],
            rng.integers(0, 3, size=(60, K)).astype(float),
            1 + 1e-7 * rng.integers(0, 3, size=(60, K)),
            rng.uniform(-500, 500, size=(40, K)),
            zeros,
        ]
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", MULTI)
def test_torch_runs_the_map_of_numpy(name, dtype):
    calibrator, rows = fitted(name), hard_rows().astype(dtype)
    expected = calibrator.predict_proba(rows)
    answer = LearnedModule(calibrator)(torch.from_numpy(rows))
    assert answer.dtype == torch.from_numpy(rows).dtype
    chances = answer.softmax(dim=1).numpy()
    np.testing.assert_allclose(chances, expected, atol=1e-9 if dtype == np.float64 else 2e-5)
    if calibrator.keeps_prediction:
        np.testing.assert_array_equal(answer.argmax(dim=1).numpy(), rows.argmax(axis=1))
        np.testing.assert_array_equal(calibrator.transform(rows).argmax(axis=1), rows.argmax(axis=1))


@pytest.mark.parametrize("name", MULTI)
def test_onnx_runs_the_map_of_numpy(name):
    calibrator, rows = fitted(name), hard_rows().astype(np.float32)
    chances, prediction = run(calibrator, rows)
    np.testing.assert_allclose(chances, calibrator.predict_proba(rows.astype(np.float64)), atol=1e-6)
    if calibrator.keeps_prediction:
        np.testing.assert_array_equal(prediction, rows.argmax(axis=1))
        np.testing.assert_array_equal(chances.argmax(axis=1), rows.argmax(axis=1))


@pytest.mark.parametrize("name", BINARY)
def test_one_score_per_row_in_torch_and_onnx(name):
    calibrator = fitted(name, "binary")
    given = np.concatenate([scores(200, seed=1)[0], [0.0, -0.0, 40.0, -40.0]]).astype(np.float32)
    expected = calibrator.predict_proba(given.astype(np.float64))
    chances, prediction = run(calibrator, given)
    np.testing.assert_allclose(chances, expected, atol=2e-6)
    np.testing.assert_array_equal(prediction, chances.argmax(axis=1))
    module = cal.CalibratedModule(torch.nn.Identity(), calibrator)
    for column in (torch.from_numpy(given), torch.from_numpy(given)[:, None]):
        np.testing.assert_allclose(module(column).numpy(), expected, atol=2e-5)
    with pytest.raises(InputError, match="fitted on one score per row"):
        module(torch.zeros(3, 2))


@pytest.mark.parametrize("shape", [["n"], ["n", 1]])
def test_one_score_per_row_is_calibrated_at_the_end_of_a_model(shape, tmp_path):
    from onnx import TensorProto, helper, save

    nodes = [helper.make_node("Neg", ["x"], ["risk"])]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "risk")]
    graph = helper.make_graph(nodes, "net", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    save(model, tmp_path / "net.onnx")
    calibrator = fitted("platt", "binary")
    cal.export_onnx(calibrator, tmp_path / "out.onnx", model=tmp_path / "net.onnx")
    given = scores(20, seed=2)[0].astype(np.float32)
    session = onnxruntime.InferenceSession(str(tmp_path / "out.onnx"))
    answer = session.run(["calibrated_probabilities"], {"x": -given.reshape([-1, *shape[1:]])})[0]
    np.testing.assert_allclose(answer, calibrator.predict_proba(given), atol=1e-6)


def run(calibrator, rows, precision="float64"):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(to_onnx(calibrator, precision=precision).SerializeToString(), options)
    _, chances, prediction = session.run(None, {"logits": rows})
    return chances, prediction


@pytest.mark.parametrize("confident", [0.21, 0.3, 0.45])
def test_crowded_rows_share_the_rest_alike(confident):
    """A predicted class below one half: others are capped, and what they lose goes to the rest, however small."""
    calibrator = cal.HistogramBinning(n_bins=1).fit(*problem())
    calibrator.values_ = np.full_like(calibrator.values_, confident)
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.uniform(-2000, 2000, (50, K)), rng.normal(size=(50, K))]).astype(np.float32)
    expected = calibrator.predict_proba(rows.astype(np.float64))
    np.testing.assert_allclose(expected.max(axis=1), confident, atol=1e-9)
    np.testing.assert_allclose(expected.sum(axis=1), 1, atol=1e-9)
    np.testing.assert_allclose(run(calibrator, rows)[0], expected, atol=1e-6)
    answer = LearnedModule(calibrator)(torch.from_numpy(rows.astype(np.float64))).softmax(dim=1).numpy()
    np.testing.assert_allclose(answer, expected, atol=1e-9)


class Odd(cal.Identity):
    """A map that ONNX cannot express here."""

    def _map(self, xp, logits, learned):
        return xp.abs(logits) + xp.bitwise_left_shift(logits, 1)


def test_a_function_without_an_onnx_form_is_named():
    with pytest.raises(InputError, match=r"xp\.bitwise_left_shift, which has no ONNX form"):
        to_onnx(Odd().fit(*problem()))


def rounded_problem(decimals, dtype, seed, *, binary):
    """Rows of three probabilities with few decimals, as tables print them: many rows, few distinct confidences."""
    rng = np.random.default_rng(seed)
    chances = np.maximum(rng.dirichlet(np.full(3, 0.35), 1500), 10.0**-decimals).round(decimals)
    labels = (chances.cumsum(axis=1) < chances.sum(axis=1, keepdims=True) * rng.random((len(chances), 1))).sum(axis=1)
    logits = np.log(chances)
    if binary:
        logits, labels = logits[:, 1] - logits[:, 0], (labels == 1).astype(int)
    return logits.astype(dtype), labels


def with_steps(task: str) -> list[tuple[str, bool]]:
    """The methods whose map has steps, in each of their modes."""
    found = []
    for name in names(task):
        if (made := cal.get(name)).has_steps:
            modes = ["", " one_vs_rest"] if task == "multiclass" and "mode" in made.get_params() else [""]
            found += [(name + mode, task == "binary") for mode in modes]
    return found


@pytest.mark.parametrize("fit_dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("name", "binary"), [*with_steps("multiclass"), *with_steps("binary"), ("iso+top", False)])
@pytest.mark.parametrize("decimals", [1, 2])
def test_all_runtimes_choose_the_same_step_on_few_distinct_values(name, binary, fit_dtype, decimals):
    short, _, mode = name.partition(" ")
    calibrator = cal.get(short, **({"mode": mode} if mode else {}))
    calibrator.fit(*rounded_problem(decimals, fit_dtype, 0, binary=binary))
    for seed in (0, 1):  # the fit rows, and new rows of the same values
        exact = rounded_problem(decimals, np.float64, seed, binary=binary)[0]
        single = exact.astype(np.float32)
        answer = LearnedModule(calibrator)(torch.from_numpy(single))
        answers = {
            "numpy float32": calibrator.predict_proba(single),
            "torch": (torch.stack([0 * answer, answer], 1) if binary else answer).softmax(dim=1).numpy(),
        }
        for precision in ("float32", "float64"):
            answers[f"onnx {precision}"], _ = run(calibrator, single, precision)
        expected = calibrator.predict_proba(exact)
        for runtime, found in answers.items():
            np.testing.assert_allclose(found, expected, atol=2e-4, err_msg=runtime)


@pytest.mark.parametrize("name", ["sum", "max", "min", "mean"])
def test_a_map_over_all_rows_is_not_exported(name):
    class Pooled(cal.Identity):
        def _map(self, xp, logits, learned):
            return logits - getattr(xp, name)(logits)

    with pytest.raises(InputError, match=rf"takes xp\.{name} over all axes, but rows are calibrated one by one"):
        to_onnx(Pooled().fit(*problem()))
