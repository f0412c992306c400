"""Vector scaling."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.learned import Learned
from calibrant.calibrators.maps import like
from calibrant.calibrators.solvers.likelihood import warn_unless_converged
from calibrant.calibrators.solvers.penalties import check_penalty, choose
from calibrant.calibrators.solvers.scales import fit_vector
from calibrant.core.errors import FitWarning
from calibrant.core.rows import Rows
from calibrant.kernels.scaling import vector_sums
from calibrant.kernels.transform import scale_rows

STRENGTHS = np.logspace(2, -5, 15)
"""Cross-validation tries these times K for μ, strongest first."""


class VectorScaling(Calibrator):
    """A scale and a bias per class, s∘z + b (Guo et al. 2017, §4.2).

    Minimises mean NLL + μ·mean b_j²: convex, solved to the optimum.

    Parameters
    ----------
    penalty_bias : number or "cv"
        μ; "cv" chooses it by cross-validated NLL. At 0, plain vector scaling, the bias of a class that is absent
        from the fit data falls to −infinity: the fit stops on the way and warns.
    seed : int
        Of the folds of the cross-validation.

    Attributes
    ----------
    scale_, bias_ : (K,) the learned s and b; without a penalty the biases sum to 0.

    Examples
    --------
    >>> import calibrant as cal
    >>> val = cal.open_predictions("cifar10-resnet18#val")
    >>> cal.VectorScaling().fit(val.logits, val.labels).scale_.round(1)
    array([0.7, 0.8, 0.6, 0.5, 0.7, 0.5, 0.7, 0.8, 0.7, 0.7])
    """

    additive = True
    requires_logits = True
    learns = {"scale_": Learned(("K",)), "bias_": Learned(("K",))}

    def __init__(self, penalty_bias: float | str = 0.0, *, seed: int = 0) -> None:
        self.penalty_bias = penalty_bias
        self.seed = seed

    def _fit(self, rows: Rows) -> None:
        penalty = check_penalty(self.penalty_bias, "penalty_bias")
        if isinstance(penalty, str):
            penalty = choose(rows, [float(s * rows.n_classes) for s in STRENGTHS], _fit_point, _loss, seed=self.seed)
        self.scale_, self.bias_, solution = fit_vector(rows, penalty_bias=penalty)
        self.n_iter_ = max(1, solution.n_iter)
        self.objective_trace_ = solution.trace
        if penalty > 0 or not warn_of_absent(rows, self.bias_):
            warn_unless_converged("VectorScaling", solution)

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        return logits * like(xp, learned.scale_, logits) + like(xp, learned.bias_, logits)

    def _transform(self, logits: np.ndarray) -> np.ndarray:
        return scale_rows(logits, self.scale_, self.bias_)


def warn_of_absent(rows: Rows, bias: np.ndarray) -> bool:
    """Say which classes have no rows, so that nothing holds their bias; False if all have some."""
    absent = np.flatnonzero(rows.class_weight() == 0)
    if len(absent) == 0:
        return False
    shown = ", ".join(map(str, absent[:5])) + (" …" if len(absent) > 5 else "")
    which = f"class {shown} is" if len(absent) == 1 else f"classes {shown} are"
    reached = bias[absent].min() - bias.max()
    warnings.warn(
        f"{which} absent from the fit data, so the bias falls to -infinity; stopped {reached:.3g} beside the largest "
        "(penalty_bias above 0 keeps it finite)",
        FitWarning,
        stacklevel=5,
    )
    return True


def _fit_point(rows: Rows, penalty: Any, start: np.ndarray | None) -> np.ndarray:
    scale, bias, _ = fit_vector(rows, penalty_bias=penalty)
    return np.stack([scale, bias])


def _loss(rows: Rows, point: np.ndarray) -> float:
    return rows.total(vector_sums, *point)[0]
