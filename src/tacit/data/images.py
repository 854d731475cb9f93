"""Images in memory as bytes, normalised on use."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
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
        names: A name for each image, for instance its file.
        augment: Applied to the uint8 pixels of training batches, (B, C, H, W), before they are
            normalised: `tacit.data.Augmentation`, or any function that returns uint8 images, like
            a transform of torchvision. `tacit.fit` uses it; a DataLoader, `predict` and `evaluate`
            do not.

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
    names: tuple[str, ...] | None = None
    augment: Callable[[Tensor], Tensor] | None = None

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
        if self.names is not None and len(self.names) != len(self.pixels):
            raise ValueError(
                f"Images(names): expected {len(self.pixels)} names, one for each image; received "
                f"{len(self.names)}."
            )
        if self.augment is not None and not callable(self.augment):
            raise TypeError(
                "Images(augment): expected a function of a batch of images, for instance "
                f"tacit.data.Augmentation(); received {self.augment!r}."
            )

    def __len__(self) -> int:
        return len(self.pixels)

    def __repr__(self) -> str:
        return f"Images({len(self)} of {' x '.join(map(str, self.pixels.shape[1:]))})"

    def __getitem__(self, index: Any) -> Any:
        """Return a normalised image and its label; for several indices, a subset as `Images`."""
        if isinstance(index, slice | list) or np.ndim(index):
            names = self.names
            if names is not None:
                rows = index if isinstance(index, slice) else np.asarray(index)
                names = tuple(np.array(names, dtype=object)[rows])
            return replace(
                self, pixels=self.pixels[index], targets=self.targets[index], names=names
            )
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

    def augmented(self, pixels: Tensor) -> Tensor:
        """Return a training batch in float32: augmented, if there is an augmentation; normalised.

        Args:
            pixels: uint8, (B, C, H, W).

        Raises:
            ValueError: If the augmentation doesn't return as many uint8 images.
        """
        if self.augment is None:
            return self.normalised(pixels)
        found: Any = self.augment(pixels)
        if (
            not isinstance(found, Tensor)
            or found.dtype != torch.uint8
            or found.ndim != 4
            or found.shape[:2] != pixels.shape[:2]
        ):
            received = (
                f"{found.dtype} of shape {tuple(found.shape)}"
                if isinstance(found, Tensor)
                else type(found).__name__
            )
            raise ValueError(
                f"Images(augment): expected {len(pixels)} images of {pixels.shape[1]} channels in "
                f"torch.uint8, as given; received {received}. They are normalised afterwards."
            )
        return self.normalised(found)

    @property
    def preprocessing(self) -> dict[str, Any]:
        """Metadata for `tacit.save`, so that users of a model can normalise their inputs alike."""
        return {"scale": 1 / 255, "mean": list(self.mean), "std": list(self.std)}
