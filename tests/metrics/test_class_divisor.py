"""The printed divisor of the class error and of its two parts (Frenkel & Goldberger 2021, eq. 2-5)."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant import InputError
from calibrant.metrics import classwise_ece, classwise_over_under


@pytest.mark.parametrize("norm", [1, 2])
def test_dividing_by_the_rows_of_the_class_is_the_printed_equation(norm):
    rng = np.random.default_rng(0)
    labels = rng.choice(4, 300, p=[0.7, 0.2, 0.1, 0.0])
    probabilities = rng.dirichlet(np.ones(4), 300)
    found = classwise_ece(probabilities, labels, norm=norm, divisor="n_j", n_bins=10)
    for j in range(3):
        index = np.ceil(probabilities[:, j] * 10).astype(int).clip(1) - 1
        total = 0.0
        for b in np.unique(index):
            rows = index == b
            gap = abs((labels[rows] == j).mean() - probabilities[rows, j].mean())
            total += rows.sum() / (labels == j).sum() * gap**norm
        assert found[j] == pytest.approx(total ** (1 / norm))
    assert np.isnan(found[3])
    mean = classwise_ece(probabilities, labels, norm=norm, divisor="n_j", n_bins=10, average="mean")
    assert mean == pytest.approx(found[:3].mean())
    with pytest.raises(InputError, match="divisor"):
        classwise_ece(probabilities, labels, divisor="all")


@pytest.mark.parametrize("divisor", ["n", "n_j"])
def test_over_and_under_add_up_to_the_class_error_of_either_divisor(divisor):
    rng = np.random.default_rng(1)
    labels = rng.choice(4, 300, p=[0.7, 0.2, 0.1, 0.0])
    probabilities = rng.dirichlet(np.ones(4), 300)
    parts = classwise_over_under(probabilities, labels, divisor=divisor)
    whole = classwise_ece(probabilities, labels, divisor=divisor)
    np.testing.assert_allclose(parts.over + parts.under, whole, atol=1e-12)
    assert np.isnan(parts.over[3]) == (divisor == "n_j")
    # Σ_b (n_jb/n_j)·(C_jb − A_jb) is what over exceeds under by
    rows = len(labels) if divisor == "n" else (labels == 0).sum()
    excess = (probabilities[:, 0] - (labels == 0)).sum() / rows
    assert parts.over[0] - parts.under[0] == pytest.approx(excess)
    with pytest.raises(InputError, match="divisor"):
        classwise_over_under(probabilities, labels, divisor="all")
