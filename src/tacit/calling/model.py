"""Any module as a distribution over functions: its parameters are the means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from tacit._support import checks
from tacit._support.names import grow
from tacit._support.trees import concatenate, map_tensors
from tacit.calling.caller import (
    Caller,
    Inputs,
    Weights,
    chunks,
    tied_names,
    tracked_statistics,
)
from tacit.calling.deferral import Deferral
from tacit.calling.draws import batch_size, call_in_groups
from tacit.calling.factor_scaling import FactorScaling
from tacit.calling.summary import summary
from tacit.likelihood import Likelihood
from tacit.scaling import Parametrization, group_parameters
from tacit.weights.distribution import Distribution
from tacit.weights.layers import RandomLayer
from tacit.weights.noise import Noise
from tacit.weights.prior import Prior


class Variational(FactorScaling):
    """A module with random parameters; made by `variational`.

    Attributes:
        module: The wrapped module. Its parameters are the means.
        factors: The covariance factors, under the names of their layers: for a layer `fc` with a
            low-rank covariance `factors.fc.weight` and `factors.fc.bias`.
        layers: The random layers.
        noise: The distribution of z in w = mean + S z.
        parametrization: How factors start and how learning rates scale.
        draws: Number of draws for a batch in train mode.
        likelihood: What is observed given the outputs, or None.
        preprocessing: What has to be done to inputs, as `tacit.save` keeps it, or None.
    """

    deferral: Deferral | None = None

    def __init__(
        self,
        module: nn.Module,
        layers: list[RandomLayer],
        noise: Noise,
        parametrization: Parametrization,
        draws: int,
        likelihood: Likelihood | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self.factors = nn.Module()
        self.layers = tuple(layers)
        self.noise = noise
        self.parametrization = parametrization
        self.draws = draws
        self.likelihood = likelihood
        self.preprocessing: dict[str, Any] | None = None
        self._caller = Caller(tied_names(module))
        for layer in layers:
            owner, home = module.get_submodule(layer.name), grow(self.factors, layer.name)
            for name, factor in layer.factors.items():
                like = owner.get_parameter(factor.tensor or next(iter(layer.shapes)))
                home.register_parameter(name, nn.Parameter(like.new_zeros(factor.shape)))

    @property
    def distributions(self) -> dict[str, Distribution]:
        """The distributions of the random layers, by the layers' labels."""
        if self.deferral is not None:
            self.settle()
        return {layer.label: self._distribution(layer) for layer in self.layers}

    @property
    def _shapes(self) -> dict[str, torch.Size]:
        """The random parameters by their names in the module."""
        return {
            layer.parameters[tensor]: shape
            for layer in self.layers
            for tensor, shape in layer.shapes.items()
        }

    def _distribution(self, layer: RandomLayer) -> Distribution:
        owner = self.module.get_submodule(layer.name)
        home = self.unsettled_factors.get_submodule(layer.name)
        mean: dict[str, Any] = {name: owner._parameters.get(name) for name in layer.shapes}
        if any(value is None or value.shape != layer.shapes[n] for n, value in mean.items()):
            raise RuntimeError(
                f"The layer {layer.name!r} is not the one that was made variational; wrap the "
                "changed module again."
            )
        factors: dict[str, Any] = {name: home._parameters[name] for name in layer.factors}
        return Distribution(mean, factors, layer.covariance, self.noise, layer.shapes)

    def forward(
        self,
        *args: Any,
        samples: int | None = None,
        draws: int | None = None,
        weights: Weights | None = None,
        chunk_size: int | None = None,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call the module with random weights in train mode, with the mean weights in eval mode.

        Nothing is drawn in eval mode unless asked for: the result is that of `model.module`. In
        train mode `model(x)` is a drop-in for the module, with one draw of the weights (or `draws`
        of them, as given to `variational`).

        Args:
            *args: Arguments of the wrapped module.
            samples: Draw M functions and apply each to the whole batch. Every tensor of the output
                gets a leading dimension M. Layers in front of the first random one run once.
            draws: Cut the batch into this many groups, each with its own draw, in one pass. Where
                the loss is a mean over examples and the module treats examples independently, it
                is still an unbiased estimate of the expected loss, with less noise. The batch must
                be the first dimension of every tensor among the arguments and in the output. Batch
                norm in train mode normalises each group by itself, as data-parallel training does.
            weights: Sampled weights from `sample`: the same functions again. Sampled with a shape,
                that shape leads in every tensor of the output.
            chunk_size: With `samples` or `weights`: how many functions to run at a time, to bound
                memory; what is fast if left out. Doesn't change what is drawn.
            generator: Source of randomness of the draws.
            **kwargs: Keyword arguments of the wrapped module.

        Running statistics of batch norm take one step per call, by the mean over samples or groups.
        """
        inputs = (args, kwargs)
        check_generator(generator)
        if weights is not None:
            _check_alone("weights", samples=samples, draws=draws, generator=generator)
            return self._call_weights(weights, chunk_size, inputs)
        if samples is not None:
            _check_alone("samples", draws=draws)
            return self._call_samples(samples, chunk_size, generator, inputs)
        if chunk_size is not None:
            raise ValueError("chunk_size goes with samples or weights.")
        if draws is not None or self.training:
            return self._call_draws(draws, generator, inputs)
        return self.module(*args, **kwargs)

    def sample(
        self, shape: int | tuple[int, ...] = (), *, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Draw weights: the names of the random parameters in the module -> sampled tensors.

        Args:
            shape: Leading shape of the samples; M stands for (M,), () is a single draw.
            generator: Source of randomness.

        Returns:
            For each random parameter a tensor of shape (*shape, *parameter.shape), differentiable
            in means and factors.
        """
        check_generator(generator)
        return self._draw(checks.sample_shape("sample", shape), generator)

    def param_groups(
        self, lr: float, optimizer: str = "sgd", *, weight_decay: float = 0.0
    ) -> list[dict[str, Any]]:
        """Return parameter groups for an optimizer: every parameter once, with its learning rate.

        The model's parametrization says by what the learning rate of a mean is multiplied, the
        covariance how that of its factors follows from it: for a low-rank factor divided by the
        rank under SGD, by its root under Adam.

        Args:
            lr: Learning rate, before the factors of the parametrization.
            optimizer: The name of the optimizer: "sgd", "adam", "adamw" and others.
            weight_decay: Weight decay of the means; factors have none, it would shrink the prior.

        Raises:
            ValueError: If the optimizer's scaling is not known, or a parameter is in no group.
        """
        self.defer_to(None)  # another optimizer will train the factors
        return group_parameters(self.entries(optimizer), self, lr, weight_decay)

    def prior(self) -> Prior:
        """Return a frozen copy of the present distribution, for `tacit.ELBO` and `tacit.GVI`.

        Before training that is the prior. It is kept only by whoever holds the copy: training on
        the expected loss alone needs none.
        """
        return Prior(self.distributions)

    def parameter_counts(self) -> dict[str, int]:
        """Return the number of parameters of the module, of the factors, and in total."""
        module, factors = (
            sum(parameter.numel() for parameter in part.parameters())
            for part in (self.module, self.factors)
        )
        return {"module": module, "factors": factors, "total": module + factors}

    def __repr__(self) -> str:
        return summary(
            self.parameter_counts(), self.module, self.layers, self.likelihood, self._caller
        )

    def defer_to(self, deferral: Deferral | None) -> None:
        """Let an optimizer defer updates of the factors; None to end it."""
        if self.deferral is not None:
            self.deferral.end()
        self.deferral = deferral

    def settle(self) -> None:
        """Apply deferred updates to the factors.

        Every access through the module does so. Call it before you use a reference to a factor
        that you kept from earlier.
        """
        if self.deferral is not None:
            self.deferral.settle()

    @property
    def factors(self) -> nn.Module:
        """The covariance factors, settled."""
        self.settle()
        return self.unsettled_factors

    @factors.setter
    def factors(self, factors: nn.Module) -> None:
        self._modules["factors"] = factors

    @property
    def unsettled_factors(self) -> nn.Module:
        """The covariance factors, with deferred updates perhaps not applied."""
        return cast(nn.Module, self._modules["factors"])

    def __getstate__(self) -> dict[str, Any]:
        self.settle()
        return {**self.__dict__, "deferral": None}  # the optimizer trains the original only

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        """Yield all modules; `parameters()` relies on it, also when part of a larger module."""
        self.settle()
        yield from super().named_modules(*args, **kwargs)

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the direct submodules; `children()` and `apply()` rely on it."""
        self.settle()
        yield from super().named_children()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients. Setting them to None doesn't need the factors settled."""
        if self.deferral is not None and set_to_none:
            self.deferral.forget_gradients()
            for part in self._modules.values():
                if part is not None:
                    part.zero_grad()
        else:
            super().zero_grad(set_to_none)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state, settled."""
        self.settle()
        return super().state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.settle()  # before loading, so that no deferred update is added to loaded values
        super()._load_from_state_dict(*args, **kwargs)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self.settle()
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def _training_weights(
        self, shape: tuple[int, ...], generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        """Draw weights for a training step; an optimizer that defers updates draws its layers."""
        usual = generator is not None or not self.training or torch.compiler.is_compiling()
        if self.deferral is None or usual:
            return self._draw(shape, generator)
        distributions = {layer.label: self._distribution(layer) for layer in self.layers}
        drawn = self.deferral.draw(distributions, shape)
        others = {n: d for n, d in distributions.items() if n not in drawn}
        weights = self._weights(others, _draw_noise(others, shape, None))
        for layer in self.layers:
            for tensor, sampled in drawn.get(layer.label, {}).items():
                weights[layer.parameters[tensor]] = sampled
        return weights

    def _draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> dict[str, Tensor]:
        distributions = self.distributions
        return self._weights(distributions, _draw_noise(distributions, shape, generator))

    def _weights(
        self, distributions: Mapping[str, Distribution], noise: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        return {
            layer.parameters[tensor]: sampled
            for layer in self.layers
            if layer.label in distributions
            for tensor, sampled in distributions[layer.label].weights(noise[layer.label]).items()
        }

    def _call_draws(
        self, draws: int | None, generator: torch.Generator | None, inputs: Inputs
    ) -> Any:
        count = self.draws if draws is None else checks.positive_integer("draws", draws)
        size = 1 if count == 1 else batch_size(self.module, inputs)
        if draws is None and count > 1:
            # The default is a wish: the last batch of an epoch may have fewer examples. Batch norm
            # needs two in a group.
            count = min(count, size // 2 if tracked_statistics(self.module) else size)
        if count <= 1:
            return self._caller.one(self.module, self._training_weights((), generator), inputs)
        if count > size:
            raise ValueError(f"draws: at most one per example, {size}; received {count}.")
        weights = self._training_weights((count,), generator)
        return call_in_groups(self._caller, self.module, weights, inputs, size)

    def _call_samples(
        self,
        samples: int,
        chunk_size: int | None,
        generator: torch.Generator | None,
        inputs: Inputs,
    ) -> Any:
        # All noise first, so that chunks don't change what is drawn; the weights chunk by chunk.
        samples = checks.positive_integer("samples", samples)
        distributions = self.distributions
        noise = _draw_noise(distributions, (samples,), generator)
        if chunk_size is None:
            chunk_size = self._caller.best_chunk(self.module, self._shapes, inputs)
        pieces = (
            (self._weights(distributions, part), inputs) for part in chunks(noise, chunk_size)
        )
        return concatenate(self._caller.many(self.module, pieces))

    def _call_weights(self, weights: Weights, chunk_size: int | None, inputs: Inputs) -> Any:
        shape = _leading_shape(weights, self._shapes)
        if not shape:
            return self._caller.one(self.module, weights, inputs)
        flat = {name: tensor.flatten(0, len(shape) - 1) for name, tensor in weights.items()}
        if chunk_size is None:
            chunk_size = self._caller.best_chunk(self.module, weights, inputs)
        pieces = ((part, inputs) for part in chunks(flat, chunk_size))
        output = concatenate(self._caller.many(self.module, pieces))
        return map_tensors(lambda tensor: tensor.unflatten(0, shape), output)


def _draw_noise(
    distributions: Mapping[str, Distribution],
    shape: tuple[int, ...],
    generator: torch.Generator | None,
) -> dict[str, Tensor]:
    return {
        label: distribution.draw_noise(shape, generator=generator)
        for label, distribution in distributions.items()
    }


def check_generator(generator: torch.Generator | None) -> None:
    """Raise TypeError unless it is a generator or None."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator: expected a torch.Generator, received {generator!r}.")


def _check_alone(name: str, **others: object) -> None:
    for other, value in others.items():
        if value is not None:
            raise ValueError(f"{name} and {other} exclude each other: choose one.")


def _leading_shape(weights: Weights, shapes: Mapping[str, torch.Size]) -> tuple[int, ...]:
    """Return the shape in front of the parameters' own, the same for all sampled tensors.

    Args:
        weights: Sampled tensors.
        shapes: The parameters that are expected, with their shapes.

    Raises:
        ValueError: If these are not samples of these parameters.
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
