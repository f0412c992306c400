"""The output calibrators of the paper's table 1, on stored logits."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from clamp_figures import figures

from calibrant import DirichletCalibration, MatrixScaling, TemperatureScaling, VectorScaling

METHODS = {
    "Temperature scaling": TemperatureScaling,
    "TS (grid searched)": partial(TemperatureScaling, objective="ece", grid=np.arange(1, 5001) / 1000),
    "Vector scaling": partial(VectorScaling, penalty_bias=0.0),
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
