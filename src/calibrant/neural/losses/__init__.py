"""Training losses: logits (n×K) and labels (n,) in, a scalar out; each a function and the module made from it.

Every loss is finite with a finite gradient in float32 and under bfloat16 autocast, also for saturated logits, a batch
of one, a batch of one class, all right and all wrong; it works in float32 or wider inside and never waits for the
device. The imports below are the list of losses.
"""

# ruff: noqa: F401 (names are public because they stand here)

from calibrant.neural.losses.calibration import (
    AvUCGSLoss,
    AvUCLoss,
    MMCELoss,
    SoftAvUCLoss,
    SoftECELoss,
    SoftMarginalECELoss,
    avuc,
    avuc_gs,
    mmce,
    soft_avuc,
    soft_ece,
    soft_marginal_ece,
    soft_uncertainty,
)
from calibrant.neural.losses.module import CompositeLoss, composite
from calibrant.neural.losses.rows import (
    BrierLoss,
    CrossEntropyLoss,
    FocalLoss,
    LabelSmoothingLoss,
    brier,
    cross_entropy,
    focal,
    label_smoothing,
    mse,
)

__all__ = [name for name, value in list(globals().items()) if callable(value)]
