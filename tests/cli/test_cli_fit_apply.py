"""`calibrant fit`, `apply`, `export` and `watch` as their user meets them."""

from __future__ import annotations

import json

import numpy as np
import pytest

import calibrant
from calibrant.shipping.artifact import read_artifact


@pytest.fixture
def file(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 300)
    logits = (3 * (rng.normal(size=(300, 4)) + 1.5 * np.eye(4)[labels])).astype(np.float32)
    path = tmp_path / "val.npz"
    np.savez(path, logits=logits, labels=labels)
    return path


def test_fit_saves_and_shows_before_and_after(run, file, tmp_path):
    code, out, err = run("fit", file, "--method", "cts", "-o", tmp_path / "cal.safetensors")
    assert (code, err) == (0, "")
    assert "before" in out
    assert "on the fit data" in out
    about = read_artifact(tmp_path / "cal.safetensors")
    with np.load(file) as arrays:
        fitted = calibrant.ClassTemperatureScaling().fit(arrays["logits"], arrays["labels"])
        expected = calibrant.metrics.ece(fitted.predict_proba(arrays["logits"]), arrays["labels"])
    assert about.calibrator.temperatures_.tolist() == fitted.temperatures_.tolist()
    assert about.after["ece"] == pytest.approx(expected, abs=1e-6)
    assert about.before["ece"] > about.after["ece"]
    assert (about.n, about.fingerprint) == (300, fitted.fingerprint_)


def test_fit_in_json_with_parameters(run, file, tmp_path):
    code, out, _ = run(
        "fit", file, "-m", "cts", "-p", "max_sweeps=2", "-p", "objective=ece", "-o", tmp_path / "c", "--json"
    )
    result = json.loads(out)
    assert code == 0
    assert (result["method"], result["class"], result["n"], result["n_classes"]) == (
        "cts", "ClassTemperatureScaling", 300, 4
    )  # fmt: skip
    assert set(result["before"]) == set(result["after"]) == {"accuracy", "nll", "brier", "ece", "adaptive_ece", "sce"}
    assert calibrant.load(tmp_path / "c").max_sweeps == 2


def test_fit_tells_warnings(run, tmp_path):
    np.savez(tmp_path / "easy.npz", logits=np.eye(3)[[0, 1, 2] * 5] * 4, labels=np.array([0, 1, 2] * 5))
    code, out, err = run("fit", tmp_path / "easy.npz", "-m", "ts", "-o", tmp_path / "cal")
    assert code == 0
    assert err.startswith("warning: ")
    assert "temperature 0" in err
    code, out, _ = run("fit", tmp_path / "easy.npz", "-m", "ts", "-o", tmp_path / "cal", "--json")
    assert len(json.loads(out)["warnings"]) == 1


def test_fit_warns_when_a_method_that_needs_logits_gets_probabilities(run, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "p.npz", probabilities=rng.dirichlet(np.ones(3), 50), labels=rng.integers(0, 3, 50))
    code, _, err = run("fit", tmp_path / "p.npz", "-m", "vs", "-o", tmp_path / "cal")
    assert code == 0
    assert "holds probabilities" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-m", "magic"], "no method is called 'magic'"),
        (["-p", "max_sweep=2"], "Invalid parameter 'max_sweep' for estimator ClassTemperatureScaling"),
        (["-p", "max_sweeps"], "write NAME=VALUE"),
        (["-p", "objective=magic"], "objective must be"),
        (["-p", 'max_sweeps="two"'], "max_sweeps must be a whole number"),
        (["-p", "accuracy_tolerance=[1, 2]"], "accuracy_tolerance must be a number"),
    ],
)
def test_fit_refuses_in_one_line(arguments, words, run, file, tmp_path):
    code, out, err = run("fit", file, "-m", "cts", *arguments, "-o", tmp_path / "cal")
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "cal").exists()


def test_fit_looks_at_the_target_before_it_works(run, file, tmp_path):
    code, _, err = run("fit", file, "-o", tmp_path / "absent" / "cal")
    assert code == 2
    assert "does not exist; create it first" in err


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".safetensors", ".csv.gz"])
def test_apply_writes_every_format(suffix, run, file, tmp_path):
    run("fit", file, "-m", "ets", "-o", tmp_path / "cal")
    code, out, err = run("apply", tmp_path / "cal", file, "-o", tmp_path / f"out{suffix}", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["n"] == 300
    result = calibrant.open_predictions(tmp_path / f"out{suffix}")
    raw = calibrant.open_predictions(file)
    np.testing.assert_allclose(result.logits, calibrant.load(tmp_path / "cal").transform(raw.logits), rtol=1e-6)
    np.testing.assert_array_equal(result.labels, raw.labels)


def test_apply_streams_and_can_write_probabilities(run, file, tmp_path, monkeypatch):
    monkeypatch.setattr("calibrant.data.predictions.CHUNK_BYTES", 4 * 4 * 7)
    run("fit", file, "-m", "ts", "-o", tmp_path / "cal")
    code, out, _ = run("apply", tmp_path / "cal", file, "-o", tmp_path / "out.npz", "--probabilities")
    assert code == 0
    assert "300 rows calibrated by TemperatureScaling, written as probabilities" in out
    result = calibrant.open_predictions(tmp_path / "out.npz")
    assert result.kind == "probabilities"
    raw = calibrant.open_predictions(file)
    np.testing.assert_allclose(result.values, calibrant.load(tmp_path / "cal").predict_proba(raw.logits), atol=1e-7)


def test_apply_keeps_what_else_a_text_file_holds(run, file, tmp_path):
    run("fit", file, "-m", "ts", "-o", tmp_path / "cal")
    raw = calibrant.open_predictions(file)
    lines = [f"caf\u00e9;{';'.join(f'{z:.3f}' for z in row)}" for row in raw.logits.tolist()]
    text = "\n".join(["drink;logit_0;logit_1;logit_2;logit_3", *lines])
    (tmp_path / "in.csv").write_bytes(text.encode("latin-1"))
    assert run("apply", tmp_path / "cal", tmp_path / "in.csv", "-o", tmp_path / "out.csv")[0] == 0
    assert (tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()[300].startswith("caf\u00e9;")


def test_apply_writes_lists_where_a_text_file_holds_lists(run, file, tmp_path):
    run("fit", file, "-m", "ts", "-o", tmp_path / "cal")
    raw = calibrant.open_predictions(file)
    lines = [f'{row},"{z}",{row}' for row, z in enumerate(raw.logits.tolist())]
    (tmp_path / "in.csv").write_text("\n".join(["x,logits,x", *lines]))
    assert run("apply", tmp_path / "cal", tmp_path / "in.csv", "-o", tmp_path / "out.csv")[0] == 0
    result = calibrant.open_predictions(tmp_path / "out.csv", require_labels=False)
    np.testing.assert_allclose(result.logits, calibrant.load(tmp_path / "cal").transform(raw.logits), rtol=1e-5)
    first, last = (tmp_path / "out.csv").read_text().splitlines()[::300]
    assert first == "x,logits,x"
    assert last.startswith("299,")
    assert last.endswith(",299")


def test_apply_takes_whole_files_of_parts_and_files_without_labels(run, file, tmp_path):
    run("fit", file, "-m", "ts", "-o", tmp_path / "cal")
    logits = np.random.default_rng(1).normal(size=(6, 4))
    labels = np.arange(6) % 4
    np.savez(tmp_path / "two.npz", val_logits=logits, val_labels=labels, test_logits=logits[:3], test_labels=labels[:3])
    assert run("apply", tmp_path / "cal", tmp_path / "two.npz", "-o", tmp_path / "out.npz")[0] == 0
    assert calibrant.open_predictions(tmp_path / "out.npz#test").n == 3
    np.savez(tmp_path / "bare.npz", logits=logits)
    assert run("apply", tmp_path / "cal", tmp_path / "bare.npz", "-o", tmp_path / "bare_out.npz")[0] == 0


def test_apply_writes_as_many_digits_as_tell(run, tmp_path):
    rng = np.random.default_rng(0)
    risk = rng.uniform(0.01, 0.99, 200).round(2)
    risk[0] = 1 - 1e-9
    rows = [f"{p!r},{int(rng.random() < p)},{p / 7:.3f}" for p in risk.tolist()]
    (tmp_path / "val.csv").write_text("\n".join(["probability,label,dose", *rows]) + "\n")
    run("fit", tmp_path / "val.csv", "-m", "platt", "-o", tmp_path / "cal")
    code, _, err = run("apply", tmp_path / "cal", tmp_path / "val.csv", "-o", tmp_path / "out.csv")
    assert code == 0, err
    lines = (tmp_path / "out.csv").read_text().splitlines()[1:]
    assert [line.split(",")[1:] for line in lines] == [row.split(",")[1:] for row in rows]
    cells = [line.split(",")[0] for line in lines]
    assert max(map(len, cells[1:])) <= len("0.1234567") + 2
    exact = calibrant.load(tmp_path / "cal").predict_proba(calibrant.open_predictions(tmp_path / "val.csv").logits)[
        :, 1
    ]
    found = np.array(cells, float)
    np.testing.assert_allclose(found, exact, rtol=1e-6)
    np.testing.assert_allclose(1 - found, 1 - exact, rtol=1e-6)
    assert 0 < 1 - found[0] < 1e-3
    # what is not calibrated keeps its numbers: no 0.62309999999999999 for 0.6231
    assert run("convert", tmp_path / "val.csv", tmp_path / "same.csv")[0] == 0
    same = (tmp_path / "same.csv").read_text().splitlines()
    assert [line.split(",")[same[0].split(",").index("probability")] for line in same[1:]] == list(
        map(repr, risk.tolist())
    )


@pytest.mark.parametrize("label", ["", "unknown", "-100"])
def test_apply_does_not_need_labels_that_cannot_be_read(label, run, file, tmp_path):
    run("fit", file, "-m", "ts", "-o", tmp_path / "cal")
    table = "label,logit_0,logit_1,logit_2,logit_3\n" + f"{label},1,2,3,4\n0,4,3,2,1\n"
    (tmp_path / "new.csv").write_text(table)
    code, _, err = run("apply", tmp_path / "cal", tmp_path / "new.csv", "-o", tmp_path / "out.csv")
    assert code == 0, err
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["label", label, "0"]
    np.savez(tmp_path / "new.npz", logits=3 * np.eye(4), labels=np.array([0, -100, 2, 3]))
    code, out, err = run(
        "apply", tmp_path / "cal", tmp_path / "new.npz", "--ignore-index", -100, "-o", tmp_path / "o.npz"
    )
    assert (code, "4 rows" in out) == (0, True), err
    with np.load(tmp_path / "o.npz") as arrays:
        assert arrays["labels"].tolist() == [0, -100, 2, 3]


def test_labels_that_apply_does_not_read_never_meet_columns_in_another_order(run, tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 90)
    logits = rng.normal(size=(90, 3)) + 2 * np.eye(3)[labels]
    np.savez(tmp_path / "val.npz", logits=logits, labels=labels, class_names=np.array(list("abc")))
    run("fit", tmp_path / "val.npz", "-m", "ts", "-o", tmp_path / "cal")
    turned = {"logits": logits[:, ::-1], "class_names": np.array(list("cba"))}
    for given, found in ((2 - labels, labels), (np.where(labels == 1, -100, 2 - labels), None)):
        np.savez(tmp_path / "new.npz", **turned, labels=given)
        code, _, err = run("apply", tmp_path / "cal", tmp_path / "new.npz", "-o", tmp_path / "out.npz")
        assert code == 0, err
        with np.load(tmp_path / "out.npz") as arrays:
            assert arrays["class_names"].tolist() == list("abc")
            assert ("labels" in arrays) == (found is not None)
            if found is not None:
                np.testing.assert_array_equal(arrays["labels"], found)


@pytest.mark.parametrize("shape", [(3, 5, 4), (2, 4, 3, 5)])
@pytest.mark.parametrize("labelled", ["all", "padded", "none"])
def test_apply_keeps_the_shape_of_dense_scores(shape, labelled, run, file, tmp_path):
    run("fit", file, "-m", "vs", "-o", tmp_path / "cal")
    axis = len(shape) - 1 if len(shape) == 3 else 1
    rng = np.random.default_rng(0)
    arrays = {"logits": rng.normal(size=shape).astype(np.float32), "attention_mask": np.ones(shape[0])}
    labels = rng.integers(0, 4, np.delete(shape, axis))
    if labelled == "padded":
        labels[0, 2:] = -100
    if labelled != "none":
        arrays["labels"] = labels
    np.savez(tmp_path / "tokens.npz", **arrays)
    code, _, err = run("apply", tmp_path / "cal", tmp_path / "tokens.npz", "-o", tmp_path / "out.npz")
    assert code == 0, err
    rows = np.moveaxis(arrays["logits"], axis, -1)
    expected = calibrant.load(tmp_path / "cal").transform(rows.reshape(-1, 4)).reshape(rows.shape)
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_allclose(found["logits"], np.moveaxis(expected, -1, axis), rtol=1e-6)
        assert set(arrays) <= set(found)
        if labelled != "none":
            np.testing.assert_array_equal(found["labels"], labels)


def test_apply_refuses_other_classes_and_other_files(run, file, tmp_path):
    run("fit", file, "-o", tmp_path / "cal")
    np.savez(tmp_path / "other.npz", logits=np.eye(3), labels=np.arange(3))
    code, _, err = run("apply", tmp_path / "cal", tmp_path / "other.npz", "-o", tmp_path / "out.npz")
    assert code == 2
    assert "the artifact has 4 classes, but" in err
    code, _, err = run("apply", file, file, "-o", tmp_path / "out.npz")
    assert code == 2
    assert err.count("\n") == 1
    assert not (tmp_path / "out.npz").exists()


def test_export_tells_what_it_made(run, file, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    run("fit", file, "-m", "cws", "-o", tmp_path / "cal")
    code, out, _ = run("export", tmp_path / "cal", "--onnx", tmp_path / "out.onnx", "--json")
    assert code == 0
    assert json.loads(out)["outputs"] == ["calibrated_logits", "probabilities", "prediction"]
    logits = calibrant.open_predictions(file).logits[:20]
    session = onnxruntime.InferenceSession(str(tmp_path / "out.onnx"))
    got = session.run(["probabilities"], {"logits": logits})[0]
    np.testing.assert_allclose(got, calibrant.load(tmp_path / "cal").predict_proba(logits), atol=1e-5)
    code, _, err = run("export", tmp_path / "cal", "--onnx", tmp_path / "o", "--output-name", "x")
    assert code == 2
    assert "give the model too" in err


def test_monitor_reports_resumes_and_exits_1_on_alarm(run, tmp_path):
    rng = np.random.default_rng(0)
    log = tmp_path / "answers.jsonl"

    def write(chance_of, n):
        confidence = rng.uniform(0.5, 1, n)
        right = rng.random(n) < chance_of(confidence)
        with log.open("a") as lines:
            for c, a in zip(confidence.tolist(), right.tolist(), strict=True):
                lines.write(json.dumps({"confidence": c, "correct": a}) + "\n")

    write(lambda c: c, 500)
    state = tmp_path / "state.json"
    code, out, err = run("monitor", log, "--once", "--state", state)
    assert (code, err) == (0, "")
    assert "500 answers" in out
    assert "no alarm" in out
    write(lambda c: c - 0.3, 500)
    code, out, _ = run("monitor", log, "--once", "--state", state, "--json")
    report = json.loads(out)
    assert code == 1
    assert report["n"] == 1000
    assert report["alarm"]
    assert 500 < report["alarm_at"] < 700
    assert "too high" in report["suspect"]
    code, _, err = run("monitor", log, "--once", "--state", state, "--window", "10")
    assert code == 2
    assert "use the same" in err


def test_monitor_follows_until_the_alarm(run, tmp_path, monkeypatch):
    log = tmp_path / "answers.jsonl"
    log.write_text('{"confidence": 0.9, "correct": true}\nnot an answer\n')

    def grow(_seconds):
        with log.open("a") as lines:
            lines.write('{"confidence": 0.99, "correct": false}\n' * 5)

    monkeypatch.setattr("calibrant.cli.monitor.time.sleep", grow)
    code, out, err = run("monitor", log, "--until-alarm")
    assert code == 1
    assert "ALARM since answer" in out.splitlines()[-1]
    assert "1 line skipped, the first: line 2" in err


def test_monitor_refuses_what_is_no_log(run, tmp_path):
    assert run("monitor", tmp_path / "absent.jsonl", "--once")[0] == 2
    (tmp_path / "a.jsonl").write_text("nothing here\n")
    code, _, err = run("monitor", tmp_path / "a.jsonl", "--once")
    assert code == 2
    assert "no labelled answer in 1 lines" in err
    code, _, err = run("monitor", tmp_path, "--once")
    assert (code, "a folder" in err) == (2, True)
    code, _, err = run("monitor", tmp_path / "a.jsonl", "--once", "--bins", 10**7)
    assert (code, "from 1 to 1000" in err) == (2, True)


def test_monitor_looks_at_its_state_first(run, tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text('{"confidence": 0.9, "correct": true}\n' * 20)
    (tmp_path / "binary").write_bytes(b"\x80\x00")
    for state, words in (("absent/state", "does not exist"), ("binary", "it is not the state"), ("", "is a folder")):
        code, out, err = run("monitor", log, "--once", "--state", tmp_path / state)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in err


def test_fit_keeps_predictions_when_asked(run, tmp_path):
    rng = np.random.default_rng(0)
    labels = (rng.random(600) < 0.2).astype(int)
    scores = rng.normal(size=600) + 2 * labels + 1
    logits = np.column_stack([np.zeros(600), scores]).astype(np.float32)
    np.savez(tmp_path / "val.npz", logits=logits, labels=labels)
    for extra, kept in (((), False), (("--keep-predictions",), True)):
        out = tmp_path / "cal.safetensors"
        code, _, err = run("fit", tmp_path / "val.npz", "--method", "auto", "-o", out, *extra)
        assert code == 0, err
        same = (calibrant.load(out).predict(logits) == logits.argmax(axis=1)).all()
        assert same == kept
    code, _, err = run(
        "fit", tmp_path / "val.npz", "--method", "vs", "--keep-predictions", "-o", tmp_path / "b.safetensors"
    )
    assert code == 2
    assert "vs changes predictions; take vs+keep" in err
    # of one score per row these change predictions, though of several classes they keep them
    for method, code in (("ts", 0), ("shape", 2), ("iso+group", 2)):
        extra = ("--groups", "group") if "group" in method else ()
        np.savez(tmp_path / "risk.npz", logits=scores, labels=labels, group=labels * 0)
        asked = ("fit", tmp_path / "risk.npz", "--method", method, "--keep-predictions", *extra)
        found, _, err = run(*asked, "-o", tmp_path / f"{method}.safetensors")
        assert found == code, err
        assert (tmp_path / f"{method}.safetensors").exists() == (code == 0)


def test_apply_reads_files_as_the_fit_did(run, tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    scores = np.exp(rng.normal(size=(300, 3)) + 2 * np.eye(3)[labels])
    scores /= scores.sum(axis=1, keepdims=True)
    words = np.array(["u", "v", "w"])[labels]
    rows = [",".join([*map(str, row), str(row[::-1][0]), word]) for row, word in zip(scores, words, strict=True)]
    (tmp_path / "val.csv").write_text("\n".join(["u,v,w,rival,kind_of", *rows]))
    unlabeled = [row.rpartition(",")[0] for row in rows]
    (tmp_path / "new.csv").write_text("\n".join(["u,v,w,rival", *unlabeled]))
    given = ("--scores", "u,v,w", "--kind", "probabilities", "--labels", "kind_of")
    artifact = tmp_path / "cal.safetensors"
    code, out, err = run("fit", tmp_path / "val.csv", *given, "-m", "ts", "-o", artifact)
    assert code == 0, err
    assert "read: probabilities u … w (rows sum to 1), labels kind_of" in out
    written = []
    for name, options in (("val", given), ("val", ()), ("new", ())):
        code, _, err = run("apply", artifact, tmp_path / f"{name}.csv", *options, "-o", tmp_path / "out.csv")
        assert code == 0, err
        written.append((tmp_path / "out.csv").read_text().splitlines())
    assert written[0] == written[1]
    assert [line.rpartition(",")[0] for line in written[1]] == written[2]
    code, out, _ = run("info", artifact)
    assert "probabilities u … w (rows sum to 1), labels kind_of" in out
