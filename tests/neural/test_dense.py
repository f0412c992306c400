"""Maps (N, K, H, W) against the same positions as rows."""

import numpy as np
import pytest
import torch
from torch import nn

import calibrant as cal
from calibrant.core.errors import InputError
from calibrant.neural import CalibratedModule, dense_rows


def maps(seed=0, n=3, n_classes=4, height=5, width=6):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, n_classes, (n, height, width), generator=generator)
    logits = 3 * torch.randn((n, n_classes, height, width), generator=generator)
    return logits + 3 * torch.eye(n_classes)[labels].movedim(-1, 1), labels


def test_rows_are_the_positions_that_count():
    logits, labels = maps()
    labels[1] = 255
    rows, target = dense_rows(logits, labels, ignore_index=255)
    assert rows.shape == (60, 4)
    assert torch.equal(rows[7], logits[0, :, 1, 1])
    assert torch.equal(target[30:], labels[2].reshape(-1))
    assert len(dense_rows(logits, labels)[0]) == 90
    with pytest.raises(InputError, match="labels must have shape"):
        dense_rows(logits, labels[:, 0])


@pytest.mark.parametrize("name", ["ts", "vs", "hb", "ets"])
def test_a_calibrator_answers_maps_with_maps(name):
    logits, labels = maps()
    fitted = cal.get(name).fit(*dense_rows(logits, labels))
    probabilities, calibrated = fitted.predict_proba(logits), fitted.transform(logits)
    assert probabilities.shape == calibrated.shape == logits.shape
    rows = logits.movedim(1, -1).reshape(-1, 4).numpy()
    np.testing.assert_allclose(
        probabilities.movedim(1, -1).reshape(-1, 4).numpy(), fitted.predict_proba(rows), atol=2e-6
    )
    module = CalibratedModule(nn.Identity(), fitted)
    np.testing.assert_allclose(module(logits).numpy(), probabilities.numpy(), atol=2e-6)


def test_maps_of_the_wrong_width_are_refused():
    logits, labels = maps()
    fitted = cal.TemperatureScaling().fit(*dense_rows(logits, labels))
    with pytest.raises(InputError, match="4 columns"):
        fitted.transform(logits[:, :3])
    with pytest.raises(InputError, match="4 classes"):
        CalibratedModule(nn.Identity(), fitted)(logits[:, :3])
