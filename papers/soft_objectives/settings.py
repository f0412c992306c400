"""What one run trains: a primary loss, a secondary loss with its weight and parameters, and the optimiser's numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from calibrant.neural import losses

Loss = Callable[[Tensor, Tensor], Tensor]

PRIMARY = ("cross_entropy", "focal", "brier")
SECONDARY = ("none", "mmce_weighted", "mmce", "avuc", "avuc_gs", "soft_avuc", "soft_ece")


@dataclass(frozen=True)
class Setting:
    """One configuration of the study; `kappa` and `temperature` belong to the secondary loss."""

    primary: str
    secondary: str = "none"
    weight: float = 0.0
    kappa: float | None = None
    temperature: float | None = None
    weighting: str = "label"
    interleaved: bool = False
    gamma: float = 3.0
    weight_decay: float = 5e-4
    held_out_share: float = 0.1

    @property
    def row(self) -> str:
        """The cell of the table this setting belongs to."""
        return f"{self.primary}+{self.secondary}" + (" (interleaved)" if self.interleaved else "")

    @property
    def usual_decay(self) -> bool:
        """Is λ the one of the losses without a secondary?"""
        return self.weight_decay == Setting.weight_decay

    def but(self, **changes: float | None) -> Setting:
        """The same setting with some numbers changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def primary_loss(self) -> Loss:
        """The primary loss as a function of (logits, labels)."""
        if self.primary == "focal":
            return partial(losses.focal, gamma=self.gamma)
        return {"cross_entropy": losses.cross_entropy, "brier": losses.brier}[self.primary]

    def secondary_loss(self) -> Loss:
        """The secondary loss as a function of (logits, labels), not yet weighted."""
        if self.secondary in ("avuc", "avuc_gs"):
            return partial(getattr(losses, self.secondary), kappa=self.kappa)
        if self.secondary == "soft_avuc":
            return partial(losses.soft_avuc, kappa=self.kappa, temperature=self.temperature)
        if self.secondary == "soft_ece":
            return partial(losses.soft_ece, weighting=self.weighting, temperature=self.temperature)
        if self.secondary == "mmce_weighted":
            return partial(losses.mmce, weighted=True)
        return losses.soft_marginal_ece if self.secondary == "soft_marginal_ece" else losses.mmce


STRONG_DECAY = 1e-3

TABLE: tuple[Setting, ...] = (
    Setting("cross_entropy"),
    Setting("focal"),
    Setting("focal", "soft_ece", weight=0.1, temperature=0.01),
    Setting("focal", "soft_avuc", weight=0.3, kappa=0.48, temperature=0.1),
    Setting("cross_entropy", "soft_ece", weight=2.0, temperature=0.01, interleaved=True),
    Setting("focal", "soft_ece", weight=0.3, temperature=0.01, weight_decay=STRONG_DECAY),
    Setting("focal", "soft_avuc", weight=0.6, kappa=0.54, temperature=0.1, weight_decay=STRONG_DECAY),
    Setting("cross_entropy", "soft_ece", weight=2.0, temperature=0.01, interleaved=True, weight_decay=STRONG_DECAY),
    Setting("brier"),
    Setting("cross_entropy", "soft_avuc", weight=1.0, kappa=0.5, temperature=0.1, interleaved=True),
    Setting("focal", "mmce", weight=0.1),
    Setting("focal", "avuc", weight=0.1, kappa=1.0),
    Setting("focal", "avuc_gs", weight=0.1, kappa=1.0),
    Setting("brier", "mmce", weight=0.03),
    Setting("brier", "avuc", weight=0.03, kappa=1.0),
    Setting("brier", "avuc_gs", weight=0.1, kappa=1.0),
    Setting("brier", "soft_avuc", weight=0.1, kappa=0.3, temperature=0.1),
    Setting("brier", "soft_ece", weight=0.1, temperature=0.01),
    Setting("cross_entropy", "mmce", weight=0.5),
    Setting("cross_entropy", "avuc", weight=1.0, kappa=1.0),
    Setting("cross_entropy", "avuc_gs", weight=0.1, kappa=1.0),
    Setting("cross_entropy", "soft_avuc", weight=0.3, kappa=0.3, temperature=0.1),
    Setting("cross_entropy", "soft_ece", weight=0.3, temperature=0.01),
    Setting("cross_entropy", "mmce_weighted", weight=1.0),
    Setting("focal", "mmce_weighted", weight=0.03),
    Setting("brier", "mmce_weighted", weight=0.1),
)
"""The rows of the table, the ones the conclusions rest on first."""

MAIN_ROWS = 8
"""How many rows of the table, from the top, are run with every seed before the rest get their first."""
