"""Every parameter of every public metric: a value that makes no sense is an InputError of one line, nothing else."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest

import calibrant as cal
from calibrant import metrics
from calibrant.core.errors import FitWarning, InputError

GENERATOR = np.random.default_rng(0)
MATRIX = GENERATOR.dirichlet(np.ones(3), 40)
RISK, LABELS = GENERATOR.random(40), np.arange(40) % 2
ROWS = cal.Predictions(probabilities=MATRIX, labels=LABELS)
ODD = {
    "text": "a",
    "NaN": float("nan"),
    "infinity": float("inf"),
    "minus one": -1,
    "zero": 0,
    "half": 0.5,
    "tiny": 1e-300,
    "true": True,
    "none": None,
    "huge": 10**12,
    "matrix": np.ones((2, 2)),
    "list of texts": ["a", "b"],
    "dictionary": {"a": 1},
}
GIVEN = {
    "probabilities": MATRIX,
    "labels": LABELS,
    "before": RISK,
    "after": RISK**2,
    "groups": LABELS,
    "thresholds": [0.1, 0.5],
    "name": "ece",
    "predictions": ROWS,
    "metrics": ["ece"],
}
FUNCTIONS = {
    name: one
    for name, one in vars(metrics).items()
    if inspect.isfunction(one) and name not in ("register_metric", "update_all")
}
"""New metrics are included by their signature."""


def arguments(name):
    """The required arguments of a metric."""
    parameters = inspect.signature(FUNCTIONS[name]).parameters
    given = {key: GIVEN[key] for key, one in parameters.items() if one.default is one.empty and key in GIVEN}
    if name in metrics.METRICS and metrics.METRICS[name].about == "score":
        given["probabilities"] = RISK
    return given


CASES = [
    (name, parameter)
    for name in FUNCTIONS
    for parameter, one in inspect.signature(FUNCTIONS[name]).parameters.items()
    if one.kind is not one.VAR_KEYWORD
]


@pytest.mark.parametrize(("name", "parameter"), CASES)
def test_odd_values_of_parameters_are_input_errors_or_give_numbers(name, parameter):
    for words, odd in ODD.items():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", FitWarning)
            try:
                found = FUNCTIONS[name](**{**arguments(name), parameter: odd})
            except InputError as error:
                found = str(error)
        if isinstance(found, str):
            assert "\n" not in found, words
            assert len(found) < 800, words
        assert not isinstance(found, float) or np.isfinite(found), words


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_curve_of_risks_takes_shares_only(odd):
    curve = metrics.risk_coverage(MATRIX, LABELS)
    if isinstance(odd, int | float) and not isinstance(odd, bool) and 0 <= odd <= 1:
        assert 0 <= curve.at(odd) <= 1
    else:
        with pytest.raises(InputError, match="coverage must be at least 0 and at most 1"):
            curve.at(odd)


@pytest.mark.parametrize("weighting", ["bin", "label"])
@pytest.mark.parametrize("name", ["ece", "soft_ece", "adaptive_ece", "marginal_ece", "classwise_ece"])
def test_high_norms_approach_the_largest_gap(name, weighting):
    """The power of a gap below 1 underflows, so that the error was 0."""
    options = {"weighting": weighting} if name in ("ece", "soft_ece") else {}
    largest = FUNCTIONS[name](MATRIX, LABELS, norm=np.inf, **options)
    np.testing.assert_allclose(FUNCTIONS[name](MATRIX, LABELS, norm=1e12, **options), largest, rtol=1e-9)
    assert np.max(largest) > 0


@pytest.mark.parametrize("options", [{"n_bins": 200_000}, {"n_bins": 200_000, "norm": 3}])
def test_label_weighted_errors_of_many_bins_fit_in_memory(options):
    """A table of rows × bins would need 64 GB."""
    generator = np.random.default_rng(0)
    risk, labels = generator.random(40_000), generator.integers(0, 2, 40_000)
    many = metrics.ece(risk, labels, weighting="label", **options)
    assert many == pytest.approx(metrics.ece(risk, labels, **options), abs=1e-4)


@pytest.mark.parametrize("name", sorted(metrics.METRICS))
def test_a_column_of_probabilities_is_one_probability_per_row(name):
    function, record = FUNCTIONS[name], metrics.METRICS[name]
    if record.about == "matrix":
        pytest.skip("needs a matrix of classes")
    logits = np.log(RISK / (1 - RISK))
    for column, one, from_logits in (
        (RISK[:, None], RISK, False),
        (RISK[:, None].tolist(), RISK, False),
        (logits[:, None], logits, True),
    ):
        found, expected = (function(values, LABELS, from_logits=from_logits) for values in (column, one))
        np.testing.assert_equal(getattr(found, "__dict__", found), getattr(expected, "__dict__", expected))


def test_a_column_of_confidences_has_ranks():
    assert metrics.rank_changes(RISK[:, None], -RISK[:, None]) == 1.0


@pytest.mark.parametrize("kind", [np.int64, np.float32, bool])
def test_predictions_instead_of_probabilities_warn(kind):
    predictions = LABELS.astype(kind)
    with pytest.warns(FitWarning, match="are they predictions instead of probabilities") as caught:
        metrics.ece(predictions, 1 - LABELS)
    assert len(caught) == 1
    with pytest.warns(FitWarning, match="are they predictions instead of probabilities"):
        metrics.nll(np.eye(2, dtype=np.float64)[LABELS], LABELS)
    metrics.ece(np.append(predictions[1:].astype(float), 0.5), LABELS)  # one probability is enough
    metrics.ece([1.0, 0.0], [1, 0])
    metrics.brier(np.where(LABELS == 1, 1.0, -1.0), LABELS, from_logits=True)


def test_repeated_calls_warn_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(5):
            metrics.ece(LABELS, LABELS)
    assert len(caught) == 1
