"""Evidence in a number of rows: whether it is enough for a verdict, and how precise the mean log loss is."""

from dataclasses import dataclass

import numpy as np

from calibrant.core.arrays import Array
from calibrant.core.few_clusters import VERDICT_CLUSTERS, count_clusters, mean_error, needs_t_interval, t_quantile
from calibrant.evaluation.bootstrap import clopper_pearson
from calibrant.evaluation.consistency import FEWEST_ERRORS, FEWEST_ROWS, design_effect, row_mass
from calibrant.evaluation.tables import NAN, PlainData
from calibrant.metrics.clinical import Z_95

TOO_FEW = "too few rows to tell"
MORE_ROWS = 6
"""Factor of the larger sample for which the precision is stated as well; it is rounded up to one digit."""

OUTCOMES = {
    "multiclass": [("predictions are wrong", "a wrong prediction")],
    "binary": [("rows are negative", "a negative row"), ("rows are positive", "a positive row")],
    "pairs": [("answers are wrong", "a wrong answer"), ("answers are right", "a right answer")],
    "multilabel": 2 * [("rows contain the rarer outcome of a label", "the rarer outcome of a label")],
}
"""Words for the decisive outcome, in rows and in one unit: not correct and, for scores of one class, correct."""


@dataclass(frozen=True)
class Evidence:
    """Independent units behind a result, and the number of those with the decisive outcome.

    Attributes
    ----------
    n, unit : number of units of positive weight; "rows" or "clusters".
    events : units that contain a wrong prediction; with one score per row the rarer of the two outcomes, with several
        labels the rarer outcome of any label.
    effective_events : the same as the number of equally weighted units with this variance.
    outcome : words for the outcome, see `OUTCOMES`.
    few_clusters : the number of clusters in words if they are too few for a verdict on calibration; else empty.
    """

    n: int
    unit: str
    events: int
    effective_events: float
    outcome: tuple[str, str]
    few_clusters: str = ""

    @property
    def undecided(self) -> str:
        """The verdict on calibration if there is too little evidence for another one; else empty."""
        if self.few_clusters:
            return f"{self.few_clusters} are too few to tell"
        return TOO_FEW if self.shortage else ""

    @property
    def shortage(self) -> str:
        """Reason why these rows are too few for a verdict; empty if they are enough."""
        if self.few_clusters:
            return self.few_clusters
        if self.n < FEWEST_ROWS:
            return f"{self.n} {self.unit if self.n != 1 else self.unit[:-1]}"
        if self.effective_events >= FEWEST_ERRORS:
            return ""
        words = self.outcome[0] if self.unit == "rows" else f"clusters contain {self.outcome[1]}"
        if self.events == 1:
            words = words.replace(" are ", " is ").replace(" contain ", " contains ")
        count = "" if self.events < FEWEST_ERRORS else f", equivalent to {self.effective_events:.1f} of equal weight"
        return f"{self.events} of {self.n:,} {words}{count}"


def count_evidence(
    correct: Array,
    weights: Array | None = None,
    clusters: Array | None = None,
    *,
    task: str = "multiclass",
    n_classes: int = 1,
    n_rows: int | None = None,
    stated: Array | None = None,
) -> Evidence:
    """Count independent units and decisive outcomes.

    Parameters
    ----------
    correct : whether each prediction is right (n,); for scores of one class its label, row by row for several labels.
    clusters : the cluster of each row (n,), numbered from 0, or None. Clusters are counted instead of rows.
    n_classes, n_rows : number of labels of a multilabel task; number of rows of the user, if `correct` has more.
    stated : the probabilities (n,) of `correct`, for a verdict on calibration. Expected outcomes then count as observed
        ones do, and 30 rows in 6 clusters suffice, because the test of calibration accounts for clusters itself.

    Examples
    --------
    >>> count_evidence(np.arange(40) > 0).shortage
    '1 of 40 predictions is wrong'
    >>> count_evidence(np.arange(40) > 4, task="binary").shortage
    ''
    """
    right = np.asarray(correct) > 0.5
    n_labels = n_classes if task == "multilabel" else 1
    mass, column = row_mass(weights, len(right)), np.arange(len(right)) % n_labels
    unit = np.arange(len(right)) if clusters is None else clusters
    counted = mass > 0
    found = np.zeros((2, unit.max() + 1, n_labels), bool)
    found[right[counted].astype(int), unit[counted], column[counted]] = True
    counts = found.sum(axis=1).astype(float)
    if stated is not None:
        stated = np.asarray(stated, np.float64)
        expected = (np.bincount(column, mass * one) / mass.mean() for one in (1 - stated, stated))
        counts = np.maximum(counts, np.stack(list(expected)))
    rarer = (counts[1] < counts[0]) & (task != "multiclass")
    events = np.where(rarer, found[1], found[0]).any(axis=1)
    # a unit weighs as much as its rows on average, so that equal weights count clusters of any size
    unit_mass = np.bincount(unit, mass) / np.maximum(np.bincount(unit, counted), 1)
    effective = _effective_count(unit_mass, events)
    n = int(np.count_nonzero(unit_mass))
    word = "rows" if clusters is None or n == n_rows else "clusters"
    few = f"{n} {word}" if stated is not None and clusters is not None and n < VERDICT_CLUSTERS else ""
    if stated is not None:
        chance = np.where(rarer[column], stated, 1 - stated)
        joined = design_effect(mass * (stated - right), clusters)
        effective = max(effective, _effective_count(mass, chance) / joined)
        n, word = int(counted.sum()), "rows"
    return Evidence(n, word, int(events.sum()), effective, OUTCOMES[task][int(rarer[0])], few)


def _effective_count(mass: Array, share: Array) -> float:
    """Number of equally weighted events with the variance of these (Kish)."""
    return float(mass @ share) ** 2 / max(float(mass**2 @ share), 1e-300)


@dataclass(frozen=True)
class Precision(PlainData):
    """Half-width of the 95% interval of a mean log loss, from its standard error.

    Attributes
    ----------
    n, unit : number of independent units; "rows" or "clusters".
    half_width : 1.96 standard errors, or that of a t interval over few clusters; NaN if no unit has the decisive
        outcome, because the losses of such units are then missing from the standard error.
    highest_share : without such a unit, the end of the exact 95% interval of its share; else NaN.
    text : one sentence.
    """

    n: int
    unit: str
    half_width: float
    highest_share: float
    text: str


def loss_precision(
    losses: Array, evidence: Evidence, weights: Array | None = None, clusters: Array | None = None
) -> Precision | None:
    """Precision of the mean of the log losses (n,) of rows with this evidence; None for a single row or cluster.

    Examples
    --------
    >>> losses = np.tile([0.0, 0.7], 30)
    >>> loss_precision(losses, count_evidence(losses == 0)).text
    '60 rows determine the log loss to ±0.09; 400 rows would give ±0.03'
    """
    n, unit, mass = evidence.n, evidence.unit, row_mass(weights, len(losses))
    if n < 2:
        return None
    digit = 10 ** (len(str(MORE_ROWS * n)) - 1)
    more = -(-MORE_ROWS * n // digit) * digit
    if evidence.events == 0:
        share, larger = (clopper_pearson(0, count)[1] for count in (n, more))
        text = f"{n:,} {unit} without {evidence.outcome[1]} limit its share to {share:.1%}"
        return Precision(n, unit, NAN, share, f"{text}; {more:,} {unit} would limit it to {larger:.1%}")
    losses = losses.astype(np.float64)
    residual = mass * (losses - np.average(losses, weights=mass))
    if clusters is not None and needs_t_interval(count_clusters(clusters, mass)):
        error, freedom = mean_error(residual, mass, clusters)
        half_width, larger = float(t_quantile(freedom)) * error, Z_95 * error
    else:
        sums = residual if clusters is None else np.bincount(clusters, residual)
        half_width = larger = Z_95 * float(np.sqrt(sums @ sums * n / max(n - 1, 1))) / float(mass.sum())
    now, then = (_one_digit(one) for one in (half_width, larger * np.sqrt(n / more)))
    text = f"{n:,} {unit} determine the log loss to ±{now}; {more:,} {unit} would give ±{then}"
    return Precision(n, unit, half_width, NAN, text)


def _one_digit(value: float) -> str:
    """A number with one significant digit, without an exponent."""
    return np.format_float_positional(value, precision=1, fractional=False, trim="-")
