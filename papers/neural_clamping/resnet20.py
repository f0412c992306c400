"""ResNet-20 as the shared checkpoints hold it, and the images it was trained on."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

SIDE, TILES = 32, 50
MEAN = np.array([0.5071, 0.4866, 0.4409], np.float32) * 255
STD = np.array([0.2673, 0.2564, 0.2762], np.float32) * 255


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with batch norm, a shortcut, ReLU after the sum."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.b1 = nn.BatchNorm2d(n_out)
        self.c2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.b2 = nn.BatchNorm2d(n_out)
        self.sc = nn.Sequential()
        if stride != 1 or n_in != n_out:
            self.sc = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, inputs: Tensor) -> Tensor:
        """Features (n, n_out, h, w)."""
        hidden = torch.relu(self.b1(self.c1(inputs)))
        return torch.relu(self.b2(self.c2(hidden)) + self.sc(inputs))


class ResNet20(nn.Module):
    """Widths 16, 32, 64 with three blocks each."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        shapes = [(16, 16, 1), (16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 32, 1), (32, 64, 2)]
        shapes += [(64, 64, 1), (64, 64, 1)]
        self.body = nn.Sequential(*(BasicBlock(*shape) for shape in shapes))
        self.fc = nn.Linear(64, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, K) of standardised images (n, 3, 32, 32)."""
        return self.fc(self.body(self.stem(images)).mean(dim=(2, 3)))


def load_resnet20(path: Path) -> ResNet20:
    """The network of a checkpoint, in evaluation mode."""
    weights = {name: torch.from_numpy(value) for name, value in _read_safetensors(path).items()}
    model = ResNet20(len(weights["fc.bias"]))
    model.load_state_dict(weights, strict=False)
    return model.eval()


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    # the format is a length, a JSON header and raw bytes; a GPU box without the package can still read it
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    kinds = {"F16": np.float16, "F32": np.float32, "I64": np.int64}
    arrays = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, stop = (8 + length + offset for offset in entry["data_offsets"])
            array = np.frombuffer(raw[start:stop], kinds[entry["dtype"]]).reshape(entry["shape"])
            arrays[name] = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
    return arrays


def read_images(folder: Path, name: str, part: str, limit: int | None = None) -> tuple[Tensor, Tensor]:
    """Standardised images and labels of "val" (the calibration images) or "test"."""
    with zipfile.ZipFile(folder / f"{name}.zip") as archive:
        with np.load(io.BytesIO(archive.read("labels.npz"))) as labels:
            every = labels["y_test" if part == "test" else "y_train"].astype(np.int64)
        index = np.arange(len(every)) if part == "test" else np.load(folder / "val_index.npy")
        index = index[:limit]
        prefix = "test" if part == "test" else "train"
        images = np.empty((len(index), SIDE, SIDE, 3), np.uint8)
        for sheet in np.unique(index // TILES**2):
            pixels = np.asarray(Image.open(io.BytesIO(archive.read(f"{prefix}_{sheet:02d}.jpg"))).convert("RGB"))
            tiles = pixels.reshape(TILES, SIDE, TILES, SIDE, 3).swapaxes(1, 2).reshape(-1, SIDE, SIDE, 3)
            here = index // TILES**2 == sheet
            images[here] = tiles[index[here] % TILES**2]
    scaled = (images.astype(np.float32) - MEAN) / STD
    return torch.from_numpy(scaled).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(every[index])
