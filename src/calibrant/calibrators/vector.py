"""Vector scaling."""

from __future__ import annotations

import numpy as np

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.diagonal import fit_vector
from calibrant.calibrators.newton import warn_unless_converged
from calibrant.core.rows import Rows
from calibrant.kernels.transform import scale_rows


class VectorScaling(Calibrator):
    """A scale and a bias per class, s∘z + b (Guo et al. 2017, §4.2).

    Attributes
    ----------
    scale_, bias_ : (K,) the learned s and b.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import VectorScaling
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 500)
    >>> logits = 4 * (rng.normal(size=(500, 3)) + 2 * np.eye(3)[labels])
    >>> bool((VectorScaling().fit(logits, labels).scale_ < 1).all())
    True
    """

    additive = True
    requires_logits = True

    def __init__(self, penalty_off_diagonal=0.0, penalty_bias=0.0, seed=0):
        self.penalty_off_diagonal = penalty_off_diagonal
        self.penalty_bias = penalty_bias
        self.seed = seed

    @property
    def n_parameters_(self) -> int:
        """K scales and K biases."""
        return 2 * self.n_features_in_

    def _fit(self, rows: Rows) -> None:
        self.scale_, self.bias_, solution = fit_vector(rows, penalty_bias=float(self.penalty_bias))
        warn_unless_converged("VectorScaling", solution)
        self.n_iter_ = max(1, solution.n_iter)
        self.objective_trace_ = solution.trace

    def _transform(self, logits: np.ndarray) -> np.ndarray:
        return scale_rows(logits, self.scale_, self.bias_)
