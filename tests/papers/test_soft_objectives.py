"""The claims of the soft-objectives study: verdicts on made-up runs, and the formulas behind figures 3 and 4."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import count
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

STUDY = Path(__file__).resolve().parents[2] / "papers" / "soft_objectives"
sys.path.insert(0, str(STUDY))

import figure_claims  # noqa: E402
import shapes  # noqa: E402

import verdicts  # noqa: E402

ADDRESS = count()


def run(ece, entropy=1.0, accuracy=0.7, confidence=0.7, train=0.01, shift=0.2):
    """One run with the figures that claims read."""
    figures = {"mass_ece": ece, "ece": ece, "accuracy": accuracy, "confidence": confidence, "entropy": entropy}
    figures |= {"ks_error": ece, "sweep_ece": ece}
    cell = {"none": {"mass_ece": shift}, "ts": {"mass_ece": shift}, "ts-soft": {"mass_ece": shift}}
    return {
        "at": f"made-up:{next(ADDRESS)}",
        "test": {"none": figures, "ts": figures, "ts-soft": {**figures, "mass_ece": ece / 2}},
        "train": {"ece": train},
        "shift": {f"{kind}-{level}": cell for kind in ("noise", "blur") for level in range(1, 6)},
    }


def cells(**changed):
    """Three seeds of all 18 cells, equal up to a little noise but for those named."""
    rows = {}
    for cell in figure_claims.CELLS:
        given = changed.get(cell.replace("+", "_"), {"ece": 0.05})
        rows[cell] = [run(**{**given, "ece": given["ece"] + step * 1e-4}) for step in (-1, 0, 1)]
    return rows


def test_the_best_cell_decides_figure_5():
    words, judged = figure_claims.best_cell(cells(focal_soft_ece={"ece": 0.01}))
    assert judged.verdict == "holds"
    assert "focal+soft_ece" in words
    assert figure_claims.best_cell(cells(brier_mmce_weighted={"ece": 0.01}))[1].verdict == "does not hold"
    assert figure_claims.best_cell(cells())[1].verdict == "not decided"


def test_an_entropy_is_the_lowest_or_above_the_median():
    low = cells(cross_entropy_none={"ece": 0.05, "entropy": 0.5})
    assert figure_claims.lowest_entropy(low, "cross_entropy+none")[1].verdict == "holds"
    assert figure_claims.above_median_entropy(low, "cross_entropy+none")[1].verdict == "does not hold"
    assert figure_claims.lowest_entropy(low, "focal+none")[1].verdict == "does not hold"


def test_a_claim_on_all_severities_is_judged_by_the_least_favorable_one():
    def shifted(gaps):
        runs = [run(0.05) for _ in range(3)]
        for seed, one in enumerate(runs):
            for name, cell in one["shift"].items():
                gap = gaps[int(name[-1]) - 1] + seed * 1e-4
                one["shift"][name] = {**cell, "ts-soft": {"mass_ece": cell["ts"]["mass_ece"] + gap}}
        return figure_claims.soft_scaling_under_shift({"a": runs}, "a")[1].verdict

    assert shifted([-0.01, -0.02, -0.03, -0.04, -0.05]) == "holds"
    assert shifted([-0.0001, -0.02, -0.03, -0.04, -0.05]) == "not decided"  # the mean is lower beyond chance
    assert shifted([-0.01, -0.02, -0.03, -0.04, 0.005]) == "does not hold"


def test_both_signs_need_a_bin_beyond_chance_on_each_side():
    def verdict(gaps, count=1000.0):
        confidence = np.linspace(0.2, 0.9, 5)
        table = {"count": [count] * 5 + [0.0], "confidence": [*confidence, 0.0]}
        table["accuracy"] = [*(confidence - gaps), 0.0]
        row = run(0.05)
        row["test"]["none"] = {**row["test"]["none"], "reliability": table}
        return figure_claims.both_signs({figure_claims.BRIER: [row]})[1].verdict

    assert verdict(np.array([-0.1, 0.0, 0.0, 0.0, 0.1])) == "holds"
    assert verdict(np.array([-0.01, 0.0, 0.0, 0.0, 0.1])) == "not decided"
    assert verdict(np.array([0.1, 0.1, 0.1, 0.1, 0.09])) == "does not hold"


def test_a_cell_that_is_better_and_surer_refutes_the_open_challenge():
    worse = {cell.replace("+", "_"): {"ece": 0.06} for cell in figure_claims.CELLS if cell != "cross_entropy+none"}
    assert figure_claims.better_and_surer(cells(**worse))[1].verdict == "holds"
    assert figure_claims.better_and_surer(cells())[1].verdict == "not decided"
    better = cells(**worse | {"focal_avuc": {"ece": 0.01, "entropy": 0.5}})
    words, judged = figure_claims.better_and_surer(better)
    assert judged.verdict == "does not hold"
    assert "focal+avuc," in words


def test_over_confidence_has_a_sign():
    rows = cells(focal_none={"ece": 0.05, "confidence": 0.6}, cross_entropy_none={"ece": 0.05, "confidence": 0.8})
    verdicts = {
        (row, over): figure_claims.mean_confidence_gap(rows, f"{row}+none", over=over)[1].verdict
        for row in ("cross_entropy", "focal")
        for over in (True, False)
    }
    assert list(verdicts.values()) == ["holds", "does not hold", "does not hold", "holds"]


def test_memorization_is_a_train_error_below_one_percent():
    rows = cells(
        cross_entropy_none={"ece": 0.1, "train": 0.005},
        focal_none={"ece": 0.1, "train": 0.02},
    )
    verdicts = [figure_claims.memorizes(rows, f"{row}+none")[1].verdict for row in ("cross_entropy", "focal", "brier")]
    assert verdicts == ["holds", "does not hold", "not decided"]  # the third one is at the margin


def test_the_largest_effect_over_primary_losses_and_datasets():
    rows = cells(**{f"{primary}_soft_avuc": {"ece": 0.01} for primary in figure_claims.PRIMARY})
    words, judged = figure_claims.largest_effect("none")(rows)
    assert words.startswith("mean d of 3 settings: soft_avuc")
    assert (judged.side, judged.cases) == ("above", "3 of 3")


def test_shares_of_cells_have_wilson_intervals():
    words, judged = figure_claims.scaling_count(cells())
    assert (words, judged.verdict) == ("18 of 18, 100% [82, 100]", "holds")
    assert verdicts.share(9, 18, 50)[1].verdict == "not decided"
    assert verdicts.share(0, 18, 50)[1].verdict == "does not hold"


def test_formulas_behind_figures_3_and_4():
    assert shapes.soft_bins_become_hard()[1].verdict == "holds"
    assert shapes.threshold_and_sharpness()[1].verdict == "holds"
    share = np.linspace(0.05, 0.95, 19)
    odds = (share / (1 - share) * (0.7 / 0.3)) ** (1 / 0.25)
    np.testing.assert_allclose(shapes.uncertainty(share, 0.3, 0.25), odds / (1 + odds), rtol=1e-12)


def test_proposition_1_names_the_rate():
    means = [shapes.calibrated_errors(size, repeats=10).mean() for size in (400, 40_000)]
    assert 6 < means[0] / means[1] < 16  # 10 is √100


def test_every_row_of_the_results_is_in_the_readme():
    """A run that was made but is not shown would be a choice nobody can see."""
    script = (
        "import json, tables; rows = tables.table_rows(tables.read_results(tables.HERE / 'results')); "
        "print(json.dumps([tables.row_name(runs[0]) for runs in rows.values()]))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=STUDY)
    readme = (STUDY / "README.md").read_text(encoding="utf-8")
    main = readme.partition("<!-- main -->")[2].partition("<!-- end -->")[0]

    names = json.loads(done.stdout)
    assert len(names) >= 18
    assert all(f"| {name} | " in main for name in names)
