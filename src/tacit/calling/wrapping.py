"""Make a module variational: check arguments, select layers, initialize factors."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from tacit.calling.arguments import Draws, check_generator, number_of_draws
from tacit.calling.draws import check_each
from tacit.calling.interface import class_with_signature, wrapper_class
from tacit.calling.model import Variational
from tacit.likelihood import DiscreteLikelihood, Likelihood
from tacit.scaling.parametrization import MaximalUpdate, Parametrization, Standard
from tacit.weights.adapter_recipe import Adapters
from tacit.weights.layers import RandomLayer
from tacit.weights.noise import Gaussian, Noise
from tacit.weights.recipes import REGRESSION_SCALE, relative_noise
from tacit.weights.selection import Where, select_layers

OWN_KEYWORDS = {"samples", "draws", "weights", "chunk_size", "generator"}
"""Arguments of `Variational.forward`, which the wrapped module's forward must not have."""

# Limit for noise of few singular values under muP. Kronecker ranks of width/8 give 2.8 and train
# like LowRank; at 4, one of 30 seeds diverges.
SPECTRAL_GROWTH = 3.0


def variational(
    module: nn.Module,
    where: Where = None,
    *,
    rank: int | None = None,
    noise: Noise | None = None,
    parametrization: Parametrization | None = None,
    likelihood: Likelihood | None = None,
    draws: Draws | None = None,
    generator: torch.Generator | None = None,
) -> Variational:
    """Make a module variational: put a distribution over the parameters of some of its layers.

    The module's own parameters become the means, unchanged, so pretrained weights are kept. Each
    chosen layer gets an initial covariance factor: the initialization is the prior. Train the
    result on the loss you already have: in train mode `model(x)` draws the weights, by default for
    each example, so a loss that is a mean over examples is an unbiased estimate of the expected
    loss.

    Args:
        module: Any module. It is wrapped, not copied.
        where: Which layers are random. A dict from layer names or globs to covariances; a list of
            names or globs, with `rank` (10 if left out); a function from the module to such a dict,
            such as `tacit.first_and_last`, the paper's recipe, or `tacit.adapters(rank=8)`, which
            freezes a pretrained module and adds random terms of low rank; or None for
            `tacit.relative_noise` in all layers with a weight matrix but the first.
        rank: Rank of the low-rank covariances if `where` is a list, or with None those of
            `tacit.every_layer`.
        noise: Distribution of z in w = mean + S z; `tacit.noise.Gaussian()` if left out.
        parametrization: Sets the initial scale of the factors and how learning rates scale with
            width and rank; `tacit.Standard()` if left out.
        likelihood: Distribution of the targets given the outputs, for instance
            `tacit.Categorical()`. Used by `tacit.fit` and `tacit.predict`; not needed in your own
            training loop. If it is continuous, the default of `where` has scale 0.1: pass it here,
            not only to `tacit.fit`, which can't change the scale.
        draws: Number of draws of the weights per batch in train mode, or "each" for one per
            example; see `Variational.forward`. More draws mean less gradient noise. If left out,
            "each" where the noise of all random layers can act on activations, as with
            `tacit.Relative`, otherwise 1.
        generator: Source of randomness for the initial factors, where they are random.

    Raises:
        TypeError: If an argument has the wrong type, or the module is scripted or already
            variational.
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
    check_generator(generator)
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
            "likelihood: expected tacit.Categorical(), tacit.Gaussian() or another likelihood, "
            f"received {likelihood!r}."
        )
    continuous = likelihood is not None and not isinstance(likelihood, DiscreteLikelihood)
    if where is None and rank is None and continuous:
        where = partial(relative_noise, scale=REGRESSION_SCALE)
    if isinstance(where, Adapters):
        _check_adapters(parametrization, rank)
        where = replace(where, scale=REGRESSION_SCALE) if continuous and not where.scale else where
    layers = select_layers(module, where, rank)
    if draws is None:
        draws = "each" if all(each.covariance.acts_on_activations for each in layers) else 1
    draws = number_of_draws("draws", draws)
    if isinstance(draws, str):
        check_each(layers)
    _check_not_scripted(module, layers)
    _check_not_checkpointed(module, layers)
    model = wrapper_class(Variational, class_with_signature(module))(
        module, layers, noise or Gaussian(), parametrization or Standard(), draws, likelihood
    )
    _check_spectrum(model)
    scales = model.scales()
    for layer, distribution in zip(layers, model.distributions.values(), strict=True):
        layer.covariance.initialize(
            distribution.factors, scales[layer.label], layer.shapes, generator=generator
        )
    return model


def _check_adapters(parametrization: Parametrization | None, rank: int | None) -> None:
    """Raise ValueError before the module is changed."""
    if not isinstance(parametrization, Standard | None):
        raise ValueError(
            "parametrization: expected tacit.Standard() with tacit.adapters, received "
            f"{parametrization!r}: the sizes of pretrained weights come from their training, not "
            "from a parametrization."
        )
    if rank is not None:
        raise ValueError("rank: expected in the recipe, tacit.adapters(rank=...).")


def _check_spectrum(model: Variational) -> None:
    """Raise ValueError if noise with few singular values would make wide networks diverge."""
    if not isinstance(model.parametrization, MaximalUpdate):
        return
    scaled = model.parametrization.parameters_of(model.module)
    for layer in model.layers:
        roles = {scaled[name].role for name in layer.parameters.values() if name in scaled}
        if "hidden" not in roles:
            continue
        growth = layer.covariance.spectral_growth(layer.shapes)
        if growth > SPECTRAL_GROWTH:
            raise ValueError(
                f"layer {layer.label!r}: under muP the noise of {layer.covariance} would make "
                "training diverge as the width grows: its largest singular value is "
                f"{growth:.1f} times that of independent noise, expected at most "
                f"{SPECTRAL_GROWTH:g}. Let the ranks grow with the width, multiply `scale` by "
                f"{SPECTRAL_GROWTH / growth:.2g}, or use tacit.LowRank."
            )


def _check_module(module: nn.Module) -> None:
    if not isinstance(module, nn.Module):
        raise TypeError(f"variational: expected an nn.Module, received {module!r}.")
    if isinstance(module, torch.jit.ScriptModule):
        raise _scripted_error("the module")
    if any(isinstance(part, Variational) for part in module.modules()):
        raise TypeError(
            "variational: the module is already variational or contains a variational module; wrap "
            "the plain module (model.module) and name all random layers at once."
        )
    taken = OWN_KEYWORDS & set(inspect.signature(module.forward).parameters)
    if taken:
        raise ValueError(
            f"variational: {type(module).__name__}.forward has an argument named "
            f"{', '.join(sorted(taken))}, which the variational model reserves; rename it, or wrap "
            "the module in one that does."
        )


def _check_not_scripted(module: nn.Module, layers: list[RandomLayer]) -> None:
    scripted = [n for n, part in module.named_modules() if isinstance(part, torch.jit.ScriptModule)]
    for layer in layers:
        if any(layer.name == name or layer.name.startswith(f"{name}.") for name in scripted):
            raise _scripted_error(f"the layer {layer.label!r}")


def _check_not_checkpointed(module: nn.Module, layers: list[RandomLayer]) -> None:
    if not getattr(module, "is_gradient_checkpointing", False):  # set by Hugging Face
        return
    formed = [layer.label for layer in layers if not layer.covariance.acts_on_activations]
    if formed:
        raise ValueError(
            "variational: activation checkpointing inside the module would recompute with the mean "
            f"weights in the layer {formed[0]!r}; disable it and checkpoint the variational model "
            "as a whole, or use tacit.Relative, whose noise can be recomputed."
        )


def _scripted_error(what: str) -> TypeError:
    return TypeError(
        f"variational: {what} is scripted, with its weights compiled in; wrap the original module, "
        "and use torch.compile for speed."
    )
