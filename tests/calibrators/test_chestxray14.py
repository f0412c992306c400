"""Table 1 of the weight-scaling paper from the logits its authors published (ECE with 10 bins, in %)."""

from __future__ import annotations

import numpy as np
import pytest

import calibrant as cal

PUBLISHED = [
    ("resnet50", cal.Identity(), 2.14),
    ("resnet50", cal.WeightScaling("least_squares", n_bins=13), 2.13),
    ("resnet50", cal.BinTemperatureScaling("gap", n_bins=11, grid=np.arange(1, 101) / 10), 1.81),
    ("resnet50", cal.ConfidenceWeightScaling(n_bins=11), 1.67),
    ("densenet121", cal.Identity(), 4.18),
    ("densenet121", cal.WeightScaling("least_squares", n_bins=13), 3.65),
    ("densenet121", cal.BinTemperatureScaling("gap", n_bins=12, grid=np.arange(1, 101) / 10), 3.20),
    ("densenet121", cal.ConfidenceWeightScaling(n_bins=12), 2.75),
]


@pytest.mark.parametrize(
    ("network", "calibrator", "published"), PUBLISHED, ids=[f"{n}-{type(c).__name__}" for n, c, _ in PUBLISHED]
)
def test_published_ece(shared_data, network, calibrator, published):
    path = shared_data / "chestxray14" / f"{network}.npz"
    if not path.is_file():
        pytest.skip(f"no published logits at {path}")
    with np.load(path) as file:
        fitted = calibrator.fit(file["val_logits"], file["val_labels"].astype(np.int64))
        probabilities = fitted.predict_proba(file["test_logits"])
        ece = cal.metrics.ece(probabilities, file["test_labels"].astype(np.int64), n_bins=10)
    assert 100 * ece == pytest.approx(published, abs=0.02)
