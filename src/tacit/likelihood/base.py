"""Base class of likelihoods: a loss and a predictive distribution from network outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tacit.likelihood.predictive import Predictive, ProbabilityMap


class Likelihood(nn.Module, ABC):
    """The distribution of a target given the outputs of a network.

    Outputs are (B, ...), or (M, B, ...) with a leading sample dimension; the shape of the targets
    decides which. A likelihood is a module, because it may have parameters to learn (noise scale)
    or to calibrate (temperature).

    Examples:
        >>> import tacit, torch
        >>> likelihood = tacit.Gaussian(scale=1.0, learn=False)
        >>> outputs, targets = torch.zeros(8, 5), torch.ones(5)  # of 8 functions for 5 examples
        >>> round(likelihood.loss(outputs, targets).item(), 4)  # 1/2 + log(2 pi) / 2
        1.4189
        >>> likelihood.predictive(outputs)
        RegressionPredictive(5 examples, 8 functions)
    """

    knots: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("knots", None)

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor, *, samples: bool | None = None) -> Tensor:
        """Return the mean negative log-likelihood over examples and samples.

        Args:
            outputs: (B, ...) or (M, B, ...).
            targets: B targets, in the form that the likelihood expects.
            samples: Whether the first dimension of the outputs is the sample dimension; inferred
                from the shapes by default.

        Raises:
            ValueError: If the shapes don't match, or targets are out of range.
        """

    @abstractmethod
    def predictive(self, outputs: Tensor) -> Predictive:
        """Return the predictive distribution from the outputs of M functions, (M, B, ...)."""

    def training_loss(
        self, outputs: Tensor, targets: Tensor, *, samples: bool | None = None
    ) -> Tensor:
        """Return the loss that `tacit.fit` minimises in place of the expected loss.

        It is the loss itself, unless another has the same or better minimisers and gradients that
        are easier to follow.
        """
        return self.loss(outputs, targets, samples=samples)

    @property
    def recalibration(self) -> ProbabilityMap | None:
        """Map of predicted probabilities, set by `tacit.calibrate(method="isotonic")`."""
        return None if self.knots is None else ProbabilityMap(self.knots)

    def set_recalibration(self, recalibration: ProbabilityMap | None) -> None:
        """Set the map of predicted probabilities, or remove it."""
        self.knots = None if recalibration is None else recalibration.knots.double()

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        # Knots may be close to each other: they keep their precision in `model.half()`.
        kept = self.knots
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if kept is not None and self.knots is not None:
            self.knots = kept.to(self.knots.device)
        return self

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        # Only calibration determines the number of knots: adopt the shape of the state.
        if any(name.startswith(prefix) for name in state):
            given = state.get(f"{prefix}knots")
            self.knots = None if given is None else torch.empty_like(given)
        super()._load_from_state_dict(state, prefix, *args)

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        return self.loss(outputs, targets)


def aligned(
    name: str, outputs: Tensor, targets: Tensor, *, event: int, samples: bool | None
) -> tuple[Tensor, Tensor]:
    """Return outputs and targets whose shapes match up to sample and event dimensions.

    A trailing dimension of 1 that only one of them has is dropped: scalar targets may be (B,) or
    (B, 1). Nothing is broadcast except over samples. For the `loss` of a likelihood of your own.

    Args:
        name: Name of the likelihood, for the error message.
        outputs: (B, ...) or (M, B, ...).
        targets: (B, ...).
        event: Number of trailing output dimensions that targets lack: 1 for class logits.
        samples: Whether the outputs have a sample dimension; None infers it from the shapes.

    Raises:
        ValueError: If the shapes don't match.

    Examples:
        >>> import torch
        >>> outputs, column = torch.zeros(8, 5, 3), torch.zeros(5, 1)  # 8 functions, 3 classes
        >>> outputs, targets = aligned("counts", outputs, column, event=1, samples=None)
        >>> outputs.shape, targets.shape
        (torch.Size([8, 5, 3]), torch.Size([5]))
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
    raise ValueError(
        f"{name}: outputs of shape {tuple(outputs.shape)} and targets of shape "
        f"{tuple(targets.shape)} don't fit. Expected one target for each output"
        + (" (of each sample)." if samples else ".")
    )
