"""What the paper shows of its formulas alone: soft bins (figure 3), soft uncertainty (figure 4) and Proposition 1."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from calibrant.core.bins import BinSums, width_index
from calibrant.kernels.bins import memberships, soft_bin_sums
from calibrant.neural.losses import soft_uncertainty
from verdicts import Count

N_BINS = 15
BIN_TEMPERATURES = (1e-2, 1e-3, 1e-4, 1e-5)
KAPPAS, THRESHOLD_TEMPERATURES = (0.3, 0.5, 0.7), (1.0, 0.3, 0.1, 0.03)
SIZES, REPEATS = (100, 1_000, 10_000, 100_000), 20


def outside_hard_bin(temperature: float, n_points: int = 3000) -> float:
    """Mean share of a confidence's membership that lies outside its hard bin, over evenly spread confidences."""
    confidence = (np.arange(n_points) + 0.5) / n_points
    own = memberships(confidence, N_BINS, temperature)[np.arange(n_points), width_index(confidence, N_BINS)]
    return float(1 - own.mean())


def soft_bins_become_hard() -> tuple[str, Count]:
    """Figure 3: as T falls, memberships tend to those of hard bins."""
    shares = [outside_hard_bin(temperature) for temperature in BIN_TEMPERATURES]
    cells = ", ".join(f"{100 * share:.1f}%" for share in shares)
    names = ", ".join(f"{temperature:g}" for temperature in BIN_TEMPERATURES)
    return f"outside the hard bin at T = {names}: {cells}", Count(
        {f"T = {BIN_TEMPERATURES[-1]:g}": shares[-1]}, most=0.01
    )


def uncertainty(share: np.ndarray, kappa: float, temperature: float) -> np.ndarray:
    """The soft uncertainty function of the library in double precision."""
    return soft_uncertainty(torch.from_numpy(np.asarray(share, dtype=np.float64)), kappa, temperature).numpy()


def threshold_and_sharpness() -> tuple[str, Count]:
    """Figure 4: t(κ) = ½ whatever T, the slope there grows as T falls, and κ = ½, T = 1 is the identity."""
    at_kappa = max(
        abs(float(uncertainty(np.array([kappa]), kappa, temperature)[0]) - 0.5)
        for kappa in KAPPAS
        for temperature in THRESHOLD_TEMPERATURES
    )
    step = 1e-4
    slopes = [
        float(np.diff(uncertainty(np.array([0.5 - step, 0.5 + step]), 0.5, temperature))[0] / (2 * step))
        for temperature in THRESHOLD_TEMPERATURES
    ]
    grid = np.linspace(0.01, 0.99, 99)
    identity = float(np.abs(uncertainty(grid, 0.5, 1.0) - grid).max())
    cells = ", ".join(f"{slope:.1f}" for slope in slopes)
    names = ", ".join(f"{temperature:g}" for temperature in THRESHOLD_TEMPERATURES)
    words = f"t(κ) = ½ in all {len(KAPPAS) * len(THRESHOLD_TEMPERATURES)} cases; slope there at T = {names}: {cells}"
    # the slope at κ = ½ is 1/T
    slope = max(abs(one * t - 1) for one, t in zip(slopes, THRESHOLD_TEMPERATURES, strict=True))
    return words, Count({"t(κ) − ½": at_kappa, "t(h) − h": identity, "slope·T − 1": slope}, most=1e-4)


def calibrated_errors(size: int, repeats: int = REPEATS, temperature: float = 0.01) -> np.ndarray:
    """SB-ECE₂ (bin form) of samples of a calibrated model whose confidences are spread evenly over [0.2, 1]."""
    generator = np.random.default_rng(size)
    errors = []
    for _ in range(repeats):
        confidence = generator.uniform(0.2, 1.0, size)
        correct = (generator.random(size) < confidence).astype(np.float64)
        errors.append(float(BinSums(*soft_bin_sums(confidence, correct, None, N_BINS, temperature)).norm(2)))
    return np.array(errors)


def proposition_one() -> tuple[str, Count]:
    """SB-ECE of a calibrated model tends to 0 as the sample grows: tenfold rows divide it by about √10."""
    means = [100 * float(calibrated_errors(size).mean()) for size in SIZES]
    rates = [before / after for before, after in itertools.pairwise(means)]
    cells = " → ".join(f"{mean:.2f}" for mean in means)
    words = f"{cells} with {SIZES[0]} to {SIZES[-1]:,} rows, divided by {min(rates):.1f}–{max(rates):.1f} each time"
    return words, Count({f"{size:,} rows": rate for size, rate in zip(SIZES[1:], rates, strict=True)}, least=2.0)
