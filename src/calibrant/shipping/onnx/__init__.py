"""ONNX export: a calibrator as a graph of its own, or as the last layer of a classifier's graph.

The graph computes in float64 unless asked otherwise and gives three outputs: calibrated logits, probabilities, and
the predicted class. Where a method promises to keep the prediction, the class is taken from the incoming logits; ties
that rounding to float32 would make among the probabilities are broken in favour of the predicted class.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calibrant.core.errors import InputError, MissingExtraError

try:
    import onnx
    from onnx import TensorProto, defs, helper
except ImportError as error:
    raise MissingExtraError("onnx", "onnx") from error

from calibrant.shipping.onnx.attach import find_logits, load_model, opset_of, used_names, write_model
from calibrant.shipping.onnx.graph import Graph
from calibrant.shipping.onnx.methods import calibrate

OPSET = 17
IR_VERSION = 8
"""What runtimes from 2022 on understand."""


class Exported(NamedTuple):
    """What an export did: where the logits came from, and the names of the new outputs."""

    path: Path
    logits: str
    outputs: tuple[str, str, str]
    opset: int


def to_onnx(calibrator: Any, *, opset: int = OPSET, precision: str = "float64") -> Any:
    """The calibrator alone as an ONNX model: input `logits` (n×K, float32).

    Outputs are `calibrated_logits` (n×K), `probabilities` (n×K) and `prediction` (n,).

    Examples
    --------
    >>> import calibrant, numpy as np
    >>> fitted = calibrant.Identity().fit(np.eye(3), [0, 1, 2])
    >>> [output.name for output in to_onnx(fitted).graph.output]
    ['calibrated_logits', 'probabilities', 'prediction']
    """
    newest = defs.onnx_opset_version()
    if opset > newest:
        raise InputError(f"opset {opset} does not exist yet: the installed onnx knows 1 to {newest}")
    graph = Graph(opset=opset, precision=precision)
    n_classes = int(calibrator.n_features_in_)
    outputs = ("calibrated_logits", "probabilities", "prediction")
    _write_nodes(graph, calibrator, "logits", TensorProto.FLOAT, outputs)
    body = helper.make_graph(
        graph.nodes,
        "calibrant",
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", n_classes])],
        _output_infos(outputs, TensorProto.FLOAT, n_classes),
        graph.constants,
    )
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)], producer_name="calibrant")
    model.ir_version = IR_VERSION
    onnx.checker.check_model(model)
    return model


def append_to_model(
    calibrator: Any, model: Any, *, output_name: str | None = None, precision: str = "float64"
) -> tuple[Any, str, tuple[str, str, str]]:
    """The model with calibration at its end; its own outputs stay.

    Returns the model, which tensor was taken for the logits, and the names of the new outputs.
    """
    n_classes = int(calibrator.n_features_in_)
    found = find_logits(model, n_classes, output_name)
    taken = used_names(model)
    prefix = _free("calibrant", taken)
    graph = Graph(opset=opset_of(model), precision=precision, prefix=prefix)
    names = ("calibrated_logits", "calibrated_probabilities", "calibrated_prediction")
    outputs = (_free(names[0], taken), _free(names[1], taken), _free(names[2], taken))
    result_type = TensorProto.DOUBLE if found.elem_type == TensorProto.DOUBLE else TensorProto.FLOAT
    _write_nodes(graph, calibrator, found.name, result_type, outputs)
    model.graph.node.extend(graph.nodes)
    model.graph.initializer.extend(graph.constants)
    model.graph.output.extend(_output_infos(outputs, result_type, n_classes))
    return model, found.found, outputs


def export_onnx(
    calibrator: Any,
    path: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | None = None,
    output_name: str | None = None,
    opset: int | None = None,
    precision: str = "float64",
) -> Exported:
    """Write a calibrator as an ONNX file, alone or appended to the classifier in the file `model`."""
    if model is None:
        if output_name is not None:
            raise InputError("output_name says which output of a model to calibrate: give the model too")
        opset = OPSET if opset is None else opset
        write_model(to_onnx(calibrator, opset=opset, precision=precision), path)
        return Exported(Path(path), "input logits", ("calibrated_logits", "probabilities", "prediction"), opset)
    if opset is not None:
        raise InputError("opset is the model's own when a model is given: leave it out")
    loaded = load_model(model)
    result, found, outputs = append_to_model(calibrator, loaded, output_name=output_name, precision=precision)
    write_model(result, path, Path(model).resolve().parent)
    return Exported(Path(path), found, outputs, opset_of(result))


def _write_nodes(graph: Graph, calibrator: Any, logits: str, result_type: int, outputs: tuple[str, str, str]) -> None:
    n_classes = int(calibrator.n_features_in_)
    exact = graph.cast(logits)
    calibrated = calibrate(calibrator, graph, exact)
    column = graph.argmax(exact if calibrator.keeps_prediction else calibrated)
    narrow = graph.cast(calibrated, result_type)
    probabilities = graph.cast(graph.softmax(calibrated), result_type)
    probabilities = _favour(graph, probabilities, graph.is_column(column, n_classes), result_type)
    for name, tensor in zip(outputs, (narrow, probabilities, graph.squeeze(column, 1)), strict=True):
        graph.nodes.append(helper.make_node("Identity", [tensor], [name], name=f"{graph.prefix}/{name}"))


def _favour(graph: Graph, probabilities: str, mask: str, result_type: int) -> str:
    """Probabilities whose predicted class is strictly the largest: the others stop one rounding step below it."""
    kind = np.float64 if result_type == TensorProto.DOUBLE else np.float32
    below = graph.typed(kind(1) - 2 * np.finfo(kind).eps, kind)
    zero = graph.typed(kind(0), kind)
    predicted = graph.reduce("ReduceSum", graph.node("Where", mask, probabilities, zero))
    return graph.node("Where", mask, probabilities, graph.node("Min", probabilities, graph.multiply(predicted, below)))


def _output_infos(names: tuple[str, str, str], elem_type: int, n_classes: int) -> list[Any]:
    matrix: list[str | int | None] = ["n", n_classes]
    return [
        helper.make_tensor_value_info(names[0], elem_type, matrix),
        helper.make_tensor_value_info(names[1], elem_type, matrix),
        helper.make_tensor_value_info(names[2], TensorProto.INT64, ["n"]),
    ]


def _free(name: str, taken: set[str]) -> str:
    """A name that no tensor of the model has or starts with."""
    candidate, number = name, 1
    while candidate in taken or any(other.startswith(f"{candidate}/") for other in taken):
        number += 1
        candidate = f"{name}_{number}"
    return candidate
