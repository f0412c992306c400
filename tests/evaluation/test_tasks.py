"""Tasks of one score, many labels, pairs, label shares and dense outputs: the identities that hold between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calibrant as cal
from calibrant.core.errors import InputError
from calibrant.data.guards import shared_rows
from calibrant.evaluation.measure import measure


def classes(n: int = 400, k: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, k, n)
    return 2 * rng.normal(size=(n, k)) + 2 * np.eye(k)[labels], labels


def outcomes(n: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    scores = 2 * rng.normal(size=n)
    return scores, (rng.random(n) < 1 / (1 + np.exp(-scores / 2))).astype(np.int64)


def same(left: Any, right: Any, names: tuple[str, ...], atol: float = 1e-12) -> None:
    for name in names:
        np.testing.assert_allclose(left.metrics[name].value, right.metrics[name].value, rtol=0, atol=atol)


def test_pairs_of_a_matrix_have_its_top_label_errors() -> None:
    logits, labels = classes()
    whole = cal.Predictions(logits=logits, labels=labels)
    p = whole.probabilities
    found = measure(cal.Predictions(confidence=p.max(axis=1), correct=p.argmax(axis=1) == labels), resamples=50)
    same(found, measure(whole, resamples=50), ("ece", "ks_error", "adaptive_ece", "smooth_ece", "accuracy"))
    assert found.about == "predicted class"
    hit = p.argmax(axis=1) == labels
    np.testing.assert_allclose(found.metrics["brier"].value, np.mean((p.max(axis=1) - hit) ** 2), atol=1e-12)


def test_many_labels_with_one_label_are_binary() -> None:
    scores, labels = outcomes()
    one = cal.Predictions(logits=scores[:, None], labels=labels[:, None], task="multilabel")
    many, single = measure(one, resamples=50), measure(cal.Predictions(logits=scores, labels=labels), resamples=50)
    same(many, single, ("ece", "nll", "brier", "accuracy", "ks_error"))
    assert (many.task, many.labels[0].n_positive) == ("multilabel", labels.sum())


def test_one_hot_shares_are_labels_and_shares_are_weighted_rows() -> None:
    logits, labels = classes()
    hard, soft = (
        cal.Predictions(logits=logits, **given) for given in ({"labels": labels}, {"label_shares": np.eye(4)[labels]})
    )
    same(measure(soft, resamples=50), measure(hard, resamples=50), tuple(measure(hard, resamples=50).metrics))
    rng = np.random.default_rng(1)
    shares = rng.dirichlet(np.ones(4), len(logits))
    spread = cal.Predictions(logits=logits, label_shares=shares)
    rows = cal.Predictions(
        logits=np.repeat(logits, 4, axis=0), labels=np.tile(np.arange(4), len(logits)), weights=shares.ravel()
    )
    expected = np.average(cal.metrics.nll(rows.probabilities, rows.labels, sample_weight=rows.weights))
    assert measure(spread, resamples=50).metrics["nll"].value == pytest.approx(expected, abs=1e-12)
    fitted, again = (cal.get("ts").fit(one) for one in (hard, soft))
    assert fitted.temperature_ == pytest.approx(again.temperature_, abs=1e-9)


def test_dense_scores_are_rows_and_ignored_labels_are_no_rows() -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(3, 4, 5, 6)), rng.integers(0, 4, (3, 5, 6))
    dense = cal.Predictions(logits=scores, labels=labels)
    flat = np.moveaxis(scores, 1, -1).reshape(-1, 4)
    np.testing.assert_array_equal(dense.logits, flat)
    np.testing.assert_array_equal(dense.clusters, np.repeat(np.arange(3), 30))
    labels[0] = 255
    kept = cal.Predictions(logits=scores, labels=labels, ignore_index=255)
    np.testing.assert_array_equal(kept.logits, flat[30:])
    tokens = cal.Predictions(logits=rng.normal(size=(2, 7, 3)), labels=rng.integers(0, 3, (2, 7)))
    assert (tokens.n, tokens.n_classes) == (14, 3)
    with pytest.raises(InputError, match="axis 1 or the last"):
        cal.Predictions(logits=np.zeros((2, 3, 3)), labels=np.zeros((2, 3), int))


def test_two_columns_are_binary_only_when_said() -> None:
    scores, labels = outcomes()
    both = np.stack([np.zeros_like(scores), scores], axis=1)
    told = measure((both, labels), task="binary", resamples=50)
    same(told, measure((scores, labels), resamples=50), ("ece", "nll", "roc_auc"))
    plain = measure((both, labels), resamples=50)
    assert plain.task == "multiclass"
    assert any("--task binary" in warning for warning in plain.warnings)


def test_probabilities_as_logits_are_refused() -> None:
    logits, labels = classes()
    p = cal.Predictions(logits=logits, labels=labels).probabilities
    with pytest.raises(InputError, match=r"np\.log\(p\)"):
        cal.get("ts").fit(p, labels)
    for use in (lambda: measure((p, labels)), lambda: cal.compare((p, labels), (p, labels), ["none"])):
        with pytest.raises(InputError, match='kind="probabilities"'):
            use()
    assert measure((p, labels), kind="probabilities", resamples=20).n == len(p)


def test_shared_rows_are_noticed_and_forests_are_not() -> None:
    logits, labels = classes(1000)
    half = cal.Predictions(logits=logits[:600], labels=labels[:600])
    other = cal.Predictions(logits=logits[400:], labels=labels[400:])
    assert "200 of the 600" in shared_rows(half, other)
    assert shared_rows(half, cal.Predictions(logits=logits[600:], labels=labels[600:])) == ""
    rng = np.random.default_rng(0)
    votes = [rng.integers(0, 11, (500, 1)) / 10 for _ in range(2)]
    forest = [cal.Predictions(probabilities=np.hstack([v, 1 - v]), labels=rng.integers(0, 2, 500)) for v in votes]
    assert shared_rows(*forest) == ""
    table = cal.compare(half, half, ["none", "ts"], resamples=20)
    assert "share rows" in table.warnings[0]
    assert "share rows" in table.to_dict()["warnings"][0]


@pytest.mark.parametrize("n", [10, 29])
def test_too_few_rows_give_no_verdict(n: int) -> None:
    logits, labels = classes(n)
    assert measure((logits, labels), resamples=20).verdict == "too few rows to tell"
    sure = np.where(np.eye(3)[np.arange(200) % 3] > 0, 12.0, 0.0)
    assert measure((sure, np.arange(200) % 3), resamples=20).verdict == "too few rows to tell"
