"""Every private name of torch that tacit uses, in one place, so that a new torch breaks one file.

Where a name may be missing, it is looked up with a way out; what has none is imported plainly and
fails at import, in every test at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.batchnorm import _NormBase as NormBase
from torch.nn.modules.conv import _ConvTransposeNd as ConvTranspose
from torch.nn.modules.dropout import _DropoutNd as Dropout
from torch.utils._pytree import tree_map

__all__ = [
    "BatchNorm",
    "ConvTranspose",
    "Dropout",
    "GroupwiseSGD",
    "NormBase",
    "accumulates_gradient",
    "can_defer",
    "has_gradient_hooks",
    "memory_users",
    "transforms_active",
    "tree_map",
    "version",
]

transforms_active = torch._C._are_functorch_transforms_active
"""Return whether the call is inside vmap, grad or another transform of torch.func."""


def version(tensor: Tensor) -> int:
    """Return how many times a tensor was changed in place; not for inference tensors."""
    return tensor._version


def memory_users(tensor: Tensor) -> int:
    """Return how many tensors share this one's memory, itself among them."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)) - 1


def accumulates_gradient(node: Any) -> bool:
    """Return whether the running backward pass executes a node of the graph.

    Raises:
        RuntimeError: Under `torch.autograd.grad`.
    """
    return torch._C._will_engine_execute_node(node)


def has_gradient_hooks(parameter: Tensor) -> bool:
    """Return whether hooks may see or change the gradient of a parameter."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def can_defer() -> bool:
    """Return whether this torch has all that deferred updates need; else use torch's SGD."""
    names = ("_storage_Use_Count", "_will_engine_execute_node")
    return all(hasattr(torch._C, name) for name in names) and hasattr(
        torch.optim.SGD, "_init_group"
    )


class GroupwiseSGD(torch.optim.SGD):
    """SGD that lets a subclass act on each parameter group within a step, after the closure."""

    def prepare_group(self, group: dict[str, Any], lists: tuple[Any, ...]) -> Any:
        """Fill the lists of parameters, gradients and momenta that torch takes a step with."""
        return super()._init_group(group, *lists)  # type: ignore[no-untyped-call]

    def _init_group(self, group: dict[str, Any], *lists: Any) -> Any:
        return self.prepare_group(group, lists)
