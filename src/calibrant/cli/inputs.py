"""The options by which every verb learns what a file holds."""

from __future__ import annotations

from typing import Any

import typer

KIND = typer.Option(None, "--kind", help="What the values are: logits or probabilities.")
TASK = typer.Option(None, "--task", help="multiclass, binary, multilabel or pairs, where names and shapes do not tell.")
SCORES = typer.Option(None, "--scores", help="Array or column of the scores, or columns: risk, a,b,c or 'prob_*'.")
LABELS = typer.Option(None, "--labels", help="Array or column of the labels, or an .npy file of them.")
WEIGHTS = typer.Option(None, "--weights", help="Array or column of the weights, or an .npy file of them.")
CLASS_NAMES = typer.Option(None, "--class-names", help="Names of the classes in order: cat,dog,bird.")
IGNORE_INDEX = typer.Option(None, "--ignore-index", help="Leave out rows with this label, such as -100 or 255.")
BY = typer.Option(None, "--by", help="Column of groups to measure one by one; two with a comma; age:5 makes fifths.")
GROUPS = typer.Option(None, "--groups", help="Column of groups to calibrate one by one; two with a comma.")
CLUSTER = typer.Option(None, "--cluster", help="Column of what is independent (patient, image): drawn as a whole.")


def described(  # noqa: PLR0917 (in the order of the options)
    kind: str | None = None,
    task: str | None = None,
    scores: str | None = None,
    labels: str | None = None,
    weights: str | None = None,
    class_names: str | None = None,
    ignore_index: int | None = None,
) -> dict[str, Any]:
    """The options as `open_predictions` takes them."""
    return {
        "kind": kind,
        "task": task,
        "scores": scores,
        "labels": labels,
        "weights": weights,
        "class_names": None if class_names is None else [name.strip() for name in class_names.split(",")],
        "ignore_index": ignore_index,
    }
