from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from calibrant.calibrators import registry

K = 5
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def make_data(seed: int = 0, n: int = 400, n_classes: int = K) -> tuple[np.ndarray, np.ndarray]:
    """Overconfident logits (n×K) and their labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    labels[:n_classes] = np.arange(n_classes)
    return 3 * (rng.normal(size=(n, n_classes)) + 1.5 * np.eye(n_classes)[labels]), labels


@pytest.fixture(scope="session")
def data():
    return make_data()


@pytest.fixture(scope="session")
def fitted(data):
    """Every method of the registry, fitted once."""
    cache: dict[str, object] = {}

    def get(name: str):
        if name not in cache:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                cache[name] = registry.get(name).fit(*data)
        return cache[name]

    return get


@pytest.fixture(scope="session")
def benchmark_script():
    """A script of benchmarks/ as a module."""

    def get(name: str):
        spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    return get


@pytest.fixture(scope="session")
def hard_logits():
    """Random, tiny, tied and extreme rows, float32 as a network gives them."""
    rng = np.random.default_rng(3)
    parts = [
        rng.normal(size=(200, K)) * 5,
        rng.normal(size=(50, K)) * 1e-3,
        rng.uniform(-1e4, 1e4, (200, K)),
        np.eye(K) * 1e4,
        -np.eye(K) * 1e4,
        np.zeros((1, K)),
        np.full((1, K), -1e4),
    ]
    return np.concatenate(parts).astype(np.float32)
