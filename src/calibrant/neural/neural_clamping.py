"""Neural Clamping: one input perturbation and one temperature, learned together around a frozen model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from scipy.optimize import minimize_scalar
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

from calibrant.calibrators.learned import RECORD, TEMPERATURE, Learned
from calibrant.calibrators.solvers.temperature import solve_inverse_temperature
from calibrant.core import progress
from calibrant.core.arrays import check_labels, check_whole
from calibrant.core.errors import FitWarning, InputError
from calibrant.kernels.torch.temperature import temperature_sums
from calibrant.metrics import ece
from calibrant.neural.collect import check_logits, device_of, evaluation_mode, joined, read_batches, run_model
from calibrant.neural.losses import focal
from calibrant.neural.losses.terms import entropy

INITS = ("data-driven", "normal", "zeros")
MAX_ACCURACY_LOSS = 0.005
"""A perturbation that loses more of the calibration rows than this is refused, whatever the noise."""

LIMIT = math.log(1e4)
"""The optimum of separable or worthless logits lies at 0 or infinity; the search stops at this |log T|."""


class ClampedModule(nn.Module):
    """f(x + δ)/T with the model f untouched (Tang, Chen, Ho 2022, eq. 9).

    Parameters
    ----------
    model : module from inputs to logits (n, K)
    delta : δ of one input's shape
    temperature : T > 0
    use_input, use_output : leave out a side for an ablation

    Examples
    --------
    >>> clamped = ClampedModule(nn.Identity(), torch.tensor([1.0, 0.0]), temperature=2.0)
    >>> clamped(torch.tensor([[3.0, 4.0]]))
    tensor([[2., 2.]])
    """

    delta: Tensor
    temperature: Tensor

    def __init__(
        self,
        model: nn.Module,
        delta: Tensor,
        temperature: float,
        *,
        use_input: bool = True,
        use_output: bool = True,
    ) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("delta", delta.detach().clone())
        self.register_buffer("temperature", torch.tensor(float(temperature), device=delta.device, dtype=delta.dtype))
        self.use_input, self.use_output, self.training = use_input, use_output, model.training

    def forward(self, inputs: Tensor) -> Tensor:
        """Calibrated logits (n, K)."""
        logits = self.model(inputs + self.delta if self.use_input else inputs)
        return logits / self.temperature if self.use_output else logits

    def input_only(self) -> ClampedModule:
        """The same model with δ and without T."""
        return ClampedModule(self.model, self.delta, float(self.temperature), use_output=False)

    def output_only(self) -> ClampedModule:
        """The same model with T and without δ."""
        return ClampedModule(self.model, self.delta, float(self.temperature), use_input=False)


class CandidateScore(NamedTuple):
    """How one pair of the pool did on rows held out from its fit; a penalty of infinity is T alone, without δ.

    loses_accuracy : its held-out accuracy is lower than without δ by more than the noise, so it cannot be chosen
    """

    gamma: float
    penalty: float
    ece: float
    accuracy: float = math.nan
    loses_accuracy: bool = False


class _CalibrationSet(NamedTuple):
    """A model, all inputs and labels, and the logits of the inputs as they are."""

    model: nn.Module
    inputs: Tensor
    labels: Tensor
    logits: Tensor

    def take(self, index: Tensor) -> _CalibrationSet:
        return _CalibrationSet(self.model, *(part[index] for part in self[1:]))

    def logits_at(self, delta: Tensor, batch_size: int) -> Tensor:
        with torch.no_grad():
            return torch.cat([self.model(part + delta) for part in self.inputs.split(batch_size)])


@dataclass(repr=False, eq=False)
class NeuralClamping:
    """Joint input perturbation and temperature scaling (Tang, Chen, Ho 2022).

    min over δ, T of Σ focal_γ(f(x + δ)/T, y) + λ‖δ/s‖² (eqs. 8–9), by SGD with momentum on that sum divided by n.
    s is the standard deviation of each channel, or of each feature of tabular inputs: 1 for the standardised images
    of the paper. A fit that diverges, or that loses accuracy on the calibration rows beyond the noise, is refused
    with a `FitWarning`: δ is then 0 and T alone is learned.

    Parameters
    ----------
    gamma : γ ≥ 0, or "auto" to choose from `gamma_pool`
    penalty : λ ≥ 0 in units of eq. 9 (a sum of losses), or "auto" to choose from `penalty_pool`; infinity is T alone
    init : start of δ: "data-driven" (Theorem 1), "normal" (see `init_std`) or "zeros"
    init_std : standard deviation of the normal start in units of s; 0.1 is the paper's variance of 0.01, the code of
        its authors has 0.01
    temperature_init : start of T: "ts", the optimum of temperature scaling, or a number (the paper's is 1)
    train_input, train_output : hold δ or T at its start instead of learning it
    gamma_pool, penalty_pool : candidates; each pair, and T alone with each γ, is scored by the ECE of rows held out
        from its fit, and a pair that loses held-out accuracy beyond the noise is left out (see `accuracy_guard`)
    folds : parts of the calibration set that are held out in turn while choosing; 1 scores the rows fitted on
    learning_rate, momentum, batch_size, epochs : of the SGD
    patience : epochs without a better calibration loss before the fit stops
    bounds : (low, high) of feasible inputs, numbers or tensors; None takes the data's own range per channel,
        or per feature of tabular inputs. There a table has no room left: the data-driven start is 0, with a warning
    accuracy_guard : refuse what loses accuracy beyond the noise, and let T alone compete while choosing. The procedure
        in print has no guard, and chooses on the rows fitted on: `NeuralClamping(init="normal", temperature_init=1.0,
        accuracy_guard=False, folds=1)`
    device : where the model is expected to be; None takes the model's own
    seed : of the random start, the folds and the order of the rows

    After `fit`: `delta_`, `temperature_`, `gamma_`, `penalty_`, `scores_`, `loss_trace_`, `module_`.

    Examples
    --------
    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.randn(64, 3, generator=generator)
    >>> y = (x + torch.randn(64, 3, generator=generator)).argmax(1)
    >>> clamped = NeuralClamping(0.0, 0.1, init="zeros", epochs=3).fit(nn.Identity(), [(4 * x, y)])
    >>> clamped(x).shape, bool(clamped.temperature > 1)
    (torch.Size([64, 3]), True)
    """

    learns: ClassVar[dict[str, Learned]] = {
        "delta_": Learned(),
        "temperature_": TEMPERATURE,
        **dict.fromkeys(("gamma_", "penalty_", "loss_trace_", "scores_"), RECORD),
    }

    gamma: float | str = "auto"
    penalty: float | str = "auto"
    init: str = "data-driven"
    _: KW_ONLY
    init_std: float = 0.1
    temperature_init: float | str = "ts"
    train_input: bool = True
    train_output: bool = True
    gamma_pool: Sequence[float] = (0.0, 0.1, 0.2, 0.5, 1.0)
    penalty_pool: Sequence[float] = (0.001, 0.1, 10.0)
    folds: int = 2
    learning_rate: float = 0.001
    momentum: float = 0.9
    batch_size: int = 512
    epochs: int = 100
    patience: int = 10
    bounds: tuple[Any, Any] | None = None
    accuracy_guard: bool = True
    device: Any = None
    seed: int = 0

    def fit(self, model: nn.Module, loader: Iterable[Any]) -> ClampedModule:
        """Learn δ and T from held-out (inputs, labels) batches; the model keeps its weights, mode and device."""
        self._check_parameters()
        gammas, penalties = self._candidates("gamma"), self._candidates("penalty")
        device = device_of(model, self.device)
        # a caller inside torch.no_grad or inference_mode would leave nothing to descend on
        with evaluation_mode(model), torch.inference_mode(False), torch.enable_grad():
            data = _collect(model, loader, device)
            gamma, penalty = self._choose(data, gammas, penalties)
            delta, temperature, trace = self._descend(data, gamma, penalty, "fitting")
            refusal = ""
            if delta.isnan().any():
                refusal = f"the descent diverged in epoch {len(trace)} at learning_rate {self.learning_rate:g}"
            elif self.accuracy_guard and delta.any():
                refusal = accuracy_loss(data.logits, data.logits_at(delta, self.batch_size), data.labels)
            if refusal:
                warnings.warn(f"{refusal}: δ is refused and T alone is learned", FitWarning, stacklevel=2)
                penalty = math.inf
                delta, temperature, _ = self._descend(data, gamma, penalty, "")
        self.delta_, self.temperature_, self.loss_trace_ = delta, temperature, trace
        self.gamma_, self.penalty_ = gamma, penalty
        self.module_ = self.attach(model)
        return self.module_

    def attach(self, model: nn.Module) -> ClampedModule:
        """The learned δ and T around a model: what `fit` returned, for the same model loaded elsewhere."""
        if "delta_" not in vars(self):
            raise NotFittedError("this NeuralClamping has not learned yet: call fit(model, loader) first")
        return ClampedModule(model, self.delta_, self.temperature_)

    def _check_parameters(self) -> None:
        if self.init not in INITS:
            raise InputError(f"init must be one of {', '.join(INITS)}, got {self.init!r}")
        if isinstance(self.init_std, str) or not 0 <= self.init_std < math.inf:
            raise InputError(f"init_std must be 0 or more and finite, got {self.init_std!r}")
        start = self.temperature_init
        if start != "ts" and (isinstance(start, str) or not start > 0):
            raise InputError(f"temperature_init must be 'ts' or a number above 0, got {start!r}")
        for name, least in (("folds", 1), ("batch_size", 1), ("epochs", 1), ("patience", 1)):
            check_whole(getattr(self, name), name, least)
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"learning_rate must be above 0, got {self.learning_rate}")
        if self.bounds is not None and (not isinstance(self.bounds, Sequence) or len(self.bounds) != 2):
            raise InputError(f"bounds must be a pair (low, high), got {self.bounds!r}")

    def _candidates(self, name: str) -> list[float]:
        """The values of γ or λ to choose from."""
        value, pool = getattr(self, name), getattr(self, f"{name}_pool")
        if not len(pool):
            raise InputError(f"{name}_pool is empty: give at least one candidate")
        if value == "auto":
            return [float(one) for one in pool]
        allowed = isinstance(value, (int, float)) and value >= 0
        if not allowed or (name == "gamma" and value == math.inf):
            finite = " and finite" if name == "gamma" else ""
            raise InputError(f"{name} must be 0 or more{finite}, or 'auto', got {value!r}")
        return [float(value)]

    def _choose(self, data: _CalibrationSet, gammas: list[float], penalties: list[float]) -> tuple[float, float]:
        self.scores_: tuple[CandidateScore, ...] = ()
        if len(gammas) == len(penalties) == 1:
            return gammas[0], penalties[0]
        if self.accuracy_guard:
            # T alone first: of equal scores the first is taken
            penalties = [math.inf, *(one for one in penalties if one != math.inf)]
        pairs = [(gamma, penalty) for penalty in penalties for gamma in gammas]
        order = torch.randperm(len(data.labels), generator=torch.Generator().manual_seed(self.seed))
        folds = [fold.to(data.labels.device) for fold in order.chunk(self.folds)]
        for number, pair in enumerate(pairs, 1):
            self.scores_ += (self._score(data, folds, *pair),)
            progress.step("choosing gamma and penalty", number, len(pairs), f"ECE {self.scores_[-1].ece:.4f}")
        best = min(self.scores_, key=lambda one: (one.loses_accuracy, one.ece))
        return best.gamma, best.penalty

    def _score(self, data: _CalibrationSet, folds: list[Tensor], gamma: float, penalty: float) -> CandidateScore:
        """Held-out figures of a pair; a descent that diverges has an infinite ECE."""
        logits = torch.empty_like(data.logits)
        for fold in folds:
            kept = torch.ones_like(data.labels, dtype=torch.bool)
            kept[fold] = len(folds) == 1
            delta, temperature, _ = self._descend(data.take(kept), gamma, penalty, "")
            if delta.isnan().any():
                return CandidateScore(gamma, penalty, math.inf, 0.0, True)
            logits[fold] = (data.take(fold).logits_at(delta, self.batch_size) / temperature).to(logits.dtype)
        error = float(ece(logits.cpu().numpy(), data.labels.cpu().numpy(), from_logits=True))
        accuracy = float((logits.argmax(1) == data.labels).double().mean())
        loses = self.accuracy_guard and bool(accuracy_loss(data.logits, logits, data.labels))
        return CandidateScore(gamma, penalty, error, accuracy, loses)

    def _start_temperature(self, data: _CalibrationSet) -> float:
        if isinstance(self.temperature_init, str):
            return best_temperature(data.logits, data.labels)
        return float(self.temperature_init)

    def _start(self, data: _CalibrationSet, units: Tensor) -> Tensor:
        """Where δ begins."""
        if self.init == "normal":
            generator = torch.Generator().manual_seed(self.seed)
            return self.init_std * units * torch.randn(units.shape, generator=generator).to(units)
        if self.init == "data-driven":
            fitted = best_temperature(data.logits, data.labels)
            gradient = entropy_gradient(data.model, data.inputs, fitted, self.batch_size)
            return greatest_feasible_step(gradient, data.inputs, *feasible_box(data.inputs, self.bounds))
        return torch.zeros_like(units)

    def _descend(
        self, data: _CalibrationSet, gamma: float, penalty: float, stage: str
    ) -> tuple[Tensor, float, list[float]]:
        """SGD on u = δ/s and log T (so that T > 0); the state of lowest epoch loss is kept; δ is NaN on divergence."""
        if penalty == math.inf:
            learns = self.train_output
            alone = best_focal_temperature(data.logits, data.labels, gamma) if learns else self._start_temperature(data)
            return torch.zeros_like(data.inputs[0]), alone, []
        units = input_units(data.inputs)
        start, temperature = self._start(data, units), self._start_temperature(data)
        if stage and self.init == "data-driven" and not start.any():
            warnings.warn(
                "the data-driven start is 0: the inputs fill their feasible range; give wider bounds, or init='normal'",
                FitWarning,
                stacklevel=3,
            )
        # a constant input has no unit: what Theorem 1 gives it stays, and nothing is learned there
        fixed = torch.where(units == 0, start, 0.0)
        scaled = torch.where(units == 0, 0.0, start / units.clamp_min(torch.finfo(units.dtype).tiny)).requires_grad_()
        log_temperature = torch.tensor(math.log(temperature), device=scaled.device, requires_grad=True)
        learned = ([scaled] if self.train_input else []) + ([log_temperature] if self.train_output else [])
        if not learned:
            return start, temperature, []
        optimizer = torch.optim.SGD(learned, lr=self.learning_rate, momentum=self.momentum)
        generator = torch.Generator().manual_seed(self.seed)
        n, lowest, stale, trace = len(data.labels), math.inf, 0, []
        best = state = (scaled.detach().clone(), log_temperature.detach().clone())
        for epoch in range(self.epochs):
            total = scaled.new_zeros(())
            for index in torch.randperm(n, generator=generator).split(self.batch_size):
                rows = index.to(scaled.device)
                logits = data.model(data.inputs[rows] + (fixed + units * scaled)) / log_temperature.exp()
                loss = focal(logits, data.labels[rows], gamma=gamma) + penalty / n * scaled.square().sum()
                optimizer.zero_grad()
                loss.backward(inputs=learned)  # the model's own gradients stay as they are
                optimizer.step()
                total += loss.detach() * len(rows)
            trace.append(float(total) / n)
            if stage:
                progress.step(stage, epoch + 1, self.epochs, f"loss {trace[-1]:.5f}")
            before, state = state, (scaled.detach().clone(), log_temperature.detach().clone())
            if not (math.isfinite(trace[-1]) and state[0].isfinite().all() and state[1].abs() <= LIMIT):
                return torch.full_like(start, math.nan), temperature, trace
            stale = 0 if trace[-1] < lowest - 1e-7 else stale + 1
            if trace[-1] < lowest:
                lowest, best = trace[-1], before
            if stale >= self.patience:
                break
        # while the loss still falls, the state after the last epoch is better than the one before it
        scaled, log_temperature = best if stale else state
        return fixed + units * scaled, float(log_temperature.exp()), trace

    def artifact_state(self) -> dict[str, Any]:
        """What a saved artifact holds: everything learned but the network."""
        return {name: getattr(self, name) for name in self.learns} | {
            "delta_": self.delta_.detach().cpu().numpy(),
            "scores_": [list(score) for score in self.scores_],
        }

    def restore_artifact_state(self, state: dict[str, Any]) -> None:
        """The inverse of `artifact_state`."""
        scores = tuple(CandidateScore(*score) for score in state["scores_"])
        vars(self).update(state, delta_=torch.tensor(state["delta_"]), scores_=scores)


def _collect(model: nn.Module, loader: Iterable[Any], device: torch.device) -> _CalibrationSet:
    inputs, labels, logits = [], [], []
    with torch.no_grad():
        for batch_inputs, batch_labels in read_batches(loader):
            if not batch_inputs.is_floating_point():
                raise InputError(f"inputs are {batch_inputs.dtype}: a perturbation needs floating-point inputs")
            logits.append(run_model(model, batch_inputs, device))
            inputs.append(batch_inputs.to(device))
            labels.append(batch_labels.to(device).long())
    data = _CalibrationSet(model, joined(inputs, "inputs"), torch.cat(labels), joined(logits, "model's logits"))
    check_logits(data.logits)
    found = check_labels(data.labels.cpu().numpy(), len(data.logits), data.logits.shape[1], against="model's logits")
    if found.min() == found.max():
        raise InputError(f"all {len(found)} labels are class {found[0]}: a calibration set needs at least 2 classes")
    return data


def accuracy_loss(before: Tensor, after: Tensor, labels: Tensor) -> str:
    """Both accuracies in words where the second is lower by more than the noise or by half a point, else nothing.

    The noise is one standard error of the paired difference, √(rows turned wrong + rows turned right).

    Parameters
    ----------
    before, after : logits (n, K)
    labels : (n,)

    Examples
    --------
    >>> import torch
    >>> labels = torch.tensor([0, 1, 1, 0])
    >>> right = torch.eye(2)[labels]
    >>> accuracy_loss(right, 3 * right, labels), accuracy_loss(right, 0 - right, labels)
    ('', 'accuracy on the 4 calibration rows falls from 100.00% to 0.00%')
    """
    right, still = before.argmax(1) == labels, after.argmax(1) == labels
    lost, won = (right & ~still).sum(), (~right & still).sum()
    n = len(labels)
    if lost - won <= min(math.sqrt(lost + won), MAX_ACCURACY_LOSS * n):
        return ""
    shares = (100 * float(one.double().mean()) for one in (right, still))
    return "accuracy on the {} calibration rows falls from {:.2f}% to {:.2f}%".format(n, *shares)


def best_temperature(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> float:
    """argmin_T of the mean NLL of softmax(z/T).

    Examples
    --------
    >>> import torch
    >>> z = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0]])
    >>> round(2 / best_temperature(z, torch.tensor([0, 0, 1])), 4)  # the log odds of 2:1
    0.6931
    """
    total = len(labels) if weights is None else weights.sum()

    def means(beta: float) -> tuple[float, ...]:
        return tuple((temperature_sums(logits.detach(), labels, weights, beta) / total).tolist())

    return 1 / min(max(solve_inverse_temperature(means, 1.0).value, math.exp(-LIMIT)), math.exp(LIMIT))


def best_focal_temperature(logits: Tensor, labels: Tensor, gamma: float) -> float:
    """argmin_T of the mean focal_γ(z/T, y); a bounded search in log T around the optimum of γ = 0.

    Examples
    --------
    >>> import torch
    >>> z = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0]])
    >>> y = torch.tensor([0, 0, 1])
    >>> best_focal_temperature(z, y, 0.0) < best_focal_temperature(z, y, 1.0)  # focal prefers less confidence
    True
    """
    plain = best_temperature(logits, labels)
    if gamma == 0:
        return plain
    wide = logits.detach().double()

    def loss(log_temperature: float) -> float:
        return float(focal(wide / math.exp(log_temperature), labels, gamma=gamma))

    bounds = [max(-LIMIT, min(LIMIT, math.log(plain) + side)) for side in (-3.0, 3.0)]
    return math.exp(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-7}).x)


def entropy_gradient(model: nn.Module, inputs: Tensor, temperature: float, batch_size: int = 512) -> Tensor:
    """Mean over the rows of dH(softmax(f(x)/T))/dx, of one input's shape.

    In the logits the gradient is −p(log p + H)/T; the rest is the model's own back-propagation.

    Examples
    --------
    >>> g = entropy_gradient(nn.Identity(), torch.tensor([[2.0, 0.0]]), 1.0)
    >>> bool(g[0] < 0 < g[1])  # less of the sure class, more of the other
    True
    """
    total = torch.zeros_like(inputs[0])
    for part in inputs.split(batch_size):
        watched = part.detach().requires_grad_()
        spread = entropy((model(watched) / temperature).float().log_softmax(dim=1)).sum()
        total += torch.autograd.grad(spread, watched)[0].sum(dim=0)
    return total / len(inputs)


def feasible_box(inputs: Tensor, bounds: tuple[Any, Any] | None) -> tuple[Tensor, Tensor]:
    """The limits [α, β] an input may reach, of one input's shape: given, or the data's range.

    The data's range is one per channel of (n, C, …) and one per feature of (n, m), as features may differ in scale.
    """
    shape = inputs.shape[1:]
    if bounds is None:
        axes = other_axes(inputs)
        low, high = inputs.amin(dim=axes, keepdim=True)[0], inputs.amax(dim=axes, keepdim=True)[0]
    else:
        low, high = (torch.as_tensor(side, dtype=inputs.dtype, device=inputs.device) for side in bounds)
        if (low > inputs).any() or (high < inputs).any():
            reach = f"{float(inputs.min()):.4g} to {float(inputs.max()):.4g}"
            raise InputError(f"inputs reach from {reach}, outside the bounds given: widen bounds to hold every input")
    return low.expand(shape), high.expand(shape)


def other_axes(inputs: Tensor) -> list[int]:
    """The axes to reduce so that one number per channel (n, C, …) or per feature (n, m) is left."""
    return [0, *range(2, inputs.ndim)]


def input_units(inputs: Tensor) -> Tensor:
    """Standard deviation of each channel or feature, of one input's shape; 0 where the inputs are constant.

    Examples
    --------
    >>> input_units(torch.tensor([[1.0, 100.0], [3.0, 100.0]]))
    tensor([1., 0.])
    """
    spread = inputs.double().std(dim=other_axes(inputs), correction=0, keepdim=True)[0].to(inputs.dtype)
    return spread.expand(inputs.shape[1:]).clone()


def greatest_feasible_step(gradient: Tensor, inputs: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """δ = sign(g)∘η, the largest g·δ for which every row stays inside [α, β] (Tang, Chen, Ho 2022, Theorem 1).

    η_j = ℓ_j − α_j where g_j < 0 and β_j − μ_j where g_j > 0, [ℓ, μ] being the data's own range at j.

    Examples
    --------
    >>> x = torch.tensor([[0.2, 0.5], [0.6, 0.9]])
    >>> greatest_feasible_step(torch.tensor([-1.0, 2.0]), x, torch.zeros(2), torch.ones(2))
    tensor([-0.2000,  0.1000])
    """
    below = (inputs.amin(dim=0) - low).clamp_min(0)
    above = (high - inputs.amax(dim=0)).clamp_min(0)
    return torch.where(gradient < 0, -below, above) * gradient.sign().abs()
