"""One log of outcomes read by `monitor`, by the feedback of a service and by `measure`: the same counts."""

from __future__ import annotations

import json

import numpy as np
import pytest

import calibrant as cal
from calibrant.core.errors import InputError
from calibrant.shipping.artifact import Artifact
from calibrant.shipping.feed import FeedbackDesk, LogFollower
from calibrant.shipping.service import Served

NAMES = (("cat", "dog", "eel"), ("2", "0", "1"), ("1", "2", "3", "4"), ("no", "yes", "maybe"), ("1.5", "01", "1"))
OUTCOMES = {True: [True, 1, "yes", "true", "correct", 1.0], False: [False, 0, "no", "False", "wrong", 0.0]}
CASES = 25


def spellings(name: str) -> list:
    """The ways in which a record may write a label."""
    found: list = [name, f" {name} "]
    if name.isdecimal() and name == str(int(name)):
        found += [int(name), float(name)]
    return found


def make_log(seed: int, form: str) -> tuple[list[dict], list[dict], tuple[str, ...]]:
    """Records, those with a known outcome, and the class names."""
    rng = np.random.default_rng(seed)
    names = NAMES[rng.integers(len(NAMES))]
    records, known = [], []
    for _ in range(int(rng.integers(20, 60))):
        p = rng.dirichlet(np.ones(len(names)))
        place, is_pending = int(rng.choice(len(names), p=p)), rng.random() < 0.2
        pending = [{"label": None}, {}, {"label": float("nan")}, {"label": ""}][rng.integers(4)]
        written = spellings(names[place])
        label = {"label": written[rng.integers(len(written))]}
        if form == "correct":
            words = OUTCOMES[bool(place == p.argmax())]
            own, label = {"confidence": float(p.max())}, {"correct": words[rng.integers(len(words))]}
            pending = [{"correct": None}, {}][rng.integers(2)]
        elif form == "prediction":
            own = {"confidence": float(p.max()), "prediction": names[p.argmax()]}
        else:
            values = p if form == "probabilities" else np.log(p) + rng.normal()
            order = rng.permutation(len(names))
            own = {form: {names[one]: float(values[one]) for one in order}}
        records.append(own | (pending if is_pending else label))
        known += [] if is_pending else [records[-1]]
    return records, known, names


@pytest.mark.parametrize("form", ["correct", "prediction", "probabilities", "logits"])
def test_monitor_feedback_and_measure_agree_on_every_count(form, tmp_path):
    for seed in range(CASES):
        records, known, names = make_log(seed, form)
        log, complete = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
        log.write_text("".join(json.dumps(one) + "\n" for one in records))
        complete.write_text("".join(json.dumps(one) + "\n" for one in known))
        follower = LogFollower(str(log))
        follower.read()
        desk = FeedbackDesk()
        fitted = cal.Identity().fit(3 * np.eye(len(names)), np.arange(len(names)))
        desk.schema = Served(Artifact(fitted, len(names), class_names=names)).artifact.schema
        taken = desk.take(records)
        found = cal.measure(cal.open_predictions(complete), resamples=2)
        pending = len(records) - len(known)
        assert (follower.n_bad, follower.first_problem) == (0, None), seed
        assert follower.n_pending == taken["pending"] == desk.n_pending == pending, seed
        assert follower.monitor.n == taken["taken"] == desk.monitor.n == found.n == len(known), seed
        watched, fed = (one.monitor.report() for one in (follower, desk))
        for name in ("accuracy", "confidence"):
            values = [getattr(watched, name), getattr(fed, name), found.metrics[name].value]
            assert values == pytest.approx([values[0]] * 3, abs=1e-6), (seed, name)
        if pending:
            with pytest.raises(InputError):
                cal.open_predictions(log)
