"""What a loaded calibrator must look like: the shape and the range of everything its prediction reads.

A shape is a tuple of numbers and letters: K is the number of classes, C is 1 or K (one map, or one a class), any other
letter is free but must be the same wherever it stands within one calibrator, and `B+1` is one more than B.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from calibrant.core.errors import InputError
from calibrant.shipping.encoding import CLASSES, find_class

LARGE = 1e12
SMALL = 1e-12
RECORDS = ("_trace_", "scores_", "_seconds_", "n_iter_", "penalties_", "standard_errors_")
"""Endings of names that only tell the story of the fit; these may hold NaN, and prediction never reads them."""


class Rule(NamedTuple):
    """Shape and inclusive range of one learned name."""

    shape: tuple[str | int, ...]
    low: float = -LARGE
    high: float = LARGE
    increasing: bool = False


TEMPERATURE = Rule((), SMALL, LARGE)
EDGES = Rule(("B+1",), 0.0, 1.0, increasing=True)
CHANCE = (SMALL, 1.0 - SMALL)
"""Range of probabilities whose log-odds are taken."""

RULES: dict[str, dict[str, Rule]] = {
    "Identity": {},
    "TemperatureScaling": {"temperature_": TEMPERATURE},
    "ClassTemperatureScaling": {"temperatures_": Rule(("K",), SMALL, LARGE)},
    "VectorScaling": {"scale_": Rule(("K",)), "bias_": Rule(("K",))},
    "MatrixScaling": {"matrix_": Rule(("K", "K")), "bias_": Rule(("K",))},
    "StructuredMatrixScaling": {"matrix_": Rule(("K", "K")), "bias_": Rule(("K",))},
    "DirichletCalibration": {"matrix_": Rule(("K", "K")), "bias_": Rule(("K",))},
    "EnsembleTemperatureScaling": {"temperature_": TEMPERATURE, "weights_": Rule((3,), 0.0, 1.0)},
    "WeightScaling": {"weight_": Rule((), 0.0, LARGE)},
    "ConfidenceWeightScaling": {"weights_": Rule(("B",), 0.0, 1.0), "edges_": EDGES},
    "BinTemperatureScaling": {"temperatures_": Rule(("B",), SMALL, LARGE), "edges_": EDGES},
    "ClassLossScaling": {"class_weights_": Rule(("K",))},
    "ParameterizedTemperatureScaling": {
        "feature_mean_": Rule(("F",)),
        "feature_scale_": Rule(("F",), SMALL, LARGE),
    },
    "TopLabelMap": {"map_": Rule((3,))},
    "ShapeScaling": {"shape_": Rule((4,))},
    "ConfusionScaling": {
        "temperature_": TEMPERATURE,
        "scale_": Rule(("K",)),
        "matrix_": Rule(("K", "K")),
        "bias_": Rule(("K",)),
    },
    "KeptPrediction": {},
    "LabelShift": {
        "prior_": Rule(("K",), 0.0, 1.0),
        "target_prior_": Rule(("K",), 0.0, 1.0),
        "offset_": Rule(("K",)),
    },
    "HistogramBinning": {
        "edges_": Rule(("C", "B+1"), 0.0, 1.0, increasing=True),
        "values_": Rule(("C", "B"), *CHANCE),
    },
    "IsotonicCalibration": {
        "knots_": Rule(("M",), 0.0, 1.0),
        "values_": Rule(("M",), *CHANCE),
        "offsets_": Rule(("C+1",), 0, LARGE, increasing=True),
    },
    "SplineCalibration": {
        "confidences_": Rule(("M",), 0.0, 1.0, increasing=True),
        "values_": Rule(("M",), *CHANCE),
    },
}


def check_state(calibrator: Any, n_classes: int | None) -> None:
    """Raise unless every learned value of a calibrator, and of those inside it, has its shape and range."""
    name = type(calibrator).__name__
    if n_classes is None:
        _check_clamping(name, calibrator.artifact_state())
        return
    learned = {key: value for key, value in vars(calibrator).items() if key.endswith("_")}
    if learned.get("n_features_in_") != n_classes:
        raise InputError(
            f"{name} was fitted on {learned.get('n_features_in_')!r} classes, but the file says {n_classes}"
        )
    sizes: dict[str, int] = {"K": n_classes}
    for key, rule in RULES.get(name, {}).items():
        if key not in learned:
            raise InputError(f"{name} lacks its learned {key}")
        _check_rule(f"{name}.{key}", learned[key], rule, sizes)
    if sizes.get("C", 1) not in (1, n_classes):
        raise InputError(f"{name} holds {sizes['C']} maps, but needs 1 or {n_classes}")
    if name == "IsotonicCalibration":
        _check_maps(name, learned)
    for key, value in learned.items():
        _check_value(f"{name}.{key}", value, n_classes, may_be_odd=key.endswith(RECORDS))


def _check_clamping(name: str, state: dict[str, Any]) -> None:
    """An input perturbation of any shape and a temperature; what they do is the network's affair."""
    delta = np.asarray(state["delta_"])
    if delta.dtype.kind != "f" or delta.ndim < 1 or not (np.abs(delta) <= LARGE).all():
        raise InputError(f"{name}.delta_ must hold finite numbers of one input's shape")
    _check_rule(f"{name}.temperature_", state["temperature_"], TEMPERATURE, {"K": 0})


def _check_rule(where: str, value: Any, rule: Rule, sizes: dict[str, int]) -> None:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where} must hold numbers") from error
    expected = tuple(_size(symbol, length, sizes) for symbol, length in zip(rule.shape, array.shape, strict=False))
    if len(rule.shape) != array.ndim or expected != array.shape:
        raise InputError(f"{where} has shape {array.shape}, but needs {rule.shape} with K = {sizes['K']}")
    # written so that a NaN fails too
    if not ((array >= rule.low) & (array <= rule.high)).all():
        raise InputError(f"{where} holds values outside [{rule.low:g}, {rule.high:g}]")
    if rule.increasing and (np.diff(array) < 0).any():
        raise InputError(f"{where} must not decrease")


def _check_maps(name: str, learned: dict[str, Any]) -> None:
    """Raise unless the offsets cut the knots into maps, each with knots that do not decrease."""
    knots, offsets = np.asarray(learned["knots_"]), np.asarray(learned["offsets_"])
    if offsets.dtype.kind not in "iu" or offsets[0] != 0 or offsets[-1] != len(knots) or (np.diff(offsets) < 1).any():
        raise InputError(f"{name}.offsets_ must run from 0 to {len(knots)} in whole steps")
    falls = np.flatnonzero(np.diff(knots) < 0) + 1
    if not np.isin(falls, offsets).all():
        raise InputError(f"{name}.knots_ must not decrease within a map")


def _size(symbol: str | int, length: int, sizes: dict[str, int]) -> int:
    """The length a dimension must have; the first array that meets a free letter settles it."""
    if isinstance(symbol, int):
        return symbol
    letter, _, plus = symbol.partition("+")
    extra = int(plus or 0)
    return sizes.setdefault(letter, max(length - extra, 1)) + extra


def _check_value(where: str, value: Any, n_classes: int, *, may_be_odd: bool) -> None:
    """Every number finite, every calibrator inside as sound as the outer one."""
    if type(value).__name__ in CLASSES and isinstance(value, find_class(type(value).__name__)):
        check_state(value, n_classes)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_value(where, item, n_classes, may_be_odd=may_be_odd)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_value(f"{where}.{key}", item, n_classes, may_be_odd=may_be_odd)
    elif isinstance(value, (np.ndarray, np.generic, float)) and not may_be_odd:
        array = np.asarray(value)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InputError(f"{where} holds a value that is not finite")
