"""CIFAR images: read from sheets, held on the device, cropped and flipped there, corrupted for the shift study."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

SIDE, TILES, PADDING = 32, 50, 4
MEAN, STD = (0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762)
CORRUPTIONS = ("noise", "contrast", "brightness", "blur", "pixelate")
SEVERITIES = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Split:
    """Images (n, 32, 32, 3) as bytes and their labels, both on one device."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor | slice) -> Split:
        """The images at these places."""
        return Split(self.images[index], self.labels[index])


@dataclass(frozen=True)
class Dataset:
    """The three parts every run uses; `validation` is never trained on and chooses everything."""

    train: Split
    validation: Split
    test: Split
    n_classes: int


def read_dataset(folder: Path, name: str = "cifar100", device: str = "cpu") -> Dataset:
    """Train, validation (the images of val_index.npy) and test of `name`.zip in `folder`."""
    with zipfile.ZipFile(folder / f"{name}.zip") as archive:
        with np.load(io.BytesIO(archive.read("labels.npz"))) as labels:
            train_labels, test_labels = labels["y_train"].astype(np.int64), labels["y_test"].astype(np.int64)
        train_images = _read_sheets(archive, "train", len(train_labels))
        test_images = _read_sheets(archive, "test", len(test_labels))
    held_out = np.load(folder / "val_index.npy")
    kept = np.setdiff1d(np.arange(len(train_labels)), held_out)
    return Dataset(
        train=_split(train_images[kept], train_labels[kept], device),
        validation=_split(train_images[held_out], train_labels[held_out], device),
        test=_split(test_images, test_labels, device),
        n_classes=int(train_labels.max()) + 1,
    )


def synthetic_dataset(n_train: int = 256, n_classes: int = 4, seed: int = 0) -> Dataset:
    """A few noisy images whose class is their tint: enough to run every line of the study in seconds."""
    generator = np.random.default_rng(seed)
    tints = generator.integers(40, 215, size=(n_classes, 1, 1, 3))

    def part(n: int) -> Split:
        labels = generator.integers(0, n_classes, n)
        images = tints[labels] + generator.normal(0, 60, size=(n, SIDE, SIDE, 3))
        return _split(np.clip(images, 0, 255).astype(np.uint8), labels, "cpu")

    return Dataset(part(n_train), part(n_train // 2), part(n_train // 2), n_classes)


def _read_sheets(archive: zipfile.ZipFile, prefix: str, n: int) -> np.ndarray:
    per_sheet = TILES * TILES
    images = np.empty((n, SIDE, SIDE, 3), np.uint8)
    for sheet in range(-(-n // per_sheet)):
        pixels = np.asarray(Image.open(io.BytesIO(archive.read(f"{prefix}_{sheet:02d}.jpg"))).convert("RGB"))
        tiles = pixels.reshape(TILES, SIDE, TILES, SIDE, 3).swapaxes(1, 2).reshape(per_sheet, SIDE, SIDE, 3)
        part = images[sheet * per_sheet : (sheet + 1) * per_sheet]
        part[:] = tiles[: len(part)]
    return images


def _split(images: np.ndarray, labels: np.ndarray, device: str) -> Split:
    return Split(torch.from_numpy(images).to(device), torch.from_numpy(labels.astype(np.int64)).to(device))


def normalise(images: Tensor) -> Tensor:
    """Bytes (n, H, W, 3) → standardised float (n, 3, H, W); channels-last in memory on a GPU, contiguous elsewhere."""
    mean, deviation = _scale(images.device)
    standard = ((images.float() - mean) / deviation).permute(0, 3, 1, 2)
    # the backward pass of a 1×1 convolution of stride 2 hangs over channels-last tensors on CPUs without AVX-512
    return standard if images.is_cuda else standard.contiguous()


@cache
def _scale(device: torch.device) -> tuple[Tensor, Tensor]:
    # kept on the device: a captured step may not copy from the host
    return torch.tensor(MEAN, device=device) * 255, torch.tensor(STD, device=device) * 255


def pad(images: Tensor) -> Tensor:
    """A black frame of 4 pixels around every image, so that a random crop is one gather."""
    return functional.pad(images, (0, 0, PADDING, PADDING, PADDING, PADDING))


def crop_and_flip(padded: Tensor, index: Tensor) -> Tensor:
    """Randomly shifted, randomly mirrored images at `index`; no step of it leaves the device."""
    n, device = len(index), index.device
    span = torch.arange(SIDE, device=device)
    rows = torch.randint(0, 2 * PADDING + 1, (n, 1), device=device) + span
    mirrored = torch.rand(n, 1, device=device) < 0.5
    columns = torch.randint(0, 2 * PADDING + 1, (n, 1), device=device) + torch.where(mirrored, SIDE - 1 - span, span)
    return padded[index[:, None, None], rows[:, :, None], columns[:, None, :]]


def corrupt(images: Tensor, kind: str, severity: int) -> Tensor:
    """Images under one of five corruptions at severity 1…5 (strengths after Hendrycks & Dietterich 2019)."""
    pixels = (images.float().permute(0, 3, 1, 2) / 255).contiguous()
    step = severity - 1
    if kind == "noise":
        generator = torch.Generator(device=images.device).manual_seed(severity)
        noise = torch.randn(pixels.shape, generator=generator, device=images.device)
        pixels = pixels + noise * (0.04, 0.06, 0.08, 0.09, 0.10)[step]
    elif kind == "contrast":
        mean = pixels.mean(dim=(2, 3), keepdim=True)
        pixels = (pixels - mean) * (0.75, 0.5, 0.4, 0.3, 0.15)[step] + mean
    elif kind == "brightness":
        pixels = pixels + (0.05, 0.1, 0.15, 0.2, 0.3)[step]
    elif kind == "blur":
        pixels = _blur(pixels, (0.4, 0.6, 0.7, 0.8, 1.0)[step])
    elif kind == "pixelate":
        small = round(SIDE * (0.95, 0.9, 0.85, 0.75, 0.65)[step])
        pixels = functional.interpolate(functional.interpolate(pixels, size=small, mode="area"), size=SIDE)
    else:
        raise ValueError(f"no corruption is called {kind!r}; there are: {', '.join(CORRUPTIONS)}")
    return (pixels.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def _blur(pixels: Tensor, sigma: float) -> Tensor:
    offsets = torch.arange(-4, 5, device=pixels.device, dtype=pixels.dtype)
    kernel = torch.exp(-0.5 * (offsets / sigma) ** 2)
    kernel = (kernel / kernel.sum()).repeat(3, 1)
    framed = functional.pad(pixels, (4, 4, 4, 4), mode="reflect")
    across = functional.conv2d(framed, kernel[:, None, None, :], groups=3)
    return functional.conv2d(across, kernel[:, None, :, None], groups=3)
