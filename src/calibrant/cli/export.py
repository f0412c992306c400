"""`calibrant export cal.safetensors --onnx out.onnx`: a calibrator as an ONNX graph."""

import calibrant as cal
from calibrant.cli.verbs import answer, verb


@verb
def export(
    artifact: str,
    *,
    onnx: str,
    model: str | None = None,
    output_name: str | None = None,
    opset: int | None = None,
    precision: str = "float64",
    as_json: bool = False,
) -> None:
    """Write a calibrator to ONNX, alone or behind a classifier whose own outputs stay as they are.

    Parameters
    ----------
    onnx : ONNX file to write.
    model : A classifier's ONNX file to append the calibrator to.
    output_name : Output of the model that holds its logits.
    opset : Opset of a calibrator alone (a model keeps its own).
    precision : Arithmetic inside: float64 or float32.
    """
    calibrator = cal.load(artifact)
    done = cal.export_onnx(calibrator, onnx, model=model, output_name=output_name, opset=opset, precision=precision)
    method, path = type(calibrator).__name__, str(done.path)
    answer(
        as_json,
        {"path": path, "logits": done.logits, "outputs": done.outputs, "opset": done.opset, "method": method},
        [
            f"{method} on {done.logits}, opset {done.opset}",
            f"new outputs: {', '.join(done.outputs)}",
            f"wrote {path}",
        ],
    )
