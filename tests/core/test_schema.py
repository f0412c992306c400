"""`Schema`: which column is which class, what a label stands for, and when two identifiers are the same."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calibrant
from calibrant.core.errors import InputError
from calibrant.core.schema import ONE_SIDE, Schema, class_key, identifier, identifiers, number_order


def schema(*names: str, task: str = "multiclass", n: int | None = None) -> Schema:
    return Schema(task, "logits", n or len(names), names or None)


def test_the_same_names_in_another_order_are_permuted() -> None:
    found = schema("a", "b", "c").align(schema("c", "a", "b"))
    assert (found.order, found.note) == ([1, 2, 0], "")
    assert schema("a", "b").align(schema("a", "b")).order is None


def test_other_names_are_refused_and_both_sides_printed() -> None:
    with pytest.raises(InputError, match=r"val has the classes a, b, c, but test has x, y, z"):
        schema("a", "b", "c").align(schema("x", "y", "z"), "val", "test")
    with pytest.raises(InputError, match="val has 2 classes, but test has 3"):
        schema("a", "b").align(schema("a", "b", "c"), "val", "test")
    with pytest.raises(InputError, match="binary task, but test is multiclass"):
        schema("a", "b", task="binary").align(schema("a", "b"), "val", "test")


@pytest.mark.parametrize(
    ("mine", "theirs", "order"),
    [
        (("0.0", "10.0", "2.0"), ("2", "0", "10"), [1, 2, 0]),
        (("+1", "-1"), ("-1", "1"), [1, 0]),
        (("1e0", "2e0"), ("2", "1"), [1, 0]),
        (("True", "False"), ("0", "1"), [1, 0]),
        (("True", "False"), ("false", "true"), [1, 0]),
    ],
)
def test_spellings_of_a_number_are_one_name(mine: tuple[str, ...], theirs: tuple[str, ...], order: list[int]) -> None:
    assert schema(*mine).align(schema(*theirs)).order == order


def test_codes_with_leading_zeros_are_not_numbers() -> None:
    assert class_key("01") == "01"
    with pytest.raises(InputError, match="01, 02"):
        schema("01", "02").align(schema("1", "2"))


def test_a_matrix_without_names_is_numbered() -> None:
    bare = schema(n=3)
    assert bare.align(schema("2", "0", "1")).order == [1, 2, 0]
    assert schema("2", "0", "1").align(bare).order == [2, 0, 1]
    found = bare.align(schema("cat", "dog", "owl"))
    assert (found.order, found.note) == (None, ONE_SIDE)
    assert number_order(["0", "2", "1"]) == [0, 2, 1]
    assert number_order(["1", "2", "3"]) is None


def test_the_positive_class_of_one_score_is_not_flipped() -> None:
    with pytest.raises(InputError, match="positive class 'dead', but test has 'alive'"):
        schema("alive", "dead", task="binary").align(schema("dead", "alive", task="binary"), "val", "test")


def test_two_classes_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match="two classes are called 'a'"):
        schema("a", "a").align(schema("a", "b"))
    assert schema("1", "1.0").keys == ["1", "1.0"]


@pytest.mark.parametrize(
    ("names", "labels", "places"),
    [
        (("2", "0", "1"), [2, 0, 1, 2], [0, 1, 2, 0]),
        (("2", "0", "1"), ["2", "0", "1"], [0, 1, 2]),
        (("True", "False"), [True, False], [0, 1]),
        (("True", "False"), [1, 0], [0, 1]),
        (("0.0", "10.0", "2.0"), [10, 2, 0], [1, 2, 0]),
        (("0.0", "10.0", "2.0"), [10.0, 2.0, 0.0], [1, 2, 0]),
        (("+1", "-1"), [1, -1], [0, 1]),
        (("1", "2", "3"), [1, 2, 3], [0, 1, 2]),
        (("cat", "dog"), [0, 1], [0, 1]),
        (("cat", "dog"), ["Dog", " cat "], [1, 0]),
        (("cat", "dog"), ["0", "1"], [0, 1]),
        (("cat", "Cat"), ["Cat", "cat"], [1, 0]),
        (("no", "yes"), [True, False], [1, 0]),
    ],
)
def test_labels_are_matched_to_names_first(names: tuple[str, ...], labels: list[object], places: list[int]) -> None:
    assert schema(*names).labels(labels).tolist() == places


@pytest.mark.parametrize(
    ("names", "labels", "words"),
    [
        (("1", "2", "3"), [0, 1, 2], "got '0' in row 0: the names are 1, 2, 3"),
        (("a", "b", "1"), [0, 1], "got '0' in row 0"),
        (("cat", "dog"), ["cat", "1"], "holds names and numbers: '1' in row 1"),
        (("cat", "dog"), np.array(["cat", None], dtype=object), "is missing in row 1"),
        (("cat", "dog"), np.array(["cat", 1], dtype=object), "holds names and numbers: '1' in row 1"),
        ((), [1, 2, 3], "reach 3, but the scores have columns 0..2: if the classes are numbered from 1"),
        ((), ["cat"], "to use names, give class_names="),
        ((), [0.5], "whole numbers"),
    ],
)
def test_labels_that_cannot_be_told_name_the_row(names: tuple[str, ...], labels: object, words: str) -> None:
    with pytest.raises(InputError, match=words.replace("..", r"\.\.")):
        schema(*names, n=len(names) or 3).labels(labels)


def test_outcomes_and_several_labels() -> None:
    one = schema(task="binary", n=2)
    assert one.labels(["yes", "no", "TRUE", "0.0"]).tolist() == [1, 0, 1, 0]
    assert schema("alive", "dead", task="binary").labels(["dead", "alive"]).tolist() == [1, 0]
    many = schema("a", "b", task="multilabel")
    assert many.labels([["yes", "no"]]).tolist() == [[1, 0]]
    with pytest.raises(InputError, match="missing in row 1"):
        one.labels(np.array(["yes", None], dtype=object))


def test_identifiers_are_exact() -> None:
    ids = [1234567890123456789, 1234567890123456790, 1234567890123456789]
    assert identifiers(ids)[1] == ["1234567890123456789", "1234567890123456790"]
    assert identifiers(np.array([1234561.0, 1234562.0]))[1] == ["1234561", "1234562"]
    assert identifiers(["01", "1", "001"])[1] == ["01", "1", "001"]
    assert identifiers([("x & y", "z"), ("x", "y & z")])[0].tolist() == [0, 1]
    both = identifiers({"a": ["x & y", "x", "x & y"], "b": ["z", "y & z", "z"]}, 3)
    assert both[0].tolist() == [0, 1, 0]
    assert len(set(both[1])) == 2


def test_one_identifier_has_one_text_whatever_holds_it() -> None:
    assert {identifier(value) for value in (1, 1.0, "1", np.int64(1), np.float32(1))} == {"1"}
    column = pd.Series([7, None, 7, 9])
    codes, names = identifiers(column.to_numpy(), 4)
    assert (codes.tolist(), names) == ([0, 1, 0, 2], ["7", "missing", "9"])
    assert identifiers(pd.array(["a", pd.NA, ""], dtype=object), 3)[1] == ["a", "missing"]
    assert identifiers([1, "1", 1.0])[0].tolist() == [0, 0, 0]
    with pytest.raises(InputError, match="ward has shape"):
        identifiers([1, 2], 3, "ward")


whole = st.integers(-(10**24), 10**24)


@given(st.lists(whole, min_size=2, max_size=20, unique=True))
def test_distinct_whole_numbers_stay_distinct_classes_and_identifiers(numbers: list[int]) -> None:
    for spelled in (numbers, list(map(str, numbers)), [f"{number}.0" for number in numbers]):
        assert len({class_key(value) for value in spelled}) == len(numbers)
        assert [class_key(value) for value in spelled] == list(map(str, numbers))
    for values in (numbers, list(map(str, numbers)), np.array(numbers, object)):
        codes, names = identifiers(values)
        assert codes.tolist() == list(range(len(numbers)))
        assert names == list(map(str, numbers))


@given(st.lists(whole, min_size=2, max_size=6, unique=True), st.randoms())
def test_labels_find_their_class_whatever_its_digits(numbers: list[int], random: Random) -> None:
    names = tuple(map(str, numbers))
    places = [random.randrange(len(names)) for _ in range(30)]
    assert schema(*names).labels([names[place] for place in places]).tolist() == places


@given(st.floats(allow_nan=False, allow_infinity=False, width=32), st.sampled_from([np.float32, np.float64]))
def test_a_number_has_one_identifier_whatever_type_holds_it(value: float, kind: type) -> None:
    assert identifier(kind(value)) == identifier(int(value) if value == int(value) else str(kind(value)))
    assert class_key(kind(value)) == class_key(str(kind(value)))


def test_a_prediction_next_to_its_label_is_wrong(tmp_path: Path) -> None:
    ids = (121932631112635261, 121932631112635260)
    rows = [f"{ids[0]},{ids[place % 2]},0.{8 + place % 2}\n" for place in range(60)]
    (tmp_path / "answers.csv").write_text("prediction,label,confidence\n" + "".join(rows))
    assert calibrant.open_predictions(tmp_path / "answers.csv").labels.mean() == 0.5


def test_columns_named_by_19_digits_are_classes(tmp_path: Path) -> None:
    ids = [1219326311126352610 + place for place in range(3)]
    scores, labels = np.random.default_rng(0).dirichlet(np.ones(3), 60).round(6), np.arange(60) % 3
    frame = pd.DataFrame(scores, columns=[f"prob_{one}" for one in ids])
    frame.assign(label=np.array(ids)[labels]).to_csv(tmp_path / "wide.csv", index=False)
    found = calibrant.open_predictions(tmp_path / "wide.csv")
    assert found.class_names == tuple(map(str, ids))
    np.testing.assert_array_equal(found.labels, labels)
