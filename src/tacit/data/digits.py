"""Handwritten digits that come with scikit-learn: nothing to fetch."""

from __future__ import annotations

import torch

from tacit.data.splits import Splits


def digits() -> Splits:
    """Return 900 images to train, 100 to validate, 797 to test: pixels in [0, 1] (B, 64), labels.

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
    parts = order.split([900, 100, 797])
    return Splits(*((x[rows], y[rows]) for rows in parts))
