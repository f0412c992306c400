"""`calibrant export cal.safetensors --onnx out.onnx`: a calibrator as an ONNX graph."""

from __future__ import annotations

import json

import typer

from calibrant.cli.plain import say


def export(
    artifact: str = typer.Argument(..., metavar="ARTIFACT", help="A saved calibrator, such as cal.safetensors."),
    *,
    onnx: str = typer.Option(..., "--onnx", help="ONNX file to write."),
    model: str = typer.Option(None, "--model", help="A classifier's ONNX file to append the calibrator to."),
    output_name: str = typer.Option(None, "--output-name", help="Output of the model that holds its logits."),
    opset: int = typer.Option(None, "--opset", help="Opset of a calibrator alone (a model keeps its own)."),
    precision: str = typer.Option("float64", "--precision", help="Arithmetic inside: float64 or float32."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Write a calibrator to ONNX, alone or behind a classifier whose own outputs stay as they are."""
    from calibrant.shipping.artifact import load
    from calibrant.shipping.onnx import export_onnx

    calibrator = load(artifact)
    done = export_onnx(calibrator, onnx, model=model, output_name=output_name, opset=opset, precision=precision)
    if as_json:
        described = {"path": str(done.path), "logits": done.logits, "outputs": done.outputs, "opset": done.opset}
        typer.echo(json.dumps({**described, "method": type(calibrator).__name__}))
        return
    say(f"{type(calibrator).__name__} on {done.logits}, opset {done.opset}")
    say(f"new outputs: {', '.join(done.outputs)}")
    say(f"wrote {done.path}")
