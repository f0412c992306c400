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
    grouped = method.endswith(("+group", "+multi"))
    columns = options_of(command, ("--by",)).get("--by", "COLUMN") if grouped else None
    given = options_of(command)
    said = "".join(f" {name} {shlex.quote(value)}" for name, value in given.items())
    by = "" if columns is None else f" --groups {shlex.quote(columns)}"
    shell = f"""calibrant fit {shlex.quote(fit_on)}{said}{by} --method {shlex.quote(method)} -o calibrator.safetensors
calibrant apply calibrator.safetensors {shlex.quote(apply_to)}{said}{by} -o calibrated.npz"""
    onnx = """calibrant export calibrator.safetensors --onnx calibrator.onnx
calibrant export calibrator.safetensors --onnx calibrated_model.onnx --model model.onnx  # both in one"""
    python = _python(method, task, fit_on, apply_to, given=given, columns=columns)
    return [("Python", python), ("Command line", shell), ("ONNX", onnx)]


def model_usage(method: str | None, task: str, sources: Sequence[str] = (), command: str | None = None) -> Snippets:
    """One fit per model on the command line, and the same in Python for the first of them."""
    if method is None:
        return []
    said = "".join(f" {name} {shlex.quote(value)}" for name, value in options_of(command).items())
    lines, first = [], "val.npz"
    for place, source in enumerate(sources):
        name, val, _ = model_files(without_queries(source))
        first = val if place == 0 else first
        fit = f"calibrant fit {shlex.quote(val)}{said} --method {shlex.quote(method)}"
        lines.append(f"{fit} -o {shlex.quote(name + '.safetensors')}")
    shell = "\n".join(lines) or f"calibrant fit {first} --method {shlex.quote(method)} -o calibrator.safetensors"
    python = _python(method, task, first, "new.npz", given=options_of(command))
    return [("Command line", shell), ("Python", python)]


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


def _python(
    method: str, task: str, fit_on: str, apply_to: str, *, given: dict[str, str], columns: str | None = None
) -> str:
    options = "".join(f", {name.strip('-').replace('-', '_')}={_value(name, value)}" for name, value in given.items())
    built = f"cal.get({method!r})"
    if task == "multilabel":
        built = f'cal.get("multilabel", calibrator={method!r})' if method != "none" else built
    weights = ", sample_weight=val.weights" if "--weights" in given else ""
    fit = f"{built}.fit(val.logits, val.labels{weights})"
    read = f"cal.open_predictions({fit_on!r}{options})"
    if columns is not None:
        read = f"cal.open_predictions({fit_on!r}{options}, by={columns!r})"
        fit = f"{built}.fit(val)"
    after = "  # column 1: the positive class" if task in ("binary", "pairs") else ""
    last = f"""new = cal.open_predictions({apply_to!r}{options}, require_labels=False)
probabilities = cal.load("calibrator.safetensors").predict_proba(new.logits){after}"""
    if columns is not None:
        last = 'calibrated = cal.load("calibrator.safetensors")  # predict_proba(logits, groups=...)'
    return f"""import calibrant as cal

val = {read}  # rows the model was not trained on
calibrator = {fit}
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
    lines.append(("Rows", f"{comparison.n_val:,} to fit on, {comparison.n_test:,} to measure on"))
    return [*lines, *_made(command)]


def model_provenance(table: ModelComparison, sources: Sequence[str], command: str | None) -> Snippets:
    """The same for several models: files by model."""
    lines = []
    for source in sources:
        name, val, test = model_files(source)
        files = dict.fromkeys(described(one.removesuffix("#val").removesuffix("#test")) for one in (val, test))
        lines.append((f"Model {name}", "; ".join(files)))
    for name, one in table.comparisons.items():
        lines.append((f"Rows of {name}", f"{one.n_val:,} to fit on, {one.n_test:,} to measure on"))
    return [*lines, *_made(command)]


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
