"""`calibrant select FILE -o cal.safetensors`: a cross-validated choice, with the reason."""

from __future__ import annotations

import json
import warnings
from typing import Any

import typer

from calibrant.cli import inputs
from calibrant.cli.bar import progress_bar
from calibrant.cli.plain import say
from calibrant.core.atomic import check_target
from calibrant.core.errors import InputError


@inputs.reads_predictions
def select(
    source: str = typer.Argument(..., metavar="FILE", help="Predictions with labels; file#part picks one part."),
    *,
    output: str = typer.Option(..., "--output", "-o", help="Artifact to write, such as cal.safetensors."),
    candidates: str = typer.Option(None, "--candidates", help="Short names to choose from: ts,vs,sms+top"),
    criterion: str = typer.Option("nll", "--criterion", help="Metric to cross-validate."),
    folds: int = typer.Option(5, "--folds", help="Number of folds."),
    keep_predictions: bool = typer.Option(
        False, "--keep-predictions", help="Only methods that never change the predicted class."
    ),
    seed: int = typer.Option(0, "--seed", min=0, help="Seed of the folds."),
    said: dict[str, Any],
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Average the default methods, or choose one of --candidates, by cross-validation; save it, and say why."""
    from calibrant.calibrators.auto import AutoCalibrator
    from calibrant.cli.fit import messages
    from calibrant.core.metric_facts import facts
    from calibrant.data import open_predictions
    from calibrant.shipping.artifact import save

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
        before=before,
        after=after,
        source=predictions.name,
        n=chooser.n_rows_,
        fingerprint=chooser.fingerprint_,
    )
    if as_json:
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
        typer.echo(json.dumps(result))
        return
    for message in messages(caught):
        say(f"warning: {message}", err=True)
    higher = facts(criterion).better > 0
    say(chooser.reason_)
    # the sentence above has named what is averaged
    shown = {name: "their average" if " + " in name else name for name in (*chooser.scores_, *chooser.failures_)}
    width = max(map(len, shown.values()))
    for name, score in sorted(chooser.scores_.items(), key=lambda item: item[1], reverse=higher):
        mark = "→" if name == chooser.chosen_ else " "
        error = chooser.standard_errors_[name]
        say(f" {mark} {shown[name]:<{width}}  {score:>8.5f}  ± {error:.5f} (difference to the best)")
    for name, reason in chooser.failures_.items():
        say(f"   {name:<{width}}  failed: {reason}")
    say(f"wrote {output}")


def refuse_labels(predictions: Any) -> None:
    """Raise for many labels: their calibrator chooses by itself."""
    if predictions.task == "multilabel":
        raise InputError(
            f"{predictions.name} holds many labels, and select chooses one map: use fit --method auto, which "
            "cross-validates the map of the labels"
        )
