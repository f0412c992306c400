"""Parameters of evaluation functions: a value that makes no sense is an InputError of one line."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import calibrant as cal
from calibrant.core.errors import FitWarning, InputError

GENERATOR = np.random.default_rng(0)
LABELS = np.arange(60) % 2
ROWS = cal.Predictions(logits=GENERATOR.normal(size=60), labels=LABELS, task="binary")
ODD = {
    "text": "a",
    "NaN": float("nan"),
    "minus one": -1,
    "zero": 0,
    "half": 0.5,
    "huge": 10**12,
    "matrix": np.ones((2, 2)),
}
CALLS = {
    "measure": lambda **options: cal.measure(ROWS, **{"resamples": 5, "decompose": False, **options}),
    "compare": lambda **options: cal.compare(ROWS, ROWS, ["none"], **{"resamples": 5, **options}),
    "calibration_loss": lambda **options: cal.calibration_loss(ROWS, **{"calibrator": "platt", **options}),
    "register_metric": lambda **options: cal.register_metric(**{"function": np.mean, **options}),
}
COMMON = ("by", "cluster", "n_bins", "resamples", "seed", "engine", "metrics", "weights_are")
CASES = [
    *(("measure", parameter) for parameter in COMMON),
    *(("compare", parameter) for parameter in (*COMMON, "criterion", "cv", "split")),
    *(("calibration_loss", parameter) for parameter in ("calibrator", "score", "folds", "seed")),
    *(("register_metric", parameter) for parameter in ("function", "name", "label", "unit", "better", "about")),
]


@pytest.mark.parametrize(("name", "parameter"), CASES)
def test_odd_values_of_parameters_are_input_errors_or_have_a_result(name, parameter, monkeypatch):
    if name == "register_metric":
        monkeypatch.setattr("calibrant.metrics.record.enlist", lambda one: one)
    for words, odd in ODD.items():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", FitWarning)
            try:
                found = CALLS[name](**{parameter: odd})
            except InputError as error:
                found = str(error)
        assert found is not None, words
        assert not isinstance(found, str) or "\n" not in found, words
