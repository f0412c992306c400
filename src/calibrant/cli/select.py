"""`calibrant select FILE -o cal.safetensors`: a cross-validated choice, with the reason."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import typer

from calibrant.calibrators.auto import AutoCalibrator
from calibrant.cli import options
from calibrant.cli.fit import messages
from calibrant.cli.terminal import answer, progress_bar, warn
from calibrant.core.atomic import check_target
from calibrant.core.errors import InputError
from calibrant.data import Predictions, open_predictions
from calibrant.metrics.record import facts
from calibrant.shipping.artifact import save


@options.reads_predictions
def select(
    source: options.Source,
    *,
    output: options.NewArtifact,
    candidates: Annotated[str | None, typer.Option(help="Short names to choose from: ts,vs,sms+top")] = None,
    criterion: options.Criterion = "nll",
    folds: Annotated[int, typer.Option(help="Number of folds.")] = 5,
    keep_predictions: options.KeepPredictions = False,
    seed: options.Seed = 0,
    said: dict[str, Any],
    as_json: options.AsJson = False,
) -> None:
    """Average the default methods, or choose one of --candidates, by cross-validation; save it, and say why."""
    check_target(output)
    predictions = open_predictions(source, **said)
    refuse_labels(predictions)
    predictions = predictions.expanded()
    names = None if candidates is None else [name.strip() for name in candidates.split(",") if name.strip()]
    chooser = AutoCalibrator(names, criterion, cv=folds, keep_predictions=keep_predictions, seed=seed)
    with warnings.catch_warnings(record=True) as caught, progress_bar(quiet=as_json):
        warnings.simplefilter("always")
        chooser.fit(predictions.logits, predictions.labels, sample_weight=predictions.weights)
    before = {criterion: chooser.scores_["none"]} if "none" in chooser.scores_ else None
    after = {criterion: chooser.scores_[chooser.chosen_]}
    save(
        chooser.calibrator_,
        output,
        class_names=predictions.class_names,
        kind=predictions.kind,
        before=before,
        after=after,
        source=predictions.name,
        n=chooser.n_rows_,
        fingerprint=chooser.fingerprint_,
    )
    result = {
        "chosen": chooser.chosen_,
        "criterion": criterion,
        "reason": chooser.reason_,
        "scores": chooser.scores_,
        "standard_errors": chooser.standard_errors_,
        "failures": chooser.failures_,
        "warnings": messages(caught),
        "artifact": output,
    }
    if not as_json:
        warn(result["warnings"])
    answer(as_json, result, _lines(result))


def _lines(result: dict[str, Any]) -> list[str]:
    """The reason, then every candidate with its score, the best first."""
    scores, failures = result["scores"], result["failures"]
    # the sentence above has named what is averaged
    shown = {name: "their average" if " + " in name else name for name in (*scores, *failures)}
    width = max(map(len, shown.values()))
    lines = [result["reason"]]
    for name in sorted(scores, key=lambda name: scores[name], reverse=facts(result["criterion"]).better > 0):
        mark = "→" if name == result["chosen"] else " "
        error = result["standard_errors"][name]
        lines.append(f" {mark} {shown[name]:<{width}}  {scores[name]:>8.5f}  ± {error:.5f} (difference to the best)")
    lines += [f"   {name:<{width}}  failed: {reason}" for name, reason in failures.items()]
    return [*lines, f"wrote {result['artifact']}"]


def refuse_labels(predictions: Predictions) -> None:
    """Raise for many labels: their calibrator chooses by itself."""
    if predictions.task == "multilabel":
        raise InputError(
            f"{predictions.name} holds many labels, and select chooses one map: use fit --method auto, which "
            "cross-validates the map of the labels"
        )
