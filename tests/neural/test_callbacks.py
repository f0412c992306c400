"""Dictionary batches, model outputs, and callbacks of the usual training loops."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import calibrant as cal
from calibrant.neural.callbacks import compute_metrics, lightning_callback, trainer_callback

torch.set_num_threads(1)


class Named(nn.Module):
    """A model as Hugging Face has them: named inputs, an output object."""

    def __init__(self, kind="object"):
        super().__init__()
        self.net, self.kind = nn.Linear(3, 3), kind
        nn.init.eye_(self.net.weight)  # points lie near their class, so the logits say something true

    def forward(self, points, mask=None, labels=None):
        logits = self.net(points)
        return SimpleNamespace(logits=logits) if self.kind == "object" else {"logits": logits}


def batches(n=90):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (n,), generator=generator)
    points = nn.functional.one_hot(labels, 3).float() + torch.randn(n, 3, generator=generator)
    return [
        {"points": points[i : i + 30], "mask": torch.ones(30), "labels": labels[i : i + 30]} for i in range(0, n, 30)
    ]


@pytest.mark.parametrize("kind", ["object", "dict"])
def test_dictionary_batches_and_outputs(kind):
    model = Named(kind)
    collected = cal.collect_logits(model, batches())
    points = torch.cat([batch["points"] for batch in batches()])
    np.testing.assert_allclose(collected.logits, model.net(points).detach().numpy(), rtol=1e-6)
    fitted = cal.TemperatureScaling().fit(collected.logits, collected.labels)
    module = cal.CalibratedModule(model, fitted)
    answer = module(points=points[:5], mask=None)
    np.testing.assert_allclose(answer.detach().numpy(), fitted.predict_proba(collected.logits[:5]), atol=1e-6)


def test_a_batch_without_labels_is_named():
    with pytest.raises(cal.InputError, match="none of labels, label, label_ids"):
        cal.collect_logits(Named(), [{"points": torch.zeros(2, 3)}])
    with pytest.raises(cal.InputError, match="one class index per row"):
        cal.collect_logits(Named(), [{"points": torch.zeros(2, 3), "labels": torch.zeros(2)}])
    with pytest.raises(cal.InputError, match="does not run on inputs words"):
        cal.collect_logits(Named(), [{"words": torch.zeros(2, 3), "labels": torch.zeros(2, dtype=torch.long)}])


def test_compute_metrics_of_a_trainer():
    seen = cal.collect_logits(Named(), batches())
    found = compute_metrics(SimpleNamespace(predictions=seen.logits, label_ids=seen.labels))
    assert found["nll"] == pytest.approx(cal.metrics.nll(seen.logits, seen.labels, from_logits=True))
    assert set(found) == {"ece", "nll", "brier", "accuracy"}
    assert compute_metrics(((seen.logits, None), seen.labels)) == found


def test_a_tiny_transformer_is_trained_calibrated_and_exported(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=3
    )
    torch.manual_seed(0)
    labels = torch.randint(0, 3, (96,))
    tokens = 12 * labels[:, None] + torch.randint(0, 20, (96, 6))
    rows = [{"input_ids": t, "attention_mask": torch.ones(6), "labels": y} for t, y in zip(tokens, labels, strict=True)]
    held_out = torch.utils.data.DataLoader(rows[64:], batch_size=16)
    callback = trainer_callback(held_out)
    trainer = transformers.Trainer(
        model=transformers.BertForSequenceClassification(config),
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path), num_train_epochs=2, report_to=[], save_strategy="no", disable_tqdm=True,
            use_cpu=True, learning_rate=5e-3,
        ),
        train_dataset=rows[:64], callbacks=[callback],
    )  # fmt: skip
    trainer.train()
    assert len(callback.history_) == 2
    assert any("calibration_ece" in entry for entry in trainer.state.log_history)
    calibrated = callback.calibrated(trainer.model)
    answer = calibrated(input_ids=tokens[:4], attention_mask=torch.ones(4, 6))
    torch.testing.assert_close(answer.sum(dim=1), torch.ones(4))
    cal.save(callback.calibrator_, tmp_path / "cal.safetensors")
    assert cal.load(tmp_path / "cal.safetensors").temperature_ == callback.calibrator_.temperature_


def test_lightning_logs_and_calibrates():
    lightning = pytest.importorskip("lightning")

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(3, 3)

        def forward(self, points):
            return self.net(points)

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.05)

    pairs = [(batch["points"], batch["labels"]) for batch in batches()]
    callback = lightning_callback(pairs)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[callback],
    )  # fmt: skip
    trainer.fit(Classifier(), torch.utils.data.DataLoader(pairs, batch_size=None))
    assert len(callback.history_) == 2
    assert "calibration_nll" in trainer.callback_metrics
    assert callback.calibrator_.temperature_ > 0
