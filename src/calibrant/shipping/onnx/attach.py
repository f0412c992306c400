"""Append calibration nodes to a classifier's own ONNX graph, whose outputs stay as they are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import onnx
from onnx import TensorProto, external_data_helper, shape_inference

from calibrant.core.atomic import atomic_write
from calibrant.core.errors import InputError

FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
NORMALISERS = ("Softmax", "LogSoftmax")


class Logits(NamedTuple):
    """The tensor of a model that holds its logits, its ONNX type, and how it was found."""

    name: str
    elem_type: int
    found: str


def load_model(path: str | os.PathLike[str]) -> Any:
    """A model without its external data: those stay on disk, however large."""
    if not os.path.isfile(path):
        raise InputError(f"{path}: {'this is a folder' if os.path.isdir(path) else 'there is no such file'}")
    try:
        model = onnx.load(os.fspath(path), load_external_data=False)
    except Exception as error:
        # protobuf's own exception classes differ between its versions
        raise InputError(f"{path} is not an ONNX model ({type(error).__name__})") from error
    if not model.graph.output:
        raise InputError(f"{path} is not an ONNX model: its graph has no output")
    return model


def opset_of(model: Any) -> int:
    """Version of the default operator set."""
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            return int(entry.version)
    raise InputError("the model does not say which opset it uses")


def find_logits(model: Any, n_classes: int, output_name: str | None) -> Logits:
    """The tensor to calibrate: the output that was named, or the only one that has K columns.

    Where that output is a Softmax, calibration starts from what the Softmax reads.
    """
    outputs = {value.name: value for value in _typed(model).graph.output}
    if output_name is None:
        fitting = [name for name, value in outputs.items() if _may_be_logits(value, n_classes)]
        if len(fitting) != 1:
            shown = ", ".join(f"{name} {_shape(value)}" for name, value in outputs.items())
            reason = "no output has" if not fitting else f"{len(fitting)} outputs have"
            raise InputError(f"{reason} {n_classes} columns; the outputs are {shown}: name one with --output-name")
        output_name = fitting[0]
    elif output_name not in outputs:
        raise InputError(f"the model has no output {output_name!r}, but {', '.join(outputs)}")
    elif not _may_be_logits(outputs[output_name], n_classes):
        raise InputError(
            f"output {output_name} has shape {_shape(outputs[output_name])}, but the calibrator needs (n, {n_classes})"
        )
    elem_type = outputs[output_name].type.tensor_type.elem_type
    for node in model.graph.node:
        if output_name in node.output and node.op_type in NORMALISERS:
            return Logits(node.input[0], elem_type, f"what the {node.op_type} of output {output_name} reads")
    return Logits(output_name, elem_type, f"output {output_name}")


def used_names(model: Any) -> set[str]:
    """Every name of a model's graph."""
    graph = model.graph
    names = {value.name for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info)}
    for node in graph.node:
        names.update((node.name, *node.input, *node.output))
    return names


def write_model(model: Any, path: str | os.PathLike[str], model_folder: Path | None = None) -> None:
    """Write a model in one step; data that it keeps outside are placed beside it first."""
    target = Path(path)
    if model_folder is not None:
        _bring_external_data(model, model_folder, target.parent)
    with atomic_write(target) as temporary:
        try:
            content = model.SerializeToString()
        except ValueError as error:
            raise InputError(
                f"cannot write {path}: the model passes protobuf's 2 GiB; store it with external data"
            ) from error
        temporary.write_bytes(content)
        onnx.checker.check_model(os.fspath(temporary))


def external_locations(model: Any) -> list[str]:
    """Relative paths of the files that hold a model's external data."""
    found: set[str] = set()
    for tensor in external_data_helper._get_all_tensors(model):
        if external_data_helper.uses_external_data(tensor):
            found.update(entry.value for entry in tensor.external_data if entry.key == "location")
    return sorted(found)


def _bring_external_data(model: Any, source: Path, target: Path) -> None:
    for location in external_locations(model):
        original = (source / location).resolve()
        if os.path.isabs(location) or not original.is_relative_to(source.resolve()):
            raise InputError(f"the model refers to {location}, outside its own folder: refused")
        if not original.is_file():
            raise InputError(f"the model keeps data in {location}, but {original} does not exist")
        copy = (target / location).resolve()
        if copy == original:
            continue
        if copy.exists() and copy.stat().st_size != original.stat().st_size:
            raise InputError(f"{copy} exists and is another file: choose an empty folder for the exported model")
        copy.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(copy) as temporary:
            shutil.copyfile(original, temporary)


def _typed(model: Any) -> Any:
    """The model with the shapes of its outputs, inferred where it does not state them."""
    if all(value.type.tensor_type.HasField("shape") for value in model.graph.output):
        return model
    try:
        return shape_inference.infer_shapes(model)
    except (RuntimeError, ValueError, shape_inference.InferenceError):
        return model


def _may_be_logits(value: Any, n_classes: int) -> bool:
    tensor = value.type.tensor_type
    if tensor.elem_type not in FLOATS:
        return False
    if not tensor.HasField("shape"):
        return True
    sizes = tensor.shape.dim
    if n_classes == 1 and len(sizes) == 1:
        return True
    return len(sizes) == 2 and (not sizes[1].HasField("dim_value") or sizes[1].dim_value == n_classes)


def _shape(value: Any) -> str:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return "(unknown)"
    sizes = [str(size.dim_value) if size.HasField("dim_value") else size.dim_param or "?" for size in tensor.shape.dim]
    return f"({', '.join(sizes)})"
