"""The verdict on calibration: one rule for `measure`, `compare` and reports."""

from calibrant.core.arrays import Array
from calibrant.evaluation.calibration_loss import CalibrationLoss
from calibrant.evaluation.consistency import CLASS_SHARE, NoiseFloor, consistency_test, direction
from calibrant.evaluation.evidence import Evidence
from calibrant.evaluation.intervals import ScannedRows
from calibrant.evaluation.results import about
from calibrant.evaluation.scoring import classwise_test
from calibrant.evaluation.tables import Figures
from calibrant.metrics.classwise import class_sums
from calibrant.metrics.top_label import reliability

CALIBRATED = "indistinguishable from calibrated"


def run_ece_test(
    rows: ScannedRows, estimates: Figures, clusters: Array | None, *, n_bins: int, seed: int
) -> tuple[NoiseFloor, Figures]:
    """Test the ECE, and return the estimates with an interval of the ECE that agrees with the test."""
    confidence, correct, weights = rows.top()
    # of several classes the classwise ECE is tested as well; with one score per row it is the ECE
    share, names = (1.0, ("ece", "sce")) if rows.flat else (1 - CLASS_SHARE, ("ece",))
    floor = consistency_test(
        confidence, correct, n_bins=n_bins, weights=weights, clusters=clusters, seed=seed, share=share
    )
    restricted = {name: floor.restrict(estimates[name]) for name in names if name in estimates}
    return floor, Figures(estimates | restricted)


def judge_calibration(
    rows: ScannedRows,
    floor: NoiseFloor,
    evidence: Evidence,
    estimates: Figures,
    *,
    n_bins: int,
    seed: int,
    loss: CalibrationLoss | None = None,
) -> tuple[str, Figures]:
    """Return the verdict, and the estimates with an interval of the classwise ECE that agrees with it.

    The test of the ECE (`floor`) decides first, then that of all classes, then the calibration loss.
    """
    if evidence.undecided:
        return evidence.undecided, estimates
    if floor.significant:
        bins = reliability(*rows.top()[:2], sample_weight=rows.weights, n_bins=n_bins)
        return describe_gap(bins.over, bins.under, rows.task), estimates
    found, classes = Figures(estimates), floor
    if not rows.flat:
        classes = classwise_test(rows, n_bins, seed, share=CLASS_SHARE)
        found |= {"sce": classes.restrict(found["sce"])} if "sce" in found else {}
    if classes.significant:
        points = f"{100 * class_sums(rows, n_bins, 'width').norm(1).mean():.1f} points"
        return f"miscalibrated by class: a classwise ECE of {points}, though top confidences show no gap", found
    if loss is not None and loss.beyond_noise:
        fixed = f"a map can fix {loss.value:.3f} of the {loss.score:.3f} nats"
        return f"miscalibrated: {fixed}, though bins show no gap", found
    return CALIBRATED, found


def describe_gap(over: float, under: float, task: str = "multiclass") -> str:
    """One line: which way and by how much confidence departs from accuracy.

    over, under : the parts of the ECE where confidence is too high and too low. Points are percentage points of mean
    confidence minus accuracy, or of either part where bins err in both directions.
    """
    high, low, side, positive = 100 * over, 100 * under, direction(over, under), about(task) == "positive class"
    if side:
        points = f"{abs(high - low):.1f} points"
        if positive:
            return f"probabilities of the positive class are {points} too {'high' if side > 0 else 'low'}"
        return f"{'overconfident' if side > 0 else 'underconfident'} by {points}"
    words = (
        f"probabilities of the positive class are too high by {high:.1f} in some ranges, too low by {low:.1f} in others"
        if positive
        else f"overconfident by {high:.1f} in some ranges of confidence, underconfident by {low:.1f} in others"
    )
    return f"miscalibrated by {high + low:.1f} points: {words}"
