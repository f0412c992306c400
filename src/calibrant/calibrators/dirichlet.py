"""Dirichlet calibration."""

from __future__ import annotations

from typing import Any

from calibrant.calibrators.matrix import MatrixScaling
from calibrant.kernels.affine import Features


def log_features(xp: Any, logits: Any) -> Features:
    """The log-probabilities."""
    return Features(xp.log_softmax_of_rows(logits))


class DirichletCalibration(MatrixScaling):
    """Matrix scaling of the log-probabilities, W·log p + b (Kull et al. 2019, eq. 9, with ODIR).

    Minimises mean NLL + λ·mean_{i≠j} w_ij² + μ·mean b_j². Unlike matrix scaling it needs only probabilities: a
    constant added to all logits of a row changes nothing.

    Parameters (`penalty_off_diagonal` is λ, `penalty_bias` is μ, `seed`) and what is learned (`matrix_` W, `bias_` b,
    `penalties_`) are those of `MatrixScaling`.

    Examples
    --------
    >>> import numpy as np
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> fitted = cal.DirichletCalibration().fit(val.logits, val.labels)
    >>> bool(np.allclose(fitted.predict_proba(val.logits), fitted.predict_proba(val.logits + 7), atol=1e-5))
    True
    """

    requires_logits = False
    _features = staticmethod(log_features)
