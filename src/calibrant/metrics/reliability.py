"""The bins of a reliability diagram, which metrics, measurements, pages and figures share."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.bins import over, under, width_edges
from calibrant.metrics.inputs import ORDER_OF_ROWS, ClassIndices, Probabilities, RowWeights, check
from calibrant.metrics.record import metric
from calibrant.metrics.top_label import bin_index, bin_sums


def _missing() -> Array:
    return np.empty(0)


@dataclass(frozen=True)
class Reliability:
    """Bins (M,) of confidence; NaN marks the means of an empty bin."""

    edges: Array
    """Bin edges (M+1,); for equal mass, the lowest confidence of each bin and the highest of all."""
    counts: Array
    """Weight in each bin."""
    confidence: Array
    """Mean confidence of each bin."""
    accuracy: Array
    """Share of right predictions in each bin."""
    count: Array = field(default_factory=_missing)
    """Number of rows; this and what follows is filled in by `evaluation.consistency.reliability_bins`, else empty."""
    accuracy_low: Array = field(default_factory=_missing)
    """Lower end of the 95% Wilson interval of the accuracy."""
    accuracy_high: Array = field(default_factory=_missing)
    """Its upper end."""
    noise_low: Array = field(default_factory=_missing)
    """The accuracy of a calibrated model lies between this …"""
    noise_high: Array = field(default_factory=_missing)
    """… and this in 95% of data sets like this one."""

    @property
    def lower(self) -> Array:
        """Where each bin begins (M,); an equal-width bin is (lower, upper]."""
        return self.edges[:-1]

    @property
    def upper(self) -> Array:
        """Where each bin ends (M,)."""
        return self.edges[1:]

    @property
    def weight(self) -> Array:
        """The same as `counts`."""
        return self.counts

    @property
    def filled(self) -> Array:
        """Which bins hold any weight (M,)."""
        return self.counts > 0

    @property
    def n(self) -> int:
        """Rows in all bins together."""
        return int(self.count.sum())

    @property
    def share(self) -> Array:
        """Each bin's part of all weight (M,)."""
        return self.counts / self.counts.sum()

    @property
    def gap(self) -> Array:
        """Confidence minus accuracy (M,); 0 in an empty bin."""
        return np.where(self.filled, self.confidence - self.accuracy, 0.0)

    @property
    def over(self) -> float:
        """The part of the calibration error where confidence is too high."""
        return float(over(self.share * self.gap))

    @property
    def under(self) -> float:
        """The part of the calibration error where confidence is too low."""
        return float(under(self.share * self.gap))

    @property
    def ece(self) -> float:
        """The ECE that these bins add up to."""
        return self.over + self.under


@metric()
def reliability(
    probabilities: Probabilities,
    labels: ClassIndices,
    *,
    n_bins: int = 15,
    binning: str = "width",
    sample_weight: RowWeights = None,
    from_logits: bool = False,
) -> Reliability:
    """Counts, mean confidence and accuracy of each bin: the data of a reliability diagram (DeGroot & Fienberg 1983).

    Examples
    --------
    >>> from calibrant.metrics import reliability
    >>> bins = reliability([[0.75, 0.25], [0.0, 1.0]], [0, 0], n_bins=2)
    >>> bins.counts.tolist(), bins.accuracy.tolist()
    ([0.0, 2.0], [nan, 0.5])
    """
    rows = check(probabilities, labels, sample_weight, from_logits)
    sums = bin_sums(rows, n_bins, binning)
    edges = width_edges(n_bins)
    if binning == "mass":
        confidence, _, weights = rows.every(ORDER_OF_ROWS).top()
        lowest = np.full(n_bins, np.inf)
        np.minimum.at(lowest, bin_index(confidence, weights, n_bins, binning), confidence.astype(np.float64))
        # an empty bin opens where the next one does
        edges = np.minimum.accumulate(np.append(lowest, confidence.max())[::-1])[::-1]
    weight = np.where(sums.weight > 0, sums.weight, np.nan)
    return Reliability(edges, sums.weight, sums.confidence / weight, sums.correct / weight)
