"""Metric objects for training loops."""

import multiprocessing

import numpy as np
import pytest
import torch

from calibrant import metrics
from calibrant.core.errors import InputError
from calibrant.neural.collect import check_logits
from calibrant.neural.metrics import CalibrationMetrics, as_torchmetric


def batches(seed=0, n=600, n_classes=5):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    logits = (2 * rng.normal(size=(n, n_classes)) + 3 * np.eye(n_classes)[labels]).astype(np.float32)
    return torch.as_tensor(logits), torch.as_tensor(labels)


def expected(logits, labels):
    return {
        name: getattr(metrics, name)(logits.numpy(), labels.numpy(), from_logits=True)
        for name in ("ece", "nll", "brier", "accuracy", "confidence", "entropy")
    }


def check(found, logits, labels):
    for name, value in expected(logits, labels).items():
        if name == "entropy" and name not in found:
            continue
        assert float(found[name]) == pytest.approx(value, abs=1e-6), name


def test_batches_give_the_metrics_of_all_rows():
    logits, labels = batches()
    metric = CalibrationMetrics(entropy=True)
    for start in range(0, 600, 250):
        metric.update(logits[start : start + 250], labels[start : start + 250])
    assert "entropy" in metric.compute()
    check(metric.compute(), logits, labels)
    assert float(metric.compute()["mce"]) == pytest.approx(
        metrics.ece(logits.numpy(), labels.numpy(), from_logits=True, norm=np.inf), abs=1e-6
    )
    metric.reset()
    metric.update(logits[:50], labels[:50])
    check(metric.compute(), logits[:50], labels[:50])
    assert repr(metric) == "CalibrationMetrics(n_bins=15, rows=50)"


def test_the_maximum_error_counts_bins_that_are_less_confident_than_correct():
    labels = torch.arange(90) % 3
    metric = CalibrationMetrics()
    metric.update(torch.nn.functional.one_hot(labels, 3).float(), labels)  # all correct
    confidence = np.e / (np.e + 2)
    assert float(metric.compute()["mce"]) == pytest.approx(1 - confidence, abs=1e-6)


def test_every_metric_of_sums_can_be_asked_for():
    logits, labels = batches()
    target = labels.clone()
    target[:50] = 255
    names = ("classwise_ece", "soft_ece")
    metric = CalibrationMetrics(metrics=names, ignore_index=255)
    for start in range(0, 600, 250):
        metric.update(logits[start : start + 250], target[start : start + 250])
    for name in names:
        expected = getattr(metrics, name)(logits[50:].numpy(), labels[50:].numpy(), from_logits=True)
        np.testing.assert_allclose(metric.compute()[name], expected, atol=1e-6)
    metric.reset()
    metric.update(logits, labels)
    assert float(metric.compute()["ece"]) == pytest.approx(expected_ece(logits, labels), abs=1e-6)
    with pytest.raises(InputError, match="ks_error"):
        CalibrationMetrics(metrics=("ks_error",))


def expected_ece(logits, labels):
    return metrics.ece(logits.numpy(), labels.numpy(), from_logits=True)


def test_ignored_rows_and_dense_maps():
    logits, labels = batches(n=2 * 6 * 10)
    dense = logits.reshape(2, 6, 10, 5).movedim(-1, 1)
    target = labels.reshape(2, 6, 10).clone()
    target[0, :2] = 255
    metric = CalibrationMetrics(ignore_index=255)
    metric.update(dense, target)
    kept = target.reshape(-1) != 255
    check(metric.compute(), logits[kept], labels[kept])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_logit_of_minus_infinity_is_a_probability_of_zero(dtype):
    logits = torch.tensor([[2.0, 0.0, -torch.inf], [0.0, 2.0, -torch.inf], [1.0, 2.0, 3.0]], dtype=dtype)
    labels = torch.tensor([0, 2, 2])
    metric = CalibrationMetrics()
    metric.update(logits, labels)
    found = metric.compute()
    for name in ("nll", "brier", "ece"):
        expected = getattr(metrics, name)(logits.numpy(), labels.numpy(), from_logits=True)
        assert found[name].item() == pytest.approx(expected, rel=1e-6)
    metric.update(torch.full((1, 3), -torch.inf, dtype=dtype), labels[:1])
    assert torch.isnan(metric.compute()["nll"])


def test_a_bad_row_shows_as_nan_and_wrong_shapes_are_refused():
    logits, labels = batches()
    metric = CalibrationMetrics()
    with pytest.raises(InputError, match="before update"):
        metric.compute()
    logits[3, 1] = torch.inf
    metric.update(logits, labels)
    assert torch.isnan(metric.compute()["nll"])
    with pytest.raises(InputError, match=r"labels must have shape \(600,\)"):
        metric.update(logits, labels[:7])


def test_torchmetrics_form():
    logits, labels = batches()
    metric = as_torchmetric()
    metric.update(logits[:100], labels[:100])
    metric.update(logits[100:], labels[100:])
    check(metric.compute(), logits, labels)
    metric.reset()
    metric.update(logits[:100], labels[:100])
    check(metric.compute(), logits[:100], labels[:100])


def _process(rank, address, answers):
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    logits, labels = batches()
    metric = CalibrationMetrics()
    part = slice(0, 350) if rank == 0 else slice(350, 600)
    metric.update(logits[part], labels[part])
    metric.sync()
    answers.put({name: float(value) for name, value in metric.compute().items()})
    torch.distributed.destroy_process_group()


def test_two_processes_hold_the_total(tmp_path):
    context = multiprocessing.get_context("spawn")
    answers, address = context.Queue(), f"file://{tmp_path}/store"
    processes = [context.Process(target=_process, args=(rank, address, answers)) for rank in range(2)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    for one in found:
        check(one, *batches())


def test_small_logits_are_not_probabilities():
    check_logits(torch.full((4, 3), 0.1))
    with pytest.raises(InputError, match="returned probabilities"):
        check_logits(torch.full((4, 3), 1 / 3))
