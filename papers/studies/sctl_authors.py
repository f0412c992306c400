"""Table 2 of Jung et al. 2023 on its authors' own long-tailed CIFAR-10 networks, beside the figures of their logs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from calibrant.calibrators.registry import get
from calibrant.evaluation.bootstrap import draw
from studies.measuring import (
    Measured,
    above_zero,
    count_measured,
    each,
    fit_and_measure,
    lower,
    name_all,
    percent,
    pooled,
    signed,
)
from studies.networks import Network, read_network
from studies.sctl_ablation import Shape, ablation_fits, shape_of
from studies.sctl_calibrators import BASES, calibrator_with_loss, plain_calibrator
from studies.study import Table, by_row
from verdicts import Claim, Count

PREFIX = "sctl_c10lt_"
NETWORKS = ("densenet40", "resnet_wide28", "resnet110", "resnet110_SD")
LOSSES = {"LS": "label_smoothing", "FL": "focal", "FL, detached": "focal_detached", "Ours": "cross_entropy"}
NO_OBJECTIVE = ("PTS", "focal_detached")
"""The detached loss is no objective to minimize, and refits of the network do not settle on its fixed point."""

CLOSE = 0.10
"""Points within which a printed value comes out, a choice of ours: their optimizers stop before the optimum."""

DATA = "on CIFAR-10-LT (table 2)"

# test ECE in %, in the order of NETWORKS, from the log files that the authors published with their code
LOGGED: dict[str, tuple[float, ...]] = {
    "Uncalibrated": (21.08, 9.11, 19.14, 14.43),
    "TS": (6.16, 4.47, 5.94, 6.84),
    "ETS": (6.15, 4.46, 5.93, 6.84),
    "PTS": (6.10, 4.43, 5.90, 6.76),
    "CTS": (6.02, 4.16, 5.74, 7.36),
    "TS+LS": (8.16, 2.44, 8.99, 2.90),
    "ETS+LS": (0.74, 1.54, 1.49, 1.63),
    "PTS+LS": (1.02, 1.67, 1.12, 1.50),
    "CTS+LS": (8.13, 2.59, 8.94, 4.59),
    "TS+FL": (7.24, 1.68, 8.45, 4.33),
    "ETS+FL": (9.57, 11.69, 9.51, 9.85),
    "PTS+FL": (10.52, 12.42, 10.20, 10.24),
    "CTS+FL": (9.82, 1.35, 10.58, 2.60),
    "TS+Ours": (3.22, 3.19, 3.53, 2.53),
    "ETS+Ours": (3.08, 3.17, 3.40, 2.39),
    "PTS+Ours": (3.13, 3.16, 3.47, 2.40),
    "CTS+Ours": (2.79, 1.99, 2.96, 2.19),
}

PRINTED = {**LOGGED, "TS+LS": (8.16, 2.24, 8.99, 2.90)}
"""What the paper has; for one cell it is not what the log has."""

Fits = Mapping[str, Mapping[str, Measured]]


@dataclass(frozen=True)
class Authors:
    """Tables, claims, fits and the shapes of the class weights; empty where the networks are absent."""

    tables: list[Table] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    fits: dict[str, dict[str, Measured]] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)


def authors_study(folder: str | os.PathLike[str], resamples: int, seed: int, workers: int) -> Authors:
    """The table and its claims; nothing where the networks are absent."""
    home = Path(folder) / "external"
    paths = [home / f"{PREFIX}{name}.npz" for name in NETWORKS]
    if not all(path.is_file() for path in paths):
        return Authors()
    networks = [read_network(path) for path in paths]
    results = dict(zip(NETWORKS, each(_fit, networks, workers, resamples, seed), strict=True))
    fits = {name: result[0] for name, result in results.items()}
    shapes = {name: result[1] for name, result in results.items()}
    return Authors([_table(fits)], _claims(fits), fits, shapes)


def _fit(network: Network, resamples: int, seed: int) -> tuple[dict[str, Measured], Shape]:
    drawn = draw(len(network.test_labels), resamples, seed)
    fits = {"Uncalibrated": fit_and_measure(get("none"), network, drawn)}
    for base in BASES:
        fits[base] = fit_and_measure(plain_calibrator(base), network, drawn)
        for word, loss in LOSSES.items():
            if (base, loss) != NO_OBJECTIVE:
                fits[f"{base}+{word}"] = fit_and_measure(calibrator_with_loss(base, loss), network, drawn)
        first = calibrator_with_loss(base, "cross_entropy", alpha_beta="first_step")
        fits[f"{base}+Ours, first step"] = fit_and_measure(first, network, drawn)
    shape = shape_of(network, fits["TS+Ours"].calibrator)
    return name_all({**fits, **ablation_fits(network, drawn)}, network.name), shape


def _table(fits: Fits) -> Table:
    names = list(next(iter(fits.values())))
    names.insert(names.index("PTS+FL") + 1, "PTS+FL, detached")
    columns, texts = [], []
    for place, (network, fit) in enumerate(fits.items()):
        columns += [network, f"{network}, logged"]
        texts.append([_cell(fit[name]) if name in fit else "—" for name in names])
        logged = {name.replace("+FL", "+FL, detached"): figures[place] for name, figures in LOGGED.items()}
        texts.append([f"{logged[name]:.2f}" if name in logged else "—" for name in names])
    note = (
        "Test ECE (accuracy) in %, 15 bins, of converged fits and of the authors' logs, which agree with the paper "
        "except for TS+LS of resnet_wide28 (2.24 in print). Their L-BFGS and Adam stop after 1,000 steps, their ETS "
        "mixes logits, and their focal loss is detached, so that their values are in that row. FL: focal loss as "
        "printed. PTS has the paper's weight decay. † the refits had not settled."
    )
    return Table("Table 2 on the authors' networks", tuple(columns), by_row(names, texts), note)


def _cell(fit: Measured) -> str:
    return f"{percent(fit.ece.value)}{'' if fit.settled else '†'} ({percent(fit.accuracy.value)})"


def _claims(fits: Fits) -> list[Claim]:
    claims = [_closeness(fits, base) for base in ("TS", "ETS", "CTS")]
    for base in BASES:
        words, holds = lower([fit[f"{base}+Ours"].ece - fit[base].ece for fit in fits.values()])
        logged = [f"{LOGGED[f'{base}+Ours'][place] - LOGGED[base][place]:+.2f}" for place in range(len(NETWORKS))]
        paper = ", ".join(logged).replace("-", "−")
        claims.append(Claim(f"Class-loss scaling lowers the ECE of {base} {DATA}", paper, words, holds))
    claims += [_against(fits, base, "LS", _printed(base, "LS")) for base in BASES]
    claims += [_against(fits, base, "FL", _printed(base, "FL")) for base in BASES]
    for base in BASES:
        if (base, "focal_detached") != NO_OBJECTIVE:
            paper = f"not in print, the loss of the authors' code: {_printed(base, 'FL')}"
            claims.append(_against(fits, base, "FL, detached", paper))
    raised = pooled([fit["CTS+Ours"].accuracy - fit["CTS"].accuracy for fit in fits.values()])
    words = f"{signed(raised)} points"
    claims.append(Claim(f"CTS+Ours raises accuracy {DATA}", "+1.58 to +3.33", words, above_zero(raised)))
    steps = {
        f"{base} {network}": 100 * abs(fit[f"{base}+Ours"].ece.value - fit[f"{base}+Ours, first step"].ece.value)
        for network, fit in fits.items()
        for base in BASES
    }
    words = f"ECE differs by at most {max(steps.values()):.2f} points"
    claim = "α and β chosen after the first step instead of a refit change the ECE by less than 0.05 points"
    claims.append(Claim(claim, "not claimed", words, Count(steps, most=0.05)))
    return claims


def _closeness(fits: Fits, base: str) -> Claim:
    rows = (base, f"{base}+Ours")
    ours = {f"{row} {network}": fit[row].ece for network, fit in fits.items() for row in rows}
    logged = {f"{row} {network}": LOGGED[row][place] for place, network in enumerate(fits) for row in rows}
    judged = count_measured(ours, -CLOSE, CLOSE, printed=logged)
    off = judged.values
    worst = max(off, key=lambda name: abs(off[name]))
    words = f"{judged.within} of {len(off)} within {CLOSE:.2f}; worst {off[worst]:+.2f} ({worst})".replace("-", "−")
    claim = f"Table 2, CIFAR-10-LT, {base} and {base}+Ours: all printed values come out within {CLOSE:.2f} points"
    return Claim(claim, "printed", words, judged)


def _against(fits: Fits, base: str, loss: str, paper: str) -> Claim:
    """Class-loss scaling against another loss, with the values of the latter."""
    words, judged = lower([fit[f"{base}+Ours"].ece - fit[f"{base}+{loss}"].ece for fit in fits.values()])
    rivals = ", ".join(percent(fit[f"{base}+{loss}"].ece.value) for fit in fits.values())
    name = loss.replace(", detached", " with a stopped gradient")
    claim = f"{base}+Ours has a lower ECE than {base}+{name} {DATA}"
    return Claim(claim, paper, f"{words}; {name} here {rivals}", judged)


def _printed(base: str, loss: str) -> str:
    pairs = zip(PRINTED[f"{base}+Ours"], PRINTED[f"{base}+{loss}"], strict=True)
    return ", ".join(f"{ours:.2f}/{other:.2f}" for ours, other in pairs)
