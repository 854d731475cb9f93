"""SGD for variational models: torch's, at the cost of a plain network also for wide layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tacit._support.private_torch import GroupwiseSGD, can_defer
from tacit.calling import Variational
from tacit.training.optim.deferred import DeferredFactors
from tacit.training.optim.eligibility import has_wide_layers


class SGD(GroupwiseSGD):
    """`torch.optim.SGD` over the parameter groups of a variational model, faster where ranks are.

    The iterates are those of torch's SGD with the same draws, up to rounding. In a wide layer with
    a low-rank covariance torch's reads and writes the factor and its momentum some eight times in a
    step. Here the noise of consecutive draws has orthogonal directions, which take turns; each draw
    is standard normal. In the basis of these directions a step touches one row of the factor (see
    `tacit.directions`). That takes as much memory again as the factor and its momentum.

    Whoever looks at factors in between, by `model.factors`, `model.parameters()`, `state_dict()`,
    `optimizer.param_groups` and so on, finds them and their gradients up to date, so that
    checkpoints can be made after any step. To look in every step costs more than torch's SGD; clip
    by `clip_grad_norm` instead. After a look the noise that follows is another. Only references
    from before are not noticed, and `optimizer.state`: take `model.parameters()` anew, or call
    `model.settle()`. Gradients that are set to zero instead of None count as a look, too.

    Where that doesn't pay or can't be, this is torch's SGD: layers with few parameters, hooks,
    another covariance or another noise, ranks below twice the draws in a step, compiled models,
    several processes, float16. On a CPU it is torch's fused one, unless `fused` or `foreach` say
    otherwise. Gradients of the factors come by `backward()`, not by `torch.autograd.grad`.

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
                f"SGD: expected a variational model, received {type(model).__name__}. Pass the "
                "model itself, not its parameters; for a plain network use torch.optim.SGD."
            )
        self._deferred: DeferredFactors | None = None
        groups = model.param_groups(lr, "sgd", weight_decay=weight_decay)
        super().__init__(groups, lr=lr, momentum=momentum, **settings)
        usual = not settings.get("differentiable") and not settings.get("fused")
        if usual and can_defer() and has_wide_layers(model.distributions.values()):
            self._deferred = DeferredFactors(self)
            model.defer_to(self._deferred)
            self._watch_groups()

    def clip_grad_norm(self, max_norm: float) -> float:
        """Scale all gradients such that their norm together is at most this; return it as it was.

        What `torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)` does too, which has to
        form the gradients of the factors for it.
        """
        if self._deferred is not None:
            self._deferred.settle_if_mixed()
        parameters = [p for group in map(dict, self.param_groups) for p in group["params"]]
        known = [p.grad for p in parameters if p.grad is not None]
        squared = float(torch.nn.utils.get_total_norm(known)) ** 2
        squared += self._deferred.squared_norm() if self._deferred is not None else 0.0
        factor = max_norm / (math.sqrt(squared) + 1e-6)
        factor = 1.0 if factor > 1.0 else factor  # NaN stays, as in torch's
        for gradient in known:
            gradient.mul_(factor)
        if self._deferred is not None:
            self._deferred.scale_gradients(factor)
        return math.sqrt(squared)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        if self._deferred is not None and set_to_none:
            self._deferred.forget_gradients()
        elif self._deferred is not None:
            self._deferred.settle()  # zeros are gradients too: momentum goes on with them
        for group in map(dict, self.param_groups):
            for parameter in group["params"]:
                if set_to_none or parameter.grad is None:
                    parameter.grad = None
                elif parameter.grad.grad_fn is not None:
                    parameter.grad.detach_().zero_()
                else:
                    parameter.grad.requires_grad_(False).zero_()

    @property
    def within_block(self) -> bool:
        """Whether the next step belongs to those along the same directions."""
        return self._deferred is not None and self._deferred.within_block

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Train more parameters."""
        super().add_param_group(param_group)
        self._watch_groups()

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as that of torch's SGD."""
        self._settle()
        state = super().state_dict()
        if self._chooses:
            for group in state["param_groups"]:
                group["fused"] = None
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, also of torch's SGD."""
        self._settle()
        super().load_state_dict(state_dict)
        self._watch_groups()

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        return super().__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.setdefault("_deferred", None)  # what a copy trains belongs to no model
        super().__setstate__(state)  # type: ignore[no-untyped-call]

    def prepare_group(self, group: dict[str, Any], lists: tuple[Any, ...]) -> Any:
        """Take the deferred part of a step, and choose the fused one for the rest if possible."""
        if self._deferred is not None:
            if group is self.param_groups[0]:
                self._deferred.begin_step()
            self._deferred.step(group)
        chooses, plain = self._chooses, dict(group)
        if chooses:
            plain["fused"] = None
        sparse = super().prepare_group(plain, lists)
        if chooses:
            group["fused"] = True if not sparse and _can_fuse(group["lr"], *lists) else None
            if group["fused"]:  # so that autograd notices; the fused step doesn't do it
                torch.autograd.graph.increment_version(lists[0])
        return sparse

    @property
    def _chooses(self) -> bool:
        """Whether it is left to us which of torch's ways to take a step."""
        ways = self.defaults["foreach"], self.defaults["fused"]
        return ways == (None, None) and not self.defaults["differentiable"]

    def _settle(self) -> None:
        if self._deferred is not None:
            self._deferred.settle()

    def _watch_groups(self) -> None:
        if self._deferred is not None:
            self.param_groups[:] = [
                group if isinstance(group, _Group) else _Group(group, self._deferred)
                for group in self.param_groups
            ]


def _can_fuse(
    lr: float | Tensor,
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    momenta: Sequence[Tensor | None],
) -> bool:
    """Return whether torch's fused step can be taken: on a CPU it reads and writes half as much.

    It walks over memory as it lies: parameter, gradient and momentum have to lie alike.
    """
    if isinstance(lr, Tensor) or len({momentum is None for momentum in momenta}) == 2:
        return False
    columns = [gradients, momenta] if momenta and momenta[0] is not None else [gradients]
    return all(p.is_cpu and p.dtype in (torch.float32, torch.float64) for p in parameters) and all(
        other is not None and other.dtype == parameter.dtype and _lie_alike(parameter, other)
        for others in columns
        for parameter, other in zip(parameters, others, strict=True)
    )


def _lie_alike(first: Tensor, second: Tensor) -> bool:
    if first.is_contiguous():
        return second.is_contiguous()
    return all(
        tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
        for tensor in (first, second)
    )


class _Group(dict[str, Any]):
    """A parameter group; whoever takes its parameters finds them and their gradients up to date."""

    def __init__(self, group: dict[str, Any], deferred: DeferredFactors) -> None:
        super().__init__(group)
        self._deferred = deferred

    def __getitem__(self, name: str) -> Any:
        if name == "params":
            self._deferred.settle()
        return super().__getitem__(name)

    def __reduce__(self) -> Any:
        self._deferred.settle()
        return dict, (dict(self),)
