"""What every likelihood is: a loss and a prediction, from the outputs of a network."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from tacit.predictive import Predictive


class Likelihood(nn.Module, ABC):
    """The distribution of a target given the outputs of a network.

    Outputs have the batch first, (B, ...), or the samples in front of it, (M, B, ...): which it is
    follows from the shape of the targets. A module, because it may have parameters to learn (the
    scale of the noise) or to calibrate (a temperature).
    """

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean negative log-likelihood over examples and samples.

        Args:
            outputs: (B, ...) or (M, B, ...).
            targets: As the likelihood says, B of them.

        Raises:
            ValueError: If shapes don't fit, or targets are not possible.
        """

    @abstractmethod
    def predictive(self, outputs: Tensor) -> Predictive:
        """Return the prediction from the outputs of M functions, (M, B, ...)."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        return self.loss(outputs, targets)


def drop_last(targets: Tensor, outputs: Tensor, event: int) -> Tensor:
    """Return targets of shape (B, 1) as (B,) where the outputs say that one number is expected.

    Args:
        targets: The targets.
        outputs: The outputs, with or without a sample dimension.
        event: Dimensions of an output that the target doesn't have: 1 where outputs are logits of
            classes.
    """
    lead = outputs.shape[: outputs.ndim - event]
    plain = targets.shape in (lead, lead[1:])
    if not plain and targets.ndim > 1 and targets.shape[-1] == 1:
        return targets[..., 0]
    return targets


def check_shapes(name: str, outputs: Tensor, targets: Tensor, event: int) -> None:
    """Raise ValueError unless outputs are (*targets.shape, *event) with or without samples."""
    lead = outputs.shape[: outputs.ndim - event]
    if targets.shape not in (lead, lead[1:]):
        raise ValueError(
            f"{name}: outputs of shape {tuple(outputs.shape)} and targets of shape "
            f"{tuple(targets.shape)} don't fit. Expected targets of shape {tuple(lead)}, or "
            f"{tuple(lead[1:])} if the first dimension of the outputs are samples."
        )
