"""A few problems of the differential attack; `benchmarks/attack/differential.py` runs a thousand."""

from __future__ import annotations

from pathlib import Path

import pytest

ATTACK = Path(__file__).parents[2] / "benchmarks" / "attack"
FAST = ("ts", "cts-nll", "vs", "dir", "ets", "ws", "cws", "hb", "iso", "spline", "shape", "ts+top")


@pytest.mark.parametrize("seed", [6, 29, 53, 70, 71])
def test_metrics_and_fits_agree_with_literal_references(seed, monkeypatch):
    monkeypatch.syspath_prepend(str(ATTACK))
    from differential import Attack
    from problems import draw

    attack, problem = Attack(), draw(seed)
    attack.metrics(problem)
    for name in FAST:
        attack.method(problem, name)
    assert attack.wrong == []
    assert attack.counts["fits"] + attack.counts["refused with an InputError"] == len(FAST)


def test_the_attack_notices_a_wrong_metric(monkeypatch):
    monkeypatch.syspath_prepend(str(ATTACK))
    from differential import Attack
    from problems import draw

    import calibrant

    monkeypatch.setattr(calibrant.metrics, "ece", lambda *_, **__: 0.123)
    attack = Attack()
    for seed in range(4):
        attack.metrics(draw(seed))
    assert any("ece is 0.123" in line for line in attack.wrong)
