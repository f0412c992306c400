"""Neural Clamping: one input perturbation and one temperature, learned together around a frozen model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

from calibrant.calibrators.learned import RECORD, TEMPERATURE, Learned
from calibrant.core import progress
from calibrant.core.errors import FitWarning, InputError
from calibrant.metrics import ece
from calibrant.neural.clamped_module import ClampedModule
from calibrant.neural.entropy_init import entropy_gradient, feasible_box, greatest_feasible_step
from calibrant.neural.losses.focal import focal
from calibrant.neural.model_io import check_logits, device_of, evaluation_mode, joined, read_batches, run_model
from calibrant.neural.scaling import best_temperature

INITS = ("data-driven", "normal", "zeros")


@dataclass(frozen=True)
class CandidateScore:
    """How one pair of the pool did on rows held out from its fit."""

    gamma: float
    penalty: float
    ece: float


@dataclass(frozen=True)
class _CalibrationSet:
    """All inputs and labels, and the logits of the untouched model."""

    inputs: Tensor
    labels: Tensor
    logits: Tensor

    def take(self, index: Tensor) -> _CalibrationSet:
        return _CalibrationSet(self.inputs[index], self.labels[index], self.logits[index])


class NeuralClamping:
    """Joint input perturbation and temperature scaling (Tang, Chen, Ho 2022).

    min over δ, T of the mean focal_γ(f(x + δ)/T, y) + λ‖δ‖² (eqs. 8–9), by SGD with momentum.

    Parameters
    ----------
    gamma : γ ≥ 0, or "auto" to choose from `gamma_pool`
    penalty : λ ≥ 0, or "auto" to choose from `penalty_pool`
    init : start of δ: "data-driven" (Theorem 1), "normal" (standard deviation 0.01) or "zeros"
    temperature_init : start of T: "ts", the optimum of temperature scaling, or a number (the paper's is 1)
    train_input, train_output : hold δ or T at its start instead of learning it
    gamma_pool, penalty_pool : candidates; each pair is scored by the ECE of rows held out from its fit
    folds : parts of the calibration set that are held out in turn while choosing
    learning_rate, momentum, batch_size, epochs : of the SGD
    patience : epochs without a better calibration loss before the fit stops
    bounds : (low, high) of feasible inputs, numbers or tensors; None takes the data's own range per channel
    device : where the model is expected to be; None takes the model's own
    seed : of the random start, the folds and the order of the rows

    After `fit`: `delta_`, `temperature_`, `gamma_`, `penalty_`, `scores_`, `loss_trace_`, `module_`.

    Examples
    --------
    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.randn(64, 3, generator=generator)
    >>> y = (x + torch.randn(64, 3, generator=generator)).argmax(1)
    >>> clamped = NeuralClamping(gamma=0.0, penalty=0.1, epochs=3).fit(nn.Identity(), [(4 * x, y)])
    >>> clamped(x).shape, bool(clamped.temperature > 1)
    (torch.Size([64, 3]), True)
    """

    learns: ClassVar[dict[str, Learned]] = {
        "delta_": Learned(),
        "temperature_": TEMPERATURE,
        **dict.fromkeys(("gamma_", "penalty_", "loss_trace_", "scores_"), RECORD),
    }

    def __init__(
        self,
        gamma: float | str = "auto",
        penalty: float | str = "auto",
        init: str = "data-driven",
        *,
        temperature_init: float | str = "ts",
        train_input: bool = True,
        train_output: bool = True,
        gamma_pool: Sequence[float] = (0.0, 0.1, 0.2, 0.5, 1.0),
        penalty_pool: Sequence[float] = (0.01, 0.1, 1.0),
        folds: int = 2,
        learning_rate: float = 0.001,
        momentum: float = 0.9,
        batch_size: int = 512,
        epochs: int = 100,
        patience: int = 10,
        bounds: tuple[Any, Any] | None = None,
        device: Any = None,
        seed: int = 0,
    ) -> None:
        self.gamma = gamma
        self.penalty = penalty
        self.init = init
        self.temperature_init = temperature_init
        self.train_input = train_input
        self.train_output = train_output
        self.gamma_pool = gamma_pool
        self.penalty_pool = penalty_pool
        self.folds = folds
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.batch_size = batch_size
        self.epochs = epochs
        self.patience = patience
        self.bounds = bounds
        self.device = device
        self.seed = seed

    def fit(self, model: nn.Module, loader: Iterable[Any]) -> ClampedModule:
        """Learn δ and T from held-out (inputs, labels) batches; the model keeps its weights, mode and device."""
        self._check_parameters()
        device = device_of(model, self.device)
        # a caller inside torch.no_grad or inference_mode would leave nothing to descend on
        with evaluation_mode(model), torch.inference_mode(False), torch.enable_grad():
            data = self._collect(model, loader, device)
            gamma, penalty = self._choose(model, data)
            delta, temperature, trace = self._descend(model, data, gamma, penalty, "fitting")
        self.delta_, self.temperature_, self.loss_trace_ = delta, temperature, trace
        self.gamma_, self.penalty_ = gamma, penalty
        self.module_ = ClampedModule(model, delta, temperature)
        return self.module_

    def attach(self, model: nn.Module) -> ClampedModule:
        """The learned δ and T around a model: what `fit` returned, for the same model loaded elsewhere."""
        if not hasattr(self, "delta_"):
            raise NotFittedError("this NeuralClamping has not learned yet: call fit(model, loader) first")
        return ClampedModule(model, self.delta_, self.temperature_)

    def _check_parameters(self) -> None:
        if self.init not in INITS:
            raise InputError(f"init must be one of {', '.join(INITS)}, got {self.init!r}")
        for name, value in (("gamma", self.gamma), ("penalty", self.penalty)):
            if isinstance(value, str) and value != "auto":
                raise InputError(f"{name} must be a number or 'auto', got {value!r}")
            if not isinstance(value, str) and not (isinstance(value, Real) and 0 <= value < math.inf):
                raise InputError(f"{name} must be 0 or more and finite, or 'auto', got {value}")
        for name, pool in (("gamma_pool", self.gamma_pool), ("penalty_pool", self.penalty_pool)):
            if len(pool) == 0:
                raise InputError(f"{name} is empty: give at least one candidate")
        start = self.temperature_init
        if start != "ts" and (isinstance(start, str) or not start > 0):
            raise InputError(f"temperature_init must be 'ts' or a number above 0, got {start!r}")
        for name, least in (("folds", 2), ("batch_size", 1), ("epochs", 1), ("patience", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"learning_rate must be above 0, got {self.learning_rate}")
        if self.bounds is not None and (not isinstance(self.bounds, Sequence) or len(self.bounds) != 2):
            raise InputError(f"bounds must be a pair (low, high), got {self.bounds!r}")

    def _collect(self, model: nn.Module, loader: Iterable[Any], device: torch.device) -> _CalibrationSet:
        inputs, labels, logits = [], [], []
        with torch.no_grad():
            for batch_inputs, batch_labels in read_batches(loader):
                if not batch_inputs.is_floating_point():
                    raise InputError(f"inputs are {batch_inputs.dtype}: a perturbation needs floating-point inputs")
                logits.append(run_model(model, batch_inputs, device))
                inputs.append(batch_inputs.to(device))
                labels.append(batch_labels.to(device).long())
        data = _CalibrationSet(joined(inputs, "inputs"), torch.cat(labels), joined(logits, "model's logits"))
        check_logits(data.logits)
        lowest, highest, n_classes = int(data.labels.min()), int(data.labels.max()), data.logits.shape[1]
        if lowest < 0 or highest >= n_classes:
            reach = f"go down to {lowest}" if lowest < 0 else f"reach {highest}"
            raise InputError(f"labels {reach}, but the model's logits have columns 0..{n_classes - 1}")
        if len(data.labels.unique()) < 2:
            raise InputError(
                f"all {len(data.labels)} labels are class {highest}: a calibration set needs at least 2 classes"
            )
        return data

    def _choose(self, model: nn.Module, data: _CalibrationSet) -> tuple[float, float]:
        gammas = self.gamma_pool if isinstance(self.gamma, str) else (self.gamma,)
        penalties = self.penalty_pool if isinstance(self.penalty, str) else (self.penalty,)
        pairs = [(float(gamma), float(penalty)) for gamma in gammas for penalty in penalties]
        self.scores_: tuple[CandidateScore, ...] = ()
        if len(pairs) == 1:
            return pairs[0]
        order = torch.randperm(len(data.labels), generator=torch.Generator().manual_seed(self.seed))
        folds = [fold.to(data.labels.device) for fold in order.chunk(self.folds)]
        scores = []
        for number, (gamma, penalty) in enumerate(pairs):
            error = self._held_out_ece(model, data, folds, gamma, penalty)
            scores.append(CandidateScore(gamma, penalty, error))
            progress.step("choosing gamma and penalty", number + 1, len(pairs), f"ECE {error:.4f}")
        self.scores_ = tuple(scores)
        best = min(scores, key=lambda score: score.ece)
        return best.gamma, best.penalty

    def _held_out_ece(
        self, model: nn.Module, data: _CalibrationSet, folds: list[Tensor], gamma: float, penalty: float
    ) -> float:
        logits = torch.empty_like(data.logits)
        for fold in folds:
            kept = torch.ones(len(data.labels), dtype=torch.bool, device=fold.device)
            kept[fold] = False
            delta, temperature, _ = self._descend(model, data.take(kept.nonzero()[:, 0]), gamma, penalty, "")
            with torch.no_grad():
                parts = [model(part + delta) / temperature for part in data.inputs[fold].split(self.batch_size)]
            logits[fold] = torch.cat(parts).to(logits.dtype)
        return float(ece(logits.cpu().numpy(), data.labels.cpu().numpy(), from_logits=True))

    def _start(self, model: nn.Module, data: _CalibrationSet) -> tuple[Tensor, float]:
        fitted = best_temperature(data.logits, data.labels)
        temperature = fitted if isinstance(self.temperature_init, str) else float(self.temperature_init)
        delta = torch.zeros_like(data.inputs[0])
        if self.init == "normal":
            generator = torch.Generator().manual_seed(self.seed)
            delta += 0.01 * torch.randn(delta.shape, generator=generator).to(delta)
        elif self.init == "data-driven":
            gradient = entropy_gradient(model, data.inputs, fitted, self.batch_size)
            low, high = feasible_box(data.inputs, self.bounds)
            delta = greatest_feasible_step(gradient, data.inputs, low, high)
        return delta, temperature

    def _descend(
        self, model: nn.Module, data: _CalibrationSet, gamma: float, penalty: float, stage: str
    ) -> tuple[Tensor, float, list[float]]:
        """SGD on δ and log T (so that T > 0) from the chosen start; the state of lowest epoch loss is kept."""
        delta, temperature = self._start(model, data)
        delta = delta.requires_grad_()
        log_temperature = torch.tensor(math.log(temperature), device=delta.device, requires_grad=True)
        learned = ([delta] if self.train_input else []) + ([log_temperature] if self.train_output else [])
        if not learned:
            return delta.detach(), temperature, []
        optimizer = torch.optim.SGD(learned, lr=self.learning_rate, momentum=self.momentum)
        generator = torch.Generator().manual_seed(self.seed)
        best, stale = (math.inf, delta.detach().clone(), log_temperature.detach().clone()), 0
        trace: list[float] = []
        for epoch in range(self.epochs):
            before = (delta.detach().clone(), log_temperature.detach().clone())
            total = torch.zeros((), device=delta.device)
            for index in torch.randperm(len(data.labels), generator=generator).split(self.batch_size):
                rows = index.to(delta.device)
                logits = model(data.inputs[rows] + delta) / log_temperature.exp()
                loss = focal(logits, data.labels[rows], gamma=gamma) + penalty * delta.square().sum()
                for parameter, gradient in zip(learned, torch.autograd.grad(loss, learned), strict=True):
                    parameter.grad = gradient
                optimizer.step()
                total += loss.detach() * len(rows)
            trace.append(float(total) / len(data.labels))
            if stage:
                progress.step(stage, epoch + 1, self.epochs, f"loss {trace[-1]:.5f}")
            stale = 0 if trace[-1] < best[0] - 1e-7 else stale + 1
            if trace[-1] < best[0]:
                best = (trace[-1], *before)
            if not bool(torch.stack([total, delta.detach().sum(), log_temperature.detach().exp()]).isfinite().all()):
                message = f"the descent diverged in epoch {epoch + 1} at learning_rate {self.learning_rate:g}"
                warnings.warn(f"{message}: the best state before it is kept", FitWarning, stacklevel=4)
                break
            if stale >= self.patience:
                break
        else:
            return delta.detach(), float(log_temperature.detach().exp()), trace
        return best[1], float(best[2].exp()), trace

    def artifact_state(self) -> dict[str, Any]:
        """What a saved artifact holds: everything learned but the network."""
        return {
            "delta_": self.delta_.detach().cpu().numpy(),
            "temperature_": float(self.temperature_),
            "gamma_": self.gamma_,
            "penalty_": self.penalty_,
            "loss_trace_": list(self.loss_trace_),
            "scores_": [[score.gamma, score.penalty, score.ece] for score in self.scores_],
        }

    def restore_artifact_state(self, state: dict[str, Any]) -> None:
        """The inverse of `artifact_state`."""
        for name in ("temperature_", "gamma_", "penalty_", "loss_trace_"):
            setattr(self, name, state[name])
        self.delta_ = torch.tensor(state["delta_"])
        self.scores_ = tuple(CandidateScore(*score) for score in state["scores_"])
