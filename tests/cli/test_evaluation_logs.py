"""Logs of language-model evaluations, written here as lm-evaluation-harness and Inspect write them."""

from __future__ import annotations

import hashlib
import json
import zipfile

import numpy as np
import pyarrow as pa
import pytest

import calibrant as cal
from calibrant.core.errors import InputError

LETTERS = "ABCDE"
NOUNS = ("tide", "a solar panel", "an old river", "wind over the sea", "coal")


def harness_file(path, n=60, *, options=(4,), target="number", arguments="new", texts=None, seed=0, **more):
    """`samples_TASK_DATE.jsonl` of a multiple-choice task, as lm_eval 0.4 writes it; the right options are returned.

    target : "number", "text" or "letter"; options : numbers of options, in turn; arguments : "new", "old" or "none".
    """
    rng, right = np.random.default_rng(seed), []
    with path.open("w") as file:
        for number in range(n):
            width = options[number % len(options)]
            words = list(texts or [f"{noun} {number}" for noun in NOUNS])[:width]
            scores = rng.normal(-20, 3, width)
            gold = int(rng.choice(width, p=np.exp(scores / 2) / np.exp(scores / 2).sum()))
            lengths = np.array([len(word) for word in words])
            pairs = [[f"Question {number}?\nAnswer:", f" {word}"] for word in words]
            new = {f"gen_args_{place}": {"arg_0": a, "arg_1": b} for place, (a, b) in enumerate(pairs)}
            row = {
                "doc_id": number,
                "doc": {
                    "question": f"Question {number}?",
                    "choices": words,
                    "answer": gold,
                    "subject": f"s{number % 2}",
                },
                "target": {"number": str(gold), "text": words[gold], "letter": LETTERS[gold]}[target],
                "arguments": {"new": new, "old": pairs, "none": None}[arguments],
                "resps": [[[str(score), "False"]] for score in scores],
                "filtered_resps": [[str(score), "False"] for score in scores],
                "filter": "none",
                "metrics": ["acc", "acc_norm"],
                "doc_hash": hashlib.sha256(str(number).encode()).hexdigest(),
                "acc": float(scores.argmax() == gold),
                "acc_norm": float((scores / lengths).argmax() == gold),
            }
            file.write(json.dumps(row | more, ensure_ascii=False) + "\n")
            right.append(gold)
    return np.array(right)


def generations(path, n=40, *, filters=("strict-match",), confidence=True):
    """`samples_gsm8k_DATE.jsonl`: a line per question and filter, one filter after the other."""
    with path.open("w") as file:
        for place, name in enumerate(filters):
            for number in range(n):
                row = {
                    "doc_id": number,
                    "doc": {"question": f"{number} + 1?", "answer": f"#### {number + 1}"},
                    "target": f"#### {number + 1}",
                    "arguments": {"gen_args_0": {"arg_0": "Q", "arg_1": {"until": ["\n"]}}},
                    "resps": [[f"The answer is {number + 1}."]],
                    "filtered_resps": [str(number + 1)],
                    "filter": name,
                    "exact_match": float(number % (place + 2) == 0),
                }
                file.write(json.dumps(row | ({"confidence": 0.5 + number / 100} if confidence else {})) + "\n")


def inspect_log(n=40, *, confidence="score", choices=False, epochs=1, seed=0):
    """The log of an Inspect task; `confidence` in the metadata of the "score", of the "sample", as a "scorer" or ""."""
    rng, samples = np.random.default_rng(seed), []
    for number in range(n * epochs):
        target, answer = rng.choice(list("ABCD"), 2)
        sure = round(float(rng.uniform(0.3, 1)), 2)
        top = [{"token": letter, "logprob": float(np.log(0.1 + 0.6 * (letter == answer)))} for letter in "ABCD"]
        tokens = [{"token": " ANSWER:", "logprob": -0.01, "top_logprobs": []}]
        tokens.append({"token": f" {answer}", "logprob": np.log(0.7), "top_logprobs": top})
        score = {"value": "C" if answer == target else "I", "answer": str(answer)}
        samples.append({
            "id": number % n,
            "epoch": number // n + 1,
            "input": f"Question {number}?",
            "choices": ["w", "x", "y", "z"] if choices else None,
            "target": str(target),
            "output": {"choices": [{"message": {}, "logprobs": {"content": tokens} if choices else None}]},
            "metadata": {"topic": f"t{number % 3}"} | ({"confidence": sure} if confidence == "sample" else {}),
            "scores": {"choice": score | ({"metadata": {"confidence": sure}} if confidence == "score" else {})}
            | ({"confidence": {"value": sure}} if confidence == "scorer" else {}),
        })  # fmt: skip
    return {"version": 2, "status": "success", "eval": {"task": "mcq", "model": "m"}, "samples": samples}


@pytest.mark.parametrize("target", ["number", "text", "letter"])
@pytest.mark.parametrize("arguments", ["new", "old"])
def test_multiple_choice_of_the_harness(target, arguments, tmp_path):
    path = tmp_path / "samples_arc_easy_2026-01-05T10-00-00.jsonl"
    right = harness_file(path, target=target, arguments=arguments)
    found = cal.open_predictions(path)
    assert (found.task, found.kind, found.n, found.class_names) == ("multiclass", "logits", 60, tuple("ABCD"))
    np.testing.assert_array_equal(found.labels, right)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert found.probabilities.argmax(axis=1).tolist() == [
        np.argmax([float(score) for score, _ in row["filtered_resps"]]) for row in rows
    ]
    accuracy = cal.measure(found, resamples=10).metrics["accuracy"].value
    assert accuracy == pytest.approx(np.mean([row["acc"] for row in rows]))


def test_log_likelihoods_per_character_give_acc_norm(tmp_path):
    path = tmp_path / "samples.jsonl"
    right = harness_file(path)
    found = cal.open_predictions(path, scores="logits-per-character")
    share = np.mean([json.loads(line)["acc_norm"] for line in path.read_text().splitlines()])
    assert (found.probabilities.argmax(axis=1) == right).mean() == pytest.approx(share)
    assert cal.open_predictions(path).notes[0].endswith("the scores of acc_norm are logits-per-character")


def test_options_that_all_questions_share_are_the_classes(tmp_path):
    harness_file(tmp_path / "boolq.jsonl", options=(2,), texts=("no", "yes"), target="text")
    assert cal.open_predictions(tmp_path / "boolq.jsonl").class_names == ("no", "yes")
    # here a target of "1" could be a place or a text: acc decides
    right = harness_file(tmp_path / "digits.jsonl", options=(3,), texts=("2", "1", "0"), target="text")
    # columns that numbers name stand in the order of the numbers
    np.testing.assert_array_equal(cal.open_predictions(tmp_path / "digits.jsonl").labels, 2 - right)


def test_questions_with_different_numbers_of_options(tmp_path, run):
    val, test = tmp_path / "val.jsonl", tmp_path / "test.jsonl"
    harness_file(val, 200, options=(4, 3, 5), arguments="none")
    harness_file(test, 100, options=(4,), seed=1)
    found = cal.open_predictions(val)
    assert found.class_names == tuple("ABCDE")
    assert np.isneginf(found.logits[1]).tolist() == [False] * 3 + [True] * 2
    assert "134 of 200 rows have fewer than 5 options" in found.notes[0]
    assert run("compare", val, test, "-m", "ts")[2].endswith("test.jsonl -m ts --class-names A,B,C,D,E\n")
    report = ("--resamples", 20, "--report", tmp_path / "report.html")
    assert run("compare", val, test, "-m", "ts", "--class-names", "A,B,C,D,E", *report)[0] == 0
    page = (tmp_path / "report.html").read_text()
    assert "Note:</b> 100 of 100 rows have fewer than 5 options" in page
    assert "measured on test rows it never saw" in page
    code, _, err = run("fit", val, "-m", "ts", "-o", tmp_path / "cal")
    assert code == 0, err
    code, _, err = run("apply", tmp_path / "cal", val, "--probabilities", "-o", tmp_path / "out.jsonl")
    assert code == 0, err
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [len(row["probabilities"]) for row in rows[:3]] == [4, 3, 5]
    assert [sum(row["probabilities"].values()) for row in rows] == pytest.approx([1] * 200)
    assert (rows[3]["doc_id"], rows[3]["subject"]) == (3, "s1")
    np.testing.assert_array_equal(cal.open_predictions(tmp_path / "out.jsonl").labels, found.labels)


def test_columns_of_the_documents_are_groups(tmp_path):
    harness_file(tmp_path / "samples.jsonl")
    found = cal.measure(tmp_path / "samples.jsonl", by="subject", resamples=10)
    assert found.groups.columns == ("subject",)


def test_a_log_per_subject_is_measured_by_subject(run, tmp_path):
    for place, subject in enumerate(("law", "art")):
        file = tmp_path / f"samples_mmlu_{subject}.jsonl"
        harness_file(file, 40, texts="ABCD", seed=place)
        file.write_text(file.read_text().replace('"s0"', f'"{subject}"').replace('"s1"', f'"{subject}"'))
    code, out, err = run("measure", tmp_path / "samples_mmlu_*.jsonl", "--by", "subject", "--resamples", 20, "--json")
    assert code == 0, err
    assert {(one["by"]["subject"], one["n"]) for one in json.loads(out)["groups"]} == {("law", 40), ("art", 40)}


def test_targets_that_may_be_numbers_or_texts_are_refused_without_acc(tmp_path):
    """Options 1 to 4: the target "2" is the third of them by number, the second by text; only acc tells."""
    path = tmp_path / "samples_sums.jsonl"
    right = harness_file(path, target="text", texts=("1", "2", "3", "4"))
    assert np.array_equal(cal.open_predictions(path).labels, right)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [{word: value for word, value in row.items() if word != "acc"} for row in rows if row["target"] != "4"]
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match="do not say the one right option"):
        cal.open_predictions(path)


def test_targets_that_acc_contradicts_are_refused(tmp_path):
    path = tmp_path / "samples_truthfulqa_mc2.jsonl"
    harness_file(path, target="number", acc=0.37)
    with pytest.raises(InputError, match="truthfulqa_mc1 in place of truthfulqa_mc2"):
        cal.open_predictions(path)
    path.write_text(json.dumps({"doc_id": 0, "target": "x", "filtered_resps": [["-3.0", "True"]], "acc": 1.0}) + "\n")
    with pytest.raises(InputError, match="one continuation per question"):
        cal.open_predictions(path)


def test_generated_answers_need_a_confidence(tmp_path):
    path = tmp_path / "samples_gsm8k.jsonl"
    generations(path, confidence=False)
    with pytest.raises(InputError, match='add "confidence", from 0 to 1, to each line'):
        cal.open_predictions(path)
    generations(path)
    found = cal.open_predictions(path)
    assert (found.task, found.n, found.labels.mean()) == ("pairs", 40, 0.5)


def test_one_filter_of_several_is_read(tmp_path):
    path = tmp_path / "samples_gsm8k.jsonl"
    generations(path, filters=("strict-match", "flexible-extract"))
    found = cal.open_predictions(path)
    assert found.n == 40
    advice = found.notes[0].partition("grep ")[2]
    assert advice.startswith('\'"filter": "flexible-extract"\' samples_gsm8k.jsonl > ')
    needle = advice.split("'")[1]
    other = tmp_path / advice.split("> ")[1]
    other.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if needle in line))
    assert cal.open_predictions(other).labels.mean() == pytest.approx(14 / 40)


@pytest.mark.parametrize("place", ["score", "sample", "scorer"])
def test_confidence_of_an_inspect_log(place, tmp_path):
    path = tmp_path / "log.json"
    path.write_text(json.dumps(inspect_log(confidence=place)))
    found = cal.open_predictions(path, by="topic")
    samples = inspect_log(confidence=place)["samples"]
    assert (found.task, found.kind, found.n) == ("pairs", "probabilities", 40)
    assert found.labels.tolist() == [sample["scores"]["choice"]["value"] == "C" for sample in samples]
    assert sorted(set(found.groups["topic"])) == ["t0", "t1", "t2"]


def test_options_and_epochs_of_an_inspect_log(tmp_path):
    path = tmp_path / "log.json"
    path.write_text(json.dumps(inspect_log(confidence="", choices=True, epochs=2)))
    found = cal.open_predictions(path)
    assert (found.task, found.class_names) == ("multiclass", tuple("ABCD"))
    assert len(set(found.clusters.tolist())) == 40
    assert found.probabilities.max(axis=1) == pytest.approx(0.7)
    path.write_text(json.dumps(inspect_log(confidence="")))
    with pytest.raises(InputError, match="to the metadata of each score"):
        cal.open_predictions(path)


@pytest.mark.parametrize("method", ["deflate", "zstandard"])
def test_inspect_archives(method, tmp_path):
    log, path = inspect_log(), tmp_path / "log.eval"
    log["samples"][3]["scores"] = None  # an error ended it
    members = {f"samples/{one['id']}_epoch_1.json": one for one in log.pop("samples")} | {"header.json": log}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if method == "deflate" else zipfile.ZIP_STORED) as archive:
        for name, value in members.items():
            text = json.dumps(value).encode()
            archive.writestr(name, pa.compress(text, codec="zstd", asbytes=True) if method == "zstandard" else text)
    if method == "zstandard":
        mark_zstandard(path, {name: len(json.dumps(value).encode()) for name, value in members.items()})
    found = cal.open_predictions(path)
    assert (found.task, found.n) == ("pairs", 39)
    assert found.notes == ("1 samples without a score are left out",)


def mark_zstandard(path, sizes):
    """Say that stored members are packed by zstd, which zipfile cannot write before Python 3.14."""
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    place = raw.index(b"PK\x01\x02")
    for member in members:
        for start, method, size in ((member.header_offset, 8, 22), (place, 10, 24)):
            raw[start + method : start + method + 2] = (93).to_bytes(2, "little")
            raw[start + size : start + size + 4] = sizes[member.filename].to_bytes(4, "little")
        place = raw.find(b"PK\x01\x02", place + 4)
    path.write_bytes(bytes(raw))


def test_averages_and_broken_logs_are_refused(tmp_path):
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"results": {"arc_easy": {"acc,none": 0.7}}, "configs": {}}))
    with pytest.raises(InputError, match="--log_samples"):
        cal.open_predictions(path)
    for text in ("{", "[1]", '{"eval": {}, "samples": [{"scores": {"choice": 1}}]}', '{"eval": {}, "samples": []}'):
        path.write_text(text)
        with pytest.raises(InputError, match=r"results\.json"):
            cal.open_predictions(path)
    path.write_text('[{"confidence": 0.9, "correct": true}, {"confidence": 0.4, "correct": false}]')
    assert cal.open_predictions(path).task == "pairs"


def test_scores_of_any_range_are_measured_after_calibration(run, tmp_path):
    rng = np.random.default_rng(0)
    for name, n in (("val", 600), ("test", 800)):
        entropy = rng.gamma(2, 1, n)
        correct = rng.random(n) < 1 / (1 + np.exp(0.9 * entropy - 1.5))
        rows = [f"{-one:.4f},{right}" for one, right in zip(entropy, correct, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["negative_entropy,correct", *rows]) + "\n")
    val, test, said = tmp_path / "val.csv", tmp_path / "test.csv", ("--scores", "negative_entropy", "--kind", "logits")
    for given in ((), said[:2]):  # the suggestion works when followed
        assert run("measure", val, *given)[2].endswith("--scores negative_entropy --kind logits\n")
    assert "only figures after calibration count" in run("measure", val, *said, "--resamples", 20)[2]
    code, out, _ = run("compare", val, test, *said, "-m", "none,platt", "--resamples", 20, "--json")
    document = json.loads(out)
    assert (code, document["best"]) == (0, "platt")
    assert run("fit", val, *said, "-m", "platt", "-o", tmp_path / "cal")[0] == 0
    code, _, err = run("apply", tmp_path / "cal", test, *said, "--probabilities", "-o", tmp_path / "out.npz")
    assert code == 0, err
    after = cal.measure(tmp_path / "out.npz", resamples=20)
    assert after.task == "pairs"
    figures = {row["method"]: row["metrics"] for row in document["rows"]}
    assert after.metrics["ece"].value == pytest.approx(figures["platt"]["ece"]["value"])
    assert after.metrics["ece"].value < figures["none"]["ece"]["value"] / 3


def test_an_option_that_a_line_does_not_list_gets_the_rest_of_the_probability(tmp_path):
    rows = [
        {"A": 0.5, "B": 0.3, "C": 0.2},
        {"A": 0.9, "B": 0.08},  # 0.02 are left
        {"A": 0.6, "B": 0.1},  # 0.3 are left, but C is no more likely than the listed B
        {"B": 0.9},  # 0.1 for A and C
        {"A": 0.6, "B": 0.4},  # nothing is left
        {"A": 1.0},
    ]
    expected = [
        [0.5, 0.3, 0.2],
        [0.9, 0.08, 0.02],
        [0.6, 0.1, 0.1],
        [0.05, 0.9, 0.05],
        [0.6, 0.4, None],
        [1, None, None],
    ]
    lines = [{"logprobs": {key: float(np.log(p)) for key, p in row.items()}, "answer": "A"} for row in rows]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = np.exp(cal.open_predictions(tmp_path / "a.jsonl").logits)
    smallest = np.full(3, 1e-6)
    for got, wanted in zip(found, expected, strict=True):
        floors = np.array([np.nan if one is None else one for one in wanted])
        np.testing.assert_allclose(got, np.where(np.isnan(floors), smallest, floors), rtol=1e-5)


def test_calibrated_log_probabilities_replace_those_of_the_file(run, tmp_path):
    lines = [{"logprobs": {"A": -0.1 * i - 0.1, "B": -2.0}, "answer": "AB"[i % 3 == 0]} for i in range(30)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run("fit", tmp_path / "a.jsonl", "-m", "ts", "-o", tmp_path / "cal.safetensors")[0] == 0
    assert run("apply", tmp_path / "cal.safetensors", tmp_path / "a.jsonl", "-o", tmp_path / "b.jsonl")[0] == 0
    assert json.loads((tmp_path / "b.jsonl").read_text().splitlines()[0]).keys() == {"answer", "logits"}
