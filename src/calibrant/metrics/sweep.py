"""Equal-mass ECE with a number of bins that is chosen by the data."""

from __future__ import annotations

import numpy as np

from calibrant.core.bins import BinSums, cumulate, rank_slack, total_gap
from calibrant.metrics.binning import check_norm
from calibrant.metrics.groups import Groups, confidence_groups
from calibrant.metrics.inputs import ClassIndices, Probabilities, RowWeights, top_label
from calibrant.metrics.record import Gaps, metric

_BATCH_ELEMENTS = 1 << 18


@metric(
    "sweep ECE",
    "sweep",
    unit="%",
    meaning="the gap over as many bins as stay monotone",
    interval=Gaps("monotone", lambda g, share: total_gap(g)),
)
def sweep_ece(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    norm: float = 1,
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> float:
    """Equal-mass ECE at the largest bin count whose accuracies still rise with confidence (Roelofs et al. 2020).

    The count is the largest b such that for every count up to b no bin has a lower accuracy than the bin before it.

    Examples
    --------
    >>> from calibrant.metrics import sweep_ece
    >>> sweep_ece([[0.75, 0.25], [0.0, 1.0]], [1, 1])
    0.375
    """
    p = check_norm(norm)
    groups = confidence_groups(*top_label(probabilities, labels, sample_weight, from_logits))
    prefix = _Prefix(groups)
    n_bins = prefix.largest_monotone_count()
    if n_bins is None:
        # even single confidences are in order, and so is every way of joining neighbours
        return float(BinSums(groups.weight, groups.weight * groups.confidence, groups.correct).norm(p))
    edges = np.append(prefix.first_group(np.arange(n_bins), n_bins), len(groups.weight))
    sums = BinSums(*(np.diff(total[edges]) for total in (prefix.weight, prefix.confidence, prefix.correct)))
    return float(sums.norm(p))


class _Prefix:
    """Cumulated sums over the groups, from which any bin's accuracy is two look-ups."""

    def __init__(self, groups: Groups) -> None:
        columns = groups.weight, groups.correct, groups.weight * groups.confidence
        self.weight, self.correct, self.confidence = (cumulate(one).astype(np.float64) for one in columns)
        self.rank = self.weight[:-1]
        self.total = self.weight[-1]
        self.slack = rank_slack(groups.weight)
        self.most_bins = self.total / groups.weight.min()
        left, right = groups.weight[:-1], groups.weight[1:]
        rises = groups.correct[1:] * left - groups.correct[:-1] * right
        self.changes = np.flatnonzero(rises != 0) + 1
        self.isotonic = bool((rises >= -self.slack * left * right).all())

    def first_group(self, k: np.ndarray, n_bins: np.ndarray | int) -> np.ndarray:
        """The first group of bin k or later: floor(M·rank/n) ≥ k."""
        return np.searchsorted(self.rank, k * self.total / n_bins * (1 - self.slack), side="left")

    def largest_monotone_count(self) -> int | None:
        """The sweep; None where no count ever breaks the order."""
        if self.isotonic:
            return None
        n_bins = 2
        while n_bins <= 64 or n_bins < len(self.changes):
            if not self._monotone(n_bins):
                return n_bins - 1
            n_bins += 1
        # few changes of accuracy, many bins: only bins that hold a change can break the order
        batch = max(1, _BATCH_ELEMENTS // len(self.changes))
        # with more bins than `most_bins` every group stands alone, and nothing changes any more
        while n_bins <= self.most_bins + 1:
            broken = np.flatnonzero(self._breaks_at_a_change(np.arange(n_bins, n_bins + batch)))
            if len(broken):
                return n_bins + int(broken[0]) - 1
            n_bins += batch
        return None

    def _monotone(self, n_bins: int) -> bool:
        edges = np.unique(np.append(self.first_group(np.arange(n_bins), n_bins), len(self.rank)))
        return not self._falls(edges[:-2], edges[1:-1], edges[2:]).any()

    def _breaks_at_a_change(self, counts: np.ndarray) -> np.ndarray:
        counts = counts[:, None]
        last = len(self.rank) - 1
        start, stop = self._bin_of(self.changes[None, :], counts)
        before, _ = self._bin_of(np.maximum(start - 1, 0), counts)
        _, after = self._bin_of(np.minimum(stop, last), counts)
        falls = self._falls(before, start, stop) | self._falls(start, stop, after)
        return falls.any(axis=1)

    def _bin_of(self, group: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        k = np.floor(counts * self.rank[group] / self.total * (1 + self.slack))
        return self.first_group(k, counts), self.first_group(k + 1, counts)

    def _falls(self, left: np.ndarray, middle: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Is the accuracy of groups left…middle above that of middle…right? False where either is empty."""
        weight_left, weight_right = self.weight[middle] - self.weight[left], self.weight[right] - self.weight[middle]
        correct_left = self.correct[middle] - self.correct[left]
        correct_right = self.correct[right] - self.correct[middle]
        rounding = self.slack * self.total * (weight_left + weight_right)
        return correct_right * weight_left < correct_left * weight_right - rounding
