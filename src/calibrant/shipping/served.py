"""The artifact that a service answers with, and its replacement while the service runs."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.core.errors import FitWarning, InputError
from calibrant.shipping.artifact import Artifact, digest_of, from_bytes, read_content
from calibrant.shipping.http_codec import Wanted


@dataclass(frozen=True)
class Served:
    """One artifact, ready to answer; a request keeps the one it began with."""

    artifact: Artifact
    n_classes: int
    task: str
    digest: str
    groups: frozenset[str] | None = None
    """Names of the groups that a calibrator per group knows; None for any other calibrator."""

    @classmethod
    def of(cls, artifact: Artifact, content: bytes = b"") -> Served:
        """An artifact that has been tried on one row."""
        if artifact.n_classes is None:
            raise InputError(f"{artifact.method} is part of a network and cannot be served over logits")
        calibrator = artifact.calibrator
        known = getattr(calibrator, "groups_", None)
        if known is not None:
            # answers say how many rows got the pooled fit; a warning per request would only fill the log
            warnings.filterwarnings("ignore", message=".*group", category=FitWarning)
        served = cls(
            artifact,
            artifact.n_classes,
            getattr(calibrator, "task_", "multiclass"),
            digest_of(content)[:12] if content else "",
            None if known is None else frozenset(str(name) for name in known),
        )
        served.answer(np.zeros(1) if served.task == "binary" else np.zeros((1, artifact.n_classes)), "probabilities")
        return served

    def wanted(self, max_rows: int) -> Wanted:
        """What a request must bring."""
        return Wanted(self.n_classes, max_rows, self.task, self.groups is not None)

    def answer(self, logits: np.ndarray, output: str, groups: list[str] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities (n×K) or calibrated logits, and the predictions: (n,), or n×L of 0 and 1 for many labels."""
        calibrator = self.artifact.calibrator
        work = calibrator.predict_proba if output == "probabilities" else calibrator.transform
        with np.errstate(all="ignore"):
            values = work(logits) if groups is None else work(logits, groups=np.array(groups))
        if not np.isfinite(values).all():
            raise InputError("these logits lead to values that are not finite: send logits of a smaller size")
        if self.task == "multilabel":
            return values, (values >= (0.5 if output == "probabilities" else 0.0)).astype(np.int64)
        predictions = values.argmax(axis=1) if values.ndim == 2 and values.shape[1] > 1 else (values.ravel() > 0) * 1
        return values, predictions

    def n_pooled(self, groups: list[str] | None, n_rows: int) -> int:
        """How many rows of a calibrator per group get the pooled fit."""
        if self.groups is None:
            return 0
        return n_rows if groups is None else sum(name not in self.groups for name in groups)

    def about(self) -> dict[str, Any]:
        """What GET /calibrator says."""
        artifact = self.artifact
        fit = {name: getattr(artifact, name) for name in ("n", "fingerprint", "before", "after", "created", "source")}
        return {
            "method": artifact.method,
            "task": self.task,
            "n_classes": self.n_classes,
            "groups": None if self.groups is None else sorted(self.groups),
            "class_names": artifact.class_names,
            "fit": fit,
            "library": artifact.library,
            "artifact": self.digest,
        }


class ArtifactFile:
    """A path that is looked at again and again."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._signature: tuple[int, int, int] | None = None

    def load(self) -> Served:
        """The artifact there is now."""
        self._signature = self._look()
        content = read_content(self.path)
        try:
            return Served.of(from_bytes(content), content)
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from error

    def changed(self) -> bool:
        """Whether the file is another one than at the last `load`; a missing file is waited for."""
        found = self._look()
        return found is not None and found != self._signature

    def _look(self) -> tuple[int, int, int] | None:
        try:
            about = os.stat(self.path)
        except OSError:
            return None
        return about.st_ino, about.st_mtime_ns, about.st_size

    def replacement(self, current: Served) -> Served | None:
        """The new artifact, or None where its content is the same; one that cannot take over raises InputError."""
        new = self.load()
        if new.digest == current.digest:
            return None
        if (new.n_classes, new.task) != (current.n_classes, current.task):
            raise InputError(
                f"{self.path} now has {new.n_classes} classes, but the service was started with {current.n_classes}: "
                "restart it to serve another task"
            )
        return new
