"""`calibrant serve cal.safetensors`: an HTTP service around one calibrator."""

from __future__ import annotations

import json
from typing import Any

import typer

from calibrant.cli.plain import say


def serve(
    artifact: str = typer.Argument(..., metavar="ARTIFACT", help="A saved calibrator, such as cal.safetensors."),
    *,
    host: str = typer.Option("127.0.0.1", "--host", help="Address to bind to; the default is this machine only."),
    port: int = typer.Option(8080, "--port", min=0, max=65535, help="Port to bind to; 0 takes any that is free."),
    max_rows: int = typer.Option(65_536, "--max-rows", min=1, help="Most rows of one request."),
    max_megabytes: int = typer.Option(64, "--max-megabytes", min=1, help="Largest body of one request."),
    max_connections: int = typer.Option(2048, "--max-connections", min=1, help="Most connections at a time."),
    max_requests: int = typer.Option(512, "--max-requests", min=1, help="Most requests answered at a time."),
    timeout: float = typer.Option(30.0, "--timeout", min=0.1, help="Seconds a body may take to arrive."),
    header_timeout: float = typer.Option(10.0, "--header-timeout", min=0.1, help="Seconds for a request's headers."),
    drain: float = typer.Option(0.0, "--drain", min=0.0, help="Seconds between SIGTERM and the end of service."),
    reload: bool = typer.Option(True, "--reload/--no-reload", help="Take over a new ARTIFACT while running."),
    access_log: bool = typer.Option(True, "--access-log/--no-access-log", help="One JSON line per request on stderr."),
    rate: float = typer.Option(0.01, "--false-alarm-rate", help="Of the monitor behind /feedback."),
    batch: str = typer.Option(
        None, "--batch", help="A number, or the field that names the batch of a feedback answer."
    ),
    by: str = typer.Option(None, "--by", help="Field that names the group of a feedback answer."),
    state: str = typer.Option(None, "--monitor-state", help="File that keeps the monitor between runs."),
    as_json: bool = typer.Option(False, "--json", help="Print where the service listens as JSON."),
) -> None:
    """Serve a calibrator: POST numbers to /calibrate as JSON, npy or Arrow; see / for the rest. Stop with Ctrl-C."""
    from calibrant.shipping.artifact import read_artifact
    from calibrant.shipping.serve import Limits
    from calibrant.shipping.serve import serve as run

    limits = Limits(
        body_bytes=max_megabytes << 20,
        rows=max_rows,
        header_seconds=header_timeout,
        body_seconds=timeout,
        connections=max_connections,
        requests=max_requests,
        drain_seconds=drain,
    )
    loaded = read_artifact(artifact)

    def desk(served: Any) -> Any:
        return _desk(served.digest, rate, batch, by, state)

    def announce(address: str) -> None:
        if as_json:
            typer.echo(json.dumps({"address": address, "method": loaded.method, "n_classes": loaded.n_classes}))
            return
        say(f"{loaded.method} for {loaded.n_classes} classes on {address} (Ctrl-C stops)")
        if host not in ("127.0.0.1", "localhost", "::1"):
            say("warning: no password protects this service; put it behind a proxy that asks for one", err=True)

    run(
        artifact if reload else loaded,
        host=host,
        port=port,
        limits=limits,
        feedback=desk,
        access_log=access_log,
        announce=announce,
    )


def _desk(artifact: str, rate: float, batch: str | None, by: str | None, state: str | None) -> Any:
    from calibrant.monitor import GroupMonitor, Monitor
    from calibrant.shipping.feedback import FeedbackDesk

    size = int(batch) if batch is not None and batch.isdigit() else None
    kind = Monitor if by is None else GroupMonitor
    monitor = kind(false_alarm_rate=rate, batch=size)
    return FeedbackDesk(monitor, batch=None if size else batch, by=by, state=state, artifact=artifact)
