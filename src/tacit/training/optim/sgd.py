"""SGD for variational models, with deferred updates of wide low-rank factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from tacit._support.private_torch import GroupwiseSGD, can_defer, without_torch_function
from tacit.calling import Variational
from tacit.training.optim.deferred import DeferredFactors
from tacit.training.optim.eligibility import has_wide_layers
from tacit.training.optim.rotated_factors import UnsettledParameter

FUSED = torch.float32, torch.float64  # types that the fused step takes


class SGD(GroupwiseSGD):
    """`torch.optim.SGD` over a model's parameter groups; `deferred=True` speeds up wide factors.

    By default this is torch's SGD, on a CPU the fused one unless `fused` or `foreach` is given.

    With `deferred=True`, as in `tacit.fit`, the iterates are those of torch's SGD with the same
    draws, up to rounding, at a cost that hardly depends on the rank. The noise vectors of
    consecutive draws are orthogonal, and in their basis a step changes one row of the factor;
    updates of the other rows are deferred (see `tacit.training.optim.rotated_factors`). This takes
    as much memory again as the factor and its momentum.

    Deferred updates are settled, that is applied, before any access to the factors or their
    gradients through the model. Settling starts a new basis, which changes the noise drawn
    afterwards; settling in every step is slower than torch's SGD. So clip with `clip_grad_norm`,
    and drop gradients with `optimizer.zero_grad()`. Any use of a factor that was kept from
    earlier, in a list or by another optimizer, is an error until it is settled.

    Where deferral is slower or impossible, the update is torch's: layers with few parameters,
    hooks, other covariances, noise that is not Gaussian, ranks below twice the draws per step,
    activation checkpointing, compiled models, several processes, float16. Gradients of the factors
    come from `backward()`, not from `torch.autograd.grad`.

    Args:
        model: The model; its parametrization scales the learning rates.
        lr: Base learning rate, before the parametrization's scaling.
        momentum: Momentum.
        weight_decay: Weight decay of the means.
        factor_speed: How fast the prior is forgotten; see `Variational.param_groups`.
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
        factor_speed: float | None = None,
        deferred: bool = False,
        **settings: Any,
    ) -> None:
        if not isinstance(model, Variational):
            raise TypeError(
                f"SGD: expected a variational model, received {type(model).__name__}. Pass the "
                "model itself, not its parameters; for a plain network use torch.optim.SGD."
            )
        groups = model.param_groups(lr, "sgd", weight_decay=weight_decay, factor_speed=factor_speed)
        super().__init__(groups, lr=lr, momentum=momentum, **settings)
        self._deferred = DeferredFactors(self)
        deferrable = not settings.get("differentiable") and not settings.get("fused")
        wide = deferred and has_wide_layers(model.distributions.values(), draws=1)
        model.defer_to(self._deferred if wide and deferrable and can_defer() else None)

    def clip_grad_norm(self, max_norm: float) -> float:
        """Clip the total norm of all gradients, and return the norm before clipping.

        Equivalent to `torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)`, which has to
        form the gradients of the factors.

        Args:
            max_norm: Largest total norm.
        """
        self._deferred.settle_if_mixed()
        parameters = [p for group in self.param_groups for p in _settled(group["params"])]
        gradients = [p.grad for p in parameters if p.grad is not None]
        squared = float(torch.nn.utils.get_total_norm(gradients)) ** 2
        norm = math.sqrt(squared + sum(f.squared_norm() for f in self._deferred.factors))
        factor = max_norm / (norm + 1e-6)
        factor = 1.0 if factor > 1.0 else factor  # keeps NaN, as torch does
        gradients += [g for f in self._deferred.factors for g in f.gradients.values()]
        for gradient in gradients:
            gradient.mul_(factor)
        return norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients; setting them to zero instead of None settles deferred updates."""
        if not set_to_none:
            self._deferred.settle()  # with a gradient of zero, momentum still moves a parameter
        for factor in self._deferred.factors:
            factor.gradients.clear()
        with without_torch_function():
            super().zero_grad(set_to_none)

    @property
    def within_block(self) -> bool:
        """Whether the next draw uses the current noise basis."""
        return self._deferred.within_block

    @property
    def defers(self) -> bool:
        """Whether updates of some layer are deferred now: some factors are in a noise basis."""
        return bool(self._deferred.layers)

    @property
    def deferred_steps(self) -> int:
        """Number of steps deferred since the factors were last settled."""
        return self._deferred.steps

    @property
    def last_noise(self) -> dict[str, Tensor]:
        """Noise z of the last deferred pass: layer -> (draws, R); empty once settled or stepped.

        With `Distribution.weights` it gives the sampled weights of that pass.
        """
        return self._deferred.last_noise

    def state_dict(self) -> dict[str, Any]:
        """Return the settled state, in the format of torch's SGD."""
        self._deferred.settle()
        state = super().state_dict()
        for group in state["param_groups"] if self._selects_fused else ():
            group["fused"] = None
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, which may come from torch's SGD."""
        self._deferred.settle()
        super().load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        self._deferred.settle()
        return super().__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if "_deferred" not in self.__dict__:  # a copy doesn't defer: no model draws with it
            self._deferred = DeferredFactors(self)

    def prepare_group(self, group: dict[str, Any], lists: tuple[Any, ...]) -> Any:
        """Take the deferred part of a step; select torch's fused step for the rest if possible."""
        if group is self.param_groups[0]:
            self._deferred.begin_step()
        own = group
        if self._deferred.layers:
            self._deferred.step(group)
            own = {**group, "params": _settled(group["params"])}
        if self._selects_fused:
            group["fused"] = None
        sparse = super().prepare_group(own, lists)
        if self._selects_fused and not sparse and _can_fuse(group["lr"], *lists):
            group["fused"] = True
            torch.autograd.graph.increment_version(lists[0])  # the fused step doesn't
        return sparse

    @property
    def _selects_fused(self) -> bool:
        """Whether the user left the choice of torch's implementation (`fused`, `foreach`) open."""
        given = self.defaults["foreach"], self.defaults["fused"]
        return given == (None, None) and not self.defaults["differentiable"]


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
    both = list(zip(parameters, gradients, strict=True))
    if momenta and momenta[0] is not None:
        both += zip(parameters, cast(Sequence[Tensor], momenta), strict=True)
    return all(
        p.is_cpu and p.dtype in FUSED and p.dtype == other.dtype and _laid_out_alike(p, other)
        for p, other in both
    )


def _laid_out_alike(first: Tensor, second: Tensor) -> bool:
    if first.is_contiguous() and second.is_contiguous():
        return True
    last = torch.channels_last
    return first.is_contiguous(memory_format=last) and second.is_contiguous(memory_format=last)
