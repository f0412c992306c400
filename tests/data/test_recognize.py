"""Tables are read as their names and values show; contradictions are rejected with commands, suspicions are doubts."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from calibrant.core.errors import InputError
from calibrant.core.softmax import softmax
from calibrant.data import open_predictions
from calibrant.data.source import LABELS, OTHER_LABELS, SCORES, WEIGHTS

NAMES = np.array(["adelie", "chinstrap", "gentoo"])
RNG = np.random.default_rng(3)
Y = RNG.integers(0, 3, 400)
P = softmax(2.0 * np.eye(3)[Y] + 1.5 * RNG.normal(size=(400, 3)))
EVENT = RNG.random(400) < 0.4
RISK = 1 / (1 + np.exp(-(2.0 * EVENT - 1.0 + 1.5 * RNG.normal(size=400))))
ANSWER = P.argmax(1)


def wide(pattern: str, scores: Any = P, names: Any = NAMES) -> dict[str, Any]:
    """Columns of scores with the classes in a pattern."""
    return {pattern.format(name): scores[:, place] for place, name in enumerate(names)}


def accuracy(found: Any) -> float:
    return float(((found.probabilities.argmax(axis=1)) == found.labels).mean())


RIGHT = float((ANSWER == Y).mean())


@pytest.mark.parametrize(
    "table",
    [
        wide("{}") | {"species": NAMES[Y]},
        wide("p_{}", names=range(3)) | {"y_true": Y, "age": RNG.integers(20, 90, 400)},
        wide("class_{}", names=range(3)) | {"label": Y + 1},
        wide("species_{}_PREDICTION") | {"species_PREDICTION": NAMES[ANSWER], "species": NAMES[Y]},
        wide("P_species{}") | {"species": NAMES[Y], "I_species": NAMES[ANSWER]},
        wide("PREDICT_PROBA_{}", names=np.char.upper(NAMES)) | {"SPECIES": NAMES[Y]},
        wide("{} %", (100 * P).round(1)) | {"true": NAMES[Y]},
        wide("prob_{}") | {"p_max": P.max(1), "label": NAMES[Y]},
        wide("prob_{}") | wide("label_{}", np.eye(3, dtype=int)[Y]),
        {"probs": list(P), "label": Y},
    ],
)
def test_common_exports_are_read_at_once(table: dict[str, Any]) -> None:
    found = open_predictions(pd.DataFrame(table))
    assert (found.n, found.n_classes, found.task) == (400, 3, "multiclass")
    assert accuracy(found) == pytest.approx(RIGHT, abs=0.003)
    assert found.reading.doubts == ()


@pytest.mark.parametrize(
    ("table", "task"),
    [
        ({"patient_id": np.arange(400), "age": RNG.integers(20, 90, 400), "risk": RISK, "died": EVENT}, "binary"),
        ({"id": np.arange(400), "target": RISK, "label": EVENT * 1}, "binary"),
        ({"prediction": NAMES[ANSWER], "probability": P.max(1), "label": NAMES[Y]}, "pairs"),
        ({"prediction": (RISK > 0.5) * 1, "probability": np.maximum(RISK, 1 - RISK), "label": EVENT * 1}, "pairs"),
        ({"image": range(400), "detected": NAMES[ANSWER], "Confidence": 100 * P.max(1), "expected": NAMES[Y]}, "pairs"),
    ],
)  # fmt: skip
def test_one_score_per_row_is_a_risk_or_the_confidence_of_an_answer(table: dict[str, Any], task: str) -> None:
    found = open_predictions(pd.DataFrame(table))
    assert found.task == task
    expected = (RISK, EVENT) if task == "binary" else (P.max(1), ANSWER == Y)
    if table.get("prediction") is not None and table["prediction"].dtype.kind == "i":
        expected = np.maximum(RISK, 1 - RISK), (RISK > 0.5) == EVENT
    np.testing.assert_allclose(found.probabilities, expected[0])
    np.testing.assert_array_equal(found.labels, expected[1])


CODES = np.array([2, 0, 1])


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (wide("prob_{}") | {"label": CODES[Y]}, "another order"),
        ({"prob_no": 1 - RISK, "prob_yes": RISK, "label": ~EVENT * 1}, "reversed"),
        ({"prob": 1 - RISK, "label": EVENT * 1}, "reversed"),
    ],
)
def test_labels_that_contradict_names_are_rejected_with_the_fitting_command_first(
    table: dict[str, Any], words: str
) -> None:
    frame = pd.DataFrame(table)
    with pytest.raises(InputError, match=words) as caught:
        open_predictions(frame)
    fitting, as_named = caught.value.remedies
    good, bad = (open_predictions(frame, **options) for options in (fitting, as_named))
    if good.task == "binary":
        assert (((good.probabilities > 0.5) == good.labels).mean()) > 0.6
    else:
        assert accuracy(good) > 0.6
    np.testing.assert_array_equal(bad.labels, table["label"])
    assert len(bad.reading.doubts) == 1


@pytest.mark.parametrize(
    "table",
    [
        wide("a_{}") | wide("b_{}", softmax(np.log(P) / 2)) | {"y_true": NAMES[Y]},
        wide("p_{}") | {"annotator_1": NAMES[Y], "annotator_2": NAMES[np.where(RNG.random(400) < 0.2, ANSWER, Y)]},
        {"prior_no": 1 - RISK**2, "prior_yes": RISK**2, "later_no": 1 - RISK, "later_yes": RISK, "y": EVENT * 1},
    ],
)  # fmt: skip
def test_several_fitting_readings_are_rejected_with_a_command_for_each(table: dict[str, Any]) -> None:
    frame = pd.DataFrame(table)
    with pytest.raises(InputError) as caught:
        open_predictions(frame)
    assert len(caught.value.remedies) >= 2
    for options in caught.value.remedies:
        assert open_predictions(frame, **options).n == 400


@pytest.mark.parametrize(
    "table",
    [
        wide("topic_{}", names=range(3)) | {"label": Y},
        {"sand": P[:, 0], "silt": P[:, 1], "clay": P[:, 2], "label": NAMES[Y]},
        wide("p_{}") | {"decision": NAMES[ANSWER]},
        {"risk": (np.argsort(np.argsort(RISK)) + 0.5) / 400, "default": EVENT * 1},
        {"prob_lr": RISK**2, "prob_gbm": RISK, "label": EVENT * 1},
        {"p_value": RISK, "significant": EVENT * 1},
        {"risk_score": (100 * RISK).round(), "default": EVENT * 1},
        {"confidence": np.maximum(RISK, 1 - RISK), "label": EVENT * 1},
        {"margin": np.log(RISK / (1 - RISK)), "churned": EVENT * 1},
        wide("p_{}", np.tile(P, (2, 1))) | {"epoch": np.repeat([1, 2], 400), "label": np.tile(NAMES[Y], 2)},
        wide("p_{}") | {"is_train": np.arange(400) % 2, "label": NAMES[Y]},
    ],
)
def test_columns_that_only_resemble_predictions_are_rejected_without_a_command(table: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        open_predictions(pd.DataFrame(table))
    assert caught.value.remedies == []


def test_suspicious_values_under_documented_names_are_doubts() -> None:
    shuffled = pd.DataFrame(wide("prob_{}") | {"label": RNG.permutation(NAMES[Y])})
    own = pd.DataFrame(wide("prob_{}") | {"label": NAMES[ANSWER]})
    repeated = pd.DataFrame(wide("prob_{}") | {"label": NAMES[Y], "image_id": np.arange(400)}).loc[
        np.tile(range(400), 3)
    ]
    for frame, words in ((shuffled, "by chance"), (own, "equals the predictions"), (repeated, "3 rows per image_id")):
        (doubt,) = open_predictions(frame).reading.doubts
        assert words in doubt


@pytest.mark.parametrize("rate", [0.003, 0.02])
def test_rare_events_and_perfect_models_are_read_without_a_doubt(rate: float) -> None:
    rng = np.random.default_rng(0)
    p = rng.beta(rate * 20, (1 - rate) * 20, 300)
    rare = open_predictions(pd.DataFrame({"probability": p, "label": (rng.random(300) < p) * 1}))
    perfect = open_predictions(pd.DataFrame(wide("prob_{}", 0.999 * np.eye(3)[Y] + 0.001 / 3) | {"label": NAMES[Y]}))
    assert rare.reading.doubts == perfect.reading.doubts == ()


@pytest.mark.parametrize("n_classes", [4, 30, 300])
def test_a_model_at_chance_is_doubted_and_no_order_of_its_classes_is_suggested(n_classes: int) -> None:
    rng = np.random.default_rng(0)
    p = softmax(rng.normal(size=(2000, n_classes)))
    (doubt,) = open_predictions(
        pd.DataFrame(wide("prob_{}", p, range(n_classes)) | {"label": rng.integers(0, n_classes, 2000)})
    ).reading.doubts
    assert "by chance" in doubt


def test_the_same_table_is_read_in_each_container(tmp_path: Path) -> None:
    frame = pd.DataFrame(wide("p_{}") | {"label": NAMES[Y]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_csv(tmp_path / "a.tsv", index=False, sep="\t", encoding="utf-16")
    frame.to_csv(tmp_path / "b.csv", index=False, sep=";", decimal=",")
    frame.to_json(tmp_path / "a.json", orient="split", double_precision=15)
    frame.to_parquet(tmp_path / "a.parquet")
    structs = [[{"label": name, "prob": p} for name, p in zip(NAMES, row, strict=True)] for row in P.tolist()]
    pd.DataFrame({"probs": structs, "label": NAMES[Y]}).to_parquet(tmp_path / "b.parquet")
    texts = [[{"label": one["label"], "prob": str(one["prob"])} for one in row] for row in structs]
    rows = [json.dumps({"probs": row, "label": str(name)}) for row, name in zip(texts, NAMES[Y], strict=True)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "a.csv", "out.csv")
    (tmp_path / "pair").mkdir()
    np.save(tmp_path / "pair" / "probs.npy", P)
    np.save(tmp_path / "pair" / "labels.npy", Y)
    forms = ("a.csv", "a.tsv", "b.csv", "a.json", "a.parquet", "b.parquet", "a.jsonl", "a.zip", "pair")
    for given in (frame, *(tmp_path / name for name in forms)):
        found = open_predictions(given)
        np.testing.assert_allclose(found.probabilities, P, atol=1e-12)
        np.testing.assert_array_equal(found.labels, Y)


def test_the_documentation_lists_the_documented_names() -> None:
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    table = text[text.index("| what | documented names |") :].split("\n\n")[0]
    rows = {line.split("|")[1].strip(): set(re.findall(r"`(\w+)`", line.split("|")[2])) for line in table.splitlines()}
    assert set(SCORES) <= rows["scores"]
    assert rows["labels"] == {*LABELS, *OTHER_LABELS}
    assert rows["weights"] == set(WEIGHTS)
