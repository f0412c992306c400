"""Calibrate a segmentation network: maps (N, K, H, W), border pixels that do not count, one temperature for all.

    python examples/segmentation.py

The network is small and the images are synthetic discs and squares under noise, so this runs on a laptop in seconds.
Trained for long on few images, it is sure of itself and less often right; a temperature fitted on held-out maps mends
the confidence and leaves every predicted class as it is. Intervals draw whole images, as pixels of one image are not
independent.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import calibrant as cal
from calibrant.neural import CalibratedModule, dense_rows
from calibrant.neural.metrics import CalibrationMetrics

BORDER = 255
"""The label of pixels that do not count, as in Pascal VOC and Cityscapes."""

CLASSES = ("background", "disc", "square")


def images(n: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy images (n, 1, size, size) of a disc and a square, and labels (n, size, size) with a border class."""
    generator = torch.Generator().manual_seed(seed)
    across = torch.arange(size).float()
    centre = size * (0.2 + 0.6 * torch.rand((n, 2, 2, 1, 1), generator=generator))
    radius = size * (0.12 + 0.1 * torch.rand((n, 2, 1, 1), generator=generator))
    apart = torch.stack([across[:, None].expand(size, size), across[None, :].expand(size, size)]) - centre
    distance = torch.stack([apart[:, 0].square().sum(dim=1).sqrt(), apart[:, 1].abs().amax(dim=1)], dim=1)
    labels = torch.zeros((n, size, size), dtype=torch.int64)
    for place in (0, 1):
        labels[distance[:, place] < radius[:, place]] = place + 1
    shades = torch.tensor([0.0, 1.0, 1.6])[labels]
    labels[((distance - radius).abs() < 0.7).any(dim=1)] = BORDER
    noisy = shades + 0.7 * torch.randn(shades.shape, generator=generator)
    return noisy[:, None], labels


def train(inputs: Tensor, labels: Tensor, steps: int) -> nn.Module:
    """A small convolutional network from images to maps of logits."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for width_in, width_out in ((1, 16), (16, 24), (24, 24)):
        layers += [nn.Conv2d(width_in, width_out, 3, padding=1), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Conv2d(24, len(CLASSES), 1))
    optimiser = torch.optim.Adam(network.parameters(), lr=5e-3)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(network(inputs), labels, ignore_index=BORDER)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network.eval()


def main(n: int = 40, size: int = 32, steps: int = 150) -> dict[str, dict[str, float]]:
    """Train, calibrate and measure; returns the metrics on new images before and after."""
    network = train(*images(6, size, seed=1), steps)
    val_images, val_labels = images(n, size, seed=2)
    test_images, test_labels = images(n, size, seed=3)
    with torch.no_grad():
        val_maps, test_maps = network(val_images), network(test_images)

    fitted = cal.TemperatureScaling().fit(*dense_rows(val_maps, val_labels, ignore_index=BORDER))
    print(f"temperature {fitted.temperature_:.3f}")
    module = CalibratedModule(network, fitted)  # images in, calibrated probabilities (N, K, H, W) out
    with torch.no_grad():
        calibrated = module(test_images)

    figures = {}
    for name, values, from_logits in (("before", test_maps, True), ("after", calibrated, False)):
        metric = CalibrationMetrics(from_logits=from_logits, ignore_index=BORDER)
        for start in range(0, n, 16):  # as in a validation loop
            metric.update(values[start : start + 16], test_labels[start : start + 16])
        figures[name] = {key: float(value) for key, value in metric.compute().items()}
        print(name, {key: round(value, 4) for key, value in figures[name].items()})

    # the same maps as predictions: every metric with intervals that draw whole images
    predictions = cal.Predictions(
        logits=fitted.transform(test_maps).numpy(),
        labels=test_labels.numpy(),
        ignore_index=BORDER,
        class_names=CLASSES,
    )
    measured = cal.measure(predictions, resamples=200)
    figures["measured"] = {"ece": measured.metrics["ece"].value, "rows": float(measured.n)}
    print(measured)
    return figures


if __name__ == "__main__":
    main()
