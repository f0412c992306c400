"""The arena's tests against peers: p-values against SciPy and statsmodels, and what is reported of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.stats import t, ttest_rel
from statsmodels.stats.multitest import multipletests

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "arena_tests.py"
DEFAULT = "calibrant auto"


@pytest.fixture(scope="module")
def arena() -> ModuleType:
    spec = importlib.util.spec_from_file_location("arena_tests", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["arena_tests"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", range(5))
def test_paired_equals_the_paired_t_test(arena: ModuleType, seed: int) -> None:
    generator = np.random.default_rng(seed)
    default, peer = generator.normal(size=(2, 40))
    default += 0.2
    expected = ttest_rel(default, peer, alternative="greater")
    mean, p_value = arena.paired(default, peer)
    assert mean == pytest.approx((default - peer).mean(), abs=1e-12)
    assert p_value == pytest.approx(expected.pvalue, abs=1e-12)


def test_the_same_answers_are_no_evidence(arena: ModuleType) -> None:
    loss = np.random.default_rng(0).random(50)
    assert arena.paired(loss, loss) == (0.0, 1.0)


def test_resampled_multiplies_the_variance_by_one_over_splits_plus_the_ratio_of_sizes(arena: ModuleType) -> None:
    differences = np.array([0.01, 0.03, 0.02, 0.04])  # mean 0.025, variance 1/6000
    mean, p_value = arena.resampled(differences, test_to_fit=0.5)
    assert mean == pytest.approx(0.025, abs=1e-12)
    assert p_value == pytest.approx(t.sf(0.025 / np.sqrt(0.75 / 6000), 3), abs=1e-12)
    assert arena.resampled(differences, 0.0)[1] == pytest.approx(ttest_rel(differences, 0 * differences).pvalue / 2)


@pytest.mark.parametrize("seed", range(5))
def test_holm_equals_statsmodels(arena: ModuleType, seed: int) -> None:
    given = np.random.default_rng(seed).random(30) ** 4
    given[3] = given[7]
    np.testing.assert_allclose(arena.holm(given), multipletests(given, method="holm")[1], rtol=1e-12)


def test_holm_by_hand(arena: ModuleType) -> None:
    np.testing.assert_allclose(arena.holm([0.03, 0.01, 0.04]), [0.06, 0.03, 0.06])
    np.testing.assert_allclose(arena.holm([0.9, 0.8]), [1.0, 1.0])


def test_only_the_planted_loss_is_reported(arena: ModuleType, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    store = arena.RowStore(tmp_path / "rows")
    results = {}
    for name in ("labels:3", "with/slash", "third"):
        results[name] = {"family": "one"}
        base = generator.random((2, 400)).astype(np.float32)
        rows = {peer: base + generator.normal(0, 0.1, (2, 400)).astype(np.float32) for peer in ("a", "b", "c")}
        store.write(name, {DEFAULT: base, "calibrant none": base - 1, **rows})
    planted = store.read("with/slash")
    planted["b"][0] -= 0.05
    store.write("with/slash", planted)
    found = arena.losses(results, "one", DEFAULT, store)
    assert found["log_loss"][0] == "1 of 9 pairs (3 files, 3 peers)."
    assert found["log_loss"][1].startswith("- with/slash, b: +0.04")
    assert found["brier"] == ["0 of 9 pairs (3 files, 3 peers)."]
    assert arena.losses(results, "two", DEFAULT, store)["brier"] == ["No peer tested."]
    results["with/slash"]["rarest"] = 4
    assert arena.losses(results, "one", DEFAULT, store)["log_loss"] == ["0 of 6 pairs (2 files, 3 peers)."]


def test_splits_of_a_file_are_tested_together(arena: ModuleType) -> None:
    generator = np.random.default_rng(0)
    results = {
        f"file#{seed}": {
            "family": "one",
            "n_fit": 500,
            "n_test": 250,
            "figures": {
                DEFAULT: {"log_loss": 0.5 + noise, "brier": 0.2 + noise},
                "better": {"log_loss": 0.4 + noise, "brier": 0.2},
                "sometimes failed": {"error": "slow"} if seed else {"log_loss": 0.1, "brier": 0.1},
            },
        }
        for seed, noise in enumerate(generator.normal(0, 0.01, 20))
    }
    for one in results.values():
        one["figures"]["better"]["log_loss"] += generator.normal(0, 0.01)
    found = arena.losses(results, "one", DEFAULT, arena.RowStore(None))
    assert found["log_loss"][0] == "1 of 1 pairs (1 files, 1 peers)."
    assert found["log_loss"][1].startswith("- file, better: +0.09")
    assert found["brier"] == ["0 of 1 pairs (1 files, 1 peers)."]
