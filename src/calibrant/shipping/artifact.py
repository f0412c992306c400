"""Artifacts: a fitted calibrator as one `.safetensors` file that is safe to load from anyone.

The file holds arrays and one JSON header (`schemas/artifact.schema.json`) with everything a person asks about a
calibrator later: method, parameters, what its numbers mean, what it was fitted on, the figures before and after.
Loading reads data and checks it: no pickle, no import by a path from the file, limits before any allocation.

A calibrator is `{"class", "parameters", "learned"}`. Classes are found by name in the registry, never by a path from
the file. Values are JSON scalars and lists; everything else is an object with one key that says what it is:

    {"tensor": name}            an array of the file; with "scalar": true a numpy scalar of that dtype
    {"calibrator": {…}}         a calibrator inside a calibrator
    {"tuple": [...]}, {"dict": {...}}, {"strings": [...]}, {"number": "nan" | "inf" | "-inf"}
"""

import hashlib
import inspect
import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from safetensors.numpy import load as from_safetensors
from safetensors.numpy import save as to_safetensors
from sklearn.utils.validation import check_is_fitted

import calibrant
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.learned import check_learned, spec_of
from calibrant.calibrators.registry import find_class, is_around_model
from calibrant.core.arrays import Array, Json
from calibrant.core.atomic import atomic_write, check_replaceable, check_source
from calibrant.core.errors import FitWarning, InputError, MissingExtraError
from calibrant.core.schema import Reading, Schema, check_kind

PathName = str | os.PathLike[str]
Figures = Mapping[str, float] | None
"""Metrics on the fit data by name, where they are known."""
FORMAT = 2
"""Version of the header's layout."""
METADATA_KEY = "calibrant"
FIELDS = {
    "library": str,
    "n_classes": int,
    "class_names": list,
    "kind": str,
    "fingerprint": str,
    "n": int,
    "before": dict,
    "after": dict,
    "created": str,
    "source": str,
    "reading": dict,
}
"""Fields of the header besides its format and the calibrator, each of this type or null."""

MAX_HEADER_BYTES = 16 << 20
MAX_TENSORS = 10_000
MAX_CLASSES = 1_000_000
MAX_COUNT = 10_000_000
"""A count such as n_bins in a file may not ask for more than this (a seed may)."""
MAX_REAL = 1e12
Arrays = dict[str, np.ndarray]
DTYPES = frozenset({"float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"})


@dataclass(frozen=True)
class Artifact:
    """A calibrator and what its file says about it; `before` and `after` are figures on the fit data.

    `n_classes` is None for a method that is learned around a network. `kind` says what the calibrator was fitted on and
    takes: logits, or probabilities, whose logarithms it calibrates.
    """

    calibrator: Any
    n_classes: int | None
    class_names: tuple[str, ...] | None = None
    kind: str = "logits"
    fingerprint: str | None = None
    n: int | None = None
    before: Figures = None
    after: Figures = None
    library: str = ""
    format: int = FORMAT
    created: str | None = None
    source: str | None = None
    reading: Mapping[str, Any] | None = None
    """How the fit data were read: "sentence", and "options" of `open_predictions` that read files in the same way."""
    digest: str = ""
    """Name of the file's content; empty where the calibrator comes from no file."""

    @property
    def schema(self) -> Schema | None:
        """What the calibrator was fitted on; None for a method that is learned around a network."""
        if self.n_classes is None:
            return None
        return Schema(self.calibrator.task_, self.kind, self.n_classes, self.class_names)

    @property
    def method(self) -> str:
        """Name of the calibrator's class."""
        return type(self.calibrator).__name__


def save(
    calibrator: Any,
    path: PathName,
    *,
    class_names: Sequence[str] | None = None,
    kind: str | None = None,
    fingerprint: str | None = None,
    n: int | None = None,
    before: Figures = None,
    after: Figures = None,
    source: str | None = None,
    reading: Reading | None = None,
) -> None:
    """Write a fitted calibrator to one file, in one step: a crash leaves the old file or the new one.

    Parameters
    ----------
    calibrator : a fitted calibrator of this library, composed ones included.
    path : where to; the usual ending is `.safetensors`.
    class_names, before, after : kept in the header, for readers of the file.
    kind : what the calibrator was fitted on and takes, "logits" or "probabilities"; by default what it remembers.
    n, fingerprint : of the fit data; by default what the calibrator remembers of its fit.
    source : name of the fit data, such as a file; kept beside the time of saving (that of SOURCE_DATE_EPOCH, if set).
    reading : how the fit data were read, for `apply`.

    Examples
    --------
    >>> import tempfile, calibrant, numpy as np
    >>> path = tempfile.mkdtemp() + "/cal.safetensors"
    >>> fitted = calibrant.Identity().fit(2 * np.eye(3), [0, 1, 2])
    >>> save(fitted, path, class_names=["cat", "dog", "owl"])
    >>> load(path)
    Identity()
    """
    content = to_bytes(
        calibrator,
        class_names=class_names,
        kind=kind,
        fingerprint=fingerprint,
        n=n,
        before=before,
        after=after,
        source=source,
        reading=reading and {"sentence": reading.sentence, "options": dict(reading.options)},
        created=_read_clock().isoformat(timespec="seconds"),
    )
    check_replaceable(path, can_hold_artifact, "an artifact")
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def _read_clock() -> datetime:
    """Return the time of SOURCE_DATE_EPOCH, which makes the same fit write the same bytes, or the present time."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    try:
        return datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now(UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise InputError(f"SOURCE_DATE_EPOCH is {epoch[:40]!r}, but must be a number of seconds") from error


def is_artifact(path: PathName) -> bool:
    """Return whether a file has the header of an artifact."""
    return METADATA_KEY in (_safetensors_metadata(path) or ())


def can_hold_artifact(path: PathName) -> bool:
    """Return whether an artifact may replace a file: an artifact, or a damaged file with the usual suffix."""
    metadata = _safetensors_metadata(path)
    return os.fspath(path).endswith(".safetensors") if metadata is None else METADATA_KEY in metadata


def _safetensors_metadata(path: PathName) -> Json | None:
    """Return the metadata of a safetensors file; None if the file has no such header."""
    with open(path, "rb") as file:
        prefix = file.read(8)
        size = int.from_bytes(prefix, "little")
        header = file.read(size) if size <= MAX_HEADER_BYTES else b""
    try:
        return dict(json.loads(header).get("__metadata__", {}))
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None


def load(path: PathName) -> Calibrator:
    """The calibrator of a file; its predictions have the very bits they had when it was saved."""
    return read_artifact(path).calibrator


def read_artifact(path: PathName) -> Artifact:
    """The calibrator of a file together with what the header says about it."""
    check_source(path)
    try:
        with open(path, "rb") as file:
            prefix, size = file.read(8), os.path.getsize(path)
            # before the rest is read
            _need(len(prefix) == 8, f"the file has {size} bytes: too short for an artifact")
            claimed, possible = int.from_bytes(prefix, "little"), min(MAX_HEADER_BYTES, size - 8)
            claim = f"the header claims {claimed} bytes, but {possible} are possible"
            _need(claimed <= possible, f"{claim}: this is not an artifact, or it is cut off")
            return from_bytes(prefix + file.read())
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def digest_of(content: bytes) -> str:
    """A name of an artifact's content: the same calibrator saved at another time has the same."""
    size = int.from_bytes(content[:8], "little")
    text = json.dumps({**read_header(content), "created": None}, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode() + content[8 + size :]).hexdigest()


def to_bytes(calibrator: Any, **about: Any) -> bytes:
    """The content of an artifact; it has been read back and checked before it is returned."""
    learned, method, n_classes = vars(calibrator), type(calibrator).__name__, None
    if not is_around_model(method):
        check_is_fitted(calibrator)
        n_classes = len(calibrator.classes_)
    elif "delta_" not in learned:
        raise InputError(f"{method} is not fitted: fit it before saving it")
    # a method around a network takes its logits
    remembered = {
        "kind": learned.get("kind_", "logits"),
        "n": learned.get("n_rows_"),
        "fingerprint": learned.get("fingerprint_"),
    }
    header: Json = {name: remembered.get(name) if about.get(name) is None else about[name] for name in FIELDS}
    header |= {"format": FORMAT, "library": calibrant.__version__, "n_classes": n_classes}
    if header["class_names"] is not None:
        header["class_names"] = list(map(str, header["class_names"]))
    for name in ("before", "after"):
        if header[name] is not None:
            header[name] = {str(key): float(value) for key, value in header[name].items()}
    tensors: Arrays = {}
    header["calibrator"] = _described(calibrator, tensors)
    content = to_safetensors(tensors, {METADATA_KEY: json.dumps(header, allow_nan=False)})
    copy = from_bytes(content).calibrator
    if n_classes is not None:
        same = map(np.array_equal, *(_answers(one, "transform", n_classes) for one in (calibrator, copy)))
        _need(all(same), f"{method} predicts otherwise after a round trip: it cannot be saved")
    return content


def from_bytes(content: bytes) -> Artifact:
    """The artifact that these bytes hold; anything unsound raises InputError."""
    header = read_header(content)
    n_classes, names = header["n_classes"], header["class_names"]
    try:
        # offsets are checked against the file's length by the parser: nothing is allocated for a false claim
        tensors = from_safetensors(content)
        calibrator = _calibrator(header["calibrator"], tensors, n_classes)
        _need(not tensors, f"the file holds arrays that nothing refers to: {sorted(tensors)[:3]}")
        check_learned(calibrator, n_classes)
        for probabilities in () if n_classes is None else _answers(calibrator, "predict_proba", n_classes):
            # every one of many labels has a probability of its own
            sums = np.ones(1) if calibrator.task_ == "multilabel" else probabilities.sum(axis=1, dtype=np.float64)
            # NaN is neither above nor below
            fits = probabilities.min() >= 0 and probabilities.max() <= 1 + 1e-3 and np.abs(sums - 1).max() <= 1e-3
            fits &= probabilities.shape[1:] == (n_classes,)
            _need(fits, "the saved calibrator gives rows that are not probabilities")
    except (InputError, MissingExtraError, MemoryError):
        raise
    except Exception as error:
        # the file's numbers reach a method's own code here: any error there means that the file is unsound
        raise InputError(
            f"the saved calibrator does not work ({type(error).__name__}: {error}): the file is damaged, or a newer "
            "calibrant wrote it, then upgrade"
        ) from error
    calibrator.kind_ = header["kind"]
    header |= {"calibrator": calibrator, "class_names": None if names is None else tuple(names)}
    return Artifact(**header, digest=digest_of(content))


def read_header(content: bytes) -> Json:
    """The checked JSON header of an artifact's bytes."""
    size = int.from_bytes(content[:8], "little")
    try:
        outer = json.loads(content[8 : 8 + size])
        text = outer.get("__metadata__", {}).get(METADATA_KEY)
        header = json.loads(text or "{}")
        found = header.get("format")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"the header is not readable ({type(error).__name__}: {error})") from error
    _need(text, "this safetensors file was not written by calibrant: its header has no 'calibrant' entry")
    _need(len(outer) <= MAX_TENSORS + 1, f"the file holds {len(outer) - 1} arrays, above the limit of {MAX_TENSORS}")
    _need(
        found == FORMAT,
        f"the file has format {found!r}, but this calibrant reads {FORMAT}: save the calibrator again, or upgrade",
    )
    header.setdefault("reading", None)
    odd = sorted(set(header) ^ {*FIELDS, "format", "calibrator"})
    _need(not odd, f"the header's keys are not those of format {FORMAT}: {odd[:4]}")
    for name, kind in FIELDS.items():
        fits = header[name] is None or type(header[name]) is kind
        _need(fits, f"{name} is {str(header[name])[:40]!r}, but must be a {kind.__name__}")
    n_classes, names, described, n = (header[name] for name in ("n_classes", "class_names", "calibrator", "n"))
    method = str(described.get("class")) if isinstance(described, dict) else ""
    around = is_around_model(method)
    found = None if around else find_class(method)  # a class around a network would import it
    # of many labels there may be one; one score per row has two classes
    least = 1 if found is not None and found.tasks == ("multilabel",) else 2
    fits = n_classes is None if around else n_classes is not None and least <= n_classes <= MAX_CLASSES
    _need(fits, f"n_classes is {n_classes!r}, but must be a whole number from {least} to {MAX_CLASSES}")
    if names is not None:
        _need(all(isinstance(name, str) for name in names), "class_names must be a list of texts")
        _need(around or len(names) == n_classes, f"there are {len(names)} class names, but {n_classes} classes")
    check_kind(header["kind"] or "")
    _need(n is None or n >= 1, f"n is {n!r}, but must be a whole number of at least 1")
    for name in ("before", "after"):
        numbers = (header[name] or {}).values()
        fits = all(type(value) in (int, float) and math.isfinite(value) for value in numbers)
        _need(fits, f"{name} must map names to finite numbers")
    return header


def _answers(calibrator: Any, method: str, n_classes: int) -> list[Array]:
    """What a method of the calibrator makes of rows from a tie to logits beyond 1e4, sure and unsure, in two dtypes."""
    n_rows = max(4, min(64, 4_000_000 // n_classes))
    sizes = np.geomspace(0.1, 1e4, n_rows)[:, None]
    rows = np.random.default_rng(0).normal(size=(n_rows, n_classes)) * sizes
    rows = np.vstack([rows, np.zeros(n_classes), np.full(n_classes, 1e4)])
    rows = rows[:, 1] - rows[:, 0] if calibrator.task_ == "binary" else rows
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # a probe belongs to no group
        return [getattr(calibrator, method)(probes) for probes in (rows, rows.astype(np.float32))]


def _described(calibrator: Any, tensors: Arrays, where: str = "") -> Json:
    """The description of a calibrator; its arrays go to `tensors` under names that start with `where`."""
    cls, name = type(calibrator), type(calibrator).__name__
    if cls is not find_class(name):
        raise InputError(f"{name} is not one of calibrant's calibrators: calibrant.register it before saving it")
    parameters = {key: getattr(calibrator, key) for key in inspect.signature(cls).parameters}
    state = calibrator.artifact_state() if is_around_model(name) else vars(calibrator)
    # private names hold leftovers of a fit; `to_bytes` proves that predictions do not need it
    unsaved = {"classes_", *parameters}
    learned = {key: value for key, value in state.items() if key not in unsaved and not key.startswith("_")}
    if "fit_seconds_" in learned:  # would distinguish the files of identical fits
        learned["fit_seconds_"] = 0.0
    described = {
        part: {key: _encoded(value, tensors, f"{where}{key}") for key, value in values.items()}
        for part, values in (("parameters", parameters), ("learned", learned))
    }
    return {"class": name, **described}


def _encoded(value: Any, tensors: Arrays, where: str) -> Any:  # noqa: PLR0911 (a line per type)
    """One value as JSON."""
    if value is None or isinstance(value, (int, str)):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"number": str(value)}
    if isinstance(value, (list, tuple)):
        items = [_encoded(item, tensors, f"{where}.{i}") for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        if array.ndim == 1 and array.dtype.kind in "OU" and all(isinstance(item, str) for item in array):
            return {"strings": array.tolist()}
        _need(str(array.dtype) in DTYPES, f"{where} has dtype {array.dtype}, which an artifact cannot hold")
        _need(where not in tensors, f"two arrays would be called {where}")
        tensors[where] = array.copy()  # contiguous, as the file needs it
        return {"tensor": where, **({"scalar": True} if isinstance(value, np.generic) else {})}
    if isinstance(value, Calibrator):
        return {"calibrator": _described(value, tensors, f"{where}.")}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _encoded(item, tensors, f"{where}.{key}") for key, item in value.items()}}
    remedy = ": save `calibrator_` instead" if callable(value) else ""
    raise InputError(f"{where} is a {type(value).__name__}, which an artifact cannot hold{remedy}")


def _calibrator(described: Any, tensors: Arrays, n_classes: int | None) -> Any:
    """The calibrator that a description stands for; its arrays are taken out of `tensors`."""
    known_keys = isinstance(described, dict) and set(described) == {"class", "parameters", "learned"}
    _need(known_keys, "a calibrator must have the keys class, parameters and learned")
    name = described["class"]
    cls: Any = find_class(str(name))
    _need(cls is not None, f"class {name!r} is not one of calibrant's calibrators: calibrant.register it first")
    settings, state = (
        _decoded({"dict": described[part]}, tensors, n_classes, part) for part in ("parameters", "learned")
    )
    for key, value in settings.items():
        # counts are bounded, so that none can ask for absurd work; an infinite penalty is a way to leave a part out
        if isinstance(value, (int, float)) and key != "seed":
            limit = MAX_COUNT if isinstance(value, int) else MAX_REAL
            fits = abs(value) <= limit or value == math.inf
            _need(fits, f"parameter {key} is {value:.6g}, above the limit of {limit:g}")
    calibrator = cls(**settings)
    # one around a network knows no tasks
    declared = spec_of(cls, state.get("task_", "")) if issubclass(cls, Calibrator) else cls.learns
    stray = ", ".join(repr(key) for key in sorted(state.keys() - declared.keys())[:3])
    _need(not stray, f"{name} cannot have learned a {stray}: its class does not declare it in `learns`")
    if is_around_model(name):
        calibrator.restore_artifact_state(state)
        return calibrator
    if state:
        state["classes_"] = np.arange(2 if state.get("task_") == "binary" else n_classes or 0)
    vars(calibrator).update(state)
    return calibrator


def _decoded(value: Any, tensors: Arrays, n_classes: int | None, where: str) -> Any:  # noqa: PLR0911
    """The Python value that JSON stands for."""
    if isinstance(value, list):
        return [_decoded(item, tensors, n_classes, where) for item in value]
    if not isinstance(value, dict):
        # JSON spells 1e999, which Python reads as infinity
        _need(not isinstance(value, float) or math.isfinite(value), f"{where} holds a number that is not finite")
        return value
    keys = sorted(set(value) - {"scalar"})
    _need(len(keys) == 1, f"{where} must be described by one key, got {sorted(value)[:4]}")
    kind, inner = keys[0], value[keys[0]]
    if kind == "tensor":
        _need(inner in tensors, f"{where} refers to an array that is not in the file, or belongs to another value")
        array = tensors.pop(inner)
        _need(str(array.dtype) in DTYPES, f"{where} has dtype {array.dtype}, which an artifact cannot hold")
        return array[()] if value.get("scalar") is True else array
    if kind == "calibrator":
        return _calibrator(inner, tensors, n_classes)
    if kind == "tuple" and isinstance(inner, list):
        return tuple(_decoded(inner, tensors, n_classes, where))
    if kind == "dict" and isinstance(inner, dict):
        return {key: _decoded(item, tensors, n_classes, f"{where}.{key}") for key, item in inner.items()}
    if kind == "strings" and isinstance(inner, list) and all(isinstance(item, str) for item in inner):
        return np.array(inner, dtype=object)
    if kind == "number" and inner in ("nan", "inf", "-inf"):
        return float(inner)
    raise InputError(f"{where} is described as {kind!r}, which this calibrant does not know: upgrade it")


def _need(condition: Any, message: str) -> None:
    if not condition:
        raise InputError(message)
