"""A calibration loss and a calibration callback in the Hugging Face Trainer, then one calibrated module.

pip install transformers accelerate
python examples/train_huggingface.py
"""

import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

import calibrant as cal
from calibrant import losses
from calibrant.neural.callbacks import trainer_callback

objective = losses.composite(losses.cross_entropy, losses.SoftECELoss(), weight=0.05)


def calibration_loss(outputs, labels, num_items_in_batch=None):
    return objective(outputs["logits"], labels)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))

    def forward(self, points, labels=None):
        return {"logits": self.net(points)}


def rows(n, generator):
    """Points around four centres, a third of them with another label: nobody can be sure of these."""
    labels = torch.randint(0, 4, (n,), generator=generator)
    points = 2 * nn.functional.one_hot(labels, 4).float() + torch.randn(n, 4, generator=generator)
    flipped = torch.rand(n, generator=generator) < 0.3
    labels = torch.where(flipped, torch.randint(0, 4, (n,), generator=generator), labels)
    return [{"points": point, "labels": label} for point, label in zip(points, labels, strict=True)]


def main(n=400, epochs=60):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    train, held_out, test = (rows(size, generator) for size in (n, 2 * n, 4 * n))
    callback = trainer_callback(DataLoader(held_out, batch_size=256), method="ts")
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=64,
            learning_rate=3e-3,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(
            model=Classifier(),
            args=arguments,
            train_dataset=train,
            compute_loss_func=calibration_loss,
            callbacks=[callback],
        )
        trainer.train()
    seen = cal.collect_logits(trainer.model, DataLoader(test, batch_size=256))
    calibrated = callback.calibrated(trainer.model)  # one module: named inputs in, probabilities out
    print("one row:", calibrated(points=test[0]["points"][None]).detach().numpy().round(3))
    before = cal.metrics.ece(seen.logits, seen.labels, from_logits=True)
    after = cal.metrics.ece(callback.calibrator_.predict_proba(seen.logits), seen.labels)
    print(f"test ECE {100 * before:.2f}% -> {100 * after:.2f}%")
    return {"before": before, "after": after, "epochs": len(callback.history_)}


if __name__ == "__main__":
    main()
