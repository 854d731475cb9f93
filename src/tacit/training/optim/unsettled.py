"""Parameters that can't be used while their updates are deferred."""

from __future__ import annotations

from typing import Any

from torch import nn


class UnsettledParameter(nn.Parameter):
    """The class of a factor while `tacit.SGD` defers its updates: every use raises an error.

    So a list of parameters kept from earlier is never silently out of date: reading, changing,
    averaging or clipping an entry fails, and so does the step of another optimizer. Access through
    the model settles the factor first, which makes it an `nn.Parameter` again.
    """

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(
            "tacit.SGD(deferred=True) has not applied all updates to this factor. Take it from the "
            "model again, by model.parameters(), or call model.settle() first. Drop gradients by "
            "optimizer.zero_grad() and clip by optimizer.clip_grad_norm(). For other optimizers "
            "call model.defer_to(None), or leave out deferred=True."
        )
