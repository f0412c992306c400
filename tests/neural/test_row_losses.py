"""Class weights, ignored rows, reductions, shares as targets and dense maps, beside torch's own functions."""

import pytest
import torch
from torch.nn import functional

from calibrant import InputError, losses

torch.set_num_threads(1)
LOSSES = {
    "cross_entropy": losses.cross_entropy,
    "focal": losses.focal,
    "brier": losses.brier,
    "label_smoothing": losses.label_smoothing,
}


def batch(seed=0, n=40, n_classes=5):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((n, n_classes), generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, n_classes, (n,), generator=generator), torch.rand(n_classes, generator=generator)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_is_that_of_torch(reduction):
    logits, labels, weights = batch()
    labels[:7] = -100
    expected = functional.cross_entropy(logits, labels, weight=weights.double(), ignore_index=-100, reduction=reduction)
    found = losses.cross_entropy(logits, labels, class_weights=weights, ignore_index=-100, reduction=reduction)
    torch.testing.assert_close(found, expected)


def test_shares_as_targets_are_those_of_torch():
    logits, _, _ = batch()
    shares = torch.rand(40, 5, dtype=torch.float64).softmax(dim=1)
    torch.testing.assert_close(losses.cross_entropy(logits, shares), functional.cross_entropy(logits, shares))
    summed = losses.cross_entropy(logits, shares, class_weights=torch.ones(5), reduction="sum")
    torch.testing.assert_close(summed, functional.cross_entropy(logits, shares, reduction="sum"))


@pytest.mark.parametrize("name", LOSSES)
class TestEveryRowLoss:
    def test_one_hot_shares_are_indices(self, name):
        logits, labels, weights = batch()
        shares = functional.one_hot(labels, 5).double()
        for options in ({}, {"class_weights": weights}):
            torch.testing.assert_close(LOSSES[name](logits, shares, **options), LOSSES[name](logits, labels, **options))

    def test_ignored_rows_are_as_if_removed(self, name):
        logits, labels, weights = batch()
        padded = torch.where(torch.arange(40) % 3 == 0, 255, labels)
        kept = padded != 255
        found = LOSSES[name](logits, padded, ignore_index=255, class_weights=weights)
        torch.testing.assert_close(found, LOSSES[name](logits[kept], labels[kept], class_weights=weights))
        nothing = LOSSES[name](logits.requires_grad_(), torch.full((40,), 255), ignore_index=255)
        nothing.backward()
        assert float(nothing.detach()) == 0
        assert torch.isfinite(logits.grad).all()

    def test_dense_maps_are_rows(self, name):
        logits, labels, _ = batch(n=2 * 4 * 5)
        dense = logits.reshape(2, 4, 5, 5).movedim(-1, 1)
        target = labels.reshape(2, 4, 5)
        torch.testing.assert_close(LOSSES[name](dense, target), LOSSES[name](logits, labels))
        single = LOSSES[name](dense, target, reduction="none")
        assert single.shape == (2, 4, 5)
        torch.testing.assert_close(single.mean(), LOSSES[name](logits, labels))

    def test_gradients(self, name):
        logits, labels, weights = batch(n=6)
        labels[2] = -1
        options = {"class_weights": weights.double(), "ignore_index": -1}
        assert torch.autograd.gradcheck(lambda z: LOSSES[name](z, labels, **options), logits.requires_grad_())

    def test_mistakes_are_named(self, name):
        logits, labels, _ = batch()
        with pytest.raises(InputError, match="class_weights have shape"):
            LOSSES[name](logits, labels, class_weights=torch.ones(3))
        with pytest.raises(InputError, match="reduction must be one of mean, sum, none"):
            LOSSES[name](logits, labels, reduction="average")
        with pytest.raises(InputError, match="target shares have shape"):
            LOSSES[name](logits, torch.rand(40, 4))


def test_a_detached_focal_factor_has_no_gradient():
    logits, labels, _ = batch()
    logits.requires_grad_()
    losses.focal(logits, labels, gamma=2.0, detach_factor=True).backward()
    found, logits.grad = logits.grad, None
    factor = (1 - logits.softmax(dim=1)[torch.arange(40), labels]).detach() ** 2
    (factor * functional.cross_entropy(logits, labels, reduction="none")).mean().backward()
    torch.testing.assert_close(found, logits.grad)


@pytest.mark.parametrize("gamma", ["flsd-35", -1.0, float("nan")])
def test_an_invalid_focal_exponent_is_rejected(gamma):
    logits, labels, _ = batch()
    with pytest.raises(InputError, match="gamma must be"):
        losses.focal(logits, labels, gamma=gamma)


def test_modules_show_and_keep_their_parameters():
    module = losses.FocalLoss(gamma=2.0, ignore_index=-100, class_weights=torch.ones(5))
    assert repr(module) == "FocalLoss(gamma=2.0, detach_factor=False, ignore_index=-100, reduction='mean')"
    assert "class_weights" in module.state_dict()
    logits, labels, _ = batch()
    torch.testing.assert_close(module(logits, labels), losses.focal(logits, labels, gamma=2.0))
