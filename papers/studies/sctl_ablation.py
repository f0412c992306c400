"""What the gain of class-loss scaling is made of: class means alone, printed sums, and the bounds of α and β.

Temperature scaling is refitted with class weights in three ways: w = 0 (every class counts the same, eq. 8 without
eq. 5), the method, and the method with eq. 3 as printed, sums over the rows of a class instead of means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

from calibrant.calibrators.class_loss import choose_shape, class_weights
from calibrant.calibrators.registry import get
from calibrant.core.softmax import log_softmax
from calibrant.evaluation.bootstrap import Resamples
from studies.measuring import Estimate, Measured, fit_and_measure, lower, percent
from studies.networks import Network
from studies.study import Table, by_row
from verdicts import Claim, Count

REFITS, SETTLED = 200, 1e-9
UNBOUNDED = 1e3
"""An α of this size is on its way to infinity, and where the search stops depends on the processor."""

EQUAL, SUMS = "TS, w = 0", "TS+Ours, sums"


class Weighted:
    """Temperature scaling on rows weighed by class: equally, or by eq. 5 of the summed losses."""

    def __init__(self, *, sums: bool) -> None:
        self.sums = sums

    def fit(self, logits: np.ndarray, labels: np.ndarray) -> Weighted:
        """One fit, or refits until the weights belong to the losses they produce."""
        count = np.bincount(labels, minlength=logits.shape[1])
        present = count > 0
        if not self.sums:
            self.calibrator = get("ts").fit(logits, labels, rescaled(1 / count[labels]))
            return self
        before = class_losses(logits, labels, sums=True)
        weights, (alpha, beta) = class_weights(before, "normal", 1.0, 1.5), (1.0, 1.5)
        for refit in range(REFITS):
            factors = np.zeros(len(count))
            factors[present] = 1 + weights
            self.calibrator = get("ts").fit(logits, labels, rescaled(factors[labels]))
            after = class_losses(self.calibrator.transform(logits), labels, sums=True)
            if refit == 0:
                alpha, beta = choose_shape(before, after, "normal", logits.shape[1])
            target = class_weights(after, "normal", alpha, beta)
            if np.abs(target - weights).max() < SETTLED:
                break
            weights = (weights + target) / 2
        return self

    def transform(self, logits: np.ndarray) -> np.ndarray:
        """Scaled logits."""
        return self.calibrator.transform(logits)


def rescaled(weights: np.ndarray) -> np.ndarray:
    """Weights that count as many rows as there are."""
    return weights * (len(weights) / weights.sum())


def class_losses(logits: np.ndarray, labels: np.ndarray, *, sums: bool = False) -> np.ndarray:
    """Mean (or summed) log loss of every class that has rows."""
    count = np.bincount(labels, minlength=logits.shape[1])
    own = -log_softmax(logits.astype(np.float64))[np.arange(len(labels)), labels]
    losses = np.bincount(labels, own, minlength=len(count))[count > 0]
    return losses if sums else losses / count[count > 0]


@dataclass(frozen=True)
class Shape:
    """α and β as the method takes them, whether one lies on a bound, and the free minimiser of eq. 6."""

    alpha: float
    beta: float
    bounded: bool
    free_alpha: float
    free_beta: float


def shape_of(network: Network, fitted: Any) -> Shape:
    """The bounds of the fit beside eq. 6 without them (α > 0 by the symmetry of eq. 5)."""
    logits, labels = network.val_logits, network.val_labels
    highest = max(0.1, 0.5 * float(np.log(network.n_classes)))
    alpha, beta = float(fitted.alpha_), float(fitted.beta_)
    on_bound = min(abs(alpha - 0.1), abs(alpha - highest)) < 1e-6 or min(abs(beta - 1.5), abs(beta - 2.0)) < 1e-6
    before = class_losses(logits, labels)
    count = np.bincount(labels, minlength=logits.shape[1])
    factors = np.zeros(len(count))
    factors[count > 0] = (1 + class_weights(before, "normal", 1.0, 1.5)) / count[count > 0]
    after = class_losses(get("ts").fit(logits, labels, rescaled(factors[labels])).transform(logits), labels)

    def spread(shape: np.ndarray) -> float:
        weights = class_weights(after, "normal", float(shape[0]), float(shape[1]))
        return float(np.linalg.norm(before - weights * (after - before) - after.mean()))

    found = minimize(spread, [1.0, 1.5], method="Nelder-Mead", options={"maxiter": 4000, "xatol": 1e-6, "fatol": 1e-12})
    sign = 1.0 if found.x[0] > 0 else -1.0
    return Shape(alpha, beta, bool(on_bound), sign * float(found.x[0]), sign * float(found.x[1]))


def ablation_fits(network: Network, drawn: Resamples) -> dict[str, Measured]:
    """Temperature scaling with w = 0, and by printed sums."""
    return {
        EQUAL: fit_and_measure(Weighted(sums=False), network, drawn),
        SUMS: fit_and_measure(Weighted(sums=True), network, drawn),
    }


def ablation_table(fits: Mapping[str, Mapping[str, Measured]], shapes: Mapping[str, Shape]) -> Table:
    """ECE of each way, and α and β with and without bounds."""
    names = ["TS", EQUAL, "TS+Ours", SUMS, "α, β", "α, β without bounds"]
    columns = []
    for network, fit in fits.items():
        shape = shapes[network]
        cells = [percent(fit[name].ece.value) for name in names[:4]]
        cells.append(f"{shape.alpha:.2f}, {shape.beta:.2f}{' (on a bound)' if shape.bounded else ''}")
        free = f"{shape.free_alpha:.2g}, {shape.free_beta:.2g}" if shape.free_alpha < UNBOUNDED else "no minimum"
        cells.append(free.replace("-", "−"))
        columns.append(cells)
    note = (
        "ECE in %, 15 bins. w = 0: every class counts the same and nothing else is done. Sums: eq. 3 as printed. "
        "α lies in [0.1, ½·ln K], β in [1.5, 2]; the last row minimises eq. 6 without these bounds."
    )
    return Table("What the gain is made of", tuple(fits), by_row(names, columns), note)


def ablation_claims(
    fits: Mapping[str, Mapping[str, Measured]], shapes: Mapping[str, Shape], tailed: list[str]
) -> list[Claim]:
    """What w adds to class means, what sums change, and where α and β lie."""
    claims = []
    if tailed:
        gains = [_difference(fits[name], "TS+Ours", EQUAL) for name in tailed]
        share = [
            (fits[name]["TS"].ece.value - fits[name][EQUAL].ece.value)
            / (fits[name]["TS"].ece.value - fits[name]["TS+Ours"].ece.value)
            for name in tailed
        ]
        words, judged = lower(gains)
        words += f"; w = 0 alone gives {100 * min(share):.0f} to {100 * max(share):.0f}% of the gain over TS"
        claim = "Ours: on long-tailed data the class weights of eq. 5 lower the ECE beyond class means alone (TS)"
        claims.append(Claim(claim, "not studied", words, judged))
        sums = [_difference(fits[name], SUMS, "TS+Ours") for name in tailed]
        claim = "Ours: on long-tailed data sums as printed in eq. 3 have a lower ECE than means (TS)"
        claims.append(Claim(claim, "not studied", *lower(sums)))
    judged = Count({name: float(one.bounded) for name, one in shapes.items()}, 0, 0)
    bounded, negative = len(shapes) - judged.within, sum(one.free_beta < 0 for one in shapes.values())
    words = f"{bounded} of {len(shapes)} on a bound; without bounds β < 0 on {negative} of {len(shapes)}"
    return [*claims, Claim("α and β are found inside their bounds", "not claimed", words, judged)]


def _difference(fit: Mapping[str, Measured], first: str, second: str) -> Estimate:
    return fit[first].ece - fit[second].ece
