"""`calibrant select FILE -o cal.safetensors`: a cross-validated choice, with the reason."""

from __future__ import annotations

import warnings
from typing import Any

from calibrant.calibrators.auto import AutoCalibrator
from calibrant.cli import options
from calibrant.cli.fit import messages
from calibrant.cli.terminal import answer, progress_bar, warn
from calibrant.core.atomic import check_target
from calibrant.core.errors import InputError
from calibrant.data import open_predictions
from calibrant.metrics.record import sign
from calibrant.shipping.artifact import save


@options.verb
def select(
    file: str,
    *,
    output: str,
    candidates: str | None = None,
    criterion: str = "nll",
    folds: int = 5,
    keep_predictions: bool = False,
    seed: options.Seed = 0,
    said: dict[str, Any],
    as_json: bool = False,
) -> None:
    """Average the default methods, or choose one of --candidates, by cross-validation; save it, and say why.

    Parameters
    ----------
    candidates : Short names to choose from: ts,vs,sms+top
    folds : Number of folds.
    """
    check_target(output)
    predictions = open_predictions(file, **said)
    if predictions.task == "multilabel":
        raise InputError(
            f"{predictions.name} holds many labels, and select chooses one map: use fit --method auto, which "
            "cross-validates the map of the labels"
        )
    predictions = predictions.expanded()
    names = None if candidates is None else [name.strip() for name in candidates.split(",") if name.strip()]
    chooser = AutoCalibrator(names, criterion, cv=folds, keep_predictions=keep_predictions, seed=seed)
    with warnings.catch_warnings(record=True) as caught, progress_bar(quiet=as_json):
        warnings.simplefilter("always")
        chooser.fit(predictions.logits, predictions.labels, sample_weight=predictions.weights)
    chosen, scores = chooser.chosen_, chooser.scores_
    save(
        chooser.calibrator_,
        output,
        class_names=predictions.class_names,
        kind=predictions.kind,
        before={criterion: scores["none"]} if "none" in scores else None,
        after={criterion: scores[chosen]},
        source=predictions.name,
        n=chooser.n_rows_,
        fingerprint=chooser.fingerprint_,
    )
    result = {
        "chosen": chosen,
        "criterion": criterion,
        "reason": chooser.reason_,
        "scores": scores,
        "standard_errors": chooser.standard_errors_,
        "failures": chooser.failures_,
        "warnings": messages(caught),
        "artifact": output,
    }
    if not as_json:
        warn(result["warnings"])
    answer(as_json, result, _lines(chooser, output))


def _lines(chooser: AutoCalibrator, output: str) -> list[str]:
    """The reason, then every candidate with its score, the best first."""
    scores, failures = chooser.scores_, chooser.failures_
    # the sentence above has named what is averaged
    shown = {name: "their average" if " + " in name else name for name in (*scores, *failures)}
    width = max(map(len, shown.values()))
    lines = [chooser.reason_]
    for name in sorted(scores, key=lambda name: sign(str(chooser.criterion)) * scores[name]):
        mark, error = "→" if name == chooser.chosen_ else " ", chooser.standard_errors_[name]
        lines.append(f" {mark} {shown[name]:<{width}}  {scores[name]:>8.5f}  ± {error:.5f} (difference to the best)")
    lines += [f"   {name:<{width}}  failed: {reason}" for name, reason in failures.items()]
    return [*lines, f"wrote {output}"]
