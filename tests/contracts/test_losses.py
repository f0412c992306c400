"""Every training loss through one test: value by a literal loop, gradient, corners, compiled, as a module."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from calibrant import InputError, losses  # noqa: E402
from calibrant.neural.losses.module import LossModule  # noqa: E402

torch.set_num_threads(1)


def probabilities(row: np.ndarray) -> np.ndarray:
    exponentials = [math.exp(value - max(row)) for value in row]
    return np.array(exponentials) / sum(exponentials)


def loop_cross_entropy(z, y):
    return sum(-math.log(probabilities(row)[label]) for row, label in zip(z, y, strict=True)) / len(y)


def loop_focal(z, y, gamma):
    total = 0.0
    for row, label in zip(z, y, strict=True):
        p = probabilities(row)[label]
        exponent = (5 if p < 0.2 else 3) if gamma == "flsd-53" else gamma
        total -= (1 - p) ** exponent * math.log(p)
    return total / len(y)


def loop_brier(z, y):
    total = 0.0
    for row, label in zip(z, y, strict=True):
        for k, p in enumerate(probabilities(row)):
            total += (p - (k == label)) ** 2
    return total / len(y)


def loop_label_smoothing(z, y, smoothing, spread):
    total, n_classes = 0.0, z.shape[1]
    for row, label in zip(z, y, strict=True):
        for k, p in enumerate(probabilities(row)):
            if spread == "all":
                target = (1 - smoothing) * (k == label) + smoothing / n_classes
            else:
                target = 1 - smoothing if k == label else smoothing / (n_classes - 1)
            total -= target * math.log(p)
    return total / len(y)


def top(z, y):
    rows = [probabilities(row) for row in z]
    return [max(p) for p in rows], [float(p.argmax() == label) for p, label in zip(rows, y, strict=True)]


def loop_mmce(z, y, weighted):
    c, a = top(z, y)
    right, wrong = sum(a), len(a) - sum(a)
    total = 0.0
    for c_i, a_i in zip(c, a, strict=True):
        for c_j, a_j in zip(c, a, strict=True):
            r_i, r_j = c_i - a_i, c_j - a_j
            scale = (right if a_i else wrong) * (right if a_j else wrong) if weighted else len(a) ** 2
            total += r_i * r_j / scale * math.exp(-abs(c_i - c_j) / 0.4)
    return math.sqrt(total)


def entropies(z):
    return [-sum(p * math.log(p) for p in probabilities(row)) for row in z]


def loop_avuc(z, y, kappa):
    counts = dict.fromkeys(("AU", "IC", "AC", "IU"), 0.0)
    for c, a, h in zip(*top(z, y), entropies(z), strict=True):
        name = ("A" if a else "I") + ("U" if h > kappa else "C")
        counts[name] += (c if a else 1 - c) * (math.tanh(h) if h > kappa else 1 - math.tanh(h))
    return math.log(1 + (counts["AU"] + counts["IC"]) / (counts["AC"] + counts["IU"]))


def loop_soft_avuc(z, y, kappa, temperature):
    bad = good = 0.0
    for a, h in zip(top(z, y)[1], entropies(z), strict=True):
        share = h / math.log(z.shape[1])
        odds = math.log(share * (1 - kappa) / ((1 - share) * kappa)) / temperature
        t = 1 / (1 + math.exp(-odds))
        uncertain, certain = t * math.tanh(h), (1 - t) * (1 - math.tanh(h))
        bad += uncertain if a else certain
        good += certain if a else uncertain
    return math.log(1 + bad / good)


def loop_memberships(c, n_bins, temperature):
    g = [-((c - (j + 0.5) / n_bins) ** 2) / temperature for j in range(n_bins)]
    exponentials = [math.exp(value - max(g)) for value in g]
    return [value / sum(exponentials) for value in exponentials]


def loop_binned(c, a, weighting, norm, n_bins=15, temperature=0.01):
    u = [loop_memberships(value, n_bins, temperature) for value in c]
    total, n = 0.0, len(c)
    for j in range(n_bins):
        size = sum(row[j] for row in u)
        confidence = sum(row[j] * value for row, value in zip(u, c, strict=True)) / size
        accuracy = sum(row[j] * value for row, value in zip(u, a, strict=True)) / size
        if weighting == "bin":
            total += size / n * abs(accuracy - confidence) ** norm
        else:
            total += sum(row[j] * abs(accuracy - value) ** norm for row, value in zip(u, c, strict=True)) / n
    return total


def loop_soft_ece(z, y, weighting="label", norm=2):
    return loop_binned(*top(z, y), weighting, norm) ** (1 / norm)


def loop_soft_marginal_ece(z, y):
    rows = np.array([probabilities(row) for row in z])
    per_class = [loop_binned(rows[:, k], (y == k).astype(float), "bin", 2) for k in range(z.shape[1])]
    return math.sqrt(sum(per_class) / len(per_class))


CASES: dict[str, tuple[Callable, Callable]] = {
    "cross_entropy": (losses.cross_entropy, loop_cross_entropy),
    "focal": (losses.focal, partial(loop_focal, gamma=3)),
    "focal 0.5": (partial(losses.focal, gamma=0.5), partial(loop_focal, gamma=0.5)),
    "focal flsd-53": (partial(losses.focal, gamma="flsd-53"), partial(loop_focal, gamma="flsd-53")),
    "focal detached": (partial(losses.focal, detach_factor=True), partial(loop_focal, gamma=3)),
    "brier": (losses.brier, loop_brier),
    "mse": (losses.mse, loop_brier),
    "label_smoothing": (losses.label_smoothing, partial(loop_label_smoothing, smoothing=0.05, spread="all")),
    "label_smoothing others": (
        partial(losses.label_smoothing, smoothing=0.1, spread="others"),
        partial(loop_label_smoothing, smoothing=0.1, spread="others"),
    ),
    "mmce": (losses.mmce, partial(loop_mmce, weighted=False)),
    "mmce weighted": (partial(losses.mmce, weighted=True), partial(loop_mmce, weighted=True)),
    "avuc": (losses.avuc, partial(loop_avuc, kappa=1.0)),
    "avuc_gs": (losses.avuc_gs, partial(loop_avuc, kappa=1.0)),
    "soft_avuc": (losses.soft_avuc, partial(loop_soft_avuc, kappa=0.5, temperature=0.1)),
    "soft_avuc 0.3": (
        partial(losses.soft_avuc, kappa=0.3, temperature=0.3),
        partial(loop_soft_avuc, kappa=0.3, temperature=0.3),
    ),
    "soft_ece": (losses.soft_ece, loop_soft_ece),
    "soft_ece bin": (partial(losses.soft_ece, weighting="bin"), partial(loop_soft_ece, weighting="bin")),
    "soft_ece 1": (partial(losses.soft_ece, norm=1), partial(loop_soft_ece, norm=1)),
    "soft_marginal_ece": (losses.soft_marginal_ece, loop_soft_marginal_ece),
}
STOPPED = {"focal detached", "avuc_gs"}
"""Their gradient is not that of their value, on purpose."""

made = [one for one in vars(losses).values() if isinstance(one, type) and issubclass(one, LossModule)]
LISTED = {one.function.__name__: (one.function, None) for one in made}
MODULES = {
    **{one.function.__name__: one() for one in made},
    "focal flsd-53": losses.FocalLoss("flsd-53"),
    "label_smoothing others": losses.LabelSmoothingLoss(0.1, "others"),
    "mmce weighted": losses.MMCELoss(weighted=True),
    "soft_avuc 0.3": losses.SoftAvUCLoss(0.3, 0.3),
    "soft_ece bin": losses.SoftECELoss(weighting="bin"),
}
with_a_loop = pytest.mark.parametrize("name", list(CASES))
CASES = {**LISTED, **CASES}
every_loss = pytest.mark.parametrize("name", list(CASES))


def batch(n: int = 12, n_classes: int = 5, scale: float = 2.0, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, n_classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, n_classes, (n,), generator=generator)


@with_a_loop
@pytest.mark.parametrize("seed", range(3))
def test_value_is_that_of_a_literal_loop(name: str, seed: int) -> None:
    loss, loop = CASES[name]
    logits, labels = batch(seed=seed)
    assert loss(logits, labels).item() == pytest.approx(loop(logits.numpy(), labels.numpy()), rel=1e-9)


@every_loss
def test_gradient_is_that_of_the_value(name: str) -> None:
    logits, labels = batch()
    if name in STOPPED:
        moved = logits.clone().requires_grad_()
        CASES[name][0](moved, labels).backward()
        assert moved.grad.isfinite().all()
        assert moved.grad.abs().sum() > 0
    else:
        assert torch.autograd.gradcheck(lambda z: CASES[name][0](z, labels), (logits.requires_grad_(),))


def corners():
    generator = torch.Generator().manual_seed(1)
    for n, n_classes in ((1, 2), (1, 100), (8, 2), (8, 10)):
        for scale in (0.0, 1e-3, 30.0, 1e4):
            logits = torch.randn(n, n_classes, generator=generator)
            logits = logits.sign() * scale if scale >= 1e4 else logits * scale
            yield logits, logits.argmax(1)  # all right
            yield logits, logits.argmin(1)  # all wrong
            yield logits, torch.zeros(n, dtype=torch.long)  # one class present


@every_loss
def test_value_and_gradient_stay_finite_in_every_corner(name: str) -> None:
    for logits, labels in corners():
        for dtype in (torch.float32, torch.bfloat16):
            moved = logits.to(dtype).clone().requires_grad_()
            with torch.autocast("cpu", torch.bfloat16):
                value = CASES[name][0](moved, labels)
            value.backward()
            assert value.isfinite(), (name, logits, labels)
            assert moved.grad.isfinite().all(), (name, logits, labels)
            assert value.dtype == torch.float32


@every_loss
def test_one_graph_without_breaks(name: str) -> None:
    torch._dynamo.reset()
    logits, labels = batch()
    compiled = torch.compile(CASES[name][0], fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(logits, labels), CASES[name][0](logits, labels))


def test_compiled_gradient_of_a_soft_loss() -> None:
    torch._dynamo.reset()
    logits, labels = batch()
    logits = logits.float().requires_grad_()
    loss = partial(losses.soft_ece, weighting="label")
    compiled = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(logits, labels), logits)[0]
    torch.testing.assert_close(compiled, torch.autograd.grad(loss(logits, labels), logits)[0])


@pytest.mark.parametrize("name", list(MODULES))
def test_module_equals_function(name: str) -> None:
    logits, labels = batch()
    torch.testing.assert_close(MODULES[name](logits, labels), CASES[name][0](logits, labels))


def test_composite_adds_the_weighted_secondary() -> None:
    logits, labels = batch()
    both = losses.composite(losses.focal, losses.SoftECELoss(weighting="label"), weight=0.3)
    expected = losses.focal(logits, labels) + 0.3 * losses.soft_ece(logits, labels, weighting="label")
    torch.testing.assert_close(both(logits, labels), expected)
    with pytest.raises(InputError, match="weight must be finite and 0 or more, got -1"):
        losses.composite(losses.focal, losses.mmce, weight=-1)


@every_loss
def test_bad_batches_are_refused(name: str) -> None:
    loss = CASES[name][0]
    with pytest.raises(InputError, match=r"shape \(n ≥ 1, K ≥ 2\), got \(4,\)"):
        loss(torch.zeros(4), torch.zeros(4, dtype=torch.long))
    with pytest.raises(InputError, match=r"labels have shape \(3,\), but there are 4 rows"):
        loss(torch.zeros(4, 2), torch.zeros(3, dtype=torch.long))
    with pytest.raises(InputError, match=r"labels must be class indices, got torch\.float32"):
        loss(torch.zeros(4, 2), torch.zeros(4))
    with pytest.raises(InputError, match="takes torch tensors, got ndarray"):
        loss(np.zeros((4, 2)), torch.zeros(4, dtype=torch.long))


@every_loss
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_no_loss_waits_for_the_device(name: str) -> None:
    logits, labels = batch()
    logits, labels = logits.float().cuda().requires_grad_(), labels.cuda()
    expected = CASES[name][0](logits.cpu(), labels.cpu())
    torch.cuda.set_sync_debug_mode("error")
    try:
        value = CASES[name][0](logits, labels)
        value.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(value.cpu(), expected)
