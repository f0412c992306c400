"""The output calibrators of the paper's table 1, on stored logits."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from clamp_figures import figures

from calibrant import DirichletCalibration, MatrixScaling, TemperatureScaling, VectorScaling

STEPS, RATE = 1000, 0.001


class PrintedMatrixScaling:
    """Matrix scaling without a penalty by 1,000 full-batch steps, as in print; its optimum lies at infinity.

    The steps are Adam's: by plain descent at the printed rate the matrix would hardly leave the identity.
    """

    def fit(self, logits: np.ndarray, labels: np.ndarray) -> PrintedMatrixScaling:
        """From the identity."""
        inputs, targets = torch.from_numpy(np.asarray(logits, np.float64)), torch.from_numpy(np.asarray(labels))
        self.matrix = torch.eye(inputs.shape[1], dtype=torch.float64, requires_grad=True)
        self.bias = torch.zeros(inputs.shape[1], dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.Adam([self.matrix, self.bias], lr=RATE)
        for _ in range(STEPS):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(inputs @ self.matrix.T + self.bias, targets).backward()
            optimizer.step()
        return self

    def transform(self, logits: np.ndarray) -> np.ndarray:
        """Logits after the map."""
        with torch.no_grad():
            mapped = torch.from_numpy(np.asarray(logits, np.float64)) @ self.matrix.T + self.bias
        return mapped.numpy()


METHODS: dict[str, Any] = {
    "Temperature scaling": TemperatureScaling,
    "TS (grid searched)": partial(TemperatureScaling, objective="ece", grid=np.arange(1, 5001) / 1000),
    "Vector scaling": partial(VectorScaling, penalty_bias=0.0),
    "Matrix scaling": PrintedMatrixScaling,
    "MS-ODIR": partial(MatrixScaling, penalty_off_diagonal="cv", penalty_bias="cv"),
    "Dir-ODIR": partial(DirichletCalibration, penalty_off_diagonal="cv", penalty_bias="cv"),
}
"""The output calibrators of table 1."""


def outputs_study(path: Path) -> dict[str, Any]:
    """Figures of each calibrator fitted on `val` and measured on `test`; the fits are deterministic."""
    with np.load(path) as file:
        val, test = file["val_logits"].astype(np.float64), file["test_logits"].astype(np.float64)
        val_labels, test_labels = (
            file["val_labels"].astype(np.int64),
            torch.from_numpy(file["test_labels"].astype(np.int64)),
        )
    rows = {"No calibration": figures(torch.from_numpy(test), test_labels)}
    for name, make in METHODS.items():
        calibrated = make().fit(val, val_labels).transform(test)
        rows[name] = figures(torch.from_numpy(np.asarray(calibrated)), test_labels)
        print(name, rows[name], flush=True)
    return {"checkpoint": path.stem, "rows": rows}
