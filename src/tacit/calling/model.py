"""The variational model: a module as a distribution over functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from tacit._support import checks
from tacit._support.names import grow
from tacit._support.trees import concatenate, map_tensors
from tacit.calling.arguments import Draws, check_exclusive, check_generator
from tacit.calling.caller import (
    Caller,
    Inputs,
    Weights,
    in_chunks,
    leading_shape,
    submodule,
)
from tacit.calling.deferral import Deferral
from tacit.calling.draws import call_draws
from tacit.calling.factor_scaling import FactorScaling
from tacit.calling.interface import Wrapper, of_the_module
from tacit.calling.noisy_weight import NotInActivationSpaceError
from tacit.calling.operations import noisy_weights, with_viewed_means
from tacit.calling.summary import call_notes, summary
from tacit.calling.usage import separate, tied_names
from tacit.calling.verification import ActivationSpace
from tacit.likelihood import Likelihood
from tacit.models.standardise import Standardise
from tacit.scaling import Parametrization
from tacit.weights.distribution import Distribution, draw_noise
from tacit.weights.layers import RandomLayer
from tacit.weights.noise import Noise
from tacit.weights.prior import Prior

NOISE = "noise of "  # prefix of a layer's noise among stacked weights; no name has a space


class Variational(FactorScaling, Wrapper):
    """A module with random parameters; made by `variational`.

    Its class is a subclass whose `forward` has the signature of the wrapped module's. Attributes
    that Hugging Face's libraries read, such as `config`, are those of the wrapped module.

    Attributes:
        module: The wrapped module. Its parameters are the means.
        factors: The covariance factors, under the names of their layers: `factors.fc.weight` and
            `factors.fc.bias` for a layer `fc` with a low-rank covariance.
        layers: The random layers.
        noise: The distribution of z in w = mean + S z.
        parametrization: Sets the initial scales and how learning rates scale.
        draws: Number of draws per batch in train mode, or "each" for one per example.
        likelihood: The distribution of the targets given the outputs, or None.
        preprocessing: How inputs must be preprocessed, stored by `tacit.save`, or None.
        inputs: Standardises the inputs of every call, set by `tacit.fit` for tables, or None.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(tacit.models.MLP(4, [8], 3))
        >>> x = torch.randn(6, 4)
        >>> model(x).shape, model(x, samples=10).shape  # one draw per example; 10 functions
        (torch.Size([6, 3]), torch.Size([10, 6, 3]))
        >>> model = model.eval()
        >>> torch.equal(model(x), model.module(x))  # the mean weights
        True
        >>> model.parameter_counts()
        {'module': 67, 'factors': 8, 'total': 75}
    """

    deferral: Deferral | None = None

    config = of_the_module("config")
    main_input_name = of_the_module("main_input_name")
    device = of_the_module("device")
    dtype = of_the_module("dtype")
    loss_type = of_the_module("loss_type")
    accepts_loss_kwargs = of_the_module("accepts_loss_kwargs")
    can_generate = of_the_module("can_generate")
    num_parameters = of_the_module("num_parameters")
    is_gradient_checkpointing = of_the_module("is_gradient_checkpointing")
    gradient_checkpointing_enable = of_the_module("gradient_checkpointing_enable")
    gradient_checkpointing_disable = of_the_module("gradient_checkpointing_disable")

    def __init__(
        self,
        module: nn.Module,
        layers: list[RandomLayer],
        noise: Noise,
        parametrization: Parametrization,
        draws: Draws,
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
        self.inputs: Standardise | None = None
        self.caller = Caller(tied_names(module))
        self.activation_space = ActivationSpace()
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
        return {layer.label: self.distribution(layer) for layer in self.layers}

    @property
    def _shapes(self) -> dict[str, torch.Size]:
        """The shapes of the random parameters, by their names in the module."""
        return {
            layer.parameters[tensor]: shape
            for layer in self.layers
            for tensor, shape in layer.shapes.items()
        }

    def distribution(self, layer: RandomLayer) -> Distribution:
        """Return the distribution of a layer, possibly with updates of its factors deferred."""
        owner = submodule(self.module, layer.name)
        home = submodule(cast(nn.Module, self._modules["factors"]), layer.name)
        mean: dict[str, Any] = {name: owner._parameters.get(name) for name in layer.shapes}
        if any(value is None or value.shape != layer.shapes[n] for n, value in mean.items()):
            raise RuntimeError(
                f"The layer {layer.name!r} is not the one that was made variational; wrap the "
                "changed module again."
            )
        factors: dict[str, Any] = {name: home._parameters[name] for name in layer.factors}
        return Distribution(
            mean, factors, layer.covariance, self.noise, layer.shapes, layer.padding
        )

    def forward(
        self,
        *args: Any,
        samples: int | None = None,
        draws: Draws | None = None,
        weights: Weights | None = None,
        chunk_size: int | None = None,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call the module with random weights in train mode, with the mean weights in eval mode.

        In train mode `model(x)` is a drop-in replacement for the module, with one draw of the
        weights per example if all noise can act on activations, as by default; otherwise with one
        per batch, or as many as the `draws` given to `variational`. In eval mode weights are drawn
        only on request; `model(x)` equals `model.module(x)`. Inputs of a table that `tacit.fit`
        standardised are standardised in every call.

        Running statistics of batch norm take one step per call, the mean over samples or groups.

        Args:
            *args: Arguments of the wrapped module.
            samples: Draw M functions and apply each to the whole batch. Every tensor of the output
                gets a leading dimension M. Layers before the first random one run once.
            draws: Split the batch into this many groups, each with its own draw, in one pass. If
                the loss is a mean over examples and the module treats examples independently, it
                is still an unbiased estimate of the expected loss, with less noise. The batch must
                be the first dimension of every tensor among the arguments and in the output. Batch
                norm in train mode normalises each group separately, as in data-parallel training.
                "each" for one draw per example, without forming weights, in the layers whose
                covariance allows it, such as `tacit.Relative`; the others have one draw for the
                whole batch. So do all where examples depend on each other.
            weights: Sampled weights from `sample`, to evaluate the same functions again. Their
                sample shape leads in every tensor of the output.
            chunk_size: With `samples` or `weights`: how many functions to run at a time, to bound
                memory; chosen for speed if left out. Doesn't change what is drawn.
            generator: Source of randomness.
            **kwargs: Keyword arguments of the wrapped module.

        Examples:
            >>> import tacit, torch
            >>> net, x = tacit.models.MLP(4, [8], 3), torch.randn(6, 4)
            >>> model = tacit.variational(net, {"3": tacit.LowRank(2)}).eval()
            >>> model(x, samples=10).shape, model(x, draws=2).shape
            (torch.Size([10, 6, 3]), torch.Size([6, 3]))
            >>> functions = model.sample(10)
            >>> first = model(x[:2], weights=functions)
            >>> torch.allclose(first, model(x, weights=functions)[:, :2], atol=1e-5)
            True
        """
        args = self.prepared(args)
        inputs = (args, kwargs)
        if generator is not None:
            check_generator(generator)
        if weights is not None:
            if samples is not None or draws is not None or generator is not None:
                check_exclusive("weights", samples=samples, draws=draws, generator=generator)
            return self._call_weights(weights, chunk_size, inputs)
        if samples is not None:
            if draws is not None:
                check_exclusive("samples", draws=draws)
            return self._call_samples(samples, chunk_size, generator, inputs)
        if chunk_size is not None:
            raise ValueError("chunk_size applies only to samples or weights.")
        if draws is not None or self.training:
            return call_draws(self, draws, generator, inputs)
        return self.module(*args, **kwargs)

    def prepared(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of the wrapped module: a table of inputs is standardised."""
        if self.inputs is None:
            return args
        if len(args) != 1:
            raise TypeError("model: expected the table of inputs as the only positional argument.")
        return (self.inputs(args[0]),)

    def sample(
        self, shape: int | tuple[int, ...] = (), *, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Draw weights: name of each random parameter in the module -> sampled tensor.

        Args:
            shape: Sample shape; an integer M means (M,), and () a single draw.
            generator: Source of randomness.

        Returns:
            For each random parameter a tensor of shape (*shape, *parameter.shape), differentiable
            in means and factors.

        Examples:
            >>> import tacit
            >>> model = tacit.variational(tacit.models.MLP(4, [8], 3), {"3": tacit.LowRank(2)})
            >>> {name: tuple(value.shape) for name, value in model.sample(10).items()}
            {'3.weight': (10, 3, 8), '3.bias': (10, 3)}
        """
        if generator is not None:
            check_generator(generator)
        return self._draw(checks.sample_shape("sample", shape), generator)

    def prior(self) -> Prior:
        """Return a frozen copy of the current distribution, for `tacit.ELBO` and `tacit.GVI`.

        Call it before training: the initialization is the prior. The model itself keeps no copy,
        since training on the expected loss alone needs none.
        """
        return Prior(self.distributions)

    def parameter_counts(self) -> dict[str, int]:
        """Return the number of parameters of the module, of the factors, and in total."""
        module, factors = (
            sum(parameter.numel() for parameter in part.parameters())
            for part in (self.module, self.factors)
        )
        return {"module": module, "factors": factors, "total": module + factors}

    @property
    def call_notes(self) -> list[str]:
        """How kinds of calls run, as observed so far: one sentence each.

        Lists the calls that run in a loop, with vmap's reason, and whether `draws` run in one pass.
        """
        return call_notes(self.caller, self.activation_space)

    def __repr__(self) -> str:
        notes = call_notes(self.caller, self.activation_space, failures_only=True)
        return summary(self.parameter_counts(), self.module, self.layers, self.likelihood, notes)

    def train(self, mode: bool = True) -> Variational:
        """Set the mode; the next training call after a change verifies the use of weights."""
        if mode and not self.training:
            self.caller.verified = False
        super().train(mode)
        return self

    def defer_to(self, deferral: Deferral | None) -> None:
        """Let an optimizer defer the updates of the factors; None stops it."""
        self.settle()
        self.deferral = deferral

    def settle(self) -> None:
        """Apply all deferred updates to the factors.

        Every access through the model does so. Call it before using a reference to a factor that
        was obtained earlier.
        """
        if self.deferral is not None:
            self.deferral.settle()

    @property
    def factors(self) -> nn.Module:
        """The covariance factors, with all deferred updates applied."""
        self.settle()
        return self.unsettled_factors

    @factors.setter
    def factors(self, factors: nn.Module) -> None:
        self._modules["factors"] = factors

    @property
    def unsettled_factors(self) -> nn.Module:
        """The covariance factors, possibly with updates still deferred."""
        return cast(nn.Module, self._modules["factors"])

    def __getstate__(self) -> dict[str, Any]:
        self.settle()
        return {**self.__dict__, "deferral": None}  # the optimizer doesn't train the copy

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        """Yield all modules; `parameters()` calls it, also from an enclosing module."""
        self.settle()
        yield from super().named_modules(*args, **kwargs)

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the direct submodules; `children()` and `apply()` call it."""
        self.settle()
        yield from super().named_children()

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state, with all deferred updates applied.

        Tied parameters have their value under every name, each time as a tensor of its own: in
        safetensors, which Hugging Face's Trainer writes, tensors can't share memory.
        """
        self.settle()
        state = super().state_dict(*args, **kwargs)
        if not kwargs.get("keep_vars", False):
            separate(state)
        return state

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        self.settle()  # a later update would change the loaded values
        super()._load_from_state_dict(state, prefix, *args)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load a state; one whose inputs are standardised makes this model standardise them too."""
        mean = state_dict.get("inputs.mean")
        if mean is not None and (self.inputs is None or self.inputs.mean.shape != mean.shape):
            like = next(self.parameters())
            self.inputs = Standardise(torch.zeros_like(mean), torch.ones_like(mean)).to(like)
        return super().load_state_dict(state_dict, *args, **kwargs)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self.settle()
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def _draw(self, shape: tuple[int, ...], generator: torch.Generator | None) -> dict[str, Tensor]:
        distributions = self.distributions
        return self.form_weights(distributions, draw_noise(distributions, shape, generator))

    def form_weights(
        self, distributions: Mapping[str, Distribution], noise: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the weights of some layers for given noise, by their names in the module.

        Args:
            distributions: The distributions of the layers by label.
            noise: Their noise, label -> (*sample, K).
        """
        return {
            layer.parameters[tensor]: sampled
            for layer in self.layers
            if layer.label in distributions
            for tensor, sampled in distributions[layer.label].weights(noise[layer.label]).items()
        }

    def layers_in_activation_space(
        self, samples: bool = False
    ) -> dict[str, tuple[RandomLayer, Distribution]]:
        """Return the layers that are called in activation space, with their distributions.

        Args:
            samples: Whether in calls with `samples`, which need no batch.
        """
        space = self.activation_space
        refused = space.refused_samples if samples else space.refused
        return {
            layer.label: (layer, self.distribution(layer))
            for layer in self.layers
            if layer.covariance.acts_on_activations
            and not (refused and any(name in refused for name in layer.parameters.values()))
        }

    def _call_samples(
        self,
        samples: int,
        chunk_size: int | None,
        generator: torch.Generator | None,
        inputs: Inputs,
    ) -> Any:
        # All noise is drawn first, so that chunks don't change it; weights only chunk by chunk.
        samples = checks.positive_integer("samples", samples)
        noise = draw_noise(self.distributions, (samples,), generator)
        return self._call_noise(noise, chunk_size, inputs)

    def _call_noise(
        self, noise: Mapping[str, Tensor], chunk_size: int | None, inputs: Inputs
    ) -> Any:
        """Call the module with M functions given by their noise, (M, K) for each layer."""
        caller, module = self.caller, self.module
        # Views, so that the use of the means themselves can be told apart (see `checked_use`).
        active = with_viewed_means(self.layers_in_activation_space(samples=True))
        formed = {label: d for label, d in self.distributions.items() if label not in active}
        if chunk_size is None:
            parameters = [
                name
                for layer in self.layers
                if layer.label in formed
                for name in layer.parameters.values()
            ]
            chunk_size = caller.best_chunk(module, self._shapes, inputs, parameters)

        def prepare(state: Weights) -> Weights:
            own = {label: state[NOISE + label] for label in active}
            return {**_formed(state), **noisy_weights(active, own)}

        def watched(state: Weights) -> Weights:
            return {**_formed(state), **_noisy_means(active)}

        chunks = (
            ({**self.form_weights(formed, part), **{NOISE + n: part[n] for n in active}}, inputs)
            for part in in_chunks(noise, chunk_size)
        )
        try:
            outputs = caller.call_stacked(
                module,
                chunks,
                prepare=prepare if active else None,
                watched=watched if active else None,
            )
        except NotInActivationSpaceError as error:
            self.activation_space.refuse(error, samples=True)
            return self._call_noise(noise, chunk_size, inputs)
        return concatenate(outputs)

    def _call_weights(self, weights: Weights, chunk_size: int | None, inputs: Inputs) -> Any:
        shape = leading_shape(weights, self._shapes)
        if not shape:
            return self.caller.call(self.module, weights, inputs)
        flat = {name: tensor.flatten(0, len(shape) - 1) for name, tensor in weights.items()}
        if chunk_size is None:
            chunk_size = self.caller.best_chunk(self.module, weights, inputs)
        chunks = ((part, inputs) for part in in_chunks(flat, chunk_size))
        output = concatenate(self.caller.call_stacked(self.module, chunks))
        return map_tensors(lambda tensor: tensor.unflatten(0, shape), output)


def _formed(state: Weights) -> dict[str, Tensor]:
    """Return the weights among stacked weights and noise."""
    return {name: tensor for name, tensor in state.items() if not name.startswith(NOISE)}


def _noisy_means(
    layers: Mapping[str, tuple[RandomLayer, Distribution]],
) -> dict[str, Tensor]:
    """Return the means of the tensors with noise, by their names in the module."""
    return {
        layer.parameters[name]: distribution.mean[name]
        for layer, distribution in layers.values()
        for name in layer.covariance.noisy_tensors(layer.shapes)
    }
