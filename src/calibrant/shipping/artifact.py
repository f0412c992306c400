"""Artifacts: a fitted calibrator as one `.safetensors` file that is safe to load from anyone.

The file holds arrays and one JSON header (`schemas/artifact.schema.json`) with everything a person asks about a
calibrator later: method, parameters, K, class names, what it was fitted on, the figures before and after. Loading
reads data and checks it: no pickle, no import by a path from the file, limits before any allocation.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.calibrators.learned import check_learned
from calibrant.calibrators.registry import find_class, is_around_model
from calibrant.core.atomic import atomic_write
from calibrant.core.errors import FitWarning, InputError, MissingExtraError
from calibrant.core.schema import Schema
from calibrant.shipping.encoding import DTYPES, Decoder, Encoder

FORMAT = 1
"""Version of the header's layout. A reader takes its own and every older one."""

MAX_HEADER_BYTES = 64 << 20
MAX_TENSORS = 10_000
MAX_CLASSES = 1_000_000
METADATA_KEY = "calibrant"
OPTIONAL_FIT_KEYS = frozenset({"created", "source"})


@dataclass(frozen=True)
class Artifact:
    """A calibrator and what its file says about it; `before` and `after` are figures on the fit data.

    `n_classes` is None for a method that is learned around a network.
    """

    calibrator: Any
    n_classes: int | None
    class_names: tuple[str, ...] | None = None
    fingerprint: str | None = None
    n: int | None = None
    before: Mapping[str, float] | None = None
    after: Mapping[str, float] | None = None
    library: str = ""
    format: int = FORMAT
    created: str | None = None
    source: str | None = None

    @property
    def schema(self) -> Schema | None:
        """What the calibrator was fitted on; None for a method that is learned around a network."""
        if self.n_classes is None:
            return None
        return Schema(getattr(self.calibrator, "task_", "multiclass"), "logits", self.n_classes, self.class_names)

    @property
    def method(self) -> str:
        """Name of the calibrator's class."""
        return type(self.calibrator).__name__


def save(
    calibrator: Any,
    path: str | os.PathLike[str],
    *,
    class_names: Sequence[str] | None = None,
    fingerprint: str | None = None,
    n: int | None = None,
    before: Mapping[str, float] | None = None,
    after: Mapping[str, float] | None = None,
    source: str | None = None,
) -> None:
    """Write a fitted calibrator to one file, in one step: a crash leaves the old file or the new one.

    Parameters
    ----------
    calibrator : a fitted calibrator of this library, composed ones included.
    path : where to; the usual ending is `.safetensors`.
    class_names, before, after : kept in the header, for readers of the file.
    n, fingerprint : of the fit data; by default what the calibrator remembers of its fit.
    source : name of the fit data, such as a file; kept beside the time of saving.

    Examples
    --------
    >>> import tempfile, calibrant, numpy as np
    >>> path = tempfile.mkdtemp() + "/cal.safetensors"
    >>> fitted = calibrant.Identity().fit(2 * np.eye(3), [0, 1, 2])
    >>> save(fitted, path, class_names=["cat", "dog", "owl"])
    >>> load(path)
    Identity()
    """
    about = {"class_names": class_names, "fingerprint": fingerprint, "n": n, "before": before, "after": after}
    created = datetime.now(UTC).isoformat(timespec="seconds")
    content = to_bytes(calibrator, **about, source=source, created=created)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def load(path: str | os.PathLike[str]) -> Any:
    """The calibrator of a file; its predictions have the very bits they had when it was saved."""
    return read_artifact(path).calibrator


def read_artifact(path: str | os.PathLike[str]) -> Artifact:
    """The calibrator of a file together with what the header says about it."""
    content = read_content(path)
    try:
        return from_bytes(content)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def read_content(path: str | os.PathLike[str]) -> bytes:
    """The bytes of an artifact, whose size and first bytes have been looked at before."""
    _check_size(path)
    return Path(path).read_bytes()


def digest_of(content: bytes) -> str:
    """A name of an artifact's content: the same calibrator saved at another time has the same."""
    header = read_header(content)
    header["fit"].pop("created", None)
    size = int.from_bytes(content[:8], "little")
    text = json.dumps(header, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode() + content[8 + size :]).hexdigest()


def to_bytes(calibrator: Any, **about: Any) -> bytes:
    """The content of an artifact; it has been read back and checked before it is returned."""
    from safetensors.numpy import save as to_safetensors

    from calibrant import __version__

    encoder = Encoder()
    n_classes = _n_classes(calibrator)
    names = about.get("class_names")
    n_rows = about.get("n") or getattr(calibrator, "n_rows_", None)
    header: dict[str, Any] = {
        "format": FORMAT,
        "library": __version__,
        "n_classes": n_classes,
        "class_names": None if names is None else [str(name) for name in names],
        "fit": {
            "n": n_rows,
            "fingerprint": about.get("fingerprint") or getattr(calibrator, "fingerprint_", None),
            "before": _figures(about.get("before")),
            "after": _figures(about.get("after")),
        },
        "calibrator": encoder.calibrator(calibrator),
    }
    header["fit"].update({name: str(about[name]) for name in OPTIONAL_FIT_KEYS if about.get(name) is not None})
    text = json.dumps(header, allow_nan=False, ensure_ascii=True)
    content = to_safetensors(encoder.tensors, {METADATA_KEY: text})
    copy = from_bytes(content).calibrator
    if n_classes is not None:
        _check_copy(calibrator, copy, n_classes)
    return content


def _n_classes(calibrator: Any) -> int | None:
    """K of a fitted calibrator; None where it is learned around a network."""
    from sklearn.utils.validation import check_is_fitted

    if not is_around_model(type(calibrator).__name__):
        check_is_fitted(calibrator)
        return len(calibrator.classes_)
    if not hasattr(calibrator, "delta_"):
        raise InputError(f"{type(calibrator).__name__} is not fitted: fit it before saving it")
    return None


def _check_copy(calibrator: Any, copy: Any, n_classes: int) -> None:
    """Raise unless the copy that was read back predicts the very bits of the original."""
    for logits in probes(calibrator, n_classes):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # a probe belongs to no group
            same = np.array_equal(calibrator.transform(logits), copy.transform(logits))
        if not same:
            raise InputError(f"{type(calibrator).__name__} predicts otherwise after a round trip: it cannot be saved")


def from_bytes(content: bytes) -> Artifact:
    """The artifact that these bytes hold; anything unsound raises InputError."""
    _check_prefix(content[:8], len(content))
    header = read_header(content)
    tensors = _tensors(content)
    n_classes = header["n_classes"]
    decoder = Decoder(tensors, n_classes)
    try:
        calibrator = decoder.calibrator(header["calibrator"])
        unused = sorted(set(tensors) - decoder.used)
        if unused:
            raise InputError(f"the file holds arrays that nothing refers to: {unused[:3]}")
        check_learned(calibrator, n_classes)
        if n_classes is not None:
            _probe(calibrator, n_classes)
    except (InputError, MissingExtraError, MemoryError):
        raise
    except Exception as error:
        # the file's numbers reach a method's own code here: any error there means that the file is unsound
        raise InputError(f"the saved calibrator does not work ({type(error).__name__}: {error})") from error
    names = header["class_names"]
    return Artifact(
        calibrator=calibrator,
        n_classes=n_classes,
        class_names=None if names is None else tuple(names),
        library=header["library"],
        format=header["format"],
        **header["fit"],
    )


def read_header(content: bytes) -> dict[str, Any]:
    """The checked JSON header of an artifact's bytes."""
    size = int.from_bytes(content[:8], "little")
    try:
        outer = json.loads(content[8 : 8 + size])
        metadata = outer.get("__metadata__", {})
        if METADATA_KEY not in metadata:
            raise InputError("this safetensors file was not written by calibrant: its header has no 'calibrant' entry")
        header = json.loads(metadata[METADATA_KEY], parse_constant=_refuse_constant)
    except InputError:
        raise
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"the header is not readable ({type(error).__name__}: {error})") from error
    if len(outer) > MAX_TENSORS + 1:
        raise InputError(f"the file holds {len(outer) - 1} arrays, above the limit of {MAX_TENSORS}")
    _check_header(header)
    return header


def _check_header(header: Any) -> None:
    if not isinstance(header, dict) or type(header.get("format")) is not int:
        raise InputError("the header has no format number")
    if header["format"] > FORMAT:
        raise InputError(
            f"the file has format {header['format']}, but this calibrant reads up to {FORMAT}: "
            "upgrade with `pip install -U calibrant`"
        )
    if header["format"] < 1:
        raise InputError(f"the file has format {header['format']}, but formats start at 1: save the calibrator again")
    expected = {"format", "library", "n_classes", "class_names", "fit", "calibrator"}
    if set(header) != expected:
        odd = sorted(set(header) ^ expected)
        raise InputError(f"the header's keys are not those of format {FORMAT}: {odd[:4]}")
    n_classes, names, fit = header["n_classes"], header["class_names"], header["fit"]
    around = isinstance(header["calibrator"], dict) and is_around_model(header["calibrator"].get("class"))
    # of many labels there may be one; one score per row has two classes
    least = 1 if isinstance(header["calibrator"], dict) and _counts_labels(header["calibrator"]) else 2
    if around != (n_classes is None) or not (around or (type(n_classes) is int and least <= n_classes <= MAX_CLASSES)):
        raise InputError(f"n_classes is {n_classes!r}, but must be a whole number from {least} to {MAX_CLASSES}")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise InputError("class_names must be a list of texts")
    if names is not None and not around and len(names) != n_classes:
        raise InputError(f"there are {len(names)} class names, but {n_classes} classes")
    if not isinstance(header["library"], str):
        raise InputError("library must be a text")
    _check_fit(fit)


def _check_fit(fit: Any) -> None:
    if not isinstance(fit, dict) or set(fit) - OPTIONAL_FIT_KEYS != {"n", "fingerprint", "before", "after"}:
        raise InputError("fit must have the keys n, fingerprint, before and after")
    for name in OPTIONAL_FIT_KEYS & set(fit):
        if not isinstance(fit[name], str):
            raise InputError(f"fit.{name} must be a text")
    if fit["n"] is not None and (type(fit["n"]) is not int or fit["n"] < 1):
        raise InputError(f"fit.n is {fit['n']!r}, but must be a whole number of at least 1")
    if fit["fingerprint"] is not None and not isinstance(fit["fingerprint"], str):
        raise InputError("fit.fingerprint must be a text")
    for name in ("before", "after"):
        figures = fit[name]
        if figures is None:
            continue
        if not isinstance(figures, dict) or not all(_is_finite(value) for value in figures.values()):
            raise InputError(f"fit.{name} must map names to finite numbers")


def _check_size(path: str | os.PathLike[str]) -> None:
    """Look at the size and the first eight bytes before reading the rest."""
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder: give an artifact, such as cal.safetensors")
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{path} is a pipe or a device: give an artifact, such as cal.safetensors")
    try:
        with open(path, "rb") as file:
            _check_prefix(file.read(8), os.path.getsize(path))
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _check_prefix(prefix: bytes, size: int) -> None:
    if len(prefix) < 8:
        raise InputError(f"the file has {size} bytes: too short for an artifact")
    header_bytes = int.from_bytes(prefix, "little")
    if header_bytes > min(MAX_HEADER_BYTES, size - 8):
        raise InputError(
            f"the header claims {header_bytes} bytes, but {min(MAX_HEADER_BYTES, size - 8)} are possible: "
            "this is not an artifact, or it is cut off"
        )


def _tensors(content: bytes) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load as from_safetensors

    try:
        # offsets are checked against the file's length by the parser: nothing is allocated for a false claim
        tensors = from_safetensors(content)
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"the arrays are not readable ({error})") from error
    for name, array in tensors.items():
        if str(array.dtype) not in DTYPES:
            raise InputError(f"array {name!r} has dtype {array.dtype}, which an artifact cannot hold")
    return tensors


def _counts_labels(described: dict[str, Any]) -> bool:
    """Whether the columns of this calibrator are labels, of which there may be one."""
    found = find_class(described["class"]) if isinstance(described.get("class"), str) else None
    return getattr(found, "tasks", None) == ("multilabel",)


def _probe(calibrator: Any, n_classes: int) -> None:
    """Raise unless the calibrator gives probabilities on logits small and large, sure and unsure."""
    for logits in probes(calibrator, n_classes):
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # a probe belongs to no group
            probabilities = calibrator.predict_proba(logits)
        if probabilities.shape != (len(logits), n_classes) or not np.isfinite(probabilities).all():
            raise InputError("the saved calibrator gives values that are not finite")
        if calibrator.task_ == "multilabel":
            sums_to_one = True  # every label has a probability of its own
        else:
            sums_to_one = np.abs(probabilities.sum(axis=1, dtype=np.float64) - 1).max() <= 1e-3
        if probabilities.min() < 0 or probabilities.max() > 1 + 1e-3 or not sums_to_one:
            raise InputError("the saved calibrator gives rows that are not probabilities")


def probes(calibrator: Any, n_classes: int) -> list[np.ndarray]:
    """`probe_logits`, as one score per row where the calibrator takes those."""
    if calibrator.task_ == "binary":
        return [rows[:, 1] - rows[:, 0] for rows in probe_logits(2)]
    return probe_logits(n_classes)


def probe_logits(n_classes: int) -> list[np.ndarray]:
    """Rows whose confidence runs from 1/K to 1 and whose size runs to 1e4, in both dtypes."""
    n_rows = max(4, min(64, 4_000_000 // n_classes))
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n_rows, n_classes))
    winner = rng.integers(0, n_classes, n_rows)
    rows[np.arange(n_rows), winner] += np.linspace(0, np.log(n_classes) + 12, n_rows)
    large = rng.uniform(-1e4, 1e4, size=(4, n_classes))
    flat = np.zeros((1, n_classes))
    rows = np.concatenate([rows, large, flat, flat + 1e4])
    return [rows, rows.astype(np.float32)]


def _figures(figures: Mapping[str, float] | None) -> dict[str, float] | None:
    if figures is None:
        return None
    return {str(name): float(value) for name, value in figures.items()}


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _refuse_constant(word: str) -> float:
    raise InputError(f"the header holds {word}, but every number must be finite")
