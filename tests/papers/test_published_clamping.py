"""The published clamping procedure of the study against a literal version of the paper's algorithm 1."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

PAPERS = Path(__file__).resolve().parents[2] / "papers"
sys.path.insert(0, str(PAPERS / "neural_clamping"))

from batched import Fit, fit_many  # noqa: E402

EPOCHS, BATCH, RATE = 6, 50, 0.05


def literal_clamping(net, inputs, labels, gamma, penalty, delta, seed):
    """Algorithm 1 of Tang, Chen, Ho (2022) line by line, the loss of eq. 9 divided by n."""
    n, temperature = len(labels), torch.tensor(1.0)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        for batch in torch.randperm(n, generator=generator).split(BATCH):
            delta, temperature = delta.detach().requires_grad_(), temperature.detach().requires_grad_()
            p = torch.softmax(net(inputs[batch] + delta) / temperature, dim=1)[range(len(batch)), labels[batch]]
            loss = (-((1 - p) ** gamma) * p.log()).mean() + penalty / n * (delta**2).sum()
            by_delta, by_temperature = torch.autograd.grad(loss, [delta, temperature])
            delta, temperature = delta - RATE * by_delta, temperature - RATE * by_temperature
    return delta.detach(), float(temperature.detach())


@pytest.mark.parametrize(("gamma", "penalty"), [(0.0, 0.001), (0.5, 10.0), (2.0, 300.0)])
def test_the_published_procedure_is_algorithm_1(gamma, penalty):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(144, 5))
    inputs = torch.randn(230, 3, 8, 8) * torch.tensor([1.0, 3.0, 0.5])[:, None, None]
    labels = (4 * net(inputs).detach() + torch.randn(230, 5)).argmax(1)
    start, rows = 0.1 * torch.randn(3, 8, 8), torch.arange(230)
    delta, temperature = literal_clamping(net, inputs, labels, gamma, penalty, start, seed=3)
    assert abs(temperature - 1) > 0.01  # T moves
    fits = [Fit(gamma, penalty, start, 1.0, rows, seed, RATE, published=True) for seed in (1, 3)]
    # a fit of the library's procedure in the same call changes nothing
    fits.insert(1, Fit(gamma, penalty, start, 1.0, rows, 3, RATE))
    found = fit_many(net, inputs, labels, fits, epochs=EPOCHS, batch_size=BATCH)
    torch.testing.assert_close(found[2].delta, delta, atol=1e-5, rtol=1e-5)
    assert found[2].temperature == pytest.approx(temperature, rel=1e-5)
    assert found[1].temperature != pytest.approx(temperature, rel=1e-3)
