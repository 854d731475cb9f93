"""Predictors shared by several methods: one network, several, or a variational model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tacit.calling import Variational
from tacit.inference.functions import Predictor, drawn_functions, single_function, tensor_of
from tacit.inference.headers import build_model, describe_model, describe_network
from tacit.likelihood import Likelihood


class Plain(Predictor):
    """Predictor: a single network.

    Args:
        net: The network.
        likelihood: Likelihood of its outputs.

    Examples:
        >>> import tacit, torch
        >>> predictor = Plain(torch.nn.Linear(3, 2), tacit.Categorical())
        >>> tacit.predict(predictor, torch.randn(5, 3))
        ClassPredictive(5 examples, 2 classes, 1 functions)
    """

    def __init__(self, net: nn.Module, likelihood: Likelihood) -> None:
        super().__init__(likelihood)
        self.net = net

    def functions(
        self, *, samples: int, chunk_size: int | None, generator: torch.Generator | None
    ) -> Callable[..., Tensor]:
        return single_function(self.net)

    def mean_network(self) -> nn.Module:
        return self.net

    def describe(self) -> dict[str, Any]:
        return {"network": describe_network(self.net)}

    @classmethod
    def build(
        cls, given: Mapping[str, Any], make_net: Callable[[], nn.Module], likelihood: Likelihood
    ) -> Plain:
        return cls(make_net(), likelihood)


class Members(Predictor):
    """Predictor: one function per network of an ensemble.

    Args:
        nets: The networks.
        likelihood: Likelihood of their outputs.

    Examples:
        >>> import tacit, torch
        >>> nets = [torch.nn.Linear(3, 2) for _ in range(4)]
        >>> tacit.predict(Members(nets, tacit.Categorical()), torch.randn(5, 3))
        ClassPredictive(5 examples, 2 classes, 4 functions)
    """

    def __init__(self, nets: Sequence[nn.Module], likelihood: Likelihood) -> None:
        super().__init__(likelihood)
        self.nets = nn.ModuleList(nets)

    def functions(
        self, *, samples: int, chunk_size: int | None, generator: torch.Generator | None
    ) -> Callable[..., Tensor]:
        def call(*inputs: Any, **keywords: Any) -> Tensor:
            return torch.stack([tensor_of(net(*inputs, **keywords)) for net in self.nets])

        return call

    def describe(self) -> dict[str, Any]:
        return {"network": describe_network(self.nets[0]), "members": len(self.nets)}

    @classmethod
    def build(
        cls, given: Mapping[str, Any], make_net: Callable[[], nn.Module], likelihood: Likelihood
    ) -> Members:
        return cls([make_net() for _ in range(given["members"])], likelihood)


class Sampled(Predictor):
    """Predictor: functions drawn from a variational model on each call of `functions`.

    Args:
        model: The model; the predictor shares its likelihood.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(3, 2), likelihood=tacit.Categorical(), rank=1)
        >>> tacit.predict(Sampled(model), torch.randn(5, 3), samples=8)
        ClassPredictive(5 examples, 2 classes, 8 functions)
    """

    def __init__(self, model: Variational) -> None:
        assert model.likelihood is not None
        super().__init__(model.likelihood)
        self.model = model

    def functions(
        self, *, samples: int, chunk_size: int | None, generator: torch.Generator | None
    ) -> Callable[..., Tensor]:
        return drawn_functions(self.model, samples, chunk_size, generator)

    def mean_network(self) -> nn.Module:
        return self.model

    def describe(self) -> dict[str, Any]:
        return {"network": describe_network(self.model.module), "model": describe_model(self.model)}

    @classmethod
    def build(
        cls, given: Mapping[str, Any], make_net: Callable[[], nn.Module], likelihood: Likelihood
    ) -> Sampled:
        return cls(build_model(given["model"], make_net(), "the file"))
