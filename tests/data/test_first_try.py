"""Files as people's tools write them, read at the first try or after the suggestion."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import calibrant as cal
from calibrant.core.errors import InputError
from calibrant.data import open_predictions, write_predictions

pytest.importorskip("transformers")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "first_try.py"
RNG = np.random.default_rng(0)
NAMES = ["ant", "bee", "cow"]
LABELS = RNG.integers(0, 3, 60)
P = RNG.dirichlet([1, 1, 1], 60)
WORDS = np.array(NAMES)[LABELS]
FRAME = pd.DataFrame(P, columns=NAMES)


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("first_try", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["first_try"] = made
    spec.loader.exec_module(made)
    return made


def test_files_are_read_right_at_the_first_try_or_after_the_suggestion(script: Any, tmp_path: Path) -> None:
    found = {case.name: script.opened(case, tmp_path) for case in [*script.cases(), *script.exports()]}
    assert len(found) >= 75
    assert {name: verdict for name, verdict in found.items() if not verdict.startswith("right")} == {}
    assert sum(verdict != "right" for verdict in found.values()) == 1


def advice(given: Any, **options: Any) -> dict[str, Any]:
    """The options that the error of Python suggests."""
    with pytest.raises(InputError, match="; try ") as caught:
        open_predictions(given, **options)
    assert "--" not in str(caught.value).replace(str(given), "")
    return eval(f"dict({str(caught.value).rpartition('; try ')[2]})")


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (FRAME.assign(age=40, kind_of=WORDS), "probabilities ant … cow (rows sum to 1), labels kind_of"),
        ((100 * FRAME).add_prefix("prob_").assign(label=WORDS),
         "probabilities prob_ant … prob_cow (rows sum to 100), labels label"),
        (FRAME.add_prefix("prob_").assign(label=LABELS + 1),
         "probabilities prob_ant … prob_cow (rows sum to 1), labels label (1 is ant, 2 is bee, 3 is cow)"),
        (pd.DataFrame({"confidence": 100 * P.max(1), "correct": P.argmax(1) == LABELS}),
         "confidence confidence, labels correct"),
    ],
)  # fmt: skip
def test_clear_tables_are_read_at_once_and_state_their_reading(frame: pd.DataFrame, sentence: str) -> None:
    found = open_predictions(frame)
    assert found.reading is not None
    assert found.reading.sentence == sentence
    assert found.reading.to_dict() == {"sentence": sentence, "doubts": list(found.reading.doubts)}
    again = open_predictions(frame, **found.reading.options)
    np.testing.assert_array_equal(again.labels, found.labels)
    np.testing.assert_array_equal(again.probabilities, found.probabilities)


@pytest.mark.parametrize(
    ("frame", "options", "suggested"),
    [
        (FRAME.assign(label=WORDS), {"kind": "logits"}, {"kind": "probabilities"}),
        (FRAME.assign(label=WORDS), {"scores": "typo"}, {"scores": NAMES, "kind": "probabilities"}),
        (FRAME.assign(label=WORDS, other=WORDS[::-1]), {}, {"scores": NAMES, "labels": "label"}),
        (pd.DataFrame({"score": 15 * P[:, 0], "y": LABELS == 0}), {"scores": "score"}, {"kind": "logits"}),
    ],
)  # fmt: skip
def test_the_suggestion_works(frame: pd.DataFrame, options: dict[str, Any], suggested: dict[str, Any]) -> None:
    said = advice(frame, **options)
    assert suggested.items() <= said.items()
    assert open_predictions(frame, **said).n == 60
    assert cal.measure(frame, resamples=10, **said).n == 60


def test_labels_of_another_file(tmp_path: Path) -> None:
    scores, truth = tmp_path / "scores.csv", tmp_path / "truth.csv"
    FRAME.assign(id=range(60), hospital="x").to_csv(scores, index=False)
    solution = pd.DataFrame({"hospital": "x", "species": WORDS, "ID": range(60)})
    options: dict[str, Any] = {"kind": "probabilities", "scores": NAMES, "labels": f"{truth}#species"}
    solution.sample(frac=1, random_state=0).to_csv(truth, index=False)
    found = open_predictions(scores, **options)
    np.testing.assert_array_equal(found.labels, LABELS)
    assert found.notes[-1].endswith("are joined by ID")
    solution.assign(doctor="a").to_csv(truth, index=False)
    found = open_predictions(scores, **options | {"labels": str(truth)})
    np.testing.assert_array_equal(found.labels, LABELS)
    solution[1:].to_csv(truth, index=False)
    with pytest.raises(InputError, match="has no row with ID '0', which is row 0"):
        open_predictions(scores, **options)
    solution.drop(columns="ID").to_csv(truth, index=False)
    assert open_predictions(scores, **options).notes[-1].endswith("in the order of rows")
    solution.drop(columns="ID").assign(hospital=["y", *"x" * 59]).to_csv(truth, index=False)
    with pytest.raises(InputError, match="differ in hospital"):
        open_predictions(scores, **options)
    truth.write_text("\n".join(WORDS))
    np.testing.assert_array_equal(open_predictions(scores, **options | {"labels": truth}).labels, LABELS)


def test_named_columns_may_stand_in_any_order() -> None:
    one_hot = pd.DataFrame(np.eye(3, dtype=int)[LABELS], columns=NAMES).add_prefix("label_")
    for frame, options in (
        (pd.concat([FRAME.add_prefix("prob_"), one_hot], axis=1), {"task": "multiclass"}),
        (FRAME.add_suffix("_prob").assign(label=WORDS), {}),
        (FRAME.add_prefix("prob_").assign(label=LABELS + 1), {"class_names": {1: "ant", 2: "bee", 3: "cow"}}),
        ((100 * FRAME).add_prefix("prob_").assign(label=WORDS), {"kind": "percent"}),
    ):
        orders = [list(frame.columns), list(RNG.permutation(frame.columns))]
        for found in (open_predictions(frame[order], **options) for order in orders):
            assert found.class_names is not None
            places = [found.class_names.index(name) for name in NAMES]
            np.testing.assert_allclose(found.probabilities[:, places], P)
            np.testing.assert_array_equal(np.array(found.class_names)[found.labels], WORDS)


def test_a_table_of_one_answer_per_row_is_pairs(tmp_path: Path) -> None:
    answers = pd.DataFrame({"label": np.array(NAMES)[P.argmax(1)], "score": P.max(1)})
    pd.DataFrame({"y": WORDS}).to_csv(tmp_path / "truth.csv", index=False)
    found = open_predictions(answers, scores="score", kind="probabilities", labels=str(tmp_path / "truth.csv"))
    assert found.task == "pairs"
    np.testing.assert_array_equal(found.labels, P.argmax(1) == LABELS)


def test_predictions_take_no_options_about_files() -> None:
    given = cal.Predictions(probabilities=P, labels=LABELS)
    with pytest.raises(InputError, match="labels= is about a file or table"):
        cal.measure(given, labels="y")
    with pytest.raises(InputError, match="by= is about a file or table"):
        open_predictions(given, by="ward")


def test_whole_percent_are_divided_by_their_sum() -> None:
    percent = np.round(100 * P)
    found = cal.Predictions(percent, LABELS, kind="percent")
    np.testing.assert_allclose(found.probabilities, percent / percent.sum(axis=1, keepdims=True))
    with pytest.raises(InputError, match="not one-hot in row 0"):
        cal.Predictions(probabilities=P, labels=np.ones((60, 3)), task="multiclass")


@pytest.mark.parametrize("names", [["2", "1", "0"], ["1", "2", "3"], NAMES])
def test_one_hot_labels_are_places_whatever_the_names(names: list[str]) -> None:
    found = cal.Predictions(probabilities=P, labels=np.eye(3)[LABELS], task="multiclass", class_names=names)
    np.testing.assert_array_equal(found.labels, LABELS)


def test_a_label_can_be_left_out_where_others_have_meanings() -> None:
    frame = FRAME.add_prefix("prob_").assign(label=np.where(np.arange(60) < 5, -100, LABELS + 1))
    found = open_predictions(frame, class_names={1: "ant", 2: "bee", 3: "cow"}, ignore_index=-100)
    np.testing.assert_array_equal(found.labels, LABELS[5:])
    assert found.class_names == ("ant", "bee", "cow")


def test_columns_beside_labels_that_are_left_out(tmp_path: Path) -> None:
    rows = {"probabilities": P, "age": np.arange(60.0)}
    found = open_predictions(rows, labels=[9, *LABELS[1:]], ignore_index=9)
    np.testing.assert_array_equal(found.column("age"), np.arange(1.0, 60))
    places = {"logits": RNG.normal(size=(3, 4, 5, 5)), "labels": RNG.integers(0, 4, (3, 5, 5)), "image": np.arange(3)}
    places["labels"][0, 0] = 255
    found = open_predictions(places, ignore_index=255)
    assert (found.n, found.extras) == (70, {})
    write_predictions(found, tmp_path / "a.npz")


def test_weights_may_be_one_column_and_objects_have_a_name() -> None:
    found = open_predictions({"probabilities": P, "labels": LABELS, "weights": np.full((60, 1), 2.0)})
    assert found.weights.tolist() == [2.0] * 60
    with pytest.raises(InputError, match="the rows has no labels"):
        open_predictions({"probabilities": P}, name="the rows")


def test_arrays_of_several_lengths_are_refused_in_words() -> None:
    with pytest.raises(InputError, match="has no logits or probabilities, only age, loss"):
        open_predictions({"age": np.arange(5.0), "loss": np.arange(30.0)})
