"""`calibrant fit FILE --method cts -o cal.safetensors`: learn a calibrator and keep it."""

import json
from typing import Any

import calibrant as cal
from calibrant.calibrators.group import GroupCalibrator
from calibrant.calibrators.prepare import task_method
from calibrant.calibrators.registry import resolve
from calibrant.cli.verbs import Fields, answer, doubts_of, progress_bar, reading_lines, skipped_words, verb, warn
from calibrant.core import errors, progress
from calibrant.core.atomic import check_replaceable
from calibrant.core.errors import InputError
from calibrant.data import Predictions
from calibrant.engines.engine import opened
from calibrant.evaluation.scoring import evaluate_evidence
from calibrant.evaluation.tables import plain
from calibrant.metrics import stream
from calibrant.shipping.apply import calibrate_predictions
from calibrant.shipping.artifact import can_hold_artifact

FIGURES = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "sce")


@verb
def fit(
    file: str,
    *,
    method: str = "auto",
    output: str,
    parameters: list[str] | None = None,
    keep_predictions: bool = False,
    absent: str | None = None,
    said: Fields,
    groups: str | None = None,
    engine: str = "local",
    skip_bad_parts: bool = False,
    as_json: bool = False,
) -> None:
    """Fit a calibrator on held-out predictions and save it; prints the figures before and after on the same data.

    Parameters
    ----------
    file : Held-out predictions with labels; file#val picks one part.
    method : Short name: auto, ts, shape, svs, bend, ts+top, …
    parameters : A parameter of the method, any number.
    """
    check_replaceable(output, can_hold_artifact, "an artifact")
    # what is misspelt is found before any file is read
    if method.strip().lower() != "auto":
        resolve(method)
    given = dict(_assignment(text) for text in parameters or ())
    with errors.said() as heard, progress_bar(as_json), opened(engine) as running:
        predictions = cal.open_predictions(file, skip_bad_parts=skip_bad_parts, engine=running, by=groups, **said)
        calibrator: Any = task_method(method, predictions.task, predictions.n_classes)
        if keep_predictions and "keep_predictions" in calibrator.get_params(deep=False):
            given["keep_predictions"] = True  # of a choice; any other method keeps them or cannot, which its fit shows
        if absent is not None:
            if "absent" not in calibrator.get_params(deep=False):
                raise InputError(f"--absent is an option of --method auto, not of {method}")
            given["absent"] = absent
        try:
            calibrator.set_params(**given)
            if groups and not calibrator.takes_groups:
                calibrator = GroupCalibrator(calibrator)
            figures = _fit_and_save(calibrator, predictions, output, running, keep_predictions and method)
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            if isinstance(error, InputError) or not parameters:
                raise
            raise InputError(f"--param {', '.join(parameters)}: the fit cannot use this ({error})") from error
    result = {"method": method, **figures, "warnings": list(heard), "artifact": output}
    if skip_bad_parts:
        result["skipped_parts"] = list(predictions.skipped)
    if not as_json:
        warn(doubts_of(predictions), "doubt")
        warn([*result["warnings"], *skipped_words(predictions.skipped)])
    precision = result["precision"]
    lines = [
        f"{result['class']} on {file}: {result['n']} rows, {result['n_classes']} classes, {result['n_parameters']} "
        f"parameter{'s' * (result['n_parameters'] != 1)}, {result['fit_seconds']:.2f} s",
        *reading_lines(predictions),
        f"{'on the fit data':<16}{'before':>10}{'after':>10}",
        *(f"{name:<16}{before:>10.4f}{result['after'][name]:>10.4f}" for name, before in result["before"].items()),
        "Metrics on the fit data are optimistic: judge on other data with `calibrant apply` and `measure`.",
        *([] if precision is None else [f"{precision['text']}."]),
        f"wrote {output}",
    ]
    answer(as_json, result, lines)


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError(f"--param {text}: write NAME=VALUE, such as max_sweeps=3")
    try:
        return name.strip(), json.loads(value)
    except ValueError:
        return name.strip(), {"None": None, "True": True, "False": False}.get(value, value)


def _fit_and_save(calibrator: Any, predictions: Predictions, output: str, engine: Any, kept: Any) -> Fields:
    kind, task = type(calibrator).__name__, predictions.task
    if predictions.kind == "probabilities" and calibrator.requires_logits:
        message = f"{predictions.name} holds probabilities: {kind} reads their logarithms, but logits would be better"
        errors.warn_user(message)
    progress.step("fitting", 0, None, kind)
    calibrator.fit(predictions, engine=engine)
    if kept and not calibrator.keeps_prediction:  # known of a fitted one only: it depends on the task
        raise InputError(f"--keep-predictions: {kept} changes predictions; take {kept}+keep, or --method auto")
    rows = predictions.expanded()
    names = FIGURES if task == "multiclass" else FIGURES[:-1]
    both = {"before": rows, "after": calibrate_predictions(calibrator, rows)}
    figures: Any = {when: stream(one, names, engine=engine) for when, one in both.items()}
    classes, source = predictions.class_names, predictions.name
    cal.save(calibrator, output, class_names=classes, source=source, reading=predictions.reading, **figures)
    return {
        "class": kind,
        "n": predictions.n,
        "n_classes": predictions.n_classes,
        "task": task,
        "n_parameters": int(calibrator.n_parameters_),
        **figures,
        "precision": plain(evaluate_evidence(predictions, engine)[1]),
        "fit_seconds": float(calibrator.fit_seconds_),
    }
