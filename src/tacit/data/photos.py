"""Patches of the two photographs that ship with scikit-learn: foreign inputs for digits."""

from __future__ import annotations

import torch
from torch import Tensor


def photo_patches(count: int, size: int = 8) -> Tensor:
    """Return grey patches of photographs with values in [0, 1], (count, size * size).

    The photographs are first downsampled by a factor of 8, so that patches aren't nearly constant.

    Args:
        count: Number of patches.
        size: Height and width of a patch.

    Raises:
        ModuleNotFoundError: If scikit-learn or Pillow is not installed.
        ValueError: If there are fewer patches.

    Examples:
        >>> import tacit
        >>> tacit.data.photo_patches(500).shape  # inputs that a model of the digits should doubt
        torch.Size([500, 64])
    """
    try:
        import PIL  # noqa: F401 - scikit-learn reads the photographs with it
        from sklearn.datasets import load_sample_images
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"photo_patches: {error.name} is needed: pip install 'tacit-torch[sklearn,data]'",
            name=error.name,
        ) from None
    patches = []
    for image in load_sample_images().images:
        grey = torch.from_numpy(image.copy()).float().mean(-1)[None, None] / 255
        small = torch.nn.functional.avg_pool2d(grey, 8)
        patches.append(torch.nn.functional.unfold(small, size, stride=2)[0].T)
    everything = torch.cat(patches)
    if count > len(everything):
        raise ValueError(f"photo_patches: expected at most {len(everything)}, received {count}.")
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(0))
    return everything[order[:count]]
