"""Each method's `transform` as ONNX nodes: one short function a method, shaped like its equation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.shipping.onnx.graph import Graph

Writer = Callable[[Any, Graph, str], str]
"""`writer(calibrator, graph, logits)` adds nodes and returns the name of the calibrated logits."""

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


def _inner(calibrator: Any, graph: Graph, logits: str) -> str:
    return calibrate(calibrator.calibrator_, graph, logits)


WRITERS: dict[str, Writer] = {
    "Identity": _identity,
    "TemperatureScaling": _temperature,
    "ClassTemperatureScaling": _class_temperature,
    "VectorScaling": _vector,
    "MatrixScaling": _matrix,
    "StructuredMatrixScaling": _matrix,
    "DirichletCalibration": _dirichlet,
    "ClassLossScaling": _inner,
}
