"""Neural Clamping on two trained ResNet-20s, beside the output calibrators (the paper's tables 1 and 3, figure 3).

    python papers/neural_clamping/run.py --data ../shared/data --out papers/neural_clamping/results

Writes one JSON file per checkpoint and part: `clamping` needs the images and is quick only on a GPU, `outputs` needs
the stored logits alone. `--tiny` clamps a tiny net on synthetic images on the CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from resnet20 import load_resnet20, read_images
from torch import Tensor, nn

from calibrant import metrics
from calibrant.neural import ClampedModule, NeuralClamping

CHECKPOINTS = {"c100_resnet20_ce": "cifar100", "c10_resnet20_ce": "cifar10"}
STARTS = ("data-driven", "normal")
GAMMAS, PENALTIES = (0.0, 0.5, 1.0), (0.01, 0.1, 1.0)
FINER_GAMMAS = (0.05, 0.1, 0.15, 0.2)
# the box of feasible pixels 0…255 after standardisation is what the images themselves span


def main(arguments: list[str] | None = None) -> int:
    """Command line of the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder that holds zoo/ and cifar/, or all their files")
    parser.add_argument("--out", type=Path, required=True, help="folder of results")
    parser.add_argument("--checkpoints", nargs="+", choices=list(CHECKPOINTS), default=list(CHECKPOINTS))
    parser.add_argument("--parts", nargs="+", choices=["clamping", "outputs"], default=["clamping", "outputs"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--pair", type=float, nargs=2, metavar=("GAMMA", "LAMBDA"), help="these instead of the pool")
    parser.add_argument("--limit", type=int, help="use only this many images of each part")
    parser.add_argument("--tiny", action="store_true", help="a tiny net on synthetic images, on the CPU")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.tiny:
        write(options.out / "tiny.json", clamping_study(*tiny_problem(), seeds=2, epochs=2, device="cpu"))
        return 0
    if options.data is None:
        parser.error("--data is needed unless --tiny")
    for name in options.checkpoints:
        if "clamping" in options.parts:
            write(options.out / f"{name}-clamping.json", clamp_checkpoint(options, name))
        if "outputs" in options.parts:
            from outputs import outputs_study

            write(options.out / f"{name}-outputs.json", outputs_study(find(options.data, f"{name}.npz"), options.seeds))
    return 0


def clamp_checkpoint(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """The study of one checkpoint, after checking that it gives the stored logits."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_resnet20(find(options.data, f"{name}.safetensors")).to(device)
    folder = find(options.data, f"{CHECKPOINTS[name]}.zip").parent
    val, test = (read_images(folder, CHECKPOINTS[name], part, options.limit) for part in ("val", "test"))
    stored = find(options.data, f"{name}.npz", required=False)
    difference = None
    if stored is not None:
        with np.load(stored) as file:
            expected = torch.from_numpy(file["test_logits"][: len(test[1])].astype(np.float32))
        difference = float((logits_of(model, test[0].to(device)).cpu() - expected).abs().max())
        print(f"{name}: largest difference to the stored test logits {difference:.4f}", flush=True)
    about = {"checkpoint": name, "stored_logit_difference": difference}

    def keep(study: dict[str, Any]) -> None:
        write(options.out / f"{name}-clamping.json", {**about, **study})

    pair = None if options.pair is None else (options.pair[0], options.pair[1])
    study = clamping_study(
        model, val, test, seeds=options.seeds, epochs=options.epochs, device=device, pair=pair, keep=keep
    )
    return {**about, **study}


def clamping_study(
    model: nn.Module,
    val: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    seeds: int,
    epochs: int,
    device: str,
    pair: tuple[float, float] | None = None,
    keep: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """γ and λ chosen once from the pool, then every seed with both starts, cross entropy and focal, and ablations."""
    images, labels = test[0].to(device), test[1].numpy()
    loader = [(val[0].to(device), val[1].to(device))]
    scores: list[dict[str, float]] = []
    variants = {"chosen": pair} if pair is not None else choose(model, loader, epochs, scores)
    plain = figures(logits_of(model, images), labels)
    runs: list[dict[str, Any]] = []
    study = {"none": plain, "scores": scores, "variants": variants, "runs": runs}
    for gamma, penalty in sorted({tuple(pair) for pair in variants.values()}):
        # the comparison of starts needs only the pair that was chosen
        for start in STARTS if (gamma, penalty) == tuple(variants["chosen"]) else STARTS[:1]:
            for seed in range(seeds):
                began = time.perf_counter()
                clamping = NeuralClamping(gamma, penalty, start, epochs=epochs, seed=seed)
                clamped = clamping.fit(model, loader)
                runs.append(
                    {"gamma": gamma, "penalty": penalty, "start": start, "seed": seed}
                    | {"temperature": clamping.temperature_, "delta_norm": float(clamping.delta_.norm())}
                    | {"epochs": len(clamping.loss_trace_), "seconds": round(time.perf_counter() - began, 2)}
                    | ablations(clamped, images, labels)
                )
                if keep is not None:
                    # a study cut short still says what it found
                    keep(study)
                joint = runs[-1]["joint"]
                print(f"γ={gamma} λ={penalty} {start} seed {seed}: {joint} {runs[-1]['seconds']} s", flush=True)
    return study


def choose(
    model: nn.Module, loader: list[tuple[Tensor, Tensor]], epochs: int, scores: list[dict[str, float]]
) -> dict[str, tuple[float, float]]:
    """The best pairs of the coarse pool and of finer γ at the λ it chose; the scores are added to the list."""
    started = time.perf_counter()
    coarse = NeuralClamping(epochs=epochs, seed=0, gamma_pool=GAMMAS, penalty_pool=PENALTIES)
    coarse.fit(model, loader)
    finer = NeuralClamping("auto", coarse.penalty_, epochs=epochs, seed=0, gamma_pool=FINER_GAMMAS)
    finer.fit(model, loader)
    scores += [vars(score) for score in (*coarse.scores_, *finer.scores_)]
    variants = best_pairs(scores)
    print(f"chosen γ, λ: {variants}; {time.perf_counter() - started:.1f} s", flush=True)
    return variants


def best_pairs(scores: list[dict[str, float]]) -> dict[str, tuple[float, float]]:
    """γ and λ of lowest held-out ECE: overall, with cross entropy (γ = 0), with focal (γ > 0)."""
    groups = {
        "chosen": scores,
        "ce": [score for score in scores if score["gamma"] == 0],
        "focal": [score for score in scores if score["gamma"] > 0],
    }
    best = {name: min(group, key=lambda score: score["ece"]) for name, group in groups.items()}
    return {name: (score["gamma"], score["penalty"]) for name, score in best.items()}


def ablations(clamped: ClampedModule, images: Tensor, labels: np.ndarray) -> dict[str, dict[str, float]]:
    """Figures with both clamps, with δ alone and with T alone, from the jointly trained pair."""
    parts = {"joint": clamped, "input_only": clamped.input_only(), "output_only": clamped.output_only()}
    return {name: figures(logits_of(module, images), labels) for name, module in parts.items()}


def figures(logits: Tensor, labels: np.ndarray) -> dict[str, float]:
    """The columns of the paper's tables; its ACE is the equal-mass ECE of the top label."""
    values = logits.double().cpu().numpy()
    measured = {
        "accuracy": metrics.accuracy(values, labels, from_logits=True),
        "entropy": metrics.entropy(values, labels, from_logits=True),
        "ece": metrics.ece(values, labels, from_logits=True),
        "ace": metrics.adaptive_ece(values, labels, from_logits=True),
        "sce": metrics.classwise_ece(values, labels, average="mean", from_logits=True),
        "nll": metrics.nll(values, labels, from_logits=True),
    }
    return {name: round(float(value), 6) for name, value in measured.items()}


def logits_of(model: nn.Module, images: Tensor, size: int = 2000) -> Tensor:
    """Logits (n, K) in evaluation mode."""
    model.eval()
    with torch.no_grad():
        return torch.cat([model(part) for part in images.split(size)])


def tiny_problem() -> tuple[nn.Module, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A fixed linear net on a few random images."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def part(n: int) -> tuple[Tensor, Tensor]:
        images = torch.rand(n, 3, 4, 4, generator=generator)
        noise = 4 * torch.randn(n, 5, generator=generator)
        return images, (model(images).detach() + noise).argmax(dim=1)

    return model, part(200), part(200)


def find(folder: Path, name: str, *, required: bool = True) -> Any:
    """The file of this name in the folder or one of its folders."""
    hits = sorted(folder.rglob(name))
    if not hits and required:
        raise SystemExit(f"no {name} under {folder}")
    return hits[0] if hits else None


def write(path: Path, result: dict[str, Any]) -> None:
    """One result as JSON."""
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {path}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
