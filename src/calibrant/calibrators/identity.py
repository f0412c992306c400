"""The uncalibrated row of every table."""

from __future__ import annotations

from typing import Any

from calibrant.calibrators.base import Calibrator
from calibrant.core.rows import Rows


class Identity(Calibrator):
    """Leave the logits as they are: the baseline of every method.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import Identity
    >>> logits = np.array([[2.0, 0.0], [0.5, 1.0]])
    >>> bool((Identity().fit(logits, [0, 1]).transform(logits) == logits).all())
    True
    """

    keeps_prediction = True
    few_parameters = True
    keeps_ranking = True
    additive = True

    def _fit(self, rows: Rows) -> None:
        pass

    def _map(self, xp: Any, logits: Any, learned: Any) -> Any:
        return logits
