"""Layers as matrices with an input and an output side, for structures with a factor for each."""

from __future__ import annotations

from tacit.weights.covariance.base import Shapes


def matrix_size(structure: str, shapes: Shapes) -> tuple[int, int]:
    """Return the rows and columns of a layer's tensors as one matrix, the first dimension first.

    Raises:
        ValueError: If the tensors have different first dimensions.
    """
    first_dimensions = {shape[0] if shape else 1 for shape in shapes.values()}
    if len(first_dimensions) > 1:
        listed = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise ValueError(
            f"{structure}: expected tensors with the same first dimension, received {listed}. "
            "Use LowRank, or name only one tensor of the layer."
        )
    out = first_dimensions.pop()
    return out, sum(shape.numel() for shape in shapes.values()) // out


def output_name(shapes: Shapes) -> str:
    """Return the name of the factor of the output side."""
    return f"{next(iter(shapes))}_output"
