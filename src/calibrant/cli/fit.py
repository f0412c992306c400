"""`calibrant fit FILE --method cts -o cal.safetensors`: learn a calibrator and keep it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.group import GroupCalibrator
from calibrant.calibrators.registry import resolve
from calibrant.calibrators.task_methods import task_method
from calibrant.cli import options
from calibrant.cli.terminal import answer, progress_bar, skipped_words, warn
from calibrant.core import progress
from calibrant.core.atomic import check_target
from calibrant.core.errors import FitWarning, InputError
from calibrant.data import open_predictions
from calibrant.engines.engine import opened
from calibrant.evaluation.flat import flattened
from calibrant.metrics import stream
from calibrant.shipping.apply import calibrate_predictions
from calibrant.shipping.artifact import save

FIGURES = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "sce")


@options.reads_predictions
def fit(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Held-out predictions with labels; file#val picks one part.")
    ],
    *,
    method: Annotated[
        str, typer.Option("--method", "-m", help="Short name: ts, cts, vs, ets, cws, sctl+ts, ts+top, …")
    ] = "ts",
    output: options.NewArtifact,
    parameters: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", metavar="NAME=VALUE", help="A parameter of the method, any number."),
    ] = None,
    keep_predictions: options.KeepPredictions = False,
    said: dict[str, Any],
    groups: options.Groups = None,
    engine: options.Engine = "local",
    skip_bad_parts: options.SkipBadParts = False,
    as_json: options.AsJson = False,
) -> None:
    """Fit a calibrator on held-out predictions and save it; prints the figures before and after on the same data."""
    check_target(output)
    check_names(method, parameters or [])
    with warnings.catch_warnings(record=True) as caught, progress_bar(quiet=as_json), opened(engine) as running:
        warnings.simplefilter("always")
        predictions = open_predictions(file, skip_bad_parts=skip_bad_parts, engine=running, by=groups, **said)
        calibrator = build(method, parameters or [], predictions.task, predictions.n_classes)
        if keep_predictions:
            keeping(calibrator, method)
        calibrator = by_group(calibrator) if groups else calibrator
        with _blaming(parameters or []):
            result = _fit_and_save(calibrator, predictions, output, running)
    result = {"method": method, **result, "warnings": messages(caught), "artifact": output}
    if skip_bad_parts:
        result["skipped_parts"] = list(predictions.skipped)
    if not as_json:
        warn([*result["warnings"], *skipped_words(predictions.skipped)])
    answer(as_json, result, _table(result, file))


def by_group(calibrator: Any) -> Any:
    """The calibrator, one for each group, unless it treats groups by itself."""
    if calibrator.takes_groups:
        return calibrator
    return GroupCalibrator(calibrator)


def check_names(method: str, assignments: list[str]) -> None:
    """Raise for a misspelt method or parameter before any file is read."""
    if method.strip().lower() != "auto":
        resolve(method)
    for text in assignments:
        _assignment(text)


def keeping(calibrator: Any, method: str) -> None:
    """Have a choice keep every prediction; any other method either does so or cannot."""
    if "keep_predictions" in calibrator.get_params(deep=False):
        calibrator.set_params(keep_predictions=True)
    elif not calibrator.keeps_prediction:
        raise InputError(f"--keep-predictions: {method} changes predictions; take {method}+keep, or --method auto")


def build(method: str, assignments: list[str], task: str = "multiclass", n_classes: int | None = None) -> Any:
    """The unfitted calibrator of a short name, with `name=value` parameters; a typo is an error."""
    given = dict(_assignment(text) for text in assignments)
    calibrator = task_method(method, task, n_classes)
    # a calibrator inside is chosen by the short name
    known = [name for name, value in calibrator.get_params(deep=False).items() if not isinstance(value, Calibrator)]
    for name in given:
        if name not in known:
            kind = type(calibrator).__name__
            raise InputError(f"--param {name}: {kind} has no such parameter; it has {', '.join(known) or 'none'}")
    return calibrator.set_params(**given)


@contextmanager
def _blaming(assignments: list[str]) -> Iterator[None]:
    """Where a parameter of a wrong kind makes a fit fail, say which were given instead of where it failed."""
    try:
        yield
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, InputError) or not assignments:
            raise
        raise InputError(f"--param {', '.join(assignments)}: the fit cannot use this ({error})") from error


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError(f"--param {text}: write NAME=VALUE, such as max_sweeps=3")
    try:
        return name.strip(), json.loads(value)
    except ValueError:
        words = {"None": None, "True": True, "False": False}
        return name.strip(), words.get(value, value)


def _fit_and_save(calibrator: Any, predictions: Any, output: str, engine: Any) -> dict[str, Any]:
    if predictions.kind == "probabilities" and calibrator.requires_logits:
        name = type(calibrator).__name__
        message = f"{predictions.name} holds probabilities: {name} reads their logarithms, but logits would be better"
        warnings.warn(message, FitWarning, stacklevel=2)
    progress.step("fitting", 0, None, type(calibrator).__name__)
    calibrator.fit(predictions, engine=engine)
    rows = predictions.expanded()
    names = FIGURES if predictions.task == "multiclass" else FIGURES[:-1]
    both = (flattened(one) for one in (rows, calibrate_predictions(calibrator, rows)))
    before, after = (stream(one, names, engine=engine) for one in both)
    save(
        calibrator,
        output,
        class_names=predictions.class_names,
        before=before,
        after=after,
        source=predictions.name,
    )
    return {
        "class": type(calibrator).__name__,
        "n": predictions.n,
        "n_classes": predictions.n_classes,
        "task": predictions.task,
        "n_parameters": int(calibrator.n_parameters_),
        "before": before,
        "after": after,
        "fit_seconds": float(calibrator.fit_seconds_),
    }


def messages(caught: list[warnings.WarningMessage]) -> list[str]:
    """What the fits had to say, each thing once."""
    return list(dict.fromkeys(str(one.message) for one in caught if issubclass(one.category, FitWarning)))


def _table(result: dict[str, Any], file: str) -> list[str]:
    parameters = f"{result['n_parameters']} parameter{'' if result['n_parameters'] == 1 else 's'}"
    lines = [
        f"{result['class']} on {file}: {result['n']} rows, {result['n_classes']} classes, {parameters}, "
        f"{result['fit_seconds']:.2f} s",
        f"{'on the fit data':<16}{'before':>10}{'after':>10}",
    ]
    for name, before in result["before"].items():
        after = result["after"].get(name)
        lines.append(f"{name:<16}{before:>10.4f}" + (f"{after:>10.4f}" if after is not None else ""))
    lines.append("Metrics on the fit data are optimistic: judge on other data with `calibrant apply` and `measure`.")
    lines.append(f"wrote {result['artifact']}")
    return lines
