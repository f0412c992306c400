"""`calibrant serve cal.safetensors`: an HTTP service around one calibrator."""

from __future__ import annotations

from typing import Annotated

import typer

from calibrant.cli import options
from calibrant.cli.terminal import answer, warn
from calibrant.shipping.artifact import read_artifact
from calibrant.shipping.feed import FeedbackDesk
from calibrant.shipping.serve import Limits
from calibrant.shipping.serve import serve as run
from calibrant.shipping.served import Served


def serve(
    artifact: options.Artifact,
    *,
    host: Annotated[str, typer.Option(help="Address to bind to; the default is this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to bind to; 0 takes any that is free.")] = 8080,
    max_rows: Annotated[int, typer.Option(min=1, help="Most rows of one request.")] = 65_536,
    max_megabytes: Annotated[int, typer.Option(min=1, help="Largest body of one request.")] = 64,
    max_connections: Annotated[int, typer.Option(min=1, help="Most connections at a time.")] = 2048,
    max_requests: Annotated[int, typer.Option(min=1, help="Most requests answered at a time.")] = 512,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds a body may take to arrive.")] = 30.0,
    header_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for a request's headers.")] = 10.0,
    drain: Annotated[float, typer.Option(min=0.0, help="Seconds between SIGTERM and the end of service.")] = 0.0,
    reload: Annotated[bool, typer.Option(help="Take over a new ARTIFACT while running.")] = True,
    access_log: Annotated[bool, typer.Option(help="One JSON line per request on stderr.")] = True,
    false_alarm_rate: options.FalseAlarmRate = 0.01,
    batch: options.Batch = None,
    by: options.GroupField = None,
    state: Annotated[str | None, typer.Option("--monitor-state", help="File that keeps the monitor.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Serve a calibrator: POST numbers to /calibrate as JSON, npy or Arrow; see / for the rest. Stop with Ctrl-C."""
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

    def desk(served: Served) -> FeedbackDesk:
        return FeedbackDesk(state=state, artifact=served.digest, batch=batch, by=by, false_alarm_rate=false_alarm_rate)

    def announce(address: str) -> None:
        facts = {"address": address, "method": loaded.method, "n_classes": loaded.n_classes}
        answer(as_json, facts, [f"{loaded.method} for {loaded.n_classes} classes on {address} (Ctrl-C stops)"])
        if not as_json and host not in ("127.0.0.1", "localhost", "::1"):
            warn(["no password protects this service; put it behind a proxy that asks for one"])

    run(
        artifact if reload else loaded,
        host=host,
        port=port,
        limits=limits,
        feedback=desk,
        access_log=access_log,
        announce=announce,
    )
