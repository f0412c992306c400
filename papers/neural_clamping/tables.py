"""Turn committed results into the study's tables: `python papers/neural_clamping/tables.py` rewrites README's tables.

Every number comes from `results/*.json`; none is typed in.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from verdicts import Claim, Evidence, claims_markdown  # noqa: E402

NAMES = {
    "c100_resnet20_ce": "CIFAR-100, ResNet-20",
    "c10_resnet20_ce": "CIFAR-10, ResNet-20",
    "c100_resnet18": "CIFAR-100, ResNet-18",
}
SHORT = {"c100_resnet20_ce": "ResNet-20", "c10_resnet20_ce": "CIFAR-10 ResNet-20", "c100_resnet18": "ResNet-18"}
SHOWN, FEWER, LARGER = NAMES
"""The network with every run, the one of ten classes, and the larger one."""
COLUMNS = ("accuracy", "entropy", "ece", "ace", "sce", "nll")
HEADER = "| method | accuracy | entropy ↑ | ECE ↓ | ACE ↓ | SCE ↓ | log loss ↓ |\n|" + " --- |" * 7
Run = dict[str, Any]


def read(name: str) -> Any:
    """A result."""
    return json.loads((HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))


def cells(runs: list[Run]) -> str:
    """Mean ± standard deviation over runs of each column."""
    words = []
    for column in COLUMNS:
        values = [run[column] for run in runs if column in run]
        if not values:
            words.append("")
            continue
        scale, digits = (100, 2) if column == "accuracy" else (1, 4)
        text = f"{scale * statistics.mean(values):.{digits}f}"
        if len(values) > 1:
            text += f" ± {scale * statistics.stdev(values):.{digits}f}"
        words.append(text)
    return " | ".join(words)


def runs_of(study: Run, start: str, rate: float = 0.001, variant: str = "both") -> list[Run]:
    """The runs of one pair of γ and λ from one start at one learning rate."""
    gamma, penalty = study["variants"][variant]
    wanted = (gamma, penalty, start, rate)
    return [run for run in study["runs"] if (run["gamma"], run["penalty"], run["start"], run["rate"]) == wanted]


def pair(study: Run, variant: str) -> str:
    """γ and λ of a variant in words."""
    gamma, penalty = study["variants"][variant]
    return f"γ = {gamma:g}, " + ("T alone" if penalty == "T alone" else f"λ = {penalty:g}")


def table_one() -> str:
    """Output calibrators beside Neural Clamping (the paper's table 1)."""
    study, outputs = read(f"{SHOWN}-clamping"), read(f"{SHOWN}-outputs")
    lines = [HEADER] + [f"| {method} | {cells([figures])} |" for method, figures in outputs["rows"].items()]
    for variant, words in (("ce", "cross entropy"), ("focal", "focal")):
        runs = [run["joint"] for run in runs_of(study, "data-driven", variant=variant)]
        lines.append(f"| Neural Clamping, {words}, {pair(study, variant)} ({len(runs)} seeds) | {cells(runs)} |")
    return "\n".join(lines)


def table_of(network: str) -> str:
    """Another network: output calibrators, T alone, and clamping at the pairs that its pool took."""
    study, rows = read(f"{network}-clamping"), read(f"{network}-intervals")["rows"]
    known = {"No calibration": study["none"], "Temperature scaling": study["ts"], "T alone, same γ": study["T alone"]}
    lines = [HEADER]
    for method, figures in rows.items():
        if not method.startswith(("γ=", OWN)):
            lines.append(
                f"| {method} | {cells([figures | {'sce': known[method]['sce']} if method in known else figures])} |"
            )
    for variant, start, words in (
        ("ce", "data-driven", "cross entropy"),
        ("focal", "data-driven", "focal"),
        ("focal", "normal", "focal, normal start"),
    ):
        found = runs_of(study, start, variant=variant)
        refused = sum(bool(run["refused"]) for run in found)
        about = f"{len(found)} seeds, ‖δ‖ = {statistics.mean(run['delta_norm'] for run in found):.2f}"
        about += f", refused {refused} of {len(found)}" if refused else ""
        name = f"Neural Clamping, {words}, {pair(study, variant)} ({about})"
        lines.append(f"| {name} | {cells([run['joint'] for run in found])} |")
    for variant, words in (("ce", "cross entropy"), ("focal", "focal")):
        if "printed" not in study:
            break
        pair_of = tuple(study["printed"]["variants"][variant])
        found = [run for run in study["printed"]["runs"] if (run["gamma"], run["penalty"]) == pair_of]
        norm = statistics.mean(run["delta_norm"] for run in found)
        chosen = f"γ = {pair_of[0]:g}, λ = {pair_of[1]:g} ({len(found)} seeds, ‖δ‖ = {norm:.2f})"
        for part, what in (("joint", ""), ("output_only", ", its T without δ")):
            name = f"Procedure in print{what}, {words}, {chosen}"
            lines.append(f"| {name} | {cells([run[part] for run in found])} |")
    return "\n".join(lines)


def table_three() -> str:
    """δ alone, T alone, both (the paper's table 3), both starts (figure 3) and a faster descent."""
    study = read(f"{SHOWN}-clamping")
    lines = [HEADER, f"| no calibration | {cells([study['none']])} |"]
    parts = [
        ("input_only", "δ alone", "data-driven", 0.001),
        ("output_only", "T of the joint fit, without δ", "data-driven", 0.001),
    ]
    parts += [
        ("joint", "both, data-driven start", "data-driven", 0.001),
        ("joint", "both, normal start", "normal", 0.001),
    ]
    parts += [("joint", "both, data-driven start, rate 0.1", "data-driven", 0.1)]
    parts += [("joint", "both, normal start, rate 0.1", "normal", 0.1)]
    for part, words, start, rate in parts:
        found = runs_of(study, start, rate)
        norm = statistics.mean(run["delta_norm"] for run in found)
        refused = sum(bool(run["refused"]) for run in found)
        about = (
            ""
            if part == "output_only"
            else f", ‖δ‖ = {norm:.2f}" + (f", refused {refused} of {len(found)}" if refused else "")
        )
        lines.append(f"| {words} ({len(found)} seeds{about}) | {cells([run[part] for run in found])} |")
    return "\n".join(lines)


def pool_table() -> str:
    """Held-out ECE and accuracy of every pair, every network."""
    lines = ["| γ | λ | " + " | ".join(NAMES.values()) + " |", "|" + " --- |" * (2 + len(NAMES))]
    scores = {
        name: {(one["gamma"], str(one["penalty"])): one for one in read(f"{name}-clamping")["scores"]} for name in NAMES
    }
    chosen = {name: read(f"{name}-clamping")["variants"]["chosen"] for name in NAMES}
    for gamma, penalty in sorted({key for one in scores.values() for key in one}, key=lambda key: (key[1], key[0])):
        row = []
        for name in NAMES:
            one = scores[name].get((gamma, penalty))
            if one is None:
                row.append("")
                continue
            text = f"{one['ece']:.4f} ({100 * one['accuracy']:.2f})" + ("†" if one["loses_accuracy"] else "")
            row.append(f"**{text}**" if [gamma, penalty] == [chosen[name][0], str(chosen[name][1])] else text)
        lines.append(f"| {gamma:g} | {penalty} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def shift_table(network: str = SHOWN) -> str:
    """Fitted on clean images, tested on corrupted ones: mean over five corruptions."""
    shift = read(f"{network}-clamping")["shift"]
    names = list(next(iter(shift.values())))
    lines = ["| method | " + " | ".join(f"severity {level}" for level in range(1, 6)) + " |", "|" + " --- |" * 6]
    for name in names:
        row = []
        for level in range(1, 6):
            some = [cell[name] for key, cell in shift.items() if key.endswith(f"-{level}")]
            row.append(
                " / ".join(f"{100 * statistics.mean(one[part] for one in some):.2f}" for part in ("ece", "accuracy"))
            )
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def scales_table() -> str:
    """Accuracy before and after clamping where features differ in scale."""
    lines = ["| problem | runs | largest loss of accuracy, points | δ taken | refused | T |", "|" + " --- |" * 6]
    for name, runs in read("scales").items():
        loss = max(run["before"] - run["after"] for run in runs)
        temperatures = [run["temperature"] for run in runs]
        taken, refused = sum(run["delta"] for run in runs), sum(run["refused"] for run in runs)
        span = f"{min(temperatures):.2f}–{max(temperatures):.2f}"
        lines.append(f"| {name} | {len(runs)} | {loss:.2f} | {taken} | {refused} | {span} |")
    return "\n".join(lines)


PRINTED = {
    "Temperature scaling": 0.0172, "TS (grid searched)": 0.0133, "Vector scaling": 0.0146, "Matrix scaling": 0.3726,
    "MS-ODIR": 0.0206, "Dir-ODIR": 0.0195,
}  # fmt: skip
"""ECE of the paper's table 1 with ResNet-110; Neural Clamping has 0.0085."""

OWN = "its own T, without δ"


def claim_rows() -> list[Claim]:
    """Every claim; intervals are over resamples of the test rows unless said otherwise."""
    return [
        *(row for network in NAMES for row in _network_claims(network)),
        *(row for network in NAMES for row in _printed_claims(network)),
        *_choice_claims(),
        *(row for network in NAMES for row in _shift_claims(network)),
        *_own_claims(),
    ]


def _key(study: Run, start: str = "data-driven", variant: str = "both") -> str:
    gamma, penalty = study["variants"][variant]
    return f"γ={gamma:g} λ={penalty:g} {start} rate=0.001"


def _network_claims(network: str) -> list[Claim]:
    """Clamping at the best pair with δ against output calibrators, and its two starts."""
    study, differences = read(f"{network}-clamping"), read(f"{network}-intervals")["differences"]
    found, name = differences[_key(study)], SHORT[network]
    claims = _against_outputs(name, found)
    focal, plain = (differences[_key(study, variant=one)]["Temperature scaling"] for one in ("focal", "ce"))
    claim = f"{name}: with the focal loss the entropy is higher than that of temperature scaling (table 1)"
    claims.append(_claim(claim, "0.8991 → 0.9983 (ResNet-110)", focal["entropy"], "above"))
    claim = f"{name}: with cross entropy it is lower (table 1)"
    claims.append(_claim(claim, "0.8991 → 0.8697 (ResNet-110)", plain["entropy"], "below"))
    claims += _own_temperature_claims(network)
    claim = f"{name}: lower ECE than T alone, fitted by itself to the same loss"
    claims.append(_claim(claim, "not studied", found["T alone, same γ"]["ece"], "below"))
    claim = f"{name}: lower log loss than temperature scaling"
    claims.append(_claim(claim, "not said", found["Temperature scaling"]["nll"], "below"))
    claim = f"{name}: accuracy falls by less than half a point"
    claims.append(_accuracy_claim(claim, "74.15 → 73.69 (ResNet-110)", found))
    claim = f"{name}: … also from the normal start with the paper's variance of 0.01"
    claims.append(_accuracy_claim(claim, "not said", differences[_key(study, "normal")]))
    return claims + [_spread_claim(study, name, column, words) for column, words in SPREADS.items()]


def _against_outputs(name: str, found: Run) -> list[Claim]:
    """ECE against every output calibrator of table 1, ACE and SCE against some."""
    claims = []
    for other, printed in PRINTED.items():
        if other in found:
            claim = f"{name}: lower ECE than {_small(other)} (table 1)"
            claims.append(_claim(claim, f"{printed:.4f} → 0.0085 (ResNet-110)", found[other]["ece"], "below"))
    for other, printed in (("Temperature scaling", "0.0163"), ("TS (grid searched)", "0.0143"), ("MS-ODIR", "0.0199")):
        claim = f"{name}: lower ACE than {_small(other)} (table 1)"
        claims.append(_claim(claim, f"{printed} → 0.0095 (ResNet-110)", found[other]["ace"], "below"))
    for other, printed in (("Vector scaling", "0.0021"), ("Dir-ODIR", "0.0019")):
        if "sce" in found.get(other, {}):
            claim = f"{name}: lower SCE than {_small(other)} (table 1)"
            claims.append(_claim(claim, f"{printed} → 0.0018 (ResNet-110)", found[other]["sce"], "below", places=5))
    return claims


def _own_temperature_claims(network: str) -> list[Claim]:
    """Table 3 and Theorem 1: the joint fit against its own temperature without δ.

    Over resamples of the test rows where the logits of the run were kept, else over seeds.
    """
    study, name = read(f"{network}-clamping"), SHORT[network]
    kept = read(f"{network}-intervals")["differences"][_key(study)].get(OWN)
    runs = runs_of(study, "data-driven")
    gaps = {key: [run["joint"][key] - run["output_only"][key] for run in runs] for key in ("ece", "entropy")}
    parts = kept if kept is not None else {key: _over(values) for key, values in gaps.items()}
    df = None if kept is not None else len(runs) - 1
    note = "" if kept is not None else f"; over {len(runs)} seeds"
    claims = []
    for claim, printed, key, side in (
        (
            f"{name}: δ lowers the ECE at the T of the joint fit (table 3)",
            "0.0119 → 0.0085 (ResNet-110)",
            "ece",
            "below",
        ),
        (f"{name}: δ raises the entropy at the same T (Theorem 1)", "0.9881 → 0.9983 (ResNet-110)", "entropy", "above"),
    ):
        lower = sum((gap < 0) == (side == "below") for gap in gaps[key])
        evidence = Evidence(*parts[key], side=side, places=4, df=df, cases=f"{lower} of {len(runs)} seeds")
        claims.append(Claim(claim, printed, f"{evidence}{note}", evidence))
    return claims


def _printed_claims(network: str) -> list[Claim]:
    """The procedure in print: normal start, T from 1, γ and λ by the ECE of the fitted rows, no guard."""
    study, differences = read(f"{network}-clamping"), read(f"{network}-intervals")["differences"]
    if "printed" not in study:
        return []
    gamma, penalty = study["printed"]["variants"]["focal"]
    found = differences[f"γ={gamma:g} λ={penalty:g} printed rate=0.001"]
    name = f"{SHORT[network]}, procedure in print"
    claims = [
        _claim(
            f"{name}: lower ECE than {_small(other)}", f"{PRINTED[other]:.4f} → 0.0085", found[other]["ece"], "below"
        )
        for other in PRINTED
    ]
    claim = f"{name}: δ lowers the ECE at the T of the joint fit"
    claims.append(_claim(claim, "0.0119 → 0.0085", found[OWN]["ece"], "below"))
    claims.append(_accuracy_claim(f"{name}: accuracy falls by less than half a point", "74.15 → 73.69", found))
    return claims


def _claim(claim: str, paper: str, interval: list[float], side: str, places: int = 4) -> Claim:
    evidence = Evidence(*interval, side=side, places=places)
    return Claim(claim, paper, str(evidence), evidence)


def _accuracy_claim(claim: str, paper: str, found: Run) -> Claim:
    loss = [100 * one for one in found["No calibration"]["accuracy"]]
    evidence = Evidence(*loss, side="above", margin=-0.5)
    return Claim(claim, paper, str(evidence), evidence)


def _over(values: list[float]) -> list[float]:
    """Mean and Student interval of some runs."""
    from scipy.stats import t as student

    value = statistics.mean(values)
    reach = float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return [value, value - reach, value + reach]


SPREADS = {"entropy": "entropy", "ece": "ECE", "ace": "ACE", "sce": "SCE"}
"""The four panels of figure 3."""


def _spread_claim(study: Run, name: str, column: str, words: str) -> Claim:
    """The variance over seeds of both starts, by an F interval."""
    from scipy.stats import f as ratio

    values = {start: [run["joint"][column] for run in runs_of(study, start)] for start in ("data-driven", "normal")}
    spread = {start: statistics.stdev(some) for start, some in values.items()}
    quotient = (spread["data-driven"] / spread["normal"]) ** 2
    degrees = [len(some) - 1 for some in values.values()]
    low, high = quotient / ratio.ppf(0.975, *degrees), quotient / ratio.ppf(0.025, *degrees)
    text = (
        f"standard deviation {spread['normal']:.5f} → {spread['data-driven']:.5f} over {len(values['normal'])} seeds; "
        f"ratio of variances {quotient:.2f} [{low:.2f}, {high:.2f}]"
    )
    # on the scale of log₁₀, where the margin is 0
    evidence = Evidence(*(math.log10(one) for one in (quotient, low, high)))
    return Claim(f"{name}: {words} spreads less from the data-driven start (figure 3)", "figure 3", text, evidence)


def _own_claims() -> list[Claim]:
    """Scales of features, and the logits that a network gives again."""
    worst = max(run["before"] - run["after"] for runs in read("scales").values() for run in runs)
    count = sum(len(runs) for runs in read("scales").values())
    words = f"largest loss of {count} runs on four problems: {worst:.2f} points"
    claim = "Ours: features on scales 1e-3 to 1e4 cost at most 1 point"
    rows = [Claim(claim, "not studied", words, worst <= 1)]
    for name, one in read("stored-logits").items():
        changed = f"{one['predictions changed']} predictions changed"
        words = f"largest difference {one['largest']:.2f} over {one['rows']:,} images, {changed}"
        claim = f"Ours: {name} gives its stored logits to 0.05"
        rows.append(Claim(claim, "not studied", words, one["largest"] <= 0.05))
    return rows


def _choice_claims() -> list[Claim]:
    rows = []
    for name, words in NAMES.items():
        study = read(f"{name}-clamping")
        gamma, penalty = study["variants"]["chosen"]
        taken = f"γ = {gamma:g}, {'T alone' if penalty == 'T alone' else f'λ = {penalty:g}'}"
        claim = f"Held-out ECE and accuracy choose a pair with δ: {words}"
        rows.append(Claim(claim, "always", taken, penalty != "T alone"))
        best = study["variants"]["both"][0]
        claim = f"A focal loss is chosen over cross entropy among pairs with δ: {words}"
        rows.append(Claim(claim, "γ > 0", f"γ = {best:g}", best > 0))
        points = sorted((one["gamma"], one["entropy"]) for one in study["scores"] if one["penalty"] == 10.0)
        rising = all(after[1] > before[1] for before, after in itertools.pairwise(points))
        span = f"{points[0][1]:.3f} at γ = {points[0][0]:g} to {points[-1][1]:.3f} at γ = {points[-1][0]:g}"
        claim = f"The entropy rises with γ at every step (figure 2): {words}"
        rows.append(Claim(claim, "seen in the figure", span, rising))
    return rows


def _shift_claims(network: str) -> list[Claim]:
    """Clamping against TS on corrupted images; corruptions are the units of the t interval."""
    study, name = read(f"{network}-clamping"), SHORT[network]
    key, rows = _key(study), []
    # T alone at γ = 0 is temperature scaling itself
    rivals = ("ts", "T alone") if study["variants"]["both"][0] > 0 else ("ts",)
    for column, words in (("ece", "ECE"), ("nll", "log loss")):
        for rival in rivals:
            kinds: dict[str, list[float]] = {}
            for corruption, cell in study["shift"].items():
                gap = cell[key][column] - cell[rival][column]
                kinds.setdefault(corruption.rsplit("-", 1)[0], []).append(gap)
            values = [statistics.mean(some) for some in kinds.values()]
            other = "TS" if rival == "ts" else "T alone"
            claim = f"{name}: lower {words} than {other} on corrupted images"
            wins = sum(value < 0 for value in values)
            cases = f"{wins} of {len(values)} corruptions"
            evidence = Evidence(*_over(values), places=4, df=len(values) - 1, cases=cases)
            rows.append(Claim(claim, "not studied", str(evidence), evidence))
    return rows


def _small(name: str) -> str:
    return name[0].lower() + name[1:] if name.endswith(" scaling") else name


def claims() -> str:
    """The claims as a table for each kind."""
    return claims_markdown(claim_rows()).rstrip("\n")


def claims_data() -> str:
    """The claims with what judges them, as kept in results/claims.json."""
    found = {"study": "neural_clamping", "claims": [claim.to_dict() for claim in claim_rows()]}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


SECTIONS: dict[str, Callable[[], str]] = {
    "claims": claims,
    "table 1": table_one,
    "table 3": table_three,
    "larger": lambda: table_of(LARGER),
    "fewer": lambda: table_of(FEWER),
    "pool": pool_table,
    "shift": shift_table,
    "shift larger": lambda: shift_table(LARGER),
    "shift fewer": lambda: shift_table(FEWER),
    "scales": scales_table,
}


def filled(text: str) -> str:
    """The README with every table as the results have it."""
    for name, make in SECTIONS.items():
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
