"""`calibrant serve cal.safetensors`: an HTTP service around one calibrator."""

from typing import Annotated

import typer

from calibrant.cli.verbs import Count, Fields, answer, verb, warn
from calibrant.shipping.artifact import read_artifact
from calibrant.shipping.feed import FeedbackDesk
from calibrant.shipping.serve import Limits
from calibrant.shipping.serve import serve as run
from calibrant.shipping.service import Served

Seconds = Annotated[float, typer.Option(min=0.1)]


@verb
def serve(
    artifact: str,
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8080,
    max_rows: Count = 65_536,
    max_megabytes: Count = 64,
    max_memory: Count = 448,
    max_connections: Count = 2048,
    max_requests: Count = 512,
    timeout: Seconds = 30.0,
    header_timeout: Seconds = 10.0,
    drain: Annotated[float, typer.Option(min=0.0)] = 0.0,
    reload: bool = True,
    access_log: bool = True,
    trust_proxy: str | None = None,
    watch: Fields,
    monitor_state: str | None = None,
    as_json: bool = False,
) -> None:
    """Serve a calibrator: POST numbers to /calibrate as JSON, npy or Arrow; see / for the rest. Stop with Ctrl-C.

    Parameters
    ----------
    host : Address to bind to, or unix:PATH; the default is this machine only.
    port : Port to bind to; 0 takes any that is free.
    max_rows : Most rows of one request.
    max_megabytes : Largest body of one request.
    max_memory : Megabytes for the requests in work and their responses; bodies that arrive take at most 128 more.
    max_connections : Most connections at a time.
    max_requests : Most requests answered at a time.
    timeout : Seconds a body may take to arrive.
    header_timeout : Seconds for a request's headers.
    drain : Seconds between SIGTERM and the end of service.
    reload : Take over a new ARTIFACT while running.
    access_log : One JSON line per request on stderr.
    trust_proxy : Addresses with a true X-Forwarded-For, with commas, or *.
    by : Field that names an answer's group: the alarm says which group broke. FIELD=a,b lists the groups.
    monitor_state : File that keeps the monitor.
    """
    served = Served(read_artifact(artifact))
    loaded = served.artifact
    desk = FeedbackDesk(state=monitor_state, artifact=served.digest, **watch)

    warn(filter(None, [desk.note]))

    def announce(address: str) -> None:
        facts = {"address": address, "method": loaded.method, "n_classes": loaded.n_classes}
        answer(as_json, facts, [f"{loaded.method} for {loaded.n_classes} classes on {address} (Ctrl-C stops)"])
        if not as_json and host not in ("127.0.0.1", "localhost", "::1") and not host.startswith("unix:"):
            warn(["no password protects this service; put it behind a proxy that asks for one"])

    run(
        artifact if reload else loaded,
        host=host,
        port=port,
        limits=Limits(
            body_bytes=max_megabytes << 20,
            rows=max_rows,
            memory_bytes=max_memory << 20,
            header_seconds=header_timeout,
            body_seconds=timeout,
            connections=max_connections,
            requests=max_requests,
            drain_seconds=drain,
        ),
        feedback=desk,
        access_log=access_log,
        trusted_proxies=trust_proxy,
        announce=announce,
    )
