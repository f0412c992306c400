"""Short names of the methods. A table of addresses: it imports a method only when that method is asked for."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from calibrant.core.errors import InputError


class Method(NamedTuple):
    """Where a method lives and the parameters its short name stands for."""

    module: str
    class_name: str
    parameters: dict[str, Any]


def _method(module: str, class_name: str, **parameters: Any) -> Method:
    return Method(f"calibrant.calibrators.{module}", class_name, parameters)


METHODS: dict[str, Method] = {
    "none": _method("identity", "Identity"),
    "ts": _method("temperature", "TemperatureScaling"),
    "ts-ece": _method("temperature", "TemperatureScaling", objective="ece"),
    "ts-adaece": _method("temperature", "TemperatureScaling", objective="adaptive_ece"),
    "ts-soft": _method("temperature", "TemperatureScaling", objective="soft_ece"),
    "cts": _method("class_temperature", "ClassTemperatureScaling"),
    "u-cts": _method("class_temperature", "ClassTemperatureScaling", preserve_accuracy=False),
    "cts-nll": _method("class_temperature", "ClassTemperatureScaling", objective="nll"),
    "vs": _method("vector", "VectorScaling"),
    "ms": _method("matrix", "MatrixScaling"),
    "sms": _method("structured_matrix", "StructuredMatrixScaling"),
    "dir": _method("dirichlet", "DirichletCalibration"),
    "shape": _method("shape", "ShapeScaling"),
    "conf": _method("confusion", "ConfusionScaling"),
    "ets": _method("ensemble_temperature", "EnsembleTemperatureScaling"),
    "pts": _method("parameterized_temperature", "ParameterizedTemperatureScaling"),
    "ws": _method("weight", "WeightScaling"),
    "cws": _method("confidence_weight", "ConfidenceWeightScaling"),
    "bts": _method("bin_temperature", "BinTemperatureScaling", objective="nll"),
    "ccts": _method("bin_temperature", "BinTemperatureScaling", objective="gap"),
    "hb": _method("histogram_binning", "HistogramBinning"),
    "iso": _method("isotonic", "IsotonicCalibration"),
    "spline": _method("spline", "SplineCalibration"),
}

SUFFIXES: dict[str, Method] = {
    "+top": _method("top_label_map", "TopLabelMap"),
    "+shape": _method("shape", "ShapeScaling"),
    "+keep": _method("kept_prediction", "KeptPrediction"),
}
"""What may follow any method X: `X+top` maps its top confidence, and so on."""

COMPOSED = (
    "sctl+ts",
    "sctl+ets",
    "sctl+pts",
    "sctl+cts-nll",
    "sctl+vs",
    "ts+top",
    "vs+top",
    "sms+top",
    "conf+shape+keep",
)
"""The compositions offered by name; any other X works in `sctl+X` and before the suffixes too."""


def names() -> list[str]:
    """Every short name, in the order tables show them."""
    return [*METHODS, *COMPOSED]


def get(name: str, **parameters: Any) -> Any:
    """An unfitted calibrator by short name; parameters go to its constructor, so a typo raises.

    >>> get("cts", max_sweeps=3)
    ClassTemperatureScaling(max_sweeps=3)
    """
    if name.startswith("sctl+"):
        inner = get(name.removeprefix("sctl+"))
        return _load("calibrant.calibrators.class_loss", "ClassLossScaling")(inner, **parameters)
    for suffix, method in SUFFIXES.items():
        if name.endswith(suffix):
            return _load(method.module, method.class_name)(get(name.removesuffix(suffix)), **parameters)
    if name not in METHODS:
        raise InputError(f"no method is called {name!r}; there are: {', '.join(names())}")
    method = METHODS[name]
    return _load(method.module, method.class_name)(**{**method.parameters, **parameters})


def _load(module: str, class_name: str) -> Any:
    return getattr(importlib.import_module(module), class_name)
