"""Verbs from functions: types and defaults say what an option takes, docstrings what it means."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from copy import copy
from typing import Annotated, Any, get_args, get_origin

import typer

HELP = {
    "artifact": "A saved calibrator, such as cal.safetensors.",
    "file": "File, folder or embedded name; file#part picks one part.",
    "output": "Artifact to write, such as cal.safetensors.",
    "as_json": "Print the result as JSON.",
    "markdown": "Print the table as Markdown.",
    "by": "Column of groups to measure one by one; two with a comma; age:5 makes fifths.",
    "groups": "Column of groups to calibrate one by one; two with a comma.",
    "cluster": "Column of what is independent (patient, image): drawn as a whole.",
    "criterion": "The metric that decides which method is best.",
    "n_bins": "Bins of the calibration errors.",
    "resamples": "Bootstrap resamples behind the intervals; a comparison pairs them.",
    "seed": "Seed of everything that is drawn.",
    "keep_predictions": "Only methods that never change the predicted class.",
    "engine": "Where passes run: local, dask, or the address of a scheduler (tcp://…).",
    "skip_bad_parts": "Leave out parts of a folder or pattern that cannot be read; they are reported.",
    "false_alarm_rate": "Largest chance of ever raising a false alarm.",
    "batch": "A number, or the field that names an answer's batch: one bet per batch. Answers of one batch may depend "
    "on each other; without it every answer must be independent of the others.",
    "kind": "What the values are: logits or probabilities.",
    "task": "multiclass, binary, multilabel or pairs, where names and shapes do not tell.",
    "scores": "Array or column of the scores, or columns: risk, a,b,c or 'prob_*'.",
    "labels": "Array or column of the labels, or an .npy file of them.",
    "weights": "Array or column of the weights, or an .npy file of them.",
    "class_names": "Names of the classes in order: cat,dog,bird.",
    "ignore_index": "Leave out rows with this label, such as -100 or 255.",
}
"""What the options that several verbs share mean; a verb's docstring may say it otherwise."""

NAMES = {
    "as_json": ("--json",),
    "at_least": ("--min",),
    "at_most": ("--max",),
    "everything": ("--all",),
    "id_field": ("--id",),
    "method": ("--method", "-m"),
    "methods": ("--methods", "-m"),
    "others": ("--with",),
    "output": ("--output", "-o"),
    "parameters": ("--param", "-p"),
    "shifted": ("--shift",),
}
"""Options that have another name than the parameter, or a short one besides."""
METAVARS = {"at_least": "NAME=LIMIT", "at_most": "NAME=LIMIT", "parameters": "NAME=VALUE"}

Seed = Annotated[int, typer.Option(min=0)]
Count = Annotated[int, typer.Option(min=1)]
Limit = Annotated[float | None, typer.Option(min=0.0)]
Share = Annotated[float | None, typer.Option(min=0.0, max=1.0)]


TEXT = str | None, None
BUNDLES: dict[str, dict[str, Any]] = {
    "said": dict.fromkeys(("kind", "task", "scores", "labels", "weights", "class_names"), TEXT)
    | {"ignore_index": (int | None, None)},
    "how": {"by": TEXT, "cluster": TEXT, "n_bins": (int, 15), "resamples": (int, 1000), "seed": (Seed, 0)},
    "watch": {"false_alarm_rate": (float, 0.01), "batch": TEXT, "by": TEXT},
}
"""Options that verbs share, with types and defaults: what every verb that reads predictions asks about them, how
predictions are measured, and how answers are watched."""


def verb(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function: positional parameters become arguments, the others options.

    The lines `name : meaning` below "Parameters" in its docstring are the help texts. A parameter that is called like
    one of the `BUNDLES` stands for its options, whose values it gets together.
    """
    text, _, described = (inspect.getdoc(function) or "").partition("\n\nParameters\n----------\n")
    meanings = HELP | dict(re.findall(r"^(\w+) : (.*)", described, re.MULTILINE))
    own, options = inspect.signature(function, eval_str=True).parameters, []
    for own_name, one in own.items():
        for name, (kind, default) in BUNDLES.get(own_name, {own_name: (one.annotation, one.default)}).items():
            # what typer shall know: what the type carries already, or the names of the option
            if get_origin(kind) is Annotated:
                kind, declared = get_args(kind)  # noqa: PLW2901
                declared = copy(declared)  # several verbs share a type
            elif one.kind is not one.KEYWORD_ONLY:
                declared = typer.Argument(metavar=name.upper())
            else:
                # a name that is given keeps typer from adding --no-NAME to a switch
                switch = [f"--{name.replace('_', '-')}"] if default is False else ()
                declared = typer.Option(*NAMES.get(name, switch), metavar=METAVARS.get(name))
            declared.help = meanings.get(name)
            options.append(one.replace(name=name, default=default, annotation=Annotated[kind, declared]))

    @functools.wraps(function)
    def run(**given: Any) -> None:
        if given.get("class_names") is not None:
            given["class_names"] = [name.strip() for name in given["class_names"].split(",")]
        for bundle in BUNDLES.keys() & own:
            given[bundle] = {name: given.pop(name) for name in BUNDLES[bundle]}
        function(**given)

    # typer reads all three
    run.__doc__, run.__annotations__ = text, {one.name: one.annotation for one in options}
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return run
