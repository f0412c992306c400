"""The options by which the verbs learn what a file holds and how it is read."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import typer


def _options(
    *,
    kind: str = typer.Option(None, "--kind", help="What the values are: logits or probabilities."),
    task: str = typer.Option(
        None, "--task", help="multiclass, binary, multilabel or pairs, where names and shapes do not tell."
    ),
    scores: str = typer.Option(
        None, "--scores", help="Array or column of the scores, or columns: risk, a,b,c or 'prob_*'."
    ),
    labels: str = typer.Option(None, "--labels", help="Array or column of the labels, or an .npy file of them."),
    weights: str = typer.Option(None, "--weights", help="Array or column of the weights, or an .npy file of them."),
    class_names: str = typer.Option(None, "--class-names", help="Names of the classes in order: cat,dog,bird."),
    ignore_index: int = typer.Option(
        None, "--ignore-index", help="Leave out rows with this label, such as -100 or 255."
    ),
) -> None:
    """What every verb that reads predictions asks about them; only the signature is used."""


READING = inspect.signature(_options).parameters
BY = typer.Option(None, "--by", help="Column of groups to measure one by one; two with a comma; age:5 makes fifths.")
GROUPS = typer.Option(None, "--groups", help="Column of groups to calibrate one by one; two with a comma.")
CLUSTER = typer.Option(None, "--cluster", help="Column of what is independent (patient, image): drawn as a whole.")
ENGINE = typer.Option(
    "local", "--engine", help="Where passes run: local, dask, or the address of a scheduler (tcp://…)."
)
SKIP_BAD_PARTS = typer.Option(
    False, "--skip-bad-parts", help="Leave out parts of a folder or pattern that cannot be read; they are reported."
)


def reads_predictions(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the options of `READING`; it gets their values together, as its parameter `said`."""

    @functools.wraps(verb)
    def run(**given: Any) -> None:
        said = {name: given.pop(name) for name in READING}
        if said["class_names"] is not None:
            said["class_names"] = [name.strip() for name in said["class_names"].split(",")]
        verb(**given, said=said)

    own = inspect.signature(verb).parameters
    parameters = [one for name in own for one in (READING.values() if name == "said" else [own[name]])]
    # typer reads both; `said` itself is no option
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def skipped_words(predictions: Any) -> str:
    """How many parts were left out and why."""
    skipped = predictions.skipped
    return f"{len(skipped)} bad part{'s' if len(skipped) > 1 else ''} left out: " + "; ".join(skipped)
