"""The warning that the fit and test files share rows: coincidences beyond those of rounding and ties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import calibrant as cal
from calibrant.data.guards import coinciding_rows, shared_rows

SIZES = [(100, 100), (100, 1000), (1000, 100), (1000, 1000)]


def risks(values):
    return cal.Predictions(probabilities=values, labels=np.arange(len(values)) % 2, task="binary")


def test_independent_risks_of_four_decimals_are_not_flagged():
    for seed in range(10):
        generator = np.random.default_rng(seed)
        assert shared_rows(*(risks(generator.random(3000).round(4)) for _ in range(2))) == ""


@pytest.mark.parametrize("sizes", [*SIZES, (10_000, 1000)])
@pytest.mark.parametrize("n_classes", [1, 2, 3, 10])
def test_an_overlap_of_five_percent_of_continuous_rows_is_detected(sizes, n_classes):
    n, m = sizes
    for seed in range(200 if n_classes == 1 and n <= 1000 else 5):
        generator = np.random.default_rng(seed)
        fit, test = (generator.dirichlet(np.ones(max(n_classes, 2)), size) for size in sizes)
        if n_classes == 1:
            fit, test = fit[:, 0], test[:, 0]
        shared = min(n, m) // 20
        test[generator.permutation(m)[:shared]] = fit[generator.permutation(n)[:shared]]
        if n_classes == 1:
            found = shared_rows(risks(fit), risks(test))
        else:
            given_rows = (cal.Predictions(probabilities=p, labels=np.arange(len(p)) % n_classes) for p in (fit, test))
            found = shared_rows(*given_rows)
        assert found == f"{shared} of the {m:,} test rows have exactly the scores of a fit row"


def test_a_large_overlap_of_rounded_rows_is_detected():
    for seed in range(20):
        generator = np.random.default_rng(seed)
        fit, test = generator.random((2, 3000)).round(4)
        test[:600] = fit[:600]
        assert "test rows have exactly the scores" in shared_rows(risks(fit), risks(test))


def test_false_alarms_are_at_most_one_percent():
    """100 runs of each of 32 cases; a rate of 1% gives more than 51 alarms with a probability of 0.1%."""
    draws = (
        lambda g, n: g.random(n).round(2),
        lambda g, n: g.random(n).round(3),
        lambda g, n: g.random(n).round(4),
        lambda g, n: g.beta(0.3, 3, n).round(4),
        lambda g, n: g.binomial(500, g.beta(0.5, 0.5, n)),
        lambda g, n: g.integers(0, 3000, n) / 7.3,
        lambda g, n: np.clip(g.normal(0.5, 1, n), 0, 1).astype(np.float32),
        lambda g, n: g.integers(0, 2, n),
    )
    generator = np.random.default_rng(0)
    alarms = sum(
        coinciding_rows(draw(generator, n), draw(generator, m)) > 0
        for draw in draws
        for n, m in SIZES
        for _ in range(100)
    )
    assert alarms <= 51


@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 40), m=st.integers(1, 40), values=st.integers(1, 5), seed=st.integers(0, 99))
def test_the_two_sets_are_interchangeable_and_few_values_raise_no_alarm(n, m, values, seed):
    generator = np.random.default_rng(seed)
    mine, theirs = generator.integers(0, values, n), generator.integers(0, values, m)
    assert (coinciding_rows(mine, theirs) > 0) == (coinciding_rows(theirs, mine) > 0)
    if values == 1:
        assert coinciding_rows(mine, theirs) == 0


def test_constant_scores_are_equal_arrays_only_with_equal_labels():
    labels = np.arange(100) % 2
    fit, test = (
        cal.Predictions(probabilities=np.full(100, 0.5), labels=one, task="binary") for one in (labels, 1 - labels)
    )
    assert shared_rows(fit, test) == ""
    assert shared_rows(fit, fit) == "all 100 test rows are the fit rows"


def test_identifiers_in_both_files_are_named(tmp_path):
    generator = np.random.default_rng(0)
    for name, first in (("fit", 0), ("test", 70), ("other", 1000)):
        rows = (f"{first + place},{p:.6f},{place % 2}" for place, p in enumerate(generator.random(100)))
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,probability,label", *rows]))
    fit, test, other = (cal.open_predictions(tmp_path / f"{name}.csv") for name in ("fit", "test", "other"))
    assert shared_rows(fit, test) == "30 of the 100 test rows have the id of a fit row"
    assert shared_rows(fit, other) == ""
