"""Training losses: logits (n×K) and labels (n,) in, a scalar out; each as a function and as a thin module.

Every loss is finite with a finite gradient in float32 and under bfloat16 autocast, also for saturated logits, a batch
of one, a batch of one class, all right and all wrong; it works in float32 or wider inside and never waits for the
device.
"""

from calibrant.neural.losses.avuc import AvUCGSLoss, AvUCLoss, avuc, avuc_gs
from calibrant.neural.losses.brier import BrierLoss, brier, mse
from calibrant.neural.losses.composite import CompositeLoss, composite
from calibrant.neural.losses.cross_entropy import CrossEntropyLoss, cross_entropy
from calibrant.neural.losses.focal import FocalLoss, focal
from calibrant.neural.losses.label_smoothing import LabelSmoothingLoss, label_smoothing
from calibrant.neural.losses.mmce import MMCELoss, mmce
from calibrant.neural.losses.soft_avuc import SoftAvUCLoss, soft_avuc, soft_uncertainty
from calibrant.neural.losses.soft_ece import SoftECELoss, soft_ece
from calibrant.neural.losses.soft_marginal_ece import SoftMarginalECELoss, soft_marginal_ece

__all__ = [
    "AvUCGSLoss",
    "AvUCLoss",
    "BrierLoss",
    "CompositeLoss",
    "CrossEntropyLoss",
    "FocalLoss",
    "LabelSmoothingLoss",
    "MMCELoss",
    "SoftAvUCLoss",
    "SoftECELoss",
    "SoftMarginalECELoss",
    "avuc",
    "avuc_gs",
    "brier",
    "composite",
    "cross_entropy",
    "focal",
    "label_smoothing",
    "mmce",
    "mse",
    "soft_avuc",
    "soft_ece",
    "soft_marginal_ece",
    "soft_uncertainty",
]
