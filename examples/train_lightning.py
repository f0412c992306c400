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


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 4))
        soft_ece = losses.SoftECELoss(weighting="label")
        self.objective = InterleavedObjective(losses.CrossEntropyLoss(), soft_ece, weight=2.0)
        self.seen = {"majority": 0, "held_out": 0}

    def forward(self, points):
        return self.net(points)

    def training_step(self, batch, batch_idx):
        (points, labels), held_out = batch
        self.seen["held_out" if held_out else "majority"] += 1
        return self.objective(self(points), labels, held_out=held_out)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main(n=800, epochs=5):
    pl.seed_everything(0, verbose=False)
    labels = torch.randint(0, 4, (n,))
    points = 2 * nn.functional.one_hot(labels, 4).float() + torch.randn(n, 4)
    data = TensorDataset(points, labels)
    majority, held_out = split_majority(n, held_out_share=0.2)
    parts = [DataLoader(Subset(data, index.tolist()), batch_size=64, shuffle=True) for index in (majority, held_out)]
    model = Classifier()
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, InterleavedBatches(*parts))
    predictions = cal.collect_logits(model, DataLoader(data, batch_size=256))
    print(f"batches: {model.seen}")
    print(f"ECE {100 * cal.metrics.ece(predictions.logits, predictions.labels, from_logits=True):.2f}%")
    return model.seen


if __name__ == "__main__":
    main()
