"""Read tables with known metrics and count those that are read correctly, rejected, or misread.

    python benchmarks/front_door.py tables FOLDER         # FOLDER/expected.json lists the files, see below
    python benchmarks/front_door.py tables --builder DIR  # DIR holds modules forms and traps that write the tables
    python benchmarks/front_door.py ablation FOLDERS      # the same without one rule or guard after another
    python benchmarks/front_door.py honest FILES...       # .npz files with scores and labels, written as tables

`expected.json` maps a file to {"right": …, "figures": …}. `right` is {"refuse": true} where no reading may be used
without a doubt; `figures` are the metrics (`n`, `ece` of the predicted class or `ece_pos` of the positive class) of the
correct reading, a list of them where several are correct, or null where there is none.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import calibrant as cal
from calibrant.core.errors import InputError

TOLERANCE = 2.5e-3
ORDER = ("right", "right with a doubt", "right after the first command", "rejected", "rejected with a wrong command",
         "misread with a doubt", "MISREAD")  # fmt: skip
HONEST_ROWS = (100, 500, None)


def compute_metrics(found: cal.Predictions) -> dict[str, float]:
    """Return the number of rows and the calibration errors of the predicted and the positive class."""
    p, y = found.probabilities, found.labels
    if found.task == "multilabel":
        errors = [cal.metrics.ece(p[:, place], y[:, place]) for place in range(p.shape[1])]
        return {"n": found.n, "ece": float(np.mean(errors))}
    made = {"n": found.n, "ece": float(cal.metrics.ece(p, y))}
    if found.task == "binary":
        made["ece_pos"] = made["ece"]
    elif found.task == "multiclass" and p.shape[1] == 2:
        made["ece_pos"] = float(cal.metrics.ece(p[:, 1], y))
    return made


def agrees(found: dict[str, float], expected: Any) -> bool:
    """Return whether metrics are those of (one of) the correct readings."""
    wanted = expected if isinstance(expected, list) else [expected] if expected else []
    for one in wanted:
        names = [name for name in ("ece", "ece_pos") if name in found and name in one]
        if one["n"] == found["n"] and any(abs(one[name] - found[name]) < TOLERANCE for name in names):
            return True
    return False


def open_table(path: Any, **options: Any) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the metrics of a table as it is read, and the doubts of its reading."""
    found = cal.open_predictions(path, **options)
    reading = getattr(found, "reading", None)
    return compute_metrics(found), () if reading is None else reading.doubts


def judge_table(path: Any, expected: dict[str, Any]) -> tuple[str, str]:
    """Return the outcome of reading a table, and its message."""
    figures, rejects = expected["figures"], expected["right"].get("refuse")
    try:
        found, doubts = open_table(path)
    except InputError as error:
        commands = getattr(error, "remedies", None) or ([error.remedy] if error.remedy else [])
        if not commands:
            return "rejected", str(error)
        try:
            found, _ = open_table(path, **commands[0])
        except InputError as again:
            return "rejected with a wrong command", f"{error} -> {again}"
        if agrees(found, figures):
            return "right after the first command", str(error)
        return "rejected with a wrong command", str(error)
    right = agrees(found, figures) and not rejects
    words = ("right" if right else "misread") + " with a doubt" * bool(doubts)
    return words.replace("misread", "MISREAD") if words == "misread" else words, "; ".join(doubts)


def judge_folder(folder: Path) -> dict[str, tuple[str, str]]:
    """Return the outcome of each table of a folder."""
    expected = json.loads((folder / "expected.json").read_text())
    return {name: judge_table(folder / name, one) for name, one in expected.items()}


def build_tables(builder: Path, folder: Path) -> Iterator[Path]:
    """Write forms, traps and known traps by the modules of a folder."""
    sys.path.insert(0, str(builder))
    made = {"forms": ("forms", "build"), "traps": ("traps", "build"), "known": ("traps", "known")}
    for name, (module, function) in made.items():
        expected = getattr(importlib.import_module(module), function)(str(folder / name))
        (folder / name / "expected.json").write_text(json.dumps(expected))
        yield folder / name


def report(title: str, outcomes: dict[str, tuple[str, str]], shown: bool) -> None:
    """Print the number of tables of each outcome, and the tables that are not read correctly."""
    counts = Counter(outcome for outcome, _ in outcomes.values())
    print(f"{title}: {len(outcomes)} tables; " + ", ".join(f"{counts[one]} {one}" for one in ORDER if counts[one]))
    for name, (outcome, message) in outcomes.items() if shown else ():
        if outcome != "right":
            print(f"  {name:<40} {outcome:<30} {message[:220]}")


def ablations() -> dict[str, dict[str, Any]]:
    """What replaces names of `calibrant.data.recognize` when a rule or a guard is left out."""
    from calibrant.data import recognize

    def without(**fields: Any) -> Any:
        return lambda *given: original(*given)._replace(**fields)

    original, groups = recognize.judge, recognize.column_groups
    return {
        "all rules and guards": {},
        "rule: columns that sum to one": {"column_groups": lambda _: ()},
        "rule: columns with names alike": {"column_groups": lambda table: (one for one in groups(table) if one[1])},
        "rule: columns named like labels": {
            "column_groups": lambda table: (one for one in groups(table) if not one[1])
        },
        "rule: answers next to labels": {"propose_answers": lambda *_: ()},
        "rule: many labels": {"propose_label_matrices": lambda *_: ()},
        "guard: names say probability": {"SCORE_WORDS": _Everything()},
        "guard: association": {"EVIDENCE": -np.inf, "PAIR_EVIDENCE": -np.inf},
        "guard: labels equal the predictions": {"judge": without(echoed=False)},
        "guard: order of classes": {"judge": without(order=None)},
        "guard: names of answers": {"ANSWER_WORDS": frozenset()},
        "guard: other readings": {"rivals_of": lambda *_: []},
        "guard: training rows and copies": {"check_rows": lambda *_: []},
        "guard: ranks and rescaled scores": {"is_rescaled": lambda _: False},
        "guard: confidence of a guess": {"is_confidence": lambda _: True},
        "guard: reversed labels": {"turned_around": lambda _: None},
        "guard: columns of other sums": {"is_unfit": lambda _: False},
    }


class _Everything(frozenset):  # type: ignore[type-arg]
    """A set of words that shares a word with any name."""

    def __rand__(self, other: Any) -> Any:
        return other


def report_ablations(folders: list[Path]) -> None:
    """Print a table of outcomes per rule or guard that is left out."""
    from calibrant.data import recognize

    print(f"| left out | {' | '.join(ORDER)} |\n|{' --- |' * (len(ORDER) + 1)}")
    for title, changes in ablations().items():
        before = {name: getattr(recognize, name) for name in changes}
        vars(recognize).update(changes)
        counts = Counter(outcome for folder in folders for outcome, _ in judge_folder(folder).values())
        vars(recognize).update(before)
        print(f"| {title} | {' | '.join(str(counts[one]) for one in ORDER)} |", flush=True)


def honest_tables(file: Path) -> Iterator[tuple[str, Any, Any, Any]]:
    """The rows of each part of a file as (name, scores, labels, form): columns of probabilities, or one probability."""
    with np.load(file) as stored:
        arrays = dict(stored)
    for prefix in sorted({name.rpartition("_")[0] for name in arrays}):
        head = f"{prefix}_" if prefix else ""
        labels = arrays.get(head + "labels", arrays.get(head + "correct"))
        scores = next((arrays[head + name] for name in ("probabilities", "logits", "probability", "confidence")
                       if head + name in arrays), None)  # fmt: skip
        if scores is None or labels is None or len(labels) != len(scores) or labels.ndim > 1:
            continue
        scores = scores.astype(float)
        if head + "logits" in arrays:
            scores = np.exp(scores - scores.max(1, keepdims=True))
            scores /= scores.sum(1, keepdims=True)
        yield f"{file.stem}#{prefix}", scores, labels


def judge_honest(files: list[Path], sizes: tuple[int | None, ...], shown: bool) -> None:
    """Write files of honest predictions as tables and count those that are read at once, and doubted."""
    import pandas as pd

    rng = np.random.default_rng(0)
    total, outcomes, doubted, healthy = 0, Counter(), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            for name, scores, labels in honest_tables(file):
                for size in sizes:
                    rows = rng.permutation(len(labels))[:size]
                    p, y = scores[rows], labels[rows].astype(int)
                    forms = {}
                    if p.ndim == 2:
                        forms["prob_0…"] = pd.DataFrame(p, columns=[f"prob_{k}" for k in range(p.shape[1])])
                        if p.shape[1] == 2:
                            forms["probability"] = pd.DataFrame({"probability": p[:, 1]})
                    else:
                        forms["probability"] = pd.DataFrame({"probability": p})
                    one = p[:, 1] if p.ndim == 2 and p.shape[1] == 2 else p
                    for form, frame in forms.items():
                        path = Path(folder) / "table.csv"
                        frame.assign(label=y).to_csv(path, index=False)
                        total += 1
                        try:
                            with warnings.catch_warnings():
                                warnings.simplefilter("ignore")
                                found = cal.open_predictions(path)
                            np.testing.assert_array_equal(found.labels, y)
                            doubts = getattr(getattr(found, "reading", None), "doubts", ())
                            outcome = "read with a doubt" if doubts else "read"
                        except InputError as error:
                            outcome, doubts = "rejected", (str(error),)
                        outcomes[outcome] += 1
                        if one.ndim == 1:
                            wrong, area = (
                                ((one > 0.5) != y).sum(),
                                cal.metrics.roc_auc(one, y) if 0 < y.sum() < len(y) else 0,
                            )
                        else:
                            top, hit = one.max(1), one.argmax(1) == y
                            wrong, area = (~hit).sum(), cal.metrics.roc_auc(top, hit) if 0 < hit.sum() < len(y) else 0
                        if wrong >= 20 and area >= 0.7:
                            healthy += 1
                            doubted += outcome == "read with a doubt"
                        if shown and doubts:
                            print(f"  {name} n={len(y)} {form}: {outcome}: {doubts}")
    print(f"honest: {total} tables; {dict(outcomes)}; {doubted} of {healthy} with AUC >= .7 and 20 errors doubted")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("tables", "ablation", "honest"))
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--builder", type=Path, help="folder of modules that write tables")
    parser.add_argument("--show", action="store_true", help="list the tables that are not read correctly")
    parser.add_argument("--most", type=int, help="rows of honest tables at most, in place of 100, 500 and all")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.mode == "honest":
        judge_honest(given.paths, (given.most,) if given.most else HONEST_ROWS, given.show)
        return
    if given.mode == "ablation":
        report_ablations(given.paths)
        return
    with tempfile.TemporaryDirectory() as folder:
        for path in [*given.paths, *(build_tables(given.builder, Path(folder)) if given.builder else ())]:
            report(path.name, judge_folder(path), given.show)


if __name__ == "__main__":
    main()
