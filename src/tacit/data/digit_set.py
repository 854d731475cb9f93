"""The handwritten digits that ship with scikit-learn, which need no download."""

from __future__ import annotations

import torch

from tacit.data.splits import Splits


def digits() -> Splits:
    """Return scikit-learn's digits: 900 training, 100 validation and 797 test images.

    Each part is a pair of pixels in [0, 1], (B, 64), and labels, (B,).

    Raises:
        ModuleNotFoundError: If scikit-learn is not installed.

    Examples:
        >>> import tacit
        >>> train, validation, test = tacit.data.digits()
        >>> test[0].shape, test[1].shape
        (torch.Size([797, 64]), torch.Size([797]))
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
