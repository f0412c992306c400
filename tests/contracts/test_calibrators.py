"""Every registered calibrator keeps the one contract: what base.py promises, what the class facts claim."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from operator import attrgetter

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.class_loss import ClassLossScaling
from calibrant.calibrators.registry import get, names
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.rows import Rows
from calibrant.core.statistic import add

pytestmark = pytest.mark.filterwarnings("ignore::calibrant.core.errors.FitWarning")

FACTS = ("keeps_prediction", "keeps_ranking", "additive", "requires_logits")


def problem(n: int, n_classes: int, seed: int = 0, scale: float = 2.5) -> tuple[np.ndarray, np.ndarray]:
    """Overconfident logits of a classifier that is right about two times in three."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    logits = rng.normal(size=(n, n_classes)) + 1.8 * np.eye(n_classes)[labels]
    return scale * logits, labels


def steep(calibrator: Calibrator) -> bool:
    """A parameter a class can make all class losses equal; there the class weights jump, and rounding shows."""
    return isinstance(calibrator, ClassLossScaling) and not calibrator.few_parameters


def quick_names(*but: Callable[[Calibrator], bool]) -> list[str]:
    """Every short name but networks, whose optimiser is checked where they live, and those given by a rule."""
    found = {name: get(name) for name in names()}
    return [name for name, one in found.items() if not (one.trains_network or any(rule(one) for rule in but))]


def simple_names() -> list[str]:
    """The quick names without calibrators around one of many parameters, which is checked by itself."""
    return quick_names(lambda one: "calibrator" in vars(one) and not (one.calibrator or one).few_parameters)


def claiming(fact: str, among: list[str]) -> list[str]:
    """The names whose calibrator claims a fact."""
    return [name for name in among if getattr(get(name), fact)]


class Pieces:
    """Blocks of rows that offer only what an additive fit may use."""

    log_floor, on_device = -20.0, False

    def __init__(self, logits: np.ndarray, bounds: list[int]) -> None:
        self.logits, self.shape = logits, logits.shape
        self.slices = [slice(*pair) for pair in pairwise(bounds)]

    def _map(self, work, rows):
        for own in self.slices:
            yield work(self.logits[own], rows.labels[own], None if rows.weights is None else rows.weights[own])

    def sums(self, statistic, parameters, rows):
        return reduce(add, self._map(rows.work_of(statistic, parameters), rows))

    def gather(self, columns, parameters, rows):
        parts = self._map(lambda *block: columns(*block, *parameters), rows)
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def weighted(self, weights):
        return self

    def solved_temperature(self):
        return None

    def sample(self, rows, size):
        first = self.slices[0]
        weights = None if rows.weights is None else rows.weights[first]
        return Rows(self.logits[first], rows.labels[first], weights, each=rows.each)

    def array(self):
        raise AssertionError("an additive fit asked for all rows at once")


def in_pieces(rows: Rows, bounds: list[int]) -> Rows:
    return Rows(None, rows.labels, rows.weights, blocks=Pieces(rows.logits, bounds))


PARAMETERS = {
    "ts": {"objective": "nll", "grid": None, "refine": False, "n_bins": 15},
    "ts-ece": {"objective": "ece"},
    "ts-adaece": {"objective": "adaptive_ece"},
    "ts-soft": {"objective": "soft_ece"},
    "cts": {"objective": "ece", "preserve_accuracy": True, "max_sweeps": 5, "n_bins": 15, "grid": None},
    "u-cts": {"objective": "ece", "preserve_accuracy": False},
    "cts-nll": {"objective": "nll"},
    "ets": {"loss": "nll"},
    "ws": {"objective": "least_squares", "n_bins": 13},
    "cws": {"n_bins": 15},
    "bts": {"objective": "nll", "n_bins": 15, "grid": None},
    "ccts": {"objective": "gap", "n_bins": 15, "grid": None},
    "sctl+ts": {"normalization": "normal", "loss": "cross_entropy"},
}
"""What a short name stands for: saved artifacts and published tables rely on it."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_short_names_keep_their_parameters(name):
    parameters = get(name).get_params(deep=False)
    assert PARAMETERS[name].items() <= parameters.items()
    assert parameters.get("seed", 0) == 0


@pytest.mark.parametrize("name", names())
def test_facts_and_learned_names(name):
    logits, labels = problem(150, 4)
    calibrator = get(name)
    assert isinstance(calibrator, Calibrator)
    before = {key: repr(value) for key, value in calibrator.get_params().items()}
    with pytest.raises(NotFittedError):
        calibrator.transform(logits)
    fitted = calibrator.fit(logits, labels)
    assert fitted is calibrator
    assert {key: repr(value) for key, value in calibrator.get_params().items()} == before
    for fact in FACTS:
        assert isinstance(getattr(calibrator, fact), bool), fact
        assert isinstance(getattr(type(calibrator), fact), bool), fact
    assert fitted.n_features_in_ == 4
    assert fitted.classes_.tolist() == [0, 1, 2, 3]
    assert int(fitted.n_iter_) >= 1
    assert np.ndim(fitted.objective_trace_) == 1
    assert np.isfinite(fitted.objective_trace_).all()
    assert fitted.fit_seconds_ >= 0
    assert fitted.n_parameters_ >= 0
    assert fitted.n_parameters_ == int(fitted.n_parameters_)


@pytest.mark.parametrize("name", names())
def test_outputs_dtypes_and_pickling(name):
    logits, labels = problem(200, 5)
    fresh, _ = problem(60, 5, seed=1)
    fitted = get(name).fit(logits, labels)
    wide = fitted.predict_proba(fresh)
    assert fitted.transform(fresh).dtype == np.float64
    assert wide.shape == (60, 5)
    np.testing.assert_allclose(wide.sum(axis=1), 1, atol=1e-12)
    assert (wide >= 0).all()
    assert (fitted.predict(fresh) == wide.argmax(axis=1)).all()
    assert (pickle.loads(pickle.dumps(fitted)).transform(fresh) == fitted.transform(fresh)).all()

    narrow = get(name).fit(logits.astype(np.float32), labels)
    assert narrow.transform(fresh.astype(np.float32)).dtype == np.float32
    assert narrow.predict_proba(fresh.astype(np.float32)).dtype == np.float32
    if name in quick_names(attrgetter("cross_fits"), steep):
        np.testing.assert_allclose(narrow.predict_proba(fresh.astype(np.float32)), wide, atol=2e-4)


@pytest.mark.parametrize("name", quick_names())
def test_fits_repeat_and_clones_are_free(name):
    logits, labels = problem(150, 4)
    first = get(name).fit(logits, labels)
    second = clone(first).fit(logits, labels)
    assert (first.transform(logits) == second.transform(logits)).all()
    refitted = first.fit(logits * 3, labels)
    assert (refitted.transform(logits) == clone(first).fit(logits * 3, labels).transform(logits)).all()


@pytest.mark.parametrize("name", quick_names())
def test_input_is_never_written_to(name):
    logits, labels = problem(120, 4)
    logits.flags.writeable = labels.flags.writeable = False
    weights = np.ones(120)
    weights.flags.writeable = False
    get(name).fit(logits, labels, sample_weight=weights).transform(logits)


@pytest.mark.parametrize("name", quick_names(steep))
def test_row_order_does_not_matter(name):
    logits, labels = problem(200, 4)
    order = np.random.default_rng(3).permutation(200)
    one = get(name).fit(logits, labels).predict_proba(logits)
    other = get(name).fit(logits[order], labels[order]).predict_proba(logits)
    np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("name", quick_names(steep))
def test_weight_two_is_the_row_twice_and_weight_zero_no_row(name):
    logits, labels = problem(160, 4)
    weights = np.random.default_rng(2).integers(0, 3, 160)
    copies = np.repeat(np.arange(160), weights)
    weighted = get(name).fit(logits, labels, sample_weight=weights).predict_proba(logits)
    repeated = get(name).fit(logits[copies], labels[copies]).predict_proba(logits)
    np.testing.assert_allclose(weighted, repeated, atol=1e-5)


@pytest.mark.parametrize("name", quick_names(attrgetter("searches_in_order"), steep))
def test_relabelled_classes_permute_the_fit(name):
    logits, labels = problem(200, 4)
    order = np.array([2, 0, 3, 1])
    place = np.argsort(order)
    one = get(name).fit(logits, labels).predict_proba(logits)
    other = get(name).fit(logits[:, order], place[labels]).predict_proba(logits[:, order])
    np.testing.assert_allclose(one[:, order], other, atol=1e-5)


@pytest.mark.parametrize("name", claiming("keeps_prediction", names()))
def test_kept_predictions_are_kept(name):
    calibrator = get(name)
    logits, labels = problem(200, 4)
    fitted = calibrator.fit(logits, labels)
    rng = np.random.default_rng(5)
    for dtype in (np.float64, np.float32):
        for fresh in (
            problem(300, 4, seed=7)[0],
            rng.uniform(-1e4, 1e4, size=(100, 4)),
            rng.integers(0, 3, size=(100, 4)).astype(float),
            1 + 1e-7 * rng.integers(0, 3, size=(200, 4)),
            np.zeros((3, 4)),
        ):
            given = fresh.astype(dtype)
            assert (fitted.predict(given) == given.argmax(axis=1)).all()


@pytest.mark.parametrize("name", claiming("keeps_ranking", names()))
def test_kept_rankings_are_kept(name):
    calibrator = get(name)
    logits, labels = problem(200, 4)
    fresh, _ = problem(300, 4, seed=7)
    before = np.exp(fresh - fresh.max(axis=1, keepdims=True))
    before = (before / before.sum(axis=1, keepdims=True)).max(axis=1)
    after = calibrator.fit(logits, labels).predict_proba(fresh).max(axis=1)
    assert (np.diff(after[np.argsort(before)]) >= -1e-12).all()


@pytest.mark.parametrize(
    "name", [name for name in quick_names(attrgetter("cross_fits")) if not get(name).requires_logits]
)
def test_a_constant_added_to_a_row_matters_only_where_claimed(name):
    calibrator = get(name)
    logits, labels = problem(200, 4)
    shift = np.random.default_rng(4).normal(size=(200, 1)) * 3
    one = calibrator.fit(logits, labels).predict_proba(logits)
    other = get(name).fit(logits + shift, labels).predict_proba(logits + shift)
    np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("name", claiming("additive", quick_names(steep)))
def test_a_fit_over_chunks_is_the_fit_over_the_whole(name):
    calibrator = get(name)
    logits, labels = problem(230, 4)
    weights = np.random.default_rng(2).uniform(0.5, 2, 230)
    whole = Rows(logits, labels, weights)
    one = get(name).fit_rows(whole).predict_proba(logits)
    other = calibrator.fit_rows(in_pieces(whole, [0, 40, 41, 230])).predict_proba(logits)
    np.testing.assert_allclose(one, other, atol=1e-6)


CORNERS = {
    "two classes": lambda: problem(80, 2),
    "one row": lambda: problem(1, 3),
    "three rows": lambda: problem(3, 4),
    "absent classes": lambda: (problem(120, 6)[0], np.random.default_rng(0).integers(0, 3, 120)),
    "one class present": lambda: (problem(40, 3)[0], np.ones(40, dtype=int)),
    "huge logits": lambda: (np.random.default_rng(0).uniform(-1e4, 1e4, (100, 4)), problem(100, 4)[1]),
    "tiny logits": lambda: (1e-6 * problem(100, 4)[0], problem(100, 4)[1]),
    "constant logits": lambda: (np.full((50, 3), 2.0), problem(50, 3)[1]),
    "separable": lambda: (10.0 * np.eye(3)[problem(60, 3)[1]], problem(60, 3)[1]),
    "always wrong": lambda: (5.0 * np.eye(3)[(problem(60, 3)[1] + 1) % 3], problem(60, 3)[1]),
}


@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("name", simple_names())
def test_corners_end_in_finite_probabilities(name, corner):
    logits, labels = CORNERS[corner]()
    for dtype in (np.float64, np.float32):
        fitted = get(name).fit(logits.astype(dtype), labels)
        probabilities = fitted.predict_proba(logits.astype(dtype))
        assert np.isfinite(fitted.transform(logits.astype(dtype))).all()
        assert np.isfinite(probabilities).all()
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("name", names())
def test_bad_input_is_refused(name):
    logits, labels = problem(60, 3)
    for bad in (np.nan, np.inf):
        broken = logits.copy()
        broken[17, 1] = bad
        with pytest.raises(InputError, match="row 17, column 1"):
            get(name).fit(broken, labels)
    with pytest.raises(InputError, match="60"):
        get(name).fit(logits, labels[:-1])
    with pytest.raises(NotFittedError):
        get(name).transform(logits)
    fitted = get(name).fit(logits, labels)
    with pytest.raises(ValueError, match="2 features"):
        fitted.transform(logits[:, :2])
    broken = logits.copy()
    broken[5, 2] = np.nan
    for use in (fitted.transform, fitted.predict_proba, fitted.predict):
        with pytest.raises(InputError, match="row 5, column 2"):
            use(broken)


@pytest.mark.parametrize("name", quick_names())
def test_a_probability_of_zero_is_learned_from_and_answered(name):
    logits, labels = problem(60, 3)
    logits[17, (labels[17] + 1) % 3] = -np.inf
    fitted = get(name).fit(logits, labels)
    assert np.isfinite(fitted.transform(logits)).all()
    np.testing.assert_allclose(fitted.predict_proba(logits).sum(axis=1), 1, atol=1e-9)


@pytest.mark.parametrize("name", quick_names())
def test_works_as_the_end_of_a_pipeline(name):
    logits, labels = problem(120, 4)
    pipeline = make_pipeline(FunctionTransformer(lambda x: 2 * x), get(name))
    through = pipeline.fit(logits, labels).predict_proba(logits)
    np.testing.assert_array_equal(through, get(name).fit(2 * logits, labels).predict_proba(2 * logits))


LABEL_IS_A_COLUMN = "the check's labels go beyond its columns; here a label is the index of a logit"
EXPECTED_FAILURES = {
    "check_estimators_overwrite_params": LABEL_IS_A_COLUMN,
    "check_estimators_fit_returns_self": LABEL_IS_A_COLUMN,
    "check_readonly_memmap_input": LABEL_IS_A_COLUMN,
    "check_sample_weights_pandas_series": LABEL_IS_A_COLUMN,
    "check_sample_weights_not_an_array": LABEL_IS_A_COLUMN,
    "check_sample_weights_shape": LABEL_IS_A_COLUMN,
    "check_sample_weights_not_overwritten": LABEL_IS_A_COLUMN,
    "check_all_zero_sample_weights_error": "refused, in the gate's own words",
    "check_complex_data": "refused, in the gate's own words",
    "check_dtype_object": "an array of objects is refused rather than guessed at",
    "check_estimators_nan_inf": "the check gives labels as floats; test_bad_input_is_refused covers NaN and Inf",
    "check_sample_weight_equivalence_on_dense_data": "asks for 1e-7 of every output at an optimum that lies at "
    "infinity; test_weight_two_is_the_row_twice_and_weight_zero_no_row holds the equivalence",
}


@pytest.mark.parametrize("name", simple_names())
def test_scikit_learn_agrees(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(get(name), expected_failed_checks=EXPECTED_FAILURES, on_fail=None, on_skip=None)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert not failed, failed


def test_warnings_are_fit_warnings():
    logits = 10.0 * np.eye(3)[problem(60, 3)[1]]
    with pytest.warns(FitWarning, match="temperature 0"):
        get("ts").fit(logits, problem(60, 3)[1])
