"""Torch twins of the fitted calibrators: the same map from logits to calibrated logits, with buffers for numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError
from calibrant.neural import top_label_twins as top
from calibrant.neural.shape_twins import ConfusionTwin, KeptPredictionTwin, ShapeTwin
from calibrant.neural.twin import Twin


class IdentityTwin(Twin):
    """z."""

    def forward(self, logits: Tensor) -> Tensor:
        """The logits."""
        return logits


class DiagonalTwin(Twin):
    """w∘z + b; one number in w is a temperature."""

    def forward(self, logits: Tensor) -> Tensor:
        """Scaled logits."""
        return logits * self.like("scale", logits) + self.like("bias", logits)


class MatrixTwin(Twin):
    """Wz + b, or W·log p + b."""

    def __init__(self, matrix: Any, bias: Any, *, of_log_probabilities: bool) -> None:
        super().__init__(matrix=matrix, bias=bias)
        self.of_log_probabilities = of_log_probabilities

    def forward(self, logits: Tensor) -> Tensor:
        """Mixed logits."""
        inputs = logits.log_softmax(dim=1) if self.of_log_probabilities else logits
        return inputs @ self.like("matrix", logits).T + self.like("bias", logits)


class EnsembleTwin(Twin):
    """log(w₁·softmax(z/T) + w₂·softmax(z) + w₃/K)."""

    def forward(self, logits: Tensor) -> Tensor:
        """Log-probabilities."""
        first, second, third = self.like("weights", logits)
        mixed = first * (logits * self.like("inverse", logits)).softmax(dim=1)
        mixed = mixed + second * logits.softmax(dim=1) + third / logits.shape[1]
        return top.keep_prediction(top.log_probabilities(mixed), logits.argmax(dim=1))


class UniformMixTwin(Twin):
    """log(α·softmax(z) + (1 − α)/K), α by the confidence's bin."""

    def forward(self, logits: Tensor) -> Tensor:
        """Log-probabilities."""
        return top.mix_with_uniform(logits, self.weights[top.place(top.confidence(logits), self.edges)])


class BinTemperatureTwin(Twin):
    """z/T, T by the confidence's bin."""

    def forward(self, logits: Tensor) -> Tensor:
        """Scaled logits."""
        inverse = self.inverse[top.place(top.confidence(logits), self.edges)].to(logits.dtype)
        return top.keep_prediction(logits * inverse[:, None], logits.argmax(dim=1))


class NetworkTemperatureTwin(Twin):
    """z/|MLP(top logits)|."""

    def __init__(self, calibrator: Any) -> None:
        layers = zip(calibrator.weights_, calibrator.biases_, strict=True)
        arrays = {f"{kind}{i}": value for i, pair in enumerate(layers) for kind, value in zip("wb", pair, strict=True)}
        super().__init__(mean=calibrator.feature_mean_, spread=calibrator.feature_scale_, **arrays)
        self.n_layers = len(calibrator.weights_)

    def forward(self, logits: Tensor) -> Tensor:
        """Scaled logits."""
        from calibrant.calibrators.solvers.temperature_network import LOWEST_TEMPERATURE

        hidden = (logits.double().topk(len(self.mean), dim=1).values - self.mean) / self.spread
        for layer in range(self.n_layers):
            hidden = hidden @ getattr(self, f"w{layer}") + getattr(self, f"b{layer}")
            hidden = hidden.tanh() if layer < self.n_layers - 1 else hidden
        return logits / hidden.abs().clamp_min(LOWEST_TEMPERATURE).to(logits.dtype)


class TopLabelMapTwin(Twin):
    """A smooth map of the top confidence after another calibrator."""

    def __init__(self, inner: nn.Module, parameters: Any) -> None:
        super().__init__(map_parameters=parameters)
        self.inner = inner

    def forward(self, logits: Tensor) -> Tensor:
        """Log-probabilities."""
        calibrated = self.inner(logits)
        odds = top.top_log_odds(calibrated)
        a, b, d = self.map_parameters
        zero = torch.zeros_like(odds)
        return top.with_confidence(calibrated, -a * torch.logaddexp(zero, -odds) + b * torch.logaddexp(zero, odds) + d)


class TableTwin(Twin):
    """A map of [0, 1] read from bins (edges, values) or drawn through points (knots, values)."""

    def forward(self, logits: Tensor) -> Tensor:
        """Mapped values; here the input is a column of probabilities (n,)."""
        if hasattr(self, "edges"):
            return self.values[top.place(logits, self.edges)]
        return top.interpolate(logits, self.knots, self.values)


class NewConfidenceTwin(nn.Module):
    """The top confidence through a table."""

    def __init__(self, table: TableTwin) -> None:
        super().__init__()
        self.table = table

    def forward(self, logits: Tensor) -> Tensor:
        """Log-probabilities."""
        return top.with_confidence(logits, top.log_odds_of(self.table(top.confidence(logits))))


class OneVersusRestTwin(nn.Module):
    """Every class's probability through its own table, rows divided by their sum."""

    def __init__(self, tables: list[TableTwin]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(tables)

    def forward(self, logits: Tensor) -> Tensor:
        """Log-probabilities."""
        columns = logits.double().softmax(dim=1).unbind(dim=1)
        mapped = torch.stack([table(column) for column, table in zip(columns, self.tables, strict=True)], dim=1)
        return top.log_probabilities(mapped / mapped.sum(dim=1, keepdim=True)).to(logits.dtype)


def twin_of(calibrator: Any) -> nn.Module:
    """The torch twin of a fitted calibrator."""
    name = type(calibrator).__name__
    if name not in BUILDERS:
        raise InputError(f"{name} has no torch form; {', '.join(sorted(BUILDERS))} have")
    return BUILDERS[name](calibrator)


def _diagonal(scale: Any, bias: Any = 0.0) -> DiagonalTwin:
    return DiagonalTwin(scale=scale, bias=bias)


def _tabled(tables: list[TableTwin]) -> nn.Module:
    return NewConfidenceTwin(tables[0]) if len(tables) == 1 else OneVersusRestTwin(tables)


def _histogram(calibrator: Any) -> nn.Module:
    pairs = zip(calibrator.edges_, calibrator.values_, strict=True)
    return _tabled([TableTwin(edges=edges, values=values) for edges, values in pairs])


def _isotonic(calibrator: Any) -> nn.Module:
    knots = np.split(calibrator.knots_, calibrator.offsets_[1:-1])
    values = np.split(calibrator.values_, calibrator.offsets_[1:-1])
    return _tabled([TableTwin(knots=x, values=y) for x, y in zip(knots, values, strict=True)])


BUILDERS: dict[str, Callable[[Any], nn.Module]] = {
    "Identity": lambda one: IdentityTwin(),
    "TemperatureScaling": lambda one: _diagonal(1 / one.temperature_),
    "ClassTemperatureScaling": lambda one: _diagonal(1 / np.asarray(one.temperatures_)),
    "ShrunkenClassTemperature": lambda one: _diagonal(1 / np.asarray(one.temperatures_)),
    "VectorScaling": lambda one: _diagonal(one.scale_, one.bias_),
    "StructuredVectorScaling": lambda one: _diagonal(one.scale_, one.bias_),
    "MatrixScaling": lambda one: MatrixTwin(one.matrix_, one.bias_, of_log_probabilities=False),
    "StructuredMatrixScaling": lambda one: MatrixTwin(one.matrix_, one.bias_, of_log_probabilities=False),
    "DirichletCalibration": lambda one: MatrixTwin(one.matrix_, one.bias_, of_log_probabilities=True),
    "EnsembleTemperatureScaling": lambda one: EnsembleTwin(weights=one.weights_, inverse=1 / one.temperature_),
    "ParameterizedTemperatureScaling": NetworkTemperatureTwin,
    "WeightScaling": lambda one: UniformMixTwin(weights=[one.weight_], edges=[0.0, 1.0]),
    "ConfidenceWeightScaling": lambda one: UniformMixTwin(weights=one.weights_, edges=one.edges_),
    "BinTemperatureScaling": lambda one: BinTemperatureTwin(inverse=1 / one.temperatures_, edges=one.edges_),
    "ClassLossScaling": lambda one: twin_of(one.calibrator_),
    "AutoCalibrator": lambda one: twin_of(one.calibrator_),
    "TopLabelMap": lambda one: TopLabelMapTwin(twin_of(one.calibrator_), one.map_),
    "ConfusionScaling": lambda one: ConfusionTwin(
        inverse=1 / one.temperature_, scale=one.scale_, matrix=one.matrix_, bias=one.bias_
    ),
    "ShapeScaling": lambda one: ShapeTwin(twin_of(one.calibrator_), one.shape_),
    "KeptPrediction": lambda one: KeptPredictionTwin(twin_of(one.calibrator_)),
    "LabelShift": lambda one: nn.Sequential(_diagonal(1.0, one.offset_), twin_of(one.calibrator_)),
    "HistogramBinning": _histogram,
    "IsotonicCalibration": _isotonic,
    "SplineCalibration": lambda one: NewConfidenceTwin(TableTwin(knots=one.confidences_, values=one.values_)),
}
"""How each method becomes a module; the names are those of the calibrator classes."""
