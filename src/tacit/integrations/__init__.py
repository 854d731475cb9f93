"""Models from files, and interfaces for other libraries; imported only when asked for."""

from tacit._support.lazy_imports import lazy_attributes

__getattr__ = lazy_attributes(
    "tacit.integrations",
    {
        name: f"tacit.integrations.{name}"
        for name in ("files", "hugging_face", "lightning", "sklearn")
    },
)
