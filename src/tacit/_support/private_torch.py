"""All private torch names that tacit uses, so that a new torch release breaks one file only.

Names with a fallback are looked up at run time. Names without one are imported here, so that a
missing name fails at import.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.batchnorm import _NormBase as NormBase
from torch.nn.modules.conv import _ConvTransposeNd as ConvTranspose
from torch.nn.modules.dropout import _DropoutNd as Dropout
from torch.nn.utils import parametrize
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
    "parametrization_cache",
    "running_backward",
    "saved_tensor_hooks",
    "transforms_active",
    "tree_map",
    "version",
    "without_torch_function",
]

without_torch_function = torch._C.DisableTorchFunctionSubclass
"""A context in which subclasses of Tensor are handled like Tensor."""

transforms_active = torch._C._are_functorch_transforms_active
"""Return whether a torch.func transform (vmap, grad, ...) is active."""

parametrization_cache: Callable[[], int] = partial(getattr, parametrize, "_cache_enabled", 0)
"""Return how many `torch.nn.utils.parametrize.cached()` contexts are active."""

saved_tensor_hooks: Callable[[], Any] = partial(
    getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: object()), False
)
"""Return the innermost hooks on tensors saved for backward, which checkpointing installs.

Without such a query in torch, it is a new object each time, unequal to all earlier ones, so that
callers always search the call stack for checkpointing.
"""

running_backward: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)
"""Return the id of the backward pass running in this thread, or -1."""


def version(tensor: Tensor) -> int:
    """Return the number of in-place changes of a tensor; inference tensors have no such counter."""
    return tensor._version


def accumulates_gradient(node: Any) -> bool:
    """Return whether the current backward pass will execute a node of the graph.

    Raises:
        RuntimeError: Under `torch.autograd.grad`.
    """
    return torch._C._will_engine_execute_node(node)


def has_gradient_hooks(parameter: Tensor) -> bool:
    """Return whether a parameter has hooks that may read or change its gradient."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def can_defer() -> bool:
    """Return whether this torch version has the private names that deferred updates need."""
    names = (torch._C, "_will_engine_execute_node"), (torch.optim.SGD, "_init_group")
    return all(hasattr(owner, name) for owner, name in names)


class GroupwiseSGD(torch.optim.SGD):
    """SGD with a hook for each parameter group within a step, after the closure."""

    def prepare_group(self, group: dict[str, Any], lists: tuple[Any, ...]) -> Any:
        """Fill the lists of parameters, gradients and momentum buffers for the update."""
        return super()._init_group(group, *lists)  # type: ignore[no-untyped-call]

    def _init_group(self, group: dict[str, Any], *lists: Any) -> Any:
        return self.prepare_group(group, lists)
