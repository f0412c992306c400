"""Forty files as people's tools write them: how many are measured right at the first documented try?

Each file is written by the tool itself (torch, numpy, pandas, polars, scikit-learn, pyarrow, safetensors, the Trainer of
Hugging Face, an API of a language model, R's write.csv), measured with `calibrant measure FILE OPTIONS --json`, and compared
with the figures of the arrays in memory. The options are those of docs/data.md. A file that is refused must name the
option to give; none may be measured wrongly.

    python benchmarks/realistic_files.py [FOLDER]
"""

# ruff: noqa: E501 (one line per file reads as a table)

from __future__ import annotations

import contextlib
import gzip
import io
import json
import pickle
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file

import calibrant as cal

N = 300
NAMES = ("bird", "cat", "dog", "owl")


def truth() -> SimpleNamespace:
    """One set of rows of every task."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, N)
    logits = (2 * rng.normal(size=(N, 4)) + 2.5 * np.eye(4)[labels]).astype(np.float32)
    z = logits.astype(np.float64)
    probabilities = np.exp(z - z.max(1, keepdims=True))
    probabilities /= probabilities.sum(1, keepdims=True)
    score = 2 * rng.normal(size=N)
    many = 2 * rng.normal(size=(N, 3)) - 1
    return SimpleNamespace(
        labels=labels,
        logits=logits,
        probabilities=probabilities,
        words=np.array(NAMES)[labels],
        risk=1 / (1 + np.exp(-score)),
        score=score,
        outcome=(rng.random(N) < 1 / (1 + np.exp(-score / 2))).astype(int),
        confidence=probabilities.max(1),
        correct=probabilities.argmax(1) == labels,
        many=1 / (1 + np.exp(-many)),
        many_labels=(rng.random((N, 3)) < 1 / (1 + np.exp(-many / 2))).astype(int),
        hospital=rng.choice(["north", "south"], N),
        weights=rng.integers(1, 4, N).astype(float),
        dense=rng.normal(size=(3, 4, 10, 10)).astype(np.float32),
        dense_labels=rng.integers(0, 4, (3, 10, 10)),
    )


@dataclass(frozen=True)
class Case:
    """A file, how it is written, the options to give, and the same rows in memory."""

    name: str
    write: Callable[[Path], Any]
    expected: Callable[[], Any]
    options: tuple[str, ...] = ()


T = truth()


def multiclass(kind: str = "logits", **more: Any) -> Callable[[], Any]:
    return lambda: cal.Predictions(**{kind: getattr(T, kind)}, labels=T.labels, **more)


def binary() -> Any:
    return cal.Predictions(probabilities=T.risk, labels=T.outcome)


def binary_logits() -> Any:
    return cal.Predictions(logits=T.score, labels=T.outcome)


def pairs() -> Any:
    return cal.Predictions(confidence=T.confidence, correct=T.correct)


def multilabel() -> Any:
    return cal.Predictions(probabilities=T.many, labels=T.many_labels)


def dense(ignored: int | None = None) -> Callable[[], Any]:
    def build() -> Any:
        labels = T.dense_labels.copy()
        if ignored is not None:
            labels[:, :2] = ignored
        return cal.Predictions(logits=T.dense, labels=labels, ignore_index=ignored)

    return build


def wide(prefix: str, values: np.ndarray, **columns: Any) -> pd.DataFrame:
    scores = {f"{prefix}{name}": values[:, place] for place, name in enumerate(NAMES[: values.shape[1]])}
    return pd.DataFrame({**columns, **scores})


def tensors(**more: Any) -> dict[str, Any]:
    return {"logits": torch.from_numpy(T.logits), "labels": torch.from_numpy(T.labels), **more}


def json_lines(rows: Any) -> Callable[[Path], Any]:
    return lambda path: path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def r_csv(frame: pd.DataFrame, path: Path, *, corner: bool = True) -> None:
    """As R's write.csv: quoted names, row names from 1; without a corner as write.table(sep=",")."""
    text = frame.rename(index=lambda row: str(row + 1)).to_csv(quoting=2, index=True)
    text = '""' + text if text.startswith(",") else text
    path.write_text(text if corner else text.partition(",")[2])


def ignoring(values: np.ndarray) -> np.ndarray:
    labels = T.dense_labels.copy()
    labels[:, :2] = 255
    return labels


def logprob_rows(style: str) -> list[dict[str, Any]]:
    letters = "ABCD"
    logprobs = np.log(T.probabilities)
    rows = []
    for row in range(N):
        answer = letters[T.labels[row]]
        listed = [{"token": letter, "logprob": float(logprobs[row, place])} for place, letter in enumerate(letters)]
        if style == "dict":
            rows.append({"logprobs": {one["token"]: one["logprob"] for one in listed}, "answer": answer})
        elif style == "top":
            ranked = sorted(listed, key=lambda one: -one["logprob"])
            rows.append({"id": row, "top_logprobs": [*ranked, {"token": "The", "logprob": -9.0}], "answer": answer})
        else:
            content = [{"token": letters[T.probabilities[row].argmax()], "top_logprobs": listed}]
            rows.append({"logprobs": {"content": content}, "answer": answer})
    return rows


def trainer_output() -> Any:
    from transformers.trainer_utils import PredictionOutput

    return PredictionOutput(predictions=T.logits, label_ids=T.labels, metrics={"test_loss": 1.0})


def sklearn_frame() -> tuple[pd.DataFrame, Callable[[], Any]]:
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(1)
    features = rng.normal(size=(N, 5)) + T.labels[:, None]
    model = LogisticRegression().fit(features[:200], T.words[:200])
    probabilities = model.predict_proba(features)
    frame = pd.DataFrame(probabilities, columns=model.classes_).assign(y_true=T.words)
    places = {name: place for place, name in enumerate(model.classes_)}
    labels = np.array([places[word] for word in T.words])
    return frame, lambda: cal.Predictions(probabilities=probabilities, labels=labels)


def cases() -> list[Case]:
    """All files."""
    half = torch.from_numpy(T.logits).to(torch.bfloat16)
    halved = half.float().numpy()
    sk_frame, sk_truth = sklearn_frame()
    risk = pd.DataFrame({"patient": range(N), "risk": T.risk, "outcome": T.outcome, "hospital": T.hospital})
    return [
        Case("torch_dict.pt", lambda p: torch.save(tensors(), p), multiclass()),
        Case("torch_grad.pt", lambda p: torch.save(tensors(extra="x") | {"logits": tensors()["logits"].requires_grad_()}, p), multiclass()),
        Case("torch_bfloat16.pt", lambda p: torch.save(tensors() | {"logits": half}, p), lambda: cal.Predictions(logits=halved, labels=T.labels)),
        Case("torch_tuple.pth", lambda p: torch.save((tensors()["logits"], tensors()["labels"]), p), multiclass()),
        Case("torch_batches.pt", lambda p: torch.save([{k: v[i : i + 64] for k, v in tensors().items()} for i in range(0, N, 64)], p), multiclass()),
        Case("torch_old_format.pt", lambda p: torch.save(tensors(), p, _use_new_zipfile_serialization=False), multiclass()),
        Case("torch_dense.pt", lambda p: torch.save({"logits": torch.from_numpy(T.dense), "labels": torch.from_numpy(T.dense_labels)}, p), dense()),
        Case("torch_dense_ignored.pt", lambda p: torch.save({"logits": torch.from_numpy(T.dense), "labels": torch.from_numpy(ignoring(T.dense_labels))}, p), dense(255), ("--ignore-index", "255")),
        Case("torch_bce.pt", lambda p: torch.save({"logits": torch.from_numpy(T.score)[:, None], "targets": torch.from_numpy(T.outcome).float()[:, None]}, p), binary_logits),
        Case("pickled_tensors.pkl", lambda p: p.write_bytes(pickle.dumps(tensors())), multiclass()),
        Case("safetensors_torch.safetensors", lambda p: save_file(tensors(), p), multiclass()),
        Case("trainer_predictions.npz", lambda p: np.savez(p, predictions=T.logits, label_ids=T.labels), multiclass()),
        Case("trainer_output.pkl", lambda p: p.write_bytes(pickle.dumps(trainer_output())), multiclass()),
        Case("numpy_probabilities.npz", lambda p: np.savez_compressed(p, probs=T.probabilities, labels=T.labels), multiclass("probabilities")),
        Case("numpy_own_names.npz", lambda p: np.savez(p, y_hat=T.logits, truth=T.labels), multiclass(), ("--scores", "y_hat", "--labels", "truth", "--kind", "logits")),
        Case("numpy_float_labels.npz", lambda p: np.savez(p, logits=T.logits, labels=T.labels.astype(float)), multiclass()),
        Case("numpy_risk.npz", lambda p: np.savez(p, probability=T.risk, labels=T.outcome), binary),
        Case("numpy_multilabel.npz", lambda p: np.savez(p, probabilities=T.many, labels=T.many_labels), multilabel),
        Case("pandas_wide.csv", lambda p: wide("logit_", T.logits.astype(float), label=T.labels).to_csv(p), multiclass()),
        Case("pandas_names.csv", lambda p: wide("prob_", T.probabilities, label=T.words).to_csv(p, index=False), multiclass("probabilities")),
        Case("pandas_wide.parquet", lambda p: wide("probability_", T.probabilities, label=T.labels, file="x.png").to_parquet(p), multiclass("probabilities")),
        Case("pandas_categories.parquet", lambda p: wide("prob_", T.probabilities, label=pd.Categorical(T.words)).to_parquet(p), multiclass("probabilities")),
        Case("pandas_lists.parquet", lambda p: pd.DataFrame({"probabilities": list(T.probabilities), "label": T.labels}).to_parquet(p), multiclass("probabilities")),
        Case("pandas_risk.csv", lambda p: risk.to_csv(p, index=False), binary, ("--scores", "risk")),
        Case("pandas_score.csv", lambda p: risk.rename(columns={"risk": "score"}).to_csv(p, index=False), binary, ("--scores", "score", "--kind", "probabilities")),
        Case("pandas_float_labels.csv.gz", lambda p: p.write_bytes(gzip.compress(wide("prob_", T.probabilities, label=T.labels.astype(float)).to_csv(index=False).encode())), multiclass("probabilities")),
        Case("pandas_multilabel.csv", lambda p: pd.DataFrame({**{f"prob_{c}": T.many[:, i] for i, c in enumerate("abc")}, **{f"label_{c}": T.many_labels[:, i] for i, c in enumerate("abc")}}).to_csv(p), multilabel),
        Case("pandas_weights.csv", lambda p: wide("prob_", T.probabilities, label=T.labels, count=T.weights).to_csv(p), multiclass("probabilities", weights=T.weights), ("--weights", "count")),
        Case("polars_wide.parquet", lambda p: pl.from_pandas(wide("prob_", T.probabilities, label=T.words)).write_parquet(p), multiclass("probabilities")),
        Case("polars_lists.parquet", lambda p: pl.DataFrame({"logits": T.logits.tolist(), "label": T.labels}).write_parquet(p), lambda: cal.Predictions(logits=T.logits.astype(float), labels=T.labels)),
        Case("polars_pairs.csv", lambda p: pl.DataFrame({"confidence": T.confidence, "correct": T.correct}).write_csv(p), pairs),
        Case("arrow_pairs.parquet", lambda p: pq.write_table(pa.table({"confidence": T.confidence, "correct": T.correct}), p), pairs),
        Case("sklearn_classes.csv", lambda p: sk_frame.to_csv(p, index=False), sk_truth, ("--scores", ",".join(NAMES), "--kind", "probabilities")),
        Case("llm_options.jsonl", json_lines(logprob_rows("dict")), multiclass("probabilities")),
        Case("llm_top_logprobs.jsonl", json_lines(logprob_rows("top")), multiclass("probabilities")),
        Case("llm_openai.jsonl", json_lines(logprob_rows("openai")), multiclass("probabilities")),
        Case("llm_stated_confidence.jsonl", json_lines({"question": "?", "confidence": float(c), "correct": bool(k)} for c, k in zip(T.confidence, T.correct, strict=True)), pairs),
        Case("service_log.jsonl", json_lines({"probabilities": p.tolist(), "label": int(y)} for p, y in zip(T.probabilities, T.labels, strict=True)), multiclass("probabilities")),
        Case("r_write_csv.csv", lambda p: r_csv(wide("prob.", T.probabilities, label=T.words), p), multiclass("probabilities")),
        Case("r_write_table.csv", lambda p: r_csv(wide("prob.", T.probabilities, label=T.words), p, corner=False), multiclass("probabilities")),
        Case("r_glm.csv", lambda p: r_csv(pd.DataFrame({"outcome": np.where(T.outcome, "TRUE", "FALSE"), "risk": T.risk}), p), binary, ("--scores", "risk")),
        Case("softmax_as_logits.npz", lambda p: np.savez(p, logits=T.probabilities, labels=T.labels), multiclass("probabilities"), ("--scores", "logits", "--kind", "probabilities")),
    ]  # fmt: skip


def measured(file: Path, options: tuple[str, ...]) -> tuple[int, str, str]:
    """Exit code, output and errors of `calibrant measure`."""
    from calibrant.cli.app import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    old, sys.argv = sys.argv, ["calibrant", "measure", str(file), "--json", "--resamples", "20", *options]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        sys.argv = old
    return code, out.getvalue(), err.getvalue()


def judge(case: Case, folder: Path) -> str:
    """ "right", "names the option", "refused" or "WRONG"."""
    file = folder / case.name
    case.write(file)
    code, out, err = measured(file, case.options)
    if code:
        return f"names the option: {err.strip()}" if "--" in err else f"refused: {err.strip()}"
    shown, expected = json.loads(out), cal.measure(case.expected(), resamples=20)
    same = shown["task"] == expected.task and shown["n"] == expected.n
    for name in ("ece", "nll", "brier", "accuracy", "ks_error"):
        same = same and abs(shown["metrics"][name]["value"] - expected.metrics[name].value) < 1e-6
    return "right" if same else "WRONG"


def run(folder: Path) -> dict[str, str]:
    """The verdict on every file."""
    return {case.name: judge(case, folder) for case in cases()}


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    found = run(where)
    for name, verdict in found.items():
        print(f"{name:<32} {verdict}")
    right = sum(verdict == "right" for verdict in found.values())
    print(f"{right} of {len(found)} right, {sum(v == 'WRONG' for v in found.values())} wrong")
