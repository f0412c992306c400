"""How to apply the winner, with the user's own files and the options that read them; and where a page comes from."""

import hashlib
import platform
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import scipy
import sklearn

import calibrant
from calibrant.evaluation.models import model_files
from calibrant.evaluation.results import Comparison

Snippets = list[tuple[str, str]]
"""Titles and texts."""
READING = ("--kind", "--task", "--scores", "--labels", "--weights", "--class-names", "--ignore-index", "--by")
"""Options of `compare` that say what a file holds; `fit` and `apply` need them too."""
LARGEST_HASHED = 2_000_000_000
"""Bytes up to which a file is read for its hash."""
ONNX = """calibrant export calibrator.safetensors --onnx calibrator.onnx
calibrant export calibrator.safetensors --onnx calibrated_model.onnx --model model.onnx  # both in one"""


def usage(
    method: str | None, task: str, sources: Sequence[str] = (), command: str | None = None, *, several: bool = False
) -> Snippets:
    """Python, command line and ONNX for one model; for several a fit of each, and the same in Python for the first.

    >>> command = "calibrant compare a.csv b.csv --kind=logits -m ts"
    >>> dict(usage("ts", "binary", ["a.csv", "b.csv"], command))["Command line"].splitlines()[0]
    'calibrant fit a.csv --kind logits --method ts -o calibrator.safetensors'
    """
    if method in (None, "none"):
        return []
    sources = [without_queries(source) for source in sources]
    fit_on, apply_to = (*sources, *("val.npz", "new.npz")[len(sources) :])[:2]
    models = [("calibrator", fit_on, apply_to)]
    if several and sources:
        models = [(name, val, "new.npz") for name, val, *_ in map(model_files, sources)]
    found = {}
    for word, following in pairwise([*shlex.split(command or ""), ""]):
        name, equals, value = word.partition("=")
        found[name] = value if equals else following
    options = {name: found[name] for name in READING if name in found}
    if method.endswith(("+group", "+multi")):
        options.setdefault("--by", "COLUMN")
    else:
        options.pop("--by", None)
    python = ("Python", _python(method, task, *models[0][1:], options))
    # what compare measures by, fit and apply calibrate by
    said = "".join(f" {name.replace('--by', '--groups')} {shlex.quote(value)}" for name, value in options.items())
    fits = [
        f"calibrant fit {shlex.quote(val)}{said} --method {shlex.quote(method)} -o {shlex.quote(name + '.safetensors')}"
        for name, val, _ in models
    ]
    if several:
        return [("Command line", "\n".join(fits)), python]
    apply = f"calibrant apply calibrator.safetensors {shlex.quote(apply_to)}{said} -o calibrated.npz"
    return [python, ("Command line", f"{fits[0]}\n{apply}"), ("ONNX", ONNX)]


def without_queries(text: str) -> str:
    """Addresses lose what follows the question mark: signed ones hold a secret there."""
    return " ".join(word.partition("?")[0] if "://" in word else word for word in text.split(" "))


def _python(method: str, task: str, fit_on: str, apply_to: str, given: Mapping[str, str]) -> str:
    options = ""
    for name, value in given.items():
        code = value if name == "--ignore-index" else repr(value)
        if name == "--class-names":
            code = repr([part.strip() for part in value.split(",")])
        options += f", {name.strip('-').replace('-', '_')}={code}"
    built = f'cal.get("multilabel", calibrator={method!r})' if task == "multilabel" else f"cal.get({method!r})"
    after = "  # column 1: the positive class" if task in ("binary", "pairs") else ""
    last = f"""new = cal.open_predictions({apply_to!r}{options}, require_labels=False)
probabilities = cal.load("calibrator.safetensors").predict_proba(new.logits){after}"""
    if "--by" in given:
        last = 'calibrated = cal.load("calibrator.safetensors")  # predict_proba(logits, groups=...)'
    return f"""import calibrant as cal

val = cal.open_predictions({fit_on!r}{options})  # rows the model was not trained on
calibrator = {built}.fit(val)
cal.save(calibrator, "calibrator.safetensors")

{last}"""


def provenance(comparisons: Mapping[str, Comparison], sources: Sequence[str], command: str | None) -> Snippets:
    """The lines of the page's last table; of several models with their names."""
    if "" in comparisons:
        roles = ("Fitted on", "Measured on") if len(sources) == 2 else ["File"] * len(sources)
        lines = list(zip(roles, map(described, sources), strict=True))
    else:
        lines = []
        for name, *parts in map(model_files, sources):
            files = dict.fromkeys(described(one.removesuffix("#val").removesuffix("#test")) for one in parts)
            lines.append((f"Model {name}", "; ".join(files)))
    lines += [(f"Rows of {name}" if name else "Rows", one.fitted) for name, one in comparisons.items()]
    versions = (
        f"calibrant {calibrant.__version__}, Python {platform.python_version()}, numpy {np.__version__}, "
        f"scipy {scipy.__version__}, scikit-learn {sklearn.__version__}"
    )
    lines += [("Made", f"{datetime.now(UTC):%Y-%m-%d %H:%M UTC}"), ("Versions", versions)]
    return [*lines, ("Command", without_queries(command))] if command else lines


def described(source: str) -> str:
    """An address with size and SHA-256 where it is a file on this machine."""
    path = Path(source if Path(source).exists() else source.partition("#")[0])
    if not path.is_file() or path.stat().st_size > LARGEST_HASHED:
        return without_queries(source)
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
    return f"{source} ({path.stat().st_size:,} bytes, SHA-256 {digest.hexdigest()[:16]}…)"
