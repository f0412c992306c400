"""Interleaved training: the split, the order of the parts, and which loss each part gets."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from calibrant import InputError, losses  # noqa: E402
from calibrant.neural import (  # noqa: E402
    InterleavedBatches,
    InterleavedObjective,
    interleaved_epoch,
    split_majority,
)


def test_split_is_a_seeded_partition() -> None:
    majority, held_out = split_majority(101, 0.1, seed=4)
    assert sorted([*majority.tolist(), *held_out.tolist()]) == list(range(101))
    assert len(held_out) == 10
    assert torch.equal(held_out, split_majority(101, 0.1, seed=4)[1])
    assert not torch.equal(held_out, split_majority(101, 0.1, seed=5)[1])


@pytest.mark.parametrize(("n", "share"), [(3, 0.1), (10, 0.0), (10, 1.0)])
def test_a_split_without_two_parts_is_refused(n: int, share: float) -> None:
    with pytest.raises(InputError):
        split_majority(n, share)


def test_each_part_gets_its_own_loss_in_turn() -> None:
    torch.manual_seed(0)
    points, labels = torch.randn(100, 3), torch.randint(0, 3, (100,))
    majority, held_out = split_majority(100, 0.2)
    loaders = [DataLoader(TensorDataset(points[index], labels[index]), batch_size=16) for index in (majority, held_out)]
    objective = InterleavedObjective(losses.cross_entropy, losses.soft_ece, weight=3.0)
    model = nn.Linear(3, 3)
    seen = []

    def step(batch, loss):
        logits = model(batch[0])
        value = loss(logits, batch[1])
        seen.append((len(batch[1]), value.item(), losses.cross_entropy(logits, batch[1]).item()))
        return value

    first, second = interleaved_epoch(step, *loaders, objective)
    assert [size for size, _, _ in seen] == [16] * 5 + [16, 4]
    assert all(value == pytest.approx(primary) for _, value, primary in seen[:5])
    assert all(value != pytest.approx(primary) for _, value, primary in seen[5:])
    assert first == pytest.approx(sum(value for _, value, _ in seen[:5]) / 5)
    assert second == pytest.approx(sum(value for _, value, _ in seen[5:]) / 2)
    flags = [held for _, held in InterleavedBatches(*loaders)]
    assert flags == [False] * 5 + [True] * 2
    assert len(InterleavedBatches(*loaders)) == 7


def test_an_empty_part_is_refused() -> None:
    objective = InterleavedObjective(losses.cross_entropy, losses.soft_ece, weight=3.0)
    with pytest.raises(InputError, match="the held-out loader has 0 batches"):
        interleaved_epoch(lambda batch, loss: torch.zeros(()), [1], [], objective)


def test_a_step_that_forgets_its_loss_is_refused() -> None:
    with pytest.raises(InputError, match="step returned a NoneType"):
        interleaved_epoch(
            lambda batch, loss: None, [1], [2], InterleavedObjective(losses.cross_entropy, losses.soft_ece, 1.0)
        )
