"""A whole fitted `CalibratedClassifier` in a folder: our artifacts, and the classifiers beside them.

Calibrators are written as artifacts (`calibrator_0.safetensors`, …), which never hold code. A scikit-learn classifier
is not ours to describe: it is written by skops, which loads only types that it knows or that the caller trusts, or,
where that is asked for by name, by joblib, which is a pickle and can run code when it is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

import calibrant
from calibrant.core.errors import InputError, MissingExtraError
from calibrant.shipping.artifact import load, save
from calibrant.shipping.sklearn import CalibratedClassifier

FORMAT = 1
HEADER = "classifier.json"
WRITERS = ("skops", "joblib")
STORED = ("cv", "ensemble", "n_jobs")
LARGEST_HEADER = 1 << 20


def save_classifier(model: CalibratedClassifier, folder: Any, *, estimators: str = "skops") -> Path:
    """Write a fitted classifier with its calibrators into a new folder.

    Parameters
    ----------
    model : a fitted CalibratedClassifier
    folder : path of a folder that does not exist yet, or is empty
    estimators : {"skops", "joblib"}
        How the classifiers themselves are written. skops refuses what it cannot describe; joblib writes any classifier,
        as a pickle.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = load_iris(return_X_y=True)
    >>> fitted = CalibratedClassifier(GaussianNB(), method="ts", cv=2).fit(X, y)
    >>> path = save_classifier(fitted, tempfile.mkdtemp())
    >>> bool((load_classifier(path).predict(X) == fitted.predict(X)).all())
    True
    """
    if estimators not in WRITERS:
        raise InputError(f"estimators must be one of {', '.join(map(repr, WRITERS))}, got {estimators!r}")
    check_is_fitted(model)
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} exists and is not an empty folder: give a new one")
    target.mkdir(parents=True, exist_ok=True)
    for place, (estimator, calibrator) in enumerate(model.calibrated_pairs_):
        _write_estimator(estimator, target / f"estimator_{place}.{estimators}", estimators)
        save(calibrator, target / f"calibrator_{place}.safetensors")
    header = {
        "format": FORMAT,
        "library": calibrant.__version__,
        "estimators": estimators,
        "pairs": len(model.calibrated_pairs_),
        "classes": model.classes_.tolist(),
        "dtype": model.classes_.dtype.str if model.classes_.dtype.kind != "O" else "O",
        "method": model.method if isinstance(model.method, str) else None,
        "parameters": {name: _plain(getattr(model, name)) for name in STORED},
    }
    (target / HEADER).write_text(json.dumps(header, indent=1), encoding="utf-8")
    return target


def load_classifier(folder: Any, *, trusted: Sequence[str] = (), allow_pickle: bool = False) -> CalibratedClassifier:
    """A classifier that `save_classifier` wrote.

    Parameters
    ----------
    folder : path
    trusted : names of types, such as "mypackage.MyClassifier"
        That skops may load besides those of scikit-learn and numpy.
    allow_pickle : bool
        Must be True for a folder written with joblib: loading it runs whatever code it holds.
    """
    source = Path(folder)
    header = _read_header(source)
    writer = header["estimators"]
    if writer == "joblib" and not allow_pickle:
        raise InputError(
            f"{source} holds classifiers written by joblib, and loading a pickle can run code: "
            "give allow_pickle=True where you trust where it came from"
        )
    pairs = [
        (
            _read_estimator(source / f"estimator_{place}.{writer}", writer, trusted),
            load(source / f"calibrator_{place}.safetensors"),
        )
        for place in range(header["pairs"])
    ]
    method = header["method"] if header["method"] is not None else clone(pairs[0][1])
    model = CalibratedClassifier(clone(pairs[0][0]), method=method, **header["parameters"])
    model.calibrated_pairs_ = pairs
    model.classes_ = np.array(header["classes"], dtype=header["dtype"])
    for name in ("n_features_in_", "feature_names_in_"):
        if hasattr(pairs[0][0], name):
            setattr(model, name, getattr(pairs[0][0], name))
    return model


def _read_header(source: Path) -> dict[str, Any]:
    path = source / HEADER
    if not path.is_file():
        raise InputError(f"{source} holds no {HEADER}: give a folder that save_classifier wrote")
    if path.stat().st_size > LARGEST_HEADER:
        raise InputError(f"{path} has {path.stat().st_size} bytes, but at most {LARGEST_HEADER} are read")
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    sound = (
        isinstance(header, dict)
        and isinstance(header.get("pairs"), int)
        and 0 < header["pairs"] <= 10_000
        and header.get("estimators") in WRITERS
        and isinstance(header.get("classes"), list)
        and len(header["classes"]) >= 1
        and isinstance(header.get("parameters"), dict)
        and set(header["parameters"]) <= set(STORED)
        and (header.get("method") is None or isinstance(header["method"], str))
        and isinstance(header.get("dtype"), str)
        and header["dtype"].lstrip("<>|=")[:1] in set("OUSiufb")
    )
    if not sound:
        raise InputError(f"{path} does not describe a classifier: it was damaged, or another program wrote it")
    if header.get("format") != FORMAT:
        raise InputError(f"{path} has format {header.get('format')!r}, but this version reads format {FORMAT}")
    return header


def _write_estimator(estimator: Any, path: Path, writer: str) -> None:
    if writer == "joblib":
        import joblib

        joblib.dump(estimator, path)
        return
    try:
        _skops().dump(estimator, path)
    except MissingExtraError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"skops cannot write a {type(estimator).__name__} ({reason}): estimators='joblib' writes it as a pickle"
        ) from error


def _read_estimator(path: Path, writer: str, trusted: Sequence[str]) -> Any:
    if not path.is_file():
        raise InputError(f"{path} is missing: the folder is not complete")
    if writer == "joblib":
        import joblib

        return joblib.load(path)
    skops = _skops()
    unknown = sorted(set(skops.get_untrusted_types(file=path)) - set(trusted))
    if unknown:
        raise InputError(
            f"{path} holds types that skops does not know: {', '.join(unknown[:5])}; name them in trusted=[...] where "
            "you trust where they came from"
        )
    return skops.load(path, trusted=list(trusted))


def _skops() -> Any:
    try:
        from skops import io
    except ImportError as error:
        raise MissingExtraError("skops", "skops") from error
    return io


def _plain(value: Any) -> Any:
    """A parameter as JSON holds it; splitters and other objects are left at None."""
    return value if isinstance(value, (int, float, str, bool)) else None
