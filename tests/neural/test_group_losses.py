"""Soft losses by group: each group's loss is that of its rows; mean and worst forms; finite in every corner."""

from __future__ import annotations

import pytest
import torch

from calibrant.core.errors import InputError
from calibrant.neural import losses

NAMES = ("soft_ece", "soft_avuc", "soft_marginal_ece")
MODULES = {"soft_ece": "SoftECELoss", "soft_avuc": "SoftAvUCLoss", "soft_marginal_ece": "SoftMarginalECELoss"}


def batch(n: int = 40, dtype: torch.dtype = torch.float64):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(n, 4, generator=generator, dtype=dtype)
    return logits, torch.randint(0, 4, (n,), generator=generator), torch.randint(0, 3, (n,), generator=generator)


@pytest.mark.parametrize("name", NAMES)
def test_group_forms_are_the_losses_of_the_subsets(name):
    logits, labels, groups = batch()
    loss = getattr(losses, name)
    parts = torch.stack([loss(logits[groups == g], labels[groups == g]) for g in range(3)])
    torch.testing.assert_close(loss(logits, labels, groups=groups), parts.mean())
    torch.testing.assert_close(loss(logits, labels, groups=groups, group_form="worst"), parts.max())
    torch.testing.assert_close(loss(logits, labels, groups=torch.zeros_like(groups)), loss(logits, labels))
    # group numbers without a row count nothing
    torch.testing.assert_close(loss(logits, labels, groups=groups, n_groups=7), parts.mean())
    module = getattr(losses, MODULES[name])(n_groups=3, group_form="worst")
    torch.testing.assert_close(module(logits, labels, groups), parts.max())
    torch.testing.assert_close(module(logits, labels), loss(logits, labels))


@pytest.mark.parametrize("form", ["mean", "worst"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients(name, form):
    logits, labels, groups = batch(12)
    logits.requires_grad_()
    options = {"groups": groups, "n_groups": 4, "group_form": form}
    assert torch.autograd.gradcheck(lambda z: getattr(losses, name)(z, labels, **options), (logits,), atol=1e-5)


@pytest.mark.parametrize("form", ["mean", "worst"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("outcome", ["right", "wrong", "one row"])
def test_corners_are_finite(name, form, scale, outcome):
    logits, labels, groups = batch(30, torch.float32)
    logits = scale * logits
    top = logits.argmax(dim=1)
    labels = top if outcome == "right" else (top + 1) % 4
    if outcome == "one row":
        logits, labels, groups = logits[:1], labels[:1], groups[:1]
    logits = logits.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = getattr(losses, name)(logits, labels, groups=groups, n_groups=5, group_form=form)
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(logits.grad).all()


def test_bad_groups_are_refused():
    logits, labels, groups = batch()
    with pytest.raises(InputError, match=r"groups have shape \(3,\), but there are 40 rows"):
        losses.soft_ece(logits, labels, groups=groups[:3])
    with pytest.raises(InputError, match="whole numbers"):
        losses.soft_ece(logits, labels, groups=groups.double())
    with pytest.raises(InputError, match="'mean' or 'worst'"):
        losses.soft_ece(logits, labels, groups=groups, group_form="best")
