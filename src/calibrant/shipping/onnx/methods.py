"""Each method's `transform` as ONNX nodes: one short function a method, shaped like its equation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.shipping.onnx.graph import Graph
from calibrant.shipping.onnx.top_label import (
    confidence,
    histogram,
    isotonic,
    keep,
    softplus,
    spline,
    top_log_odds,
    with_confidence,
)

Writer = Callable[[Any, Graph, str], str]
"""`writer(calibrator, graph, logits)` adds nodes and returns the name of the calibrated logits."""

LOWEST_TEMPERATURE = 1e-3
"""As in the method itself, whose module needs torch; a test holds the two together."""

CANNOT = {
    "NeuralClamping": "it changes the network's input, so it is part of the network: export the wrapped torch module",
}
"""Methods that have no graph over logits, and why."""


def calibrate(calibrator: Any, graph: Graph, logits: str) -> str:
    """Add the nodes of a fitted calibrator; returns its calibrated logits (n×K)."""
    name = type(calibrator).__name__
    if name in CANNOT:
        raise InputError(f"{name} cannot be exported to ONNX: {CANNOT[name]}")
    if name not in WRITERS:
        raise InputError(
            f"{name} cannot be exported to ONNX: no graph is known for it; {', '.join(sorted(WRITERS))} can"
        )
    return WRITERS[name](calibrator, graph, logits)


def _identity(_calibrator: Any, graph: Graph, logits: str) -> str:
    return graph.node("Identity", logits)


def _temperature(calibrator: Any, graph: Graph, logits: str) -> str:
    return graph.multiply(logits, graph.number(1.0 / calibrator.temperature_))


def _class_temperature(calibrator: Any, graph: Graph, logits: str) -> str:
    return graph.multiply(logits, graph.number(1.0 / np.asarray(calibrator.temperatures_)[None, :]))


def _vector(calibrator: Any, graph: Graph, logits: str) -> str:
    scaled = graph.multiply(logits, graph.number(calibrator.scale_[None, :]))
    return graph.add(scaled, graph.number(calibrator.bias_[None, :]))


def _matrix(calibrator: Any, graph: Graph, logits: str) -> str:
    product = graph.node("MatMul", logits, graph.number(np.asarray(calibrator.matrix_).T))
    return graph.add(product, graph.number(np.asarray(calibrator.bias_)[None, :]))


def _dirichlet(calibrator: Any, graph: Graph, logits: str) -> str:
    return _matrix(calibrator, graph, graph.log_softmax(logits))


def _ensemble(calibrator: Any, graph: Graph, logits: str) -> str:
    tempered, plain, uniform = (float(weight) for weight in calibrator.weights_)
    n_classes = int(calibrator.n_features_in_)
    mixed = graph.multiply(graph.softmax(_temperature(calibrator, graph, logits)), graph.number(tempered))
    mixed = graph.add(mixed, graph.multiply(graph.softmax(logits), graph.number(plain)))
    mixed = graph.add(mixed, graph.number(uniform / n_classes))
    return keep(graph, graph.log(mixed), graph.argmax(logits), n_classes)


def _mix_with_uniform(graph: Graph, logits: str, weight: str, n_classes: int) -> str:
    """log(α·p + (1 − α)/K), the prediction ahead even at α = 0."""
    rest = graph.multiply(graph.subtract(graph.number(1.0), weight), graph.number(1.0 / n_classes))
    mixed = graph.add(graph.multiply(graph.softmax(logits), weight), rest)
    return keep(graph, graph.log(mixed), graph.argmax(logits), n_classes)


def _weight(calibrator: Any, graph: Graph, logits: str) -> str:
    return _mix_with_uniform(graph, logits, graph.number(calibrator.weight_), int(calibrator.n_features_in_))


def _confidence_weight(calibrator: Any, graph: Graph, logits: str) -> str:
    weight = graph.look_up(calibrator.weights_, graph.place(confidence(graph, logits), calibrator.edges_))
    return _mix_with_uniform(graph, logits, weight, int(calibrator.n_features_in_))


def _bin_temperature(calibrator: Any, graph: Graph, logits: str) -> str:
    bin_index = graph.place(confidence(graph, logits), calibrator.edges_)
    scaled = graph.multiply(logits, graph.look_up(1.0 / calibrator.temperatures_, bin_index))
    return keep(graph, scaled, graph.argmax(logits), int(calibrator.n_features_in_))


def _parameterized_temperature(calibrator: Any, graph: Graph, logits: str) -> str:
    """T = |MLP(the k largest logits, sorted)|."""
    mean, scale = np.asarray(calibrator.feature_mean_), np.asarray(calibrator.feature_scale_)
    largest, _ = graph.nodes_with("TopK", (logits, graph.integers([len(mean)])), 2, axis=1)
    hidden = graph.divide(graph.subtract(largest, graph.number(mean[None, :])), graph.number(scale[None, :]))
    last = len(calibrator.weights_) - 1
    for layer, (weight, bias) in enumerate(zip(calibrator.weights_, calibrator.biases_, strict=True)):
        hidden = graph.add(graph.node("MatMul", hidden, graph.number(weight)), graph.number(bias[None, :]))
        hidden = hidden if layer == last else graph.node("Tanh", hidden)
    temperature = graph.node("Max", graph.node("Abs", hidden), graph.number(LOWEST_TEMPERATURE))
    return graph.divide(logits, temperature)


def _top_label_map(calibrator: Any, graph: Graph, logits: str) -> str:
    """Logit g = a·log c − b·log(1 − c) + d."""
    n_classes = int(calibrator.n_features_in_)
    calibrated = calibrate(calibrator.calibrator_, graph, logits)
    odds = top_log_odds(graph, calibrated, n_classes)
    a, b, d = (graph.number(value) for value in calibrator.map_)
    log_right = graph.node("Neg", softplus(graph, graph.node("Neg", odds)))
    mapped = graph.add(graph.multiply(a, log_right), graph.multiply(b, softplus(graph, odds)))
    return with_confidence(graph, calibrated, graph.add(mapped, d), n_classes)


def _shape(calibrator: Any, graph: Graph, logits: str) -> str:
    """θ·φ, φ = (l, −log(1 − p), log(p + floor), l·log(1 − c)/5), the inner prediction first."""
    from calibrant.calibrators.shape import FLOOR, LARGEST_CONFIDENCE, LARGEST_P

    inner = calibrate(calibrator.calibrator_, graph, logits)
    log_p = graph.log_softmax(inner)
    p = graph.node("Exp", log_p)

    def log_rest(probability: str, largest: float) -> str:
        bounded = graph.node("Min", probability, graph.number(largest))
        return graph.node("Log", graph.subtract(graph.number(1.0), bounded))

    sureness = graph.multiply(log_rest(graph.reduce("ReduceMax", p), LARGEST_CONFIDENCE), graph.number(0.2))
    features = (
        log_p,
        graph.node("Neg", log_rest(p, LARGEST_P)),
        graph.node("Log", graph.add(p, graph.number(FLOOR))),
        graph.multiply(log_p, sureness),
    )
    weighted = [graph.multiply(f, graph.number(theta)) for f, theta in zip(features, calibrator.shape_, strict=True)]
    bent = graph.log_softmax(graph.node("Sum", *weighted))
    return keep(graph, bent, graph.argmax(inner), int(calibrator.n_features_in_))


def _confusion(calibrator: Any, graph: Graph, logits: str) -> str:
    """a∘z̄/T + C·log(1 + p/0.01) + b, p = softmax(z/T)."""
    from calibrant.calibrators.confusion import FLOOR

    scaled = _temperature(calibrator, graph, logits)
    centred = graph.subtract(scaled, graph.reduce("ReduceMean", scaled))
    lifted = graph.add(graph.multiply(graph.softmax(scaled), graph.number(1 / FLOOR)), graph.number(1.0))
    confused = graph.node("MatMul", graph.node("Log", lifted), graph.number(np.asarray(calibrator.matrix_).T))
    return graph.add(_vector(calibrator, graph, centred), confused)


def _kept_prediction(calibrator: Any, graph: Graph, logits: str) -> str:
    """Where another class came first, the two share their mean."""
    inner = calibrate(calibrator.calibrator_, graph, logits)
    n_classes = int(calibrator.n_features_in_)
    scores, kept = graph.log_softmax(inner), graph.argmax(logits)
    winner = graph.argmax(scores)
    first, second = (graph.node("GatherElements", scores, column, axis=1) for column in (winner, kept))
    total = graph.add(second, softplus(graph, graph.subtract(first, second)))
    share = graph.subtract(total, graph.number(np.log(2.0)))
    pair = graph.node("Or", graph.is_column(winner, n_classes), graph.is_column(kept, n_classes))
    moved = graph.node("And", pair, graph.node("Not", graph.node("Equal", winner, kept)))
    return keep(graph, graph.node("Where", moved, share, scores), kept, n_classes)


def _label_shift(calibrator: Any, graph: Graph, logits: str) -> str:
    """The inner calibrator of logits that carry the offsets."""
    return calibrate(calibrator.calibrator_, graph, graph.add(logits, graph.number(np.asarray(calibrator.offset_))))


def _inner(calibrator: Any, graph: Graph, logits: str) -> str:
    return calibrate(calibrator.calibrator_, graph, logits)


WRITERS: dict[str, Writer] = {
    "Identity": _identity,
    "TemperatureScaling": _temperature,
    "ClassTemperatureScaling": _class_temperature,
    "ShrunkenClassTemperature": _class_temperature,
    "VectorScaling": _vector,
    "StructuredVectorScaling": _vector,
    "MatrixScaling": _matrix,
    "StructuredMatrixScaling": _matrix,
    "DirichletCalibration": _dirichlet,
    "EnsembleTemperatureScaling": _ensemble,
    "WeightScaling": _weight,
    "ConfidenceWeightScaling": _confidence_weight,
    "BinTemperatureScaling": _bin_temperature,
    "ParameterizedTemperatureScaling": _parameterized_temperature,
    "TopLabelMap": _top_label_map,
    "HistogramBinning": histogram,
    "IsotonicCalibration": isotonic,
    "SplineCalibration": spline,
    "ShapeScaling": _shape,
    "ConfusionScaling": _confusion,
    "KeptPrediction": _kept_prediction,
    "LabelShift": _label_shift,
    "ClassLossScaling": _inner,
    "AutoCalibrator": _inner,
}
