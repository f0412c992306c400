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
    "NeuralClamping": "neural_clamping",
    "ClampedModule": "neural_clamping",
    "CalibratedModule": "calibrated_module",
    "collect_logits": "collect",
    "dense_rows": "metrics",
    "InterleavedBatches": "interleaved",
    "InterleavedObjective": "interleaved",
    "interleaved_epoch": "interleaved",
    "split_majority": "interleaved",
    "TokenMeasurement": "language_model",
    "measure_language_model": "language_model",
}

__all__ = [*_NAMES, "losses", "multiple_choice"]  # noqa: PLE0604 (names are loaded by __getattr__)


def __getattr__(name: str) -> Any:
    if name == "losses":
        return importlib.import_module("calibrant.neural.losses")
    if name == "multiple_choice":
        return importlib.import_module("calibrant.data").multiple_choice
    if name not in _NAMES:
        raise AttributeError(f"module 'calibrant.neural' has no attribute {name!r}")
    return getattr(importlib.import_module(f"calibrant.neural.{_NAMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
