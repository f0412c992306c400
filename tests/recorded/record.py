"""Outputs of the library on fixed data, recorded so that a change of structure can be told from a change of figures.

`python tests/recorded/record.py [CASE ...]` writes them anew; a commit that does so says which figures changed and why.
Printed text may differ by one unit of a number's last digit and JSON by the bound in `test_recorded.py`, since
processors round sums differently; a constant clock masks fit times. Of HTML pages the numbers in tables are kept.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

Case = Callable[[Path], dict[str, str]]
"""What runs in a folder of files and gives outputs by the ending of the file that keeps them."""

OUTPUTS = Path(__file__).parent / "outputs"
NUMBER = re.compile(r"(?<![A-Za-z_#\d])[-−+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
N, K = 600, 4
CIFAR = ("cifar10-resnet18#val", "cifar10-resnet18#test")
METHODS = {
    "multiclass": "none,ts,cts,vs,sms,ets,sctl+ts,ts+top",
    "binary": "none,ts,platt,beta,iso,spline,va",
    "pairs": "none,ts,platt,hb",
    "multilabel": "none,platt,beta",
}


def rows(task: str, seed: int) -> dict[str, np.ndarray]:
    """Scores, labels, weights, groups and clusters of a task by the names that files use."""
    rng = np.random.default_rng(seed)
    ward = rng.choice(["north", "south", "west"], N)
    extra = {"ward": ward, "age": rng.integers(20, 90, N), "patient": rng.integers(0, N // 4, N)}
    extra["frequency"] = rng.integers(1, 4, N).astype(np.float64)
    if task == "multiclass":
        labels = rng.integers(0, K, N)
        logits = (1 + (ward == "west"))[:, None] * (rng.normal(size=(N, K)) + 1.5 * np.eye(K)[labels])
        return {"logits": logits, "labels": labels, **extra}
    if task == "multilabel":
        logits = 2 * rng.normal(size=(N, K)) - 1
        labels = (rng.random((N, K)) < 1 / (1 + np.exp(-logits / 2))).astype(np.int64)
        return {"probabilities": 1 / (1 + np.exp(-logits)), "labels": labels, **extra}
    score = 2 * rng.normal(size=N) - 1
    outcome = rng.random(N) < 1 / (1 + np.exp(-score / 2))
    if task == "pairs":
        return {"confidence": 1 / (1 + np.exp(-score)), "correct": outcome, **extra}
    return {"probability": 1 / (1 + np.exp(-score)), "labels": outcome.astype(np.int64), **extra}


def write_files(folder: Path) -> None:
    """Every file that the cases read."""
    for place, task in enumerate(METHODS):
        for part, name in enumerate(("val", "test")):
            np.savez(folder / f"{task}-{name}.npz", **rows(task, 10 * place + part))
    for name, scale in (("small", 1.0), ("large", 2.5)):
        parts = {}
        for part, seed in (("val", 61), ("test", 62)):
            one = rows("multiclass", seed)
            parts |= {f"{part}_logits": scale * one["logits"], f"{part}_labels": one["labels"]}
        np.savez(folder / f"model_{name}.npz", **parts)
    for corruption, strength in (("fog", 1.0), ("noise", 2.0)):
        for severity in (1, 2):
            one = rows("multiclass", 71)
            noise = np.random.default_rng(severity).normal(size=(N, K))
            logits = one["logits"] + strength * severity * noise
            np.savez(folder / f"{corruption}_{severity}.npz", logits=logits, labels=one["labels"])


def command(*arguments: str, report: bool = False) -> Case:
    """What a call of the command line prints, and the tables of the report that it writes."""

    def run(folder: Path) -> dict[str, str]:
        text = printed(folder, *arguments, *(("--report", "@report.html") if report else ()))
        if not report:
            return {"": text}
        tables = Tables()
        tables.feed((folder / "report.html").read_text(encoding="utf-8"))
        return {".txt": text, ".html": "".join(tables.found)}

    return run


def printed(folder: Path, *arguments: str) -> str:
    """What a call of the command line prints; @ stands for the folder."""
    from calibrant.cli.app import main

    out, err = io.StringIO(), io.StringIO()
    argv = ["calibrant", *(one.replace("@", f"{folder}/") for one in arguments)]
    with mock.patch.object(sys, "argv", argv), redirect_stdout(out), redirect_stderr(err):
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
    text = out.getvalue() + (f"exit {code}\n{err.getvalue()}" if code else "")
    return text.replace(f"{folder}/", "").replace(str(folder), "")


class Tables(HTMLParser):
    """The text of all cells of tables, one line per row."""

    def __init__(self) -> None:
        super().__init__()
        self.depth, self.found = 0, [""]

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.depth += tag == "table"
        if self.depth:
            self.found.append({"tr": "\n", "td": " | ", "th": " | "}.get(tag, " "))

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag == "table"

    def handle_data(self, data: str) -> None:
        if self.depth:
            self.found.append(" ".join(data.split()))


def functions(_: Path) -> dict[str, str]:
    """Every metric as a function: of a matrix and of one column, with and without weights, in memory and streamed."""
    from calibrant import metrics

    found: dict[str, Any] = {}
    for task in ("multiclass", "binary"):
        one = rows(task, 5)
        scores, labels = one["logits" if task == "multiclass" else "probability"], one["labels"]
        for weights in (None, one["frequency"]):
            options = {"sample_weight": weights, "from_logits": task == "multiclass"}
            for name in METRIC_NAMES + (BINARY_NAMES if task == "binary" else ()):
                value = getattr(metrics, name)(scores, labels, **options)
                found[f"{task}, {'weighted' if weights is not None else 'plain'}, {name}"] = plain_value(value)
    return {"": json.dumps(found)}


METRIC_NAMES = (
    "ece", "over_under_confidence", "adaptive_ece", "classwise_ece", "sce", "ace", "marginal_ece", "debiased_ece",
    "sweep_ece", "ks_error", "kuiper_error", "mce", "smooth_ece", "soft_ece", "mmce", "nll", "brier", "accuracy",
    "entropy", "confidence", "confidence_auroc", "aurc", "classwise_losses", "classwise_over_under", "reliability",
)  # fmt: skip
BINARY_NAMES = (
    "calibration_slope", "calibration_intercept", "observed_expected", "integrated_calibration_index", "e50", "e90",
    "threshold_metrics", "roc_auc", "average_precision", "score_decomposition",
)  # fmt: skip


def plain_value(value: Any) -> Any:
    """A metric's value as JSON holds it."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value if isinstance(value, float) else {name: plain_value(one) for name, one in vars(value).items()}


def streamed(_: Path) -> dict[str, str]:
    """Metrics over chunks of the embedded data."""
    import calibrant as cal

    names = ("ece", "nll", "brier", "accuracy", "sce", "debiased_ece", "soft_ece", "ks_error", "aurc", "adaptive_ece")
    return {"": json.dumps(cal.metrics.stream(cal.open_predictions(CIFAR[1]), names))}


def notebook(_: Path) -> dict[str, str]:
    """What a notebook and a console show of results."""
    import calibrant as cal

    val, test = (cal.open_predictions(part)[:1500] for part in CIFAR)
    table = cal.compare(val, test, ["none", "ts", "vs"], resamples=100)
    measured = cal.measure(test, resamples=100)
    shown = [repr(table), repr(measured), table.to_model_card()]
    tables = Tables()
    tables.feed(table._repr_html_() + measured._repr_html_())
    return {"": "\n".join([*shown, "".join(tables.found)])}


def cases() -> dict[str, Case]:
    """The recorded outputs by file name; of `.html` the numbers in tables are kept."""
    few = ("--resamples", "100")
    found: dict[str, Case] = {
        "functions.json": functions,
        "streamed.json": streamed,
        "notebook.txt": notebook,
        "cifar10-measure.txt": command("measure", CIFAR[1], "--all"),
        "cifar10-measure.json": command("measure", CIFAR[1], "--json"),
        "cifar100-measure.json": command("measure", "cifar100-resnet18#test", "--json", *few),
        "cifar10-compare": command("compare", *CIFAR, "-m", "all", *few, report=True),
    }
    for task, methods in METHODS.items():
        val, test = f"@{task}-val.npz", f"@{task}-test.npz"
        compare = ("compare", val, test, "-m", methods, *few)
        grouped = ("--by", "ward", "--cluster", "patient", "--weights", "frequency")
        found |= {
            f"{task}-measure.txt": command("measure", test, *few, "--max-ece", "0.01", "--all"),
            f"{task}-measure.json": command("measure", test, *few, "--json"),
            f"{task}-groups.txt": command("measure", test, *few, *grouped),
            f"{task}-groups.json": command("measure", test, *few, *grouped, "--json"),
            f"{task}-compare": command(*compare, "--by", "ward", report=True),
            f"{task}-compare.json": command(*compare, "--json"),
        }
    multiclass = ("compare", "@multiclass-val.npz", "@multiclass-test.npz", "-m", METHODS["multiclass"], *few)
    models = ("models", "@model_small.npz", "@model_large.npz", "-m", "none,ts,vs", "--pair", "none", *few)
    return found | {
        "multiclass-two-groups.json": command("measure", "@multiclass-test.npz", "--by", "ward,age:2", *few, "--json"),
        "multiclass-table.md": command(*multiclass, "--markdown", "--intervals"),
        "multiclass-table.tex": command(*multiclass, "--latex", "--intervals"),
        "models": command(*models, report=True),
        "models.json": command(*models, "--json"),
        "models.md": command(*models, "--markdown"),
        "models.tex": command(*models, "--latex"),
        "diff": difference,
        "shift": shifted,
    }


def difference(folder: Path) -> dict[str, str]:
    """`diff` of two comparisons, of which the later was made with other methods and other rows."""
    for name, methods in (("old", "none,ts,platt"), ("new", "none,beta,platt")):
        data = ("@binary-val.npz", "@binary-test.npz")[:: 1 if name == "old" else -1]
        text = printed(folder, "compare", *data, "-m", methods, "--resamples", "100", "--json")
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    options = {".txt": (), ".json": ("--json",), ".md": ("--markdown", "--all")}
    return {ending: printed(folder, "diff", "@old.json", "@new.json", *more) for ending, more in options.items()}


def shifted(folder: Path) -> dict[str, str]:
    """`shift` of one artifact over two corruptions."""
    printed(folder, "fit", "@multiclass-val.npz", "-m", "ts", "-o", "@ts.safetensors")
    files = [f"@{corruption}_{severity}.npz" for corruption in ("fog", "noise") for severity in (1, 2)]
    options = {".txt": (), ".json": ("--json",)}
    return {ending: printed(folder, "shift", "@ts.safetensors", *files, *more) for ending, more in options.items()}


def recorded(name: str, text: str) -> str:
    """An output as it is kept: JSON with nine digits, of a page the numbers of each row of its tables."""
    if name.endswith(".json"):
        return json.dumps(rounded(json.loads(text)), indent=None, separators=(",", ":")).replace(',"', ',\n"') + "\n"
    if name.endswith(".html"):
        lines = (" ".join(NUMBER.findall(line)) for line in text.splitlines())
        return "\n".join(line for line in lines if line) + "\n"
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def rounded(value: Any) -> Any:
    """Nine significant digits, and nothing that changes with the time or the version."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items() if name not in ("fit_seconds", "version")}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def make(names: list[str], keep: Callable[[str, str], None]) -> None:
    """Run the named cases in a folder of their own and hand over what they give."""
    still = mock.patch.object(time, "perf_counter", return_value=0.0)
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"COLUMNS": "100"}), still:
        write_files(Path(folder))
        for name in names:
            for ending, text in cases()[name](Path(folder)).items():
                keep(name + ending, recorded(name + ending, text))


def write(name: str, text: str) -> None:
    """Keep an output."""
    (OUTPUTS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    OUTPUTS.mkdir(exist_ok=True)
    make(sys.argv[1:] or list(cases()), write)
