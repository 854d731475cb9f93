"""The interface of a wrapped module: what callers read of it, other than its output."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any, ClassVar, TypeVar

from torch import nn

Kind = TypeVar("Kind", bound="Wrapper")

CLASSES: dict[tuple[Any, Any], Any] = {}
"""The classes made by `wrapper_class`, by its arguments."""


class Wrapper(nn.Module):
    """A module that takes the place of the module it wraps; see `wrapper_class`."""

    module: nn.Module
    wrapped_class: ClassVar[type[nn.Module] | None] = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.wrapped_class is None:
            return super().__reduce_ex__(protocol)
        # Classes made at run time can't be found by name.
        base, reduced = type(self).__bases__[0], super().__reduce_ex__(max(2, protocol))
        return (_empty, (base, self.wrapped_class), *reduced[2:])


def _empty(base: type[Kind], wrapped: type[nn.Module]) -> Kind:
    kind: Any = wrapper_class(base, wrapped)
    made: Kind = kind.__new__(kind)
    return made


def class_with_signature(module: nn.Module) -> type[nn.Module]:
    """Return the class whose `forward` has the signature of a module's.

    It is the module's own, but for a model under adapters of PEFT without a task, which forwards
    any arguments, that of the model.
    """
    own, base = type(module), getattr(module, "get_base_model", None)
    kinds = {parameter.kind for parameter in _parameters(own)[1:]}
    if callable(base) and kinds <= {
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    }:
        return type(base())
    return own


def _parameters(kind: type[nn.Module]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(kind.forward).parameters.values())
    except (TypeError, ValueError):
        return []


def wrapper_class(base: type[Kind], wrapped: type[nn.Module]) -> type[Kind]:
    """Return a subclass of a wrapper whose `forward` has the signature of the wrapped class.

    Libraries read signatures: `torch.export` names inputs by them, and Hugging Face's Trainer drops
    the columns of a dataset that `forward` doesn't take, and finds the labels in that of the class.

    Args:
        base: A wrapper whose `forward` takes any arguments, and maybe keywords of its own.
        wrapped: The class of the wrapped module.

    Returns:
        The subclass, or `base` itself if the wrapped class has no signature.
    """
    if (base, wrapped) not in CLASSES:
        CLASSES[base, wrapped] = _wrapper_class(base, wrapped)
    found: type[Kind] = CLASSES[base, wrapped]
    return found


def _wrapper_class(base: Any, wrapped: Any) -> Any:
    own = base.forward
    try:
        signature = _joined(inspect.signature(own), inspect.signature(wrapped.forward))
    except (TypeError, ValueError):
        return base
    # A copy, because a signature belongs to a function; a call to the original would cost time.
    forward: Any = FunctionType(
        own.__code__, own.__globals__, own.__name__, own.__defaults__, own.__closure__
    )
    forward.__kwdefaults__, forward.__doc__ = own.__kwdefaults__, own.__doc__
    forward.__module__, forward.__qualname__ = own.__module__, own.__qualname__
    forward.__signature__ = signature
    members = {"forward": forward, "wrapped_class": wrapped, "__module__": base.__module__}
    return type(f"{base.__name__}{wrapped.__name__}", (base,), members)


def _joined(own: inspect.Signature, wrapped: inspect.Signature) -> inspect.Signature:
    """Return the wrapped signature with the keywords of the wrapper's own."""
    keywords = [p for p in own.parameters.values() if p.kind is p.KEYWORD_ONLY]
    given = list(wrapped.parameters.values())
    rest = [given.pop()] if given and given[-1].kind is inspect.Parameter.VAR_KEYWORD else []
    return wrapped.replace(parameters=[*given, *keywords, *rest])


def of_the_module(name: str) -> Any:
    """Return a property with an attribute of the wrapped module; none if the module has none."""

    def get(self: Wrapper) -> Any:
        return getattr(self.module, name)

    get.__doc__ = f"`{name}` of the wrapped module, if it has one."
    return property(get)
