"""ONNX export: a calibrator as a graph of its own, or as the last layer of a classifier's graph.

The graph computes in float64 unless asked otherwise and gives three outputs: calibrated logits, probabilities, and
the predicted class. Where a method promises to keep the prediction, the class is taken from the incoming logits; ties
that rounding to float32 would make among the probabilities are broken in favour of the predicted class.
"""

import contextlib
import filecmp
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.maps import each_array, raise_zeros
from calibrant.core.atomic import atomic_write, check_replaceable, check_source
from calibrant.core.errors import InputError, MissingExtraError

try:
    import onnx
    from onnx import TensorProto, defs, external_data_helper, helper, shape_inference
except ImportError as error:
    raise MissingExtraError("onnx", "onnx") from error

from calibrant.shipping.artifact import PathName
from calibrant.shipping.onnx_arrays import OnnxArray, OnnxSpace

OPSET = 17
IR_VERSION = 8
"""What runtimes from 2022 on understand."""
OUTPUTS = {
    "logits": ("calibrated_logits", "probabilities", "prediction"),
    "probabilities": ("calibrated_logits", "calibrated_probabilities", "prediction"),
}
"""Names of the outputs by what the calibrator takes."""
APPENDED = ("calibrated_logits", "calibrated_probabilities", "calibrated_prediction")
FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
NORMALISERS = ("Softmax", "LogSoftmax")


class Exported(NamedTuple):
    """What an export did: where the logits came from, and the names of the new outputs."""

    path: Path
    logits: str
    outputs: tuple[str, ...]
    opset: int


def to_onnx(calibrator: Any, *, opset: int = OPSET, precision: str = "float64") -> Any:
    """The calibrator alone as an ONNX model: input `logits` (n×K, float32).

    One that was fitted on probabilities has the input `probabilities`, whose logarithm the graph takes, and its second
    output is called `calibrated_probabilities`.

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
    xp = OnnxSpace(opset=opset, precision=precision)
    _check_exportable(calibrator)
    kind = calibrator.kind_
    given = helper.make_tensor_value_info(kind, TensorProto.FLOAT, _shapes(calibrator)[0])
    body = helper.make_graph([], "calibrant", [given], [])
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)], producer_name="calibrant")
    model.ir_version = IR_VERSION
    _extend(model, calibrator, _entering(xp, calibrator, kind, kind), np.float32, OUTPUTS[kind], group="group")
    onnx.checker.check_model(model)
    return model


def append_to_model(
    calibrator: Any, model: Any, *, output_name: str | None = None, precision: str = "float64"
) -> tuple[Any, str, tuple[str, ...]]:
    """The model with calibration at its end; its own outputs stay.

    Returns the model, which tensor was taken for the logits, and the names of the new outputs.
    """
    _check_exportable(calibrator)
    tensor, elem_type, found = _find_logits(model, calibrator.n_features_in_, output_name)
    graph = model.graph
    taken = {value.name for value in (*graph.input, *graph.initializer)}
    for node in graph.node:
        taken.update((node.name, *node.output))
    xp = OnnxSpace(opset=_opset_of(model), precision=precision, prefix=_free("calibrant", taken))
    outputs = tuple(_free(name, taken) for name in APPENDED)
    if calibrator.task_ == "binary":  # one score per row may come as (n,) or (n, 1)
        tensor = xp.node("Reshape", tensor, xp.constant(np.array([-1])))
    dtype = np.float64 if elem_type == TensorProto.DOUBLE else np.float32
    logits = _entering(xp, calibrator, tensor, "logits")
    _extend(model, calibrator, logits, dtype, outputs, group=_free("group", taken))
    return model, found, outputs


def export_onnx(
    calibrator: Any,
    path: PathName,
    *,
    model: PathName | None = None,
    output_name: str | None = None,
    opset: int | None = None,
    precision: str = "float64",
) -> Exported:
    """Write a calibrator as an ONNX file, alone or appended to the classifier in the file `model`."""
    check_replaceable(path, is_onnx_path, "an ONNX model")
    try:
        os.fsencode(path).decode()
    except UnicodeDecodeError:
        raise InputError(f"onnx cannot write {os.fspath(path)!r}: choose a file name in UTF-8") from None
    if model is not None and os.path.exists(path) and os.path.samefile(model, path):
        raise InputError(f"{path} is the model itself: choose another file to write")
    if model is None:
        if output_name is not None:
            raise InputError("output_name says which output of a model to calibrate: give the model too")
        opset = OPSET if opset is None else opset
        _write_model(to_onnx(calibrator, opset=opset, precision=precision), path)
        return Exported(Path(path), f"input {calibrator.kind_}", OUTPUTS[calibrator.kind_], opset)
    if opset is not None:
        raise InputError("opset is the model's own when a model is given: leave it out")
    check_source(model)
    try:
        loaded = onnx.load(os.fspath(model), load_external_data=False)  # the data stay on disk, however large
    except Exception as error:
        # protobuf's own exception classes differ between its versions
        raise InputError(f"{model} is not an ONNX model ({type(error).__name__})") from error
    if not loaded.graph.output:
        raise InputError(f"{model} is not an ONNX model: its graph has no output")
    result, found, outputs = append_to_model(calibrator, loaded, output_name=output_name, precision=precision)
    _bring_external_data(result, Path(model).resolve().parent, Path(path).parent)
    _write_model(result, path)
    return Exported(Path(path), found, outputs, _opset_of(result))


def _extend(model: Any, calibrator: Any, exact: OnnxArray, dtype: Any, outputs: tuple[str, ...], *, group: str) -> None:
    """Run the calibrator's map over an array of the graph, and make its results outputs of the model, in a dtype."""
    xp, task = exact.space, calibrator.task_
    learned = each_array(calibrator._learned(), xp.asarray)
    if calibrator.takes_groups:
        codes = OnnxArray(xp, np.zeros(2, np.int64), group)
        model.graph.input.append(codes.info(["n"]))
        calibrated = result = calibrator._map_groups(xp, exact, codes, learned)
    else:
        calibrated = result = calibrator._map_either(xp, exact, learned)
    if task == "binary":
        exact, calibrated = (xp.stack([xp.zeros_like(one), one], axis=1) for one in (exact, calibrated))
    if task == "multilabel":  # every label has a probability and a prediction of its own
        chances = xp.astype(xp.write(np.exp, "Sigmoid", calibrated), dtype)
        chosen = xp.astype(calibrated > 0, np.int64)
    else:
        column = xp.argmax(exact if calibrator.keeps_prediction else calibrated, axis=1, keepdims=True)
        chances = xp.astype(xp.softmax_of_rows(calibrated), dtype)
        # the predicted class is strictly the largest: the others stop one rounding step below it
        own = xp.take_along_axis(chances, column, axis=1)
        chances = xp.with_entry(xp.minimum(chances, own * (1 - 2 * np.finfo(dtype).eps)), column, own)
        chosen = xp.squeeze(column, axis=1)
    results = (xp.astype(result, dtype), chances, chosen)
    for name, array, shape in zip(outputs, results, _shapes(calibrator), strict=True):
        xp.nodes.append(helper.make_node("Identity", [array.tensor], [name], name=f"{xp.prefix}/{name}"))
        model.graph.output.append(OnnxArray(xp, array.value, name).info(shape))
    model.graph.node.extend(xp.nodes)
    model.graph.initializer.extend(xp.constants)


def _shapes(calibrator: Any) -> list[list[Any]]:
    """Shapes of the calibrated logits, which are those of the input, of the probabilities and of the predictions."""
    wide = ["n", len(calibrator.classes_)]
    scores = ["n"] if calibrator.task_ == "binary" else ["n", calibrator.n_features_in_]
    return [scores, wide, wide if calibrator.task_ == "multilabel" else ["n"]]


def _entering(xp: OnnxSpace, calibrator: Any, tensor: str, kind: str) -> OnnxArray:
    """A tensor of logits or probabilities as the logits that the calibrator takes, in which −inf has a value.

    That value is put in by a branch, because the mass of every row takes 0.7 times as long as the rest of a
    temperature's graph, and only rows with −inf need it.
    """
    classes, floor = calibrator.task_ == "multiclass", calibrator.log_floor_
    width = () if calibrator.task_ == "binary" else (calibrator.n_features_in_,)
    # the probe's float16 stands for any float: a cast follows
    logits = xp.astype(OnnxArray(xp, np.zeros((2, *width), np.float16), tensor), xp.float64)
    if kind == "probabilities":
        logits = xp.log(logits) if classes else xp.log(logits) - xp.log(1.0 - logits)
    elif calibrator.kind_ == "probabilities" and classes:
        logits = xp.log_softmax_of_rows(logits)
    if floor is None:
        return logits
    if not classes:
        return raise_zeros(xp, logits, floor, scores=True)
    least = xp.constant(np.asarray(-np.finfo(xp.float64).max, dtype=xp.float64))
    infinite = xp.node("Less", xp.node("ReduceMin", logits.tensor, keepdims=0), least)
    branches = {}
    for branch in ("then", "else"):
        body = xp.body()
        array = OnnxArray(body, logits.value, logits.tensor)
        own = (
            raise_zeros(body, array, floor, scores=False)
            if branch == "then"
            else body.write(np.copy, "Identity", array)
        )
        branches[f"{branch}_branch"] = helper.make_graph(body.nodes, branch, [], [own.info(None)], body.constants)
    return OnnxArray(xp, logits.value, xp.node("If", infinite, **branches))


def _check_exportable(calibrator: Any) -> None:
    """Raise InputError for what is no map from logits to logits."""
    if not isinstance(calibrator, Calibrator):
        raise InputError(
            f"{type(calibrator).__name__} cannot be exported to ONNX: it changes the network's input, so it is part of "
            "the network; export the wrapped torch module with torch.onnx.export (needs onnxscript)"
        )
    check_is_fitted(calibrator)


def _find_logits(model: Any, n_classes: int, output_name: str | None) -> tuple[str, int, str]:
    """The tensor to calibrate, its ONNX type, and how it was found: the named output, or the only one with K columns.

    Where that output is a Softmax, calibration starts from what the Softmax reads.
    """
    with_shapes = model
    with contextlib.suppress(RuntimeError, ValueError, shape_inference.InferenceError):
        with_shapes = shape_inference.infer_shapes(model)
    fitting, shown = [], []
    for output in with_shapes.graph.output:
        kind = output.type.tensor_type
        sizes = [size.dim_value or size.dim_param or "?" for size in kind.shape.dim]
        shown.append(f"{output.name} ({', '.join(map(str, sizes)) or 'unknown'})")
        # one score per row may come as (n,) or (n, 1); an output of unknown sizes may be what is meant
        wide = len(sizes) == 2 and (isinstance(sizes[1], str) or sizes[1] == n_classes)
        fits = wide or (len(sizes) == n_classes == 1) or not kind.HasField("shape")
        if fits and kind.elem_type in FLOATS and output_name in (None, output.name):
            fitting.append((output.name, kind.elem_type))
    if len(fitting) != 1:
        called = "" if output_name is None else f" called {output_name!r}"
        raise InputError(
            f"{len(fitting) or 'no'} outputs{called} have {n_classes} columns; the outputs are {', '.join(shown)}: "
            "name one with --output-name"
        )
    ((name, elem_type),) = fitting
    for node in model.graph.node:
        if name in node.output and node.op_type in NORMALISERS:
            return node.input[0], elem_type, f"what the {node.op_type} of output {name} reads"
    return name, elem_type, f"output {name}"


def _opset_of(model: Any) -> int:
    """Version of the default operator set."""
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            return entry.version
    raise InputError("the model does not say which opset it uses")


def _free(name: str, taken: set[str]) -> str:
    """A name that no tensor of the model has or starts with."""
    candidate, number = name, 1
    while any(f"{other}/".startswith(f"{candidate}/") for other in taken):
        number += 1
        candidate = f"{name}_{number}"
    return candidate


def _write_model(model: Any, path: PathName) -> None:
    """Write a model in one step."""
    with atomic_write(path) as temporary:
        try:
            temporary.write_bytes(model.SerializeToString())
        except ValueError as error:
            raise InputError(
                f"cannot write {path}: the model passes protobuf's 2 GiB; store it with external data"
            ) from error
        onnx.checker.check_model(os.fspath(temporary))


def is_onnx_path(path: PathName) -> bool:
    """Return whether a path has the suffix of an ONNX model: the format has no signature."""
    return Path(path).suffix.lower() == ".onnx"


def _bring_external_data(model: Any, source: Path, target: Path) -> None:
    """Copy the data that a model keeps outside to the folder where it will be written."""
    entries = (entry for tensor in external_data_helper._get_all_tensors(model) for entry in tensor.external_data)
    for location in sorted({entry.value for entry in entries if entry.key == "location"}):
        original = (source / location).resolve()
        if os.path.isabs(location) or not original.is_relative_to(source):
            raise InputError(f"the model refers to {location}, outside its own folder: refused")
        if not original.is_file():
            raise InputError(f"the model keeps data in {location}, but {original} does not exist")
        copy = (target / location).resolve()
        if copy == original:
            continue
        if copy.exists() and filecmp.cmp(copy, original, shallow=False):
            continue
        if copy.exists():
            raise InputError(f"{copy} exists and is another file: choose an empty folder for the exported model")
        copy.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(copy) as temporary:
            shutil.copyfile(original, temporary)
