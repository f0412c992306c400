"""`calibrant select FILE -o cal.safetensors`: a cross-validated choice, with the reason."""

from textwrap import fill

import calibrant as cal
from calibrant.cli.verbs import Fields, Seed, answer, doubts_of, progress_bar, reading_lines, verb, warn
from calibrant.core import errors
from calibrant.core.atomic import check_replaceable
from calibrant.evaluation.results import TOO_FEW_TO_COMPARE
from calibrant.evaluation.scoring import evaluate_evidence
from calibrant.metrics.record import sign
from calibrant.shipping.artifact import can_hold_artifact


@verb
def select(
    file: str,
    *,
    output: str,
    candidates: str | None = None,
    criterion: str = "nll",
    cv: int = 5,
    cluster: str | None = None,
    keep_predictions: bool = False,
    absent: str | None = None,
    seed: Seed = 0,
    said: Fields,
    as_json: bool = False,
) -> None:
    """Average the default methods, or choose one of --candidates, by cross-validation; save it, and say why.

    Parameters
    ----------
    candidates : Short names to choose from: ts,vs,sms+top
    cv : Number of folds.
    """
    check_replaceable(output, can_hold_artifact, "an artifact")
    predictions = cal.open_predictions(file, cluster=cluster, **said)
    if predictions.task == "multilabel":
        raise cal.InputError(
            f"{predictions.name} holds many labels, and select chooses one map: use fit --method auto, which "
            "cross-validates the map of the labels"
        )
    predictions = predictions.expanded()
    names = None if candidates is None else [name.strip() for name in candidates.split(",") if name.strip()]
    chooser = cal.AutoCalibrator(names, criterion, cv=cv, keep_predictions=keep_predictions, absent=absent, seed=seed)
    with errors.said() as heard, progress_bar(as_json):
        chooser.fit(predictions)
    few = evaluate_evidence(predictions)[0].shortage
    chosen, scores, failures, inner = chooser.chosen_, chooser.scores_, chooser.failures_, chooser.calibrator_
    cal.save(
        # only the chooser makes two columns of one score per row, and limits classes without fit rows
        inner if inner.task_ == chooser.task_ and not chooser.limits_absent else chooser,
        output,
        class_names=predictions.class_names,
        kind=predictions.kind,
        before={criterion: scores["none"]} if "none" in scores else None,
        after={criterion: scores[chosen]},
        source=predictions.name,
        reading=predictions.reading,
        n=chooser.n_rows_,
        fingerprint=chooser.fingerprint_,
    )
    result = {
        "chosen": chosen,
        "criterion": criterion,
        "reason": chooser.reason_,
        "too_few_rows": few,
        "scores": scores,
        "standard_errors": chooser.standard_errors_,
        "failures": failures,
        "warnings": list(heard),
        "artifact": output,
    }
    if not as_json:
        warn(doubts_of(predictions), "doubt")
        warn(heard)
    # the reason, which names what is averaged, then every candidate with its score, the best first; with too few rows
    # candidates are not ranked
    reason = f"{few}: {TOO_FEW_TO_COMPARE}" if few else chooser.reason_
    lines = [
        fill(reason, 80, break_on_hyphens=False),
        f"{cv} folds of {predictions.n:,} rows, seed {seed}",
    ]
    shown = {name: "their average" if " + " in name else name for name in (*scores, *failures)}
    width = max(map(len, shown.values()))
    for name in scores if few else sorted(scores, key=lambda name: sign(criterion) * scores[name]):
        mark = "→" if name == chosen and not few else " "
        error = "" if few else f"  ± {chooser.standard_errors_[name]:.5f} (difference to the best)"
        lines.append(f" {mark} {shown[name]:<{width}}  {scores[name]:>8.5f}{error}")
    lines += [f"   {name:<{width}}  failed: {reason}" for name, reason in failures.items()]
    saved = f"wrote {shown[chosen]} to {output}" if few else f"wrote {output}"
    answer(as_json, result, [*lines, *reading_lines(predictions), saved])
