"""Names of arrays and columns, frames and objects: what is read without an option, and which option an error names."""

from __future__ import annotations

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
from calibrant.core.errors import InputError
from calibrant.data import open_parts, open_predictions

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
    with pytest.raises(InputError, match="give --kind"):
        open_predictions(file, scores="my_score", labels="died")
    with pytest.raises(InputError, match=r"has no typo for --labels, only .*died"):
        open_predictions(file, scores="my_score", labels="typo", kind="logits")


def test_one_hot_labels_are_not_taken_for_many_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", probabilities=P, labels=np.eye(3)[LABELS])
    with pytest.raises(InputError, match="--task multilabel"):
        open_predictions(tmp_path / "a.npz")
    assert open_predictions(tmp_path / "a.npz", task="multilabel").task == "multilabel"
    with pytest.raises(InputError, match="label_shares"):
        cal.Predictions(logits=LOGITS, labels=np.eye(3)[LABELS])
    assert cal.Predictions(probabilities=P, label_shares=np.eye(3)[LABELS]).label_shares is not None


@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        ("probability,prob_a,prob_b,label", "0.5,0.5,0.5,0", r"--scores 'prob_\*' or --scores probability"),
        ("probability,label", "0.5,dead", "--class-names NEGATIVE,POSITIVE"),
        ("probability,label", "0.5,", "label is missing in row 0"),
        ("confidence,correct", "93,true", "divide by 100"),
        ("logit_a,prob_a,label", "0.5,0.5,1", "--kind"),
        ("target,y_true,probability", "0,1,0.5", "--labels"),
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
