"""The torch side: training losses, calibrators that need gradients through a network, calibrated modules.

Importing anything from here needs torch, and says so when it is absent.
"""

import importlib
import importlib.util
from typing import Any

from calibrant.core.errors import MissingExtraError

if importlib.util.find_spec("torch") is None:
    raise MissingExtraError("torch", "torch")

_NAMES = {
    "NeuralClamping": "calibrant.neural.neural_clamping",
    "ClampedModule": "calibrant.neural.neural_clamping",
    "CalibratedModule": "calibrant.neural.calibrated_module",
    "collect_logits": "calibrant.neural.collect",
    "dense_rows": "calibrant.neural.metrics",
    "InterleavedBatches": "calibrant.neural.interleaved",
    "InterleavedObjective": "calibrant.neural.interleaved",
    "interleaved_epoch": "calibrant.neural.interleaved",
    "split_majority": "calibrant.neural.interleaved",
    "TokenMeasurement": "calibrant.neural.language_model",
    "measure_language_model": "calibrant.neural.language_model",
    "multiple_choice": "calibrant.data",
}

__all__ = [*_NAMES, "losses"]  # noqa: PLE0604 (names are loaded by __getattr__)


def __getattr__(name: str) -> Any:
    if name == "losses":
        return importlib.import_module("calibrant.neural.losses")
    if name not in _NAMES:
        raise AttributeError(f"module 'calibrant.neural' has no attribute {name!r}")
    return getattr(importlib.import_module(_NAMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
