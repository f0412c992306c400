"""The recipe of CONTRIBUTING.md, carried out word for word in a copy of the project: five files, and all works."""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from blocks import ROOT, blocks

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

COPIED = ("src", "tests", "docs/methods", "docs/scripts", "pyproject.toml", "CHANGELOG.md", "mkdocs.yml", "benchmarks")
WORKS = """
import sys, warnings
scripts, configuration = sys.argv[1:]
import numpy as np, torch, calibrant as cal
from calibrant.cli import main
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
labels = rng.integers(0, 4, 300)
logits = (rng.normal(size=(300, 4)) + 2 * np.eye(4)[labels]).astype(np.float32)
assert cal.compare((logits, labels), (logits, labels), ["none", "prior"], resamples=20).rows[1].error is None
assert "prior" in [row["name"] for row in cal.methods()]
fitted = cal.get("prior").fit(logits, labels)
expected = fitted.predict_proba(logits)
cal.save(fitted, "cal.safetensors")
np.testing.assert_array_equal(cal.load("cal.safetensors").predict_proba(logits), expected)
cal.export_onnx(fitted, "cal.onnx")
import onnxruntime
answer = onnxruntime.InferenceSession("cal.onnx").run(["probabilities"], {"logits": logits})[0]
np.testing.assert_allclose(answer, expected, atol=1e-6)
module = cal.CalibratedModule(torch.nn.Identity(), fitted)
np.testing.assert_allclose(module(torch.from_numpy(logits)).numpy(), expected, atol=1e-5)
tensor = cal.get("prior").fit(torch.from_numpy(logits), torch.from_numpy(labels))
np.testing.assert_array_equal(tensor.shift_, fitted.shift_)
twice = cal.get("prior").fit(logits, labels, np.full(300, 2.0), clusters=np.arange(300) // 3)
np.testing.assert_array_equal(twice.shift_, cal.get("prior").fit(np.tile(logits, (2, 1)), np.tile(labels, 2)).shift_)
sides = np.where(logits[:, 0] > 0, "left", "right")
grouped = cal.get("prior+group").fit(logits, labels, groups=sides)
assert grouped.predict_proba(logits, groups=sides).shape == (300, 4)
binary = cal.get("prior").fit(logits[:, 0], labels == 0)
assert binary.predict_proba(logits[:, 0]).shape == (300, 2)
np.savez("val.npz", logits=logits, labels=labels)
sys.argv = ["calibrant", "fit", "val.npz", "--method", "prior", "-o", "made.safetensors"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
np.testing.assert_allclose(cal.load("made.safetensors").predict_proba(logits), expected, atol=1e-6)
sys.path.insert(0, scripts)
import hooks
from mkdocs.config import load_config
nav = str(hooks.on_config(load_config(configuration)).nav)
assert "{'Prior shift': 'methods/prior-shift.md'}" in nav
print("all works")
"""


def section(title: str) -> str:
    """A recipe of CONTRIBUTING.md, from its title to the next recipe or to the checks."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.split(r"^## (?:Add a |The checks)", text[text.index(title) + len(title) :], maxsplit=1, flags=re.M)[0]


def follow_recipe(copy: Path) -> set[str]:
    """Do what CONTRIBUTING.md says; returns the files it names in its five steps."""
    recipe = section("## Add a calibrator")
    method, registry_lines, test, page = (
        block.body for block in blocks(recipe) if block.language in ("python", "markdown")
    )
    named = set(re.findall(r"^\*\*\d\. [^*]+\*\*.*?`([\w./-]+\.(?:py|md))`", recipe, flags=re.M))
    (copy / "src/calibrant/calibrators/prior_shift.py").write_text(method, encoding="utf-8")
    typing_line, table_line = registry_lines.splitlines()
    registry = copy / "src/calibrant/calibrators/registry.py"
    lines = registry.read_text(encoding="utf-8")
    lines = lines.replace("\n\nENTRY_POINTS", f"\n{typing_line}\n\nENTRY_POINTS", 1)
    lines = lines.replace("METHODS: dict[str, Method] = {\n", f"METHODS: dict[str, Method] = {{\n{table_line}\n", 1)
    registry.write_text(lines, encoding="utf-8")
    (copy / "tests/calibrators/test_prior_shift.py").write_text(test, encoding="utf-8")
    (copy / "docs/methods/prior-shift.md").write_text(page, encoding="utf-8")
    changelog = copy / "CHANGELOG.md"
    changelog.write_text(changelog.read_text(encoding="utf-8") + "- Prior shift.\n", encoding="utf-8")
    return named


def changed_files(before: Path, after: Path) -> set[str]:
    """Files that differ or are new, relative to the copy."""
    found = set()
    for path in after.rglob("*"):
        old = before / path.relative_to(after)
        if path.is_file() and not (old.exists() and filecmp.cmp(path, old, shallow=False)):
            found.add(str(path.relative_to(after)))
    return found


def run(command: list[str], folder: Path, copy: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def copied(copy: Path) -> Path:
    """A copy of what the recipes change and run."""
    for name in COPIED:
        source, target = ROOT / name, copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.nbi", "*.nbc"))
        else:
            shutil.copy(source, target)
    return copy


def test_the_recipe_for_a_calibrator_touches_five_files_and_everything_works(tmp_path: Path) -> None:
    copy, work = copied(tmp_path / "copy"), tmp_path / "work"
    work.mkdir()
    named = follow_recipe(copy)
    changed = changed_files(ROOT, copy)
    assert changed == named
    assert len(changed) == 5
    tests = [
        "tests/calibrators/test_prior_shift.py",
        "tests/contracts/test_calibrators.py",
        "tests/contracts/test_maps.py",
        "tests/shipping/test_artifact.py",
        "tests/shipping/test_onnx_export.py",
        "tests/calibrators/test_registry.py",
    ]
    checked = run(["-m", "pytest", *tests, "-k", "prior", "-p", "no:cacheprovider", "-q", "-n", "0"], copy, copy)
    assert checked.returncode == 0, checked.stdout[-3000:] + checked.stderr[-1000:]
    assert checked.stdout.count(".") > 15
    script = work / "works.py"
    script.write_text(WORKS, encoding="utf-8")
    done = run([str(script), str(copy / "docs/scripts"), str(copy / "mkdocs.yml")], work, copy)
    assert done.stdout.endswith("all works\n"), done.stdout + done.stderr


METRIC_WORKS = """
import sys, numpy as np, calibrant as cal
from calibrant.cli import main
rng = np.random.default_rng(0)
labels = rng.integers(0, 3, 400)
logits = 3 * (rng.normal(size=(400, 3)) + 2 * np.eye(3)[labels])
whole = cal.metrics.surety(logits, labels, from_logits=True)
chunked = cal.metrics.streaming("surety")
for rows in (slice(0, 150), slice(150, 400)):
    chunked.update(logits[rows], labels[rows], from_logits=True)
assert abs(chunked.value() - whole) < 1e-12
measured = cal.measure((logits, labels), resamples=20)
found = measured.metrics["surety"]
assert abs(found.value - whole) < 1e-12 and found.low <= whole <= found.high
assert measured.to_dict()["metrics"]["surety"]["value"] == found.value
assert "surety" in measured.to_frame().index
import torch
from calibrant.neural.metrics import CalibrationMetrics
training = CalibrationMetrics(metrics=["surety"])
for rows in (slice(0, 150), slice(150, 400)):
    training.update(torch.from_numpy(logits[rows]), torch.from_numpy(labels[rows]))
assert abs(training.compute()["surety"].item() - whole) < 1e-6
table = cal.compare((logits, labels), (logits, labels), ["none", "ts"], resamples=20, criterion="surety")
assert table.criterion == "surety" and "surety" in table.table().columns and "surety" in table.to_latex()
cal.write_report(table, "report.html")
assert "surety" in open("report.html").read()
np.savez("test.npz", logits=logits, labels=labels)
sys.argv = ["calibrant", "measure", "test.npz", "--resamples", "20", "--all", "--max", "surety=0.01"]
try:
    main()
except SystemExit as end:
    print("exit", end.code)
sys.path.insert(0, sys.path[0])
import importlib.util
spec = importlib.util.spec_from_file_location("metric_table", HOOKS)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
assert "| `surety` |" in module.metric_table()
print("all works")
"""


def test_a_metric_is_one_file_and_one_line_of_the_list(tmp_path: Path) -> None:
    copy, work = copied(tmp_path / "copy"), tmp_path / "work"
    work.mkdir()
    metric, line, test = (block.body for block in blocks(section("## Add a metric")) if block.language == "python")
    folder = copy / "src/calibrant/metrics"
    (folder / "surety.py").write_text(metric, encoding="utf-8")
    listed = (folder / "__init__.py").read_text(encoding="utf-8")
    (folder / "__init__.py").write_text(listed + line, encoding="utf-8")
    (copy / "tests/metrics/test_surety.py").write_text(test, encoding="utf-8")
    tests = ["tests/metrics/test_surety.py", "tests/contracts/test_metrics.py"]
    checked = run(["-m", "pytest", *tests, "-k", "surety", "-p", "no:cacheprovider", "-q"], copy, copy)
    assert checked.returncode == 0, checked.stdout[-3000:] + checked.stderr[-1000:]
    assert checked.stdout.count(".") > 8
    script = work / "works.py"
    table = repr(str(copy / "docs/scripts/metric_table.py"))
    script.write_text(METRIC_WORKS.replace("HOOKS", table), encoding="utf-8")
    done = run([str(script)], work, copy)
    assert done.stdout.endswith("exit 1\nall works\n"), done.stdout + done.stderr
    assert re.search(r"^surety % +\d+\.\d+ +\[", done.stdout, flags=re.M), done.stdout
    assert "surety is " in done.stdout


def test_a_loss_is_one_file_and_one_line_of_the_list(tmp_path: Path) -> None:
    copy = copied(tmp_path / "copy")
    loss, line, test = (block.body for block in blocks(section("## Add a loss")) if block.language == "python")
    folder = copy / "src/calibrant/neural/losses"
    (folder / "confidence_penalty.py").write_text(loss, encoding="utf-8")
    listed = (folder / "__init__.py").read_text(encoding="utf-8")
    (folder / "__init__.py").write_text(listed.replace("\nfrom ", f"\n{line}from ", 1), encoding="utf-8")
    (copy / "tests/neural/test_confidence_penalty.py").write_text(test, encoding="utf-8")
    tests = ["tests/neural/test_confidence_penalty.py", "tests/contracts/test_losses.py"]
    checked = run(["-m", "pytest", *tests, "-k", "confidence_penalty", "-p", "no:cacheprovider", "-q"], copy, copy)
    assert checked.returncode == 0, checked.stdout[-3000:] + checked.stderr[-1000:]
    assert checked.stdout.count(".") > 5
    script = (
        "import calibrant as cal, inspect; made = cal.losses.ConfidencePenaltyLoss\n"
        "print(made(0.2), inspect.signature(made), made.__doc__ == cal.losses.confidence_penalty.__doc__)"
    )
    done = run(["-c", script], copy, copy)
    assert done.stdout == "ConfidencePenaltyLoss(weight=0.2) (weight: 'float' = 0.1) True\n", done.stderr
