"""Bets against calibration: a test martingale that mixes over what broke, how strongly, where and when.

Bet k claims that the chance of being correct is not c but q_k(c), with logit q_k = s_k·logit c + δ_k, everywhere or
in one confidence bin only. Its stake is multiplied by the likelihood ratio

    f = q/c if correct, (1 − q)/(1 − c) if not,        E[f | past, c] = 1 when the model is calibrated.

A batch of m answers makes one bet with the mean of its rows' factors, f̄ = Σ f_i / m. Each f_i has mean 1 given the
earlier batches, and a mean is linear, so E[f̄ | earlier batches] = 1 whatever the dependence inside the batch. Rows that
are independent given the past are batches of one.

A bet need not start at the first batch. Money h_r enters it before batch r, Σ_r h_r ≤ 1, the rest waits outside, so

    S_t = f̄_t · (S_{t−1} + h_t),        wealth_t = Σ_k w_k (S_t,k + 1 − Σ_{r≤t} h_r).

Being a mixture of martingales that start at 1, the wealth is one too, and P(sup_t wealth_t ≥ 1/α) ≤ α (Ville 1939).
Money that enters late has not been lost on the calibrated past, so a break after a million quiet rows is found about
as fast as a break at the start.
"""

from __future__ import annotations

import numpy as np

from calibrant.core.bins import width_edges, width_index
from calibrant.core.softmax import logsumexp
from calibrant.shipping.state import Stateful

CLAIMS = (
    *((1.0, shift) for shift in (-4.0, -2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 2.0, 4.0)),
    *((scale, 0.0) for scale in (0.5, 0.75, 1.33, 2.0)),
)
"""(s, δ) of the bets on all confidences: less or more accurate than said, too extreme or too timid.

The largest shifts matter for batches: the mean over a batch is less variable than a row, and a larger claim is a larger
stake on it.
"""
SHARES = {
    1: (*[0.09] * 5, *[0.04] * 5, 0.05, 0.05, 0.025, 0.025),
    2: (0.13, 0.45, 0.18, 0.05, 0.02, *[0.01] * 5, 0.03, 0.02, 0.005, 0.005),
}
"""Money of each claim by plan.

Overconfidence has the most, because drift and new data nearly always show that way. Batches have a plan of their own:
there the claim of two logits less is nearly the best bet for many shapes of confidence.
"""
ROWS, BATCHES = 1, 2
"""The plans of new monitors that bet row by row and batch by batch."""
BIN_SHIFTS = (-1.0, 1.0)
"""δ of the bets on one bin only; they share the money that the claims leave."""
BATCH_PACE = 100.0
"""How fast money enters the bets on batches; chosen on simulated ones, for breaks at the start and after 200 alike."""
CLIP = 1e-6
"""A confidence this near to 0 or 1 stands for the whole interval up to 0 or 1."""


class Bets(Stateful):
    """The stakes of every bet, in logarithms; constant memory, also for a batch that is still open."""

    STATE = ("plan", "n", "n_open", "_log_stake", "_open_sum")

    def __init__(self, n_bins: int, plan: int = ROWS) -> None:
        self.n_bins = n_bins
        self.plan = plan
        self.n = self.n_open = 0
        scales, shifts = zip(*CLAIMS, strict=True)
        self._scale = np.concatenate([scales, np.ones(len(BIN_SHIFTS) * n_bins)])
        self._shift = np.concatenate([shifts, np.repeat(BIN_SHIFTS, n_bins)])
        self._log_stake = np.full(len(self._shift), -np.inf)
        self._open_sum = np.zeros(len(self._shift))

    @property
    def _log_share(self) -> np.ndarray:
        """Log money of each bet; those on bins share what the claims leave."""
        shares = SHARES[self.plan]
        n_others = len(BIN_SHIFTS) * self.n_bins
        return np.log(np.concatenate([shares, np.full(n_others, (1 - sum(shares)) / n_others)]))

    @property
    def log_wealth(self) -> float:
        """Logarithm of the whole wealth after the last closed batch; 0 at the start."""
        return float(self._log_wealth(self._log_stake[None, :], _waiting(np.array([self.n]), self.plan))[0])

    def play(
        self,
        confidence: np.ndarray,
        correct: np.ndarray,
        *,
        slack: float | np.ndarray = 0.0,
        ends: np.ndarray | None = None,
    ) -> np.ndarray:
        """Log wealth after each batch that closes among these rows, which come in the order they happened.

        `slack` (a number, or one per row) is how far the true confidence may lie from the given one, as after rounding.
        `ends` (n,) says after which rows a batch closes; every row is a batch of its own where it is None.
        """
        log_factor = self._log_factors(confidence, correct, np.broadcast_to(slack, confidence.shape))
        return self._stake(log_factor if ends is None else self._batch_factors(log_factor, ends))

    def close(self) -> np.ndarray:
        """Close the open batch, if any; log wealth after it (0 or 1 values)."""
        if not self.n_open:
            return np.empty(0)
        factor = np.log(self._open_sum / self.n_open)[None, :]
        self._open_sum, self.n_open = np.zeros(len(self._shift)), 0
        return self._stake(factor)

    def _stake(self, log_factor: np.ndarray) -> np.ndarray:
        """Play the factors (batches × bets); log wealth after each."""
        if not len(log_factor):
            return np.empty(0)
        waiting = _waiting(self.n + np.arange(len(log_factor) + 1), self.plan)
        # S_t = P_t (S_0 + Σ_{r≤t} h_r / P_{r−1}), P_t = Π_{s≤t} f_s: the recursion without a Python loop
        log_product = np.cumsum(log_factor, axis=0)
        before = np.vstack([np.zeros(log_factor.shape[1]), log_product[:-1]])
        entering = np.log(waiting[:-1] - waiting[1:])[:, None] - before
        entering[0] = np.logaddexp(entering[0], self._log_stake)
        stakes = np.logaddexp.accumulate(entering, axis=0) + log_product
        # a copy, because a view would keep the whole block alive
        self._log_stake, self.n = stakes[-1].copy(), self.n + len(log_factor)
        return self._log_wealth(stakes, waiting[1:])

    def _batch_factors(self, log_factor: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """log f̄ of every batch that closes here; the rows behind the last end stay in the open batch."""
        stops = np.flatnonzero(ends) + 1
        starts = np.concatenate([[0], stops]).astype(int)
        sums = np.add.reduceat(np.vstack([np.exp(log_factor), np.zeros(log_factor.shape[1])]), starts, axis=0)
        counts = np.diff(np.concatenate([starts, [len(ends)]]))
        sums[0] += self._open_sum
        counts[0] += self.n_open
        self._open_sum, self.n_open = sums[-1].copy(), int(counts[-1])
        return np.log(sums[:-1] / counts[:-1, None])

    def _log_wealth(self, log_stakes: np.ndarray, waiting: np.ndarray) -> np.ndarray:
        """log(Σ_k w_k S_k + waiting) of each row (n × bets)."""
        return logsumexp(np.column_stack([self._log_share + log_stakes, np.log(waiting)]))

    def _log_factors(self, confidence: np.ndarray, correct: np.ndarray, slack: np.ndarray) -> np.ndarray:
        """log f of each row and bet (n × bets), at most fair for every chance in [low, high] = confidence ± slack.

        E[f] is linear in the true chance and falls when q lies below the tested value, so a claim below `low` is
        tested at `low` and a claim above `high` at `high`. A claim on neither side, or on both, sits the row out.
        Where an end of the interval is within CLIP of 0 or 1, claims beyond it sit out.
        """
        low = np.clip(confidence - slack, 0.0, 1 - CLIP)[:, None]
        high = np.clip(confidence + slack, CLIP, 1.0)[:, None]
        below = self._claim(np.maximum(low, CLIP))
        above = self._claim(np.minimum(high, 1 - CLIP))
        falls = (below < low) & (low >= CLIP)
        rises = (above > high) & (high <= 1 - CLIP)
        falls, rises = falls & ~rises, rises & ~falls
        tested = np.where(falls, low, high)
        claimed = np.where(falls, below, np.where(rises, above, tested))
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.where(correct[:, None], np.log(claimed / tested), np.log1p(-claimed) - np.log1p(-tested))
        factor[~(falls | rises)] = 0.0
        own_bin = np.tile(np.arange(self.n_bins), len(BIN_SHIFTS))
        elsewhere = width_index(confidence, self.n_bins)[:, None] != own_bin
        factor[:, len(CLAIMS) :][elsewhere] = 0.0
        return factor

    def _claim(self, chance: np.ndarray) -> np.ndarray:
        """q of every bet (n × bets) for chances (n×1)."""
        logit = np.log(chance) - np.log1p(-chance)
        return 1 / (1 + np.exp(-(logit * self._scale + self._shift)))

    def suspect(self) -> str:
        """The claim that has won most, in words."""
        richest = int(np.argmax(self._log_share + self._log_stake))
        sure_too_often = self._shift[richest] < 0 or self._scale[richest] < 1
        what = "overconfident" if sure_too_often else "underconfident"
        if richest < len(CLAIMS) and self._shift[richest]:
            return f"{what} at all confidences"
        if richest < len(CLAIMS):
            return f"{what}: the probabilities are too {'extreme' if sure_too_often else 'timid'}"
        low, high = width_edges(self.n_bins)[(richest - len(CLAIMS)) % self.n_bins :][:2]
        return f"{what} at confidences from {low:.2g} to {high:.2g}"


def _waiting(step: np.ndarray, plan: int) -> np.ndarray:
    """Share of the money that has not entered by a step: 1 at step 0, falling so slowly that late breaks pay too.

    Row by row 1/log2(t + 2): between rows t and 2t about 1/log²t enters, so that a break after t quiet rows costs the
    bettor a factor of about t·log²t, whose logarithm is what the delay grows with. Batches are fewer, and each of them
    says more: 1/(1 + t/100) keeps more for the first thousand of them.
    """
    return 1 / np.log2(step + 2.0) if plan == ROWS else 1 / (1 + step / BATCH_PACE)
