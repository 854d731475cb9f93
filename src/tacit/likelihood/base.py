"""What every likelihood is: a loss and a prediction, from the outputs of a network."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from tacit.likelihood.predictive import Predictive


class Likelihood(nn.Module, ABC):
    """The distribution of a target given the outputs of a network.

    Outputs have the batch first, (B, ...), or the samples in front of it, (M, B, ...): which it is
    follows from the shape of the targets. A module, because it may have parameters to learn (the
    scale of the noise) or to calibrate (a temperature).
    """

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor, *, samples: bool | None = None) -> Tensor:
        """Return the mean negative log-likelihood over examples and samples.

        Args:
            outputs: (B, ...) or (M, B, ...).
            targets: As the likelihood says, B of them.
            samples: Whether the first dimension of the outputs are samples; if left out, it is
                concluded from the shapes.

        Raises:
            ValueError: If shapes don't fit, or targets are not possible.
        """

    @abstractmethod
    def predictive(self, outputs: Tensor) -> Predictive:
        """Return the prediction from the outputs of M functions, (M, B, ...)."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        return self.loss(outputs, targets)


def aligned(
    name: str, outputs: Tensor, targets: Tensor, *, event: int, samples: bool | None
) -> tuple[Tensor, Tensor]:
    """Return outputs and targets such that targets.shape is the end of the outputs' leading shape.

    A last dimension of 1 that only one of them has is dropped: one number per example may be (B,)
    or (B, 1). Nothing else is made to fit, and nothing is broadcast but over samples.

    Args:
        name: Of the likelihood, for the error message.
        outputs: (B, ...) or (M, B, ...).
        targets: B of them.
        event: Dimensions of an output that a target doesn't have: 1 for logits of classes.
        samples: Whether the outputs have a sample dimension; None: from the shapes.

    Raises:
        ValueError: If they don't fit.
    """
    choices = [(outputs, targets)]
    if targets.ndim > 1 and targets.shape[-1] == 1:
        choices.append((outputs, targets[..., 0]))
    if not event and outputs.ndim > 1 and outputs.shape[-1] == 1:
        choices.append((outputs[..., 0], targets))
    for out, target in choices:
        lead = out.shape[: out.ndim - event]
        plain, sampled = target.shape == lead, target.shape == lead[1:]
        if target.ndim and ((plain and samples is not True) or (sampled and samples is not False)):
            return out, target
    one_hot = event == 1 and targets.ndim > 1 and targets.shape[-1] == outputs.shape[-1] > 1
    raise ValueError(
        f"{name}: outputs of shape {tuple(outputs.shape)} and targets of shape "
        f"{tuple(targets.shape)} don't fit. Expected one target for each output"
        + (" (of each sample)." if samples else ".")
        + (" For one-hot targets pass targets.argmax(-1)." if one_hot else "")
    )
