"""A calibration loss in the Hugging Face Trainer, through `compute_loss_func`.

pip install transformers accelerate
python examples/train_huggingface.py
"""

import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

import calibrant as cal
from calibrant import losses

objective = losses.composite(losses.focal, losses.SoftECELoss(weighting="label"), weight=0.2)


def calibration_loss(outputs, labels, num_items_in_batch=None):
    return objective(outputs["logits"], labels)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, points, labels=None):
        return {"logits": self.net(points)}


class Logits(nn.Module):
    """The model as calibrant takes it: inputs in, a tensor of logits out."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, points):
        return self.model(points)["logits"]


def main(n=800, steps=60):
    torch.manual_seed(0)
    labels = torch.randint(0, 4, (n,))
    points = 2 * nn.functional.one_hot(labels, 4).float() + torch.randn(n, 4)
    rows = [{"points": point, "labels": label} for point, label in zip(points, labels, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=64,
            learning_rate=3e-3,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(model=Classifier(), args=arguments, train_dataset=rows, compute_loss_func=calibration_loss)
        trainer.train()
    predictions = cal.collect_logits(Logits(trainer.model), [(points, labels)])
    figures = {
        "accuracy": cal.metrics.accuracy(predictions.logits, predictions.labels, from_logits=True),
        "ece": cal.metrics.ece(predictions.logits, predictions.labels, from_logits=True),
    }
    print(figures)
    return figures


if __name__ == "__main__":
    main()
