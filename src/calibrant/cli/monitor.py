"""`calibrant monitor FILE.jsonl`: follow a log of labelled answers and raise an alarm when calibration breaks."""

from __future__ import annotations

import os
import time
from typing import Annotated, Any

import typer

from calibrant.cli import options
from calibrant.cli.terminal import CHECK_FAILED, answer, printable, warn
from calibrant.core.atomic import atomic_write, check_target
from calibrant.core.errors import InputError
from calibrant.monitor import GroupMonitor, Monitor
from calibrant.shipping.watch import DamagedStateError, LogWatch

FILE = "Log with one JSON answer per line; it may still grow."


def monitor(
    file: Annotated[str, typer.Argument(metavar="FILE.jsonl", help=FILE)],
    *,
    false_alarm_rate: options.FalseAlarmRate = 0.01,
    window: Annotated[int, typer.Option(help="How many of the latest answers the figures describe.")] = 2000,
    n_bins: Annotated[int, typer.Option("--bins", help="Equal-width confidence bins.")] = 15,
    batch: options.Batch = None,
    by: options.GroupField = None,
    id_field: Annotated[
        str | None, typer.Option("--id", help="Field that names an answer: one logged twice is counted once.")
    ] = None,
    digits: Annotated[
        int | None, typer.Option(help="Decimals the confidences were rounded to [default: look].")
    ] = None,
    state: Annotated[str | None, typer.Option(help="File that keeps the monitor between runs.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Read what is there, report, and leave.")] = False,
    until_alarm: Annotated[
        bool, typer.Option("--until-alarm", help="Leave with exit code 1 at the first alarm.")
    ] = False,
    poll: Annotated[float, typer.Option(min=0.01, help="Seconds between looks at the log.")] = 1.0,
    as_json: options.AsJson = False,
) -> None:
    """Watch calibration on a log; exit code 1 means that the alarm has risen. Stop with Ctrl-C.

    A line is {"confidence": 0.9, "correct": true}, or {"probabilities": […], "label": 3}, or the same with "logits".
    """
    settings: dict[str, Any] = {
        "false_alarm_rate": false_alarm_rate,
        "window": window,
        "n_bins": n_bins,
        "digits": digits,
    }
    settings["batch"] = int(batch) if batch is not None and batch.isdigit() else None
    fields = {"batch": None if settings["batch"] else batch, "by": by, "id": id_field}
    kept = _Kept(state)
    follower = kept.load(file, settings, fields)
    try:
        while True:
            gained = follower.read()
            _warn_about(follower)
            if gained or once:
                _show(follower, as_json)
                kept.save(follower)
            if once or (until_alarm and follower.monitor.alarm):
                break
            time.sleep(poll)
    except KeyboardInterrupt:
        kept.save(follower)
    if follower.monitor.alarm:
        raise typer.Exit(CHECK_FAILED)


class _Kept:
    """The state file and, beside it, the state before: a damaged file costs nothing that the log still holds."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self._last: str | None = None
        if path is not None:
            check_target(path)

    def load(self, file: str, settings: dict[str, Any], fields: dict[str, str | None]) -> Any:
        """The follower of the state file, or a new one where there is none."""
        kind = Monitor if fields["by"] is None else GroupMonitor
        fresh = LogWatch(file, kind(**settings), **fields)
        follower = None if self.path is None or not os.path.exists(self.path) else self._read(file)
        if follower is None:
            return fresh
        asked, found = _choices(fresh), _choices(follower)
        odd = [name for name in asked if asked[name] != found[name]]
        if odd:
            before, now = ({name: choices[name] for name in odd} for choices in (found, asked))
            raise InputError(
                f"{self.path} was kept with {before}, but {now} is asked for: use the same, or start with a new state "
                "file"
            )
        return follower

    def _read(self, file: str) -> Any:
        state = str(self.path)
        for path in (state, f"{state}.previous"):
            try:
                with open(path, encoding="utf-8") as opened:
                    text = opened.read()
                follower = LogWatch.from_state(file, text)
            except FileNotFoundError:
                continue
            except DamagedStateError:
                warn([f"{path} is damaged"])
                continue
            except ValueError as error:
                reason = error if isinstance(error, InputError) else "it is not text"
                raise InputError(f"{path}: {reason}; give another file for the state") from error
            if path != state:
                warn([f"the watch goes on from {path}, the state before the damaged one"])
            self._last = text
            return follower
        aside = f"{state}.damaged"
        os.replace(state, aside)
        warn([f"the watch starts anew and reads the log from its start; see {aside}"])
        return None

    def save(self, follower: Any) -> None:
        """Write the state; the one before stays beside it."""
        if self.path is None:
            return
        if self._last is not None:
            with atomic_write(f"{self.path}.previous") as temporary:
                temporary.write_text(self._last, encoding="utf-8")
        self._last = follower.state()
        with atomic_write(self.path) as temporary:
            temporary.write_text(self._last, encoding="utf-8")


def _choices(follower: Any) -> dict[str, Any]:
    """What the user chose, of a follower."""
    chosen = {name: value for name, value in follower.monitor.settings.items() if name != "seed"}
    feed = follower.feed
    return {**chosen, "batch": chosen["batch"] or feed.batch, "by": feed.by, "id": feed.id}


def _warn_about(follower: Any) -> None:
    if follower.file.note:
        warn([f"{follower.file.note}"])
        follower.file.note = None


def _show(follower: Any, as_json: bool) -> None:
    monitor = follower.monitor
    if monitor.n == 0:
        problem = f" ({follower.first_problem})" if follower.first_problem else ""
        raise InputError(f"{follower.path} holds no labelled answer in {follower.n_lines} lines{problem}")
    report = monitor.report() if isinstance(monitor, GroupMonitor) else monitor.report().to_dict()
    limit = 2 / monitor.false_alarm_rate if isinstance(monitor, GroupMonitor) else 1 / monitor.false_alarm_rate
    lines = [_line(report, limit)]
    for group in report.get("groups", []):
        if group["alarm"]:
            lines.append(
                f"  {printable(group['group'])}: ALARM since its answer {group['alarm_at']}: {group['suspect']}; "
                f"accuracy {group['accuracy']:.3f}, confidence {group['confidence']:.3f}"
            )
    counts = {"n_bad_lines": follower.n_bad, "n_duplicates": follower.feed.n_duplicates}
    answer(as_json, {**report, **counts}, lines)
    if as_json:
        return
    if follower.feed.n_duplicates:
        warn([f"{follower.feed.n_duplicates} answers were logged more than once"])
    if follower.n_bad:
        warn([f"{follower.n_bad} lines skipped, the first: {follower.first_problem}"])


def _line(report: dict[str, Any], limit: float) -> str:
    verdict = "no alarm"
    if report["alarm_at"]:
        verdict = f"ALARM since answer {report['alarm_at']}: {report['suspect']}"
    elif report["alarm"]:
        verdict = f"ALARM in {len(report['alarms'])} of {len(report['groups'])} groups"
    return (
        f"{report['n']} answers | last {report['n_window']}: accuracy {report['accuracy']:.3f}, confidence "
        f"{report['confidence']:.3f}, ECE {report['ece']:.4f} (by chance {report['noise_floor']:.4f}, 95% below "
        f"{report['noise_floor_95']:.4f}), over {report['overconfidence']:.4f}, under {report['underconfidence']:.4f} "
        f"| evidence {report['evidence']:.3g} of {limit:.3g} | {verdict}"
    )
