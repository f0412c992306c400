"""The default as a calibrator for a benchmark that hands over probabilities: `fit(p, y)`, `predict_proba(p)`.

Copy this file into the benchmark (for instance CalArena) and register `Calibrant`; it needs nothing else from this
folder. Probabilities of shape (n, K) or, for a binary problem, (n,) of the positive class; exact zeros are welcome.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Calibrant:
    """calibrant's AutoCalibrator over probabilities.

    Parameters are those of `calibrant.AutoCalibrator`; `method="ts"` or another short name takes that method instead.
    """

    def __init__(self, method: str = "auto", **parameters: Any) -> None:
        self.method = method
        self.parameters = parameters

    def fit(self, p: Any, y: Any) -> Calibrant:
        import calibrant

        self.calibrator_ = calibrant.get(self.method, **self.parameters).fit(_log_odds(p), np.asarray(y))
        return self

    def predict_proba(self, p: Any) -> np.ndarray:
        """Calibrated probabilities (n, K); (n, 2) where one probability per row was given."""
        return self.calibrator_.predict_proba(_log_odds(p))


def _log_odds(p: Any) -> np.ndarray:
    """Log-probabilities of a matrix, log-odds of a vector; a probability of 0 becomes −inf, which calibrant reads."""
    probabilities = np.asarray(p)
    with np.errstate(divide="ignore"):
        if probabilities.ndim == 1:
            return np.log(probabilities) - np.log1p(-probabilities)
        return np.log(probabilities)


if __name__ == "__main__":
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 900)
    scores = np.exp(3 * (generator.normal(size=(900, 3)) + np.eye(3)[labels]))
    given = (scores / scores.sum(axis=1, keepdims=True)).astype(np.float32)
    calibrated = Calibrant().fit(given[:600], labels[:600]).predict_proba(given[600:])
    for name, probabilities in (("before", given[600:]), ("after", calibrated)):
        print(f"log loss {name}: {-np.log(probabilities[np.arange(300), labels[600:]]).mean():.4f}")
