"""Measure one trained network on validation, test and shifted test data, before and after temperature scaling."""

from __future__ import annotations

from typing import Any

from figures import brief_figures, fit_temperature, full_figures
from images import CORRUPTIONS, SEVERITIES, Dataset, Split, corrupt
from torch import Tensor
from training import Trainer

SCALINGS = ("none", "ts", "ts-soft", "ts-hard")


def shifted_test_sets(test: Split) -> dict[str, Tensor]:
    """The test images under each corruption and severity, keyed "kind-severity"."""
    return {f"{kind}-{level}": corrupt(test.images, kind, level) for kind in CORRUPTIONS for level in SEVERITIES}


def evaluate(trainer: Trainer, data: Dataset, shifted: dict[str, Tensor]) -> dict[str, Any]:
    """All figures of the network `trainer` holds now; scalings are fitted on the validation part only."""
    validation = trainer.logits(data.validation.images)
    test = trainer.logits(data.test.images)
    seen = data.train.take(slice(0, len(data.validation)))
    temperatures = {
        "none": 1.0,
        "ts": fit_temperature(validation, data.validation.labels, "nll"),
        "ts-soft": fit_temperature(validation, data.validation.labels, "soft_ece"),
        "ts-hard": fit_temperature(validation, data.validation.labels, "hard_ece"),
    }
    shift: dict[str, dict[str, Any]] = {}
    for name, images in shifted.items():
        logits = trainer.logits(images)
        shift[name] = {key: brief_figures(logits / value, data.test.labels) for key, value in temperatures.items()}
    return {
        "temperatures": temperatures,
        "train": brief_figures(trainer.logits(seen.images), seen.labels),
        "validation": full_figures(validation, data.validation.labels),
        "test": {key: full_figures(test / value, data.test.labels) for key, value in temperatures.items()},
        "shift": shift,
    }
