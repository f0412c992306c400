"""`calibrant export cal.safetensors --onnx out.onnx`: a calibrator as an ONNX graph."""

from __future__ import annotations

from typing import Annotated

import typer

from calibrant.cli import options
from calibrant.cli.terminal import answer
from calibrant.shipping.artifact import load
from calibrant.shipping.onnx import export_onnx


def export(
    artifact: options.Artifact,
    *,
    onnx: Annotated[str, typer.Option(help="ONNX file to write.")],
    model: Annotated[str | None, typer.Option(help="A classifier's ONNX file to append the calibrator to.")] = None,
    output_name: Annotated[str | None, typer.Option(help="Output of the model that holds its logits.")] = None,
    opset: Annotated[int | None, typer.Option(help="Opset of a calibrator alone (a model keeps its own).")] = None,
    precision: Annotated[str, typer.Option(help="Arithmetic inside: float64 or float32.")] = "float64",
    as_json: options.AsJson = False,
) -> None:
    """Write a calibrator to ONNX, alone or behind a classifier whose own outputs stay as they are."""
    calibrator = load(artifact)
    done = export_onnx(calibrator, onnx, model=model, output_name=output_name, opset=opset, precision=precision)
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
