"""A calibrator of one's own says what it learns; where it does not, the fit says so."""

from __future__ import annotations

import numpy as np
import pytest

import calibrant as cal
from calibrant.calibrators.maps import like

LOGITS = np.random.default_rng(0).normal(size=(60, 3))
LABELS = np.random.default_rng(1).integers(0, 3, 60)


class Half(cal.Calibrator):
    def _fit(self, rows):
        self.scale_ = 0.5

    def _map(self, xp, logits, learned):
        return logits * like(xp, learned.scale_, logits)


class Declared(Half):
    learns = {"scale_": cal.Learned(())}


def test_what_is_not_declared_is_named_with_the_remedy():
    with pytest.raises(
        cal.InputError, match=r"Half learned scale_, .* add learns = \{'scale_': cal.Learned\(shape\)\}"
    ):
        Half().fit(LOGITS, LABELS)
    table = cal.compare((LOGITS, LABELS), methods={"half": Half(), "declared": Declared()}, resamples=5)
    assert "does not declare" in table.row("half").error
    assert table.best == "declared"
