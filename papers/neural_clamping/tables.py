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
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from studies.measuring import Estimate, evidence, read_measurements  # noqa: E402
from verdicts import MEASURED, Claim, Count, Evidence, claims_markdown  # noqa: E402

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
    return "\n".join(lines + published_rows(study))


def published_rows(study: Run) -> list[str]:
    """Rows of the published procedure; its fits would be rejected where the library checks the accuracy."""
    rows = []
    for section, variant, start, words in (
        ("published", "ce", "normal", "cross entropy"),
        ("published", "focal", "normal", "focal"),
        ("published", "focal", "data-driven", "focal, data-driven start"),
        (SMALL_START, "ce", "small normal", "cross entropy, start of the authors' code"),
        (SMALL_START, "focal", "small normal", "focal, start of the authors' code"),
        (SMALL_START, "focal", "data-driven", "focal, data-driven start"),
    ):
        if section not in study:
            continue
        found = runs_of(study[section], start, variant=variant)
        refused = sum(bool(run["refused"]) for run in found)
        about = f"{len(found)} seeds, ‖δ‖ = {statistics.mean(run['delta_norm'] for run in found):.2f}"
        about += f", refused {refused} of {len(found)}" if refused else ""
        name = f"Published procedure, {words}, {pair(study[section], variant)} ({about})"
        rows.append(f"| {name} | {cells([run['joint'] for run in found])} |")
    return rows


def output_rows(network: str) -> dict[str, Run]:
    """The columns of the output calibrators of a network, by method."""
    if not any(name.startswith(f"{network}/") for name in measured()):
        return dict(read(f"{network}-intervals")["rows"])
    rows: dict[str, Run] = {}
    for name, one in measured().items():
        owner, method, column = name.split("/")
        if owner == network:
            rows.setdefault(method, {})[column] = one.value
    order = ("No calibration", "T alone, same γ", *PRINTED)
    return {method: rows[method] for method in order}


def table_of(network: str) -> str:
    """Another network: output calibrators, T alone, and clamping at the pairs that its pool took."""
    study, rows = read(f"{network}-clamping"), output_rows(network)
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
    lines += published_rows(study)
    for variant, words in (("ce", "cross entropy"), ("focal", "focal")):
        if "printed" not in study:
            break
        pair_of = tuple(study["printed"]["variants"][variant])
        found = [run for run in study["printed"]["runs"] if (run["gamma"], run["penalty"]) == pair_of]
        norm = statistics.mean(run["delta_norm"] for run in found)
        chosen = f"γ = {pair_of[0]:g}, λ = {pair_of[1]:g} ({len(found)} seeds, ‖δ‖ = {norm:.2f})"
        for part, what in (("joint", ""), ("output_only", ", its T without δ")):
            name = f"From T = 1, normal start, γ and λ by the fitted rows{what}, {words}, {chosen}"
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
    for network in (SHOWN, LARGER):
        found = runs_of(read(f"{network}-clamping")["published"], "normal", variant="focal")
        for part, words in (("input_only", "δ only"), ("output_only", "T without δ"), ("joint", "both")):
            name = f"Published procedure, {SHORT[network]}, {words} ({len(found)} seeds)"
            lines.append(f"| {name} | {cells([run[part] for run in found])} |")
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
    """All claims; intervals are over resamples of the test rows unless stated otherwise."""
    return [
        *(row for network in (SHOWN, LARGER) for row in _network_claims(Procedure(network, "published"))),
        *_network_claims(Procedure(SHOWN, SMALL_START)),
        *(row for network in NAMES for row in _network_claims(Procedure(network))),
        *_choice_claims(),
        *(row for network in NAMES for row in _shift_claims(network)),
        *_own_claims(),
    ]


SMALL_START = "published_small_start"
"""The published procedure from the start of the authors' code."""


@dataclass(frozen=True)
class Procedure:
    """The procedure of a section of the results, by default that of the library, on one network."""

    network: str
    section: str = ""

    @property
    def name(self) -> str:
        """The network, and the procedure if it is not the published one."""
        words = {"published": "", SMALL_START: ", start of the authors' code", "": ", library's procedure"}
        return SHORT[self.network] + words[self.section]

    @property
    def study(self) -> Run:
        """The runs and the chosen pairs."""
        found = read(f"{self.network}-clamping")
        return dict(found[self.section] if self.section else found)

    @property
    def main_variant(self) -> str:
        """The variant whose ECE is compared; the paper's is that of the focal loss."""
        return "focal" if self.section else "both"

    @property
    def main_start(self) -> str:
        """The start of the paper's tables is random."""
        return {"published": "normal", SMALL_START: "small normal", "": "data-driven"}[self.section]

    @property
    def other_start(self) -> str:
        """The other start of figure 3."""
        return "data-driven" if self.section else "normal"

    @property
    def normal_start(self) -> str:
        """The random start."""
        return self.other_start if self.main_start == "data-driven" else self.main_start

    @property
    def prefix(self) -> str:
        """The reason why a claim is not one of the paper."""
        if self.network == FEWER:
            return "not on this network: "
        return {"published": "", SMALL_START: "not in print: ", "": "not this procedure: "}[self.section]

    def differences(self, start: str | None = None, variant: str | None = None) -> Differences:
        """Differences of the runs of a variant from a start."""
        start, variant = start or self.main_start, variant or self.main_variant
        key = _key(self.study, start, variant)
        runs = runs_of(self.study, start, variant=variant)
        about = {"file": f"{self.network}-clamping.json", "section": self.section}
        about |= {name: runs[0][name] for name in ("gamma", "penalty", "start", "rate")}
        return Differences(self.network, key + (" published" if self.section else ""), self.prefix, runs, about)


def _key(study: Run, start: str = "data-driven", variant: str = "both") -> str:
    gamma, penalty = study["variants"][variant]
    return f"γ={gamma:g} λ={penalty:g} {start} rate=0.001"


@cache
def measured() -> dict[str, Estimate]:
    """The measurements of the networks whose logits were measured by `intervals.py`."""
    path = HERE / "results" / "measurements.npz"
    return {name: one.named(name) for name, one in read_measurements(path).items()} if path.exists() else {}


class Differences:
    """Differences of the runs of several seeds to the other methods of a network.

    The value is the mean over seeds, as in the paper. The interval has two parts: resamples of the test rows, paired
    with the other method, for the first seed, of which the logits were kept, and Student's interval over the seeds. Its
    reach to each side is the root of the sum of their squares.
    """

    def __init__(self, network: str, key: str, prefix: str, runs: list[Run], about: Run) -> None:
        self.network, self.key, self.prefix, self.runs, self.about = network, key, prefix, runs, about
        self.stored = {} if f"{network}/{key}/ece" in measured() else read(f"{network}-intervals")["differences"][key]

    def __contains__(self, other: str) -> bool:
        return other in self.stored or self._name(other, "ece") in measured()

    def has_column(self, other: str, column: str) -> bool:
        """Return whether the difference to another method is known in a column."""
        return column in self.stored.get(other, {}) or self._name(other, column) in measured()

    def _name(self, other: str, column: str) -> str:
        return f"{self.network}/{f'{OWN} ({self.key})' if other == OWN else other}/{column}"

    def evidence(
        self, other: str, column: str, side: str, *, scale: float = 1.0, places: int = 4, margin: float = 0.0
    ) -> Evidence:
        """The evidence for a claim on the difference to another method in a column; the margin is in printed units."""
        if self.stored:
            path = ["differences", self.key, other, column]
            source = {"interval": "stored", "file": f"{self.network}-intervals.json", "scale": scale, "path": path}
            rows = Evidence(*(scale * one for one in self.stored[other][column]), source=source)
        else:
            gap = measured()[f"{self.network}/{self.key}/{column}"] - measured()[self._name(other, column)]
            rows = evidence(gap, side, scale=scale)
        joint, (name, rival) = [run["joint"][column] for run in self.runs], self._rival(other, column)
        value, low, high = _over([scale * (one - two) for one, two in zip(joint, rival, strict=True)])
        low, high = (
            value - math.hypot(value - low, rows.value - rows.low),
            value + math.hypot(high - value, rows.high - rows.value),
        )
        source = {"interval": "seeds", "scale": scale, **self.about, "column": column, "other": name}
        source["rows"] = {key: one for key, one in rows.source.items() if key != MEASURED}
        return Evidence(value, low, high, side=side, margin=margin, places=places, source=source)

    def _rival(self, other: str, column: str) -> tuple[str, list[float]]:
        """The name and the values of the other method for each seed; only runs without δ have one per seed."""
        if other == OWN:
            return "output_only", [run["output_only"][column] for run in self.runs]
        study = read(f"{self.network}-clamping")
        name = {"No calibration": "none", "Temperature scaling": "ts", "T alone, same γ": "T alone"}.get(other)
        if name:
            value = study[name][column]
        elif self.stored:
            name, value = "first seed", self.runs[0]["joint"][column] - self.stored[other][column][0]
        else:
            name = self._name(other, column)
            value = measured()[name].value
        return name, [value] * len(self.runs)

    def claim(self, claim: str, paper: str, difference: tuple[str, str], side: str = "below", **options: Any) -> Claim:
        """A claim on the difference to (another method, in a column)."""
        prefix = "" if paper.startswith("not ") else self.prefix
        judged = self.evidence(*difference, side, **options)
        return Claim(claim, prefix + paper, str(judged), judged)

    def accuracy_claim(self, claim: str) -> Claim:
        """A claim on the loss of accuracy; its margin is ours."""
        options = {"scale": 100, "places": 2, "margin": -0.5}
        return self.claim(claim, "not claimed", ("No calibration", "accuracy"), "above", **options)


def _network_claims(made: Procedure) -> list[Claim]:
    """Clamping against output calibrators, and its two starts."""
    name, found = made.name, made.differences()
    focal, plain = (made.differences(variant=one) for one in ("focal", "ce"))
    other = made.differences(made.other_start)
    rise = f"{name}: with the focal loss the entropy is higher than that of temperature scaling (table 1)"
    fall = f"{name}: with cross entropy the entropy is lower than that of temperature scaling (table 1)"
    temperature, same = "Temperature scaling", f"{name}: lower ECE than T alone, fitted by itself to the same loss"
    # T was fitted without δ for the γ of the library only
    only_t = [] if made.section else [found.claim(same, "not studied", ("T alone, same γ", "ece"))]
    return [
        *_against_outputs(name, found),
        focal.claim(rise, "0.8991 → 0.9983 (ResNet-110)", (temperature, "entropy"), "above"),
        plain.claim(fall, "0.8991 → 0.8697 (ResNet-110)", (temperature, "entropy")),
        *_own_temperature_claims(made),
        *only_t,
        found.claim(f"{name}: lower log loss than temperature scaling", "not claimed", (temperature, "nll")),
        found.accuracy_claim(f"{name}: accuracy falls by less than half a point (margin of ours)"),
        other.accuracy_claim(
            f"{name}: accuracy falls by less than half a point from the {made.other_start} start (margin of ours)"
        ),
        *(_spread_claim(made, column, words) for column, words in SPREADS.items()),
    ]


def _against_outputs(name: str, found: Differences) -> list[Claim]:
    """ECE against the output calibrators of table 1, ACE and SCE against some."""
    claims = []
    for other, printed in PRINTED.items():
        if other in found:
            claim, paper = f"{name}: lower ECE than {_small(other)} (table 1)", f"{printed:.4f} → 0.0085 (ResNet-110)"
            claims.append(found.claim(claim, paper, (other, "ece")))
    for other, ace in (("Temperature scaling", "0.0163"), ("TS (grid searched)", "0.0143"), ("MS-ODIR", "0.0199")):
        claim = f"{name}: lower ACE than {_small(other)} (table 1)"
        claims.append(found.claim(claim, f"{ace} → 0.0095 (ResNet-110)", (other, "ace")))
    for other, sce in (("Vector scaling", "0.0021"), ("Dir-ODIR", "0.0019")):
        if found.has_column(other, "sce"):
            claim = f"{name}: lower SCE than {_small(other)} (table 1)"
            claims.append(found.claim(claim, f"{sce} → 0.0018 (ResNet-110)", (other, "sce"), places=5))
    return claims


def _own_temperature_claims(made: Procedure) -> list[Claim]:
    """Table 3 and Theorem 1: the joint fit against its own temperature without δ.

    Table 3 has the random start of the paper's tables. The δ of Theorem 1 is the data-driven start.
    """
    tables, theorem, normal = made.differences(), made.differences("data-driven"), made.differences(made.normal_start)
    return [
        found.claim(f"{made.name}: {claim}", paper, (OWN, column), side)
        for found, claim, paper, column, side in (
            (
                tables,
                "δ lowers the ECE at the T of the joint fit (table 3)",
                "0.0119 → 0.0085 (ResNet-110)",
                "ece",
                "below",
            ),
            (
                theorem,
                "δ from the data-driven start raises the entropy at the same T (Theorem 1)",
                "by δᵀg > 0",
                "entropy",
                "above",
            ),
            (
                normal,
                "δ from the normal start raises the entropy at the same T",
                "not claimed: 0.9881 → 0.9983 (table 3, ResNet-110)",
                "entropy",
                "above",
            ),
        )
    ]


def _over(values: list[float]) -> list[float]:
    """Mean and Student interval of some runs; a single run has no interval."""
    from scipy.stats import t as student

    value = statistics.mean(values)
    if len(values) < 2:
        return [value, value, value]
    reach = float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return [value, value - reach, value + reach]


SPREADS = {"entropy": "entropy", "ece": "ECE", "ace": "ACE", "sce": "SCE"}
"""The four panels of figure 3."""


def _spread_claim(made: Procedure, column: str, words: str) -> Claim:
    """The variance over seeds of both starts, with the F interval of their ratio."""
    from scipy.stats import f as ratio

    values = {
        name: [run["joint"][column] for run in runs_of(made.study, start, variant=made.main_variant)]
        for name, start in (("data-driven", "data-driven"), ("normal", made.normal_start))
    }
    spread = {start: statistics.stdev(some) for start, some in values.items()}
    quotient = (spread["data-driven"] / spread["normal"]) ** 2
    degrees = [len(some) - 1 for some in values.values()]
    low, high = quotient / ratio.ppf(0.975, *degrees), quotient / ratio.ppf(0.025, *degrees)
    text = (
        f"standard deviation {spread['normal']:.5f} → {spread['data-driven']:.5f} over {len(values['normal'])} seeds; "
        f"ratio of variances {quotient:.2f} [{low:.2f}, {high:.2f}]"
    )
    source = {"interval": "variances", "first": values["data-driven"], "second": values["normal"]}
    # on the scale of log₁₀, where the margin is 0
    judged = Evidence(*(math.log10(one) for one in (quotient, low, high)), source=source)
    claim = f"{made.name}: {words} spreads less from the data-driven start (figure 3)"
    return Claim(claim, f"{made.prefix}figure 3", text, judged)


def _own_claims() -> list[Claim]:
    """Scales of features, and the logits that a network gives again."""
    worst = max(run["before"] - run["after"] for runs in read("scales").values() for run in runs)
    count = sum(len(runs) for runs in read("scales").values())
    words = f"largest loss of {count} runs on four problems: {worst:.2f} points"
    claim = "Ours: features on scales 1e-3 to 1e4 cost at most 1 point"
    rows = [Claim(claim, "not studied", words, Count({"largest loss": worst}, most=1))]
    for name, one in read("stored-logits").items():
        changed = f"{one['predictions changed']} predictions changed"
        words = f"largest difference {one['largest']:.2f} over {one['rows']:,} images, {changed}"
        claim = f"Ours: {name} gives its stored logits to 0.05"
        rows.append(Claim(claim, "not studied", words, Count({"largest difference": one["largest"]}, most=0.05)))
    return rows


def _choice_claims() -> list[Claim]:
    rows = []
    for name, words in NAMES.items():
        study = read(f"{name}-clamping")
        gamma, penalty = study["variants"]["chosen"]
        taken = f"γ = {gamma:g}, {'T alone' if penalty == 'T alone' else f'λ = {penalty:g}'}"
        judged = Count({"T alone": float(penalty == "T alone")}, most=0)
        rows.append(Claim(f"Held-out ECE and accuracy choose a pair with δ: {words}", "not claimed", taken, judged))
        rows += [_rise_claim(Procedure(name, "published"), words)] if name != FEWER else []
        rows.append(_rise_claim(Procedure(name), words))
    return rows


def _rise_claim(made: Procedure, words: str) -> Claim:
    """Figure 2: the entropy over γ, on the fitted rows (published) or on held-out rows."""
    penalty = 0.001 if made.section else 10.0
    scores = [one for one in made.study["scores"] if one["penalty"] == penalty]
    points = sorted((one["gamma"], one["entropy"]) for one in scores)
    rises = {f"γ = {after[0]:g}": after[1] - before[1] for before, after in itertools.pairwise(points)}
    source = {"file": f"{made.network}-clamping.json", "section": made.section, "penalty": penalty}
    span = f"{points[0][1]:.3f} at γ = {points[0][0]:g} to {points[-1][1]:.3f} at γ = {points[-1][0]:g}"
    claim = f"The entropy rises with γ at each step (figure 2): {words}"
    claim += "" if made.section else ", library's procedure"
    return Claim(claim, f"{made.prefix}seen in the figure", span, Count(rises, least=1e-6, source=source))


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
            source = {"interval": "student", "values": [round(value, 8) for value in values]}
            judged = Evidence(*_over(values), places=4, df=len(values) - 1, cases=cases, source=source)
            rows.append(Claim(claim, "not studied", str(judged), judged))
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
