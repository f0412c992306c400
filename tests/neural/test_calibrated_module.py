"""A calibrated module answers as the numpy path does, and exports, compiles, saves and loads like any module."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import calibrant as cal  # noqa: E402
from calibrant.calibrators.registry import names  # noqa: E402

torch.set_num_threads(1)
K, N = 6, 600
METHODS = [*names(), "iso one_vs_rest", "hb one_vs_rest"]


def problem(seed: int, n: int = N) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, K, n)
    logits = 2.5 * (rng.normal(size=(n, K)) + 1.3 * np.eye(K)[labels] + 0.2 * np.arange(K))
    return logits.astype(np.float32), labels


def fitted(method: str):
    logits, labels = problem(0)
    name, _, mode = method.partition(" ")
    parameters = {"mode": mode} if mode else {}
    return cal.get(name, **parameters).fit(logits, labels)


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
@pytest.mark.parametrize("method", METHODS)
def test_module_equals_the_numpy_path(method: str) -> None:
    calibrator = fitted(method)
    module = cal.CalibratedModule(nn.Identity(), calibrator)
    samples = [problem(0)[0], problem(1)[0], 20 * problem(2)[0]]
    if method == "hb one_vs_rest":
        # fit rows lie exactly on its edges, where the last bit of an exponential decides, in numpy too
        samples = samples[1:]
    for logits in samples:
        expected = calibrator.predict_proba(logits)
        answer = module(torch.from_numpy(logits)).numpy()
        np.testing.assert_allclose(answer, expected, atol=1e-5)
        assert answer.dtype == np.float32
        if calibrator.keeps_prediction:
            np.testing.assert_array_equal(answer.argmax(1), logits.argmax(1))


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
@pytest.mark.parametrize("method", METHODS)
def test_other_precisions_of_the_model_do_not_round_the_calibration(method: str) -> None:
    calibrator = fitted(method)
    module = cal.CalibratedModule(nn.Identity(), calibrator)
    logits = torch.from_numpy(problem(1, 50)[0]).half()
    expected = calibrator.predict_proba(logits.float().numpy())
    np.testing.assert_allclose(copy.deepcopy(module).half()(logits).numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(module)).float()(logits).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("method", ["ts", "dir", "cws", "ts+top", "pts", "iso", "conf+shape+keep"])
def test_module_exports_and_saves(method: str, tmp_path) -> None:
    torch.manual_seed(0)
    module = cal.CalibratedModule(nn.Linear(4, K), fitted(method), output="log_probabilities").eval()
    inputs = torch.randn(16, 4)
    expected = module(inputs)
    batch = torch.export.Dim("batch", min=2)
    exported = torch.export.export(module, (inputs,), dynamic_shapes=({0: batch},)).module()
    torch.testing.assert_close(exported(inputs[:7]), expected[:7])
    other = cal.CalibratedModule(nn.Linear(4, K), fitted(method), output="log_probabilities").eval()
    assert not torch.equal(other(inputs), expected)
    path = tmp_path / "state.pt"
    torch.save(module.state_dict(), path)
    other.load_state_dict(torch.load(path))
    torch.testing.assert_close(other(inputs), expected)


def test_module_compiles() -> None:
    module = cal.CalibratedModule(nn.Identity(), fitted("ts+top"))
    logits = torch.from_numpy(problem(1, 32)[0])
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(logits), module(logits))


def test_autocast_does_not_lower_the_calibration() -> None:
    calibrator = fitted("ms")
    module = cal.CalibratedModule(nn.Identity(), calibrator)
    logits = problem(1)[0]
    with torch.autocast("cpu", torch.bfloat16):
        answer = module(torch.from_numpy(logits))
    np.testing.assert_allclose(answer.numpy(), calibrator.predict_proba(logits), atol=1e-5)


class Pair(nn.Module):
    def forward(self, inputs):
        return inputs, inputs


def test_errors_say_what_the_model_returned() -> None:
    calibrator = fitted("ts")
    with pytest.raises(cal.InputError, match="returned a tuple, but a tensor of logits"):
        cal.CalibratedModule(Pair(), calibrator)(torch.zeros(2, K))
    with pytest.raises(cal.InputError, match=rf"shape \(2, 3\), but the calibrator was fitted on {K} classes"):
        cal.CalibratedModule(nn.Identity(), calibrator)(torch.zeros(2, 3))
    with pytest.raises(cal.InputError, match="output must be one of"):
        cal.CalibratedModule(nn.Identity(), calibrator, output="scores")
