"""Handwritten digits that come with scikit-learn: nothing to fetch."""

from __future__ import annotations

import torch
from torch import Tensor


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return training and test set, 1000 and 797 images: pixels in [0, 1] (B, 64) and labels (B,).

    Raises:
        ModuleNotFoundError: If scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "digits: scikit-learn is needed: pip install 'tacit-torch[sklearn]'", name="sklearn"
        ) from None
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1000], order[1000:]
    return (x[train], y[train]), (x[test], y[test])
