"""Fits to very many scores see a sample of the rows, chosen by their contents, and report it."""

from __future__ import annotations

import re

import numpy as np
import pytest

import calibrant as cal
from calibrant.calibrators.solvers import folds
from calibrant.core.errors import FitWarning
from calibrant.core.rows import Rows


def problem(n=3000, n_classes=4, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    return 2 * rng.normal(size=(n, n_classes)) + 3 * np.eye(n_classes)[labels] + 0.5 * np.arange(n_classes), labels


@pytest.fixture
def few_scores(monkeypatch):
    monkeypatch.setattr(folds, "SAMPLE_SCORES", 3000)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_auto_fits_candidates_to_a_sample_and_evidence_to_all_rows(n_classes, few_scores):
    logits, labels = problem(n_classes=n_classes)
    fitted = cal.AutoCalibrator().fit(logits, labels)
    assert re.search(r"Candidates were fitted to a sample of [\d,]+ of 3,000 rows\.", fitted.reason_)
    others, truth = problem(n_classes=n_classes, seed=1)
    loss = cal.metrics.nll(fitted.predict_proba(others), truth)
    folds.SAMPLE_SCORES = 10**9  # the fixture restores it
    whole = cal.AutoCalibrator().fit(logits, labels)
    assert "sample" not in whole.reason_
    assert loss < cal.metrics.nll(whole.predict_proba(others), truth) + 0.02


def test_the_sample_does_not_depend_on_the_order_of_the_rows(few_scores):
    logits, labels = problem()
    order = np.random.default_rng(2).permutation(len(labels))
    first, second = (cal.AutoCalibrator().fit(logits[some], labels[some]) for some in (slice(None), order))
    np.testing.assert_allclose(first.predict_proba(logits), second.predict_proba(logits), atol=1e-6)


def test_methods_with_folds_report_the_size_of_their_sample(few_scores):
    logits, labels = problem()
    with pytest.warns(FitWarning, match=r"was fitted to a sample of [\d,]+ of 3,000 rows to bound its memory"):
        cal.get("conf+shape+keep").fit(logits, labels)
    cal.get("ts").fit(logits, labels)  # no warning: it goes on in passes


def test_rows_of_a_cluster_are_in_the_sample_together(few_scores):
    logits, labels = problem()
    clusters = np.arange(len(labels)) // 3
    chosen = folds.sample_rows(Rows(logits, labels, clusters=clusters), 0)
    assert set(np.bincount(clusters[chosen], minlength=1000).tolist()) == {0, 3}


def test_classes_are_absent_only_if_no_row_has_them(few_scores):
    logits, labels = problem()
    labels[labels == 3] = 0
    labels[0] = 3
    fitted = cal.AutoCalibrator().fit(logits, labels)
    assert not fitted.limits_absent
