"""ONNX export: a calibrator as a graph of its own, or as the last layer of a classifier's graph.

The graph computes in float64 unless asked otherwise and gives three outputs: calibrated logits, probabilities, and
the predicted class. Where a method promises to keep the prediction, the class is taken from the incoming logits; ties
that rounding to float32 would make among the probabilities are broken in favour of the predicted class.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.maps.zeros import raise_zeros, zero_levels
from calibrant.core.errors import InputError, MissingExtraError

try:
    import onnx
    from onnx import TensorProto, defs, helper
except ImportError as error:
    raise MissingExtraError("onnx", "onnx") from error

from calibrant.shipping.onnx.arrays import OnnxArray
from calibrant.shipping.onnx.attach import find_logits, load_model, opset_of, used_names, write_model
from calibrant.shipping.onnx.graph import Graph
from calibrant.shipping.onnx.namespace import OnnxSpace

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

    A calibrator of groups has a second input `group` (n, int64): the number of each row's group in `groups_`, −1 for an
    unknown one.

    Outputs are `calibrated_logits` (n×K), `probabilities` (n×K) and `prediction` (n,); of many labels the probability
    and the prediction 0 or 1 of each label (n×L).

    Examples
    --------
    >>> import calibrant, numpy as np
    >>> fitted = calibrant.Identity().fit(2 * np.eye(3), [0, 1, 2])
    >>> [output.name for output in to_onnx(fitted).graph.output]
    ['calibrated_logits', 'probabilities', 'prediction']
    """
    newest = defs.onnx_opset_version()
    if opset > newest:
        raise InputError(f"opset {opset} does not exist yet: the installed onnx knows 1 to {newest}")
    graph = Graph(opset=opset, precision=precision)
    _check_exportable(calibrator)
    outputs = ("calibrated_logits", "probabilities", "prediction")
    group = "group" if getattr(calibrator, "takes_groups", False) else None
    _write_nodes(graph, calibrator, "logits", TensorProto.FLOAT, outputs, group)
    body = helper.make_graph(
        graph.nodes,
        "calibrant",
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, _input_shape(calibrator)), *_group_input(group)],
        _output_infos(outputs, TensorProto.FLOAT, calibrator),
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
    _check_exportable(calibrator)
    found = find_logits(model, int(calibrator.n_features_in_), output_name)
    taken = used_names(model)
    prefix = _free("calibrant", taken)
    graph = Graph(opset=opset_of(model), precision=precision, prefix=prefix)
    names = ("calibrated_logits", "calibrated_probabilities", "calibrated_prediction")
    outputs = (_free(names[0], taken), _free(names[1], taken), _free(names[2], taken))
    result_type = TensorProto.DOUBLE if found.elem_type == TensorProto.DOUBLE else TensorProto.FLOAT
    # one score per row may come as (n,) or (n, 1)
    one_column = calibrator.task_ == "binary"
    tensor = graph.node("Reshape", found.name, graph.constant(np.array([-1]))) if one_column else found.name
    group = _free("group", taken) if getattr(calibrator, "takes_groups", False) else None
    _write_nodes(graph, calibrator, tensor, result_type, outputs, group)
    model.graph.input.extend(_group_input(group))
    model.graph.node.extend(graph.nodes)
    model.graph.initializer.extend(graph.constants)
    model.graph.output.extend(_output_infos(outputs, result_type, calibrator))
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


def _group_input(group: str | None) -> list[Any]:
    """The input that says which group each row belongs to, where there is one."""
    return [] if group is None else [helper.make_tensor_value_info(group, TensorProto.INT64, ["n"])]


def _write_nodes(  # noqa: PLR0917
    graph: Graph,
    calibrator: Any,
    logits: str,
    result_type: int,
    outputs: tuple[str, str, str],
    group: str | None = None,
) -> None:
    """Run the calibrator's map over a tensor of the graph, and name its results."""
    xp = OnnxSpace(graph)
    binary = calibrator.task_ == "binary"
    given = xp.array(logits, (None,) if binary else (None, int(calibrator.n_features_in_)), np.float16)
    exact = _without_zeros(xp, xp.astype(given, graph.dtype), zero_levels(calibrator))
    learned = _constants(xp, calibrator._learned())
    if group is not None:
        calibrated = result = calibrator._map_groups(xp, exact, xp.array(group, (None,), np.int64), learned)
    else:
        calibrated = result = (calibrator._map_binary if binary else calibrator._map)(xp, exact, learned)
    if binary:
        exact, calibrated = (xp.stack([xp.zeros_like(one), one], axis=1) for one in (exact, calibrated))
    kind = helper.tensor_dtype_to_np_dtype(result_type)
    if calibrator.task_ == "multilabel":
        # every label has a probability and a prediction of its own
        chances = xp.array(graph.node("Sigmoid", calibrated.tensor), calibrated.shape, graph.dtype)
        found = (xp.astype(result, kind), xp.astype(chances, kind), xp.astype(calibrated > 0, np.int64))
        _name_outputs(graph, outputs, found)
        return
    column = xp.argmax(exact if calibrator.keeps_prediction else calibrated, axis=1, keepdims=True)
    chances = _favour(xp, xp.astype(xp.softmax_of_rows(calibrated), kind), column, kind)
    _name_outputs(graph, outputs, (xp.astype(result, kind), chances, xp.squeeze(column, axis=1)))


def _name_outputs(graph: Graph, outputs: tuple[str, str, str], arrays: tuple[OnnxArray, ...]) -> None:
    for name, array in zip(outputs, arrays, strict=True):
        graph.nodes.append(helper.make_node("Identity", [array.tensor], [name], name=f"{graph.prefix}/{name}"))


def _without_zeros(xp: OnnxSpace, logits: OnnxArray, levels: np.ndarray | None) -> OnnxArray:
    """Logits in which −inf has a value; rows are only looked at one by one where the smallest of all is −inf."""
    if levels is None:
        return logits
    if len(logits.shape) == 1:
        return raise_zeros(xp, logits, xp.asarray(levels))
    graph = xp.graph
    lowest = graph.node("ReduceMin", logits.tensor, keepdims=0)
    infinite = graph.node("Less", lowest, graph.constant(np.asarray(-np.finfo(graph.dtype).max, dtype=graph.dtype)))
    inside = OnnxSpace(graph.body())
    raised = raise_zeros(inside, inside.array(logits.tensor, logits.shape, graph.dtype), inside.asarray(levels))
    branches = {}
    for branch, tensor, nodes in (
        ("then_branch", raised.tensor, inside.graph.nodes),
        ("else_branch", logits.tensor, []),
    ):
        name = graph.name("logits")
        body = [*nodes, helper.make_node("Identity", [tensor], [name])]
        info = helper.make_tensor_value_info(name, graph.onnx_dtype, None)
        constants = inside.graph.constants if branch == "then_branch" else []
        branches[branch] = helper.make_graph(body, branch, [], [info], constants)
    return xp.array(graph.node("If", infinite, **branches), logits.shape, graph.dtype)


def _constants(xp: OnnxSpace, learned: Any) -> Any:
    """What was learned, as constants of the graph."""
    if isinstance(learned, SimpleNamespace):
        return SimpleNamespace(**{name: _constants(xp, value) for name, value in vars(learned).items()})
    return [_constants(xp, one) for one in learned] if isinstance(learned, list) else xp.asarray(learned)


def _favour(xp: OnnxSpace, probabilities: OnnxArray, column: OnnxArray, kind: Any) -> OnnxArray:
    """Probabilities whose predicted class is strictly the largest: the others stop one rounding step below it."""
    below = np.dtype(kind).type(1) - 2 * np.finfo(kind).eps
    own = xp.take_along_axis(probabilities, column, axis=1)
    return xp.with_entry(xp.minimum(probabilities, own * below), column, own)


def _check_exportable(calibrator: Any) -> None:
    """Raise InputError for what is no map from logits to logits."""
    if not isinstance(calibrator, Calibrator):
        raise InputError(
            f"{type(calibrator).__name__} cannot be exported to ONNX: it changes the network's input, so it is part of "
            "the network; export the wrapped torch module with torch.onnx.export (needs onnxscript)"
        )
    check_is_fitted(calibrator)


def _input_shape(calibrator: Any) -> list[str | int | None]:
    return ["n"] if calibrator.task_ == "binary" else ["n", int(calibrator.n_features_in_)]


def _output_infos(names: tuple[str, str, str], elem_type: int, calibrator: Any) -> list[Any]:
    labels: list[str | int | None] = ["n", len(calibrator.classes_)] if calibrator.task_ == "multilabel" else ["n"]
    return [
        helper.make_tensor_value_info(names[0], elem_type, _input_shape(calibrator)),
        helper.make_tensor_value_info(names[1], elem_type, ["n", len(calibrator.classes_)]),
        helper.make_tensor_value_info(names[2], TensorProto.INT64, labels),
    ]


def _free(name: str, taken: set[str]) -> str:
    """A name that no tensor of the model has or starts with."""
    candidate, number = name, 1
    while candidate in taken or any(other.startswith(f"{candidate}/") for other in taken):
        number += 1
        candidate = f"{name}_{number}"
    return candidate
