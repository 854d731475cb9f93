"""Networks made by a function of the width."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


def made_net(make_net: Callable[[int], nn.Module], width: int) -> nn.Module:
    """Return the network of a width.

    Raises:
        TypeError: If `make_net` is not a function or does not return a module.
    """
    if isinstance(make_net, nn.Module) or not callable(make_net):
        raise TypeError(
            "make_net: expected a function from a width to a network, received "
            f"{type(make_net).__name__}."
        )
    net = make_net(width)
    if not isinstance(net, nn.Module):
        raise TypeError(
            f"make_net: expected an nn.Module for width {width}, received {type(net).__name__}."
        )
    return net


def check_widths_differ(make_net: Callable[[int], nn.Module], small: int, large: int) -> None:
    """Raise ValueError if networks of two widths have the same number of parameters."""
    counts = [sum(p.numel() for p in made_net(make_net, w).parameters()) for w in (small, large)]
    if counts[0] == counts[1]:
        raise ValueError(
            f"make_net: networks of width {small} and {large} have the same number of parameters, "
            f"{counts[0]}; does it use the width, and make a new network each time?"
        )
