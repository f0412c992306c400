"""Calibrate a Hugging Face sequence classifier: collect its logits, fit, and put the calibrator behind it.

python examples/huggingface_classifier.py

The model here is a tiny BERT with random weights and random tokens, trained for a moment, so that the example needs no
download. With your own, replace `tiny_classifier` by AutoModelForSequenceClassification.from_pretrained(...) and
`batches` by your tokenized validation set.
"""

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

import calibrant as cal


def tiny_classifier(n_labels=4):
    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16, num_labels=n_labels,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def sentences(n, generator):
    """Eight tokens; most of them come from the label's part of the vocabulary, and one label in five is wrong."""
    labels = torch.randint(0, 4, (n,), generator=generator)
    tokens = torch.randint(0, 48, (n, 8), generator=generator)
    own = 12 * labels[:, None] + torch.randint(0, 12, (n, 8), generator=generator)
    tokens = torch.where(torch.rand(n, 8, generator=generator) < 0.6, own, tokens)
    noise = torch.rand(n, generator=generator) < 0.2
    return tokens, torch.where(noise, torch.randint(0, 4, (n,), generator=generator), labels)


def batch(n, generator):
    """A batch as a tokenizer and a Hugging Face loader give it: a dictionary of named tensors."""
    tokens, labels = sentences(n, generator)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}


def main(n=400, steps=150):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    network = tiny_classifier()
    tokens, labels = sentences(n, generator)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(steps):  # long enough to learn the noise by heart
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(input_ids=tokens).logits, labels).backward()
        optimizer.step()

    network.eval()
    val, test = (cal.collect_logits(network, [batch(4 * n, generator)]) for _ in range(2))
    fitted = cal.AutoCalibrator(candidates=["none", "ts", "ts+top", "shape"]).fit(val.logits, val.labels)
    print(fitted.reason_)
    before = cal.metrics.ece(test.probabilities, test.labels)
    after = cal.metrics.ece(fitted.predict_proba(test.logits), test.labels)
    print(f"ECE {before:.3f} -> {after:.3f}")

    calibrated = cal.CalibratedModule(network, fitted.calibrator_)  # one module: its named inputs in, probabilities out
    print("probabilities of one sentence:", [round(p, 3) for p in calibrated(input_ids=tokens[:1])[0].tolist()])
    return before, after


if __name__ == "__main__":
    main()
