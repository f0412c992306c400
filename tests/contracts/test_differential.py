"""A few problems of the differential attack; `benchmarks/attack/differential.py` runs a thousand."""

from __future__ import annotations

from pathlib import Path

import pytest

ATTACK = Path(__file__).parents[2] / "benchmarks" / "attack"


@pytest.fixture
def attack(monkeypatch):
    monkeypatch.syspath_prepend(str(ATTACK))
    from differential import Matrix

    return Matrix()


def quick(methods):
    """Those that the attack itself tries on every fourth problem or more often."""
    from differential import EVERY, USUAL

    return [name for name in methods if EVERY.get(name, USUAL) <= USUAL]


@pytest.mark.parametrize("seed", [6, 29, 53, 70, 71])
def test_metrics_and_fits_agree_with_literal_references(seed, attack):
    from differential import METHODS
    from problems import draw

    problem, methods = draw(seed), quick(METHODS)
    attack.metrics(problem)
    for name in methods:
        attack.method(problem, name)
    assert attack.wrong == []
    assert attack.counts["fits"] + attack.counts["refused with an InputError"] == len(methods)


@pytest.mark.parametrize("seed", [3, 4, 12, 33, 98])
def test_one_score_agrees_with_literal_references(seed, attack):
    import one_score
    from problems import draw_labels, draw_scores, with_groups

    problem, methods = draw_scores(seed), quick(one_score.SCORE_METHODS)
    one_score.metrics(attack, problem)
    for name in methods:
        one_score.method(attack, problem, name)
    one_score.invariant(attack, draw_labels(seed), "multilabel")
    one_score.invariant(attack, with_groups(problem), "platt+group")
    assert attack.wrong == []
    assert attack.counts["fits"] + attack.counts["refused with an InputError"] == len(methods) + 2


@pytest.mark.parametrize(
    ("name", "seed", "warns"),
    [
        ("conf", 26, False),  # tied rows: one row of weight 3 lay in one fold, three copies in three
        ("conf", 92, False),  # zeros: raised to other bits when the classes were permuted
        ("svs", 96, True),  # a fold whose rows are all predicted right: the temperature that set its unit was chance
        ("vs+top", 84, True),  # a fold without an optimum: its warning was swallowed
    ],
)
def test_what_the_attack_found_stays_mended(name, seed, warns, attack):
    from problems import draw

    problem = draw(seed)
    fitted, p, warned = attack.fitted(problem, name)
    attack.invariances(problem, name, fitted, p, warned)
    assert attack.wrong == []
    assert warned == warns


def test_the_attack_notices_a_wrong_metric(attack, monkeypatch):
    from problems import draw

    import calibrant

    monkeypatch.setattr(calibrant.metrics, "ece", lambda *_, **__: 0.123)
    for seed in range(4):
        attack.metrics(draw(seed))
    assert any("ece is 0.123" in line for line in attack.wrong)


def test_the_attack_notices_a_fit_that_misses_its_optimum(attack, monkeypatch):
    import one_score
    from problems import draw_scores

    from calibrant.calibrators.logistic import PlattScaling

    learned = PlattScaling._fit_binary

    def careless(self, rows):
        learned(self, rows)
        self.intercept_ += 0.1

    monkeypatch.setattr(PlattScaling, "_fit_binary", careless)
    for seed in range(4):
        one_score.method(attack, draw_scores(seed), "platt")
    assert any("platt: loss" in line for line in attack.wrong)
