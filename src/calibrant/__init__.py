"""calibrant: classifiers that tell the truth about how sure they are.

Every public name loads on first use, so that `import calibrant` costs little more than importing numpy. Calibrator
classes are found in `calibrators/registry.py`, which is the only list of methods. `dir(calibrant)` shows the names that
most people need. The other calibrators are attributes of the package too (`calibrant.WeightScaling`); `methods()` lists
all of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from calibrant import datasets as datasets
    from calibrant import losses as losses
    from calibrant import metrics as metrics
    from calibrant import monitor as monitor
    from calibrant import neural as neural
    from calibrant import plots as plots
    from calibrant import sklearn as sklearn
    from calibrant.calibrators.base import BinaryCalibrator as BinaryCalibrator
    from calibrant.calibrators.learned import Learned as Learned
    from calibrant.calibrators.registry import *  # noqa: F403 (every calibrator class, get, methods, register)
    from calibrant.core.errors import FitWarning as FitWarning
    from calibrant.core.errors import InputError as InputError
    from calibrant.core.progress import show_progress as show_progress
    from calibrant.data import Predictions as Predictions
    from calibrant.data import open_predictions as open_predictions
    from calibrant.evaluation.calibration_loss import calibration_loss as calibration_loss
    from calibrant.evaluation.compare import compare as compare
    from calibrant.evaluation.difference import diff as diff
    from calibrant.evaluation.measure import measure as measure
    from calibrant.evaluation.models import compare_models as compare_models
    from calibrant.metrics.record import register_metric as register_metric
    from calibrant.neural.calibrated_module import CalibratedModule as CalibratedModule
    from calibrant.neural.collect import collect_logits as collect_logits
    from calibrant.neural.neural_clamping import NeuralClamping as NeuralClamping
    from calibrant.report.page import write_report as write_report
    from calibrant.report.trackers import log_to_mlflow as log_to_mlflow
    from calibrant.shipping.artifact import load as load
    from calibrant.shipping.artifact import save as save
    from calibrant.shipping.onnx import export_onnx as export_onnx

_SUBMODULES = ("metrics", "datasets", "losses", "neural", "plots", "sklearn", "monitor")

_NAMES = {
    "open_predictions": "calibrant.data",
    "Predictions": "calibrant.data",
    "get": "calibrant.calibrators.registry",
    "methods": "calibrant.calibrators.registry",
    "register": "calibrant.calibrators.registry",
    "Calibrator": "calibrant.calibrators.base",
    "BinaryCalibrator": "calibrant.calibrators.base",
    "Learned": "calibrant.calibrators.learned",
    "measure": "calibrant.evaluation.measure",
    "compare": "calibrant.evaluation.compare",
    "compare_models": "calibrant.evaluation.models",
    "diff": "calibrant.evaluation.difference",
    "calibration_loss": "calibrant.evaluation.calibration_loss",
    "register_metric": "calibrant.metrics.record",
    "write_report": "calibrant.report.page",
    "log_to_mlflow": "calibrant.report.trackers",
    "save": "calibrant.shipping.artifact",
    "load": "calibrant.shipping.artifact",
    "export_onnx": "calibrant.shipping.onnx",
    "InputError": "calibrant.core.errors",
    "show_progress": "calibrant.core.progress",
    "FitWarning": "calibrant.core.errors",
    "CalibratedModule": "calibrant.neural.calibrated_module",
    "collect_logits": "calibrant.neural.collect",
}

_SHOWN = (
    *("__version__", *_SUBMODULES, *_NAMES),
    *("AutoCalibrator", "TemperatureScaling", "ShapeScaling", "StructuredVectorScaling", "HistogramBinning"),
    *("BendScaling", "PlattScaling", "IsotonicCalibration", "VennAbers", "GroupCalibrator", "MultilabelCalibrator"),
    "NeuralClamping",
)
"""What `dir` and `import *` give: every function and module, and the calibrators that a newcomer meets first."""


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"calibrant.{name}")
    if name == "__all__":
        return list(_SHOWN)
    module = _NAMES.get(name)
    if module is None and not name.startswith("_"):
        from calibrant.calibrators.registry import class_names

        module = class_names().get(name)
    if module is None:
        raise AttributeError(f"module 'calibrant' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_SHOWN)
