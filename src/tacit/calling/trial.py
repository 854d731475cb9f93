"""Trial calls: whether a fast call of a module agrees with a slow reference call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tacit._support.private_torch import Dropout, NormBase
from tacit._support.trees import tensors_in

PROPERTIES = {
    *(Tensor.dtype.__get__, Tensor.device.__get__, Tensor.requires_grad.__get__),  # type: ignore[attr-defined]
}
"""Attributes that modules may read from weights that represent several draws."""


ROUNDING = 2e-5  # relative to the largest entry of an output
TOLERANCE, LOW_TOLERANCE = 1e-3, 0.05  # in single and in half precision


def agree(output: Any, expected: Any, mean: Any = None) -> bool | None:
    """Return whether outputs agree up to rounding; None if all are 0 or some are NaN in both.

    Each tensor is compared relative to its largest entry. Infinities, as of masked logits, agree
    with themselves.

    Args:
        output: Outputs.
        expected: Outputs to compare with.
        mean: Outputs with the mean weights. An error must also be small relative to the noise,
            which a constant in the outputs could hide.
    """
    first, second = tensors_in(output), tensors_in(expected)
    third = second if mean is None else tensors_in(mean)
    if [t.shape for t in first] != [t.shape for t in second] or len(third) != len(second):
        return False
    low = any(torch.is_autocast_enabled(b.device.type) or b.element_size() < 4 for b in second)
    found: list[tuple[float, float, float]] = []  # error, largest entry, noise
    for a, b, c in zip(first, second, third, strict=True):
        a, b, c = a.float(), b.float(), c.float()
        finite = a.isfinite() & b.isfinite()
        if not finite.all():
            if not torch.allclose(a[~finite], b[~finite], equal_nan=True):
                return False
            if a.isnan().any():
                return None
        if finite.any():
            a, b, c = a[finite], b[finite], c.expand_as(finite)[finite]
            noise = torch.inf if mean is None or low else float((b - c).abs().max())
            largest = max(float(a.abs().max()), float(b.abs().max()))
            found.append((float((a - b).abs().max()), largest, noise))
    overall = max((largest for _, largest, _ in found), default=0.0)
    if overall == 0:
        return None
    tolerance = LOW_TOLERANCE if low else TOLERANCE
    return all(
        error <= max(min(tolerance * size, 0.05 * noise), ROUNDING * max(size, 1e-3 * overall))
        for error, size, noise in found
    )


DROPOUTS: set[Callable[..., Any]] = {
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout),
    *(torch.dropout, torch.alpha_dropout, torch.feature_dropout, torch.feature_alpha_dropout),
}
ATTENTIONS: dict[Callable[..., Any], int] = {
    F.scaled_dot_product_attention: 4,
    F.multi_head_attention_forward: 10,
}
"""Operations with an argument `dropout_p` -> its position."""


class WithoutDropout(TorchFunctionMode):
    """A context in which functions of torch drop nothing, in train mode too."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUTS:
            return args[0] if args else kwargs["input"]
        place = ATTENTIONS.get(func)
        if place is not None and len(args) > place:
            args = (*args[:place], 0.0, *args[place + 1 :])
        elif place is not None:
            kwargs = {**kwargs, "dropout_p": 0.0}
        return func(*args, **kwargs)


@contextmanager
def trial(module: nn.Module, evaluation: bool = False) -> Iterator[None]:
    """Disable dropout, batch statistics and gradients; restore modes and buffers on exit.

    A trial costs a few more forward passes, in the first call only.

    Args:
        module: The module to call.
        evaluation: Whether to put all of it in eval mode, for what is random otherwise.
    """
    kinds = (nn.Module,) if evaluation else (Dropout, NormBase)
    changed = [part for part in module.modules() if isinstance(part, kinds) and part.training]
    buffers = [
        (part, name, buffer, buffer.clone())
        for part in module.modules()
        for name, buffer in part.named_buffers(recurse=False)
    ]
    for part in changed:
        part.training = False
    try:
        with torch.no_grad(), torch.random.fork_rng(), WithoutDropout():
            yield
    finally:
        # Some versions of torch would reuse weights cast here, without their gradients.
        torch.clear_autocast_cache()
        for part in changed:
            part.training = True
        with torch.no_grad():
            for part, name, buffer, value in buffers:
                part._buffers[name] = buffer.copy_(value)
