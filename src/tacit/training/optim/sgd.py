"""SGD for variational models, with deferred updates of wide low-rank factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tacit._support.private_torch import GroupwiseSGD, can_defer, without_torch_function
from tacit.calling import Variational
from tacit.training.optim.deferred import DeferredFactors
from tacit.training.optim.eligibility import has_wide_layers
from tacit.training.optim.unsettled import UnsettledParameter


class SGD(GroupwiseSGD):
    """`torch.optim.SGD` over a model's parameter groups; with `deferred=True` faster if wide.

    By default this is torch's SGD, on a CPU the fused one unless `fused` or `foreach` is given.

    With `deferred=True`, as in `tacit.fit`, the iterates are those of torch's SGD with the same
    draws, up to rounding, at a cost that hardly depends on the rank. For a wide layer with
    a low-rank covariance, torch's SGD reads and writes the factor, its gradient and its momentum
    about eight times per step. Here the noise vectors of consecutive draws are orthogonal: a set of
    directions takes turns, and each draw is standard normal. In the basis of these directions a
    step changes one row of the factor, and updates of the other rows are deferred (see
    `tacit.training.optim.rotated_factors`). This takes as much memory again as the factor and its
    momentum.

    Deferred updates are settled, that is applied, before any access to the factors or their
    gradients through the model, by `model.factors`, `model.parameters()`, `state_dict()` and so on.
    So checkpoints can be written after any step. Settling in every step is slower than torch's SGD:
    clip with `clip_grad_norm`, and drop gradients with `optimizer.zero_grad()`.
    Settling starts a new basis, which changes the noise drawn afterwards. Any use of a factor that
    was kept from earlier, in a list or by another optimizer, is an error until it is settled.

    Where deferral is slower or impossible, the update is torch's: layers with few parameters,
    hooks, other covariances, noise that is not Gaussian, ranks below twice the draws per step,
    compiled models, several processes, float16. Gradients of the factors come from `backward()`,
    not from `torch.autograd.grad`.

    Args:
        model: The model; its parametrization scales the learning rates.
        lr: Base learning rate, before the parametrization's scaling.
        momentum: Momentum.
        weight_decay: Weight decay of the means.
        deferred: Whether to defer updates of wide low-rank factors.
        **settings: Further arguments of `torch.optim.SGD`, for instance dampening and nesterov.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(784, 100), rank=10)
        >>> optimizer = tacit.SGD(model, lr=0.01, momentum=0.9)
        >>> model(torch.randn(32, 784)).square().mean().backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        model: Variational,
        lr: float,
        momentum: float = 0.0,
        *,
        weight_decay: float = 0.0,
        deferred: bool = False,
        **settings: Any,
    ) -> None:
        if not isinstance(model, Variational):
            raise TypeError(
                f"SGD: expected a variational model, received {type(model).__name__}. Pass the "
                "model itself, not its parameters; for a plain network use torch.optim.SGD."
            )
        self._deferred: DeferredFactors | None = None
        groups = model.param_groups(lr, "sgd", weight_decay=weight_decay)
        super().__init__(groups, lr=lr, momentum=momentum, **settings)
        deferrable = not settings.get("differentiable") and not settings.get("fused")
        wide = deferred and has_wide_layers(model.distributions.values(), draws=1)
        if wide and deferrable and can_defer():
            self._deferred = DeferredFactors(self)
        model.defer_to(self._deferred)

    def clip_grad_norm(self, max_norm: float) -> float:
        """Clip the total norm of all gradients, and return the norm before clipping.

        Equivalent to `torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)`, which has to
        form the gradients of the factors.

        Args:
            max_norm: Largest total norm.
        """
        if self._deferred is not None:
            self._deferred.settle_if_mixed()
        parameters = [p for group in self.param_groups for p in _settled(group["params"])]
        gradients = [p.grad for p in parameters if p.grad is not None]
        squared = float(torch.nn.utils.get_total_norm(gradients)) ** 2
        squared += self._deferred.squared_norm() if self._deferred is not None else 0.0
        factor = max_norm / (math.sqrt(squared) + 1e-6)
        factor = 1.0 if factor > 1.0 else factor  # keeps NaN, as torch does
        for gradient in gradients:
            gradient.mul_(factor)
        if self._deferred is not None:
            self._deferred.scale_gradients(factor)
        return math.sqrt(squared)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients; setting them to zero instead of None settles deferred updates."""
        if self._deferred is not None and set_to_none:
            self._deferred.forget_gradients()
        elif self._deferred is not None:
            self._deferred.settle()  # with a gradient of zero, momentum still moves a parameter
        with without_torch_function():
            super().zero_grad(set_to_none)

    @property
    def within_block(self) -> bool:
        """Whether the next draw uses the current noise basis."""
        return self._deferred is not None and self._deferred.within_block

    @property
    def defers(self) -> bool:
        """Whether updates of some layer are deferred now: some factors are in a noise basis."""
        return self._deferred is not None and self._deferred.active

    @property
    def deferred_steps(self) -> int:
        """Number of steps deferred since the factors were last settled."""
        return 0 if self._deferred is None else self._deferred.steps

    @property
    def deferred_bytes(self) -> int:
        """Bytes held for deferral: rotated factors, their momentum, buffers; 0 once settled."""
        return 0 if self._deferred is None else self._deferred.nbytes

    @property
    def last_noise(self) -> dict[str, Tensor]:
        """Noise z of the last deferred forward pass: layer -> (draws, R); empty after a step.

        With `Distribution.weights` it gives the sampled weights of that pass.
        """
        return {} if self._deferred is None else self._deferred.last_noise

    def state_dict(self) -> dict[str, Any]:
        """Return the settled state, in the format of torch's SGD."""
        self._settle()
        state = super().state_dict()
        if self._selects_fused:
            for group in state["param_groups"]:
                group["fused"] = None
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, which may come from torch's SGD."""
        self._settle()
        super().load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        return super().__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.setdefault("_deferred", None)  # a copy doesn't defer: no model draws with it
        super().__setstate__(state)  # type: ignore[no-untyped-call]

    def prepare_group(self, group: dict[str, Any], lists: tuple[Any, ...]) -> Any:
        """Take the deferred part of a step; select torch's fused step for the rest if possible."""
        if self._deferred is not None:
            if group is self.param_groups[0]:
                self._deferred.begin_step()
            self._deferred.step(group)
        selects_fused, plain = self._selects_fused, {**group, "params": _settled(group["params"])}
        if selects_fused:
            plain["fused"] = None
        sparse = super().prepare_group(plain, lists)
        if selects_fused:
            group["fused"] = True if not sparse and _can_fuse(group["lr"], *lists) else None
            if group["fused"]:  # the fused step doesn't, and autograd has to detect the change
                torch.autograd.graph.increment_version(lists[0])
        return sparse

    @property
    def _selects_fused(self) -> bool:
        """Whether the user left the choice among torch's implementations of a step open."""
        given = self.defaults["foreach"], self.defaults["fused"]
        return given == (None, None) and not self.defaults["differentiable"]

    def _settle(self) -> None:
        if self._deferred is not None:
            self._deferred.settle()


def _settled(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the parameters without deferred updates, which torch updates."""
    return [p for p in parameters if not isinstance(p, UnsettledParameter)]


def _can_fuse(
    lr: float | Tensor,
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    momenta: Sequence[Tensor | None],
) -> bool:
    """Return whether torch's fused step applies: on a CPU it halves the memory traffic.

    It ignores strides: parameter, gradient and momentum must have the same memory layout.
    """
    if isinstance(lr, Tensor) or len({momentum is None for momentum in momenta}) == 2:
        return False
    columns = [gradients, momenta] if momenta and momenta[0] is not None else [gradients]
    return all(p.is_cpu and p.dtype in (torch.float32, torch.float64) for p in parameters) and all(
        other is not None and other.dtype == parameter.dtype and _same_layout(parameter, other)
        for others in columns
        for parameter, other in zip(parameters, others, strict=True)
    )


def _same_layout(first: Tensor, second: Tensor) -> bool:
    if first.is_contiguous():
        return second.is_contiguous()
    return all(
        tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
        for tensor in (first, second)
    )
