"""Train for calibration in a plain torch loop: focal loss with soft ECE, cross entropy with interleaved training, and a
calibrator fitted on held-out rows after each.

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


def main(n=600, epochs=120):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    train_set, held_out, test_set = (noisy_classes(size, generator) for size in (n, 2 * n, 4 * n))
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
        fit, test = (cal.collect_logits(model, batches(*rows)) for rows in (held_out, test_set))
        calibrator = cal.AutoCalibrator().fit(fit.logits, fit.labels)
        before = cal.metrics.ece(test.logits, test.labels, from_logits=True)
        after = cal.metrics.ece(calibrator.predict_proba(test.logits), test.labels)
        figures[name] = {"before": before, "after": after}
        print(f"{name:36s} test ECE {100 * before:5.2f}% -> {100 * after:5.2f}% after {calibrator.chosen_}")
    return figures


if __name__ == "__main__":
    main()
