"""Train for calibration in a plain torch loop: focal loss with soft ECE, and cross entropy with interleaved training.

python examples/train_torch.py
"""

import torch
from torch import nn

import calibrant as cal
from calibrant import losses
from calibrant.neural import InterleavedObjective, interleaved_epoch, split_majority


def noisy_classes(n, generator):
    """Points around four centres, a third of them with another label: nobody can be sure of these."""
    labels = torch.randint(0, 4, (n,), generator=generator)
    points = 2 * nn.functional.one_hot(labels, 4).float() + torch.randn(n, 4, generator=generator)
    flipped = torch.rand(n, generator=generator) < 0.3
    return points, torch.where(flipped, torch.randint(0, 4, (n,), generator=generator), labels)


def batches(points, labels, size=64):
    order = torch.randperm(len(labels))
    return [(points[index], labels[index]) for index in order.split(size)]


def train(train_set, loss, *, interleaved=None, epochs=40):
    model = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(batch, loss):
        points, labels = batch
        value = loss(model(points), labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value

    points, labels = train_set
    for _ in range(epochs):
        if interleaved is None:
            for batch in batches(points, labels):
                step(batch, loss)
        else:
            majority, held_out = split_majority(len(labels), held_out_share=0.2)
            parts = [batches(points[index], labels[index]) for index in (majority, held_out)]
            interleaved_epoch(step, *parts, interleaved)
    return model


def main(n=600, epochs=40):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    train_set, test_set = noisy_classes(n, generator), noisy_classes(4 * n, generator)
    plain = losses.cross_entropy
    soft = losses.composite(losses.focal, losses.SoftECELoss(weighting="label"), weight=1.0)
    interleaved = InterleavedObjective(losses.cross_entropy, losses.SoftECELoss(weighting="label"), weight=2.0)
    models = {
        "cross entropy": train(train_set, plain, epochs=epochs),
        "focal + soft ECE": train(train_set, soft, epochs=epochs),
        "cross entropy, interleaved soft ECE": train(train_set, plain, interleaved=interleaved, epochs=epochs),
    }
    figures = {}
    for name, model in models.items():
        predictions = cal.collect_logits(model, batches(*test_set))
        figures[name] = cal.metrics.ece(predictions.logits, predictions.labels, from_logits=True)
        print(f"{name:36s} test ECE {100 * figures[name]:5.2f}%")
    return figures


if __name__ == "__main__":
    main()
