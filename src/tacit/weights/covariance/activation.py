"""Forms of noise that act on a layer's activations, so that no weights have to be formed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor


@dataclass(frozen=True)
class Scaled:
    """Each input unit of the layer is multiplied by a factor.

    Args:
        factor: One factor per unit, (*sample, units).
        axis: Dimension of the weight that runs over the units.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(2, 4), {"": tacit.Relative(0.5)})
        >>> z = torch.tensor([[0.0, 0.0], [1.0, -1.0]])  # for two examples
        >>> model.distributions[""].in_activation_space(z)["weight"].factor.tolist()  # 1 + s z
        [[1.0, 1.0], [1.5, 0.5]]
    """

    factor: Tensor
    axis: int


@dataclass(frozen=True)
class Added:
    """The weight gets a term of low rank, B Z A^T: two thin products between which Z acts.

    Args:
        inputs: A in the shape of the weight, rank first: (R_in, *shape[1:]).
        outputs: B, one row per component: (R_out, shape[0]).
        z: The diagonal of Z, (*sample, R), or Z itself, (*sample, R_out, R_in).
        diagonal: Whether Z is diagonal.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(8, 4), {"": tacit.RankOneSum(3)})
        >>> z = torch.randn(6, 3)  # for six examples
        >>> noise = model.distributions[""].in_activation_space(z)["weight"]
        >>> noise.inputs.shape, noise.outputs.shape, noise.z.shape
        (torch.Size([3, 8]), torch.Size([3, 4]), torch.Size([6, 3]))
    """

    inputs: Tensor
    outputs: Tensor
    z: Tensor
    diagonal: bool


ActivationNoise: TypeAlias = Scaled | Added
"""Noise of one tensor of a layer."""
