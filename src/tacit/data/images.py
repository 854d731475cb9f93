"""Images in memory as bytes, normalised where they are used."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset


@dataclass(frozen=True, eq=False, repr=False)
class Images(Dataset[tuple[Tensor, Tensor]]):
    """Images and their labels, kept as bytes: a quarter of the memory of floats.

    `tacit.fit`, `predict` and `evaluate` take whole batches of bytes to the model's device and
    normalise them there. As a Dataset it gives one normalised image and its label, for any other
    loop.

    Args:
        pixels: (B, C, H, W), uint8, as tensor or array.
        targets: Labels, (B,), the same.
        mean: Of each channel, where pixels go from 0 to 1; subtracted.
        std: Of each channel; divided by.
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
                f"Images: expected {len(self.pixels)} labels, received a shape of "
                f"{tuple(self.targets.shape)}."
            )
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if len(numbers) not in (1, self.pixels.shape[1]):
                raise ValueError(
                    f"Images({name}): expected 1 or {self.pixels.shape[1]} numbers, one for each "
                    f"channel; received {len(numbers)}."
                )

    def __len__(self) -> int:
        return len(self.pixels)

    def __repr__(self) -> str:
        return f"Images({len(self)} of {' x '.join(map(str, self.pixels.shape[1:]))})"

    def __getitem__(self, index: Any) -> Any:
        """Return a normalised image and its label, or, for several, `Images` of them."""
        if isinstance(index, slice | list) or np.ndim(index):
            return replace(self, pixels=self.pixels[index], targets=self.targets[index])
        row = operator.index(index)
        return self.normalised(self.pixels[row]), self.targets[row]

    def normalised(self, pixels: Tensor | None = None) -> Tensor:
        """Return bytes as numbers of about unit variance, on their device.

        Args:
            pixels: (..., C, H, W), uint8; the own ones if left out.
        """
        pixels = self.pixels if pixels is None else pixels
        shape = (-1, 1, 1)
        mean = torch.tensor(self.mean, device=pixels.device).reshape(shape)
        std = torch.tensor(self.std, device=pixels.device).reshape(shape)
        return pixels.float().div_(255).sub_(mean).div_(std)

    @property
    def preprocessing(self) -> dict[str, Any]:
        """What `tacit.save` may keep with a model, so that others prepare their inputs alike."""
        return {"scale": 1 / 255, "mean": list(self.mean), "std": list(self.std)}
