"""Neural Clamping: what it equals on a linear net, what it leaves alone, what it refuses."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import calibrant as cal  # noqa: E402
from calibrant.core import progress  # noqa: E402
from calibrant.neural.losses import focal  # noqa: E402
from calibrant.neural.losses.terms import entropy  # noqa: E402
from calibrant.neural.neural_clamping import (  # noqa: E402  # noqa: E402
    best_focal_temperature,
    best_temperature,
    entropy_gradient,
    feasible_box,
    greatest_feasible_step,
    input_units,
)

torch.set_num_threads(1)


def linear_problem(n: int = 300, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4, dtype=torch.float64))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(2 * torch.randn(parameter.shape, generator=generator))
    inputs = torch.rand(n, 3, 2, 2, generator=generator, dtype=torch.float64)
    noise = 3 * torch.randn(n, 4, generator=generator, dtype=torch.float64)
    return model, inputs, (model(inputs).detach() + noise).argmax(1)


def batches(inputs, labels, size: int = 64):
    return list(zip(inputs.split(size), labels.split(size), strict=True))


def test_output_side_alone_is_temperature_scaling() -> None:
    model, inputs, labels = linear_problem()
    clamping = cal.NeuralClamping(0.0, 0.0, "zeros", train_input=False, epochs=60, learning_rate=0.1)
    clamped = clamping.fit(model, batches(inputs, labels))
    logits = model(inputs).detach()
    expected = cal.TemperatureScaling().fit(logits.numpy(), labels.numpy()).temperature_
    assert best_temperature(logits, labels) == pytest.approx(expected, rel=1e-6)
    assert clamping.temperature_ == pytest.approx(expected, rel=1e-2)
    torch.testing.assert_close(clamped(inputs), logits / clamping.temperature_)


def test_on_a_linear_net_delta_is_a_logit_bias() -> None:
    model, inputs, labels = linear_problem()
    clamping = cal.NeuralClamping(0.0, 0.01, "normal", epochs=20, learning_rate=0.05)
    clamped = clamping.fit(model, batches(inputs, labels))
    bias = (model[1].weight @ clamping.delta_.flatten()).detach()
    torch.testing.assert_close(clamped(inputs), (model(inputs) + bias) / clamping.temperature_)
    torch.testing.assert_close(clamped.input_only()(inputs), model(inputs) + bias)
    torch.testing.assert_close(clamped.output_only()(inputs), model(inputs) / clamping.temperature_)


def test_joint_fit_lowers_the_loss_and_is_seeded() -> None:
    model, inputs, labels = linear_problem()
    first = cal.NeuralClamping(0.0, 0.001, epochs=30, learning_rate=0.05)
    second = cal.NeuralClamping(0.0, 0.001, epochs=30, learning_rate=0.05)
    torch.testing.assert_close(
        first.fit(model, batches(inputs, labels)).delta, second.fit(model, batches(inputs, labels)).delta
    )
    assert first.loss_trace_[-1] < first.loss_trace_[0]
    logits = model(inputs).detach()
    plain = nn.functional.cross_entropy(logits / best_temperature(logits, labels), labels)
    assert nn.functional.cross_entropy(first.module_(inputs), labels) < plain


def test_the_model_is_left_as_it_was() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    model.train()
    model[2].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flags = [module.training for module in model.modules()]
    _, inputs, labels = linear_problem()
    clamped = cal.NeuralClamping(0.5, 0.1, epochs=2).fit(model, batches(inputs.float(), labels))
    assert [module.training for module in model.modules()] == flags
    assert clamped.model is model
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name])
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_pool_is_scored_on_rows_held_out_and_progress_is_told() -> None:
    model, inputs, labels = linear_problem()
    stages = []
    clamping = cal.NeuralClamping(epochs=3, gamma_pool=(0.0, 1.0), penalty_pool=(0.1, 1.0))
    with progress.listen(lambda stage, done, total, note: stages.append((stage, done, total))):
        clamping.fit(model, batches(inputs, labels))
    pairs = {(gamma, penalty) for gamma in (0, 1) for penalty in (0.1, 1, np.inf)}
    assert {(score.gamma, score.penalty) for score in clamping.scores_} == pairs
    best = min((score for score in clamping.scores_ if not score.loses_accuracy), key=lambda score: score.ece)
    assert (clamping.gamma_, clamping.penalty_) == (best.gamma, best.penalty)
    assert ("choosing gamma and penalty", 6, 6) in stages
    cal.NeuralClamping(0.0, 0.1, epochs=3).fit(model, batches(inputs, labels))
    with progress.listen(lambda stage, done, total, note: stages.append((stage, done, total))):
        cal.NeuralClamping(0.0, 0.1, epochs=3).fit(model, batches(inputs, labels))
    assert ("fitting", 3, 3) in stages


@given(st.integers(0, 10**6), st.floats(0.3, 4))
def test_entropy_gradient_in_the_logits(seed: int, temperature: float) -> None:
    logits = 2 * torch.randn(1, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    log_p = (logits / temperature).log_softmax(1)
    expected = -log_p.exp() * (log_p + entropy(log_p)[:, None]) / temperature
    found = entropy_gradient(nn.Identity(), logits, temperature)
    torch.testing.assert_close(found, expected[0], atol=1e-6, rtol=1e-5)


@given(st.integers(0, 10**6))
def test_the_theorem_gives_the_largest_feasible_step(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(7, 3, generator=generator, dtype=torch.float64)
    low, high = torch.full((3,), -0.1, dtype=torch.float64), torch.full((3,), 1.2, dtype=torch.float64)
    gradient = torch.randn(3, generator=generator, dtype=torch.float64)
    delta = greatest_feasible_step(gradient, inputs, low, high)
    moved = inputs + delta
    assert bool((moved >= low - 1e-12).all())
    assert bool((moved <= high + 1e-12).all())
    room = torch.where(gradient < 0, inputs.amin(0) - low, high - inputs.amax(0))
    assert float(delta @ gradient) == pytest.approx(float((gradient.abs() * room).sum()))
    for _ in range(20):
        share = torch.rand(3, generator=generator, dtype=torch.float64)
        other = (low - inputs.amin(0)) * (1 - share) + (high - inputs.amax(0)) * share
        assert float(other @ gradient) <= float(delta @ gradient) + 1e-12


def test_box_is_the_range_of_each_channel_unless_given() -> None:
    inputs = torch.tensor([[[[0.0, 2.0]], [[5.0, 6.0]]]])
    low, high = feasible_box(inputs, None)
    assert low[:, 0, 0].tolist() == [0.0, 5.0]
    assert high[:, 0, 0].tolist() == [2.0, 6.0]
    with pytest.raises(cal.InputError, match="outside the bounds given"):
        feasible_box(inputs, (0.0, 1.0))


class Probabilities(nn.Module):
    def forward(self, inputs):
        return inputs.flatten(1)[:, :4].softmax(1)


class Pair(nn.Module):
    def forward(self, inputs):
        return inputs.flatten(1)[:, :4], inputs


class ElsewhereInside(nn.Module):
    def forward(self, inputs):
        return inputs.flatten(1)[:, :4] + torch.zeros(4, device="meta")


def one_nan(inputs):
    spoilt = inputs.clone()
    spoilt[70, 0, 0, 0] = float("nan")
    return spoilt


@pytest.mark.parametrize("use", ["fit", "collect"])
def test_bad_loaders_and_models_are_refused(use: str) -> None:
    model, inputs, labels = linear_problem(100)

    def run(net, loader, **more):
        if use == "fit":
            return cal.NeuralClamping(0.0, 0.1, epochs=1, **more).fit(net, loader)
        return cal.collect_logits(net, loader, **more)

    with pytest.raises(cal.InputError, match=r"inputs of batch 1 hold NaN or Inf \(first in row 6\)"):
        run(model, batches(one_nan(inputs), labels))
    with pytest.raises(cal.InputError, match="returned probabilities"):
        run(Probabilities(), batches(inputs, labels))
    with pytest.raises(cal.InputError, match="returned a tuple, but a tensor of logits is needed"):
        run(Pair(), batches(inputs, labels))
    with pytest.raises(cal.InputError, match="the model is on cpu, but device=meta was asked for"):
        run(model, batches(inputs, labels), device="meta")
    with pytest.raises(cal.InputError, match="the model is on the device meta"):
        run(nn.Linear(2, 2, device="meta"), batches(inputs, labels))
    with pytest.raises(cal.InputError, match="device=nowhere is not a device of this machine"):
        run(model, batches(inputs, labels), device="nowhere")
    with pytest.raises(cal.InputError, match="batch 0 of the loader is on the device meta"):
        run(model, [(inputs.to("meta"), labels)])
    with pytest.raises(cal.InputError, match=r"does not run on torch\.float32 inputs of shape \(100, 3, 2, 2\) on cpu"):
        run(model, [(inputs.float(), labels)])
    with pytest.raises(cal.InputError, match="1 batches with 0 rows"):
        run(model, [(inputs[:0], labels[:0])])
    with pytest.raises(cal.InputError, match="the loader is a NoneType"):
        run(model, None)
    with pytest.raises(cal.InputError, match=r"rows of shape \(4,\) and \(3,\): all batches must agree"):
        run(nn.Identity(), [(torch.rand(3, 4), labels[:3]), (torch.rand(3, 3), labels[:3])])
    with pytest.raises(cal.InputError, match="labels go down to -1"):
        run(model, [(inputs, labels - 1 - labels.min())])
    with pytest.raises(cal.InputError, match="lie on 2 devices"):
        run(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta")), batches(inputs, labels))
    with pytest.raises(cal.InputError, match=r"shape \(64, 1\) for 64 rows"):
        run(nn.Sequential(nn.Flatten(), nn.Linear(12, 1, dtype=torch.float64)), batches(inputs, labels))
    with pytest.raises(cal.InputError, match="loader has 0 batches"):
        run(model, [])
    with pytest.raises(cal.InputError, match=r"labels of batch 0 are torch\.float64"):
        run(model, [(inputs, labels.double())])
    with pytest.raises(cal.InputError, match="labels reach 9, but"):
        run(model, [(inputs, torch.full_like(labels, 9))])


def test_one_class_cannot_calibrate() -> None:
    model, inputs, labels = linear_problem(50)
    with pytest.raises(cal.InputError, match="all 50 labels are class 2: a calibration set needs at least 2 classes"):
        cal.NeuralClamping(0.0, 0.1).fit(model, batches(inputs, torch.full_like(labels, 2)))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"init": "ones"}, "init must be one of"),
        ({"gamma": -1.0}, "gamma must be 0 or more"),
        ({"gamma": float("inf")}, "gamma must be 0 or more and finite"),
        ({"gamma": None}, "gamma must be 0 or more and finite"),
        ({"gamma_pool": ()}, "gamma_pool is empty"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"epochs": 2.5}, r"epochs must be a whole number of at least 1, got 2\.5"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"bounds": 5}, "bounds must be a pair"),
        ({"penalty": "best"}, "penalty must be 0 or more, or 'auto', got 'best'"),
        ({"temperature_init": 0.0}, "temperature_init must be"),
        ({"folds": 0}, "folds must be a whole number of at least 1"),
    ],
)
def test_bad_parameters_are_refused(parameters, message: str) -> None:
    model, inputs, labels = linear_problem(50)
    with pytest.raises(cal.InputError, match=message):
        cal.NeuralClamping(**parameters).fit(model, batches(inputs, labels))


def test_a_descent_that_diverges_is_told_and_leaves_no_nan() -> None:
    model, inputs, labels = linear_problem(50)
    clamping = cal.NeuralClamping(0.0, 0.1, learning_rate=1e8, epochs=3)
    with pytest.warns(cal.FitWarning, match=r"diverged in epoch \d at learning_rate 1e\+08: δ is refused"):
        clamped = clamping.fit(model, batches(inputs, labels))
    assert not clamping.delta_.any()
    expected = best_temperature(model(inputs).detach(), labels)
    assert clamping.temperature_ == pytest.approx(expected)
    torch.testing.assert_close(clamped(inputs), model(inputs) / expected)


def test_tabular_inputs_have_one_range_per_feature() -> None:
    inputs = torch.tensor([[0.0, 1000.0], [2.0, -1000.0]])
    low, high = feasible_box(inputs, None)
    assert low.tolist() == [0.0, -1000.0]
    assert high.tolist() == [2.0, 1000.0]
    assert input_units(inputs).tolist() == [1.0, 1000.0]


def scaled_problem(seed: int):
    """A linear network on four features, one of them on the scale 1000 and one on 0.001."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.tensor([1000.0, 1.0, 1.0, 0.001])
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight.copy_(3 * torch.randn(3, 4, generator=generator) / scales)
        model.bias.zero_()
    inputs = scales * torch.randn(1600, 4, generator=generator)
    labels = (model(inputs).detach() + 4 * torch.randn(1600, 3, generator=generator)).argmax(1)
    return model, inputs, labels


@pytest.mark.parametrize("init", ["data-driven", "normal", "zeros"])
@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
def test_features_of_very_different_scale_cost_no_accuracy(init: str) -> None:
    model, inputs, labels = scaled_problem(0)
    clamping = cal.NeuralClamping(gamma_pool=(0.0, 0.5), penalty_pool=(0.001, 10.0), init=init, epochs=20)
    clamped = clamping.fit(model, batches(inputs[:800], labels[:800], 400))
    before, after = (float((net(inputs[800:]).argmax(1) == labels[800:]).double().mean()) for net in (model, clamped))
    assert after > before - 0.01
    assert 0.2 < clamping.temperature_ < 5


def test_a_perturbation_that_loses_accuracy_is_refused() -> None:
    model, inputs, labels = scaled_problem(1)
    clamping = cal.NeuralClamping(0.0, 0.0, "normal", init_std=2.0, epochs=1, learning_rate=1e-9)
    with pytest.warns(cal.FitWarning, match=r"falls from \d\d\.\d\d% to \d\d\.\d\d%: δ is refused and T alone"):
        clamping.fit(model, batches(inputs, labels, 400))
    assert not clamping.delta_.any()
    assert clamping.penalty_ == np.inf


def printed_procedure(model, inputs, labels, *, gamma, penalty, epochs, seed=0):
    """δ ~ N(0, 0.01), T = 1, SGD with momentum on the mean focal loss plus λ‖δ‖²/n, γ and λ given; no guard."""
    generator = torch.Generator().manual_seed(seed)
    delta = (0.1 * torch.randn(inputs.shape[1:], generator=generator).to(inputs)).requires_grad_()
    log_temperature = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.SGD([delta, log_temperature], lr=0.005, momentum=0.9)
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(labels), generator=order).split(128):
            loss = focal(model(inputs[rows] + delta) / log_temperature.exp(), labels[rows], gamma=gamma)
            optimizer.zero_grad()
            (loss + penalty / len(labels) * delta.square().sum()).backward(inputs=[delta, log_temperature])
            optimizer.step()
    return delta.detach(), float(log_temperature.detach().exp())


PRINTED = {"init": "normal", "temperature_init": 1.0, "accuracy_guard": False, "folds": 1, "learning_rate": 0.005}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shape", [(12,), (3, 2, 2)])
def test_without_a_guard_the_published_procedure_runs(shape) -> None:
    """On standardised inputs, a table or images, whose units are 1; a step too long for comfort loses accuracy."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(2 * torch.randn(parameter.shape, generator=generator))
    inputs = torch.randn(400, *shape, generator=generator)
    axes = [0, *range(2, inputs.ndim)]
    inputs = inputs / inputs.std(dim=axes, correction=0, keepdim=True)
    labels = (model(inputs).detach() + 3 * torch.randn(400, 4, generator=generator)).argmax(1)
    pool = [(gamma, penalty) for penalty in (0.001, 10.0) for gamma in (0.0, 0.5)]
    settings = {"epochs": 6, "patience": 6, "batch_size": 128, **PRINTED}
    clamping = cal.NeuralClamping(gamma_pool=(0.0, 0.5), penalty_pool=(0.001, 10.0), **settings)
    clamping.fit(model, [(inputs, labels)])
    expected = {
        pair: printed_procedure(model, inputs, labels, gamma=pair[0], penalty=pair[1], epochs=6) for pair in pool
    }
    errors = {
        pair: cal.metrics.ece((model(inputs + delta) / t).detach().numpy(), labels.numpy(), from_logits=True)
        for pair, (delta, t) in expected.items()
    }
    assert [(one.gamma, one.penalty) for one in clamping.scores_] == pool
    np.testing.assert_allclose([one.ece for one in clamping.scores_], list(errors.values()), atol=2e-4)
    chosen = min(errors, key=errors.__getitem__)
    assert (clamping.gamma_, clamping.penalty_) == chosen
    torch.testing.assert_close(clamping.delta_, expected[chosen][0], atol=1e-4, rtol=1e-4)
    assert clamping.temperature_ == pytest.approx(expected[chosen][1], rel=1e-4)


@pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_guard_keeps_accuracy_that_is_lost_without_it(seed: int) -> None:
    model, inputs, labels = scaled_problem(seed)
    accuracy = {}
    for guard in (True, False):
        clamping = cal.NeuralClamping(
            0.0, 0.0, "normal", init_std=2.0, epochs=1, learning_rate=1e-9, accuracy_guard=guard
        )
        clamped = clamping.fit(model, batches(inputs, labels, 400))
        assert bool(clamping.delta_.any()) is not guard
        accuracy[guard] = float((clamped(inputs).argmax(1) == labels).double().mean())
    before = float((model(inputs).argmax(1) == labels).double().mean())
    assert accuracy[True] >= before - 0.01
    assert accuracy[False] < before - 0.01


def test_a_start_without_room_is_told() -> None:
    """A table fills its own range, feature by feature, so Theorem 1 leaves δ at 0; wider bounds give it room."""
    model, inputs, labels = scaled_problem(1)
    settings = {"epochs": 1, "learning_rate": 1e-9, "accuracy_guard": False}
    with pytest.warns(cal.FitWarning, match=r"data-driven start is 0.* wider bounds, or init='normal'"):
        cal.NeuralClamping(0.0, 0.1, **settings).fit(model, batches(inputs, labels))
    reach = inputs.abs().amax(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clamped = cal.NeuralClamping(0.0, 0.1, bounds=(-2 * reach, 2 * reach), **settings)
        delta = clamped.fit(model, batches(inputs, labels)).delta
    torch.testing.assert_close(delta.abs(), 2 * reach - torch.where(delta < 0, -inputs.amin(0), inputs.amax(0)))


def test_the_penalty_is_that_of_a_sum_of_losses() -> None:
    """Twice the rows with twice λ have the same optimum: eq. 9 is a sum."""
    model, inputs, labels = linear_problem(200)
    settings = {"init": "zeros", "epochs": 40, "learning_rate": 0.02, "patience": 40}
    once = cal.NeuralClamping(0.0, 20.0, batch_size=200, **settings).fit(model, [(inputs, labels)])
    twice = [(torch.cat([inputs, inputs]), torch.cat([labels, labels]))]
    again = cal.NeuralClamping(0.0, 40.0, batch_size=400, **settings).fit(model, twice)
    torch.testing.assert_close(once.delta, again.delta)
    assert bool(once.delta.any())


def test_focal_temperature_is_the_minimiser() -> None:
    model, inputs, labels = linear_problem()
    logits = model(inputs).detach()
    for gamma in (0.0, 0.5, 2.0):
        found = best_focal_temperature(logits, labels, gamma)
        grid = torch.linspace(0.8, 1.25, 451, dtype=torch.float64) * found
        losses = [float(focal(logits / value, labels, gamma=gamma)) for value in grid]
        assert grid[int(np.argmin(losses))] == pytest.approx(found, rel=2e-3)


def test_fit_needs_no_gradients_from_its_caller_and_attach_needs_a_fit() -> None:
    model, inputs, labels = linear_problem(50)
    clamping = cal.NeuralClamping(0.0, 0.1, epochs=1)
    with pytest.raises(NotFittedError, match="call fit"):
        clamping.attach(model)
    with torch.no_grad():
        inside = clamping.fit(model, batches(inputs, labels))
    outside = cal.NeuralClamping(0.0, 0.1, epochs=1).fit(model, batches(inputs, labels))
    assert torch.equal(inside.delta, outside.delta)


def test_collected_logits_are_predictions() -> None:
    model, inputs, labels = linear_problem(100)
    model.train()
    seen = []
    with progress.listen(lambda stage, done, total, note: seen.append((done, total))):
        collected = cal.collect_logits(model, batches(inputs, labels), class_names=["a", "b", "c", "d"])
    assert isinstance(collected, cal.Predictions)
    assert model.training
    assert seen == [(1, 2), (2, 2)]
    np.testing.assert_allclose(collected.logits, model(inputs).detach().numpy())
    np.testing.assert_array_equal(collected.labels, labels.numpy())
    half = cal.collect_logits(nn.Flatten(), [(inputs.to(torch.bfloat16), labels)])
    assert half.logits.dtype == np.float32
