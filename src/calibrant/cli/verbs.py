"""What the verbs share: options, which they declare as parameters, and how they speak.

Types and defaults of a function say what an option takes, its docstring what it means. Results are plain text, or JSON
for machines; long work shows a bar.
"""

import csv
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from glob import escape, has_magic, iglob
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from calibrant.core import progress
from calibrant.core.atomic import check_replaceable, check_target
from calibrant.core.errors import InputError
from calibrant.data.arrays import kind_word

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
    "absent": "Classes without fit rows: keep, or never if they are never right.",
    "engine": "Where passes run: local, dask, or the address of a scheduler (tcp://…).",
    "skip_bad_parts": "Leave out parts of a folder or pattern that cannot be read; they are reported.",
    "false_alarm_rate": "Largest chance of ever raising a false alarm.",
    "batch": "A number, or the field that names an answer's batch: one bet per batch. Answers of one batch may depend "
    "on each other; without it every answer must be independent of the others.",
    "id_window": "Number of latest ids that are remembered: an older answer that comes again counts again.",
    "max_groups": "Largest number of groups of --by; more names count as other.",
    "max_name_length": "Longest name of a group; longer ones count as other.",
    "kind": "What the values are: logits, probabilities or percent.",
    "spreadsheet_safe": "Put an apostrophe before cells of a CSV or TSV that a spreadsheet would compute (=, +, @).",
    "task": "multiclass, binary, multilabel or pairs, where names and shapes do not tell.",
    "scores": "Array or column of the scores, or columns: risk, a,b,c or 'prob_*'.",
    "labels": "Array or column of the labels, or another file of them.",
    "weights": "Array or column of the weights, or an .npy file of them.",
    "weights_are": "rows: intervals and tests draw the rows; counts: every copy, a weight of 2 being the row twice.",
    "class_names": "Names of the classes in order: cat,dog; or by label: 1=cat,2=dog.",
    "strict": "Accept only documented names and options.",
    "ignore_index": "Leave out rows with this label, such as -100 or 255.",
}
"""What the options that several verbs share mean; a verb's docstring may say it otherwise."""

NAMES = {
    "as_json": "--json",
    "at_least": "--min",
    "at_most": "--max",
    "everything": "--all",
    "id_field": "--id",
    "method": "--method -m",
    "methods": "--methods -m",
    "others": "--with",
    "output": "--output -o",
    "parameters": "--param -p",
    "shifted": "--shift",
}
"""Options that have another name than the parameter, or a short one besides."""
INPUTS = ("artifact", "file", "files", "labels", "model", "new", "old", "others", "scores", "shifted", "weights")
OUTPUTS = ("onnx", "out", "output", "report")
"""Options and arguments that may name a file to read or to write."""
METAVARS = {"at_least": "NAME=LIMIT", "at_most": "NAME=LIMIT", "parameters": "NAME=VALUE"}

Seed = Annotated[int, typer.Option(min=0)]
Count = Annotated[int, typer.Option(min=1)]
Limit = Annotated[list[float] | None, typer.Option(min=0.0)]
Share = Annotated[list[float] | None, typer.Option(min=0.0, max=1.0)]


Fields = dict[str, Any]
"""Values by name: those of a bundle of options, or the document that `--json` prints."""
TEXT, SWITCH = (str | None, None), (bool, False)
BUNDLES: dict[str, Fields] = {
    "said": dict.fromkeys(("kind", "task", "scores", "labels", "weights", "class_names"), TEXT)
    | {"ignore_index": (int | None, None), "strict": SWITCH},
    "how": {
        "by": TEXT,
        "cluster": TEXT,
        "n_bins": (int, 15),
        "resamples": (int, 1000),
        "seed": (Seed, 0),
        "weights_are": (str, "rows"),
    },
    "compared": {
        "methods": (str, "default"),
        "criterion": (str, "nll"),
        "cv": (int | None, None),
        "split": (float | None, None),
    },
    "printed": {
        "report": TEXT,
        "markdown": SWITCH,
        "latex": SWITCH,
        "columns": TEXT,
        "intervals": SWITCH,
        "as_json": SWITCH,
    },
    "watch": {
        "false_alarm_rate": (float, 0.01),
        "batch": TEXT,
        "by": TEXT,
        "id_window": (Count, 100_000),
        "max_groups": (Annotated[int, typer.Option(min=1, max=200)], 200),
        "max_name_length": (Count, 100),
    },
}
"""Options that verbs share, with types and defaults: what every verb that reads predictions asks about them, how
predictions are measured, which methods are compared and how one file is divided, where a comparison goes (the options
of `compare.finish`), and how answers are watched."""


def verb(function: Callable[..., bool | None]) -> Callable[..., None]:
    """Make a command of a function: positional parameters become arguments, the others options.

    The lines `name : meaning` below "Parameters" in its docstring are the help texts. A parameter that is called like
    one of the `BUNDLES` stands for its options, whose values it gets together. What it returns says whether the work
    was done and its answer is no.
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
                switch = f"--{name.replace('_', '-')}" if default is False else ""
                declared = typer.Option(*NAMES.get(name, switch).split())
            declared.help = meanings.get(name)
            if one.kind is not one.KEYWORD_ONLY:
                # a list of arguments would name their types
                declared.hidden, text = True, f"{text}\n\n{declared.metavar}: {declared.help}"
            elif "bool" not in str(kind):
                declared.metavar = METAVARS.get(name, "TEXT" if "str" in str(kind) else "N")
            options.append(one.replace(name=name, default=default, annotation=Annotated[kind, declared]))

    def run(**given: Any) -> None:
        if given.get("class_names") is not None:
            names = [name.strip() for name in next(csv.reader([given["class_names"]], skipinitialspace=True))]
            coded = all("=" in name for name in names)
            given["class_names"] = dict(name.split("=", 1) for name in names) if coded else names
        # before the work: a wrong path must not cost it
        for target in filter(None, map(given.get, ("output", "report"))):
            check_target(target)
        check_inputs_survive(given)
        if given.get("report"):
            from calibrant.report.page import is_html

            check_replaceable(given["report"], is_html, "a page")
        for bundle in BUNDLES.keys() & own:
            given[bundle] = {name: given.pop(name) for name in BUNDLES[bundle]}
        if function(**given):
            raise typer.Exit(CHECK_FAILED)

    # typer reads both
    run.__doc__ = text
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return run


def check_inputs_survive(options: Fields) -> None:
    """Raise if a file to write is also an input: a file, a file of an input folder or pattern, or a part of a file."""
    values = [options.get(name) or [] for name in INPUTS]
    inputs = [text for value in values for text in (value if isinstance(value, list) else [value])]
    for target in (Path(options[name]) for name in OUTPUTS if options.get(name)):
        for file in _siblings(target):
            if any(_is_read_by(file, text) for text in inputs):
                raise InputError(f"{file} is an input: choose another file to write than {target}")


def _siblings(target: Path) -> list[Path]:
    """Existing files that writing to `target` may replace: an .npy file comes with companions such as x_labels.npy."""
    if target.suffix.lower() != ".npy":
        return [target] if target.exists() else []
    word = kind_word(target.stem)
    prefix = target.stem.removesuffix(word) if word else f"{target.stem}_"
    return [one for one in (target, *target.parent.glob(f"{escape(prefix)}*.npy")) if one.exists()]


def _is_read_by(file: Path, text: str) -> bool:
    """Return whether an argument names this file: as FILE, NAME=VAL,TEST, FILE#part, its folder, or a pattern."""
    for part in (text, *text.partition("=")[2].split(",")):
        for address in filter(None, (part, part.partition("#")[0])):
            place = Path(address)
            if place.exists() and (os.path.samefile(file, place) or os.path.samefile(file.parent, place)):
                return True
            if has_magic(address) and str(file.absolute()) in map(os.path.abspath, iglob(address)):
                return True
    return False


CHECK_FAILED = 1
"""Exit code where the work was done and its answer is no."""

CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]")
"""What can move the cursor, change colours or turn text around: everything of the kind but tab and newline."""


def plain(text: str) -> str:
    """Text from a file (names of classes, members, columns) as a terminal may show it, control characters spelled out.

    >>> plain("cat\\x1b[31m")
    'cat\\\\x1b[31m'
    """
    return CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def printable(text: Any) -> str:
    """One line of text from a file, with a question mark for everything that is no visible sign."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


def warn(texts: Iterable[str], word: str = "warning") -> None:
    """Print warnings, one per line, where they do not mix with the result."""
    for text in texts:
        typer.echo(plain(f"{word}: {text}"), err=True)


def reading_lines(given: Any) -> list[str]:
    """Return the line that states how predictions were read from a file; none for arrays in memory."""
    return [] if given.reading is None else [f"read: {given.reading.sentence}"]


def doubts_of(given: Any) -> tuple[str, ...]:
    """Return why the values make the reading of predictions suspicious."""
    return () if given.reading is None else given.reading.doubts


def skipped_words(skipped: Sequence[str]) -> list[str]:
    """What to warn of where parts of a folder were left out."""
    return [f"{len(skipped)} bad part{'s' * (len(skipped) > 1)} left out: {'; '.join(skipped)}"] if skipped else []


def answer(as_json: bool, document: Fields, lines: Iterable[str]) -> None:
    """Print a result: one JSON document for machines, lines for people."""
    for line in [json.dumps(document)] if as_json else map(plain, lines):
        typer.echo(line)


def progress_bar(quiet: bool) -> AbstractContextManager[None]:
    """Show the steps of whatever runs inside the block on stderr: on a terminal, once the work passes a second."""
    return nullcontext() if quiet or not sys.stderr.isatty() else progress.shown()
