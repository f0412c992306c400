"""`calibrant serve cal.safetensors`: an HTTP service around one calibrator."""

from __future__ import annotations

import json

import typer


def serve(
    artifact: str = typer.Argument(..., metavar="ARTIFACT", help="A saved calibrator, such as cal.safetensors."),
    *,
    host: str = typer.Option("127.0.0.1", "--host", help="Address to bind to; the default is this machine only."),
    port: int = typer.Option(8080, "--port", min=0, max=65535, help="Port to bind to; 0 takes any that is free."),
    max_rows: int = typer.Option(65_536, "--max-rows", min=1, help="Most rows of one request."),
    max_megabytes: int = typer.Option(64, "--max-megabytes", min=1, help="Largest body of one request."),
    timeout: float = typer.Option(30.0, "--timeout", min=0.1, help="Seconds a body may take to arrive."),
    as_json: bool = typer.Option(False, "--json", help="Print where the service listens as JSON."),
) -> None:
    """Serve a calibrator: POST logits to /calibrate as JSON, npy or Arrow; see / for the rest. Stop with Ctrl-C."""
    from calibrant.shipping.artifact import read_artifact
    from calibrant.shipping.serve import Limits
    from calibrant.shipping.serve import serve as run

    loaded = read_artifact(artifact)
    limits = Limits(body_bytes=max_megabytes << 20, rows=max_rows, body_seconds=timeout)

    def announce(address: str) -> None:
        if as_json:
            typer.echo(json.dumps({"address": address, "method": loaded.method, "n_classes": loaded.n_classes}))
            return
        typer.echo(f"{loaded.method} for {loaded.n_classes} classes on {address} (Ctrl-C stops)")
        if host not in ("127.0.0.1", "localhost", "::1"):
            typer.echo("warning: no password protects this service; put it behind a proxy that asks for one", err=True)

    run(loaded, host=host, port=port, limits=limits, announce=announce)
