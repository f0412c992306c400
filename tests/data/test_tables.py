"""`.csv`, `.csv.gz` and `.parquet`: headers, columns, and files that grow when they are unpacked."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from calibrant.core.errors import InputError
from calibrant.data import Predictions, open_predictions, tables, write_predictions


def csv(folder: Path, text: str) -> Path:
    (folder / "a.csv").write_text(text, encoding="utf-8")
    return folder / "a.csv"


def test_the_documented_header(tmp_path: Path) -> None:
    path = csv(tmp_path, "label,weight,logit_cat,logit_dog\n0,1.0,2.5,-0.5\n1,2,0,1e-3\n")
    predictions = open_predictions(path)
    assert predictions.class_names == ("cat", "dog")
    np.testing.assert_array_equal(predictions.logits, [[2.5, -0.5], [0, 1e-3]])
    np.testing.assert_array_equal(predictions.weights, [1, 2])
    np.testing.assert_array_equal(predictions.labels, [0, 1])


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r\n\r\n", ""])
def test_byte_order_mark_endings_quotes_and_spaces(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(f'\ufefflabels, probability_0 ,probability_1\r\n"1", 0.25 ,"0.75"{ending}'.encode())
    predictions = open_predictions(path)
    assert (predictions.kind, predictions.class_names) == ("probabilities", None)
    np.testing.assert_array_equal(predictions.values, [[0.25, 0.75]])


def test_columns_without_a_prefix_need_their_kind(tmp_path: Path) -> None:
    path = csv(tmp_path, "a,label,b\n1,0,2\n")
    with pytest.raises(InputError, match=r"has no logits or probabilities, only a, b, label"):
        open_predictions(path)
    predictions = open_predictions(path, kind="logits", scores="a,b")
    assert predictions.class_names == ("a", "b")
    np.testing.assert_array_equal(predictions.logits, [[1, 2]])


def test_both_kinds_in_one_table(tmp_path: Path) -> None:
    path = csv(tmp_path, "label,logit_0,logit_1,prob_0,prob_1\n0,1,2,0.5,0.5\n")
    with pytest.raises(InputError, match="choose one with kind="):
        open_predictions(path)
    np.testing.assert_array_equal(open_predictions(path, kind="probabilities").values, [[0.5, 0.5]])


def test_columns_that_nobody_asked_for_may_hold_any_text(tmp_path: Path) -> None:
    path = csv(tmp_path, 'file,label,logit_0,note,logit_1\n"a, b.png",1,0.5,"say ""hi""",2\nc.png,0,-1,,3\n')
    predictions = open_predictions(path)
    np.testing.assert_array_equal(predictions.values, [[0.5, 2], [-1, 3]])
    np.testing.assert_array_equal(predictions.labels, [1, 0])


def test_a_suffix_in_capitals(tmp_path: Path) -> None:
    (tmp_path / "A.CSV.GZ").write_bytes(gzip.compress(b"label,logit_0,logit_1\n0,1,2\n"))
    np.testing.assert_array_equal(open_predictions(tmp_path / "A.CSV.GZ").values, [[1, 2]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,label,logit_0,logit_1\na,0,1,x\n", "logits in row 0, column 3 is not a number: 'x'"),
        ("file,label,logit_0,logit_1\na,0,1,2\nb,0,1\n", "3 columns in row 1, but 4 in the header"),
        ("file,label,logit_0,logit_1\na,0,1,2\na,b,0,1,2\n", "5 columns in row 1, but 4 in the header"),
        ("label,label,logit_0,logit_1\n0,0,1,2\n", "two columns called 'label'"),
        ("label,labels,logit_0,logit_1\n0,0,1,2\n", "labels and label may both be the labels"),
        ("label,logit_0,logit_1\n0,1,2\n0,1\n", "2 columns in row 1, but 3 in the header"),
        ("label,logit_0,logit_1\n0,1,2\n0,1,2,3\n", "4 columns in row 1, but 3 in the header"),
        ("label,logit_0,logit_1\n0,1,2\n1,1,abc\n", "logits in row 1, column 2 is not a number: 'abc'"),
        ("label,logit_0,logit_1\n0,1,\n", "logits in row 0, column 2 is not a number: ''"),
        ("label,logit_0,logit_1\n0.5,1,2\n", r"label must be whole numbers 0\.\.1, got 0\.5 in row 0"),
        ("label,logit_0,logit_1\ncat,1,2\n", "label must be class numbers or names, got 'cat' in row 0"),
        ("label,logit_0,logit_1\n9999999999999999999999,1,2\n", "whole numbers"),
        ("label,logit_0,logit_1\n", "0 sample"),
        ("logit_0,logit_1\n1,2\n", "has no labels"),
        ("\n\n", "is empty"),
    ],
)
def test_tables_that_are_wrong(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        _ = open_predictions(csv(tmp_path, text)).values


def test_a_large_table_waits_in_a_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SMALL_TEXT", 1000)
    monkeypatch.setattr(tables, "BLOCK_BYTES", 500)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rng = np.random.default_rng(0)
    whole = Predictions.from_arrays(logits=rng.normal(size=(300, 4)), labels=rng.integers(0, 4, 300))
    write_predictions(whole, tmp_path / "a.csv.gz")
    predictions = open_predictions(tmp_path / "a.csv.gz")
    assert len(list(tmp_path.glob("calibrant-*"))) == 1
    np.testing.assert_array_equal(predictions.logits, whole.logits)
    np.testing.assert_array_equal(np.concatenate([c.logits for c in predictions.chunks(7)]), whole.logits)
    part = predictions[10:20]
    del predictions
    np.testing.assert_array_equal(part.logits, whole.logits[10:20])
    del part
    assert not list(tmp_path.glob("calibrant-*"))


def test_a_bad_value_far_down_is_named_by_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BLOCK_BYTES", 100)
    lines = ["label,logit_0,logit_1", *("0,1,2" for _ in range(200))]
    lines[151] = "0,1,x"
    with pytest.raises(InputError, match="row 150, column 2"):
        _ = open_predictions(csv(tmp_path, "\n".join(lines))).values
    lines[151] = "0,nan,1"
    with pytest.raises(InputError, match="NaN in row 150, column 0"):
        _ = open_predictions(csv(tmp_path, "\n".join(lines))).logits


def test_a_gzip_that_unpacks_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALIBRANT_MAX_EXPANDED_BYTES", str(2**22))
    with gzip.open(tmp_path / "a.csv.gz", "wb") as file:
        file.write(b"label,logit_0,logit_1\n")
        for _ in range(40):
            file.write(b"0,0,0\n" * 2**16)
    with pytest.raises(InputError, match=r"a\.csv\.gz unpacks \d+ bytes to \d+ or more"):
        open_predictions(tmp_path / "a.csv.gz")


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_without_end(tmp_path: Path, packed: bool) -> None:
    opener = gzip.open if packed else open
    path = tmp_path / ("a.csv.gz" if packed else "a.csv")
    with opener(path, "wb") as file:  # type: ignore[operator]
        file.write(b"label,logit_0,logit_1\n")
        for _ in range(40):
            file.write(b"1" * 2**20)
    with pytest.raises(InputError, match="a line of over 16777216 bytes"):
        open_predictions(path)


def table(folder: Path, **columns: object) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=3)
    return folder / "a.parquet"


def test_lists_of_different_lengths(tmp_path: Path) -> None:
    path = table(tmp_path, logits=[[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0, 3.0]], labels=[0, 1, 0, 1])
    with pytest.raises(InputError, match="logits has 3 numbers in row 3, but 2 in the first"):
        _ = open_predictions(path).logits


def test_missing_cells(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="logits has 0 numbers in row 1, but 2 in the first"):
        _ = open_predictions(table(tmp_path, logits=[[1.0, 2.0], None], labels=[0, 1])).logits
    with pytest.raises(InputError, match="logits contains NaN in row 1, column 0"):
        _ = open_predictions(table(tmp_path, logits=[[1.0, 2.0], [None, 1.0]], labels=[0, 1])).logits
    with pytest.raises(InputError, match="labels is missing in row 1"):
        open_predictions(table(tmp_path, logits=[[1.0, 2.0], [1.0, 2.0]], labels=[0, None]))


def test_columns_of_the_wrong_type(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="logits must"):
        open_predictions(table(tmp_path, logits=["a", "b"], labels=[0, 1]))
    with pytest.raises(InputError, match="labels must"):
        open_predictions(table(tmp_path, logits=[[1.0, 2.0], [1.0, 2.0]], labels=["a", "b"]))
    with pytest.raises(InputError, match="has no logits or probabilities, only x, y"):
        open_predictions(table(tmp_path, x=[1], y=[2]))


def test_run_lengths_that_stand_for_endless_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(4_000_000)), 10)
    pq.write_table(pa.table({"logits": rows, "labels": np.zeros(400_000, np.int64)}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 50_000
    assert open_predictions(tmp_path / "a.parquet").n == 400_000
    monkeypatch.setenv("CALIBRANT_MAX_EXPANDED_BYTES", str(2**20))
    with pytest.raises(InputError, match=r"logits\S* unpacks \d+ bytes to"):
        open_predictions(tmp_path / "a.parquet")


def test_rows_are_found_across_row_groups(tmp_path: Path) -> None:
    logits = np.arange(20.0).reshape(10, 2)
    path = table(tmp_path, logits=list(logits), labels=np.zeros(10, np.int64))
    for start in range(10):
        for stop in range(start + 1, 11):
            np.testing.assert_array_equal(open_predictions(path)[start:stop].logits, logits[start:stop])


def test_a_footer_that_is_only_half_true(tmp_path: Path) -> None:
    path = table(tmp_path, logits=[[1.0, 2.0]] * 4, labels=[0, 1, 0, 1])
    data = path.read_bytes()
    path.write_bytes(data[:4] + data[12:])
    with pytest.raises(InputError):
        _ = open_predictions(path).logits


@pytest.mark.parametrize("mark", [";", "\t", "|"])
@pytest.mark.parametrize("decimal", [".", ","])
def test_separators_and_decimal_commas(tmp_path: Path, mark: str, decimal: str) -> None:
    rows = [["label", "note", "prob_a", "prob_b"], ["a", "x, y", "0.25", "0.75"], ["b", "z", "1", "0"]]
    cells = [[cell.replace(".", decimal) for cell in row] for row in rows]
    path = tmp_path / ("a.tsv" if mark == "\t" else "a.csv")
    path.write_text("\n".join(mark.join(row) for row in cells) + "\n")
    found = open_predictions(path)
    np.testing.assert_array_equal(found.probabilities, [[0.25, 0.75], [1, 0]])
    np.testing.assert_array_equal(found.labels, [0, 1])


def test_other_forms_of_tables(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame({"prob_a": [0.25, 1.0], "prob_b": [0.75, 0.0], "label": ["a", "b"]})
    frame.to_feather(tmp_path / "a.feather")
    np.testing.assert_array_equal(open_predictions(tmp_path / "a.feather").probabilities, frame[["prob_a", "prob_b"]])
    (tmp_path / "latin.csv").write_bytes("label,prob_Ü,prob_b\nÜ,0.25,0.75\n".encode("latin-1"))
    assert open_predictions(tmp_path / "latin.csv").class_names == ("Ü", "b")
    answers = pd.DataFrame({"pred": ["a", "b", "3"], "confidence": [0.9, 0.8, 0.7], "label": ["a", "a", "3.0"]})
    found = open_predictions(answers)
    assert (found.task, found.labels.tolist()) == ("pairs", [1, 0, 1])
    assert found.notes == ("correct is where pred equals label",)


def test_a_kind_alone_makes_no_classes_of_other_numbers(tmp_path: Path) -> None:
    text = "age,loss,cat,dog,label\n63,0.1,0.55,0.45,cat\n40,0.2,0.1,0.9,dog\n"
    for options in ({}, {"kind": "probabilities"}, {"kind": "probabilities", "scores": "cat,dog"}):
        assert open_predictions(csv(tmp_path, text), **options).class_names == ("cat", "dog")
    with pytest.raises(InputError, match="has no logits, only age, dog, label, loss, x"):
        open_predictions(csv(tmp_path, text.replace("cat", "x", 1)), kind="logits")
    named = "cat,dog,label,name\n0.5,0.5,cat,x\n0.1,0.9,dog,y\n"
    assert open_predictions(csv(tmp_path, named), kind="probabilities").class_names == ("cat", "dog")
    percent = "prob_cat,prob_dog,label\n25,75,cat\n50,50,dog\n"
    np.testing.assert_allclose(open_predictions(csv(tmp_path, percent)).values, [[0.25, 0.75], [0.5, 0.5]])
    with pytest.raises(InputError, match="these are percent: divide by 100; try kind='percent'"):
        _ = open_predictions(csv(tmp_path, percent), kind="probabilities").values
