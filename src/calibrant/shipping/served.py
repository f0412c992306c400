"""The artifact that a service answers with, and its replacement while the service runs."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.core.errors import FitWarning, InputError
from calibrant.core.schema import Schema, identifier
from calibrant.shipping.artifact import Artifact, digest_of, from_bytes, read_content
from calibrant.shipping.http_codec import Wanted


@dataclass(frozen=True)
class Served:
    """One artifact, ready to answer; a request keeps the one it began with."""

    artifact: Artifact
    schema: Schema
    digest: str
    groups: frozenset[str] | None = None
    """Names of the groups that a calibrator per group knows; None for any other calibrator."""

    @classmethod
    def of(cls, artifact: Artifact, content: bytes = b"") -> Served:
        """An artifact that has been tried on one row."""
        schema, calibrator = artifact.schema, artifact.calibrator
        if schema is None:
            raise InputError(f"{artifact.method} is part of a network and cannot be served over logits")
        groups = None
        if calibrator.takes_groups:
            groups = frozenset(identifier(name) for name in calibrator.groups_)
            # answers say how many rows got the pooled fit; a warning per request would only fill the log
            warnings.filterwarnings("ignore", message=".*group", category=FitWarning)
        served = cls(artifact, schema, digest_of(content)[:12] if content else "", groups)
        served.answer(np.zeros(1) if schema.flat else np.zeros((1, schema.n_classes)), "probabilities")
        return served

    def wanted(self, max_rows: int) -> Wanted:
        """What a request must bring."""
        return Wanted(self.schema.n_classes, max_rows, self.schema.task, self.groups is not None, self.schema.kind)

    def answer(self, logits: np.ndarray, output: str, groups: list[str] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities (n×K) or calibrated logits, and the predictions: (n,), or n×L of 0 and 1 for many labels."""
        calibrator = self.artifact.calibrator
        work = calibrator.predict_proba if output == "probabilities" else calibrator.transform
        with np.errstate(all="ignore"):
            values = work(logits) if groups is None else work(logits, groups=np.array(groups))
        if not np.isfinite(values).all():
            raise InputError("these logits lead to values that are not finite: send logits of a smaller size")
        if self.schema.task == "multilabel":
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
            "task": self.schema.task,
            "kind": self.schema.kind,
            "n_classes": self.schema.n_classes,
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
        moved = current.schema.align(new.schema, "the service", self.path).order is not None
        if moved or new.schema.kind != current.schema.kind:
            raise InputError(f"{self.path} takes other columns or another kind of numbers: restart the service for it")
        return new
