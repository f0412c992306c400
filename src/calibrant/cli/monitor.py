"""`calibrant monitor FILE.jsonl`: follow a log of labelled answers and raise an alarm when calibration breaks."""

import time
from typing import Annotated

import typer

import calibrant as cal
from calibrant.cli.streams import is_stdout_read
from calibrant.cli.verbs import Fields, answer, printable, verb, warn
from calibrant.shipping.feed import NO_ANSWERS, LogFollower
from calibrant.shipping.monitor import LATE


@verb
def monitor(
    file: Annotated[str, typer.Argument(metavar="FILE.jsonl")],
    *,
    watch: Fields,
    window: int = 2000,
    bins: int = 15,
    id_field: str | None = None,
    digits: int | None = None,
    state: str | None = None,
    reset: bool = False,
    once: bool = False,
    until_alarm: bool = False,
    poll: Annotated[float, typer.Option(min=0.01)] = 1.0,
    as_json: bool = False,
) -> bool:
    """Watch calibration on a log; exit code 1 means that the alarm has risen. Stop with Ctrl-C.

    A line is {"confidence": 0.9, "correct": true}, or {"probabilities": […], "label": 3}, or the same with "logits".
    Of two probabilities the risk of the second class is tested.

    Parameters
    ----------
    file : Log with one JSON answer per line; it may still grow.
    window : How many of the latest answers the figures describe.
    bins : Equal-width confidence bins.
    by : Field that names an answer's group: the alarm says which group broke. FIELD=a,b lists the groups.
    id_field : Field that names an answer: one logged twice is counted once.
    digits : Decimals the confidences were rounded to; found from the log by default.
    state : File that keeps the monitor between runs.
    reset : Begin a new period, as after a new artifact: answers that are in the log by now count no more.
    once : Read what is there, report, and leave.
    until_alarm : Leave with exit code 1 at the first alarm.
    poll : Seconds between looks at the log.
    """
    follower = LogFollower(file, state=state, id=id_field, digits=digits, window=window, n_bins=bins, **watch)
    if reset:
        follower.reset()
    try:
        while True:
            gained = follower.read()
            warn(filter(None, [follower.note]))
            follower.note = None
            if gained or once or reset:
                reset = False
                _show(follower, as_json)
                follower.save()
            if once or (follower.monitor.alarm if until_alarm else not is_stdout_read()):
                break
            time.sleep(poll)
    except KeyboardInterrupt:
        follower.save()
    return follower.monitor.alarm


def _show(follower: LogFollower, as_json: bool) -> None:
    monitor = follower.monitor
    counts = {
        "n_bad_lines": follower.n_bad,
        "n_duplicates": follower.n_duplicates,
        "n_pending": follower.n_pending,
    }
    if monitor.n == 0 and follower.n_resets:
        period = f"0 answers since the new period began | {follower.offset} bytes read | no alarm"
        return answer(as_json, NO_ANSWERS | counts, [period])
    if monitor.n == 0:
        problem = f" ({follower.first_problem})" if follower.first_problem else ""
        pending = f", {follower.n_pending} without a label yet" if follower.n_pending else ""
        raise cal.InputError(f"{follower.path} holds no labelled answer in {follower.n_lines} lines{pending}{problem}")
    report, verdict = monitor.report().to_dict(), "no alarm"
    if report["alarm_at"]:
        verdict = f"ALARM since answer {report['alarm_at']}: {report['suspect']}"
    elif report["alarm"]:
        verdict = f"ALARM in {len(report['alarms'])} of {len(report['groups'])} groups"
    lines = [
        f"{report['n']} answers | last {report['n_window']}: observed {report['accuracy']:.3f}, stated "
        f"{report['confidence']:.3f}, ECE {report['ece']:.4f} (by chance {report['noise_floor']:.4f}, 95% below "
        f"{report['noise_floor_95']:.4f}), too high {report['overconfidence']:.4f}, too low "
        f"{report['underconfidence']:.4f} "
        f"| evidence {report['evidence']:.3g} of {monitor.limit:.3g} | {verdict}",
        *(
            f"  {printable(group['group'])}: ALARM since its answer {group['alarm_at']}: {group['suspect']}; "
            f"observed {group['accuracy']:.3f}, stated {group['confidence']:.3f}"
            for group in report.get("groups", ())
            if group["alarm"]
        ),
    ]
    answer(as_json, report | counts, lines)
    if as_json:
        return
    if report["n_late"]:
        warn([f"{report['n_late']} {LATE}"])
    if follower.n_duplicates:
        warn([f"{follower.n_duplicates} answers were logged more than once"])
    if follower.n_pending:
        warn([f"{follower.n_pending} lines without a label yet"], "note")
    if follower.n_bad:
        warn([f"{follower.n_bad} line{'s' * (follower.n_bad > 1)} skipped, the first: {follower.first_problem}"])
