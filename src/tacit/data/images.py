"""Images in memory as bytes, normalised on use."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset


@dataclass(frozen=True, eq=False, repr=False)
class Images(Dataset[tuple[Tensor, Tensor]]):
    """Images and their labels, stored as bytes: a quarter of the memory of float32.

    `tacit.fit`, `predict` and `evaluate` move whole batches of bytes to the model's device and
    normalise them there. For other training loops, it is a Dataset of normalised images and labels.

    Args:
        pixels: uint8 tensor or array, (B, C, H, W).
        targets: Labels, tensor or array, (B,).
        mean: Mean of each channel, for pixels in [0, 1]; subtracted from them.
        std: Standard deviation of each channel; centred pixels are divided by it.
        class_names: Names of the classes.

    Examples:
        >>> import torch
        >>> images = Images(torch.full((3, 1, 2, 2), 255, dtype=torch.uint8), torch.arange(3))
        >>> images[1][0].unique(), images[:2]
        (tensor([1.]), Images(2 of 1 x 2 x 2))
    """

    pixels: Tensor
    targets: Tensor
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    class_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("pixels", "targets"):
            object.__setattr__(self, name, torch.as_tensor(getattr(self, name)))
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4:
            raise ValueError(
                "Images: expected pixels of shape (B, C, H, W) and dtype uint8, received "
                f"{tuple(self.pixels.shape)} and {self.pixels.dtype}."
            )
        if self.targets.shape != self.pixels.shape[:1]:
            raise ValueError(
                f"Images: expected labels of shape ({len(self.pixels)},), received "
                f"{tuple(self.targets.shape)}."
            )
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if len(numbers) not in (1, self.pixels.shape[1]):
                raise ValueError(
                    f"Images({name}): expected 1 or {self.pixels.shape[1]} values, one for each "
                    f"channel; received {len(numbers)}."
                )
        if not all(map(math.isfinite, self.mean)):
            raise ValueError(f"Images(mean): expected finite values, received {self.mean}.")
        if not all(0 < std < math.inf for std in self.std):
            raise ValueError(f"Images(std): expected values above 0, received {self.std}.")

    def __len__(self) -> int:
        return len(self.pixels)

    def __repr__(self) -> str:
        return f"Images({len(self)} of {' x '.join(map(str, self.pixels.shape[1:]))})"

    def __getitem__(self, index: Any) -> Any:
        """Return a normalised image and its label; for several indices, a subset as `Images`."""
        if isinstance(index, slice | list) or np.ndim(index):
            return replace(self, pixels=self.pixels[index], targets=self.targets[index])
        row = operator.index(index)
        return self.normalised(self.pixels[row]), self.targets[row]

    def normalised(self, pixels: Tensor | None = None) -> Tensor:
        """Return normalised images in float32, on the device of the pixels.

        Args:
            pixels: uint8, (..., C, H, W); by default all images of the dataset.
        """
        pixels = self.pixels if pixels is None else pixels
        shape = (-1, 1, 1)
        mean = torch.tensor(self.mean, device=pixels.device).reshape(shape)
        std = torch.tensor(self.std, device=pixels.device).reshape(shape)
        return pixels.float().div_(255).sub_(mean).div_(std)

    @property
    def preprocessing(self) -> dict[str, Any]:
        """Metadata for `tacit.save`, so that users of a model can normalise their inputs alike."""
        return {"scale": 1 / 255, "mean": list(self.mean), "std": list(self.std)}
