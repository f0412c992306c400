"""Names of arrays and columns, frames and objects: what is read without an option, and which option an error names."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import calibrant as cal
from calibrant.core.errors import FitWarning, InputError
from calibrant.data import open_parts, open_predictions, write_predictions

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(40, 3))
P = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
LABELS = RNG.integers(0, 3, 40)
WORDS = np.array(["ant", "bee", "cow"])[LABELS]
RISK, EVENT = RNG.random(40), RNG.integers(0, 2, 40)
WIDE = pd.DataFrame(
    {**{f"prob_{name}": P[:, place] for place, name in enumerate(("ant", "bee", "cow"))}, "label": WORDS}
)


@pytest.mark.parametrize("frame", [WIDE, pl.from_pandas(WIDE), pa.Table.from_pandas(WIDE), dict(WIDE)], ids=str)
def test_frames_are_read_like_tables(frame: Any) -> None:
    found = open_predictions(frame)
    np.testing.assert_array_equal(found.probabilities, P)
    np.testing.assert_array_equal(found.labels, LABELS)
    assert found.class_names == ("ant", "bee", "cow")


def test_tensors_and_results_of_trainers() -> None:
    z = torch.from_numpy(LOGITS).requires_grad_()
    half = open_predictions((z.to(torch.bfloat16), torch.from_numpy(LABELS)))
    np.testing.assert_array_equal(half.logits, z.detach().to(torch.bfloat16).float().numpy())
    output = SimpleNamespace(predictions=(LOGITS, "hidden states"), label_ids=LABELS)
    np.testing.assert_array_equal(open_predictions(output).logits, LOGITS)
    assert cal.metrics.ece(torch.softmax(z, 1), torch.from_numpy(LABELS)) == pytest.approx(cal.metrics.ece(P, LABELS))


def test_columns_can_be_named(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    pd.DataFrame({"patient": range(40), "my_score": RISK, "died": EVENT, "w": 1.0, "ward": "x"}).to_csv(file)
    found = open_predictions(
        file, scores="my_score", labels="died", weights="w", by="ward", cluster="patient", kind="probabilities"
    )
    np.testing.assert_array_equal(found.probabilities, RISK)
    assert (found.task, list(found.groups), len(found.clusters)) == ("binary", ["ward"], 40)
    with pytest.raises(InputError, match=r"give kind=.*; try scores='my_score', labels='died', kind='probabilities'"):
        open_predictions(file, scores="my_score", labels="died")
    with pytest.raises(InputError, match=r"has no typo for the labels, only .*died"):
        open_predictions(file, scores="my_score", labels="typo", kind="logits")


def test_one_hot_labels_are_classes_where_probabilities_sum_to_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", probabilities=P, labels=np.eye(3)[LABELS])
    np.testing.assert_array_equal(open_predictions(tmp_path / "a.npz").labels, LABELS)
    np.savez(tmp_path / "b.npz", logits=LOGITS, labels=np.eye(3)[LABELS])
    with pytest.raises(InputError, match="for many labels"):
        open_predictions(tmp_path / "b.npz")
    assert open_predictions(tmp_path / "a.npz", task="multilabel").task == "multilabel"
    with pytest.raises(InputError, match="label_shares"):
        cal.Predictions(logits=LOGITS, labels=np.eye(3)[LABELS])
    assert cal.Predictions(probabilities=P, label_shares=np.eye(3)[LABELS]).label_shares is not None


@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        (
            "probability,prob_a,prob_b,label",
            "0.5,0.5,0.5,0",
            "probability, prob_a … prob_b: choose one with scores=",
        ),
        ("probability,label", "0.5,dead", r"give class_names=\[NEGATIVE, POSITIVE\]"),
        ("probability,label", "0.5,", "label is missing in row 0"),
        ("logit_a,prob_a,label", "0.5,0.5,1", "choose one with kind=; try kind='probabilities'"),
        ("target,y_true,probability", "0,1,0.5", "choose one with labels=; try labels='target'"),
    ],
)
def test_errors_name_the_option(tmp_path: Path, header: str, row: str, words: str) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\n{row}\n{row}\n")
    with pytest.raises(InputError, match=words) as caught:
        _ = open_predictions(tmp_path / "a.csv").values
    assert "\n" not in str(caught.value)


def test_missing_options_get_the_stated_floor(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"logprobs": {"A": -0.1, "B": -3.0}, "answer": "A"}\n{"logprobs": {"B": -0.2, "C": -2.0}, "answer": "C"}\n'
    )
    found = open_predictions(tmp_path / "a.jsonl")
    left = 1 - np.exp(-0.1) - np.exp(-3.0)
    assert found.logits[0, 2] == pytest.approx(np.log(left))
    assert found.logits[1, 0] == pytest.approx(min(np.log(1 - np.exp(-0.2) - np.exp(-2.0)), -2.0))
    assert "2 options are not listed" in found.notes[0]


def test_lists_of_tokens_may_differ_in_length(tmp_path: Path) -> None:
    token = '{"token": "%s", "logprob": %s}'
    lists = (f"{token % ('A', -0.3)}, {token % (' B', -2)}", token % ("A", -0.3))
    rows = [
        f'{{"top_logprobs": [{tokens}], "answer": "{answer}"}}\n' for tokens, answer in zip(lists, "AB", strict=True)
    ]
    (tmp_path / "a.jsonl").write_text("".join(rows))
    assert open_predictions(tmp_path / "a.jsonl").logits[0].tolist() == [-0.3, -2.0]


def test_parts_and_extras_of_every_task(tmp_path: Path) -> None:
    arrays = {"confidence": RISK, "correct": EVENT > 0, "question": np.arange(40)}
    np.savez(
        tmp_path / "a.npz", **{f"{part}_{name}": array for part in ("val", "test") for name, array in arrays.items()}
    )
    parts = open_parts(tmp_path / "a.npz")
    assert {name: (part.task, list(part.extras)) for name, part in parts.items()} == {
        "test": ("pairs", ["question"]),
        "val": ("pairs", ["question"]),
    }


def permuted(folder: Path) -> tuple[Path, Path, Path]:
    """Columns a, b, c; the same in another order; and under other names."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 3, 300)
    logits = 2 * np.eye(3)[labels] + rng.normal(size=(300, 3)) * [1, 2, 3]
    frame = pd.DataFrame({f"logit_{name}": logits[:, place] for place, name in enumerate("abc")})
    frame["label"] = np.array(list("abc"))[labels]
    files = folder / "val.csv", folder / "other_order.csv", folder / "other_names.csv"
    frame.to_csv(files[0], index=False)
    frame[["logit_c", "logit_a", "logit_b", "label"]].to_csv(files[1], index=False)
    frame["label"] = "x" + frame["label"]
    frame.rename(columns=lambda name: name.replace("logit_", "logit_x")).to_csv(files[2], index=False)
    return files


def test_columns_are_matched_by_name_in_compare_apply_and_shift(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from calibrant.cli.app import main
    from calibrant.evaluation.shift import open_shift, shift

    val, other_order, other_names = permuted(tmp_path)
    same, moved = (cal.compare(val, test, ["none", "vs"], resamples=20) for test in (val, other_order))
    for name in ("none", "vs"):
        assert moved.row(name).metrics["nll"].value == pytest.approx(same.row(name).metrics["nll"].value, abs=1e-12)
    with pytest.raises(InputError, match=r"val has the classes a, b, c, but .* has xa, xb, xc"):
        cal.compare(val, other_names, ["none"], resamples=20)
    found = open_predictions(val)
    fitted = cal.VectorScaling().fit(found.logits, found.labels)
    artifact = tmp_path / "cal.safetensors"
    cal.save(fitted, artifact, class_names=found.class_names)
    for file in (val, other_order):
        monkeypatch.setattr("sys.argv", ["calibrant", "apply", str(artifact), str(file), "-o", f"{file}.out.csv"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
    first, second = (pd.read_csv(f"{file}.out.csv") for file in (val, other_order))
    pd.testing.assert_frame_equal(first, second[list(first)])
    (tmp_path / "fog_1.csv").write_bytes(other_order.read_bytes())
    (tmp_path / "clean_0.csv").write_bytes(val.read_bytes())
    curves = shift({"vs": fitted}, open_shift([tmp_path / "clean_0.csv", tmp_path / "fog_1.csv"]), metric="nll")
    assert curves.mean[0, 0] == pytest.approx(curves.mean[0, 1])


def test_numbers_are_names_too(tmp_path: Path) -> None:
    order = [2, 0, 1]
    rows = [
        {"probabilities": {str(k): float(P[i, k]) for k in order}, "label": int(LABELS[i])} for i in range(len(LABELS))
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    wide = pd.DataFrame({f"prob_{float(k)}": P[:, k] for k in order} | {"label": LABELS})
    wide.to_csv(tmp_path / "a.csv", index=False)
    wide.to_parquet(tmp_path / "a.parquet")
    np.savez(tmp_path / "a.npz", probabilities=P[:, order], labels=LABELS, class_names=["2", "0", "1"])
    accuracy = (P.argmax(axis=1) == LABELS).mean()
    for given in (tmp_path / "a.jsonl", tmp_path / "a.csv", tmp_path / "a.parquet", tmp_path / "a.npz", wide):
        found = open_predictions(given)
        assert (found.probabilities.argmax(axis=1) == found.labels).mean() == accuracy
    right = ((P[:, 0] > 0.5) == (LABELS == 0)).mean()
    for words in (("True", "False"), ("yes", "No"), ("positive", "negative")):
        two = pd.DataFrame({f"prob_{words[0]}": P[:, 0], f"prob_{words[1]}": 1 - P[:, 0], "label": LABELS == 0})
        for labels in (two["label"], two["label"].astype(int), np.where(two["label"], *words)):
            for given in (two.assign(label=labels), two[two.columns[::-1]].assign(label=labels)):
                found = open_predictions(given)
                assert (found.probabilities.argmax(axis=1) == found.labels).mean() == right
    rows = [{"probabilities": {"True": p, "False": 1 - p}, "label": p > 0.5} for p in (0.9, 0.2)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = open_predictions(tmp_path / "a.jsonl")
    assert (found.probabilities.argmax(axis=1) == found.labels).all()


def test_identifiers_stay_exact_from_file_to_group(tmp_path: Path) -> None:
    ids = [1234567890123456700 + place for place in range(40)]
    codes = ["01", "1", "001", "1"] * 10
    frame = pd.DataFrame({"probability": RISK, "label": EVENT, "patient": ids, "ward": codes})
    frame.to_csv(tmp_path / "a.csv", index=False)
    found = open_predictions(tmp_path / "a.csv", by="ward", cluster="patient")
    assert len(set(found.clusters.tolist())) == 40
    assert len(cal.measure(found, by="ward", resamples=20).groups.groups) == 3
    fitted = cal.GroupCalibrator(cal.PlattScaling()).fit(found.logits, found.labels, groups=found.groups["ward"])
    assert sorted(fitted.groups_) == ["001", "01", "1"]
    numbers = pd.Series([1234561.0, 1234562.0, None, 1234561.0] * 10)
    fitted = cal.GroupCalibrator(cal.PlattScaling()).fit(found.logits, found.labels, groups=numbers)
    assert sorted(fitted.groups_) == ["1234561", "1234562", "missing"]
    assert (fitted.group_codes(np.array([1234562]), 1) == 1).all()


def test_two_columns_of_one_name_are_refused() -> None:
    frame = pd.DataFrame([[0.5, 0.5, 0, 1]], columns=["prob_a", "prob_b", "label", "label"])
    with pytest.raises(InputError, match="'label' 2 times"):
        open_predictions(frame)


def test_labels_that_are_mixed_or_null_name_the_row(tmp_path: Path) -> None:
    for label, words in (("null", "is missing in row 1"), ('"cat"', "got 'cat' in row 1")):
        rows = ['{"logits": [1, 2], "label": 0}', f'{{"logits": [2, 1], "label": {label}}}']
        (tmp_path / "a.jsonl").write_text("\n".join(rows))
        with pytest.raises(InputError, match=words):
            open_predictions(tmp_path / "a.jsonl")


def test_a_missing_category_is_not_another_one() -> None:
    """pyarrow gives a null of a dictionary column the first category when it makes an array of it."""
    groups = pa.array(["north", None, "south", "north"]).dictionary_encode()
    columns = {"logit_cat": [1.0, 0.0, 2.0, 0.5], "logit_dog": [0.0, 1.0, 1.0, 0.0], "label": [0, 1, 0, 1]}
    found = open_predictions(pa.table({**columns, "site": groups}), by="site").groups["site"]
    assert found.tolist() == ["north", None, "south", "north"]
    labels = pa.array(["cat", None, "dog", "cat"]).dictionary_encode()
    with pytest.raises(InputError, match="is missing in row 1"):
        open_predictions(pa.table({**columns, "label": labels}))


@pytest.mark.parametrize("suffix", ["npz", "npy", "safetensors", "parquet", "csv"])
@pytest.mark.parametrize("names", [("2", "0", "1"), ("10", "20", "30"), ("True", "False", "x")])
def test_labels_of_classes_named_by_numbers_survive_a_round_trip(
    tmp_path: Path, suffix: str, names: tuple[str, ...]
) -> None:
    if suffix == "safetensors" and "x" in names:
        pytest.skip("safetensors holds no texts")
    words = np.array(names)[LABELS]
    whole = cal.Predictions(probabilities=P, labels=words, class_names=names)
    np.testing.assert_array_equal(whole.labels, LABELS)
    write_predictions(whole, tmp_path / f"a.{suffix}")
    again = open_predictions(tmp_path / f"a.{suffix}").aligned(whole.schema)
    np.testing.assert_array_equal(again.labels, whole.labels)
    np.testing.assert_array_equal(again.probabilities, P)


@pytest.mark.parametrize("suffix", ["npz", "npy", "safetensors", "parquet", "csv", "tsv", "jsonl"])
@pytest.mark.parametrize(
    "names", [("yes", "no"), ("positive", "negative"), ("correct", "wrong"), ("T", "F"), ("b", "a")]
)
def test_labels_of_outcome_words_in_any_order_survive_a_round_trip(
    tmp_path: Path, suffix: str, names: tuple[str, ...]
) -> None:
    words = np.array(names)[(RISK < 0.5).astype(int)]
    whole = cal.Predictions(probabilities=np.column_stack([RISK, 1 - RISK]), labels=words, class_names=names)
    write_predictions(whole, tmp_path / f"a.{suffix}")
    again = open_predictions(tmp_path / f"a.{suffix}").aligned(whole.schema)
    np.testing.assert_array_equal(again.labels, whole.labels)
    np.testing.assert_allclose(again.probabilities, whole.probabilities)


def test_lines_of_json_keep_names_and_other_columns(tmp_path: Path) -> None:
    frame = pd.DataFrame({"prob_b": RISK, "prob_a": 1 - RISK, "label": np.where(EVENT, "b", "a"), "cluster": range(40)})
    given = open_predictions(frame.assign(note="x", ward=[None, 2.5] * 20), by="ward")
    write_predictions(given, tmp_path / "a.jsonl")
    again = open_predictions(tmp_path / "a.jsonl", by="ward")
    assert again.class_names == ("b", "a")
    np.testing.assert_array_equal(again.labels, given.labels)
    np.testing.assert_array_equal(again.clusters, given.clusters)
    assert again.extras["note"].read().tolist() == ["x"] * 40
    assert again.groups["ward"].tolist()[1] == 2.5


def test_numbers_of_options_and_of_loaders_are_places_whatever_the_names(tmp_path: Path) -> None:
    from calibrant.neural import collect_logits, multiple_choice

    options = multiple_choice([[-1.0, -2.0, -3.0], [-3.0, -1.0, -2.0]], [1, 2], class_names=["1", "2", "3"])
    assert options.labels.tolist() == [1, 2]
    named = multiple_choice([[-1.0, -2.0, -3.0], [-3.0, -1.0, -2.0]], ["2", "1"], class_names=["2", "1", "0"])
    assert named.labels.tolist() == [0, 1]
    loader = [(5 * torch.eye(3), torch.tensor([0, 1, 2]))]
    found = collect_logits(torch.nn.Identity(), loader, class_names=["1", "2", "0"])
    assert (found.labels.tolist(), found.class_names) == ([0, 1, 2], ("1", "2", "0"))
    with pytest.raises(InputError, match="2 names, but logits has 3 columns"):
        collect_logits(torch.nn.Identity(), loader, class_names=["1", "2"])


def test_probabilities_are_not_taken_for_logits() -> None:
    risk = np.linspace(0.02, 0.98, 60)
    event = (np.random.default_rng(0).random(60) < risk).astype(int)
    for call in (cal.measure, lambda pair: cal.compare(pair, pair, ["platt"], resamples=20)):
        with pytest.raises(InputError, match=r"all 60 lie in \[0, 1\].*kind=\"probabilities\" or kind=\"logits\""):
            call((risk, event))
    assert cal.measure((risk, event), kind="probabilities", resamples=20).n == 60
    with pytest.warns(FitWarning, match="are taken as logits"):
        cal.PlattScaling().fit(risk, event)
    two = np.column_stack([1 - risk, risk])
    fitted = cal.TemperatureScaling().fit(np.log(two), event)
    for call in (fitted.transform, fitted.predict_proba, fitted.predict):
        with pytest.raises(InputError, match=r"logits are probabilities: .* give their logarithms"):
            call(two)


def test_masked_arrays_are_refused_and_never_left_out():
    logits, labels = np.random.default_rng(0).normal(size=(6, 3)), np.arange(6) % 3
    weights = np.ma.masked_equal(np.arange(6.0), 2.0)
    for given in ((logits, labels, weights), {"logits": logits, "labels": labels, "weights": weights}):
        with pytest.raises(InputError, match="weights is a masked array with 1 masked values"):
            open_predictions(given)


@pytest.mark.parametrize("options", [{"scores": "risk"}, {"by": "ward"}, {"labels": "died"}, {"weights": "w"}])
def test_a_column_that_is_asked_for_must_be_the_only_one_of_its_name(tmp_path: Path, options: dict[str, str]) -> None:
    twice = "risk,risk,ward,ward,died,died,w,w"
    (tmp_path / "a.csv").write_text(f"probability,label,{twice}\n.9,1,.9,.2,a,b,1,0,1,2\n.2,0,.3,.4,c,d,0,1,2,1\n")
    assert open_predictions(tmp_path / "a.csv").values.tolist() == [0.9, 0.2]
    with pytest.raises(InputError, match="two columns called"):
        open_predictions(tmp_path / "a.csv", **options)


@pytest.mark.parametrize("kind", [None, "percent", "probabilities"])
def test_cells_in_percent_are_fractions_whatever_they_are_called(tmp_path: Path, kind: str | None) -> None:
    (tmp_path / "one.csv").write_text("confidence,correct\n93%,1\n20 %,0\n")
    assert open_predictions(tmp_path / "one.csv", kind=kind).values.tolist() == [0.93, 0.2]
    (tmp_path / "two.csv").write_text("prob_a,prob_b,label\n93%,7%,a\n20%,80%,b\n")
    np.testing.assert_allclose(open_predictions(tmp_path / "two.csv", kind=kind).values, [[0.93, 0.07], [0.2, 0.8]])


@pytest.mark.parametrize("kind", ["csv", "frame", "jsonl", "parquet"])
def test_an_answer_without_a_true_label_is_neither_right_nor_wrong(tmp_path: Path, kind: str) -> None:
    frame = pd.DataFrame({"confidence": [0.9, 0.8, 0.7], "prediction": ["a", "b", None], "label": ["a", None, None]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    frame.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="label is missing in row 1"):
        open_predictions(frame if kind == "frame" else tmp_path / f"a.{kind}")
    assert open_predictions(frame[:1]).labels.tolist() == [1]


def test_answers_that_never_equal_the_label_are_noted() -> None:
    found = open_predictions({"confidence": [0.9, 0.8], "prediction": ["yes", "no"], "label": [1, 0]})
    assert found.notes == ("correct is where prediction equals label: in no row; are they spelled alike?",)


@pytest.mark.parametrize("name", ["weight", "cluster", "group"])
def test_lines_of_json_must_all_have_what_changes_the_answer(tmp_path: Path, name: str) -> None:
    rows = [{"probability": 0.9, "label": 1, name: 2}, {"probability": 0.2, "label": 0}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match=f"{name} is missing in line 2"):
        open_predictions(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("column", "names"), [("prob_0", None), ("logit_No", None), ("prob_Benign", ["Benign", "Bad"])]
)
def test_scores_of_the_negative_class_alone_are_not_those_of_the_positive_one(column: str, names: list[str]) -> None:
    table = {column: [0.9, 0.2, 0.7], "label": [0, 1, 0]}
    with pytest.raises(InputError, match="alone, the negative class: give those of the other"):
        open_predictions(pd.DataFrame(table), class_names=names)
    assert open_predictions(pd.DataFrame(table), scores=column).task == "binary"
    assert open_predictions(pd.DataFrame({"prob_1": [0.9, 0.2], "label": [1, 0]})).task == "binary"


@pytest.mark.parametrize("whole", [1.0, 100.0])
def test_percent_are_not_taken_for_logits(whole):
    rng = np.random.default_rng(0)
    given, labels = whole * rng.dirichlet(np.ones(3), 40), rng.integers(0, 3, 40)
    for use in (
        lambda: cal.measure((given, labels), resamples=10),
        lambda: cal.get("ts").fit(given, labels),
        lambda: cal.get("ts").fit(np.round(100 * given / whole), labels),
        lambda: cal.measure({"logit_a": given[:, 0], "logit_b": given[:, 1], "logit_c": given[:, 2], "label": labels}),
    ):
        with pytest.raises(InputError, match=r"are probabilities: all 40 rows") as caught:
            use()
        assert "kind='logits'" not in str(caught.value)
    kind = "percent" if whole > 1 else "probabilities"
    with pytest.raises(InputError) as caught:
        cal.measure((100 * given / whole, labels), kind="probabilities")
    assert "try kind='percent'" in str(caught.value)
    found = cal.measure((given, labels), kind=kind, resamples=10).metrics["nll"].value
    assert found == pytest.approx(-np.log(given / whole)[np.arange(40), labels].mean())


def test_risks_in_percent_are_not_taken_for_logits() -> None:
    rng = np.random.default_rng(0)
    risk = rng.random(40)
    event = rng.random(40) < risk
    with pytest.raises(InputError, match=r"all 40 lie in \[0, 100\], .*: say kind=\"percent\" or kind=\"logits\""):
        cal.measure((100 * risk, event), resamples=10)
    found = cal.measure((100 * risk, event), kind="percent", resamples=10).metrics["brier"].value
    assert found == pytest.approx(((risk - event) ** 2).mean())
    for scores in (8 * risk, 100 * risk - 50):  # as logits may be
        cal.measure((scores, event), resamples=10)


def test_a_fit_of_a_table_knows_its_columns(tmp_path: Path) -> None:
    table = pd.DataFrame(np.log(P), columns=["logit_c", "logit_a", "logit_b"]).assign(
        label=np.array(["c", "a", "b"])[LABELS]
    )
    table.to_csv(tmp_path / "a.csv", index=False)
    scores = table.drop(columns="label")
    for given in (table, tmp_path / "a.csv"):
        fitted = cal.get("vs").fit(given)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            np.testing.assert_array_equal(fitted.predict_proba(scores), fitted.predict_proba(scores.to_numpy()))
        with pytest.raises(InputError, match="the columns are logit_a, logit_b, logit_c, but the fit had logit_c"):
            fitted.predict_proba(scores[["logit_a", "logit_b", "logit_c"]])
    fitted.fit(scores.to_numpy(), LABELS)
    assert fitted.predict_proba(scores.to_numpy()[:, ::-1]).shape == P.shape


def test_a_schema_knows_the_columns_of_a_table() -> None:
    frame = pd.DataFrame({"prob_a": P[:, 0], "prob_b": P[:, 1], "prob_c": P[:, 2], "label": LABELS, "site": "x"})
    found = open_predictions(frame, by="site")
    assert found.schema.columns == {"scores": ("prob_a", "prob_b", "prob_c"), "groups": ("site",)}


def test_a_map_of_a_frame_without_labels_rejects_columns_in_another_order() -> None:
    frame = WIDE.drop(columns="label").rename(columns=lambda name: name.removeprefix("prob_"))
    fitted = cal.VectorScaling().fit(np.log(frame), LABELS)
    assert fitted.feature_names_in_.tolist() == list(frame.columns)
    with pytest.raises(ValueError, match="must be in the same order"):
        fitted.transform(np.log(frame[frame.columns[::-1]]))


def test_labels_by_name_must_have_the_names_of_the_scores(tmp_path: Path) -> None:
    row = {"probabilities": {"a": 0.5, "b": 0.7}, "labels": {"a": 1, "c": 0}}
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(row)}\n" * 4)
    with pytest.raises(InputError, match="labels name a, c, but the scores a, b"):
        open_predictions(tmp_path / "a.jsonl")
