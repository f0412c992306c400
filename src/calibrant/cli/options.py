"""The options that several verbs share, each declared once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

Artifact = Annotated[str, typer.Argument(metavar="ARTIFACT", help="A saved calibrator, such as cal.safetensors.")]
Source = Annotated[str, typer.Argument(metavar="FILE", help="File, folder or embedded name; file#part picks one part.")]
NewArtifact = Annotated[str, typer.Option("--output", "-o", help="Artifact to write, such as cal.safetensors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")]
By = Annotated[
    str | None,
    typer.Option("--by", help="Column of groups to measure one by one; two with a comma; age:5 makes fifths."),
]
Groups = Annotated[str | None, typer.Option(help="Column of groups to calibrate one by one; two with a comma.")]
Cluster = Annotated[str | None, typer.Option(help="Column of what is independent (patient, image): drawn as a whole.")]
Criterion = Annotated[str, typer.Option(help="The metric that decides which method is best.")]
NBins = Annotated[int, typer.Option("--n-bins", help="Bins of the calibration errors.")]
Resamples = Annotated[int, typer.Option(help="Bootstrap resamples behind the intervals; a comparison pairs them.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything that is drawn.")]
KeepPredictions = Annotated[
    bool, typer.Option("--keep-predictions", help="Only methods that never change the predicted class.")
]
Engine = Annotated[str, typer.Option(help="Where passes run: local, dask, or the address of a scheduler (tcp://…).")]
SkipBadParts = Annotated[
    bool,
    typer.Option(
        "--skip-bad-parts", help="Leave out parts of a folder or pattern that cannot be read; they are reported."
    ),
]
FalseAlarmRate = Annotated[float, typer.Option(help="Largest chance of ever raising a false alarm.")]
Batch = Annotated[
    str | None,
    typer.Option(
        help="A number, or the field that names an answer's batch: one bet per batch. Answers of one batch may depend "
        "on each other; without it every answer must be independent of the others.",
    ),
]
GroupField = Annotated[
    str | None, typer.Option("--by", help="Field that names an answer's group: the alarm says which group broke.")
]


def _reading(
    *,
    kind: Annotated[str | None, typer.Option(help="What the values are: logits or probabilities.")] = None,
    task: Annotated[
        str | None,
        typer.Option(help="multiclass, binary, multilabel or pairs, where names and shapes do not tell."),
    ] = None,
    scores: Annotated[
        str | None, typer.Option(help="Array or column of the scores, or columns: risk, a,b,c or 'prob_*'.")
    ] = None,
    labels: Annotated[str | None, typer.Option(help="Array or column of the labels, or an .npy file of them.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="Array or column of the weights, or an .npy file of them.")
    ] = None,
    class_names: Annotated[str | None, typer.Option(help="Names of the classes in order: cat,dog,bird.")] = None,
    ignore_index: Annotated[
        int | None, typer.Option(help="Leave out rows with this label, such as -100 or 255.")
    ] = None,
) -> None:
    """What every verb that reads predictions asks about them; only the signature is used."""


READING = inspect.signature(_reading, eval_str=True).parameters


def reads_predictions(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the options of `READING`; it gets their values together, as its parameter `said`."""

    @functools.wraps(verb)
    def run(**given: Any) -> None:
        said = {name: given.pop(name) for name in READING}
        if said["class_names"] is not None:
            said["class_names"] = [name.strip() for name in said["class_names"].split(",")]
        verb(**given, said=said)

    own = inspect.signature(verb, eval_str=True).parameters
    parameters = [one for name in own for one in (READING.values() if name == "said" else [own[name]])]
    # typer reads both; `said` itself is no option
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run
