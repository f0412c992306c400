"""How to apply the winner, with the user's own files and the options that read them; and where a page comes from."""

from __future__ import annotations

import hashlib
import platform
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import scipy
import sklearn

import calibrant
from calibrant.core.errors import InputError
from calibrant.evaluation.models import ModelComparison
from calibrant.evaluation.results import Comparison

Snippets = list[tuple[str, str]]
"""Titles and texts."""
READING = ("--kind", "--task", "--scores", "--labels", "--weights", "--class-names", "--ignore-index")
"""Options of `compare` that say what a file holds; `fit` and `apply` need them too."""
LARGEST_HASHED = 2_000_000_000
"""Bytes up to which a file is read for its hash."""


def options_of(command: str | None, wanted: Sequence[str] = READING) -> dict[str, str]:
    """The options among `wanted` that a command gave.

    >>> options_of("calibrant compare a.csv b.csv --kind=logits --labels y -m ts")
    {'--kind': 'logits', '--labels': 'y'}
    """
    words = [] if command is None else shlex.split(command)
    found: dict[str, str] = {}
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in wanted:
            following = words[place + 1] if place + 1 < len(words) else ""
            found[name] = value if equals else following
    return {name: found[name] for name in wanted if name in found}


def usage(method: str | None, task: str, sources: Sequence[str] = (), command: str | None = None) -> Snippets:
    """Python, command line and ONNX for one model."""
    if method is None:
        return []
    sources = [without_queries(source) for source in sources]
    fit_on, apply_to = (*sources, "val.npz", "new.npz")[:2] if len(sources) != 1 else (sources[0], "new.npz")
    said = _said(method, command)
    shell = f"""{_fit(fit_on, method, said)} -o calibrator.safetensors
calibrant apply calibrator.safetensors {shlex.quote(apply_to)}{said} -o calibrated.npz"""
    onnx = """calibrant export calibrator.safetensors --onnx calibrator.onnx
calibrant export calibrator.safetensors --onnx calibrated_model.onnx --model model.onnx  # both in one"""
    return [("Python", _python(method, task, fit_on, apply_to, command)), ("Command line", shell), ("ONNX", onnx)]


def model_usage(method: str | None, task: str, sources: Sequence[str] = (), command: str | None = None) -> Snippets:
    """One fit per model on the command line, and the same in Python for the first of them."""
    if method is None:
        return []
    models = [model_files(without_queries(source)) for source in sources] or [("calibrator", "val.npz", "")]
    said = _said(method, command)
    shell = [f"{_fit(val, method, said)} -o {shlex.quote(name + '.safetensors')}" for name, val, _ in models]
    return [("Command line", "\n".join(shell)), ("Python", _python(method, task, models[0][1], "new.npz", command))]


def _groups(method: str, command: str | None) -> str | None:
    """The columns of groups that a method of theirs needs."""
    found = options_of(command, ("--by",)).get("--by", "COLUMN")
    return found if method.endswith(("+group", "+multi")) else None


def _said(method: str, command: str | None) -> str:
    """The options that read a file, as the command line takes them."""
    groups = _groups(method, command)
    given = options_of(command) | ({} if groups is None else {"--groups": groups})
    return "".join(f" {name} {shlex.quote(value)}" for name, value in given.items())


def _fit(file: str, method: str, said: str) -> str:
    return f"calibrant fit {shlex.quote(file)}{said} --method {shlex.quote(method)}"


def without_queries(text: str) -> str:
    """Addresses lose what follows the question mark: signed ones hold a secret there."""
    return " ".join(word.partition("?")[0] if "://" in word else word for word in text.split(" "))


def model_files(source: str) -> tuple[str, str, str]:
    """Name, fit rows and test rows of a model as `compare --models` takes it."""
    name, files = split_model(source)
    val, test = files if len(files) == 2 else (f"{files[0]}#val", f"{files[0]}#test")
    return name, val, test


def split_model(given: str) -> tuple[str, list[str]]:
    """The name of a model and its one or two files; an existing path is a path, whatever signs it holds.

    >>> split_model("resnet=val.npz,test.npz")
    ('resnet', ['val.npz', 'test.npz'])
    >>> split_model("runs/vit.npz")
    ('vit', ['runs/vit.npz'])
    """
    if Path(given).exists() or "=" not in given:
        return Path(given).stem, [given]
    name, _, files = given.partition("=")
    both = [part.strip() for part in files.split(",")]
    if len(both) > 2 or not all([name, *both]):
        raise InputError(f"{given!r} is no model: give FILE, NAME=FILE or NAME=VAL_FILE,TEST_FILE")
    return name, both


def _python(method: str, task: str, fit_on: str, apply_to: str, command: str | None) -> str:
    groups = _groups(method, command)
    given = options_of(command) | ({} if groups is None else {"--by": groups})
    options = "".join(f", {name.strip('-').replace('-', '_')}={_value(name, value)}" for name, value in given.items())
    built = f"cal.get({method!r})"
    if task == "multilabel" and method != "none":
        built = f'cal.get("multilabel", calibrator={method!r})'
    after = "  # column 1: the positive class" if task in ("binary", "pairs") else ""
    last = f"""new = cal.open_predictions({apply_to!r}{options}, require_labels=False)
probabilities = cal.load("calibrator.safetensors").predict_proba(new.logits){after}"""
    if groups is not None:
        last = 'calibrated = cal.load("calibrator.safetensors")  # predict_proba(logits, groups=...)'
    return f"""import calibrant as cal

val = cal.open_predictions({fit_on!r}{options})  # rows the model was not trained on
calibrator = {built}.fit(val)
cal.save(calibrator, "calibrator.safetensors")

{last}"""


def _value(name: str, value: str) -> str:
    if name == "--ignore-index":
        return value
    if name == "--class-names":
        return repr([part.strip() for part in value.split(",")])
    return repr(value)


def provenance(comparison: Comparison, sources: Sequence[str], command: str | None) -> Snippets:
    """The lines of the page's last table."""
    roles = ("Fitted on", "Measured on") if len(sources) == 2 else ["File"] * len(sources)
    lines = [(role, described(source)) for role, source in zip(roles, sources, strict=True)]
    return [*lines, ("Rows", _rows(comparison)), *_made(command)]


def model_provenance(table: ModelComparison, sources: Sequence[str], command: str | None) -> Snippets:
    """The same for several models: files by model."""
    lines = []
    for name, *parts in map(model_files, sources):
        files = dict.fromkeys(described(one.removesuffix("#val").removesuffix("#test")) for one in parts)
        lines.append((f"Model {name}", "; ".join(files)))
    lines += [(f"Rows of {name}", _rows(one)) for name, one in table.comparisons.items()]
    return [*lines, *_made(command)]


def _rows(comparison: Comparison) -> str:
    return f"{comparison.n_val:,} to fit on, {comparison.n_test:,} to measure on"


def _made(command: str | None) -> Snippets:
    lines = [
        ("Made", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")),
        ("Versions", f"calibrant {calibrant.__version__}, Python {platform.python_version()}, numpy {np.__version__}, "
         f"scipy {scipy.__version__}, scikit-learn {sklearn.__version__}"),
    ]  # fmt: skip
    return [*lines, ("Command", without_queries(command))] if command else lines


def described(source: str) -> str:
    """An address with size and SHA-256 where it is a file on this machine."""
    path = Path(source if Path(source).exists() else source.partition("#")[0])
    if not path.is_file() or path.stat().st_size > LARGEST_HASHED:
        return without_queries(source)
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
    return f"{source} ({path.stat().st_size:,} bytes, SHA-256 {digest.hexdigest()[:16]}…)"
