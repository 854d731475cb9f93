"""Checks of the arguments of `Variational.forward` and `Variational.sample`."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from tacit._support import checks
from tacit._support.private_torch import running_backward, saved_tensor_hooks
from tacit.calling.usage import inside_checkpoint

Draws: TypeAlias = int | Literal["each"]
"""Draws of the weights per batch: a number of groups, or "each" for one draw per example."""


def number_of_draws(name: str, draws: object) -> Draws:
    """Return `draws` if it is a positive integer or "each"."""
    if isinstance(draws, str) and draws != "each":
        raise TypeError(f'{name}: expected an integer of at least 1 or "each", received {draws!r}.')
    return "each" if draws == "each" else checks.positive_integer(name, draws)


def check_generator(generator: torch.Generator | None) -> None:
    """Raise unless `generator` is None or a torch.Generator outside of activation checkpointing."""
    if generator is None:
        return
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"generator: expected a torch.Generator, received {generator!r}.")
    plain = saved_tensor_hooks() is None and torch.is_grad_enabled() and running_backward() == -1
    if not (torch.compiler.is_compiling() or plain) and inside_checkpoint():
        raise ValueError(
            "generator: activation checkpointing recomputes with different weights, because it "
            "restores only the state of PyTorch's global generator. Omit `generator`, and "
            "call torch.manual_seed."
        )


def check_exclusive(name: str, **others: object) -> None:
    """Raise ValueError if an argument that excludes `name` is given."""
    for other, value in others.items():
        if value is not None:
            raise ValueError(f"{name} and {other} exclude each other: choose one.")
