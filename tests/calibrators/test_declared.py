"""A calibrator of one's own says what it learns; where it does not, the fit says so."""

from __future__ import annotations

import numpy as np
import pytest

import calibrant as cal
from calibrant.calibrators.learned import check_learned
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


def test_empty_parameters_are_rejected():
    fitted = cal.get("spline").fit(LOGITS[:, 0], LABELS == 0)
    check_learned(fitted, 2)
    fitted.knots_ = fitted.slopes_ = np.empty(0)
    with pytest.raises(cal.InputError, match="has shape"):
        check_learned(fitted, 2)
