"""calibrant: classifiers that tell the truth about how sure they are.

Every public name loads on first use, so that `import calibrant` costs little more than importing numpy.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_SUBMODULES = {
    "metrics": "calibrant.metrics",
    "datasets": "calibrant.data.datasets",
    "losses": "calibrant.neural.losses",
    "neural": "calibrant.neural",
    "plots": "calibrant.report.plots",
    "sklearn": "calibrant.sklearn",
    "monitor": "calibrant.monitor",
}

_NAMES = {
    "open_predictions": "calibrant.data",
    "Predictions": "calibrant.data",
    "get": "calibrant.calibrators.registry",
    "compare": "calibrant.evaluation.compare",
    "AutoCalibrator": "calibrant.calibrators.auto",
    "save": "calibrant.shipping.artifact",
    "load": "calibrant.shipping.artifact",
    "InputError": "calibrant.core.errors",
    "FitWarning": "calibrant.core.errors",
    "Identity": "calibrant.calibrators.identity",
    "TemperatureScaling": "calibrant.calibrators.temperature",
    "ClassTemperatureScaling": "calibrant.calibrators.class_temperature",
    "VectorScaling": "calibrant.calibrators.vector",
    "MatrixScaling": "calibrant.calibrators.matrix",
    "StructuredMatrixScaling": "calibrant.calibrators.structured_matrix",
    "DirichletCalibration": "calibrant.calibrators.dirichlet",
    "EnsembleTemperatureScaling": "calibrant.calibrators.ensemble_temperature",
    "WeightScaling": "calibrant.calibrators.weight",
    "ConfidenceWeightScaling": "calibrant.calibrators.confidence_weight",
    "BinTemperatureScaling": "calibrant.calibrators.bin_temperature",
    "ClassLossScaling": "calibrant.calibrators.class_loss",
    "ShapeScaling": "calibrant.calibrators.shape",
    "ConfusionScaling": "calibrant.calibrators.confusion",
    "LabelShift": "calibrant.calibrators.label_shift",
    "KeptPrediction": "calibrant.calibrators.kept_prediction",
    "TopLabelMap": "calibrant.calibrators.top_label_map",
    "HistogramBinning": "calibrant.calibrators.histogram_binning",
    "IsotonicCalibration": "calibrant.calibrators.isotonic",
    "SplineCalibration": "calibrant.calibrators.spline",
    "ParameterizedTemperatureScaling": "calibrant.calibrators.parameterized_temperature",
    "NeuralClamping": "calibrant.neural.neural_clamping",
    "CalibratedModule": "calibrant.neural.calibrated_module",
    "collect_logits": "calibrant.neural.collect",
}

__all__ = ["__version__", *_NAMES, *_SUBMODULES]  # noqa: PLE0604 (names are loaded by __getattr__)


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        value: Any = importlib.import_module(_SUBMODULES[name])
    elif name in _NAMES:
        value = getattr(importlib.import_module(_NAMES[name]), name)
    else:
        raise AttributeError(f"module 'calibrant' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
