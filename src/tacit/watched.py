"""A module whose factors are up to date whenever somebody looks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from torch import nn

from tacit.lazy import LazyFactors


class LazilyTrained(nn.Module):
    """A module whose submodule `factors` is brought up to date when somebody looks at it."""

    lazy: LazyFactors | None = None

    def follow(self, lazy: LazyFactors | None) -> None:
        """Let an optimizer bring the factors up to date lazily; for `tacit.SGD`."""
        if self.lazy is not None:
            self.lazy.end()
        self.lazy = lazy

    def settle(self) -> None:
        """Bring the factors up to date. Whatever shows them does so by itself.

        Only who has kept a reference to a factor from before, and looks at its numbers or its
        gradient, has to call this.
        """
        if self.lazy is not None:
            self.lazy.settle()

    @property
    def factors_as_kept(self) -> nn.Module:
        """The factors, perhaps not up to date."""
        return cast(nn.Module, self._modules["factors"])

    def __getattr__(self, name: str) -> Any:  # torch finds submodules so
        if name == "factors":
            self.settle()
        return super().__getattr__(name)

    def __getstate__(self) -> dict[str, Any]:
        self.settle()
        return {**self.__dict__, "lazy": None}  # a copy is not what the optimizer trains

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        """Yield all modules; so `parameters()` finds them up to date, also in a larger module."""
        self.settle()
        yield from super().named_modules(*args, **kwargs)

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the parts; so `children()` and `apply()` find them up to date."""
        self.settle()
        yield from super().named_children()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients; to None, that needs no look at the factors."""
        if self.lazy is not None and set_to_none:
            self.lazy.forget_gradients()
            for part in self._modules.values():
                if part is not None:
                    part.zero_grad()
        else:
            super().zero_grad(set_to_none)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state, up to date."""
        self.settle()
        return super().state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.settle()  # before, so that nothing is added to what is loaded
        super()._load_from_state_dict(*args, **kwargs)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self.settle()
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
