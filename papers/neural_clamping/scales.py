"""Clamping where features differ in scale: four problems, features on scales from 1e-3 to 1e4, small networks.

Each problem is fitted by a small network on standardised features; the network then takes the features on their own
scales. Accuracy before and after clamping is measured on test rows that neither training nor clamping has seen.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from torch import Tensor, nn

from calibrant import FitWarning, NeuralClamping

Problem = tuple[np.ndarray, np.ndarray]
STARTS = ("data-driven", "normal", "zeros")
SCALES = (1e-3, 1e4)


class Standardised(nn.Module):
    """A network behind the standardisation of its inputs."""

    def __init__(self, inputs: Tensor, network: nn.Module) -> None:
        super().__init__()
        self.register_buffer("mean", inputs.mean(dim=0))
        spread = inputs.std(dim=0)
        self.register_buffer("spread", torch.where(spread > 0, spread, torch.ones_like(spread)))
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (n, K)."""
        return self.network((inputs - self.mean) / self.spread)


def breast_cancer() -> Problem:
    """30 features as they are measured, on scales from 0.003 to 600."""
    return load_breast_cancer(return_X_y=True)


def four_features() -> Problem:
    """Four features and noisy labels; one feature on the scale 1000."""
    inputs, labels = make_classification(
        4000, 4, n_informative=4, n_redundant=0, n_classes=3, n_clusters_per_class=1, flip_y=0.2, random_state=0
    )
    return inputs * np.array([1000.0, 1.0, 1.0, 1.0]), labels


def digits_table() -> Problem:
    """Handwritten digits as 64 features, each on its own scale between 1e-3 and 1e4."""
    inputs, labels = load_digits(return_X_y=True)
    return inputs * np.geomspace(*SCALES, inputs.shape[1]), labels


def digits_image() -> Problem:
    """The digits as images of three channels on the scales 1e-3, 1 and 1e4, with noise of their own."""
    inputs, labels = load_digits(return_X_y=True)
    noise = np.random.default_rng(0).normal(0, 3, size=(len(inputs), 3, 8, 8))
    scales = np.array([SCALES[0], 1.0, SCALES[1]])[:, None, None]
    return (inputs.reshape(-1, 1, 8, 8) + noise) * scales, labels


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "breast cancer, table": breast_cancer,
    "four features, table": four_features,
    "digits, table": digits_table,
    "digits, three-channel image": digits_image,
}


def train(inputs: Tensor, labels: Tensor, seed: int) -> nn.Module:
    """A small over-trained network on the standardised inputs."""
    torch.manual_seed(seed)
    n_in, n_classes = inputs[0].numel(), int(labels.max()) + 1
    network = nn.Sequential(nn.Flatten(), nn.Linear(n_in, 32), nn.ReLU(), nn.Linear(32, n_classes))
    model = Standardised(inputs, network)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


def clamp(problem: Problem, start: str, seed: int, epochs: int = 40) -> dict[str, Any]:
    """Train on a third, clamp on a third, measure on a third."""
    order = np.random.default_rng(seed).permutation(len(problem[1]))
    inputs = torch.from_numpy(problem[0][order].astype(np.float32))
    labels = torch.from_numpy(problem[1][order].astype(np.int64))
    parts = np.array_split(np.arange(len(order)), 3)
    model = train(inputs[parts[0]], labels[parts[0]], seed)
    clamping = NeuralClamping(init=start, seed=seed, epochs=epochs, gamma_pool=(0.0, 0.2), penalty_pool=(0.001, 10.0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        clamped = clamping.fit(model, [(inputs[parts[1]], labels[parts[1]])])
    test, truth = inputs[parts[2]], labels[parts[2]]
    with torch.no_grad():
        before, after = (100 * float((net(test).argmax(1) == truth).double().mean()) for net in (model, clamped))
    return {
        "start": start,
        "seed": seed,
        "before": round(before, 2),
        "after": round(after, 2),
        "temperature": round(clamping.temperature_, 2),
        "delta": bool(clamping.delta_.any()),
        "refused": any("is refused" in str(one.message) for one in caught),
    }


def scales_study(seeds: int = 2) -> dict[str, Any]:
    """Every problem from every start."""
    torch.set_num_threads(1)
    return {
        name: [clamp(make(), start, seed) for start in STARTS for seed in range(seeds)]
        for name, make in PROBLEMS.items()
    }
