"""Columns moved with their names, rows moved with their ids, numbers spelled otherwise: no verb gives another answer.

Every reader × every task × measure, compare, fit, apply, shift; and other names are refused by all that join two files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

N, NAMES = 120, ("cat", "dog", "emu")
ORDER, ROWS = [2, 0, 1], np.random.default_rng(5).permutation(N)
Run = Callable[..., tuple[int, str, str]]


def table(task: str, seed: int, names: tuple[str, ...] = NAMES) -> pd.DataFrame:
    """Rows of a task as a wide table with ids; labels are written as names are."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(N, 3))
    ids = {"id": [f"r{place:03d}" for place in range(N)]}
    if task == "multiclass":
        labels = rng.integers(0, 3, N)
        logits += 1.5 * np.eye(3)[labels]
        scores = {f"logit_{name}": logits[:, place] for place, name in enumerate(names)}
        return pd.DataFrame(ids | scores | {"label": [names[label] for label in labels]})
    p = 1 / (1 + np.exp(-logits))
    happened = (rng.random((N, 3)) < 1 / (1 + np.exp(-logits / 2))).astype(int)
    if task == "multilabel":
        scores = {f"prob_{name}": p[:, place] for place, name in enumerate(names)}
        return pd.DataFrame(ids | scores | {f"label_{name}": happened[:, place] for place, name in enumerate(names)})
    if task == "pairs":
        return pd.DataFrame(ids | {"confidence": p[:, 0], "correct": happened[:, 0]})
    return pd.DataFrame(ids | {"probability": p[:, 0], "label": happened[:, 0]})


def moved(frame: pd.DataFrame) -> pd.DataFrame:
    """The columns in another order and the rows too, each with its name and id."""
    columns = [name for name in frame if name != "id"]
    many = [name for name in columns if name.startswith(("logit_", "prob_"))]
    rest = [name for name in columns if name not in many]
    return frame[[*rest[::-1], *(many[place] for place in ORDER[: len(many)]), "id"]].iloc[ROWS]


def save_csv(frame: pd.DataFrame, path: Path) -> None:
    frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")


def save_jsonl(frame: pd.DataFrame, path: Path) -> None:
    """One object per row; several scores are an object of names and numbers, as language-model tools write them."""
    lines = []
    for row in frame.to_dict("records"):
        for prefix, key in (("logit_", "logits"), ("prob_", "probabilities"), ("label_", "labels")):
            named = {name.removeprefix(prefix): row.pop(name) for name in list(row) if name.startswith(prefix)}
            row.update({key: named} if named else {})
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines))


def save_npz(frame: pd.DataFrame, path: Path) -> None:
    """Arrays with the class names beside them."""
    arrays: dict[str, Any] = {}
    for prefix, key in (("logit_", "logits"), ("prob_", "probabilities"), ("label_", "labels")):
        columns = [name for name in frame if name.startswith(prefix)]
        if columns:
            arrays.setdefault("class_names", [name.removeprefix(prefix) for name in columns])
            columns = [f"{prefix}{name}" for name in arrays["class_names"]]
            arrays[key] = frame[columns].to_numpy()
    for name, key in (("probability", "probabilities"), ("confidence", "confidence"), ("correct", "correct")):
        arrays |= {key: frame[name].to_numpy()} if name in frame else {}
    if "label" in frame:
        arrays["labels"] = np.array(frame["label"].tolist())
    np.savez(path, **arrays)


FORMS: dict[str, Callable[[pd.DataFrame, Path], None]] = {
    "csv": save_csv,
    "tsv": save_csv,
    "parquet": lambda frame, path: frame.to_parquet(path, index=False),
    "feather": lambda frame, path: frame.reset_index(drop=True).to_feather(path),
    "jsonl": save_jsonl,
    "npz": save_npz,
}
TASKS = {"multiclass": "vs", "binary": "platt", "pairs": "platt", "multilabel": "platt"}


def files(folder: Path, form: str, task: str, names: tuple[str, ...] = NAMES, other: Any = moved) -> list[Path]:
    """VAL, TEST, and TEST with everything moved."""
    found = [folder / f"{name}.{form}" for name in ("val", "test_0", "test_1")]
    frames = [table(task, 0), table(task, 1), other(table(task, 1, names))]
    for path, frame in zip(found, frames, strict=True):
        FORMS[form](frame, path)
    return found


def answer(run: Run, *arguments: Any) -> Any:
    code, out, err = run(*arguments)
    assert code == 0, err
    return json.loads(out)


def figures(found: dict[str, Any]) -> dict[str, float]:
    return {name: one["value"] for name, one in found["metrics"].items()}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("form", FORMS)
def test_the_answer_does_not_depend_on_the_order(form: str, task: str, tmp_path: Path, run: Run) -> None:
    val, test, other = files(tmp_path, form, task)
    method, quick = TASKS[task], ("--resamples", 20, "--json")
    first, second = (answer(run, "measure", path, "--task", task, *quick) for path in (test, other))
    assert figures(second) == pytest.approx(figures(first), rel=1e-9, abs=1e-12)
    pair = [answer(run, "compare", val, path, "--methods", method, "--task", task, *quick) for path in (test, other)]
    for row, again in zip(pair[0]["rows"], pair[1]["rows"], strict=True):
        assert (row["error"], again["error"]) == (None, None)
        assert figures(again) == pytest.approx(figures(row), rel=1e-7, abs=1e-12)

    artifact, outputs = tmp_path / "cal.safetensors", []
    answer(run, "fit", val, "--method", method, "--task", task, "-o", artifact, "--json")
    for path in (test, other):
        out = path.with_suffix(".out.csv")
        answer(run, "apply", artifact, path, "--task", task, "-o", out, "--json")
        outputs.append(pd.read_csv(out).filter(regex="^(prob|confidence)"))
    expected = outputs[0].iloc[ROWS].reset_index(drop=True)
    pd.testing.assert_frame_equal(outputs[1][list(expected)], expected, check_dtype=False)

    refit = tmp_path / "moved.safetensors"
    answer(run, "fit", other, "--method", method, "--task", task, "-o", refit, "--json")
    answer(run, "fit", test, "--method", method, "--task", task, "-o", artifact, "--json")
    for path, name in ((artifact, "a.csv"), (refit, "b.csv")):
        answer(run, "apply", path, val, "--task", task, "-o", tmp_path / name, "--json")
    first, second = (pd.read_csv(tmp_path / name).filter(regex="^(prob|confidence)") for name in ("a.csv", "b.csv"))
    pd.testing.assert_frame_equal(first, second[list(first)], check_dtype=False, rtol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_shift_pairs_columns_by_name(form: str, tmp_path: Path, run: Run) -> None:
    val, test, other = files(tmp_path, form, "multiclass")
    artifact = tmp_path / "cal.safetensors"
    answer(run, "fit", val, "--method", "vs", "-o", artifact, "--json")
    found = answer(run, "shift", artifact, test, other, "--json")
    assert [curve[0] for curve in found["mean"]] == pytest.approx([curve[-1] for curve in found["mean"]], rel=1e-9)


@pytest.mark.parametrize("spelling", [("0", "1", "2"), ("0.0", "1.0", "2.0"), ("+0", "+1", "+2"), ("0", "1e0", "2")])
@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl", "npz"])
def test_the_spelling_of_numbers_does_not_matter(form: str, spelling: Any, tmp_path: Path, run: Run) -> None:
    accuracy = []
    for place, names in enumerate([("0", "1", "2"), spelling]):
        frame = table("multiclass", 1, names)
        if place:
            frame = moved(frame)
        frame["label"] = frame["label"].astype(float).astype(int)
        path = tmp_path / f"{place}.{form}"
        FORMS[form](frame, path)
        accuracy.append(figures(answer(run, "measure", path, "--resamples", 20, "--json")))
    assert accuracy[1] == pytest.approx(accuracy[0], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
@pytest.mark.parametrize("form", FORMS)
def test_other_names_are_refused(form: str, task: str, tmp_path: Path, run: Run) -> None:
    others = ("cat", "dog", "fox")
    val, _, other = files(tmp_path, form, task, others, other=lambda frame: frame)
    artifact = tmp_path / "cal.safetensors"
    answer(run, "fit", val, "--method", TASKS[task], "--task", task, "-o", artifact, "--json")
    joins: list[tuple[Any, ...]] = [
        ("compare", val, other, "--methods", TASKS[task], "--task", task),
        ("apply", artifact, other, "--task", task, "-o", tmp_path / "out.csv"),
    ]
    for words in [*joins, ("shift", artifact, other)] if task == "multiclass" else joins:
        code, _, err = run(*words)
        assert code == 2, words[0]
        assert "emu" in err, err
        assert "fox" in err, err
