"""Other libraries' interfaces, each imported on first access; see the extras in pyproject.toml."""

from tacit._support.lazy_imports import lazy_attributes

__getattr__ = lazy_attributes(
    "tacit.integrations", {name: f"tacit.integrations.{name}" for name in ("lightning",)}
)
