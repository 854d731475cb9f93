"""Select the random layers of a module: resolve the argument `where` to parameters."""

from __future__ import annotations

import glob
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TypeAlias

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tacit._support.names import join
from tacit.weights.covariance import Covariance, LowRank
from tacit.weights.layers import Layers, RandomLayer, layers_of
from tacit.weights.recipes import RANK, Chosen, Recipe, every_layer, relative_noise

Where: TypeAlias = Chosen | Sequence[str] | Recipe | None


def select_layers(module: nn.Module, where: Where, rank: int | None = None) -> list[RandomLayer]:
    """Return the random layers that `where` selects, in the module's order.

    Args:
        module: The module whose layers are chosen.
        where: A dict from names or globs to covariances, a list of names or globs, a function from
            the module to such a dict, or None: `relative_noise`, or with `rank` `every_layer`. A
            name denotes a layer, whose parameters are then jointly distributed, or a single
            parameter. What is the name of a layer or parameter is not a glob, even with a bracket
            in it; names take precedence over globs. Globs match whole dotted names; `*` also
            matches dots.
        rank: Rank of the low-rank covariances if `where` is a list or None.

    Raises:
        TypeError: If `where` is none of these.
        ValueError: If a name matches nothing, a parameter is claimed twice or can't be random.
    """
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise ValueError(f"{name!r} is not initialized yet: run one batch through the module.")
    layers_of(module)  # raises an error if it has none
    if where is None:
        where = relative_noise if rank is None else partial(every_layer, rank=rank)
        rank = None
    chosen = _as_mapping(where(module) if callable(where) else where, rank)
    layers = layers_of(module)  # `tacit.adapters` adds some
    if not chosen:
        raise ValueError(f"where: no layer is named. {_listing(layers)}")
    order = list(layers)
    claims = sorted(_claims(module, layers, chosen), key=lambda claim: order.index(claim.layer))
    padding = _padding(module, [layers[claim.layer][t] for claim in claims for t in claim.tensors])
    return [
        _random_layer(
            claim,
            layers[claim.layer],
            chosen[claim.pattern].fitted(module.get_submodule(claim.layer)),
            padding,
        )
        for claim in claims
    ]


def _as_mapping(where: Where, rank: int | None) -> Mapping[str, Covariance]:
    if isinstance(where, Mapping):
        if rank is not None:
            raise ValueError(
                "variational: rank= applies only to a list of names or None; a dict or function "
                "sets the ranks itself."
            )
        for pattern, covariance in where.items():
            if not isinstance(pattern, str):
                raise TypeError(f"where: expected the name of a layer, received {pattern!r}.")
            if not isinstance(covariance, Covariance):
                raise TypeError(
                    f"where[{pattern!r}]: expected a covariance such as tacit.LowRank(10), "
                    f"received {covariance!r}."
                )
        return where
    names = [where] if isinstance(where, str) else where
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        advice = (
            f' For all layers pass {{"*": {where!r}}}.' if isinstance(where, Covariance) else ""
        )
        raise TypeError(
            "where: expected a dict from layer names to covariances, a name or a list of names, or "
            f"a function such as tacit.every_layer; received {where!r}.{advice}"
        )
    return {name: LowRank(RANK if rank is None else rank) for name in names}


@dataclass(frozen=True)
class _Claim:
    """The parameters of one layer that one pattern selects."""

    pattern: str
    layer: str
    tensors: list[str]
    whole: bool  # whether the pattern matches the layer rather than its parameters
    label: str = ""


def _claims(module: nn.Module, layers: Layers, chosen: Mapping[str, Covariance]) -> list[_Claim]:
    """Return the claims of all patterns: each parameter once, even if tied to other layers."""
    owners: dict[int, tuple[str, str]] = {}  # id of a parameter -> its name and pattern
    claims = []
    globs = _globs(chosen, module, layers)
    for pattern in sorted(chosen, key=globs.__contains__):  # names take precedence over globs
        for claim in _matches(pattern, pattern in globs, module, layers):
            free = []
            for tensor in claim.tensors:
                name = join(claim.layer, tensor)
                owner = owners.setdefault(id(layers[claim.layer][tensor]), (name, pattern))
                if owner == (name, pattern):
                    free.append(tensor)
                else:
                    _check_second_claim(owner, (name, pattern), chosen, globs)
            if free:
                label = claim.layer if claim.whole else join(claim.layer, free[0])
                claims.append(replace(claim, tensors=free, label=label))
    return claims


def _check_second_claim(
    first: tuple[str, str],
    second: tuple[str, str],
    chosen: Mapping[str, Covariance],
    globs: Collection[str],
) -> None:
    """Raise unless a name precedes a glob, or the parameters are tied with equal covariances."""
    tied = first[0] != second[0]
    name_before_glob = second[1] in globs and first[1] not in globs
    if name_before_glob or (tied and chosen[first[1]] == chosen[second[1]]):
        return
    reason = f" ({first[0]!r} and {second[0]!r} are tied.)" if tied else ""
    raise ValueError(
        f"where: the parameter {second[0]!r} is claimed twice, by {first[1]!r} and by "
        f"{second[1]!r}.{reason}"
    )


def _matches(pattern: str, is_glob: bool, module: nn.Module, layers: Layers) -> list[_Claim]:
    """Return claims to all layers that match or, if none does, to the parameters that match."""

    def match(name: str) -> bool:
        return fnmatchcase(name, pattern) if is_glob else name == pattern

    found = [
        _Claim(pattern, layer, list(own), whole=True)
        for layer, own in layers.items()
        if match(layer)
    ]
    if found:
        return found
    for layer, own in layers.items():
        tensors = [tensor for tensor in own if match(join(layer, tensor))]
        if tensors:
            found.append(_Claim(pattern, layer, tensors, whole=False))
    if not found:
        raise ValueError(f"where: {_no_match(pattern, module)} {_listing(layers)}")
    return found


def _globs(patterns: Collection[str], module: nn.Module, layers: Layers) -> set[str]:
    """Return the patterns with a special character that are not names themselves."""
    names = {name for name, _ in module.named_modules(remove_duplicate=False)}
    names |= {join(layer, tensor) for layer, own in layers.items() for tensor in own}
    return {p for p in patterns if p not in names and any(special in p for special in "*?[")}


def _no_match(pattern: str, module: nn.Module) -> str:
    if pattern not in dict(module.named_modules()):
        return f"no layer matches {pattern!r}."
    inside = join(glob.escape(pattern), "*")
    return f"{pattern!r} has no parameters of its own; for layers inside it write {inside!r}."


def _listing(layers: Layers, most: int = 60) -> str:
    names = [name or '"" (the module itself)' for name in layers]
    rest = f", and {len(names) - most} more" if len(names) > most else ""
    return f"Layers with parameters: {', '.join(names[:most])}{rest}."


def _padding(module: nn.Module, random: Sequence[Tensor]) -> dict[int, tuple[int, ...]]:
    """Return the padding rows of random embeddings, by the ids of their weights.

    Raises:
        ValueError: If a random embedding has sparse gradients or changes its weight in forward.
    """
    ids, rows = set(map(id, random)), dict[int, tuple[int, ...]]()
    for name, layer in module.named_modules():
        if not isinstance(layer, nn.Embedding | nn.EmbeddingBag) or id(layer.weight) not in ids:
            continue
        if layer.sparse:
            raise ValueError(
                f"{name!r} has sparse=True: a sample of its weight has no sparse gradient. Set "
                "sparse=False, or leave it out of `where`."
            )
        if layer.max_norm is not None:
            raise ValueError(
                f"{name!r} has max_norm={layer.max_norm:g}, which would rescale a sample of its "
                "weight instead of the mean. Set max_norm=None and constrain the weight after each "
                "optimizer step, or leave it out of `where`."
            )
        if layer.padding_idx is not None:
            before = rows.get(id(layer.weight), ())
            rows[id(layer.weight)] = tuple({*before, layer.padding_idx})
    return rows


def _random_layer(
    claim: _Claim,
    own: Mapping[str, Tensor],
    covariance: Covariance,
    padding: Mapping[int, tuple[int, ...]],
) -> RandomLayer:
    for tensor in claim.tensors:
        _check_parameter(join(claim.layer, tensor), own[tensor])
    shapes = {tensor: own[tensor].shape for tensor in claim.tensors}
    try:
        factors = covariance.factors(shapes)
    except ValueError as error:
        raise ValueError(f"layer {claim.label!r}: {error}") from None
    rows = {tensor: padding[id(own[tensor])] for tensor in shapes if id(own[tensor]) in padding}
    return RandomLayer(claim.layer, shapes, covariance, factors, claim.label, rows)


def _check_parameter(name: str, value: Tensor) -> None:
    if value.is_meta:
        raise ValueError(f"{name!r} is on the meta device, without values: materialize it first.")
    if not value.is_floating_point():
        raise ValueError(
            f"{name!r} has dtype {value.dtype}: only real floating-point parameters can be random."
        )
