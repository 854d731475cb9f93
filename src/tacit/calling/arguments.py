"""Checks of the arguments of `Variational.forward` and `Variational.sample`."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tacit.calling.caller import Weights


def check_generator(generator: torch.Generator | None) -> None:
    """Raise TypeError unless `generator` is a torch.Generator or None."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator: expected a torch.Generator, received {generator!r}.")


def check_exclusive(name: str, **others: object) -> None:
    """Raise ValueError if an argument that excludes `name` is given."""
    for other, value in others.items():
        if value is not None:
            raise ValueError(f"{name} and {other} exclude each other: choose one.")


def leading_shape(weights: Weights, shapes: Mapping[str, torch.Size]) -> tuple[int, ...]:
    """Return the sample shape that precedes the parameters' own shapes in all sampled tensors.

    Args:
        weights: Sampled weights.
        shapes: Names and shapes of the random parameters.

    Raises:
        ValueError: If the weights are not a sample of these parameters.
    """
    if not isinstance(weights, Mapping) or weights.keys() != shapes.keys():
        received = list(weights) if isinstance(weights, Mapping) else type(weights).__name__
        raise ValueError(
            "weights: expected a sample of this model, with the tensors "
            f"{', '.join(shapes)}; received {received}."
        )
    first = next(iter(shapes))
    leading = weights[first].shape[: weights[first].ndim - len(shapes[first])]
    for name, tensor in weights.items():
        expected = (*leading, *shapes[name])
        if tensor.shape != expected:
            raise ValueError(
                f"weights: expected {name!r} of shape {expected}, received {tuple(tensor.shape)}."
            )
    return tuple(leading)
