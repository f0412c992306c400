"""Language models: sums taken batch by batch against all logits at once."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import calibrant as cal
from calibrant.core.errors import FitWarning, InputError
from calibrant.neural import measure_language_model, multiple_choice
from calibrant.neural.language_model import COUNT_EDGES, POSITION_EDGES, _ranges

VOCABULARY = 30


class Bigram(nn.Module):
    """A causal model: the next token's logits depend on the present token; overconfident by a factor."""

    def __init__(self, sharpness=2.0, dtype=torch.float32, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.table = nn.Parameter(sharpness * 2 * torch.randn((VOCABULARY, VOCABULARY), generator=generator).to(dtype))

    def forward(self, input_ids, attention_mask=None):
        return SimpleNamespace(logits=self.table[input_ids])


def batches(n=6, length=40, seed=1):
    """Sequences drawn from the bigram model at sharpness 1, so that the right temperature of Bigram(2) is near 2."""
    generator = torch.Generator().manual_seed(seed)
    share = Bigram(1.0).table.detach().softmax(dim=1)
    made = []
    for _ in range(n):
        tokens = torch.empty((8, length), dtype=torch.int64)
        tokens[:, 0] = torch.randint(0, VOCABULARY, (8,), generator=generator)
        for place in range(1, length):
            tokens[:, place] = torch.multinomial(share[tokens[:, place - 1]], 1, generator=generator)[:, 0]
        made.append(tokens)
    return made


def everything(model, given):
    with torch.no_grad():
        logits = torch.cat([model(tokens).logits[:, :-1].reshape(-1, VOCABULARY) for tokens in given])
    return logits.float().numpy(), torch.cat([tokens[:, 1:].reshape(-1) for tokens in given]).numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_temperature_and_the_metrics_are_those_of_all_logits_at_once(dtype):
    model, given = Bigram(dtype=dtype), batches()
    found = measure_language_model(model, given)
    logits, labels = everything(model, given)
    here = cal.TemperatureScaling().fit(logits, labels)
    fitted = found.fit_temperature()
    assert fitted.temperature_ == pytest.approx(here.temperature_, rel=1e-6)
    assert fitted.n_rows_ == found.n_tokens == len(labels)
    np.testing.assert_allclose(fitted.predict_proba(logits[:5]), here.predict_proba(logits[:5]), atol=1e-5)
    assert found.solved.loss == pytest.approx(cal.metrics.nll(here.predict_proba(logits), labels), abs=1e-6)
    for name in ("ece", "nll", "brier", "accuracy"):
        expected = getattr(cal.metrics, name)(logits, labels, from_logits=True)
        assert found.metrics[name] == pytest.approx(expected, abs=1e-6)


def test_a_temperature_is_applied_before_measuring():
    model, given = Bigram(), batches()
    temperature = measure_language_model(model, given).fit_temperature().temperature_
    after = measure_language_model(model, iter(given), temperature=temperature, fit=False)
    logits, labels = everything(model, given)
    assert after.metrics["nll"] == pytest.approx(
        cal.metrics.nll(logits / temperature, labels, from_logits=True), abs=1e-6
    )
    assert "frequency" not in after.groups  # an iterator is read once: nothing was counted
    with pytest.raises(InputError, match="fit=True"):
        after.fit_temperature()


def test_blocks_of_rows_do_not_change_metrics_at_a_temperature(monkeypatch):
    model, given = Bigram(), batches(n=2)
    expected = measure_language_model(model, given, temperature=2.0, fit=False)
    monkeypatch.setattr("calibrant.kernels.torch.tensors.BLOCK_ELEMENTS", 100 * VOCABULARY)
    found = measure_language_model(model, given, temperature=2.0, fit=False)
    assert found.metrics == pytest.approx(expected.metrics)
    assert found.groups["frequency"].keys() == expected.groups["frequency"].keys()


def test_groups_add_up_and_are_by_the_predicted_token():
    model, given = Bigram(), batches()
    counts = np.zeros(VOCABULARY, dtype=int)
    counts[:10], counts[10:20] = 5, 50_000
    found = measure_language_model(model, given, token_counts=counts, keep_rows=True)
    logits, labels = everything(model, given)
    prediction = logits.argmax(axis=1)
    common = (prediction >= 10) & (prediction < 20)
    group = found.groups["frequency"]["10,000–99,999"]
    assert group["tokens"] == common.sum()
    assert group["accuracy"] == pytest.approx((prediction == labels)[common].mean())
    for groups in found.groups.values():
        assert sum(row["tokens"] for row in groups.values()) == found.n_tokens
    assert list(found.groups["position"]) == ["0–15", "16–63"]
    pairs = found.pairs()
    assert pairs.task == "pairs"
    measured = cal.measure(pairs, by="frequency", resamples=50)
    assert measured.n == found.n_tokens
    frame = found.to_frame()
    assert len(frame) == 1 + sum(map(len, found.groups.values()))
    assert "position 16–63" in str(found)


def test_padding_and_ignored_labels_do_not_count():
    model, given = Bigram(), batches(n=2)
    padded = [
        {"input_ids": nn.functional.pad(t, (0, 7)), "attention_mask": nn.functional.pad(torch.ones_like(t), (0, 7))}
        for t in given
    ]
    plain, masked = measure_language_model(model, given), measure_language_model(model, padded)
    assert masked.metrics == pytest.approx(plain.metrics)
    ignored = [{"input_ids": t, "labels": torch.where(torch.arange(t.shape[1]) < 20, -100, t)} for t in given]
    assert measure_language_model(model, ignored).n_tokens == 2 * 8 * 20


def test_an_untypical_first_batch_is_made_good():
    model, given = Bigram(6.0), batches()
    with torch.no_grad():
        easy = model.table.argmax(dim=1)
    first = torch.empty((1, 6), dtype=torch.int64)
    first[0, 0] = 0
    for place in range(1, 6):
        first[0, place] = easy[first[0, place - 1]]
    found = measure_language_model(model, [first, *given])
    logits, labels = everything(model, [first, *given])
    assert found.fit_temperature().temperature_ == pytest.approx(
        cal.TemperatureScaling().fit(logits, labels).temperature_, rel=1e-5
    )
    with pytest.warns(FitWarning, match="no fit"):
        assert measure_language_model(model, iter([first, *given])).solved is None


def test_errors_say_what_is_wrong():
    model = Bigram()
    with pytest.raises(InputError, match="token ids"):
        measure_language_model(model, [torch.zeros(3)])
    with pytest.raises(InputError, match="no token"):
        measure_language_model(model, [torch.zeros((2, 1), dtype=torch.int64)])
    with pytest.raises(InputError, match="next-token logits"):
        measure_language_model(nn.Flatten(0), [torch.zeros((2, 4), dtype=torch.int64)])
    with pytest.raises(InputError, match="1 tokens"):
        measure_language_model(
            model, [{"input_ids": torch.zeros((1, 3), dtype=torch.int64), "labels": torch.tensor([[0, 1, 99]])}]
        )
    with pytest.raises(InputError, match="keep_rows"):
        measure_language_model(model, batches(1)).pairs()
    assert len(_ranges(POSITION_EDGES)) == len(POSITION_EDGES) + 1
    assert _ranges(COUNT_EDGES)[:2] == ["0", "1–9"]


class TestMultipleChoice:
    def test_is_the_softmax_over_options(self):
        scores = np.log(np.array([[0.2, 0.05], [0.01, 0.03]]))
        found = multiple_choice(scores, [0, 1])
        np.testing.assert_allclose(found.probabilities, [[0.8, 0.2], [0.25, 0.75]])
        assert cal.metrics.accuracy(found.logits, found.labels, from_logits=True) == 1.0

    def test_length_changes_the_winner(self):
        short, long = -4.0, -6.0
        assert multiple_choice([[short, long]], [1]).logits.argmax() == 0
        assert multiple_choice([[short, long]], [1], lengths=[[2, 6]], normalise="length").logits.argmax() == 1

    def test_questions_may_have_different_numbers_of_options(self):
        found = multiple_choice([[-1.0, -2.0, -3.0], [-1.0, -2.0]], [2, 0])
        np.testing.assert_allclose(found.probabilities[1], [1 / (1 + np.exp(-1)), 1 / (1 + np.e), 0.0])

    def test_refuses_what_is_no_log_likelihood(self):
        with pytest.raises(InputError, match="question 1"):
            multiple_choice([[-1.0, -2.0], [0.5, -1.0]], [0, 0])
        with pytest.raises(InputError, match=r"options 0\.\.1"):
            multiple_choice([[-1.0, -2.0, -3.0], [-1.0, -2.0]], [2, 2])
        with pytest.raises(InputError, match="needs lengths"):
            multiple_choice([[-1.0, -2.0]], [0], normalise="length")
        with pytest.raises(InputError, match="shape"):
            multiple_choice([[-1.0, -2.0]], [0], normalise="length", lengths=[[1, 2, 3]])
