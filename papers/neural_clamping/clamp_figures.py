"""The columns of the paper's tables, computed where the logits are; a test holds them to the library's metrics."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "soft_objectives"))

import torch
from figures import N_BINS, binned_error, ece, mass_index, negative_log_likelihood, top_label, width_index
from torch import Tensor


def figures(logits: Tensor, labels: Tensor, *, brief: bool = False) -> dict[str, float]:
    """Accuracy, ECE, ACE (equal-mass ECE of the top label), NLL; unless brief also entropy and SCE."""
    confidence, correct = top_label(logits, labels)
    found = {
        "accuracy": float(correct.mean()),
        "ece": ece(confidence, correct),
        "ace": float(binned_error(confidence, correct, mass_index(confidence, N_BINS), N_BINS, 1)),
        "nll": negative_log_likelihood(logits, labels),
    }
    if not brief:
        log_p = logits.double().log_softmax(dim=1)
        p = log_p.exp()
        found["entropy"] = float(-(p * log_p).sum(1).mean())
        errors = [
            binned_error(p[:, k].contiguous(), (labels == k).double(), width_index(p[:, k].contiguous()), N_BINS, 1)
            for k in range(p.shape[1])
        ]
        found["sce"] = float(torch.stack(errors).mean())
    return {name: round(value, 6) for name, value in found.items()}
