"""Training losses for torch, under their public name."""

from calibrant.neural.losses import *  # noqa: F403
from calibrant.neural.losses import __all__ as __all__  # noqa: PLC0414
