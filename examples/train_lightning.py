"""Interleaved training in Lightning: one loader that goes through both parts, the loss by the part of a batch.

pip install lightning
python examples/train_lightning.py
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

try:
    import lightning as pl
except ImportError:
    import pytorch_lightning as pl

import calibrant as cal
from calibrant import losses
from calibrant.neural import InterleavedBatches, InterleavedObjective, split_majority
from calibrant.neural.callbacks import lightning_callback


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
        soft_ece = losses.SoftECELoss(weighting="label")
        self.objective = InterleavedObjective(losses.CrossEntropyLoss(), soft_ece, weight=0.5)
        self.seen = {"majority": 0, "held_out": 0}

    def forward(self, points):
        return self.net(points)

    def training_step(self, batch, batch_idx):
        (points, labels), held_out = batch
        self.seen["held_out" if held_out else "majority"] += 1
        return self.objective(self(points), labels, held_out=held_out)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def noisy(n):
    """Points around four centres, a third of them with another label: nobody can be sure of these."""
    labels = torch.randint(0, 4, (n,))
    points = 2 * nn.functional.one_hot(labels, 4).float() + torch.randn(n, 4)
    flipped = torch.rand(n) < 0.3
    return TensorDataset(points, torch.where(flipped, torch.randint(0, 4, (n,)), labels))


def main(n=400, epochs=30):
    pl.seed_everything(0, verbose=False)
    data, held_out_rows, test = noisy(n), noisy(2 * n), noisy(4 * n)
    majority, held_out = split_majority(n, held_out_share=0.2)
    parts = [DataLoader(Subset(data, index.tolist()), batch_size=64, shuffle=True) for index in (majority, held_out)]
    model, callback = Classifier(), lightning_callback(DataLoader(held_out_rows, batch_size=256))
    trainer = pl.Trainer(
        max_epochs=epochs,
        callbacks=[callback],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, InterleavedBatches(*parts))
    seen = cal.collect_logits(model, DataLoader(test, batch_size=256))
    before = cal.metrics.ece(seen.logits, seen.labels, from_logits=True)
    after = cal.metrics.ece(callback.calibrator_.predict_proba(seen.logits), seen.labels)
    print(f"batches: {model.seen}")
    print(f"test ECE {100 * before:.2f}% -> {100 * after:.2f}%")
    return {"seen": model.seen, "before": before, "after": after}


if __name__ == "__main__":
    main()
