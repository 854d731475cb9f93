"""Any module as a distribution over functions: its parameters are the means."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from tacit import _checks
from tacit._names import descend, grow, join
from tacit._tree import map_tensors
from tacit.distribution import Distribution, Prior, own_precision
from tacit.functional import (
    Caller,
    Inputs,
    Weights,
    best_chunk,
    chunks,
    concatenate,
    leading_shape,
    tied_names,
    tracked_statistics,
)
from tacit.groups import batch_size, call_in_groups
from tacit.likelihood import Likelihood
from tacit.noise import Gaussian, Noise
from tacit.parametrization import Entry, Parametrization, Standard, group, optimizer_family
from tacit.selection import RandomLayer, Where, select_layers
from tacit.watched import LazilyTrained

_OWN_KEYWORDS = {"samples", "draws", "weights", "chunk_size", "generator"}


def variational(
    module: nn.Module,
    where: Where = None,
    *,
    rank: int | None = None,
    noise: Noise | None = None,
    parametrization: Parametrization | None = None,
    likelihood: Likelihood | None = None,
    draws: int = 1,
    generator: torch.Generator | None = None,
) -> Variational:
    """Make a module variational: put a distribution over the parameters of some of its layers.

    The module's own parameters are the means and stay as they are, so pretrained weights are kept.
    What is added is a covariance factor for each chosen layer, drawn at random: the initialization
    is the prior. Train the result on the loss you already have: `model(x)` uses one draw of the
    weights, so the loss is an unbiased estimate of the expected loss.

    Args:
        module: Any module. It is wrapped, not copied.
        where: Which layers are random. A dict from layers' names or globs to covariances; a list of
            names or globs, with `rank` (10 if left out); a function from the module to such a dict,
            as `tacit.first_and_last`, the paper's recipe; or None for `tacit.every_layer`: all
            layers with a weight matrix, rank 3, at a quarter of the usual scale.
        rank: Rank of the low-rank covariances where `where` is a list or None.
        noise: Distribution of z in w = mean + S z; `tacit.noise.Gaussian()` if left out.
        parametrization: How large the factors start and how learning rates scale with width and
            rank; `tacit.Standard()` if left out.
        likelihood: What is observed given the outputs, for instance `tacit.Categorical()`;
            `tacit.fit` and `tacit.predict` use it. Not needed in a loop of your own.
        draws: Number of draws of the weights for a batch in train mode (at most one per example):
            see `Variational.forward`. More draws mean less gradient noise.
        generator: Source of randomness for the initial factors.

    Raises:
        ValueError: If a name matches no layer, a parameter is claimed twice or can't be random, or
            a covariance doesn't fit its layer.

    Examples:
        >>> import tacit, torch
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
        >>> model = tacit.variational(net, {"0": tacit.LowRank(5), "2": tacit.FullRank()})
        >>> x = torch.randn(6, 4)
        >>> model(x).shape, model(x, samples=8).shape
        (torch.Size([6, 3]), torch.Size([8, 6, 3]))
        >>> torch.equal(model.eval()(x), net(x))
        True
    """
    _check_module(module)
    _check_generator(generator)
    if noise is not None and not isinstance(noise, Noise):
        raise TypeError(
            f"noise: expected one of tacit.noise, for instance tacit.noise.StudentT(5), "
            f"received {noise!r}."
        )
    if parametrization is not None and not isinstance(parametrization, Parametrization):
        raise TypeError(
            "parametrization: expected tacit.Standard(), MaximalUpdate() or NeuralTangent(), "
            f"received {parametrization!r}."
        )
    if likelihood is not None and not isinstance(likelihood, Likelihood):
        raise TypeError(
            "likelihood: expected tacit.Categorical(), Bernoulli(), Gaussian() or "
            f"HeteroscedasticGaussian(), received {likelihood!r}."
        )
    _checks.positive_integer("draws", draws)
    layers = select_layers(module, where, rank)
    _check_not_scripted(module, layers)
    model = Variational(
        module, layers, noise or Gaussian(), parametrization or Standard(), draws, likelihood
    )
    scales = model.scales()
    for layer, distribution in zip(layers, model.distributions.values(), strict=True):
        layer.covariance.initialize(
            distribution.factors, scales[layer.label], layer.shapes, generator=generator
        )
    return model


def _check_module(module: nn.Module) -> None:
    if not isinstance(module, nn.Module):
        raise TypeError(f"variational: expected an nn.Module, received {module!r}.")
    if isinstance(module, torch.jit.ScriptModule):
        raise _scripted_error("the module")
    if any(isinstance(part, Variational) for part in module.modules()):
        raise TypeError(
            "variational: the module is variational already, or has a part that is; wrap the plain "
            "module (model.module) and name all random layers at once."
        )
    if getattr(module, "is_gradient_checkpointing", False):  # Hugging Face's name for it
        raise ValueError(
            "variational: activation checkpointing inside the module would recompute with the mean "
            "weights; disable it, and checkpoint the variational model as a whole."
        )
    taken = _OWN_KEYWORDS & set(inspect.signature(module.forward).parameters)
    if taken:
        raise ValueError(
            f"variational: {type(module).__name__}.forward has an argument named "
            f"{', '.join(sorted(taken))}, which is the variational model's own; rename it, or put "
            "the module in another that does."
        )


def _check_not_scripted(module: nn.Module, layers: list[RandomLayer]) -> None:
    scripted = [n for n, part in module.named_modules() if isinstance(part, torch.jit.ScriptModule)]
    for layer in layers:
        if any(layer.name == name or layer.name.startswith(f"{name}.") for name in scripted):
            raise _scripted_error(f"the layer {layer.label!r}")


def _scripted_error(what: str) -> TypeError:
    return TypeError(
        f"variational: {what} is scripted, with its weights compiled in; wrap the module that it "
        "was made of, and use torch.compile for speed."
    )


class Variational(LazilyTrained):
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
        """The distributions of the random layers, by the layers' names."""
        self.settle()
        return {layer.label: self._distribution(layer) for layer in self.layers}

    @property
    def _shapes(self) -> dict[str, torch.Size]:
        """The random parameters by their names in the module."""
        return {
            join(layer.name, tensor): shape
            for layer in self.layers
            for tensor, shape in layer.shapes.items()
        }

    def _distribution(self, layer: RandomLayer) -> Distribution:
        owner = descend(self.module, layer.name)
        home = descend(self.factors_as_kept, layer.name)
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
        _check_generator(generator)
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
        _check_generator(generator)
        distributions = self.distributions
        noise = _draw(distributions, _checks.sample_shape("sample", shape), generator)
        return self._weights(distributions, noise)

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
        self.follow(None)  # these groups are for another optimizer than before
        return group(self.entries(optimizer), self, lr, weight_decay)

    def entries(self, optimizer: str) -> Iterator[Entry]:
        """Yield every parameter with its learning-rate factor, means first."""
        family = optimizer_family(optimizer)
        tensors = self.parametrization.tensors(self.module)
        rates = {}
        for name, parameter in self.module.named_parameters():
            rates[id(parameter)] = self.parametrization.learning_rate(tensors[name], optimizer)
            yield Entry("means", f"module.{name}", parameter, rates[id(parameter)], decay=True)
        scales = self.scales()
        for layer, distribution in zip(self.layers, self.distributions.values(), strict=True):
            given = layer.covariance.learning_rates(
                layer.shapes,
                scales[layer.label],
                {name: rates[id(mean)] for name, mean in distribution.mean.items()},
                family,
            )
            for name, factor in distribution.factors.items():
                label = join("factors", join(layer.name, name))
                parameter = cast(nn.Parameter, factor)
                yield Entry("factors", label, parameter, given[name], decay=False)
        if self.likelihood is not None:
            for name, parameter in self.likelihood.named_parameters():
                yield Entry("likelihood", f"likelihood.{name}", parameter, 1.0, decay=False)

    def scales(self) -> dict[str, dict[str, float]]:
        """Return the parametrization's initial standard deviations: layer -> its tensors."""
        tensors = self.parametrization.tensors(self.module)
        stds = {
            id(parameter): self.parametrization.std(tensors[name])
            for name, parameter in self.module.named_parameters()
        }
        return {
            label: {name: stds[id(mean)] for name, mean in distribution.mean.items()}
            for label, distribution in self.distributions.items()
        }

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
        counts = self.parameter_counts()
        lines = [
            f"Variational({type(self.module).__name__}): {counts['module']:,} parameters "
            f"+ {counts['factors']:,} in covariance factors"
        ]
        width = max(len(layer.label) for layer in self.layers)
        for layer in self.layers:
            tensors = ", ".join(
                f"{name} {'x'.join(map(str, shape)) or 'scalar'}"
                for name, shape in layer.shapes.items()
            )
            lines.append(f"  {layer.label:{width}}  {layer.covariance}  over {tensors}")
        if self.likelihood is not None:
            lines.append(f"  likelihood: {self.likelihood}")
        for (cut, training), obstacle in self._caller.obstacles.items():
            kind = f"{'draws' if cut else 'samples'} in {'train' if training else 'eval'} mode"
            lines.append(f"  {kind} run in a loop, vmap can't: {obstacle}")
        return "\n".join(lines)

    def _training_weights(
        self, shape: tuple[int, ...], generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        """Draw weights for a step of training: lazily, where `tacit.SGD` trains the factors."""
        usual = generator is not None or not self.training or torch.compiler.is_compiling()
        if self.lazy is None or usual:
            return self.sample(shape, generator=generator)
        distributions = {layer.label: self._distribution(layer) for layer in self.layers}
        drawn = self.lazy.draw(distributions, shape)
        others = {n: d for n, d in distributions.items() if n not in drawn}
        weights = self._weights(others, _draw(others, shape, None))
        for layer in self.layers:
            for tensor, sampled in drawn.get(layer.label, {}).items():
                weights[join(layer.name, tensor)] = sampled
        return weights

    def _weights(
        self, distributions: Mapping[str, Distribution], noise: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        if not noise:
            return {}
        weights = {}
        with own_precision(next(iter(noise.values())).device.type):
            for layer in self.layers:
                if layer.label in distributions:
                    drawn = distributions[layer.label].weights(noise[layer.label])
                    weights.update({join(layer.name, tensor): drawn[tensor] for tensor in drawn})
        return weights

    def _call_draws(
        self, draws: int | None, generator: torch.Generator | None, inputs: Inputs
    ) -> Any:
        count = self.draws if draws is None else _checks.positive_integer("draws", draws)
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
        samples = _checks.positive_integer("samples", samples)
        distributions = self.distributions
        noise = _draw(distributions, (samples,), generator)
        if chunk_size is None:
            chunk_size = best_chunk(self._caller, self.module, self._shapes, inputs)
        pieces = (
            (self._weights(distributions, part), inputs) for part in chunks(noise, chunk_size)
        )
        return concatenate(self._caller.many(self.module, pieces))

    def _call_weights(self, weights: Weights, chunk_size: int | None, inputs: Inputs) -> Any:
        shape = leading_shape(weights, self._shapes)
        if not shape:
            return self._caller.one(self.module, weights, inputs)
        flat = {name: tensor.flatten(0, len(shape) - 1) for name, tensor in weights.items()}
        if chunk_size is None:
            chunk_size = best_chunk(self._caller, self.module, weights, inputs)
        pieces = ((part, inputs) for part in chunks(flat, chunk_size))
        output = concatenate(self._caller.many(self.module, pieces))
        return map_tensors(lambda tensor: tensor.unflatten(0, shape), output)


def _draw(
    distributions: Mapping[str, Distribution],
    shape: tuple[int, ...],
    generator: torch.Generator | None,
) -> dict[str, Tensor]:
    return {
        label: distribution.draw_noise(shape, generator=generator)
        for label, distribution in distributions.items()
    }


def _check_generator(generator: torch.Generator | None) -> None:
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator: expected a torch.Generator, received {generator!r}.")


def _check_alone(name: str, **others: object) -> None:
    for other, value in others.items():
        if value is not None:
            raise ValueError(f"{name} and {other} exclude each other: choose one.")
