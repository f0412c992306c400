"""Draw the pictures of the docs from the embedded data: `python docs/scripts/pictures.py [NAME ...]`.

A method's picture has two panels, both on test rows the fit has not seen: where each confidence went, and the
reliability diagram before and after.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import calibrant
from calibrant.calibrators.registry import names
from calibrant.core.softmax import softmax
from calibrant.evaluation.consistency import reliability_bins

sys.path.insert(0, str(Path(__file__).parent))

from tables import page_of

IMAGES = Path(__file__).resolve().parents[1] / "images"
BEFORE, AFTER, GREY = "#d55e00", "#0072b2", "#888888"  # told apart by the colour-blind as well
SHOWN = 2500

SHOWN_AS = {
    "kept-prediction": "vs+keep",
    "bin-temperature": "ccts",
    "class-loss": "sctl+ts",
    "top-label-map": "ts+top",
}
"""Pages that show another short name than the first of their class."""


def methods() -> dict[str, str]:
    """Page of each method → the short name its picture shows, from the registry."""
    first: dict[str, str] = {}
    for name in names():
        first.setdefault(page_of(type(calibrant.get(name))), name)
    return {**first, **SHOWN_AS}


def main(wanted: list[str]) -> None:
    """Draw those that were named, or all."""
    others = {"label-shift": label_shift, "neural-clamping": clamping, "auto": choice, "multilabel": labels_at_once}
    others |= {page: partial(of_one_score, name) for page, name in ONE_SCORE.items()}
    others |= {"joint": joint, "bend": bend, "linear-pool": pool}
    others |= {"group": partial(of_groups, "ts+group"), "multicalibration": partial(of_groups, "ts+multi")}
    alone = {"noise-floor": noise_floor, "simplex": simplex}
    shown = methods()
    for name in wanted or [*shown, *others, *alone]:
        draw = {**others, **alone}.get(name) or partial(of_method, shown[name])
        folder = IMAGES if name in alone else IMAGES / "methods"
        folder.mkdir(parents=True, exist_ok=True)
        save(draw(), folder / f"{name}.png")


ONE_SCORE = {"platt": "platt", "beta": "beta", "quadratic": "quad", "venn-abers": "va"}
"""Pages of the methods for one score per row."""

CAT = 3


def of_one_score(name: str) -> plt.Figure:
    """Before and after on the probability of a cat: the map, and the reliability of the positive class."""
    data = calibrant.datasets.load("cifar10-resnet18")
    (fit_scores, fit_labels), (scores, labels) = (class_scores(part, CAT) for part in (data.val, data.test))
    fitted = calibrant.get(name).fit(fit_scores, fit_labels)
    after = fitted.predict_proba(scores)[:, 1]
    before = 1 / (1 + np.exp(-scores))
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.4), layout="constrained")
    grid = np.linspace(-9, 9, 400)
    left.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":")
    given = 1 / (1 + np.exp(-grid))
    if name == "va":
        low, high = fitted.predict_interval(grid).T
        left.fill_between(given, low, high, color=AFTER, alpha=0.25, linewidth=0, step="mid")
    left.plot(given, fitted.predict_proba(grid)[:, 1], color=AFTER)
    left.set(xlabel="p before", ylabel="p after", title="the map")
    right.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":")
    for label, p, colour, mark in (("before", before, BEFORE, "o"), (name, after, AFTER, "s")):
        bins = reliability_bins(p, labels == 1)
        full = bins.counts >= 20
        right.plot(bins.confidence[full], bins.accuracy[full], mark + "-", color=colour, markersize=4, label=label)
    right.set(xlabel="probability of a cat", ylabel="share of cats", title="reliability", xlim=(0, 1), ylim=(0, 1))
    right.legend(frameon=False)
    return figure


def class_scores(part: calibrant.Predictions, column: int) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds of one class against all others, and whether it is the label."""
    p = part.probabilities[:, column].astype(np.float64)
    return np.log(p) - np.log1p(-p), (part.labels == column).astype(int)


def labels_at_once() -> plt.Figure:
    """The maps of ten labels: pooled, each alone and shrunken, fitted to 300 rows."""
    data = calibrant.datasets.load("cifar10-resnet18")
    columns = [class_scores(data.val, j) for j in range(10)]
    scores, labels = (np.stack([pair[place] for pair in columns], axis=1)[:300] for place in (0, 1))
    figure, panels = plt.subplots(1, 3, figsize=(7.2, 2.8), layout="constrained", sharey=True)
    grid = np.linspace(-8, 8, 200)
    for panel, (title, strength) in zip(
        panels, (("one map", np.inf), ("a map each", 1e-3), ("shrunken", "cv")), strict=True
    ):
        fitted = calibrant.MultilabelCalibrator("platt", strength=strength).fit(scores, labels)
        panel.plot(grid, fitted.transform(np.tile(grid[:, None], 10)), color=AFTER, linewidth=0.8, alpha=0.7)
        panel.plot(grid, grid, color=GREY, linewidth=0.8, linestyle=":")
        panel.set(xlabel="log-odds before", title=title, ylim=(-10, 10))
    panels[0].set_ylabel("log-odds after")
    return figure


def of_method(name: str) -> plt.Figure:
    """Before and after one method on CIFAR-100."""
    data = calibrant.datasets.load("cifar100-resnet18")
    fitted = calibrant.get(name).fit(data.val.logits, data.val.labels)
    return two_panels(data.test.logits, fitted.transform(data.test.logits), data.test.labels, name)


def two_panels(before: np.ndarray, after: np.ndarray, labels: np.ndarray, name: str) -> plt.Figure:
    """Confidence against confidence, and accuracy against confidence."""
    columns = {"before": columns_of(before, labels), name: columns_of(after, labels)}
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.4), layout="constrained")
    shown = np.random.default_rng(0).permutation(len(labels))[:SHOWN]
    left.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":")
    left.plot(columns["before"][0][shown], columns[name][0][shown], ".", color=AFTER, markersize=2, alpha=0.4)
    left.set(xlabel="confidence before", ylabel="confidence after", title="where each row went")
    right.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":")
    for (label, (confidence, correct)), colour, mark in zip(columns.items(), (BEFORE, AFTER), "os", strict=True):
        bins = reliability_bins(confidence, correct)
        full = bins.count >= 20
        error = calibrant.metrics.ece(confidence, correct)
        right.plot(
            bins.confidence[full], bins.accuracy[full], color=colour, marker=mark, markersize=3.5,
            linewidth=1.2, label=f"{label}: ECE {100 * error:.2f}%",
        )  # fmt: skip
    right.set(xlabel="confidence", ylabel="accuracy", title="was it right that often?")
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.set(xlim=(0, 1), ylim=(0, 1))
        tidy(axes)
    return figure


def columns_of(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Confidence and correctness of each row."""
    probabilities = softmax(np.asarray(logits))
    return probabilities.max(axis=1).astype(np.float64), probabilities.argmax(axis=1) == labels


def of_groups(name: str) -> plt.Figure:
    """Two groups of rows, of which the second is three times too confident."""
    data = calibrant.datasets.load("cifar10-resnet18")
    parts = []
    for part in (data.val, data.test):
        second = np.arange(part.n) % 2 == 1
        parts.append((np.where(second[:, None], 3.0, 1.0) * part.logits, part.labels, second.astype(int)))
    (logits, labels, groups), (new, new_labels, new_groups) = parts
    fitted = calibrant.get(name).fit(logits, labels, groups=groups)
    return two_panels(new, fitted.transform(new, groups=new_groups), new_labels, name)


def joint() -> plt.Figure:
    """Joint scaling is for few classes: CIFAR-10."""
    data = calibrant.datasets.load("cifar10-resnet18")
    fitted = calibrant.JointScaling().fit(data.val.logits, data.val.labels)
    return two_panels(data.test.logits, fitted.transform(data.test.logits), data.test.labels, "joint")


def pool() -> plt.Figure:
    """Three methods of different kinds on CIFAR-10."""
    data = calibrant.datasets.load("cifar10-resnet18")
    fitted = calibrant.LinearPool(["ts", "vs", "iso"]).fit(data.val.logits, data.val.labels)
    return two_panels(data.test.logits, fitted.transform(data.test.logits), data.test.labels, "pool")


def bend() -> plt.Figure:
    """Scores that are too extreme on one side, and shifted."""
    generator = np.random.default_rng(0)

    def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
        scores = 3 * generator.normal(size=n)
        chance = 1 / (1 + np.exp(-np.where(scores > 0, 0.4, 1.0) * scores + 0.5))
        return scores, (generator.random(n) < chance).astype(int)

    (scores, labels), (fresh, truth) = rows(2000), rows(10_000)
    after = calibrant.BendScaling().fit(scores, labels).transform(fresh)
    columns = [np.stack([np.zeros_like(fresh), one], axis=1) for one in (fresh, after)]
    return two_panels(*columns, truth, "bend")


def label_shift() -> plt.Figure:
    """A network that learned rare classes as rare, met by data where all classes are alike."""
    generator = np.random.default_rng(0)
    prior = 0.6 ** np.arange(10) / (0.6 ** np.arange(10)).sum()

    def rows(n: int, frequency: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        labels = generator.choice(10, n, p=frequency)
        return 1.6 * (generator.normal(size=(n, 10)) + 2 * np.eye(10)[labels] + np.log(prior)), labels

    fit, (logits, labels) = rows(5000, prior), rows(10_000, np.full(10, 0.1))
    fitted = calibrant.LabelShift(calibrant.TemperatureScaling(), "uniform").fit(*fit)
    return two_panels(logits, fitted.transform(logits), labels, "label shift")


def clamping() -> plt.Figure:
    """Neural Clamping around a small network that learned its training points by heart."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)

    def points(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.randint(0, 4, (n,), generator=generator)
        x = 2 * nn.functional.one_hot(labels, 4).float() + torch.randn(n, 4, generator=generator)
        return x, labels

    model = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))
    x, labels = points(600)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()
    held_out, (new, truth) = points(2000), points(8000)
    clamping = calibrant.NeuralClamping(gamma=0.0, penalty=0.1, init="zeros", epochs=60, learning_rate=0.01)
    clamped = clamping.fit(model, [held_out])
    with torch.no_grad():
        return two_panels(model(new).numpy(), clamped(new).numpy(), truth.numpy(), "clamped")


def choice() -> plt.Figure:
    """What AutoCalibrator compared on CIFAR-100."""
    data = calibrant.datasets.load("cifar100-resnet18")
    chosen = calibrant.AutoCalibrator().fit(data.val.logits, data.val.labels)
    figure, axes = plt.subplots(figsize=(5.6, 3.0), layout="constrained")
    order = sorted(chosen.scores_, key=chosen.scores_.get, reverse=True)
    for place, name in enumerate(order):
        colour = AFTER if name == chosen.chosen_ else GREY
        axes.errorbar(
            chosen.scores_[name], place, xerr=chosen.standard_errors_[name], color=colour, marker="o", capsize=3
        )
    axes.set_yticks(range(len(order)), [name.replace(" + ", "\n+ ") for name in order])
    axes.set(
        xlabel="cross-validated NLL\n(bars: standard error of the difference to the lowest)",
        ylim=(-0.4, len(order) - 0.6),
    )
    tidy(axes)
    return figure


def noise_floor() -> plt.Figure:
    """ECE of a model that is calibrated by construction."""
    generator = np.random.default_rng(0)
    sizes = np.array([100, 300, 1000, 3000, 10_000, 30_000])
    figure, axes = plt.subplots(figsize=(5.0, 3.2), layout="constrained")
    for n_bins, colour, mark in ((5, GREY, "^"), (15, AFTER, "o"), (50, BEFORE, "s")):
        means = []
        for n in sizes:
            errors = []
            for _ in range(50):
                confidence = generator.uniform(0.3, 1, n)
                correct = generator.random(n) < confidence
                errors.append(calibrant.metrics.ece(confidence, correct, n_bins=n_bins))
            means.append(100 * np.mean(errors))
        axes.plot(sizes, means, color=colour, marker=mark, linewidth=1.2, markersize=4, label=f"{n_bins} bins")
    axes.set(
        xscale="log", yscale="log", xlabel="rows", ylabel="mean ECE, %", title="ECE of a perfectly calibrated model"
    )
    axes.legend(frameon=False, fontsize=8)
    tidy(axes)
    return figure


def simplex() -> plt.Figure:
    """The way of one distribution under temperature and weight scaling."""
    return calibrant.plots.simplex_trajectories().figure


def tidy(axes: plt.Axes) -> None:
    """Only the lines that say something."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.title.set_fontsize(10)


def save(figure: plt.Figure, path: Path) -> None:
    """A small png."""
    figure.savefig(path, dpi=110, pil_kwargs={"optimize": True})
    plt.close(figure)
    print(f"{path.relative_to(IMAGES.parent)}: {path.stat().st_size} bytes", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
