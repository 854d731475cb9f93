"""The networks that are measured: plain PyTorch, nothing in them knows of distributions."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class ResNet18(nn.Module):
    """ResNet-18 for 3x32x32 images, with GroupNorm."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(32, 64)
        widths = [64, 64, 128, 256, 512]
        blocks: list[nn.Module] = []
        for fan_in, fan_out in pairwise(widths):
            stride = 1 if fan_in == fan_out else 2
            blocks += [_Block(fan_in, fan_out, stride), _Block(fan_out, fan_out, 1)]
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        logits: Tensor = self.fc(self.blocks(x).mean((2, 3)))
        return logits


class _Block(nn.Module):
    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(fan_in, fan_out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(32, fan_out)
        self.conv2 = nn.Conv2d(fan_out, fan_out, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(32, fan_out)
        self.skip: nn.Module = nn.Identity()
        if fan_in != fan_out:
            conv = nn.Conv2d(fan_in, fan_out, 1, stride, bias=False)
            self.skip = nn.Sequential(conv, nn.GroupNorm(32, fan_out))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))
