"""Every task in every format through measure, fit, apply and compare: the answer in memory, or one line and exit 2."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibrant as cal
from calibrant.data import open_predictions

N, K = 80, 3
Arrays = dict[str, np.ndarray]


def rows(task: str, seed: int) -> Arrays:
    """Scores and labels of a task by the names that files use."""
    rng = np.random.default_rng(seed)
    if task == "multiclass":
        labels = rng.integers(0, K, N)
        return {"logits": rng.normal(size=(N, K)) + 1.5 * np.eye(K)[labels], "labels": labels}
    if task == "multilabel":
        logits = rng.normal(size=(N, K)) * 2
        labels = (rng.random((N, K)) < 1 / (1 + np.exp(-logits / 2))).astype(np.int64)
        return {"probabilities": 1 / (1 + np.exp(-logits)), "labels": labels}
    score = rng.normal(size=N) * 2
    outcome = rng.random(N) < 1 / (1 + np.exp(-score / 2))
    if task == "pairs":
        return {"confidence": 1 / (1 + np.exp(-score)), "correct": outcome}
    return {"probability": 1 / (1 + np.exp(-score)), "labels": outcome.astype(np.int64)}


def in_memory(arrays: Arrays) -> cal.Predictions:
    named = {("probabilities" if name == "probability" else name): array for name, array in arrays.items()}
    return cal.Predictions(**named)


def wide(arrays: Arrays) -> dict[str, np.ndarray]:
    """One column per number, as tables have them."""
    prefix = {"logits": "logit_", "probabilities": "prob_", "labels": "label_"}
    found = {"note": np.array([f"row, {row}" for row in range(N)])}
    for name, array in arrays.items():
        if array.ndim == 1:
            found[{"labels": "label"}.get(name, name)] = array
        else:
            found.update({f"{prefix[name]}{'xyz'[place]}": array[:, place] for place in range(K)})
    return found


def save_npz(path: Path, arrays: Arrays) -> None:
    np.savez(path, **arrays)


def save_npy(path: Path, arrays: Arrays) -> None:
    for name, array in arrays.items():
        np.save(path.with_name(f"{path.stem}_{name}.npy"), array)


def save_parquet(path: Path, arrays: Arrays) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({name: pa.array(array.tolist()) for name, array in arrays.items()}), path)


def save_wide_parquet(path: Path, arrays: Arrays) -> None:
    import pandas as pd

    pd.DataFrame(wide(arrays)).to_parquet(path)


def save_safetensors(path: Path, arrays: Arrays) -> None:
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)


def csv_bytes(arrays: Arrays) -> bytes:
    import pandas as pd

    return pd.DataFrame(wide(arrays)).to_csv(index=False).encode()


def save_csv(path: Path, arrays: Arrays) -> None:
    path.write_bytes(csv_bytes(arrays))


def save_packed_csv(path: Path, arrays: Arrays) -> None:
    path.write_bytes(gzip.compress(csv_bytes(arrays)))


def save_jsonl(path: Path, arrays: Arrays) -> None:
    lines = (json.dumps({name: array[row].tolist() for name, array in arrays.items()}) for row in range(N))
    path.write_text("\n".join(lines))


def save_torch(path: Path, arrays: Arrays) -> None:
    import torch

    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)


def save_pickle(path: Path, arrays: Arrays) -> None:
    path.write_bytes(pickle.dumps(arrays))


FORMATS: dict[str, Callable[[Path, Arrays], None]] = {
    "npz": save_npz,
    "npy": save_npy,
    "parquet": save_parquet,
    "wide.parquet": save_wide_parquet,
    "safetensors": save_safetensors,
    "csv": save_csv,
    "csv.gz": save_packed_csv,
    "jsonl": save_jsonl,
    "pt": save_torch,
    "pkl": save_pickle,
}
METHOD = {"multiclass": "vs", "binary": "platt", "pairs": "ts", "multilabel": "platt"}


def close(found: Any, expected: Any, digits: int | None = None) -> None:
    tolerance = {"atol": 1e-12} if digits is None else {"rtol": 10.0 ** (1 - digits)}
    np.testing.assert_allclose(found, expected, **({"rtol": 0} | tolerance))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("task", METHOD)
def test_files_give_the_answer_in_memory(task: str, form: str, tmp_path: Path, run: Any) -> None:
    val, test = rows(task, 1), rows(task, 2)
    files = [tmp_path / f"{name}.{form}" for name in ("val", "test")]
    for file, arrays in zip(files, (val, test), strict=True):
        FORMATS[form](file, arrays)
    method = METHOD[task]

    code, out, err = run("measure", files[0], "--resamples", 20, "--json")
    assert code == 0, err
    shown, expected = json.loads(out), cal.measure(in_memory(val), resamples=20)
    assert (shown["task"], shown["n"], shown["verdict"]) == (task, N, expected.verdict)
    for name, estimate in expected.metrics.items():
        close(shown["metrics"][name]["value"], estimate.value)

    artifact, output = tmp_path / "cal.safetensors", tmp_path / f"out.{'npz' if form in ('pt', 'pkl') else form}"
    code, out, err = run("fit", files[0], "-m", method, "-o", artifact, "--json")
    assert code == 0, err
    from calibrant.calibrators.prepare import task_method

    memory = in_memory(val)
    fitted = task_method(method, task).fit(memory.logits, memory.labels)
    close(cal.load(artifact).transform(in_memory(test).logits), fitted.transform(in_memory(test).logits))

    code, out, err = run("apply", artifact, files[1], "-o", output, "--json")
    assert code == 0, err
    written, given = open_predictions(output), in_memory(test)
    assert (written.task, written.kind) == (task, given.kind)
    answers = fitted.transform(given.logits) if given.kind == "logits" else fitted.predict_proba(given.logits)
    # apply writes seven digits to text
    text = 7 if "csv" in form or form == "jsonl" else None
    close(written.values, answers[:, 1] if written.flat and answers.ndim == 2 else answers, text)
    np.testing.assert_array_equal(written.labels, given.labels)
    if "note" in wide(test) and form in ("csv", "csv.gz", "wide.parquet"):
        np.testing.assert_array_equal(written.extras["note"].read(), wide(test)["note"])

    code, out, err = run("compare", *files, "-m", f"none,{method}", "--resamples", 20, "--json")
    assert code == 0, err
    table = json.loads(out)
    again = cal.compare(in_memory(val), in_memory(test), ["none", method], resamples=20)
    assert (table["task"], table["best"]) == (task, again.best)
    for shown_row, row in zip(table["rows"], again.rows, strict=True):
        assert shown_row["error"] is None
        for name, estimate in row.metrics.items():
            close(shown_row["metrics"][name]["value"], estimate.value)


WRONG = [
    ("multiclass", ("--task", "binary"), "one score per row, or two columns"),
    ("multiclass", ("--task", "pairs"), "one confidence per row"),
    ("multiclass", ("--task", "multilabel"), "label"),
    ("binary", ("--task", "multiclass"), "one column per class"),
    ("pairs", ("--task", "multilabel"), "has no labels, only confidence"),
    ("multilabel", ("--task", "binary"), "one score per row, or two columns"),
    ("binary", ("--task", "sorted"), "task must be one of"),
    ("binary", ("--kind", "logits"), ""),
]


@pytest.mark.parametrize("form", ["npz", "csv", "parquet", "jsonl", "pt"])
@pytest.mark.parametrize(("task", "options", "words"), WRONG)
def test_other_cells_are_one_line(
    task: str, options: tuple[str, ...], words: str, form: str, tmp_path: Path, run: Any
) -> None:
    file = tmp_path / f"val.{form}"
    FORMATS[form](file, rows(task, 1))
    for verb in (("measure",), ("fit", "-m", METHOD[task], "-o", tmp_path / "cal.safetensors"), ("compare", file)):
        code, _, err = run(verb[0], file, *verb[1:], *options)
        assert code == 2, (verb, err)
        assert err.startswith("error: ")
        suggestion = err.splitlines()[1:]
        assert len(suggestion) <= 1
        assert all(line.startswith(f"try: calibrant {verb[0]} ") for line in suggestion)
        assert words in err


@pytest.mark.parametrize(
    ("task", "method"),
    [("multilabel", "cts"), ("multiclass", "platt"), ("binary", "multilabel"), ("pairs", "typo")],
)
def test_methods_that_do_not_serve_a_task_say_so(task: str, method: str, tmp_path: Path, run: Any) -> None:
    file = tmp_path / "val.npz"
    save_npz(file, rows(task, 1))
    code, _, err = run("fit", file, "-m", method, "-o", tmp_path / "cal.safetensors")
    assert code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    from calibrant.calibrators.prepare import task_names

    assert method not in task_names(task)
