"""Too few rows mark no method in any output, and the stated precision is the standard error of the log loss."""

from __future__ import annotations

import json
import re
from importlib.resources import files

import jsonschema
import numpy as np
import pytest
from scipy.stats import binomtest, sem

import calibrant as cal
from calibrant.evaluation.difference import diff
from calibrant.evaluation.evidence import count_evidence, loss_precision
from calibrant.evaluation.models import compare_models

SCHEMAS = {
    name: json.loads((files("calibrant") / "schemas" / f"{name}.json").read_text()) for name in ("compare", "models")
}
MARKED = re.compile(r"\b[Ss]hip\b|\b[Bb]est\b|\*\*|<b>|<u>|≈|textbf|underline|\bP\b(?!\(y)|\b[Ww]inner\b|badge")
"""Anything that marks a method, or the chance that one is better."""


def matrix(n: int, errors: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Three classes, the first `errors` rows predicted wrong."""
    generator = np.random.default_rng([n, errors, seed])
    labels = generator.integers(0, 3, n)
    stated = (labels + (np.arange(n) < errors)) % 3
    return {"logits": 0.5 * generator.normal(size=(n, 3)) + 4 * np.eye(3)[stated], "labels": labels}


def scores(n: int, events: int, *, task: str = "binary") -> cal.Predictions:
    """One score per row, the first `events` rows positive (or right)."""
    generator = np.random.default_rng([n, events])
    labels = (np.arange(n) < events).astype(int)
    return cal.Predictions(logits=generator.normal(size=n) + 2 * labels - 1, labels=labels, task=task)


def outcomes(*counts: int, n: int = 60) -> cal.Predictions:
    """Several labels with so many positives, each label's in other rows."""
    generator = np.random.default_rng(n)
    labels, start = np.zeros((n, len(counts)), int), np.cumsum([0, *counts])
    for column, count in enumerate(counts):
        labels[(start[column] + np.arange(count)) % n, column] = 1
    return cal.Predictions(
        logits=generator.normal(size=labels.shape) + 2 * labels - 1, labels=labels, task="multilabel"
    )


def clustered(sizes: list[int], wrong: list[int]) -> cal.Predictions:
    """Clusters of these sizes, each with so many wrong predictions."""
    rows = matrix(sum(sizes), 0)
    first, errors = np.cumsum([0, *sizes[:-1]]), np.zeros(sum(sizes), int)
    for start, count in zip(first, wrong, strict=True):
        errors[start : start + count] = 1
    rows["labels"] = (rows["labels"] + errors) % 3
    return cal.Predictions(
        logits=rows["logits"], labels=rows["labels"], clusters=np.repeat(np.arange(len(sizes)), sizes)
    )


FEW = {
    "no error": (lambda: cal.Predictions(**matrix(40, 0)), "0 of 40 predictions are wrong"),
    "one error": (lambda: cal.Predictions(**matrix(40, 1)), "1 of 40 predictions is wrong"),
    "four errors": (lambda: cal.Predictions(**matrix(4000, 4)), "4 of 4,000 predictions are wrong"),
    "29 rows": (lambda: cal.Predictions(**matrix(29, 9)), "29 rows"),
    "four positives": (lambda: scores(100, 4), "4 of 100 rows are positive"),
    "four negatives": (lambda: scores(100, 96), "4 of 100 rows are negative"),
    "four wrong answers": (lambda: scores(100, 96, task="pairs"), "4 of 100 answers are wrong"),
    "four right answers": (lambda: scores(100, 4, task="pairs"), "4 of 100 answers are right"),
    "rare labels": (lambda: outcomes(2, 1, 1), "4 of 60 rows contain the rarer outcome of a label"),
    "10 clusters": (lambda: clustered([20] * 10, [5] * 10), "10 clusters"),
    "errors in four clusters": (
        lambda: clustered([5] * 40, [5] * 4 + [0] * 36),
        "4 of 40 clusters contain a wrong prediction",
    ),
}
ENOUGH = {
    "five errors": lambda: cal.Predictions(**matrix(30, 5)),
    "five positives": lambda: scores(100, 5),
    "five negatives": lambda: scores(100, 95),
    "five wrong answers": lambda: scores(100, 95, task="pairs"),
    "rare labels in five rows": lambda: outcomes(2, 2, 1),
    "errors in five clusters": lambda: clustered([1, 2, 9, 4, 30] + [2] * 35, [1, 1, 1, 4, 30] + [0] * 35),
}


def fit_rows(test: cal.Predictions) -> cal.Predictions:
    """Rows to fit on in the form of the test rows."""
    if test.task == "multiclass":
        return cal.Predictions(**matrix(200, 30, seed=1))
    return outcomes(40, 90, 20, n=200) if test.task == "multilabel" else scores(200, 60, task=test.task)


def marks(table: cal.evaluation.tables.Table) -> list[str]:
    """Names of the rows with a mark, or a mark in a cell."""
    return [
        row.name
        for row in table.rows
        if row.best or any(cell.best or cell.second or cell.tie for cell in row.cells.values())
    ]


@pytest.mark.parametrize("case", FEW)
@pytest.mark.parametrize("default", [True, False])
def test_too_few_rows_mark_no_method_in_any_output(case, default, tmp_path):
    make, reason = FEW[case]
    test = make()
    others = "none,ts,vs" if test.task == "multiclass" else "none,platt,beta"
    table = cal.compare(fit_rows(test), test, others + ",auto" * default, resamples=60)

    assert table.too_few_rows == reason
    assert table.verdict == f"{reason}: too few to compare methods"
    assert (table.best, table.recommended, table.second) == (("auto",) * 2 + (None,) if default else (None,) * 3)
    assert table.advice == ["auto changes little until there is evidence"]
    assert not any(row.ties_best or row.ties or row.difference or np.isfinite(row.p_beats_best) for row in table.rows)
    assert not marks(table.table())

    document = json.loads(table.to_json())
    jsonschema.validate(document, SCHEMAS["compare"])
    assert document["too_few_rows"] == reason
    assert document["best"] == ("auto" if default else None)
    assert all(row["p_beats_best"] is None and not row["ties_best"] for row in document["rows"])

    texts = [repr(table), table.to_markdown(intervals=True), table.to_latex(), table.to_model_card()]
    page = cal.write_report(table, tmp_path / "report.html").read_text(encoding="utf-8")
    main = page[page.index("<main>") : page.index("</main>")]
    hero, methods = (main[main.index(f'id="{name}"') :].partition("</section>")[0] for name in ("verdict", "methods"))
    for text in (*texts, table._repr_html_(), hero, methods):
        found = MARKED.search(text.replace("<b>Note:</b>", ""))
        assert found is None, (case, found, text[max(0, found.start() - 60) : found.end() + 20])
    assert "(recommended)" not in page
    assert reason in hero
    assert "changes little until there is evidence" in hero
    assert "→" not in hero
    assert ("cal.load" in texts[-1]) == default
    frame = table.to_frame()
    assert frame["p_beats_best"].isna().all()
    assert set(table.metrics()) >= {"none/nll"}
    assert table.plot().get_title() == ("auto" if default else "none")


@pytest.mark.parametrize("case", ENOUGH)
def test_five_outcomes_in_thirty_units_are_enough(case):
    test = ENOUGH[case]()
    methods = "none,ts,vs" if test.task == "multiclass" else "none,platt,beta"
    table = cal.compare(fit_rows(test), test, methods, resamples=60)
    assert table.too_few_rows == ""
    assert table.best is not None
    assert marks(table.table())
    assert np.isfinite(table.row("none").p_beats_best)


def test_counts_are_those_of_a_loop():
    for seed in range(200):
        generator = np.random.default_rng(seed)
        task = ("multiclass", "binary", "pairs", "multilabel")[seed % 4]
        n_labels = 3 if task == "multilabel" else 1
        n = n_labels * int(generator.integers(5, 60))
        right = generator.random(n) < generator.random()
        cluster = generator.integers(0, generator.integers(2, 50), n // n_labels).repeat(n_labels)
        cluster = np.unique(cluster, return_inverse=True)[1] if seed % 3 else np.arange(n // n_labels).repeat(n_labels)
        counted = generator.random(n // n_labels).repeat(n_labels) < 0.9
        counted[:n_labels] = True
        units: dict[tuple[int, bool], set[int]] = {}
        for place in np.flatnonzero(counted):
            units.setdefault((place % n_labels, bool(right[place])), set()).add(int(cluster[place]))
        events: set[int] = set()
        for label in range(n_labels):
            both = [units.get((label, value), set()) for value in (False, True)]
            events |= both[0] if task == "multiclass" else min(both, key=len)
        found = count_evidence(right, counted * 2.0, cluster, task=task, n_classes=3, n_rows=n // n_labels)
        assert found.n == len({int(one) for one in cluster[counted]})
        assert found.events == len(events) == pytest.approx(found.effective_events)


def test_one_heavy_row_is_no_evidence():
    right = np.arange(100) >= 8
    assert count_evidence(right).shortage == ""
    heavy = np.where(np.arange(100) == 0, 1000.0, 1.0)
    assert count_evidence(right, heavy).shortage == "8 of 100 predictions are wrong, equivalent to 1.0 of equal weight"


def test_expected_outcomes_count_for_a_verdict_on_calibration():
    right = np.ones(200, bool)
    assert count_evidence(right).shortage
    assert not count_evidence(right, stated=np.full(200, 0.9)).shortage
    assert cal.measure(
        cal.Predictions(probabilities=np.tile([0.9, 0.1], (200, 1)), labels=[0] * 200)
    ).verdict.startswith("underconfident")
    # a label with three positives in 300 rows, next to one with none: pooled, 597 of 600 outcomes are negative
    labels = np.zeros((300, 2), int)
    labels[:3, 0] = 1
    given = cal.Predictions(probabilities=np.full((300, 2), 0.004), labels=labels, task="multilabel")
    assert cal.measure(given, resamples=20).verdict == "too few rows to tell"


def test_the_precision_is_that_of_the_mean():
    test = cal.Predictions(**matrix(60, 9))
    table = cal.compare(fit_rows(test), test, "none,ts", resamples=60)
    z = table.row(table.recommended).calibrator.transform(test.logits)
    losses = np.log(np.exp(z).sum(axis=1)) - z[np.arange(60), test.labels]
    expected = 1.96 * sem(losses)
    assert table.precision.half_width == pytest.approx(expected, rel=1e-4)
    said = f"60 rows determine the log loss to ±{float(f'{expected:.1g}')}; 400 rows would give "
    assert table.precision.text == said + f"±{float(f'{expected * np.sqrt(60 / 400):.1g}')}"
    assert repr(table).count(table.precision.text) == 1
    assert table._repr_html_().count(table.precision.text) == 1
    assert table.to_dict()["precision"]["half_width"] == table.precision.half_width
    # about the half-width of the interval from resamples
    found = table.row(table.recommended).metrics["nll"]
    assert (found.high - found.low) / 2 == pytest.approx(expected, rel=0.25)


def test_the_precision_of_clusters_is_that_of_their_means():
    generator = np.random.default_rng(1)
    losses = generator.gamma(1, 1, (40, 5)) + generator.gamma(1, 1, (40, 1))
    right, cluster = generator.random(200) < 0.8, np.arange(40).repeat(5)
    evidence = count_evidence(right, None, cluster, n_rows=200)
    found = loss_precision(losses.ravel(), evidence, None, cluster)
    assert found.half_width == pytest.approx(1.96 * sem(losses.mean(axis=1)), rel=1e-4)
    assert found.half_width > 1.3 * 1.96 * sem(losses.ravel())
    assert found.text.startswith("40 clusters determine the log loss to ±")
    # rows that are repeated in clusters tell no more than the rows; weights are those of a weighted mean
    twice = loss_precision(
        losses.repeat(2), count_evidence(right.repeat(2), None, np.arange(400) // 2), None, np.arange(400) // 2
    )
    once = loss_precision(losses.ravel(), count_evidence(right))
    assert twice.half_width == pytest.approx(once.half_width)
    weights = generator.gamma(1, 1, 200)
    weighted = loss_precision(losses.ravel(), count_evidence(right, weights), weights)
    deviation = losses.ravel() - np.average(losses.ravel(), weights=weights)
    error = np.sqrt(200 / 199 * sum((weights * deviation) ** 2)) / weights.sum()
    assert weighted.half_width == pytest.approx(1.96 * error, rel=1e-4)


def test_losses_without_an_error_state_the_exact_limit_of_its_share():
    """Their standard error is 0.01 where the true log loss of such models is 0.05 to 0.2 higher."""
    table = cal.compare(
        fit_rows(cal.Predictions(**matrix(40, 0))), cal.Predictions(**matrix(40, 0)), "none", resamples=60
    )
    highs = [binomtest(0, n).proportion_ci(0.95, "exact").high for n in (40, 300)]
    assert table.precision.text == (
        f"40 rows without a wrong prediction limit its share to {highs[0]:.1%}; "
        f"300 rows would limit it to {highs[1]:.1%}"
    )
    assert table.to_dict()["precision"]["half_width"] is None
    assert table.precision.highest_share == pytest.approx(highs[0])


def test_models_with_too_few_rows_are_not_ranked(tmp_path):
    val = matrix(200, 30, seed=1)
    few, many = matrix(40, 1), matrix(400, 60)
    shrunk = few | {"logits": few["logits"] / 3}

    def model(test):
        return cal.Predictions(**val), cal.Predictions(**test)

    table = compare_models({"a": model(few), "b": model(shrunk)}, "none,ts,vs", resamples=60)
    assert (table.best, table.too_few_rows) == (None, "1 of 40 predictions is wrong")
    assert table.beside().best is None
    assert table.beside().verdict == "1 of 40 predictions is wrong: too few to compare models"
    assert not any(marks(table.table(show)) for show in ("models", "groups", "methods", "seeds"))
    assert "*" not in repr(table)
    document = json.loads(table.to_json())
    jsonschema.validate(document, SCHEMAS["models"])
    assert set(document["mean_ranks"].values()) == {None}
    assert "mean_rank/ts" not in table.metrics()
    page = cal.write_report(table, tmp_path / "models.html").read_text(encoding="utf-8")
    main = page[page.index("<main>") : page.index("</main>")]
    assert (
        MARKED.search(re.sub(r"<p><b>What it shows.*?</p>|<p><b>How to read.*?</p>|<b>Note.*?</b>", "", main)) is None
    )
    assert compare_models({"a": model(few)}, "none,auto", resamples=60).best == "auto"

    mixed = compare_models({"a": model(few), "c": model(many)}, "none,ts,vs", pair="none", resamples=60)
    assert mixed.best == mixed.comparisons["c"].ranking("nll")[0]
    assert np.isnan(mixed.ranks()[:, 0]).all()
    assert mixed.mean_ranks() == dict(zip(mixed.methods, mixed.ranks()[:, 1].tolist(), strict=True))
    assert "on 1 of 1; too few rows to compare methods for 1 more" in mixed.verdict


def test_results_with_too_few_rows_have_no_headline():
    val = fit_rows(cal.Predictions(**matrix(40, 0)))
    old, new = (cal.compare(val, cal.Predictions(**matrix(40, n)), "none,auto", resamples=60) for n in (0, 1))
    found = diff(old, new)
    assert found.headlines == ()
    assert not found.worse
    assert found.notes[0] == "old result: 0 of 40 predictions are wrong: too few to compare methods"
