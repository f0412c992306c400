"""The monitor: its promise on false alarms, its figures, its state."""

from __future__ import annotations

import itertools
import json
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calibrant
from calibrant.core.errors import InputError
from calibrant.core.schema import Schema
from calibrant.monitor import GroupMonitor, Monitor
from calibrant.shipping.feed import LogFollower, parse_record, read_outcome
from calibrant.shipping.monitor import (
    BATCHES,
    BIN_SHIFTS,
    CLAIMS,
    MAX_GROUPS,
    ROWS,
    SHARES,
    Bets,
    _waiting,
    group_share,
)


def calibrated(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    confidence = rng.beta(5, 1.2, n)
    return confidence, rng.random(n) < confidence


def wealth_by_definition(confidence, correct, n_bins, plan=ROWS):
    """Row by row as the module's text says, in plain floats: the reference for the vectorised recursion."""
    claims = [(scale, shift, None) for scale, shift in CLAIMS]
    claims += [(1, delta, b) for delta in BIN_SHIFTS for b in range(n_bins)]
    shares = [*SHARES[plan]]
    shares += [(1 - sum(shares)) / (len(BIN_SHIFTS) * n_bins)] * (len(BIN_SHIFTS) * n_bins)
    assert np.isclose(sum(shares), 1)
    stakes, result = [0.0] * len(claims), []
    for t, (c, a) in enumerate(zip(confidence, correct, strict=True), start=1):
        entering = _waiting(np.array(t - 1.0), plan) - _waiting(np.array(float(t)), plan)
        home = max(int(np.ceil(c * n_bins)) - 1, 0)
        for k, (scale, delta, b) in enumerate(claims):
            q = c if b not in (None, home) else 1 / (1 + np.exp(-(scale * np.log(c / (1 - c)) + delta)))
            stakes[k] = (stakes[k] + entering) * (q / c if a else (1 - q) / (1 - c))
        waiting = float(_waiting(np.array(float(t)), plan))
        result.append(sum(share * (stake + waiting) for share, stake in zip(shares, stakes, strict=True)))
    return result


@pytest.mark.parametrize("plan", SHARES)
def test_wealth_is_what_the_definition_says_whatever_the_chunks(plan):
    confidence, correct = calibrated(0, 60)
    expected = wealth_by_definition(confidence, correct, 4, plan)
    whole = Bets(4, plan).play(confidence, correct)
    np.testing.assert_allclose(np.exp(whole), expected, rtol=1e-9)
    bets = Bets(4, plan)
    parts = [bets.play(confidence[i:j], correct[i:j]) for i, j in ((0, 1), (1, 30), (30, 60))]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-9)
    assert np.isclose(bets.log_wealth, whole[-1])


@given(confidence=st.floats(0, 1), history=st.integers(0, 30))
def test_the_bet_is_fair_or_worse_at_every_confidence(confidence, history):
    """E[wealth after | past] ≤ wealth before, the two outcomes weighed by c: what Ville's inequality needs."""
    past = calibrated(1, history)

    def after(correct: bool) -> float:
        bets = Bets(5)
        if history:
            bets.play(*past)
        return float(np.exp(bets.play(np.array([confidence]), np.array([correct]))[-1]))

    before = Bets(5)
    if history:
        before.play(*past)
    # an outcome of chance 0 has no say, even where its payout is large
    mean = sum(chance * after(correct) for chance, correct in ((confidence, True), (1 - confidence, False)) if chance)
    assert mean <= np.exp(before.log_wealth) * (1 + 1e-9)
    if 1e-6 <= confidence <= 1 - 1e-6:
        assert np.isclose(mean, np.exp(before.log_wealth))


def test_false_alarms_stay_below_the_promised_rate(benchmark_script):
    assert benchmark_script("monitor").false_alarms(streams=60, length=3000, rate=0.05, seed=5) <= 3


def test_a_break_is_found_soon_even_after_a_long_calm(benchmark_script):
    delays = benchmark_script("monitor").delays(6, break_at=20_000, shift=-1.0, rate=0.01, room=2000)
    assert len(delays) == 6
    assert np.median(delays) < 600


def test_a_batch_bets_the_mean_of_its_rows_factors_however_it_is_cut():
    confidence, correct = calibrated(8, 70)
    names = np.repeat(["a", "b", "c", "d"], [10, 25, 1, 34])
    single = np.stack([_factors(c, a) for c, a in zip(confidence, correct, strict=True)])
    expected = Bets(4, BATCHES)
    for start, stop in ((0, 10), (10, 35), (35, 36), (36, 70)):
        expected._stake(np.log(single[start:stop].mean(axis=0))[None, :])
    for cuts in ((0, 70), (0, 3, 35, 36, 50, 70)):
        monitor = Monitor(n_bins=4, digits=7)
        for start, stop in itertools.pairwise(cuts):
            monitor.update_answers(confidence[start:stop], correct[start:stop], batches=names[start:stop])
            monitor = Monitor.from_json(monitor.to_json())
        assert (monitor.report().n_batches, monitor.report().n_open) == (3, 34)
        monitor.close_batch()
        assert np.isclose(monitor.evidence, np.exp(expected.log_wealth), rtol=1e-9)
    counted = Monitor(n_bins=4, digits=7, batch=10)
    counted.update_answers(confidence[:7], correct[:7])
    counted.update_answers(confidence[7:], correct[7:])
    assert counted.report().n_batches == 7
    with pytest.raises(InputError, match="one of the two"):
        counted.update_answers([0.5], [True], batches=["x"])
    with pytest.raises(InputError, match="2 names"):
        Monitor().update_answers([0.5], [True], batches=["x", "y"])


@pytest.mark.filterwarnings("ignore:answers came after")
def test_batches_that_interleave_keep_the_promise(benchmark_script):
    study = benchmark_script("monitor")
    assert study.interleaved_alarms(60, 60, 10, 0.3, 0.05, 3) <= 4
    assert study.interleaved_alarms(60, 60, 10, 0.3, 0.05, 10) <= 4


@pytest.mark.filterwarnings("ignore:answers came after")
def test_answers_of_a_batch_that_was_judged_make_no_bet_however_they_are_cut(monkeypatch):
    confidence, correct = calibrated(8, 8)
    names = np.array(["a", "a", "b", "a", "b", "c", "a", "c"])
    betting = [0, 1, 2, 4, 5, 7]
    expected = Monitor(n_bins=4, digits=7)
    expected.update_answers(confidence[betting], correct[betting], batches=names[betting])
    for cuts in ((0, 8), (0, 3, 4, 8), range(9)):
        monitor = Monitor(n_bins=4, digits=7)
        for start, stop in itertools.pairwise(cuts):
            monitor.update_answers(confidence[start:stop], correct[start:stop], batches=names[start:stop])
            monitor = Monitor.from_json(monitor.to_json())
        assert (monitor.n, monitor.report().n_late, monitor.report().n_batches) == (8, 2, 2)
        assert np.isclose(monitor.evidence, expected.evidence)
    monitor.close_batch()
    with pytest.warns(UserWarning, match="a name of its own"):
        monitor.update_answers([0.5], [True], batches=["c"])
    monkeypatch.setattr("calibrant.shipping.monitor.MAX_BATCHES", 3)  # memory stays constant
    short = Monitor()
    short.update_answers(np.full(50, 0.5), np.ones(50, dtype=bool), batches=np.arange(50))
    assert len(json.loads(short.to_json())["state"]["_batches"]) == 3
    short.update_answers([0.5], [True], batches=[0])
    assert short.n_late == 0


def _factors(confidence: float, correct: bool) -> np.ndarray:
    return np.exp(Bets(4)._log_factors(np.array([confidence]), np.array([correct]), np.zeros(1)))[0]


def test_correlated_batches_break_the_promise_row_by_row_and_keep_it_batch_by_batch(benchmark_script):
    study = benchmark_script("monitor")
    assert study.dependent_alarms(20, 60, 30, 0.3, 0.05, None) > 10
    assert study.dependent_alarms(60, 60, 30, 0.3, 0.05, 30) <= 4
    ours, oracles = study.batch_delays(15, "sharp", 30, 0.3, 0.05, 0.05, room=300)
    assert np.median(ours) <= 2 * np.median(oracles)


@given(chance=st.floats(0, 1), digits=st.integers(2, 6), history=st.integers(0, 20))
def test_the_bet_is_fair_or_worse_for_every_confidence_behind_a_rounded_one(chance, digits, history):
    past = calibrated(1, history)

    def bets() -> Bets:
        made = Bets(5)
        if history:
            made.play(*past)
        return made

    given_ = np.array([round(chance, digits)])
    slack = 0.5 * 10.0**-digits * (1 + 1e-9)
    after = [float(np.exp(bets().play(given_, np.array([right]), slack=slack)[-1])) for right in (True, False)]
    mean = sum(share * value for share, value in zip((chance, 1 - chance), after, strict=True) if share)
    assert mean <= np.exp(bets().log_wealth) * (1 + 1e-9)


def test_rounded_confidences_are_noticed_and_raise_no_false_alarm(benchmark_script):
    study = benchmark_script("monitor")
    assert study.rounded_alarms(40, 5000, 0.05, 7) > 4  # taken as exact
    assert study.rounded_alarms(40, 5000, 0.05, None) <= 2
    assert study.rounded_alarms(40, 5000, 0.05, None, np.float32) <= 2
    narrow = np.float32([0.97, 0.5])
    cases = (
        ([0.99, 1.0], 2),
        ([0.987], 3),
        ([0.5, 1 / 3], 7),
        (narrow, 2),
        (narrow.tolist(), 2),
        (np.float16(narrow), 2),
    )
    for values, digits in cases:
        monitor = Monitor()
        monitor.update_answers(values, np.ones(len(values), dtype=bool))
        assert json.loads(monitor.to_json())["state"]["_digits_seen"] == digits


def test_a_group_is_named_and_all_groups_share_one_promise(benchmark_script):
    study = benchmark_script("monitor")
    assert sum(group_share(index) for index in range(10_000)) <= 1
    assert study.group_streams(40, 20, 1500, 0.05, 0.0)[0] <= 3
    _, named, delays = study.group_streams(3, 20, 20_000, 0.05, 0.15)
    assert named == 3
    assert np.median(delays) < 600


def test_group_state_batches_and_limits():
    rng = np.random.default_rng(0)
    confidence, correct = calibrated(9, 900)
    group = rng.integers(0, 3, 900).astype(str)
    whole, parts = GroupMonitor(batch=30, window=50), GroupMonitor(batch=30, window=50)
    whole.update_answers(confidence, correct, group)
    for start in range(0, 900, 77):
        part = slice(start, start + 77)
        parts = GroupMonitor.from_json(parts.to_json())
        parts.update_answers(confidence[part], correct[part], group[part])
    assert whole.n == parts.n == 900
    assert {monitor.open_batch for monitor in whole.groups.values()} == {None}
    for name, monitor in whole.groups.items():
        assert np.isclose(monitor.evidence, parts.groups[name].evidence, rtol=1e-9)
        assert monitor.report().n_batches == 30
    assert whole.report().groups[0]["evidence"] >= whole.report().groups[-1]["evidence"]
    with pytest.raises(InputError, match="not the state"):
        GroupMonitor.from_json(Monitor(batch=30, window=50).to_json())
    with pytest.raises(InputError, match="other things"):
        Monitor.from_json(whole.to_json())
    crowd = GroupMonitor(window=1, n_bins=1)
    crowd.update_answers(np.full(MAX_GROUPS + 5, 0.5), np.arange(MAX_GROUPS + 5) % 2, np.arange(MAX_GROUPS + 5))
    assert (crowd.n, len(crowd.groups), crowd.groups["other"].n) == (MAX_GROUPS + 5, MAX_GROUPS + 1, 5)
    assert GroupMonitor.from_json(crowd.to_json()).to_json() == crowd.to_json()
    crowd.update_answers(np.full(200, 0.9), np.zeros(200, dtype=bool), ["late"] * 200)
    assert crowd.alarms == ["other"]


def test_many_group_names_take_no_longer_than_as_many_as_are_watched():
    confidence, correct = calibrated(10, 30_000)
    seconds = []
    for n_names in (MAX_GROUPS, 30_000):
        monitor, start = GroupMonitor(window=10, n_bins=2), time.process_time()
        monitor.update_answers(confidence, correct, np.arange(30_000) % n_names)
        seconds.append(time.process_time() - start)
    assert seconds[1] < 5 * seconds[0]


@pytest.mark.parametrize(("direction", "word"), [(-0.2, "too high"), (0.15, "too low")])
def test_the_suspect_is_named(direction, word):
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 0.8, 3000)
    monitor = Monitor()
    monitor.update_answers(confidence, rng.random(3000) < confidence + direction)
    report = monitor.report()
    assert report.alarm
    assert word in report.suspect
    assert (report.overconfidence > report.underconfidence) == (direction < 0)


def test_one_broken_bin_is_found_and_named():
    rng = np.random.default_rng(0)
    confidence = rng.random(20_000)
    chance = np.where((confidence > 0.6) & (confidence <= 2 / 3), confidence - 0.25, confidence)
    monitor = Monitor(n_bins=15)
    monitor.update_answers(confidence, rng.random(20_000) < chance)
    assert monitor.report().suspect == "the probabilities are too high from 0.6 to 0.67"


def test_figures_are_those_of_the_window():
    confidence, correct = calibrated(2, 5000)
    monitor = Monitor(window=1000, n_bins=15)
    for start in range(0, 5000, 333):
        monitor.update_answers(confidence[start : start + 333], correct[start : start + 333])
    report = monitor.report()
    last, right = confidence[-1000:], correct[-1000:]
    probabilities = np.stack([last, 1 - last], axis=1)
    keep = last > 0.5  # the metric sees the larger column as the top label
    assert (report.n, report.n_window) == (5000, 1000)
    assert np.isclose(report.accuracy, right.mean())
    assert np.isclose(report.confidence, last.mean())
    assert np.isclose(report.ece, report.overconfidence + report.underconfidence)
    assert np.isclose(report.overconfidence - report.underconfidence, last.mean() - right.mean())
    other = Monitor(window=10_000)
    other.update_answers(last[keep], right[keep])
    labels = np.where(right[keep], 0, 1)
    assert np.isclose(other.report().ece, calibrant.metrics.ece(probabilities[keep], labels, n_bins=15))


def test_the_noise_floor_is_the_ece_of_calibrated_streams():
    confidence, _ = calibrated(3, 800)
    rng = np.random.default_rng(9)
    eces = []
    for _ in range(120):
        monitor = Monitor(window=800)
        monitor.update_answers(confidence, rng.random(800) < confidence)
        eces.append(monitor.report().ece)
    report = monitor.report()
    assert np.isclose(report.noise_floor, np.mean(eces), rtol=0.06)
    assert np.isclose(report.noise_floor_95, np.quantile(eces, 0.95), rtol=0.1)


def test_probabilities_and_logits_give_the_same_answers():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(50, 4)) * 2, rng.integers(0, 4, 50)
    one, two = Monitor(), Monitor()
    one.update(logits, labels, from_logits=True)
    exponentials = np.exp(logits)
    two.update(exponentials / exponentials.sum(axis=1, keepdims=True), labels)
    assert np.isclose(one.evidence, two.evidence)
    with pytest.raises(InputError, match="if these are logits"):
        two.update(logits, labels)


@pytest.mark.parametrize("kind", ["two columns", "logits", "one column", "one logit", "log lines"])
def test_a_risk_that_is_too_low_everywhere_is_found_however_it_is_fed(kind):
    """By the confidence of the predicted class, answers that are too sure and too unsure cancel."""
    rng = np.random.default_rng(0)
    chance = rng.uniform(0.15, 1.0, 5000)
    labels = (rng.random(5000) < chance).astype(int)
    for risk, broken in ((chance, False), (chance - 0.15, True)):
        monitor, logit = Monitor(), np.log(np.maximum(risk, 1e-9) / np.maximum(1 - risk, 1e-9))
        if kind == "log lines":
            lines = [{"probabilities": [1 - p, p], "label": int(y)} for p, y in zip(risk, labels, strict=True)]
            monitor.update_answers(*zip(*(read_outcome(line)[:2] for line in lines), strict=True))
        elif "log" in kind:
            monitor.update(
                np.stack([-logit / 2, logit / 2], 1) if kind == "logits" else logit, labels, from_logits=True
            )
        else:
            monitor.update(np.stack([1 - risk, risk], 1) if kind == "two columns" else risk, labels)
        report = monitor.report()
        assert report.alarm == broken
        if broken:
            assert report.alarm_at < 300
            assert report.suspect == "the probabilities are too low"
            assert np.isclose(report.accuracy - report.confidence, 0.15, atol=0.03)
    with pytest.raises(InputError, match="probabilit"):
        Monitor().update([0.2, 1.7], [0, 1])


def test_state_survives_json_bit_for_bit():
    confidence, correct = calibrated(4, 900)
    monitor = Monitor(window=300)
    assert Monitor.from_json(monitor.to_json()).n == 0
    monitor.update_answers(confidence[:500], correct[:500])
    copy = Monitor.from_json(monitor.to_json())
    for one in (monitor, copy):
        one.update_answers(confidence[500:], correct[500:])
    assert copy.to_json() == monitor.to_json()
    assert copy.report() == monitor.report()


def test_memory_does_not_grow_with_the_stream():
    monitor = Monitor(window=500)
    confidence, correct = calibrated(5, 20_000)
    monitor.update_answers(confidence, correct)
    size = len(monitor.to_json())
    tracemalloc.start()
    for _ in range(5):
        monitor.update_answers(confidence, correct)
    grown, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 200_000
    assert peak < 30_000_000
    assert len(monitor.to_json()) < 1.1 * size


def test_the_alarm_stays_until_reset():
    monitor = Monitor()
    monitor.update_answers(np.full(50, 0.99), np.zeros(50, dtype=bool))
    at = monitor.alarm_at
    assert at is not None
    monitor.update_answers(*calibrated(6, 5000))
    assert monitor.alarm_at == at
    monitor.reset()
    assert not monitor.alarm
    assert monitor.evidence == pytest.approx(1)


def test_certainty_that_fails_is_an_alarm_at_once_and_certainty_that_holds_is_not():
    monitor = Monitor(digits=7)  # 1.0 is certainty, not a rounded 0.996
    monitor.update_answers(np.ones(5000), np.ones(5000, dtype=bool))
    assert not monitor.alarm
    monitor.update_answers([1.0, 1.0, 1.0], [False, False, False])
    assert monitor.alarm


@pytest.mark.parametrize(
    ("confidence", "correct", "words"),
    [
        ([1.5], [True], r"\[0, 1\], got 1.5"),
        ([np.nan], [True], "got nan"),
        ([0.5, 0.5], [True], "shape"),
        ([0.5], [0.3], "true/false"),
    ],
)
def test_bad_answers_are_refused(confidence, correct, words):
    with pytest.raises(InputError, match=words):
        Monitor().update_answers(confidence, correct)


@pytest.mark.parametrize(
    "options", [{"false_alarm_rate": 0}, {"false_alarm_rate": 1}, {"window": 0}, {"n_bins": 0}, {"seed": -1}]
)
def test_bad_options_are_refused(options):
    with pytest.raises(InputError):
        Monitor(**options)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"format": 9}', "[" * 100_000])
def test_a_state_that_is_none_is_refused(text):
    with pytest.raises(InputError):
        Monitor.from_json(text)


@given(place=st.integers(0, 10**6), value=st.sampled_from([None, -1, "x", [], 1e999, 10**12, True]))
def test_a_tampered_state_is_refused_or_works(place, value):
    monitor = Monitor(window=20, n_bins=3)
    monitor.update_answers(*calibrated(7, 30))
    document = json.loads(monitor.to_json())
    part = [document, document["settings"], document["state"], document["state"]["_bets"]][place % 4]
    part[sorted(part)[place % len(part)]] = value
    try:
        loaded = Monitor.from_json(json.dumps(document))
    except InputError:
        return
    loaded.update_answers([0.5], [True])
    assert np.isfinite(loaded.report().ece)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ('{"confidence": 0.9, "correct": true}', (0.9, True)),
        ('{"confidence": 0.9, "prediction": 3, "label": 4}', (0.9, False)),
        ('{"probabilities": [0.25, 0.75], "label": 1}', (0.75, True)),
        ('{"probabilities": [0.75, 0.25], "label": 0}', (0.25, False)),
        ('{"probabilities": [0.75, 0.25, 0], "label": 0}', (0.75, True)),
        ('{"logits": [0, 0], "label": 1}', (0.5, True)),
        ('{"confidence": 0.9, "correct": true, "prediction": "cat", "label": null}', (0.9, True)),
        ('{"confidence": 0.9, "correct": false, "prediction": 3, "label": "3"}', (0.9, False)),
        ('{"confidence": 0.9, "correct": "yes"}', (0.9, True)),
        ('{"confidence": 0.9, "correct": 0.0}', (0.9, False)),
        ('{"confidence": 0.9, "correct": null, "prediction": 3, "label": "3.0"}', (0.9, True)),
        ('{"confidence": 0.9, "prediction": " cat", "label": "cat"}', (0.9, True)),
        ('{"probabilities": [0.25, 0.5, 0.25], "label": "1"}', (0.5, True)),
        ('{"probabilities": {"a": 0.25, "b": 0.5, "c": 0.25}, "label": "b"}', (0.5, True)),
        ('{"probabilities": [0.25, 0.5, 0.25], "label": null, "correct": false}', (0.5, False)),
        ('{"probabilities": [0.75, 0.25], "correct": true}', (0.25, False)),
        ('{"probabilities": [0.75, 0.25], "correct": false}', (0.25, True)),
    ],
)
def test_log_lines_are_understood(line, answer):
    assert read_outcome(parse_record(line))[:2] == answer


@pytest.mark.parametrize(
    "line",
    ["x", "[]", "{}", '{"confidence": 2, "correct": true}',
     '{"confidence": 0.5, "label": 1}', '{"confidence": 0.5, "correct": "perhaps"}',
     '{"probabilities": [0.5, 0.5], "label": "cat"}', '{"logits": [1], "label": 0}',
     '{"logits": [1, NaN], "label": 0}', '{"logits": [1, 2], "label": 2}', '{"probabilities": [1, 1], "label": 0}',
     '{"logits": [[1, 2]], "label": 0}', '{"logits": ["a", 2], "label": 0}'],
)  # fmt: skip
def test_bad_log_lines_are_refused(line):
    with pytest.raises(InputError):
        read_outcome(parse_record(line))


@pytest.mark.parametrize(
    "line",
    ['{"confidence": 0.5}', '{"confidence": 0.5, "prediction": 1, "label": null}', '{"logits": [1, 2], "label": ""}',
     '{"probabilities": [0.5, 0.5], "label": NaN, "correct": null}'],
)  # fmt: skip
def test_a_label_that_is_not_known_yet_is_pending(line, tmp_path):
    assert read_outcome(parse_record(line)) is None
    (tmp_path / "log.jsonl").write_text(f'{line}\n{{"confidence": 0.9, "correct": true}}\n')
    follower = LogFollower(str(tmp_path / "log.jsonl"))
    assert (follower.read(), follower.n_pending, follower.n_bad) == (1, 1, 0)


@pytest.mark.parametrize("names", [("2", "0", "1"), ("cat", "dog", "cow"), None])
def test_labels_are_matched_to_class_names_as_in_measure(names, tmp_path):
    rng = np.random.default_rng(0)
    scores = rng.dirichlet(np.ones(3), 400)
    places = np.array([rng.choice(3, p=row) for row in scores])
    labels = places.tolist() if names is None else [names[place] for place in places]
    schema = Schema("multiclass", "probabilities", 3, names)
    lines = [{"probabilities": row.tolist(), "label": label} for row, label in zip(scores, labels, strict=True)]
    found = [read_outcome(line, schema) for line in lines]
    measured = calibrant.measure(calibrant.Predictions(probabilities=scores, labels=labels, class_names=names))
    assert np.mean([one.correct for one in found]) == measured.metrics["accuracy"].value
    assert found[0].reading == ("label by position" if names is None else f"label by class name ({', '.join(names)})")
    by_number = [
        {"logits": np.log(row).tolist(), "label": int(place)} for row, place in zip(scores, places, strict=True)
    ]
    if names is None or names[0] == "cat":
        assert [read_outcome(line, schema).correct for line in by_number] == [one.correct for one in found]


def test_groups_are_watched_from_predictions_too():
    rng = np.random.default_rng(0)
    scores = rng.dirichlet(np.ones(3), 600)
    labels, groups = rng.integers(0, 3, 600), np.array(["a", "b"])[np.arange(600) % 2]
    one, other = GroupMonitor(), GroupMonitor()
    one.update(scores, labels, groups)
    other.update_answers(scores.max(axis=1), scores.argmax(axis=1) == labels, groups)
    assert one.to_json() == other.to_json()


def test_a_growing_and_a_rotated_log_are_followed(tmp_path):
    log = tmp_path / "answers.jsonl"
    log.write_text('{"confidence": 0.9, "correct": true}\nnonsense\n{"confidence": 0.8, ')
    watch = LogFollower(str(log))
    assert watch.read() == 1
    assert (watch.n_bad, watch.first_problem[:6]) == (1, "line 2")
    with log.open("a") as file:
        file.write('"correct": false}\n')
    watch = LogFollower.from_json(watch.to_json(), LogFollower(str(log)))
    assert watch.read() == 1
    assert watch.read() == 0
    log.unlink()
    log.write_text('{"confidence": 0.7, "correct": true}\n')
    assert watch.read() == 1
    assert watch.monitor.n == 3
    with pytest.raises(InputError, match="no such file"):
        LogFollower(str(tmp_path / "absent")).read()
