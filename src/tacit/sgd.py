"""SGD for variational models: torch's, at the cost of a plain network also for wide layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from tacit.lazy import LazyFactors
from tacit.variational import Variational


class SGD(torch.optim.SGD):
    """`torch.optim.SGD` over the parameter groups of a variational model, faster where ranks are.

    The iterates are those of torch's SGD, up to rounding. In a wide layer with a low-rank
    covariance torch's reads and writes the factor and its momentum some eight times in a step; here
    they are touched once in several steps. Whoever looks at factors in between, by `model.factors`,
    `model.parameters()`, `state_dict()` and so on, finds them up to date, so that checkpoints can
    be made after any step; it then costs as much as torch's.

    Where that doesn't pay or can't be, this is torch's SGD: layers with few parameters or another
    covariance, more draws in a step than about half the rank, compiled models, several processes,
    half precision. Gradients of the factors come by `backward()`, not by `torch.autograd.grad`.

    Args:
        model: The model; its parametrization sets the learning rates.
        lr: Learning rate, before the factors of the parametrization.
        momentum: Momentum.
        weight_decay: Of the means.
        **settings: Further arguments of `torch.optim.SGD`: dampening, nesterov and others.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(784, 100), rank=10)
        >>> optimizer = tacit.SGD(model, lr=0.01, momentum=0.9)
        >>> model(torch.randn(32, 784)).square().mean().backward()
        >>> optimizer.step()
    """

    _lazy: LazyFactors | None = None

    def __init__(
        self,
        model: Variational,
        lr: float,
        momentum: float = 0.0,
        *,
        weight_decay: float = 0.0,
        **settings: Any,
    ) -> None:
        if not isinstance(model, Variational):
            raise TypeError(
                f"SGD: expected a variational model, received {type(model).__name__}; for a plain "
                "network use torch.optim.SGD."
            )
        groups = model.param_groups(lr, "sgd", weight_decay=weight_decay)
        super().__init__(groups, lr=lr, momentum=momentum, **settings)
        if not settings.get("differentiable") and not settings.get("fused"):
            self._lazy = LazyFactors(self)
            model.follow(self._lazy)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step.

        Args:
            closure: Computes the loss and its gradients, as for torch's optimizers.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._lazy is not None:
            self._lazy.step()
        super().step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        if self._lazy is not None:
            self._lazy.forget_gradients()
        super().zero_grad(set_to_none)

    def clip_grad_norm(self, max_norm: float) -> float:
        """Scale all gradients such that their norm together is at most this; return it as it was.

        What `torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)` does too, which has to
        form the gradients of the factors for it.
        """
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        known = [grad for grad in grads if grad is not None]
        squared = float(torch.nn.utils.get_total_norm(known)) ** 2
        squared += self._lazy.squared_norm() if self._lazy is not None else 0.0
        factor = min(1.0, max_norm / (math.sqrt(squared) + 1e-6))
        torch._foreach_mul_(known, factor)
        if self._lazy is not None:
            self._lazy.scale_gradients(factor)
        return math.sqrt(squared)

    @property
    def behind(self) -> bool:
        """Whether factors are to be brought up to date yet."""
        return self._lazy is not None and self._lazy.behind

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as that of torch's SGD."""
        if self._lazy is not None:
            self._lazy.settle()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, also of torch's SGD."""
        if self._lazy is not None:
            self._lazy.settle()
        super().load_state_dict(state_dict)
