"""Files as people's tools write them: how many are measured right at the first try, and the others at the second?

Each file is written by the tool itself where it is installed (torch, numpy, pandas, polars, scikit-learn, pyarrow,
safetensors, the Trainer of Hugging Face), or as it writes them (R, Excel, Kaggle, Weka, KNIME, H2O, Spark, BigQuery, ...).
It is measured with `calibrant measure FILE OPTIONS --json`; the options are those of docs/data.md. The figures must be
those of the arrays in memory. A file that is refused must come with a suggestion; that is followed, on the command line
and in Python, and must give these figures too.

    python benchmarks/first_try.py [FOLDER]
"""

# ruff: noqa: E501 (one line per file reads as a table)

from __future__ import annotations

import contextlib
import gzip
import io
import json
import pickle
import re
import shlex
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
from calibrant.core.errors import InputError

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
    truth: str = ""
    """The content of `truth.csv`, a file of labels beside it."""


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


def text(frame: pd.DataFrame, **how: Any) -> Callable[[Path], Any]:
    return lambda path: path.write_text(frame.to_csv(index=False, **how))


def two_classes() -> Any:
    return cal.Predictions(probabilities=np.column_stack([1 - T.risk, T.risk]), labels=T.outcome)


def rounded(decimals: int, *, whole: bool = False) -> Callable[[], Any]:
    percent = np.round(100 * T.probabilities, decimals)
    return lambda: cal.Predictions(
        probabilities=percent / (percent.sum(1, keepdims=True) if whole else 100), labels=T.labels
    )


def exports() -> list[Case]:
    """Files as other tools export them."""
    p, probabilities, named = T.probabilities, multiclass("probabilities"), wide("", T.probabilities)
    answers = pd.DataFrame({"pred": np.array(NAMES)[p.argmax(1)], "confidence": T.confidence, "label": T.words})
    marked, places = wide("prob_", p), np.random.default_rng(2).permutation(N)
    solution = pd.DataFrame({"Id": places, "label": T.words[places]}).to_csv(index=False)
    in_order = pd.DataFrame({"y_true": T.words}).to_csv(index=False)
    percent = pd.DataFrame(100 * p, columns=[f"prob_{name}" for name in NAMES])
    objects = [dict(zip(NAMES, map(float, row), strict=True)) for row in p]
    lists = [
        [{"label": name, "score": value} for name, value in sorted(one.items(), key=lambda item: -item[1])]
        for one in objects
    ]
    one_hot = pd.DataFrame(np.eye(4, dtype=int)[T.labels], columns=[f"label_{name}" for name in NAMES])
    weka = pd.DataFrame(
        {
            "inst#": range(1, N + 1),
            "actual": [f"{y + 1}:{NAMES[y]}" for y in T.labels],
            "predicted": [f"{y + 1}:{NAMES[y]}" for y in p.argmax(1)],
            "error": np.where(T.correct, "", "+"),
            "prediction": T.confidence,
        }
    )
    detections = pd.DataFrame(
        {"image": "a.jpg", "class": p.argmax(1), "confidence": T.confidence, "xmin": 3.5, "tp": T.correct.astype(int)}
    )
    said, truth_csv = ("--kind", "probabilities"), ("--labels", "truth.csv")
    return [
        Case("kaggle_submission.csv", text(named.assign(id=range(N))), probabilities, (*said, *truth_csv), solution),
        Case("kaggle_one_hot_solution.csv", text(marked.assign(id=range(N))), probabilities, (*truth_csv, "--task", "multiclass"), one_hot.rename(columns=lambda name: name[6:]).assign(id=range(N)).sample(frac=1, random_state=0).to_csv(index=False)),
        Case("r_write_csv2.csv", text(wide("prob.", p, label=T.words), sep=";", decimal=","), probabilities),
        Case("r_tidymodels.csv", text(wide(".pred_", p, truth=T.words).assign(**{".pred_class": answers["pred"]})), probabilities),
        Case("r_caret.csv", text(named.assign(pred=answers["pred"], obs=T.words, rowIndex=range(1, N + 1))), probabilities, (*said, "--labels", "obs", "--scores", ",".join(NAMES))),
        Case("excel_percent_cells.csv", text(percent.map(lambda value: f"{value:.2f}%".replace(".", ",")).assign(label=T.words), sep=";"), rounded(2)),
        Case("excel_percent_numbers.csv", text(percent.round(1).assign(label=T.words)), rounded(1, whole=True), ("--kind", "percent")),
        Case("weka_predictions.csv", text(weka), pairs, ("--scores", "prediction", "--labels", "actual", "--kind", "probabilities", "--task", "pairs")),
        Case("knime.csv", text(named.rename(columns=lambda name: f"P (pet={name})").assign(pet=T.words)), probabilities, ("--labels", "pet")),
        Case("rapidminer.csv", text(named.rename(columns=lambda name: f"confidence({name})").assign(label=T.words)), probabilities),
        Case("h2o_binary.csv", text(pd.DataFrame({"predict": (T.risk > 0.5).astype(int), "p0": 1 - T.risk, "p1": T.risk, "actual": T.outcome})), two_classes),
        Case("autogluon.csv", text(named.assign(**{"class": T.words})), probabilities, (*said, "--labels", "class")),
        Case("fastai_get_preds.pt", lambda path: torch.save((torch.from_numpy(p), torch.from_numpy(T.labels)), path), probabilities),
        Case("keras_savetxt.csv", lambda path: np.savetxt(path, p, delimiter=","), probabilities, (*said, *truth_csv), "\n".join(map(str, T.labels))),
        Case("savetxt_spaces.txt", lambda path: np.savetxt(path, p), probabilities, (*said, *truth_csv), "\n".join(map(str, T.labels))),
        Case("huggingface_pipeline.json", lambda path: path.write_text(json.dumps(lists)), probabilities, (*said, *truth_csv), in_order),
        Case("huggingface_top1.jsonl", json_lines({"label": NAMES[row.argmax()], "score": float(row.max())} for row in p), pairs, (*said, *truth_csv, "--scores", "score", "--task", "pairs"), in_order),
        Case("xgboost.csv", text(pd.DataFrame({"prediction": T.risk, "label": T.outcome})), binary, ("--scores", "prediction", *said)),
        Case("spark_vectors.csv", text(pd.DataFrame({"label": T.labels.astype(float), "probability": [str(row.tolist()) for row in p], "prediction": p.argmax(1).astype(float)})), probabilities),
        Case("bigquery_ml.jsonl", json_lines({"predicted_label": NAMES[row.argmax()], "predicted_label_probs": [{"label": name, "prob": float(value)} for name, value in zip(NAMES, row, strict=True)], "label": word} for row, word in zip(p, T.words, strict=True)), probabilities, ("--scores", "predicted_label_probs")),
        Case("vertex_batch.jsonl", json_lines({"instance": {"age": 3}, "prediction": {"classes": list(NAMES), "scores": row.tolist()}, "label": word} for row, word in zip(p, T.words, strict=True)), probabilities, ("--scores", "prediction", *said)),
        Case("yolo_detections.csv", text(detections), pairs, ("--scores", "confidence", "--labels", "tp", "--task", "pairs")),
        Case("spacy_cats.jsonl", json_lines({"text": "a", "cats": one, "label": word} for one, word in zip(objects, T.words, strict=True)), probabilities, ("--scores", "cats", *said)),
        Case("answers.csv", text(answers), pairs),
        Case("answers_percent.csv", text(answers.assign(confidence=100 * T.confidence)), pairs, ("--kind", "percent")),
        Case("keys_per_class.jsonl", json_lines({**one, "label": word} for one, word in zip(objects, T.words, strict=True)), probabilities, said),
        Case("pandas_to_json.json", lambda path: marked.assign(label=T.words).to_json(path, double_precision=15), probabilities),
        Case("mark_behind.csv", text(named.rename(columns=lambda name: f"{name}_prob").assign(label=T.words)), probabilities),
        Case("tabs.txt", text(marked.assign(label=T.words), sep="\t"), probabilities),
        Case("bars.csv", text(marked.assign(label=T.words), sep="|"), probabilities),
        Case("one_hot.csv", text(pd.concat([marked, one_hot], axis=1)), probabilities),
        Case("numbered_from_one.csv", text(marked.assign(label=T.labels + 1)), probabilities),
        Case("bare_classes.csv", text(named.assign(age=40 + T.labels, species=T.words)), probabilities),
        Case("logits_with_labels_apart.npz", lambda path: np.savez(path, logits=T.logits), multiclass(), truth_csv, pd.DataFrame({"y": T.labels}).to_csv(index=False)),
    ]  # fmt: skip


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


def measured(words: list[str]) -> tuple[int, str, str]:
    """Exit code, output and errors of `calibrant measure`."""
    from calibrant.cli.app import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    old, sys.argv = sys.argv, ["calibrant", "measure", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        sys.argv = old
    return code, out.getvalue(), err.getvalue()


def agree(shown: dict[str, Any], expected: Any) -> bool:
    """Are the task, the number of rows and the figures those of the arrays in memory?"""
    figures = ("ece", "nll", "brier", "accuracy", "ks_error")
    near = all(abs(shown["metrics"][name]["value"] - expected.metrics[name].value) < 1e-6 for name in figures)
    return near and shown["task"] == expected.task and shown["n"] == expected.n


def in_python(file: Path, options: tuple[str, ...]) -> dict[str, Any]:
    """The figures after the suggestion that Python's error prints."""
    try:
        cal.open_predictions(file, **keywords(options))
    except InputError as error:
        _, _, advice = str(error).rpartition("; try ")
        return cal.measure(file, resamples=20, **eval(f"dict({advice})")).to_dict()
    raise AssertionError("only the command line refuses it")


def judge(case: Case, folder: Path) -> str:
    """ "right", "right after the suggestion: ...", "refused: ..." or "WRONG"."""
    file = folder / case.name
    case.write(file)
    (folder / "truth.csv").write_text(case.truth)
    options = tuple(word.replace("truth.csv", str(folder / "truth.csv")) for word in case.options)
    code, out, err = measured([str(file), "--json", "--resamples", "20", *options])
    expected = cal.measure(case.expected(), resamples=20)
    verdict = "right"
    if code:
        command = re.search(r"^try: calibrant measure (.*)$", err, re.MULTILINE)
        if command is None:
            return f"refused: {err.strip()}"
        verdict = f"right after the suggestion: {command[1].replace(str(folder) + '/', '')}"
        code, out, err = measured(shlex.split(command[1]))
        if code or not agree(in_python(file, options), expected):
            return f"WRONG SUGGESTION: {command[1]} {err}"
    return verdict if agree(json.loads(out), expected) else "WRONG"


def keywords(options: tuple[str, ...]) -> dict[str, Any]:
    """Options of the command line as keywords of Python."""
    pairs = zip(options[::2], options[1::2], strict=True)
    given: dict[str, Any] = {name.strip("-").replace("-", "_"): value for name, value in pairs}
    return given | {name: int(value) for name, value in given.items() if name == "ignore_index"}


def opened(case: Case, folder: Path) -> str:
    """The same verdict from the rows alone, without measuring them; a file that is refused is judged."""
    file = folder / case.name
    case.write(file)
    (folder / "truth.csv").write_text(case.truth)
    options = tuple(word.replace("truth.csv", str(folder / "truth.csv")) for word in case.options)
    try:
        found = cal.open_predictions(file, **keywords(options))
    except InputError:
        return judge(case, folder)
    return "right" if all(map(np.allclose, rows_of(found), rows_of(case.expected()))) else "WRONG"


def rows_of(predictions: Any) -> list[Any]:
    """What does not depend on the order of the classes: the scores, sorted in each row, and that of the label."""
    scores, labels = predictions.probabilities, predictions.labels
    weights = np.ones(predictions.n) if predictions.weights is None else predictions.weights
    if predictions.task != "multiclass":
        return [scores, labels, weights]
    return [np.sort(scores, axis=1), np.take_along_axis(scores, labels[:, None], 1), weights]


def run(folder: Path, some: list[Case] | None = None) -> dict[str, str]:
    """The verdict on every file."""
    return {case.name: judge(case, folder) for case in (some or [*cases(), *exports()])}


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    found = run(where)
    for name, verdict in found.items():
        print(f"{name:<32} {verdict}")
    right = sum(verdict == "right" for verdict in found.values())
    second = sum(verdict.startswith("right after") for verdict in found.values())
    print(f"{right} of {len(found)} right at once, {second} after the suggestion, {len(found) - right - second} not")
