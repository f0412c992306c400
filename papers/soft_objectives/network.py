"""ResNet-18 for 32×32 images, one that halves them first, and a tiny net of the same interface for tests."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut (He et al. 2016)."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(n_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or n_in != n_out:
            self.shortcut = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, inputs: Tensor) -> Tensor:
        """Features (n, n_out, h, w)."""
        hidden = torch.relu(self.norm1(self.conv1(inputs)))
        return torch.relu(self.norm2(self.conv2(hidden)) + self.shortcut(inputs))


class ResNet(nn.Module):
    """A stem, stages of blocks that halve the image, the mean over what is left, a linear layer."""

    def __init__(
        self, n_classes: int, widths: tuple[int, ...] = (64, 128, 256, 512), depth: int = 2, stride: int = 1
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        n_in = widths[0]
        for stage, width in enumerate(widths):
            for place in range(depth):
                blocks.append(Block(n_in, width, 2 if stage > 0 and place == 0 else 1))
                n_in = width
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, stride, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()
        )
        self.body = nn.Sequential(*blocks)
        self.head = nn.Linear(n_in, n_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, K)."""
        return self.head(self.body(self.stem(images)).mean(dim=(2, 3)))


def make_network(name: str, n_classes: int, seed: int) -> ResNet:
    """A freshly initialised net, the same for the same seed; "resnet18-half" costs a quarter of "resnet18"."""
    torch.manual_seed(seed)
    if name == "resnet18":
        return ResNet(n_classes)
    if name == "resnet18-half":
        return ResNet(n_classes, stride=2)
    if name == "tiny":
        return ResNet(n_classes, widths=(4, 8), depth=1)
    raise ValueError(f"no network is called {name!r}; there are: resnet18, resnet18-half, tiny")
