"""The studies of papers: in small on synthetic networks, and the kept tables against the real ones."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

import calibrant as cal
from calibrant.cli.app import VERBS
from calibrant.core.errors import InputError
from calibrant.evaluation.bootstrap import draw

PAPERS = Path(__file__).resolve().parents[2] / "papers"
sys.path.insert(0, str(PAPERS))

from check import close, stale_readme  # noqa: E402
from studies import NAMES, run_study, sctl, weight_scaling  # noqa: E402
from studies.descent import descend, share_of_worst  # noqa: E402
from studies.measuring import (  # noqa: E402
    Estimate,
    above_zero,
    evidence,
    fit_and_measure,
    higher,
    lower,
    lower_in,
    mostly,
    over_cases,
    signed,
)
from studies.networks import read_networks  # noqa: E402
from studies.study import marked  # noqa: E402
from studies.writing import write_study  # noqa: E402
from study_runner import main  # noqa: E402
from verdicts import Claim, Count, Evidence, claims_markdown, holm  # noqa: E402

N_CLASSES = 4
VERDICTS = {"holds", "does not hold", "not decided"}


def sample(rng, n, shares):
    labels = rng.choice(N_CLASSES, size=n, p=shares)
    strength = np.array([2.5, 2.0, 1.5, 1.0])[labels, None]
    return 2 * (strength * np.eye(N_CLASSES)[labels] + rng.normal(size=(n, N_CLASSES))), labels


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two small over-confident networks, one of them fitted on other class shares than it is tested on."""
    home, rng = tmp_path_factory.mktemp("networks"), np.random.default_rng(5)
    even, tail = np.full(N_CLASSES, 1 / N_CLASSES), np.array([0.6, 0.25, 0.1, 0.05])
    for name, shares in (("even", even), ("tail", tail)):
        (val, val_labels), (test, test_labels) = sample(rng, 300, shares), sample(rng, 400, even)
        np.savez(
            home / f"{name}.npz",
            val_logits=val.astype(np.float32),
            val_labels=val_labels,
            test_logits=test.astype(np.float32),
            test_labels=test_labels,
        )
    return home


@pytest.fixture(scope="module", autouse=True)
def two_bases():
    """Less of what takes most of the time and adds no code: calibrators, numbers of bins, repeats."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sctl, "BASES", {base: sctl.BASES[base] for base in ("TS", "CTS")})
        patch.setattr(weight_scaling, "BIN_NUMBERS", (3, 8))
        patch.setattr(weight_scaling, "FEW_ROWS", (100, 200))
        patch.setattr(weight_scaling, "REPEATS", 3)
        yield


@pytest.fixture(scope="module")
def studies(folder):
    return {name: run_study(name, folder, resamples=50) for name in NAMES}


def test_networks_know_their_tail(folder):
    assert {one.name: one.long_tailed for one in read_networks(folder, "zoo")} == {"even": False, "tail": True}


@pytest.mark.parametrize("name", NAMES)
def test_a_study_says_the_same_twice(name, folder, studies):
    workers = 2 if name == "cts" else 1
    again = run_study(name, folder, resamples=50, workers=workers)
    assert again.to_dict() == studies[name].to_dict()


@pytest.mark.parametrize("name", NAMES)
def test_every_claim_has_a_verdict_and_tables_are_whole(name, studies):
    study = studies[name]
    assert {claim.verdict for claim in study.claims} <= VERDICTS
    for table in study.tables:
        assert all(len(cells) == len(table.columns) and all(cells) for _, cells in table.rows)
        lines = [line for line in table.to_markdown().splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) == 1
    for part in study.claims_markdown().split("### ")[1:]:
        assert len({line.count("|") for line in part.splitlines() if line.startswith("|")}) == 1


def test_figures_in_the_tables_are_those_of_the_metrics(folder, studies):
    with np.load(folder / "even.npz") as file:
        fitted = cal.get("ts-ece").fit(file["val_logits"], file["val_labels"])
        probabilities, labels = fitted.predict_proba(file["test_logits"]), file["test_labels"]
    expected = f"{100 * cal.metrics.ece(probabilities, labels):.2f}"
    cell = studies["cts"].to_dict()["tables"][0]["rows"]["TS"]["even"]
    assert cell.startswith(f"{expected} ± ")
    assert cell.endswith(f"(T = {fitted.temperature_:.1f})")


@pytest.mark.parametrize("name", NAMES)
def test_files_and_figures_are_written(name, studies, tmp_path):
    written = write_study(studies[name], tmp_path / "new" / "folder")
    names = {path.name for path in written}
    assert {"tables.md", "claims.md", "results.json", "figure-1.png"} <= names
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in written if path.suffix == ".png")
    assert json.loads((tmp_path / "new" / "folder" / "results.json").read_text())["study"] == name


@pytest.mark.parametrize("loss", ["CE", "Ours", "FL", "LS"])
def test_descent_ends_where_the_solver_does(loss):
    logits, labels = sample(np.random.default_rng(1), 500, np.array([0.4, 0.3, 0.2, 0.1]))
    solver = {
        "CE": cal.TemperatureScaling(),
        "Ours": cal.ClassLossScaling(cal.TemperatureScaling()),
        "FL": cal.ClassLossScaling(cal.TemperatureScaling(), loss="focal"),
        "LS": cal.ClassLossScaling(cal.TemperatureScaling(), loss="label_smoothing"),
    }[loss].fit(logits, labels)
    found = getattr(solver, "calibrator_", solver).temperature_
    trace = descend(logits, labels, loss, epochs=200, rate=3.0)
    # the paper's shape of the class weights is chosen after one step of descent, ours after one refit
    tolerance = 0.02 if loss == "Ours" else 2e-3
    assert trace.temperature[-1] == pytest.approx(found, rel=tolerance)
    assert trace.class_losses.shape == (201, N_CLASSES)


def test_descent_on_the_worst_classes_lowers_their_loss():
    logits, labels = sample(np.random.default_rng(1), 500, np.full(N_CLASSES, 0.25))
    trace = descend(logits, labels, "Top 3", epochs=100)
    worst = np.argsort(-trace.class_losses[0])[:3]
    count = np.bincount(labels)[worst]
    before, after = (trace.class_losses[place][worst] @ count for place in (0, -1))
    assert after < before


def test_two_states_of_one_loss_and_the_share_of_the_worst_classes():
    logits, labels = sample(np.random.default_rng(1), 500, np.full(N_CLASSES, 0.25))
    trace = descend(logits, labels, "Top 3", epochs=60)
    share = share_of_worst(trace)
    worst = np.sort(trace.class_losses[0])[::-1][:3]
    assert share[0] == pytest.approx(worst.sum() / trace.class_losses[0].sum())
    assert ((share > 0) & (share < 1)).all()
    states = sctl.states_of_one_loss(trace)
    if states is not None:
        assert trace.total[states[0]] <= trace.total[states[1]]
    falling = replace(trace, total=np.linspace(1.0, 0.5, len(trace.total)))
    assert sctl.states_of_one_loss(falling) is None
    rising = replace(trace, total=np.abs(np.linspace(-1.0, 0.5, len(trace.total))))
    a, b = sctl.states_of_one_loss(rising)
    assert b == len(rising.total) - 1
    assert rising.total[a] == pytest.approx(rising.total[b], abs=0.03)


def test_verdicts():
    def figure(value, half):
        return Estimate(value, value + np.linspace(-half, half, 101)).named(f"{value} {half}")

    assert lower([figure(-0.01, 0.001)] * 3)[1].verdict == "holds"
    assert lower([figure(-0.01, 0.1)] * 3)[1].verdict == "not decided"
    assert lower([figure(0.01, 0.001)] * 3)[1].verdict == "does not hold"
    # of two networks the resamples decide, of three the networks themselves
    words, judged = lower([figure(-0.1, 0.01), figure(0.01, 0.001)])
    assert (words, judged.verdict) == ("1 of 2 lower; mean −4.50 [−5.02, −3.98]", "holds")
    words, judged = lower([figure(-0.1, 0.01), figure(0.01, 0.001), figure(0.01, 0.001)])
    assert (words, judged.verdict, judged.df) == ("1 of 3 lower; mean −2.67 [−18.44, +13.11]", "not decided", 2)
    assert higher([[figure(0.01, 0.001)] * 4] * 3)[1].cases == "12 of 12"
    assert above_zero(figure(-0.004, 0.0005), -0.005).verdict == "holds"
    assert above_zero(figure(-0.004, 0.0015), -0.005).verdict == "not decided"
    seven, thirty = ({str(case): float(case) for case in range(count)} for count in (7, 30))
    assert (mostly(seven, 0, 2)[0], mostly(seven, 0, 2)[1].verdict) == ("3 of 7, 43% [16, 75]", "not decided")
    assert mostly(thirty, 0, 29)[1].verdict == "holds"
    assert mostly(thirty, 30, 40)[1].verdict == "does not hold"
    assert Count({"a": 0.0, "b": 0.1}, 0, 0).verdict == "does not hold"
    assert Count({"a": 0.0, "b": 0.1}, most=0.1).verdict == "holds"
    assert signed(figure(-0.01, 0.0)) == "−1.00 [−1.00, −1.00]"
    assert signed(figure(-1e-9, 0.0)) == "+0.00 [+0.00, +0.00]"


def test_raw_values_of_cases_have_one_place_more_than_their_interval():
    """MS on few rows has no optimum, and processors stop at different ends; no such digit is stored or decides."""
    first = np.array([0.35603897, 0.38312544, 0.2922706, 0.34242554, 0.38645065])
    second = np.array([0.35603927, 0.38312574, 0.29227425, 0.34242542, 0.38645054])
    judged = [evidence(over_cases(values), "above") for values in (first, second)]
    assert judged[0].to_dict() == judged[1].to_dict()
    stored = np.array(judged[0].source["values"])
    assert stored.tolist() == [35.604, 38.313, 29.227, 34.243, 38.645]
    exact = over_cases(stored)
    assert (judged[0].value, judged[0].low) == pytest.approx((exact.value, exact.interval[0]), rel=1e-12)


def test_close_numbers_differ_by_two_units_of_the_last_place():
    assert close('  "a": 29.227,', '  "a": 29.229,')
    assert not close('  "a": 29.227,', '  "a": 29.23,')  # a zero at the end is not written
    assert close("| 1.00 | **2.50** |", "| **1.02** | 2.50 |")
    assert not close("| 3 of 4 | 1.00 |", "| 2 of 4 | 1.00 |")


def test_a_share_counts_networks_and_a_mean_weighs_them():
    def figure(value):
        return Estimate(value, np.full(50, value)).named(f"{value}")

    gaps = {"a": figure(-0.1), "b": figure(0.001), "c": figure(0.002), "d": figure(0.0)}
    words, judged = lower_in(gaps, 50)
    assert (words, judged.verdict) == ("1 of 4, 25% [5, 70]", "not decided")
    assert judged.source["values"] == {"a": -10.0, "b": 0.1, "c": 0.2, "d": 0.0}
    assert lower(list(gaps.values()))[1].value < 0
    many = {str(place): figure(-0.01) for place in range(40)}
    assert lower_in(many, 89)[1].verdict == "holds"
    assert lower_in(dict(list(many.items())[:20]), 89)[1].verdict == "not decided"


def test_a_verdict_reads_what_is_printed():
    """An end that rounds to the margin is at the margin, wherever the last digits lie."""
    assert Evidence(-0.58, -1.10, -8e-9).verdict == "not decided"
    assert str(Evidence(-0.58, -1.10, -8e-9)) == "−0.58 [−1.10, +0.00]"
    assert Evidence(-0.58, -1.10, -0.006).verdict == "holds"
    assert Evidence(0.5, -math.inf, math.inf).verdict == "not decided"
    assert Evidence(1.0, 0.2, 1.8, side="above").p == pytest.approx(2 * norm.sf(1.0 / 0.8 * 1.959964))


def test_holm_steps_down():
    def claim(place, value, kind="seen"):
        return Claim(f"claim {place}", kind, "", Evidence(value, value - 1, value + 1))

    # p: 1e-9, 0.019, 0.028, 0.048 of four: the second would need 0.017 and stops the rest; what is counted is left out
    claims = [claim(0, -1.2), claim(1, -3.0), claim(2, -1.12), claim(3, -1.01), claim(4, -9.0, "not studied")]
    claims.append(Claim("counted", "seen", "", Count({"a": 1.0})))
    assert holm(claims) == {1: "holds", 0: "not decided", 2: "not decided", 3: "not decided"}
    assert claims_markdown(claims).count("| counted |") == 2


def test_marks_follow_what_is_printed():
    cells = marked([[2.0, 1.004, 1.001, float("nan")]], [["2.00", "1.00", "1.00", "—"]])
    assert cells == [["<u>2.00</u>", "**1.00**", "**1.00**", "—"]]


def test_the_script_writes_and_leaves_the_readme_alone(folder, tmp_path):
    out, readme = tmp_path / "study", (PAPERS / "weight_scaling" / "README.md").read_bytes()
    arguments = ["--data", str(folder), "--out", str(out), "--resamples", "20"]
    assert main(PAPERS / "weight_scaling", arguments) == 0
    expected = run_study("weight_scaling", folder, resamples=20).to_dict()
    assert json.loads((out / "results.json").read_text(encoding="utf-8")) == expected
    assert (PAPERS / "weight_scaling" / "README.md").read_bytes() == readme


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("nothing", ["--data", "."], "no study is called 'nothing'"),
        ("cts", [], "--data"),
        ("cts", ["--data", "no/such/folder"], "holds no .npz"),
        ("cts", ["--data", ".", "--out", __file__], "is a file"),
    ],
)
def test_bad_input_is_one_line(name, arguments, words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(PAPERS / name, arguments)
    assert caught.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


def test_a_file_without_parts_is_refused(tmp_path):
    np.savez(tmp_path / "plain.npz", logits=np.zeros((3, 2)), labels=np.zeros(3, dtype=int))
    with pytest.raises(InputError, match=r"plain\.npz"):
        run_study("cts", tmp_path)


def test_nothing_of_the_studies_is_in_the_package():
    assert not list(Path(cal.__file__).parent.rglob("*paper*"))
    assert "paper" not in VERBS


@pytest.mark.parametrize("name", NAMES)
def test_kept_claims_are_those_of_the_readme_and_of_the_results(name):
    readme = (PAPERS / name / "README.md").read_text(encoding="utf-8")
    kept = (PAPERS / name / "results" / "claims.md").read_text(encoding="utf-8")
    assert readme.partition("<!-- claims -->\n")[2].partition("<!-- end -->")[0] == kept
    results = json.loads((PAPERS / name / "results" / "results.json").read_text(encoding="utf-8"))
    for one in results["claims"]:
        assert f"| {one['claim']} | {one['paper']} | {one['ours']} | {one['holds']}" in kept


@pytest.mark.parametrize("name", ["neural_clamping", "soft_objectives"])
def test_a_readme_is_what_its_script_writes_from_the_results(name):
    assert stale_readme(name) == []


@pytest.mark.parametrize(
    ("name", "inner", "network"), [("cts", "zoo", "c10_resnet20_ce"), ("weight_scaling", "chestxray14", "resnet50")]
)
def test_kept_tables_come_out_again(name, inner, network, shared_data, tmp_path):
    path = shared_data / inner / f"{network}.npz"
    if not path.is_file():
        pytest.skip(f"no predictions at {path}")
    (tmp_path / path.name).symlink_to(path)
    made = run_study(name, tmp_path).to_dict()["tables"]
    kept = json.loads((PAPERS / name / "results" / "results.json").read_text(encoding="utf-8"))["tables"]
    compared = 0
    for new, old in zip(made, kept, strict=True):
        assert new["title"] == old["title"]
        for row, cells in new["rows"].items():
            if network in cells:
                assert cells[network] == old["rows"][row][network]
                compared += 1
    assert compared > 10


@pytest.mark.parametrize("network", ["c10lt_resnet18_ce", "c100lt_resnet18_ce"])
def test_class_loss_scaling_improves_on_long_tailed_data(network, shared_data):
    """The kept cells of table 2, and a paired interval that lies below 0."""
    path = shared_data / "zoo" / f"{network}.npz"
    if not path.is_file():
        pytest.skip(f"no predictions at {path}")
    results = json.loads((PAPERS / "sctl" / "results" / "results.json").read_text(encoding="utf-8"))
    kept = next(table for table in results["tables"] if "long-tailed" in table["title"])["rows"]
    data = next(one for one in read_networks(path.parent, "zoo") if one.name == network)
    drawn = draw(len(data.test_labels), 1000, 0)
    plain, ours = (fit_and_measure(cal.get(short), data, drawn) for short in ("ts", "sctl+ts"))
    for row, one in (("TS", plain), ("TS+Ours", ours)):
        assert kept[row][network].split()[0] == f"{100 * one.ece.value:.2f}"
    assert (ours.ece - plain.ece).interval[1] < 0
