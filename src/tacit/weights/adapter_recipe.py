"""The recipe for adapters: which layers of a pretrained module get one, and what stays trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from tacit._support import checks
from tacit._support.names import join, matches
from tacit.weights.adapter import ATTRIBUTE, add_adapters, is_linear
from tacit.weights.covariance import Relative
from tacit.weights.layers import Layers, layers_of
from tacit.weights.recipes import Chosen, weighted_layers

NOISE = 0.35  # initial s in the low-rank terms and the head


def adapters(
    rank: int = 8,
    layers: Sequence[str] | None = None,
    head: Sequence[str] | None = None,
    scale: float | None = None,
) -> Adapters:
    """Return a recipe that freezes a pretrained module and adds random terms of low rank to it.

    LoRA (Hu et al., 2021) with a distribution. A linear layer W x becomes W x + 16/R B A x, with A
    and B trained. So is the head, as a whole; everything else is frozen. A, B and the head have
    relative noise, `tacit.Relative`. B starts at 0: until training moves it, every draw of the
    terms is 0, and the mean is the pretrained model.

    The module itself is changed: its layers keep their classes, names and weights, and get a
    submodule `adapter`. `tacit.deterministic` returns a plain module with the mean terms added to
    the weights; `tacit.save` writes only what is trained.

    For other noise, change what the recipe returns: `lambda net: {**tacit.adapters(8)(net),
    "classifier": tacit.LowRank(5)}`.

    Args:
        rank: Rank R of the terms.
        layers: Names or globs of the linear layers, `nn.Linear` or Hugging Face's `Conv1D`, that
            get a term. By default all outside the head, except those whose weight another layer
            shares and the output embeddings of language models.
        head: Names or globs of the layers that are trained as a whole; empty for none. By default,
            of a Hugging Face model the layers outside its base model, except output embeddings; of
            any other the last layer with a weight matrix.
        scale: Initial standard deviation of the entries of A, B and the head's weight, relative to
            their means; by default 0.35, and 0.1 with a continuous likelihood.

    Examples:
        >>> import tacit, torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> model = tacit.variational(net, tacit.adapters(rank=2))
        >>> [name for name, value in net.named_parameters() if value.requires_grad]
        ['0.adapter.down.weight', '0.adapter.up.weight', '2.weight', '2.bias']
        >>> tacit.deterministic(model)[0]
        Linear(in_features=8, out_features=8, bias=True)
    """
    if isinstance(rank, nn.Module):
        raise TypeError("where: expected a recipe with its rank, tacit.adapters(rank=8).")
    rank = checks.positive_integer("adapters(rank)", rank)
    if scale is not None:
        scale = checks.positive_number("adapters(scale)", scale)
    return Adapters(rank, _names("layers", layers), _names("head", head), scale)


@dataclass(frozen=True)
class Adapters:
    """The recipe that `adapters` returns."""

    rank: int
    layers: tuple[str, ...] | None
    head: tuple[str, ...] | None
    scale: float | None

    def __call__(self, module: nn.Module) -> Chosen:
        """Change a module, and return the covariances of what is trained."""
        if hasattr(module, "peft_config"):
            raise ValueError(
                "adapters: the module is under adapters of PEFT. Leave out tacit.adapters: what is "
                "trained is random by default."
            )
        own = {name: each for name, each in layers_of(module).items() if _first(module, name)}
        head = _default_head(module, own) if self.head is None else _named("head", self.head, own)
        chosen = self._layers(module, own, head)
        trained = [join(layer, tensor) for layer in head for tensor in own[layer]]
        add_adapters(module, self.rank, chosen, trained)
        terms = [f"{name}.{ATTRIBUTE}.{side}" for name in chosen for side in ("down", "up")]
        matrices = [name for name in head if any(each.ndim > 1 for each in own[name].values())]
        noise = Relative(NOISE if self.scale is None else self.scale)
        return dict.fromkeys([*terms, *matrices], noise)

    def _layers(self, module: nn.Module, own: Layers, head: list[str]) -> list[str]:
        """Return the layers that get an adapter."""
        linear = {name: own[name] for name in own if is_linear(module.get_submodule(name))}
        reasons = {name: _obstacle(module, name, own, head) for name in linear}
        if self.layers is not None:
            chosen = _named("layers", self.layers, linear)
            for name in chosen:
                if reasons[name] is not None:
                    raise ValueError(f"adapters(layers): {name!r} {reasons[name]}")
            return chosen
        excluded = _output_embeddings(module)
        chosen = [name for name in linear if reasons[name] is None and name not in excluded]
        if not chosen:
            raise ValueError(
                f"adapters: expected linear layers outside the head; {type(module).__name__} has "
                f"none (its head: {', '.join(head) or 'none'}). Name the head, "
                "adapters(head=[...]), or train the module without adapters."
            )
        return chosen


def _obstacle(module: nn.Module, name: str, own: Layers, head: list[str]) -> str | None:
    """Return why a linear layer can't have an adapter, None if it can."""
    if name in head:
        return "is in the head, which is trained as a whole."
    weight = own[name]["weight"]
    if any(weight is each for other in own if other != name for each in own[other].values()):
        return "shares its weight with another layer."
    parent = module.get_submodule(name.rpartition(".")[0])
    if isinstance(parent, nn.MultiheadAttention):
        return "is not called: nn.MultiheadAttention uses its weight directly."
    return None


def _default_head(module: nn.Module, own: Layers) -> list[str]:
    """Return the layers that are trained as a whole."""
    prefix = getattr(module, "base_model_prefix", None)  # of Hugging Face's models
    if not prefix:
        return weighted_layers(module, own)[-1:]
    base = getattr(module, prefix, None)
    if not isinstance(base, nn.Module):  # this is a base model, without a head
        return []
    inside = set(map(id, base.parameters()))
    excluded = _output_embeddings(module)
    return [
        name
        for name, each in own.items()
        if name not in excluded and not inside & set(map(id, each.values()))
    ]


def _output_embeddings(module: nn.Module) -> list[str]:
    """Return the layer of a language model that scores all words: pretrained, and large."""
    get: Callable[[], Any] = getattr(module, "get_output_embeddings", lambda: None)
    found = get()
    return [name for name, layer in module.named_modules() if layer is found]


def _first(module: nn.Module, name: str) -> bool:
    """Return whether this is the first name of a layer that has several."""
    return name in dict(module.named_modules())


def _names(argument: str, given: Sequence[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    listed = isinstance(given, Sequence) and not isinstance(given, str)
    if not listed or not all(isinstance(each, str) for each in given):
        raise TypeError(
            f"adapters({argument}): expected a list of layer names or globs, received {given!r}."
        )
    return tuple(given)


def _named(argument: str, given: Sequence[str], known: Mapping[str, Any]) -> list[str]:
    """Return the known layers that names and globs match, in the module's order."""

    def match(name: str, pattern: str) -> bool:
        return name == pattern or matches(pattern, join(name, "weight"))

    for pattern in given:
        if not any(match(name, pattern) for name in known):
            kind = "layer with parameters" if argument == "head" else "linear layer"
            raise ValueError(
                f"adapters({argument}): no {kind} matches {pattern!r}. There are: "
                f"{', '.join(known) or 'none'}."
            )
    return [name for name in known if any(match(name, pattern) for pattern in given)]
