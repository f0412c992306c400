"""The kernels on tensors against the numpy ones; on CPU tensors, where the plain torch form runs."""

import warnings

import numpy as np
import pytest
import torch

import calibrant as cal
from calibrant import TemperatureScaling, VectorScaling, metrics
from calibrant.calibrators.prepare import device_rows, ready
from calibrant.calibrators.solvers.folds import content_folds
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.rows import Rows
from calibrant.core.statistic import statistic
from calibrant.kernels import scaling
from calibrant.kernels.rows import scan
from calibrant.kernels.torch import tensors
from calibrant.kernels.torch.columns import BinSums, columns, host_columns
from calibrant.kernels.torch.rows import DeviceBlocks, device_blocks


def problem(n=400, n_classes=7, seed=0, weighted=False, dtype=np.float32):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    logits = (3 * rng.normal(size=(n, n_classes)) + 4 * np.eye(n_classes)[labels]).astype(dtype)
    return logits, labels, rng.integers(1, 4, n).astype(float) if weighted else None


def fit_on_device(calibrator, logits, labels, weights):
    """What `fit` does with a tensor on a GPU."""
    rows = device_rows(calibrator, logits, labels, weights)
    calibrator.fit_rows(ready(calibrator, rows))
    calibrator._keep_floor(rows.log_floor)


def on_tensor(logits, labels, weights):
    mass = None if weights is None else torch.as_tensor(weights)
    return DeviceBlocks(torch.as_tensor(logits), torch.as_tensor(labels), mass).rows()


@pytest.mark.parametrize("weighted", [False, True])
class TestSums:
    def test_temperature(self, weighted):
        rows = problem(weighted=weighted, dtype=np.float64)
        found = on_tensor(*rows).total(scaling.temperature_sums, 0.7)
        np.testing.assert_allclose(found, scaling.temperature_sums(*rows, 0.7), rtol=1e-10)

    def test_vector(self, weighted):
        rows, rng = problem(weighted=weighted, dtype=np.float64), np.random.default_rng(1)
        scale, bias, direction = rng.random(7) + 0.5, rng.normal(size=7), rng.normal(size=(2, 7))
        tensor = on_tensor(*rows)
        for found, expected in zip(
            tensor.total(scaling.vector_sums, scale, bias), scaling.vector_sums(*rows, scale, bias), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(
            tensor.total(scaling.vector_product, scale, bias, direction)[0],
            scaling.vector_product(*rows, scale, bias, direction)[0],
            rtol=1e-9,
            atol=1e-9,
        )
        for found, expected in zip(tensor.total(scaling.column_moments), scaling.column_moments(*rows), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-12)

    def test_a_statistic_without_a_form_on_the_device_reads_blocks(self, weighted, monkeypatch):
        monkeypatch.setattr(tensors, "BLOCK_ELEMENTS", 70)
        monkeypatch.setattr("calibrant.kernels.torch.rows.HOST_ELEMENTS", 100)
        rows = problem(weighted=weighted)

        @statistic
        def top(logits, labels, weights):
            return (float(logits.max(axis=1).sum()), float(weights.sum()) if weights is not None else 0.0)

        with pytest.warns(FitWarning, match="no form on the GPU"):
            np.testing.assert_allclose(on_tensor(*rows).total(top), top(*rows), rtol=1e-6)


@pytest.mark.parametrize("from_logits", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_columns_are_those_of_the_scan(from_logits, dtype):
    logits, labels, _ = problem(dtype=np.float64)
    values = torch.as_tensor(logits) if from_logits else torch.as_tensor(logits).softmax(dim=1)
    values = values.to(dtype)
    if dtype == torch.bfloat16 and not from_logits:
        values = torch.as_tensor(np.eye(7)[labels]).to(dtype)  # rows that still sum to one
    seen = values.double().numpy() if dtype == torch.float64 else values.float().numpy()
    found = host_columns(values, labels, from_logits=from_logits, name="values")
    for name, one, other in zip(found._fields, found, scan(seen, labels, from_logits=from_logits), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6, err_msg=name)


def test_ties_go_to_the_first_class():
    values = torch.tensor([[1.0, 1.0, 0.0], [-0.0, 0.0, -1.0]])
    assert tensors.first_maximum(values).tolist() == [0, 0]


def test_sums_add_up_to_the_metrics():
    logits, labels, weights = problem(n=1000, weighted=True)
    sums = BinSums(15, "cpu")
    for block in (slice(0, 300), slice(300, 1000)):
        values, target, weight = (torch.as_tensor(part[block]) for part in (logits, labels, weights))
        sums.add(columns(values, target, from_logits=True), target, weight)
    options = {"from_logits": True, "sample_weight": weights}
    assert float(sums.ece()) == pytest.approx(metrics.ece(logits, labels, **options), abs=1e-6)
    for name in ("nll", "brier"):
        assert float(sums.mean(name)) == pytest.approx(getattr(metrics, name)(logits, labels, **options), abs=1e-6)


METHODS = [
    *("ts", "ts-ece", "ts-adaece", "ts-soft", "ets", "bts", "ccts", "hb", "iso", "spline", "ws", "cws", "vs", "svs"),
    *("cts-nll", "shape", "ts+top", "ets+top", "sctl+ts", "sctl+ets"),
]


class TestMethods:
    """The fits of the methods from device rows: the same parameters, and no copy of the logits."""

    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize("name", METHODS)
    def test_equal_those_on_arrays_without_a_copy(self, name, weighted):
        rows = problem(n=907, n_classes=5, weighted=weighted, dtype=np.float64)
        here, there = cal.get(name).fit(*rows), cal.get(name)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit_on_device(there, torch.as_tensor(rows[0]), rows[1], rows[2])
        assert any("no form on the GPU" in str(one.message) for one in caught) == (
            weighted and there.fits_on_device == "unweighted"
        )
        apart = np.abs(there.predict_proba(rows[0]) - here.predict_proba(rows[0])).max(axis=1)
        # rounding may put a confidence on a quantile edge to either side of it: that row moves, and only that one
        assert (apart > 2e-6).sum() <= 1

    @pytest.mark.parametrize("name", ["sms", "pts", "vs+top", "cts"])
    def test_the_rest_says_that_it_copies(self, name):
        rows = problem(n=300, n_classes=3, dtype=np.float64)
        here, there = cal.get(name).fit(*rows), cal.get(name)
        with pytest.warns(FitWarning, match="300×3 logits are copied to the host") as caught:
            fit_on_device(there, torch.as_tensor(rows[0]), rows[1], rows[2])
        assert sum("no form on the GPU" in str(one.message) for one in caught) == 1
        np.testing.assert_allclose(there.predict_proba(rows[0]), here.predict_proba(rows[0]), atol=2e-6)

    @pytest.mark.parametrize("n_classes", [2, 6])
    def test_folds_are_those_of_the_host(self, n_classes):
        logits, labels, weights = problem(n=600, n_classes=n_classes, weighted=True, dtype=np.float32)
        logits[100:200] = logits[0]  # many copies of one row
        here = content_folds(Rows(logits, labels, weights), 5, seed=3)
        np.testing.assert_array_equal(content_folds(on_tensor(logits, labels, weights), 5, seed=3), here)

    def test_options_of_the_temperature(self):
        rows = problem(n=500, dtype=np.float64)
        for options in ({"objective": "soft_ece", "weighting": "label"}, {"objective": "ece", "refine": True}):
            there = TemperatureScaling(**options)
            fit_on_device(there, torch.as_tensor(rows[0]), rows[1], None)
            assert there.temperature_ == pytest.approx(TemperatureScaling(**options).fit(*rows).temperature_, rel=1e-6)
        there = cal.EnsembleTemperatureScaling(loss="mse")
        fit_on_device(there, torch.as_tensor(rows[0]), rows[1], None)
        np.testing.assert_allclose(
            there.weights_, cal.EnsembleTemperatureScaling(loss="mse").fit(*rows).weights_, atol=1e-5
        )


class TestFits:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("weighted", [False, True])
    def test_equal_those_on_arrays(self, dtype, weighted):
        logits, labels, weights = problem(weighted=weighted, dtype=np.float64)
        tensor = torch.as_tensor(logits).to(dtype)
        for kind, name in ((TemperatureScaling, "temperature_"), (VectorScaling, "scale_")):
            there = kind()
            fit_on_device(there, tensor, labels, weights)
            here = kind().fit(tensor.numpy(), labels, weights)
            np.testing.assert_allclose(getattr(there, name), getattr(here, name), rtol=2e-6)

    def test_answers_are_tensors_of_the_same_kind(self):
        logits, labels, _ = problem()
        fitted = TemperatureScaling().fit(logits, labels)
        tensor = torch.as_tensor(logits)
        for dtype, close in ((torch.float32, 1e-6), (torch.float64, 1e-6), (torch.bfloat16, 2e-2)):
            answer = fitted.predict_proba(tensor.to(dtype))
            assert answer.dtype == dtype
            np.testing.assert_allclose(answer.double().numpy(), fitted.predict_proba(logits), atol=close)
        np.testing.assert_allclose(fitted.transform(tensor).numpy(), fitted.transform(logits), rtol=1e-6)

    def test_bad_input_is_refused_in_one_line(self):
        logits, labels, _ = problem()
        with pytest.raises(InputError, match="probabilities"):
            fit_on_device(TemperatureScaling(), torch.as_tensor(logits).softmax(dim=1), labels, None)
        with pytest.raises(InputError, match=r"labels reach from 0 to 9, but the logits have columns 0\.\.6"):
            fit_on_device(TemperatureScaling(), torch.as_tensor(logits), np.full(400, 9) * (np.arange(400) > 0), None)
        with pytest.raises(InputError, match="shape"):
            device_blocks(torch.as_tensor(logits), labels[:5], None)
        with pytest.raises(InputError, match="whole numbers"):
            device_blocks(torch.as_tensor(logits), labels + 0.5, None)
        broken = torch.as_tensor(logits).clone()
        broken[3, 2] = torch.nan
        with pytest.raises(InputError, match="NaN"):
            TemperatureScaling().fit(logits, labels).transform(broken)
        with pytest.raises(InputError, match="1 of 400 rows"):
            host_columns(broken, labels, from_logits=True, name="logits")


@pytest.mark.parametrize("name", ["ts", "vs", "ets", "shape", "hb", "ts-ece", "bts"])
def test_zeros_count_as_on_the_host(name):
    given, labels, _ = problem(n=200, n_classes=3, dtype=np.float64)
    given[7, (labels[7] + 1) % 3] = given[8, labels[8]] = -np.inf
    logits = torch.as_tensor(given)
    there = cal.get(name)
    with pytest.warns(FitWarning, match="2 of 200 rows hold a probability of 0"):
        fit_on_device(there, logits, labels, None)
    with pytest.warns(FitWarning, match="2 of 200 rows hold a probability of 0"):
        here = cal.get(name).fit(given, labels)
    assert there.log_floor_ == pytest.approx(here.log_floor_)
    np.testing.assert_allclose(there.predict_proba(given), here.predict_proba(given), atol=2e-6)


def test_zeros_have_the_value_of_the_host_to_the_last_bit():
    """Rows are put into folds by a hash of their values."""
    given, labels, _ = problem(n=400, n_classes=6, dtype=np.float32)
    given[::3, 1] = -np.inf
    rows, blocks = (
        Rows(given, labels, settled=False),
        device_blocks(torch.as_tensor(given), torch.as_tensor(labels), None),
    )
    with pytest.warns(FitWarning, match="hold a probability of 0"):
        rows.settle()
    with pytest.warns(FitWarning, match="hold a probability of 0"):
        blocks.settle()
    assert blocks.log_floor == pytest.approx(rows.log_floor, rel=1e-13)
    np.testing.assert_array_equal(blocks.tensor.numpy(), rows.logits)


class TestGate:
    """What reaches the kernels: views are copied, and values without a meaning are refused."""

    @pytest.mark.parametrize("whole", [1, 100])
    def test_probabilities_and_percent_are_not_taken_for_logits(self, whole):
        given = torch.as_tensor(
            np.round(np.random.default_rng(0).dirichlet(np.ones(4), 300) * whole, 4 if whole == 1 else 0)
        )
        labels = torch.zeros(300, dtype=torch.long)
        with pytest.raises(InputError, match="are probabilities"):
            fit_on_device(TemperatureScaling(), given, labels, None)

    def test_labels_and_weights_may_be_views(self):
        logits, labels, weights = problem(n=300, weighted=True, dtype=np.float64)
        here = TemperatureScaling().fit(logits, labels, weights)
        there, doubled = TemperatureScaling(), torch.as_tensor(np.repeat(labels, 3))
        fit_on_device(there, torch.as_tensor(logits), doubled[::3], torch.as_tensor(np.repeat(weights, 3))[::3])
        assert there.temperature_ == pytest.approx(here.temperature_, rel=1e-9)
        rows = device_blocks(torch.as_tensor(logits), doubled[::3], None)
        assert rows.target.is_contiguous()
        assert rows.rows().sample(50).blocks.target.is_contiguous()

    @pytest.mark.parametrize("name", ["ts", "vs", "ms", "ets"])
    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_values_that_are_not_numbers_are_refused(self, name, value):
        logits, labels, _ = problem(n=200, dtype=np.float64)
        logits[7, 2] = value
        with pytest.raises(InputError, match="NaN"):
            fit_on_device(cal.get(name), torch.as_tensor(logits), labels, None)

    @pytest.mark.parametrize("name", ["ms", "dir", "sms", "pts"])
    def test_methods_without_a_form_there_fit_on_the_host(self, name):
        logits, labels, _ = problem(n=300, n_classes=3, dtype=np.float64)
        there = cal.get(name)
        with pytest.warns(cal.FitWarning, match="no form on the GPU"):
            fit_on_device(there, torch.as_tensor(logits), labels, None)
        expected = cal.get(name).fit(logits, labels).predict_proba(logits)
        np.testing.assert_allclose(there.predict_proba(logits), expected, atol=2e-6)

    def test_a_label_without_a_column_makes_its_row_bad(self):
        logits, labels, _ = problem(n=50)
        target = torch.as_tensor(labels).clone()
        target[4], target[5] = 99, -1
        assert (~columns(torch.as_tensor(logits), target, from_logits=True).flags[1]).sum() == 2
