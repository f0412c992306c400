"""Identities of the losses that hold whatever the data (the project's list of invariants, 9–17 and 42)."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import calibrant as cal  # noqa: E402
from calibrant import losses  # noqa: E402
from calibrant.neural.losses.terms import memberships, top_label  # noqa: E402

torch.set_num_threads(1)


@st.composite
def batches(draw):
    seed, n, k = draw(st.integers(0, 10**6)), draw(st.integers(1, 40)), draw(st.integers(2, 12))
    scale = draw(st.floats(0.1, 8))
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, k, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, k, (n,), generator=generator)


@given(batches())
def test_label_form_exceeds_bin_form_by_the_variance_within_bins(data) -> None:
    logits, labels = data
    c, _ = top_label(logits, labels)
    u = memberships(c, 15, 0.01)
    mean = (u * c[:, None]).sum(0) / u.sum(0).clamp_min(1e-300)
    variance = float((u * (c[:, None] - mean) ** 2).sum() / len(c))
    label, by_bin = (float(losses.soft_ece(logits, labels, weighting=w)) for w in ("label", "bin"))
    assert label**2 == pytest.approx(by_bin**2 + variance, abs=1e-12)
    assert label >= by_bin - 1e-12


@given(batches())
def test_soft_becomes_hard_as_temperature_falls(data) -> None:
    logits, labels = data
    c, _ = top_label(logits, labels)
    if float((c * 15 - (c * 15).round()).abs().min()) < 1e-2:
        return
    hard = cal.metrics.ece(logits.numpy(), labels.numpy(), norm=2, from_logits=True)
    assert float(losses.soft_ece(logits, labels, temperature=1e-6, weighting="bin")) == pytest.approx(hard, abs=1e-9)


@given(batches(), st.sampled_from([1, 2, 3]))
def test_both_forms_tend_to_the_hard_ones_and_the_label_form_is_larger(data, norm) -> None:
    """As T → 0, SB-ECE of each form is the binned ECE of that form; bin form ≤ label form."""
    logits, labels = data
    c, _ = top_label(logits, labels)
    soft = {w: float(losses.soft_ece(logits, labels, norm=norm, weighting=w)) for w in ("bin", "label")}
    assert soft["bin"] <= soft["label"] + 1e-12
    if float((c * 15 - (c * 15).round()).abs().min()) < 1e-2:
        return
    for weighting in ("bin", "label"):
        hard = cal.metrics.ece(logits.numpy(), labels.numpy(), norm=norm, weighting=weighting, from_logits=True)
        gaps = []
        for temperature in (1e-3, 1e-4, 1e-6):
            found = losses.soft_ece(logits, labels, norm=norm, weighting=weighting, temperature=temperature)
            gaps.append(abs(float(found) - hard))
        assert gaps[-1] < 1e-8
        assert gaps[-1] <= min(gaps) + 1e-8


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("temperature", [1e-3, 1e-2, 1e-1])
def test_proposition_1_the_bin_form_of_a_calibrated_model_tends_to_zero(norm, temperature) -> None:
    """Karandikar et al. 2021, app. H: SB-ECE_bin → 0 as the sample of a calibrated model grows, at the rate n^-½.

    The label form keeps the spread of confidences within a soft bin and does not vanish.
    """
    generator = torch.Generator().manual_seed(3)
    means = {}
    for n in (1_000, 64_000):
        found = []
        for _ in range(8):
            confidence = 0.5 + 0.49 * torch.rand(n, generator=generator, dtype=torch.float64)
            logits = torch.stack([confidence.logit(), torch.zeros_like(confidence)], dim=1)
            labels = (torch.rand(n, generator=generator, dtype=torch.float64) >= confidence).long()
            given = {"norm": norm, "temperature": temperature}
            found.append([float(losses.soft_ece(logits, labels, weighting=w, **given)) for w in ("bin", "label")])
        means[n] = np.mean(found, axis=0)
    assert 5 < means[1_000][0] / means[64_000][0] < 12  # 8 is √64
    assert means[64_000][1] > 0.5 * means[1_000][1]
    assert means[64_000][1] > 3 * means[64_000][0]


def test_the_loss_defaults_to_the_label_form_and_the_metric_to_the_bin_form() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = 2 * torch.randn(50, 4, generator=generator), torch.randint(0, 4, (50,), generator=generator)
    label, by_bin = (losses.soft_ece(logits, labels, weighting=w) for w in ("label", "bin"))
    torch.testing.assert_close(losses.soft_ece(logits, labels), label)
    torch.testing.assert_close(losses.SoftECELoss()(logits, labels), label)
    metric = cal.metrics.soft_ece(logits.double().numpy(), labels.numpy(), from_logits=True)
    assert metric == pytest.approx(float(by_bin), abs=1e-5)
    assert float(label) > float(by_bin) + 1e-3


@given(batches())
def test_soft_as_temperature_grows(data) -> None:
    logits, labels = data
    c, a = top_label(logits, labels)
    gap, spread = abs(float((c - a).mean())), float((c - a.mean()).square().mean().sqrt())
    assert float(losses.soft_ece(logits, labels, temperature=1e9, weighting="bin")) == pytest.approx(gap, abs=1e-6)
    label = float(losses.soft_ece(logits, labels, temperature=1e9, weighting="label"))
    assert label == pytest.approx(spread, abs=1e-6)


@given(batches())
def test_soft_bins_keep_every_total(data) -> None:
    logits, labels = data
    c, a = top_label(logits, labels)
    u = memberships(c, 15, 0.01)
    torch.testing.assert_close(u.sum(), torch.tensor(float(len(c)), dtype=u.dtype))
    torch.testing.assert_close((u * c[:, None]).sum(), c.sum())
    torch.testing.assert_close((u * a[:, None]).sum(), a.sum())


@pytest.mark.parametrize("decay", [2.0, 10.0])
def test_decay_sets_what_a_neighbour_gets(decay: float) -> None:
    temperature = 1 / (15**2 * math.log(decay))
    centre = torch.tensor([(7 + 0.5) / 15], dtype=torch.float64)
    u = memberships(centre, 15, temperature)[0]
    assert float(u[8] / u[7]) == pytest.approx(1 / decay)
    assert float(u[9] / u[7]) == pytest.approx(decay**-4)
    edge = memberships(torch.tensor([8 / 15], dtype=torch.float64), 15, temperature)[0]
    assert float(edge[7]) == pytest.approx(float(edge[8]))
    logits, labels = torch.randn(9, 4, dtype=torch.float64), torch.arange(9) % 4
    expected = losses.soft_ece(logits, labels, temperature=temperature)
    torch.testing.assert_close(losses.soft_ece(logits, labels, decay=decay), expected)


@given(st.floats(0.01, 0.99), st.floats(0.05, 0.95), st.floats(0.05, 3))
def test_soft_uncertainty(share: float, kappa: float, temperature: float) -> None:
    t = losses.soft_uncertainty
    h = torch.tensor(share, dtype=torch.float64)
    assert float(t(h, 0.5, 1.0)) == pytest.approx(share)
    assert float(t(torch.tensor(kappa, dtype=torch.float64), kappa, temperature)) == pytest.approx(0.5)
    assert float(t(h, kappa, temperature) + t(1 - h, 1 - kappa, temperature)) == pytest.approx(1.0)
    if abs(share - kappa) > 0.01:
        assert float(t(h, kappa, 1e-4)) == pytest.approx(float(share > kappa), abs=1e-9)


@given(batches(), st.floats(0.1, 0.9), st.floats(0.1, 1))
def test_soft_avuc_with_all_correctness_flipped(data, kappa: float, temperature: float) -> None:
    logits, _ = data
    logits = logits[:, :2]
    right = logits.argmax(1)
    labels = torch.where(torch.arange(len(right)) % 3 == 0, right, 1 - right)
    one = losses.soft_avuc(logits, labels, kappa=kappa, temperature=temperature)
    other = losses.soft_avuc(logits, 1 - labels, kappa=kappa, temperature=temperature)
    assert float((-one).exp() + (-other).exp()) == pytest.approx(1.0, abs=1e-9)


@given(batches())
def test_duplicating_the_data_changes_nothing(data) -> None:
    logits, labels = data
    for name in ("cross_entropy", "focal", "brier", "label_smoothing", "mmce", "avuc", "soft_avuc", "soft_ece"):
        loss = getattr(losses, name)
        twice = loss(torch.cat([logits, logits]), torch.cat([labels, labels]))
        torch.testing.assert_close(twice, loss(logits, labels), atol=1e-9, rtol=1e-9)


@given(batches())
def test_mmce_squared_is_a_norm(data) -> None:
    logits, labels = data
    c, a = top_label(logits, labels)
    assert float(losses.mmce(logits, labels)) >= 0
    wide = float(losses.mmce(logits, labels, width=1e9))
    assert wide == pytest.approx(abs(float((c - a).mean())), abs=1e-6)
    same = logits[:1].expand_as(logits)
    c, a = top_label(same, labels)
    assert float(losses.mmce(same, labels)) == pytest.approx(abs(float(a.mean() - c[0])), abs=1e-9)


@given(batches(), st.floats(0, 4), st.floats(0, 4))
def test_focal_falls_in_gamma_and_starts_at_cross_entropy(data, first: float, second: float) -> None:
    logits, labels = data
    low, high = sorted((first, second))
    assert losses.focal(logits, labels, gamma=high) <= losses.focal(logits, labels, gamma=low) + 1e-12
    torch.testing.assert_close(losses.focal(logits, labels, gamma=0.0), losses.cross_entropy(logits, labels))


def test_losses_agree_with_the_metrics_of_the_library() -> None:
    rng = np.random.default_rng(0)
    logits, labels = 2 * rng.normal(size=(300, 7)), rng.integers(0, 7, 300)
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    for name, options in (
        ("brier", {}),
        ("mmce", {}),
        ("soft_ece", {"weighting": "bin"}),
        ("soft_ece", {"weighting": "label"}),
    ):
        expected = getattr(cal.metrics, name)(logits, labels, from_logits=True, **options)
        assert float(getattr(losses, name)(z, y, **options)) == pytest.approx(expected, abs=1e-9), name


def test_gradient_stops_through_the_confidence_only() -> None:
    logits = torch.tensor([[2.0, 0.0, 0.0], [1.0, 3.0, 0.0]], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 0])
    full = torch.autograd.grad(losses.avuc(logits, labels, kappa=0.7), logits)[0]
    stopped = torch.autograd.grad(losses.avuc_gs(logits, labels, kappa=0.7), logits)[0]
    assert not torch.allclose(full, stopped)


def test_without_torch_the_message_names_the_extra() -> None:
    code = (
        "import sys, importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'torch' else find(name, *a)\n"
        "sys.modules['torch'] = None\n"
        "import calibrant\n"
        "try:\n    calibrant.losses\n"
        "except ImportError as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(
        "MissingExtraError this needs torch: install it with `pip install 'calibrant[torch]'`"
    )
