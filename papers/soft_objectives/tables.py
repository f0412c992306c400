"""Turn committed results into the study's tables: `python papers/soft_objectives/tables.py` rewrites README's tables.

Every number comes from `results/*.jsonl` and `results/*.json`; none is typed in.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import figure_claims  # noqa: E402
from cells import RECIPE, SECONDARIES  # noqa: E402
from claims import CIFAR10_CLAIMS, CLAIMS, HALF_CLAIMS, OUR_CLAIMS, claim_rows  # noqa: E402
from settings import PRIMARY, SECONDARY, STRONG_DECAY, Setting  # noqa: E402
from tune import TUNING_SEED, choose, tracks  # noqa: E402

from verdicts import Claim, claims_markdown  # noqa: E402

Result = dict[str, Any]
OWN_DECAY = ", λ tuned"
NAMES = {
    "cross_entropy": "cross entropy",
    "focal": "focal",
    "brier": "Brier",
    "none": "none",
    "mmce": "MMCE, plain",
    "mmce_weighted": "MMCE",
    "avuc": "AvUC",
    "avuc_gs": "AvUC-GS",
    "soft_avuc": "soft AvUC",
    "soft_ece": "soft ECE",
    "soft_marginal_ece": "soft marginal ECE",
}


EPOCHS = 40
"""Of every run in the tables; a few early ones were longer."""


def read_runs(folder: Path) -> list[Result]:
    """All finished runs, each with its address FILE:LINE as "at"."""
    return [
        {**json.loads(line), "at": f"{path.name}:{number}"}
        for path in sorted(folder.glob("*.jsonl"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    ]


def read_results(folder: Path, dataset: str = "cifar100") -> list[Result]:
    """The finished runs of the study's length on one dataset; the first runs do not name theirs, CIFAR-100."""
    runs = [run for run in read_runs(folder) if run["recipe"]["epochs"] == EPOCHS]
    return [run for run in runs if run.get("data", "cifar100") == dataset]


def cell_rows(folder: Path) -> dict[str, list[Result]]:
    """The cells of CIFAR-10 by name, three seeds of the β that the paper's rule takes on the validation images."""
    runs = [run for run in read_runs(folder) if run["recipe"]["network"] == RECIPE.network]
    found = {}
    for cell in (f"{p}+{s}" for p in PRIMARY for s in ("none", *SECONDARIES)):
        mine = [run for run in runs if run["row"] == cell]
        best = choose([run for run in mine if run["seed"] == 0])["setting"]
        found[cell] = sorted((run for run in mine if run["setting"] == best), key=lambda run: run["seed"])
    return found


def cells_tuning(folder: Path) -> str:
    """ECE-15 and accuracy of the validation images of each tried β, the one taken in bold."""
    runs = [run for run in read_runs(folder) if run["recipe"]["network"] == RECIPE.network]
    body = []
    for cell, chosen in cell_rows(folder).items():
        tried = [run for run in runs if run["row"] == cell and run["seed"] == 0]
        if chosen[0]["setting"]["secondary"] == "none":
            continue
        words = []
        for run in sorted(tried, key=lambda run: run["setting"]["weight"]):
            held = run["validation"]
            text = f"β={run['setting']['weight']:g}: {100 * held['ece']:.2f} ({100 * held['accuracy']:.1f})"
            words.append(f"**{text}**" if run["setting"] == chosen[0]["setting"] else text)
        body.append([row_name(chosen[0]), *words])
    return markdown(["loss", "", "", "", ""], body)


def matched_rows(results: list[Result]) -> dict[str, list[Result]]:
    """Runs of AvUC and AvUC-GS by primary loss and β, for comparisons at one β."""
    found: dict[str, list[Result]] = {}
    for run in sorted(results, key=lambda run: (run["row"], run["setting"]["weight"], run["seed"])):
        if run["setting"]["secondary"] in ("avuc", "avuc_gs") and run["seed"] != TUNING_SEED:
            found.setdefault(f"{run['row']} β={run['setting']['weight']:g}", []).append(run)
    return found


def matched_table(results: list[Result], rows: dict[str, list[Result]]) -> str:
    """AvUC and AvUC-GS over β, beside the primary loss alone."""
    body = []
    for primary in ("cross_entropy", "focal", "brier"):
        cases = {f"{primary}+none": rows.get(f"{primary}+none", [])}
        cases |= {name: runs for name, runs in matched_rows(results).items() if name.startswith(f"{primary}+")}
        for runs in cases.values():
            if runs:
                cells = [percent(pick(runs, "test", "none", key)) for key in ("accuracy", "ece", "mass_ece")]
                weight = "" if runs[0]["setting"]["secondary"] == "none" else f"{runs[0]['setting']['weight']:g}"
                body.append(
                    [row_name(runs[0]), weight, str(len(runs)), *cells, percent(pick(runs, "test", "ts", "mass_ece"))]
                )
    return markdown(["loss", "β", "seeds", "accuracy", "ECE-15", "ECE₂", "ECE₂ + TS"], body)


def table_rows(results: list[Result]) -> dict[str, list[Result]]:
    """Runs of the table by cell, in the order of the paper's table 2; a cell with its own λ stands after the usual one.

    Of the settings tried in a cell, the one with most seeds is shown; of several with as many, the one tuning chose.
    """
    by_setting: dict[Setting, list[Result]] = {}
    for run in sorted(results, key=lambda run: run["seed"]):
        if run["seed"] != TUNING_SEED:
            by_setting.setdefault(Setting(**run["setting"]), []).append(run)
    order = [f"{p}+{s}{i}" for p in PRIMARY for s in SECONDARY for i in ("", " (interleaved)")]
    rows = {}
    for cell in order:
        for usual in (True, False):
            tried = [runs for one, runs in by_setting.items() if one.row == cell and one.usual_decay == usual]
            most = [runs[0] for runs in tried if len(runs) == max(map(len, tried))]
            if most:
                rows[cell + ("" if usual else OWN_DECAY)] = by_setting[Setting(**choose(most)["setting"])]
    return rows


def percent(values: list[float]) -> str:
    """Mean ± standard error in percent; a single value stands alone."""
    mean = 100 * statistics.mean(values)
    if len(values) < 2:
        return f"{mean:.2f}"
    return f"{mean:.2f} ± {100 * statistics.stdev(values) / math.sqrt(len(values)):.2f}"


def pick(runs: list[Result], *path: str) -> list[float]:
    """One figure of every run."""
    values = []
    for run in runs:
        value: Any = run
        for key in path:
            value = value[key]
        values.append(float(value))
    return values


def row_name(run: Result) -> str:
    """The row in words."""
    setting = run["setting"]
    name = NAMES[setting["primary"]] + (f" + {NAMES[setting['secondary']]}" if setting["secondary"] != "none" else "")
    return name + (", interleaved" if setting["interleaved"] else "") + ("" if _usual_decay(run) else OWN_DECAY)


def _usual_decay(run: Result) -> bool:
    return Setting(**run["setting"]).usual_decay


def parameters(run: Result) -> str:
    """β, κ and T of a run's secondary loss, and λ where it is not the usual one."""
    setting = run["setting"]
    if setting["secondary"] == "none":
        return ""
    parts = [f"β={setting['weight']:g}"]
    parts += [f"κ={setting['kappa']:g}"] if setting["kappa"] is not None else []
    parts += [f"T={setting['temperature']:g}"] if setting["temperature"] is not None else []
    parts += [] if _usual_decay(run) else [f"λ={setting['weight_decay']:g}"]
    return ", ".join(parts)


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def main_table(rows: dict[str, list[Result]]) -> str:
    """The paper's table 2 (and 1): accuracy, ECE-15, equal-mass ECE₂ raw, after TS and after TS-SB-ECE."""
    header = ["loss", "parameters", "seeds", "accuracy", "ECE-15", "ECE₂", "ECE₂ + TS", "ECE₂ + TS-SB-ECE"]
    body = []
    for runs in rows.values():
        test = [("test", "none", "accuracy"), ("test", "none", "ece"), ("test", "none", "mass_ece")]
        test += [("test", "ts", "mass_ece"), ("test", "ts-soft", "mass_ece")]
        cells = [percent(pick(runs, *path)) for path in test]
        body.append([row_name(runs[0]), parameters(runs[0]), str(len(runs)), *cells])
    return markdown(header, body)


def other_measures(rows: dict[str, list[Result]]) -> str:
    """The paper's tables 4, 6 and 3: KS error, mean-sweep and marginal ECE; proper scores; ECE-15 of training images.

    The last column says how many times larger the ECE-15 of the test set is: a network that has memorised its training
    set looks calibrated there.
    """
    header = ["loss", "ECE₂", "KS error", "sweep ECE₂", "marginal ECE₂ (mean)", "marginal ECE₂ (sum)", "NLL", "Brier"]
    header += ["mean entropy"]
    header += ["train ECE-15", "test : train"]
    body = []
    for runs in rows.values():
        cells = [
            percent(pick(runs, "test", "none", key)) for key in ("mass_ece", "ks_error", "sweep_ece", "marginal_ece")
        ]
        # √K times the mean over K = 100 classes
        cells.append(percent([10 * value for value in pick(runs, "test", "none", "marginal_ece")]))
        cells += [f"{statistics.mean(pick(runs, 'test', 'none', key)):.3f}" for key in ("nll", "brier", "entropy")]
        seen, unseen = pick(runs, "train", "ece"), pick(runs, "test", "none", "ece")
        ratio = statistics.mean(unseen) / statistics.mean(seen)
        body.append([row_name(runs[0]), *cells, percent(seen), f"{ratio:.2f}"])
    return markdown(header, body)


def seeds_of_cells(rows: dict[str, list[Result]]) -> str:
    """How many of the 18 cells have how many seeds, in words."""
    counts = [len(rows.get(cell, [])) for cell in figure_claims.CELLS]
    parts = [f"{counts.count(number)} with {number}" for number in sorted(set(counts), reverse=True)]
    return f"Seeds of the {len(counts)} cells: {', '.join(parts)}."


def marginal_table(results: list[Result], rows: dict[str, list[Result]]) -> str:
    """Soft marginal ECE as the secondary loss, trained once, beside focal alone and with soft ECE."""
    shown = [rows["focal+none"], rows["focal+soft_ece"]]
    shown += [[run] for run in results if run["setting"]["secondary"] == "soft_marginal_ece"]
    body = []
    for runs in shown:
        cells = [percent(pick(runs, "test", "none", key)) for key in ("accuracy", "mass_ece", "marginal_ece")]
        # √K times the mean over K = 100 classes
        cells.append(percent([10 * value for value in pick(runs, "test", "none", "marginal_ece")]))
        body.append([row_name(runs[0]), parameters(runs[0]), str(len(runs)), *cells])
    header = ["loss", "parameters", "seeds", "accuracy", "ECE₂", "marginal ECE₂ (mean)", "marginal ECE₂ (sum)"]
    return markdown(header, body)


def reweighted_table(results: list[Result], rows: dict[str, list[Result]]) -> str:
    """The reweighted MMCE on CIFAR-100 over β, beside the primary loss alone and with the plain MMCE."""
    by_setting: dict[Setting, list[Result]] = {}
    for run in sorted(results, key=lambda run: (run["setting"]["weight"], run["seed"])):
        if run["setting"]["secondary"] == "mmce_weighted":
            by_setting.setdefault(Setting(**run["setting"]), []).append(run)
    body = []
    for primary in PRIMARY:
        tried = [runs for setting, runs in by_setting.items() if setting.primary == primary]
        for runs in [rows[f"{primary}+none"], rows[f"{primary}+mmce"], *tried]:
            cells = [percent(pick(runs, "test", "none", key)) for key in ("accuracy", "ece", "mass_ece")]
            cells.append(percent(pick(runs, "test", "ts", "mass_ece")))
            body.append([row_name(runs[0]), parameters(runs[0]), str(len(runs)), *cells])
    return markdown(["loss", "parameters", "seeds", "accuracy", "ECE-15", "ECE₂", "ECE₂ + TS"], body)


def effect_sizes(rows: dict[str, list[Result]]) -> str:
    """The paper's figure 1: Cohen's d of each secondary loss on ECE₂, raw and after TS.

    d = (mean without − mean with)/s, s the pooled standard deviation over seeds where both rows have several, else
    that of the row without; positive is better.
    """
    body = []
    for runs in rows.values():
        setting = runs[0]["setting"]
        plain = rows.get(f"{setting['primary']}+none", [])
        if setting["secondary"] == "none" or len(plain) < 2 or not _usual_decay(runs[0]):
            continue
        cells = []
        for scaling in ("none", "ts"):
            without, with_it = pick(plain, "test", scaling, "mass_ece"), pick(runs, "test", scaling, "mass_ece")
            cells.append(f"{cohens_d(without, with_it):+.1f}")
        body.append([row_name(runs[0]), str(len(runs)), *cells])
    return markdown(["loss", "seeds", "d on ECE₂", "d on ECE₂ + TS"], body)


def cohens_d(without: list[float], with_it: list[float]) -> float:
    """Standardised difference of two means."""
    spread = statistics.variance(without)
    if len(with_it) > 1:
        total = (len(without) - 1) * spread + (len(with_it) - 1) * statistics.variance(with_it)
        spread = total / (len(without) + len(with_it) - 2)
    return (statistics.mean(without) - statistics.mean(with_it)) / math.sqrt(spread)


def shift_table(rows: dict[str, list[Result]], scaling: str) -> str:
    """The paper's figures 2 and 7 as numbers: ECE₂ by severity, mean over corruptions ± corrected standard error."""
    severities = [1, 2, 3, 4, 5]
    body = []
    for runs in (some for some in rows.values() if some[0]["shift"]):
        cells = [percent(pick(runs, "test", scaling, "mass_ece")).split(" ")[0]]
        for severity in severities:
            kinds = sorted({name.rsplit("-", 1)[0] for name in runs[0]["shift"]})
            by_run = [[run["shift"][f"{kind}-{severity}"][scaling]["mass_ece"] for kind in kinds] for run in runs]
            mean = statistics.mean(value for values in by_run for value in values)
            cells.append(f"{100 * mean:.2f}" + _within(by_run))
        body.append([row_name(runs[0]), *cells])
    return markdown(["loss", "severity 0", *(f"severity {severity}" for severity in severities)], body)


def _within(by_run: list[list[float]]) -> str:
    """± the standard error over runs once each corruption's own mean is taken out (Masson & Loftus 2003)."""
    if len(by_run) < 2:
        return ""
    kinds = len(by_run[0])
    kind_means = [statistics.mean(run[kind] for run in by_run) for kind in range(kinds)]
    residuals = [run[kind] - kind_means[kind] for run in by_run for kind in range(kinds)]
    degrees = (len(by_run) - 1) * kinds
    error = math.sqrt(sum(value**2 for value in residuals) / degrees / len(residuals))
    return f" ± {100 * error:.2f}"


def scaling_wins(rows: dict[str, list[Result]]) -> str:
    """How often TS-SB-ECE beats TS, in distribution and under shift."""
    counts = {"test set": [0, 0], "shifted sets": [0, 0]}
    for runs in rows.values():
        for run in runs:
            pairs = {"test set": [run["test"]], "shifted sets": list(run["shift"].values())}
            for where, cases in pairs.items():
                for case in cases:
                    counts[where][0] += case["ts-soft"]["mass_ece"] < case["ts"]["mass_ece"]
                    counts[where][1] += 1
    body = [[where, f"{won} of {total}"] for where, (won, total) in counts.items()]
    return markdown(["where", "TS-SB-ECE lower in ECE₂ than TS"], body)


def tuning_table(results: list[Result]) -> str:
    """Every tuning run by cell: what was tried, what validation said, what was chosen at the usual λ and overall."""
    header = ["loss", "parameters", "validation accuracy", "validation ECE-15", "confidence − accuracy", "chosen"]
    body = []
    for track in tracks():
        track.know(results, EPOCHS)
        usual = choose([run for run in track.results if _usual_decay(run)])
        overall = choose(track.results)
        for run in track.results:
            held = run["validation"]
            cells = [f"{100 * held['accuracy']:.2f}", f"{100 * held['ece']:.2f}"]
            cells.append(f"{100 * (held['confidence'] - held['accuracy']):+.2f}")
            cells.append("yes" if run is overall else "at the usual λ" if run is usual else "")
            body.append([row_name(run).removesuffix(OWN_DECAY), parameters(run), *cells])
    return markdown(header, body)


def after_decay_table(results: list[Result]) -> str:
    """β tuned again at the λ that tuning took: validation chooses, the test figures are those of the tuning seed."""
    header = ["loss", "parameters", "validation accuracy", "validation ECE-15", "chosen", "test accuracy", "test ECE₂"]
    body = []
    tuned = [run for run in results if run["seed"] == TUNING_SEED and run["setting"]["weight_decay"] == STRONG_DECAY]
    for name in dict.fromkeys(run["row"] for run in tuned):
        tried = sorted((run for run in tuned if run["row"] == name), key=lambda run: run["setting"]["weight"])
        for run in tried:
            held, test = run["validation"], run["test"]["none"]
            cells = [f"{100 * held['accuracy']:.2f}", f"{100 * held['ece']:.2f}", "yes" if run is choose(tried) else ""]
            cells += [f"{100 * test['accuracy']:.2f}", f"{100 * test['mass_ece']:.2f}"]
            body.append([row_name(run).removesuffix(OWN_DECAY), parameters(run), *cells])
    return markdown(header, body)


def dirichlet_table(folder: Path) -> str:
    """Post-hoc methods on the networks whose logits were kept: ECE₂ with its difference to TS (table 5)."""
    found = json.loads((folder / "post-hoc.json").read_text(encoding="utf-8"))
    body = [[network, method, *cells] for network, methods in found.items() for method, cells in methods.items()]
    return markdown(["network", "method", "accuracy", "ECE₂", "ECE₂ − that of TS"], body)


def cost_table(folder: Path) -> str:
    """What each secondary loss adds to a training step."""
    path = folder / "cost.json"
    if not path.exists():
        return "(not measured)"
    cost = json.loads(path.read_text())
    body = []
    for regime in ("eager", "captured"):
        if "share_of_step" not in cost.get(regime, {}):
            continue
        part = cost[regime]
        for name, share in part["share_of_step"].items():
            cells = [f"{part['step_ms']:.2f}", f"{part['added_ms'][name]:.2f}", f"{100 * share:.1f}%"]
            body.append([name, regime, *cells])
    return markdown(["loss", "mode", "step, ms", "added, ms", "share"], body)


def all_claims(results: list[Result]) -> list[Claim]:
    """The claims on CIFAR-100, then on CIFAR-10, then those at half resolution."""
    folder = HERE / "results"
    large = {**table_rows(results), **matched_rows(results)}
    small, half = table_rows(read_results(folder, "cifar10")), cell_rows(folder)
    networks = {
        f"{place} {name}": runs for place, rows in enumerate((large, small, half)) for name, runs in rows.items()
    }
    return [
        *claim_rows(large, [*CLAIMS, *figure_claims.CLAIMS]),
        *claim_rows(small, [*CIFAR10_CLAIMS, *figure_claims.CIFAR10_CLAIMS]),
        *claim_rows(half, [*HALF_CLAIMS, *figure_claims.HALF_CLAIMS]),
        *claim_rows(networks, OUR_CLAIMS),
    ]


def claims_data() -> str:
    """The claims with what judges them, as kept in results/claims.json."""
    found = [claim.to_dict() for claim in all_claims(read_results(HERE / "results"))]
    return json.dumps({"study": "soft_objectives", "claims": found}, indent=1, ensure_ascii=False) + "\n"


def filled(text: str) -> str:
    """The README with every table as the results have it."""
    results = read_results(HERE / "results")
    rows, small_rows = table_rows(results), table_rows(read_results(HERE / "results", "cifar10"))
    sections: dict[str, Callable[[], str]] = {
        "claims": lambda: claims_markdown(all_claims(results)).rstrip("\n"),
        "cells": lambda: main_table(cell_rows(HERE / "results")),
        "cells tuning": lambda: cells_tuning(HERE / "results"),
        "seeds": lambda: seeds_of_cells(rows),
        "matched": lambda: matched_table(results, rows),
        "main": lambda: main_table(rows),
        "cifar10": lambda: main_table(small_rows),
        "dirichlet": lambda: dirichlet_table(HERE / "results"),
        "reweighted": lambda: reweighted_table(results, rows),
        "measures": lambda: other_measures(rows),
        "marginal": lambda: marginal_table(results, rows),
        "effects": lambda: effect_sizes(rows),
        "shift": lambda: shift_table(rows, "none"),
        "shift ts": lambda: shift_table(rows, "ts"),
        "shift soft": lambda: shift_table(rows, "ts-soft"),
        "scaling": lambda: scaling_wins(rows),
        "tuning": lambda: tuning_table(results),
        "after decay": lambda: after_decay_table(results),
        "cost": lambda: cost_table(HERE / "results"),
    }
    for name, make in sections.items():
        head, found, rest = text.partition(f"<!-- {name} -->\n")
        if not found:
            raise SystemExit(f"README.md has no section {name!r}")
        text = head + found + make() + "\n" + rest[rest.index("<!-- end -->") :]
    return text


def main() -> int:
    """Rewrite the tables of README.md."""
    readme = HERE / "README.md"
    readme.write_text(filled(readme.read_text(encoding="utf-8")), encoding="utf-8")
    (HERE / "results" / "claims.json").write_text(claims_data(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
