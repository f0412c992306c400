"""Bets against calibration: a test martingale that mixes over what broke, how strongly, where and when.

Bet k claims that the chance of being correct is not c but q_k(c), with logit q_k = s_k·logit c + δ_k, everywhere or
in one confidence bin only. Its stake is multiplied by the likelihood ratio

    f = q/c if correct, (1 − q)/(1 − c) if not,        E[f | past, c] = 1 when the model is calibrated.

A bet need not start at the first row. Money h_r enters it before row r, Σ_r h_r ≤ 1, the rest waits outside, so

    S_t = f_t · (S_{t−1} + h_t),        wealth_t = Σ_k w_k (S_t,k + 1 − Σ_{r≤t} h_r).

Being a mixture of martingales that start at 1, the wealth is one too, and P(sup_t wealth_t ≥ 1/α) ≤ α (Ville 1939).
Money that enters late has not been lost on the calibrated past, so a break after a million quiet rows is found about
as fast as a break at the start.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.core.bins import width_edges, width_index
from calibrant.core.errors import InputError
from calibrant.core.softmax import logsumexp

CLAIMS = (
    *((1.0, shift) for shift in (-2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 2.0)),
    *((scale, 0.0) for scale in (0.5, 0.75, 1.33, 2.0)),
)
"""(s, δ) of the bets on all confidences: less accurate or more accurate than said, too extreme or too timid."""
BIN_SHIFTS = (-1.0, 1.0)
"""δ of the bets on one bin only."""
EVERYWHERE_SHARE = 0.5
"""Money on the bets on all confidences; the bin-wise bets share the rest."""
CLIP = 1e-6
"""Confidences are tested as if they were at least this far from 0 and 1; see `_log_factors` for why it is safe."""


class Bets:
    """The stakes of every bet, in logarithms; constant memory."""

    def __init__(self, n_bins: int) -> None:
        self.n_bins = n_bins
        self.n = 0
        everywhere = np.full(len(CLAIMS), EVERYWHERE_SHARE / len(CLAIMS))
        in_bins = np.full(len(BIN_SHIFTS) * n_bins, (1 - EVERYWHERE_SHARE) / (len(BIN_SHIFTS) * n_bins))
        self._log_share = np.log(np.concatenate([everywhere, in_bins]))
        self._scale = np.concatenate([[scale for scale, _ in CLAIMS], np.ones(len(in_bins))])
        self._shift = np.concatenate([[shift for _, shift in CLAIMS], np.repeat(BIN_SHIFTS, n_bins)])
        self._log_stake = np.full(len(self._shift), -np.inf)

    @property
    def log_wealth(self) -> float:
        """Logarithm of the whole wealth; 0 at the start."""
        return float(self._log_wealth(self._log_stake[None, :], _waiting(np.array([self.n])))[0])

    def play(self, confidence: np.ndarray, correct: np.ndarray) -> np.ndarray:
        """Log wealth after each row (n,), the rows in the order they happened."""
        steps = self.n + np.arange(len(correct) + 1)
        waiting = _waiting(steps)
        log_factor = self._log_factors(confidence, correct)
        # S_t = P_t (S_0 + Σ_{r≤t} h_r / P_{r−1}), P_t = Π_{s≤t} f_s: the recursion without a Python loop
        log_product = np.cumsum(log_factor, axis=0)
        before = np.vstack([np.zeros(log_factor.shape[1]), log_product[:-1]])
        entering = np.log(waiting[:-1] - waiting[1:])[:, None] - before
        entering[0] = np.logaddexp(entering[0], self._log_stake)
        stakes = np.logaddexp.accumulate(entering, axis=0) + log_product
        # a copy, because a view would keep the whole block alive
        self._log_stake, self.n = stakes[-1].copy(), self.n + len(correct)
        return self._log_wealth(stakes, waiting[1:])

    def _log_wealth(self, log_stakes: np.ndarray, waiting: np.ndarray) -> np.ndarray:
        """log(Σ_k w_k S_k + waiting) of each row (n × bets)."""
        return logsumexp(np.column_stack([self._log_share + log_stakes, np.log(waiting)]))

    def _log_factors(self, confidence: np.ndarray, correct: np.ndarray) -> np.ndarray:
        """log f of each row and bet (n × bets).

        Testing c as c' = 1 − CLIP where c is larger keeps a bet on q < c' fair or worse (E[f] is linear in the true
        chance and falls), but would favour q > c': such a bet sits the row out. The same holds near 0.
        """
        tested = np.clip(confidence, CLIP, 1 - CLIP)
        logit = np.log(tested) - np.log1p(-tested)
        claimed = 1 / (1 + np.exp(-(logit[:, None] * self._scale + self._shift)))
        claimed[confidence > tested] = np.minimum(claimed, tested[:, None])[confidence > tested]
        claimed[confidence < tested] = np.maximum(claimed, tested[:, None])[confidence < tested]
        win = np.log(claimed) - np.log(tested)[:, None]
        lose = np.log1p(-claimed) - np.log1p(-tested)[:, None]
        factor = np.where(correct[:, None], win, lose)
        own_bin = np.tile(np.arange(self.n_bins), len(BIN_SHIFTS))
        elsewhere = width_index(confidence, self.n_bins)[:, None] != own_bin
        factor[:, len(CLAIMS) :][elsewhere] = 0.0
        return factor

    def suspect(self) -> str:
        """The claim that has won most, in words."""
        richest = int(np.argmax(self._log_share + self._log_stake))
        sure_too_often = self._shift[richest] < 0 or self._scale[richest] < 1
        what = "overconfident" if sure_too_often else "underconfident"
        if richest < len(CLAIMS):
            return (
                f"{what} at all confidences"
                if self._shift[richest]
                else f"{what}: the probabilities are too " + ("extreme" if sure_too_often else "timid")
            )
        low, high = width_edges(self.n_bins)[(richest - len(CLAIMS)) % self.n_bins :][:2]
        return f"{what} at confidences from {low:.2g} to {high:.2g}"

    def state(self) -> list[float | None]:
        """The log stakes as numbers for JSON; None where no money has entered."""
        return [float(stake) if np.isfinite(stake) else None for stake in self._log_stake]

    @classmethod
    def from_state(cls, stakes: Any, n_bins: int, n: int) -> Bets:
        """The bets that `state` described after n rows."""
        bets = cls(n_bins)
        values = np.array([-np.inf if stake is None else float(stake) for stake in stakes])
        if values.shape != bets._log_stake.shape:
            raise InputError(f"monitor state holds {len(values)} bets, but {n_bins} bins make {len(bets._log_stake)}")
        if np.isnan(values).any() or (values == np.inf).any():
            raise InputError("monitor state holds a bet that is not a finite number")
        bets._log_stake, bets.n = values, n
        return bets


def _waiting(step: np.ndarray) -> np.ndarray:
    """Share of the money that has not entered by a step: 1 at step 0, falling so slowly that late breaks pay too.

    1/log2(t + 2): between rows t and 2t about 1/log²t enters, so that a break after t quiet rows costs the bettor a
    factor of about t·log²t, whose logarithm is what the delay grows with.
    """
    return 1 / np.log2(step + 2.0)
