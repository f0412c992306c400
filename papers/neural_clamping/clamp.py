"""Neural Clamping of one network on a GPU: the pool, the starts, the ablations, and transfer to corrupted images.

    python papers/neural_clamping/clamp.py --data ../shared/data --network c100_resnet20_ce --out FOLDER
    python papers/neural_clamping/clamp.py --data ../shared/data --network c100_resnet18 --out FOLDER

`c100_resnet18` is trained first. Writes NETWORK.json as it goes on, and NETWORK-logits-1.npz … with the test logits
for paired intervals. `--pool FILE` takes γ and λ of the library's procedure from the pool of an earlier run; `--tiny`
runs all lines on synthetic images on the CPU.
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

TINY = {"network": "tiny", "seeds": 2, "epochs": 2, "gammas": [0.0, 0.5], "published_gammas": [0.0, 0.5]}
"""Defaults of `--tiny`."""

GAMMAS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.5, 1.0)
PENALTIES = (0.001, 10.0)
PUBLISHED_GAMMAS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0)
PUBLISHED_PENALTIES = (0.001, 0.1, 10.0)
LOGITS_PER_FILE = 5
FINE = (-0.02, -0.01, 0.01, 0.02)
"""The published procedure: γ by the coarse values, then by the paper's steps of 0.01 around the best, then λ."""

DEVIATIONS = {"normal": 0.1, "small normal": 0.01}
"""Standard deviations of the normal starts: that in print (variance 0.01), and that of the authors' code."""

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

    def start(self, kind: str, seed: int, rows: Tensor, *, published: bool) -> Tensor:
        """δ at the beginning: Theorem 1 on these rows, or normal with a standard deviation of `DEVIATIONS`."""
        inputs = self.inputs[rows]
        if kind in DEVIATIONS:
            units = torch.ones_like(inputs[0]) if published else input_units(inputs)
            draws = torch.randn(units.shape, generator=torch.Generator().manual_seed(seed)).to(units)
            return DEVIATIONS[kind] * units * draws
        temperature = 1.0 if published else best_temperature(self.logits[rows], self.labels[rows])
        gradient = entropy_gradient(self.model, inputs, temperature)
        return greatest_feasible_step(gradient, inputs, *feasible_box(inputs, None))

    def fits(self, wanted: list[dict[str, Any]]) -> list[Any]:
        """Fits of (gamma, penalty, start, seed, rows, rate, published), all at once; equal starts are shared."""
        starts: dict[Any, tuple[Tensor, float]] = {}
        fits = []
        for one in wanted:
            rows = one["rows"]
            published, seed = one.get("published", False), 0 if one["start"] == "data-driven" else one["seed"]
            key = (one["start"], seed, int(rows[0]), len(rows), published)
            if key not in starts:
                temperature = 1.0 if published else best_temperature(self.logits[rows], self.labels[rows])
                starts[key] = (self.start(one["start"], one["seed"], rows, published=published), temperature)
            delta, temperature = starts[key]
            rate = one.get("rate", 0.001)
            fits.append(Fit(one["gamma"], one["penalty"], delta, temperature, rows, one["seed"], rate, published))
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
        self.run_all(wanted, self.found["runs"])

    def published(self, seeds: int, normal: str, section: str) -> None:
        """The published procedure: plain SGD on δ and T from T = 1, γ and λ by the ECE of the rows fitted on."""
        rows = torch.arange(len(self.labels), device=self.labels.device)
        fixed = {"rows": rows, "rate": 0.001, "published": True}
        scores: list[dict[str, Any]] = []

        def try_pairs(pairs: list[tuple[float, float]]) -> dict[str, Any]:
            wanted = [{"gamma": one, "penalty": other, "start": normal, "seed": 0, **fixed} for one, other in pairs]
            for one, fitted in zip(wanted, self.fits(wanted), strict=True):
                measured = figures(self.run(self.inputs, fitted.delta) / fitted.temperature, self.labels)
                about = {"gamma": one["gamma"], "penalty": one["penalty"], "temperature": fitted.temperature}
                scores.append(about | measured)
            return min((one for one in scores if one["gamma"] > 0), key=lambda one: one["ece"])

        best = try_pairs([(gamma, PUBLISHED_PENALTIES[0]) for gamma in self.options.published_gammas])
        fine = [round(best["gamma"] + step, 2) for step in FINE]
        best = try_pairs([(gamma, best["penalty"]) for gamma in fine if gamma > 0])
        best = try_pairs([(best["gamma"], penalty) for penalty in PUBLISHED_PENALTIES[1:]])
        variants = {"ce": (0.0, PUBLISHED_PENALTIES[0]), "focal": (best["gamma"], best["penalty"])}
        self.found[section] = {"scores": scores, "variants": variants, "runs": []}
        kinds = [("ce", normal), ("focal", normal), ("focal", "data-driven")]
        wanted = [
            {"gamma": variants[name][0], "penalty": variants[name][1], "start": start, "seed": seed, **fixed}
            for name, start in kinds
            for seed in range(seeds)
        ]
        self.run_all(wanted, self.found[section]["runs"])
        print(f"{section} {variants}", flush=True)

    def run_all(self, wanted: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
        """Fit and measure in parts, written as they come, until the time is up."""
        for first in range(0, len(wanted), self.options.at_once):
            if time.perf_counter() > self.deadline:
                print(f"{len(wanted) - first} fits left out: the time is up", flush=True)
                break
            part = wanted[first : first + self.options.at_once]
            found += [self._run(one, fitted) for one, fitted in zip(part, self.fits(part), strict=True)]
            self.write()

    def _run(self, one: dict[str, Any], fitted: Any) -> dict[str, Any]:
        about = {key: one[key] for key in ("gamma", "penalty", "start", "seed", "rate")}
        published = one.get("published", False)
        if bool(fitted.delta.isnan().any()):
            return about | {"diverged": True, "epochs": len(fitted.trace)}
        moved = self.run(self.test, fitted.delta)
        refused = accuracy_loss(self.logits, self.run(self.inputs, fitted.delta), self.labels)
        if one["seed"] == 0:
            name = run_name(one) + (" published" if published else "")
            self.kept[name] = (moved / fitted.temperature).half().cpu().numpy()
            if not published and (one["gamma"], one["penalty"]) == tuple(self.found["variants"]["both"]):
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
        """All parts of the study, written as they come; the published procedure goes first."""
        started = time.perf_counter()
        self.deadline = started + self.options.budget_seconds
        self.shift: dict[str, tuple[Tensor, float]] = {}
        plain = self.run(self.test)
        self.kept = {"val": self.logits.half().cpu().numpy(), "test": plain.half().cpu().numpy()}
        self.found["ts_temperature"] = self.temperature
        self.found["none"] = figures(plain, self.data.test.labels)
        self.found["ts"] = figures(plain / self.temperature, self.data.test.labels)
        self.published(seeds, "normal", "published")
        self.published(seeds, "small normal", "published_small_start")
        print(f"published {time.perf_counter() - started:.0f} s", flush=True)
        self.found["scores"] = self.pool() if self.options.pool is None else _scores_of(self.options.pool)
        self.found["variants"] = self.choose(self.found["scores"])
        gamma = self.found["variants"]["both"][0]
        alone = best_focal_temperature(self.logits, self.labels, gamma)
        self.found["T alone"] = {"gamma": gamma, "temperature": alone, **figures(plain / alone, self.data.test.labels)}
        self.write()
        print(f"pool {time.perf_counter() - started:.0f} s {self.found['variants']}", flush=True)
        self.runs(self.found["variants"], seeds)
        print(f"runs {time.perf_counter() - started:.0f} s", flush=True)
        self.found["shift"] = self.transfer()
        self.write()
        print(f"shift {time.perf_counter() - started:.0f} s", flush=True)

    def write(self) -> None:
        """Write the results so far; files of logits hold few arrays, so that each stays below 16 MB."""
        out = self.options.out
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{self.options.network}.json").write_text(json.dumps(_rounded(self.found)) + "\n")
        names = list(self.kept)
        for number, first in enumerate(range(0, len(names), LOGITS_PER_FILE), 1):
            part = {name: self.kept[name] for name in names[first : first + LOGITS_PER_FILE]}
            np.savez_compressed(out / f"{self.options.network}-logits-{number}.npz", **part)


def run_name(run: dict[str, Any]) -> str:
    """The name of a kind of run, whose seeds differ."""
    return f"γ={run['gamma']:g} λ={run['penalty']:g} {run['start']} rate={run['rate']:g}"


def main(arguments: list[str] | None = None) -> int:
    """Command line of the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder that holds the images and checkpoints, at any depth")
    parser.add_argument("--network", default="c100_resnet20_ce")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--gammas", type=float, nargs="+", default=list(GAMMAS))
    parser.add_argument("--published-gammas", type=float, nargs="+", default=list(PUBLISHED_GAMMAS))
    parser.add_argument("--budget-seconds", type=float, default=math.inf, help="begin no further fits after this time")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--training-epochs", type=int, default=40)
    parser.add_argument("--at-once", type=int, default=8, help="fits side by side")
    parser.add_argument("--pool", type=Path, help="result of an earlier run whose pool chooses γ and λ")
    parser.add_argument("--no-fast", action="store_true", help=f"leave out the learning rate of {FAST}")
    parser.add_argument("--tiny", action="store_true", help="synthetic images on the CPU, in seconds")
    if arguments is None:
        arguments = sys.argv[1:]
    if "--tiny" in arguments:
        parser.set_defaults(**TINY)
    options = parser.parse_args(arguments)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    Study(*open_problem(options), options).all(options.seeds)
    return 0


def open_problem(options: argparse.Namespace) -> tuple[nn.Module, Dataset]:
    """The network on its device, and the images."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.tiny:
        torch.set_num_threads(1)  # threads cost more than they gain with so few images
        data = synthetic_dataset(n_train=128)
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
