"""Neural Clamping of one network on a GPU: the pool, the starts, the ablations, and transfer to corrupted images.

    python papers/neural_clamping/clamp.py --data ../shared/data --network c100_resnet20_ce --out FOLDER
    python papers/neural_clamping/clamp.py --data ../shared/data --network c100_resnet18 --out FOLDER

`c100_resnet18` is trained first. Writes NETWORK.json as it goes on, and NETWORK-logits.npz with the test logits that
paired intervals need. `--pool FILE` takes γ and λ from the pool of an earlier run instead of scoring it again; `--tiny`
runs every line on synthetic images on the CPU.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "soft_objectives"))
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from batched import Fit, fit_many
from clamp_figures import figures
from images import CORRUPTIONS, SEVERITIES, Dataset, corrupt, normalise, read_dataset, synthetic_dataset
from resnet20 import load_resnet20
from settings import Setting
from torch import Tensor, nn
from training import Recipe, Trainer

from calibrant.neural.neural_clamping import (
    accuracy_loss,
    best_focal_temperature,
    best_temperature,
    entropy_gradient,
    feasible_box,
    greatest_feasible_step,
    input_units,
)

GAMMAS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.5, 1.0)
PENALTIES = (0.001, 10.0)
FAST = 0.1
"""A learning rate at which δ moves far: with the paper's 0.001 it hardly leaves its start in 100 epochs."""
TRAINING_SEED = 3


class Study:
    """A network, its calibration and test images, and what has been found so far."""

    def __init__(self, model: nn.Module, data: Dataset, options: argparse.Namespace) -> None:
        self.model, self.data, self.options = model.eval(), data, options
        self.inputs, self.labels = normalise(data.validation.images), data.validation.labels
        self.test = normalise(data.test.images)
        self.logits = self.run(self.inputs)
        self.temperature = best_temperature(self.logits, self.labels)
        self.found: dict[str, Any] = {"network": options.network, "epochs": options.epochs, "runs": []}
        self.kept: dict[str, np.ndarray] = {}

    def run(self, images: Tensor, delta: Tensor | None = None, size: int = 1000, *, fast: bool = False) -> Tensor:
        """Logits (n, K), perturbed where a δ is given; `fast` computes in bfloat16 on a GPU."""
        cast = torch.autocast(images.device.type, torch.bfloat16, enabled=fast and images.is_cuda)
        with torch.no_grad(), cast:
            parts = [self.model(part if delta is None else part + delta) for part in images.split(size)]
        return torch.cat(parts).float()

    def start(self, kind: str, seed: int, rows: Tensor) -> Tensor:
        """δ at the beginning: Theorem 1 on these rows, or normal with the paper's variance of 0.01."""
        inputs = self.inputs[rows]
        if kind in ("normal", "printed"):
            units = input_units(inputs)
            return 0.1 * units * torch.randn(units.shape, generator=torch.Generator().manual_seed(seed)).to(units)
        temperature = best_temperature(self.logits[rows], self.labels[rows])
        gradient = entropy_gradient(self.model, inputs, temperature)
        return greatest_feasible_step(gradient, inputs, *feasible_box(inputs, None))

    def fits(self, wanted: list[dict[str, Any]]) -> list[Any]:
        """Fits of (gamma, penalty, start, seed, rows, rate), all at once; equal starts are computed once."""
        starts: dict[Any, tuple[Tensor, float]] = {}
        fits = []
        for one in wanted:
            rows = one["rows"]
            key = (one["start"], 0 if one["start"] == "data-driven" else one["seed"], int(rows[0]), len(rows))
            if key not in starts:
                printed = one["start"] == "printed"
                temperature = 1.0 if printed else best_temperature(self.logits[rows], self.labels[rows])
                starts[key] = (self.start(one["start"], one["seed"], rows), temperature)
            delta, temperature = starts[key]
            rate = one.get("rate", 0.001)
            fits.append(Fit(one["gamma"], one["penalty"], delta, temperature, rows, one["seed"], rate))
        options = self.options
        return fit_many(
            self.model, self.inputs, self.labels, fits, epochs=options.epochs, at_once=options.at_once,
            autocast=self.inputs.is_cuda,
        )  # fmt: skip

    def pool(self) -> list[dict[str, Any]]:
        """Held-out ECE and accuracy of every pair and of T alone, over two folds of the calibration images."""
        n = len(self.labels)
        order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).to(self.labels.device)
        halves = order.chunk(2)
        pairs = [(gamma, penalty) for penalty in PENALTIES for gamma in self.options.gammas]
        wanted = [
            {"gamma": gamma, "penalty": penalty, "start": "data-driven", "seed": 0, "rows": halves[1 - side].sort()[0]}
            for gamma, penalty in pairs
            for side in (0, 1)
        ]
        fitted = self.fits(wanted)
        scores = [self._score(gamma, math.inf, halves, None) for gamma in self.options.gammas]
        for place, (gamma, penalty) in enumerate(pairs):
            scores.append(self._score(gamma, penalty, halves, fitted[2 * place : 2 * place + 2]))
        return scores

    def _score(self, gamma: float, penalty: float, halves: Any, fitted: Any) -> dict[str, Any]:
        logits = torch.empty_like(self.logits)
        for side in (0, 1):
            held, rest = halves[side], halves[1 - side]
            if fitted is None:
                temperature = best_focal_temperature(self.logits[rest], self.labels[rest], gamma)
                logits[held] = self.logits[held] / temperature
            else:
                logits[held] = self.run(self.inputs[held], fitted[side].delta) / fitted[side].temperature
        loses = bool(accuracy_loss(self.logits, logits, self.labels))
        held_out = figures(logits, self.labels)
        penalty_text: float | str = "T alone" if penalty == math.inf else penalty
        return {"gamma": gamma, "penalty": penalty_text, "loses_accuracy": loses, **held_out}

    def choose(self, scores: list[dict[str, Any]]) -> dict[str, tuple[float, Any]]:
        """Lowest held-out ECE: of all that keep the accuracy, of the pairs with δ, of those with γ = 0 and γ > 0."""
        with_delta = [one for one in scores if one["penalty"] != "T alone"]
        groups = {
            "chosen": [one for one in scores if not one["loses_accuracy"]],
            "both": with_delta,
            "ce": [one for one in with_delta if one["gamma"] == 0],
            "focal": [one for one in with_delta if one["gamma"] > 0],
        }
        best = {name: min(group, key=lambda one: one["ece"]) for name, group in groups.items()}
        return {name: (one["gamma"], one["penalty"]) for name, one in best.items()}

    def runs(self, variants: dict[str, tuple[float, Any]], seeds: int) -> None:
        """Every seed from both starts at the best pair with δ, the other pairs once per seed, and faster descents."""
        rows = torch.arange(len(self.labels), device=self.labels.device)
        both = variants["both"]
        kinds = [(*both, "data-driven", 0.001), (*both, "normal", 0.001)]
        kinds += [(*variants[name], "data-driven", 0.001) for name in ("ce", "focal")]
        if not self.options.no_fast:
            kinds += [(*both, "data-driven", FAST), (*both, "normal", FAST), (0.0, 10.0, "normal", FAST)]
        wanted = [
            {"gamma": gamma, "penalty": penalty, "start": start, "seed": seed, "rows": rows, "rate": rate}
            for gamma, penalty, start, rate in dict.fromkeys(kinds)
            for seed in range(seeds if rate < FAST else min(seeds, 2))
        ]
        for first in range(0, len(wanted), self.options.at_once):
            part = wanted[first : first + self.options.at_once]
            for one, fitted in zip(part, self.fits(part), strict=True):
                self.found["runs"].append(self._run(one, fitted))
            self.write()

    def printed(self, seeds: int) -> None:
        """The procedure in print: normal start, T from 1, γ and λ by the ECE of the rows fitted on, no guard."""
        rows = torch.arange(len(self.labels), device=self.labels.device)
        fixed = {"start": "printed", "rows": rows, "rate": 0.001}
        pairs = [(gamma, penalty) for penalty in PENALTIES for gamma in self.options.gammas]
        wanted = [{"gamma": gamma, "penalty": penalty, "seed": 0, **fixed} for gamma, penalty in pairs]
        scores = [
            about | figures(self.run(self.inputs, fitted.delta) / fitted.temperature, self.labels)
            for about, fitted in zip(
                ({"gamma": gamma, "penalty": penalty} for gamma, penalty in pairs), self.fits(wanted), strict=True
            )
        ]
        groups = {
            "ce": [one for one in scores if one["gamma"] == 0],
            "focal": [one for one in scores if one["gamma"] > 0],
        }
        best = {name: min(group, key=lambda one: one["ece"]) for name, group in groups.items()}
        chosen = {name: (one["gamma"], one["penalty"]) for name, one in best.items()}
        self.found["printed"] = {"scores": scores, "variants": chosen, "runs": []}
        wanted = [
            {"gamma": gamma, "penalty": penalty, "seed": seed, **fixed}
            for gamma, penalty in chosen.values()
            for seed in range(seeds)
        ]
        for first in range(0, len(wanted), self.options.at_once):
            part = wanted[first : first + self.options.at_once]
            for one, fitted in zip(part, self.fits(part), strict=True):
                self.found["printed"]["runs"].append(self._run(one, fitted))
        self.write()

    def _run(self, one: dict[str, Any], fitted: Any) -> dict[str, Any]:
        about = {key: one[key] for key in ("gamma", "penalty", "start", "seed", "rate")}
        if bool(fitted.delta.isnan().any()):
            return about | {"diverged": True, "epochs": len(fitted.trace)}
        moved = self.run(self.test, fitted.delta)
        refused = accuracy_loss(self.logits, self.run(self.inputs, fitted.delta), self.labels)
        if one["seed"] == 0:
            name = f"γ={one['gamma']:g} λ={one['penalty']:g} {one['start']} rate={one['rate']:g}"
            self.kept[name] = (moved / fitted.temperature).half().cpu().numpy()
            if one["start"] != "printed" and (one["gamma"], one["penalty"]) == tuple(self.found["variants"]["both"]):
                self.shift[name] = (fitted.delta, fitted.temperature)
        plain = self.run(self.test)
        return about | {
            "temperature": fitted.temperature,
            "delta_norm": float(fitted.delta.norm()),
            "epochs": len(fitted.trace),
            "losses": [fitted.trace[0], min(fitted.trace), fitted.trace[-1]],
            "refused": refused,
            "joint": figures(moved / fitted.temperature, self.data.test.labels),
            "input_only": figures(moved, self.data.test.labels),
            "output_only": figures(plain / fitted.temperature, self.data.test.labels),
        }

    def transfer(self) -> dict[str, Any]:
        """Fitted on clean images, tested on corrupted ones: every kept run beside none, TS and T alone."""
        found: dict[str, Any] = {}
        alone = best_focal_temperature(self.logits, self.labels, self.found["variants"]["both"][0])
        for kind in CORRUPTIONS:
            for level in SEVERITIES:
                images = normalise(corrupt(self.data.test.images, kind, level))
                plain, labels = self.run(images, fast=True), self.data.test.labels
                cell = {
                    "none": figures(plain, labels, brief=True),
                    "ts": figures(plain / self.temperature, labels, brief=True),
                    "T alone": figures(plain / alone, labels, brief=True),
                }
                for name, (delta, temperature) in self.shift.items():
                    moved = self.run(images, delta, fast=True)
                    cell[name] = figures(moved / temperature, labels, brief=True)
                found[f"{kind}-{level}"] = cell
        return found

    def all(self, seeds: int) -> None:
        """The whole study, written as it goes on."""
        started = time.perf_counter()
        self.shift: dict[str, tuple[Tensor, float]] = {}
        plain = self.run(self.test)
        self.kept = {"val": self.logits.half().cpu().numpy(), "test": plain.half().cpu().numpy()}
        self.found["ts_temperature"] = self.temperature
        self.found["none"] = figures(plain, self.data.test.labels)
        self.found["ts"] = figures(plain / self.temperature, self.data.test.labels)
        self.found["scores"] = self.pool() if self.options.pool is None else _scores_of(self.options.pool)
        self.found["variants"] = self.choose(self.found["scores"])
        gamma = self.found["variants"]["both"][0]
        alone = best_focal_temperature(self.logits, self.labels, gamma)
        self.found["T alone"] = {"gamma": gamma, "temperature": alone, **figures(plain / alone, self.data.test.labels)}
        self.write()
        print(f"pool {time.perf_counter() - started:.0f} s {self.found['variants']}", flush=True)
        self.runs(self.found["variants"], seeds)
        print(f"runs {time.perf_counter() - started:.0f} s", flush=True)
        self.printed(seeds)
        print(f"printed {time.perf_counter() - started:.0f} s", flush=True)
        self.found["shift"] = self.transfer()
        self.write()
        print(f"shift {time.perf_counter() - started:.0f} s", flush=True)

    def write(self) -> None:
        """What is known so far."""
        out = self.options.out
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{self.options.network}.json").write_text(json.dumps(_rounded(self.found)) + "\n")
        np.savez_compressed(out / f"{self.options.network}-logits.npz", **self.kept)


def main(arguments: list[str] | None = None) -> int:
    """Command line of the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder that holds the images and checkpoints, at any depth")
    parser.add_argument("--network", default="c100_resnet20_ce")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--gammas", type=float, nargs="+", default=list(GAMMAS))
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--training-epochs", type=int, default=40)
    parser.add_argument("--at-once", type=int, default=8, help="fits side by side")
    parser.add_argument("--pool", type=Path, help="result of an earlier run whose pool chooses γ and λ")
    parser.add_argument("--no-fast", action="store_true", help=f"leave out the learning rate of {FAST}")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args(arguments)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    Study(*open_problem(options), options).all(options.seeds)
    return 0


def open_problem(options: argparse.Namespace) -> tuple[nn.Module, Dataset]:
    """The network on its device, and the images."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.tiny:
        data = synthetic_dataset()
        recipe = Recipe(network="tiny", epochs=2, batch=64, compiled=False, graphs=False)
        return Trainer(recipe, data.train, data.n_classes).run(Setting("cross_entropy"), 0), data
    name = "cifar10" if options.network.startswith("c10_") else "cifar100"
    folder = _find(options.data, f"{name}.zip").parent
    data = read_dataset(folder, name, device)
    if options.network.endswith("resnet18"):
        trainer = Trainer(Recipe(epochs=options.training_epochs), data.train, data.n_classes)
        started = time.perf_counter()
        model = trainer.run(Setting("cross_entropy"), TRAINING_SEED)
        print(f"trained in {time.perf_counter() - started:.0f} s", flush=True)
        return model, data
    model = load_resnet20(_find(options.data, f"{options.network}.safetensors")).to(device)
    return (model.to(memory_format=torch.channels_last) if device == "cuda" else model), data  # type: ignore[call-overload]


def _scores_of(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text(encoding="utf-8"))["scores"])


def _find(folder: Path, name: str) -> Path:
    hits = sorted(folder.rglob(name))
    if not hits:
        raise SystemExit(f"no {name} under {folder}")
    return hits[0]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value


if __name__ == "__main__":
    raise SystemExit(main())
