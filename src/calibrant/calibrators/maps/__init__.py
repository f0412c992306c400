"""What the maps of the methods share, over the array API: one function for numpy, torch and the ONNX writer.

`xp` is the array namespace; columns have the shape (n, 1). Where numpy has a faster way to the same answer (a compiled
scan, an update in place), the function takes it, and `tests/contracts/test_maps.py` holds the two together.
"""

from calibrant.calibrators.maps.confidence import (
    class_chances,
    confidence,
    interpolate,
    lines_by_class,
    log_odds,
    look_up,
    normalised,
    place,
    share_place,
    softplus,
    steps_by_class,
    with_confidence,
    with_mapped_confidence,
)
from calibrant.calibrators.maps.rows import (
    entry,
    keep_increasing,
    keep_prediction,
    largest,
    like,
    log_probabilities,
    log_softmax,
    mix_with_uniform,
    prediction,
    single_precision,
    softmax,
    wide,
    with_entry,
)

__all__ = [
    "class_chances",
    "confidence",
    "entry",
    "interpolate",
    "keep_increasing",
    "keep_prediction",
    "largest",
    "like",
    "lines_by_class",
    "log_odds",
    "log_probabilities",
    "log_softmax",
    "look_up",
    "mix_with_uniform",
    "normalised",
    "place",
    "prediction",
    "share_place",
    "single_precision",
    "softmax",
    "softplus",
    "steps_by_class",
    "wide",
    "with_confidence",
    "with_entry",
    "with_mapped_confidence",
]
