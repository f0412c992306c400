"""`calibrant watch FILE.jsonl`: follow a log of labelled answers and raise an alarm when calibration breaks."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import typer


def watch(
    file: str = typer.Argument(..., metavar="FILE.jsonl", help="Log with one JSON answer a line; it may still grow."),
    *,
    rate: float = typer.Option(0.01, "--false-alarm-rate", help="Largest chance of ever raising a false alarm."),
    window: int = typer.Option(2000, "--window", help="How many of the latest answers the figures describe."),
    n_bins: int = typer.Option(15, "--bins", help="Equal-width confidence bins."),
    state: str = typer.Option(None, "--state", help="File that keeps the monitor between runs."),
    once: bool = typer.Option(False, "--once", help="Read what is there, report, and leave."),
    until_alarm: bool = typer.Option(False, "--until-alarm", help="Leave with exit code 1 at the first alarm."),
    poll: float = typer.Option(1.0, "--poll", min=0.01, help="Seconds between looks at the log."),
    as_json: bool = typer.Option(False, "--json", help="Print each report as one line of JSON."),
) -> None:
    """Watch calibration on a log; exit code 1 means that the alarm has risen. Stop with Ctrl-C.

    A line is {"confidence": 0.9, "correct": true}, or {"probabilities": […], "label": 3}, or the same with "logits".
    """
    follower = _follower(file, state, rate, window, n_bins)
    try:
        while True:
            gained = follower.read()
            if gained or once:
                _show(follower, as_json)
                _keep(follower, state)
            if once or (until_alarm and follower.monitor.alarm):
                break
            time.sleep(poll)
    except KeyboardInterrupt:
        _keep(follower, state)
    if follower.monitor.alarm:
        raise typer.Exit(1)


def _follower(file: str, state: str | None, rate: float, window: int, n_bins: int) -> Any:
    from calibrant.core.atomic import check_target
    from calibrant.core.errors import InputError
    from calibrant.shipping.monitor import Monitor
    from calibrant.shipping.watch import LogWatch

    fresh = Monitor(false_alarm_rate=rate, window=window, n_bins=n_bins)
    if state is not None:
        check_target(state)
    if state is None or not os.path.exists(state):
        return LogWatch(file, fresh)
    try:
        with open(state, encoding="utf-8") as kept:
            follower = LogWatch.from_state(file, kept.read())
    except ValueError as error:
        reason = error if isinstance(error, InputError) else "it is not text"
        raise InputError(f"{state}: {reason}; give another file for the state") from error
    kept_settings = (follower.monitor.false_alarm_rate, follower.monitor.window, follower.monitor.n_bins)
    if kept_settings != (rate, window, n_bins):
        raise InputError(
            f"{state} was kept with false-alarm rate, window and bins {kept_settings}, but {(rate, window, n_bins)} "
            "are asked for: use the same, or start with a new state file"
        )
    return follower


def _keep(follower: Any, state: str | None) -> None:
    if state is None:
        return
    from calibrant.core.atomic import atomic_write

    with atomic_write(state) as temporary:
        temporary.write_text(follower.state(), encoding="utf-8")


def _show(follower: Any, as_json: bool) -> None:
    from calibrant.core.errors import InputError

    if follower.monitor.n == 0:
        problem = f" ({follower.first_problem})" if follower.first_problem else ""
        raise InputError(f"{follower.path} holds no labelled answer in {follower.n_lines} lines{problem}")
    report = follower.monitor.report()
    if as_json:
        typer.echo(json.dumps({**report.to_dict(), "n_bad_lines": follower.n_bad}))
        return
    verdict = f"ALARM since answer {report.alarm_at}: {report.suspect}" if report.alarm else "no alarm"
    typer.echo(
        f"{report.n} answers | last {report.n_window}: accuracy {report.accuracy:.3f}, confidence "
        f"{report.confidence:.3f}, ECE {report.ece:.4f} (by chance {report.noise_floor:.4f}, 95% below "
        f"{report.noise_floor_95:.4f}), over {report.overconfidence:.4f}, under {report.underconfidence:.4f} | "
        f"evidence {report.evidence:.3g} of {1 / follower.monitor.false_alarm_rate:.3g} | {verdict}"
    )
    if follower.n_bad:
        typer.echo(f"warning: {follower.n_bad} lines skipped, the first: {follower.first_problem}", err=True)
